"""Requests to a worker, and the outcome of one attempt at a page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

WorkerRequest = Mapping[str, Any]

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


@dataclass(frozen=True)
class Outcome:
    """One attempt at one page: ``failure`` is None for success, else a key of `FAILURES`.

    ``seconds`` is the page's own time in the worker, ``load_s`` what loading the model took on top (0 where
    it was warm), ``started`` UNIX time, ``rss_bytes`` the worker's memory when it was done. ``worker`` is the
    process, ``slot`` its place, which stays the same when the process is replaced.
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
    """Why the report of a page that was measured could not be rendered with it; empty where it was."""
    place: str = ""
    """The folder of this attempt's files, below the page's own: see `store.take_attempt`."""
    device: str = ""
    """What ``auto`` stands for there, where that was the request."""

    pages: int = 0
    """How many pages a PDF has, where that was the request."""
    stderr: str = ""
    """The last lines that a process wrote which died or met an unexpected error."""

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)
