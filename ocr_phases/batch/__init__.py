"""Thousands of pages: a loaded model on every device, nothing lost, one index. Nothing here imports torch.

``manifest`` says which pages with which settings, ``store`` where results lie, ``worker`` is the process that
measures or renders, ``driver`` hands out pages and writes down what became of them, ``cluster`` spreads them
with dask, ``index`` shows the whole. Only a worker loads torch, when its first page comes.
"""
