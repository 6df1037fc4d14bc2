"""The driver: assigns pages to workers and records the state of each.

The driver is the only writer of status files and the only judge: a worker's answer counts once,
when what it wrote is put in place and its status is written. Pages are read, hashed and handed out
as there is room, so a million of them are never in memory at once, neither here nor in a scheduler.
"""

from __future__ import annotations

import collections
import itertools
import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

import msgspec

from ocr_phases.batch.archive import (
    RECORD,
    REPORT,
    STATUS,
    clear_left_behind,
    finished_status,
    hash_or_none,
    read_listing,
    truth_hash,
    waiting_reports,
)
from ocr_phases.batch.outcome import FAILURES, GOES_ON, SCHEDULER_LOST, Outcome
from ocr_phases.batch.worker_process import WorkerRequest
from ocr_phases.errors import OcrPhasesError
from ocr_phases.files import read_regular
from ocr_phases.record.store import file_hash, take, write_status

#: So many pages failing alike before any page went well, or one after another in one worker's
#: place, is no matter of the pages.
GIVE_UP_AFTER = 10

#: Failures that trying again does not mend.
_FINAL = ("page", "request")
#: Failures of which a worker may be the cause, and outcomes that prove it sound.
_BROKEN = ("model", "died", "error", "timeout")
_SOUND = (None, *_FINAL)

#: How long the driver waits for a page before it shows its progress again.
WAIT_SECONDS = 1.0


class Workers(Protocol):
    """The workers of a batch: `LocalWorkers` of this machine, or `DaskWorkers` of a scheduler."""

    def submit(self, request: WorkerRequest, timeout: float | None) -> Future[Outcome]:
        """Queue one page; the future's result is its outcome."""

    def ask(self, request: WorkerRequest) -> list[Future[Outcome]]:
        """Send a request to every worker that may differ from the others."""

    def count(self) -> int:
        """How many workers there are now."""

    def close(self) -> None:
        """End running work and free everything."""


@dataclass
class PageCounts:
    """How many pages of a batch came to which end so far.

    Attributes
    ----------
    kept : int
        Pages that an earlier command finished.
    done : int
        Pages that this command finished.
    failed : int
        Pages that failed, after their retries.
    again : int
        Pages that are named a second time.
    alike : Counter of str
        The reasons of failures before any page went well.
    by_slot : dict of str to set of str
        The ids of pages that failed one after another, by the place of their worker.
    busy : dict of str to str
        What first warned that a machine is too busy, by the name of its host.
    """

    kept: int = 0
    done: int = 0
    failed: int = 0
    again: int = 0
    alike: collections.Counter[str] = field(default_factory=collections.Counter)
    by_slot: dict[str, set[str]] = field(default_factory=lambda: collections.defaultdict(set))
    busy: dict[str, str] = field(default_factory=dict)

    @property
    def pages(self) -> int:
        """All pages that are accounted for."""
        return self.kept + self.done + self.failed + self.again

    def judge(self, outcome: Outcome, page: str, *, is_last: bool) -> None:
        """Raise `OcrPhasesError` after an attempt that shows that no page can succeed.

        ``page`` is the page's id, and ``is_last`` says that it is not tried again.
        """
        went_well = self.kept + self.done
        reason = outcome.reason.rstrip(".")
        if outcome.failure in _SOUND:
            self.by_slot.pop(outcome.slot, None)
        elif outcome.failure in _BROKEN and outcome.slot:
            # A broken device fails its pages faster than sound ones do theirs: soon it had failed
            # all.
            self.by_slot[outcome.slot].add(page)
        if is_last and outcome.failure is not None and not went_well:
            self.alike[reason] += 1
        if outcome.failure in ("output", "versions"):
            raise OcrPhasesError(f"{outcome.reason} {GOES_ON}")
        if outcome.failure == "model" and not went_well and not self.failed:
            raise OcrPhasesError(outcome.reason)
        if len(self.by_slot[outcome.slot]) >= GIVE_UP_AFTER:
            raise OcrPhasesError(_broken_worker(outcome))
        if self.alike[reason] >= GIVE_UP_AFTER:
            raise OcrPhasesError(
                f"The first {GIVE_UP_AFTER} pages failed alike: {reason}. "
                "Correct that and start again."
            )


def _host_of(outcome: Outcome) -> str:
    """The name of the machine whose worker tried the page."""
    return outcome.slot.partition(":")[0]


