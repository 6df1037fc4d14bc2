"""Batches of pages: workers that keep a loaded model, an archive that resumes, and one index.

In the order of the work: `pages` finds the pages that a command names, and `jobs` makes a job of
each: a page with all that its result depends on. `driver` hands the jobs to workers and writes down
what became of them. The workers are processes of this machine (`local_workers`) or those of a dask
scheduler (`dask_workers`); each is a `worker_process`, which runs the program `worker`. There
`measuring` runs the notebook ``page_report`` for one page, and answers with an `outcome`.
`archive` says where results lie and which of them are whole, `figures` is what the index keeps of a
page, and `index` shows all pages. Only a worker loads torch, when its first page comes.
"""
