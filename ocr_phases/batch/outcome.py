"""What became of an attempt at a page: the answer of a worker process."""

from __future__ import annotations

import msgspec

#: Why an attempt failed, as the index names it.
FAILURES = {
    "page": "the page cannot be read",
    "request": "the request cannot be met",
    "model": "the model cannot be loaded",
    "versions": "the worker has other versions",
    "memory": "out of memory",
    "output": "the results cannot be written",
    "report": "the report cannot be rendered",
    "error": "unexpected error",
    "died": "the worker died",
    "timeout": "timeout",
}
#: The end of what a batch that stops says.
GOES_ON = "Finished pages are kept: the same command resumes."
SCHEDULER_LOST = f"The scheduler was lost. {GOES_ON}"


class Outcome(msgspec.Struct, frozen=True):
    """What became of one attempt at one page.

    Attributes
    ----------
    failure : str or None
        Why it failed, a key of `FAILURES`; None for success.
    reason : str
        The failure in a sentence; empty for success.
    seconds : float
        The page's own time in the worker.
    load_s : float
        How many seconds it took to load the model before that; 0 where it was loaded already.
    started : float
        When the page's own time began, in UNIX time.
    worker : str
        The host and the number of the process.
    slot : str
        The process's place, which stays the same when the process is replaced.
    rss_bytes : int
        The worker's memory when it was done.
    report : str
        Why the report of a page that was measured could not be rendered with it.
    place : str
        The folder of this attempt's files below the page's own (`ocr_phases.record.store.take`).
    device : str
        What ``auto`` stands for in the worker, where that was the request.
    pages : int
        How many pages a file has, where that was the request.
    busy : str
        What warned after the warm-up that the machine is too busy; empty where nothing did.
    stderr : str
        The last lines of a process that is replaced.
    """

    failure: str | None = None
    reason: str = ""
    seconds: float = 0.0
    load_s: float = 0.0
    started: float = 0.0
    worker: str = ""
    slot: str = ""
    rss_bytes: int = 0
    report: str = ""
    place: str = ""
    device: str = ""
    pages: int = 0
    busy: str = ""
    stderr: str = ""
