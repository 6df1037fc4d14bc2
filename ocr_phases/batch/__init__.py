"""Batches of pages: workers with a loaded model, resumable, one index. Imports no torch.

``jobs`` says which pages with which settings, ``store`` where results lie, ``child`` holds the
processes that work and their pools, of this machine or of dask, ``worker`` is such a process, which
measures or renders, ``driver`` hands out pages and writes down what became of them, ``figures`` and
``tables`` are what a page adds to the whole, ``index`` shows it. Only a worker loads torch, when
its first page comes.
"""
