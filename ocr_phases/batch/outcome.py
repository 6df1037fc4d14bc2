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
    """One attempt at one page: ``failure`` is None for success, else a key of `FAILURES`.

    ``seconds`` is the page's own time in the worker, ``load_s`` what loading the model took on top
    (0 where it was warm), ``started`` UNIX time, ``rss_bytes`` the worker's memory when it was
    done. ``worker`` is the process, ``slot`` its place, which stays the same when the process is
    replaced, and ``stderr`` the last lines of one that is replaced. ``report`` is why the report of
    a page that was measured could not be rendered with it, ``place`` the folder of this attempt's
    files, below the page's own: see `ocr_phases.record.store.take`.

    ``device`` is what ``auto`` stands for there, ``pages`` how many pages a PDF has, where that was
    the request.
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
    stderr: str = ""