def _broken_worker(outcome: Outcome) -> str:
    """What is said where pages failed one after another in one worker, the last one so."""
    host = _host_of(outcome)
    reason = outcome.reason.rstrip(".")
    advice = "Mend the device or its model; if it is sound, leave these pages out"
    if outcome.failure == "timeout":
        advice += ", or raise --timeout"
    return (
        f"{GIVE_UP_AFTER} pages one after another failed in one worker on {host}, the last "
        f"with: {reason}. {advice}. {GOES_ON}"
    )


@dataclass
class Task:
    """A page that is handed out: what is asked of a worker, and what became of its attempts so far.

    Attributes
    ----------
    folder : Path
        The page's folder.
    mode : str
        What the worker does: ``measure``, ``notebook`` or ``render``.
    known : dict
        What the page's status says already: its job at least.
    attempts : list of Outcome
        What became of the attempts, in their order.
    """

    folder: Path
    mode: str
    known: dict[str, Any]
    attempts: list[Outcome] = field(default_factory=list)

    def request(self, price_per_hour: float | None) -> WorkerRequest:
        """What a worker is asked for."""
        return {
            "mode": self.mode,
            "job": self.known,
            "price_per_hour": price_per_hour,
            "folder": str(self.folder.resolve()),
        }

    def write_end(self, price_per_hour: float | None) -> bool:
        """Write the status of a page whose last attempt, at this price, was its end.

        Returns whether it went well.
        """
        status = dict(self.known)
        if self.mode == "render":
            report = self._report_status(price_per_hour)
            status["report"] = {**report, "truth": truth_hash(self.folder)}
        else:
            status.update(self._page_status(price_per_hour))
        write_status(self.folder / STATUS, status)
        return self.attempts[-1].failure is None

    def _page_status(self, price_per_hour: float | None) -> dict[str, Any]:
        """What became of a page that was to be measured."""
        outcome = self.attempts[-1]
        status: dict[str, Any] = {
            "state": "done",
            "failure": None,
            "reason": outcome.reason,
            "attempts": msgspec.to_builtins(self.attempts),
            "finished": datetime.now(UTC).isoformat(timespec="milliseconds"),
            "record": None,
            "report": None,
        }
        if outcome.failure is not None:
            status["state"] = "failed"
            status["failure"] = FAILURES[outcome.failure]
            return status
        status["record"] = file_hash(self.folder / RECORD)
        if self.mode == "notebook":
            status["report"] = self._report_status(price_per_hour)
        return status

    def _report_status(self, price_per_hour: float | None) -> dict[str, Any]:
        """What became of the page's report: of a page that was measured, why it has none."""
        outcome = self.attempts[-1]
        reason = outcome.report
        if outcome.failure is not None:
            reason = outcome.reason
        return {
            "state": "failed" if reason else "done",
            "reason": reason,
            "seconds": outcome.seconds,
            "price_per_hour": price_per_hour,
            "sha256": hash_or_none(self.folder / REPORT),
        }


def _run(
    tasks: Iterator[Task],
    workers: Workers,
    counts: PageCounts,
    *,
    retries: int,
    timeout: float | None,
    price_per_hour: float | None,
    progress: Callable[[PageCounts], None],
) -> PageCounts:
    """Hand ``tasks`` to the workers as there is room, try failed ones again, and put what was
    written in place.

    Where this is given up or interrupted, the workers end and what they were writing is cleared.
    """
    running: dict[Future[Outcome], Task] = {}
    retried: list[Task] = []
    try:
        while True:
            # Two for each worker, so that none waits for its next page.
            room = max(2, 2 * workers.count()) - len(running)
            for task in [*retried, *itertools.islice(tasks, max(0, room))]:
                running[workers.submit(task.request(price_per_hour), timeout)] = task
            retried.clear()
            progress(counts)
            if not running:
                return counts
            ready, _ = wait(running, timeout=WAIT_SECONDS, return_when=FIRST_COMPLETED)
            for future in [future for future in running if future in ready]:
                task = running[future]
                outcome = _result(future)
                task.attempts.append(outcome)
                if outcome.busy:
                    counts.busy.setdefault(_host_of(outcome), outcome.busy)
                is_retried = outcome.failure not in _SOUND and len(task.attempts) <= retries
                if outcome.place and not is_retried:
                    take(task.folder, outcome.place)
                # Also what a lost worker left, whose task dask began again.
                clear_left_behind(task.folder)
                del running[future]
                if task.mode != "render":
                    counts.judge(outcome, task.known["id"], is_last=not is_retried)
                if is_retried:
                    if task.mode == "notebook":
                        # Perhaps it was the report that the worker could not bear: it comes last.
                        task.mode = "measure"
                    retried.append(task)
                elif task.write_end(price_per_hour):
                    counts.done += 1
                else:
                    counts.failed += 1
    finally:
        if running:
            workers.close()
            for task in running.values():
                clear_left_behind(task.folder)


