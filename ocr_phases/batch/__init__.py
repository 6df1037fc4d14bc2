"""Batches of pages: workers with a loaded model, resumable, one index. Imports no torch.

``manifest`` says which pages with which settings, ``store`` where results lie, ``worker`` is the process that
measures or renders, ``driver`` hands out pages and writes down what became of them, ``cluster`` spreads them
with dask, ``index`` shows the whole. Only a worker loads torch, when its first page comes.
"""