def _no_progress(counts: PageCounts) -> None:
    """What is told of the progress where nobody asks for it: nothing."""


def measure_pages(
    out: Path,
    workers: Workers,
    *,
    mode: str = "measure",
    retries: int = 1,
    timeout: float | None = None,
    price_per_hour: float | None = None,
    progress: Callable[[PageCounts], None] = _no_progress,
) -> PageCounts:
    """Bring every page of `list_pages` to an end: done, failed with its reason, or kept from
    before.

    Parameters
    ----------
    out : Path
        The batch's folder.
    workers : Workers
        The workers that measure the pages.
    mode : str, default "measure"
        ``measure``, or ``notebook`` where each page's report is made with it.
    retries : int, default 1
        How often a page that failed is tried again, unless the page or the request is at fault.
    timeout : float, optional
        How many seconds a page may take.
    price_per_hour : float, optional
        The machine's price, which goes into the reports.
    progress : callable, optional
        Called with the counts after every page, and every second.

    Returns
    -------
    PageCounts
        How many pages came to which end.

    Raises
    ------
    OcrPhasesError
        Where going on makes no sense: results cannot be written, the model cannot be loaded for
        the first page, a worker has other versions, the scheduler was lost, `GIVE_UP_AFTER` pages
        fail alike from the start, or so many one after another in one worker's place. What is
        finished then stays so.
    """
    counts = PageCounts()

    def tasks() -> Iterator[Task]:
        seen: set[str] = set()
        for entry in read_listing(out):
            folder = out / entry["folder"]
            if entry["id"] in seen:
                counts.again += 1
                continue
            seen.add(entry["id"])
            clear_left_behind(folder)
            if finished_status(folder, entry["id"]) is not None:
                counts.kept += 1
            elif entry["id"] and "job" in entry:
                yield Task(folder, mode, json.loads(entry["job"]))

    return _run(
        tasks(),
        workers,
        counts,
        retries=retries,
        timeout=timeout,
        price_per_hour=price_per_hour,
        progress=progress,
    )


def render_pages(
    out: Path,
    workers: Workers,
    *,
    retries: int = 1,
    timeout: float | None = None,
    price_per_hour: float | None = None,
    progress: Callable[[PageCounts], None] = _no_progress,
) -> PageCounts:
    """Render the report of every page of `waiting_reports`: ``done`` and ``failed``.

    One that fails is tried again; what became of it goes into the page's status. The arguments are
    those of `measure_pages`. Raises `OcrPhasesError` where a status cannot be written.
    """

    def tasks() -> Iterator[Task]:
        for folder in waiting_reports(out, price_per_hour):
            clear_left_behind(folder)
            yield Task(folder, "render", json.loads(read_regular(folder / STATUS)))

    return _run(
        tasks(),
        workers,
        PageCounts(),
        retries=retries,
        timeout=timeout,
        price_per_hour=price_per_hour,
        progress=progress,
    )


def auto_device(workers: Workers, waiting: Callable[[], None] = lambda: None) -> str:
    """The device that ``--device auto`` selects on the workers: ``cuda`` or ``cpu``.

    ``waiting`` is called every second until they have answered. Raises `OcrPhasesError` where none
    can say, where they differ, and where the scheduler was lost.
    """
    for _ in range(2):  # a worker may be lost over the question, as over a page
        outcomes = _ask_for_devices(workers, waiting)
        devices = {outcome.device for outcome in outcomes if outcome.failure is None}
        if devices:
            break
    if not devices:
        raise OcrPhasesError(f"No worker could start: {outcomes[0].reason}")
    if len(devices) > 1:
        raise OcrPhasesError(
            "Some workers have a GPU, some do not: give --device cuda or --device cpu."
        )
    return devices.pop()


def _ask_for_devices(workers: Workers, waiting: Callable[[], None]) -> list[Outcome]:
    """The answers of all workers that may differ, once there is one and all have answered."""
    asked = workers.ask({"mode": "device"})
    while not asked:
        waiting()
        time.sleep(WAIT_SECONDS)
        asked = workers.ask({"mode": "device"})
    while wait(asked, timeout=WAIT_SECONDS).not_done:
        waiting()
    return [_result(future) for future in asked]


def _result(future: Future[Outcome]) -> Outcome:
    """The outcome of a page's future; one whose worker was lost has died."""
    if future.cancelled():
        raise OcrPhasesError(SCHEDULER_LOST)
    error = future.exception()
    if error is None:
        return future.result()
    return Outcome(
        "died", f"The worker was lost ({type(error).__name__}: {error}).", started=time.time()
    )
