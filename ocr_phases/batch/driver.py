"""The driver: assigns pages to workers and records the state of each.

The driver is the only writer of status files and the only judge: a worker's answer counts once, when what it
wrote is put in place and its status is written. Pages are read, hashed and handed out as there is room, so a
million of them are never in memory at once, neither here nor in a scheduler.
"""

from __future__ import annotations

import collections
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import msgspec

from ocr_phases.batch.child import FAILURES, GOES_ON, SCHEDULER_LOST, Outcome, Pool
from ocr_phases.batch.jobs import Job
from ocr_phases.batch.store import (
    RECORD,
    STATUS,
    Listing,
    PageStatus,
    clear_left_behind,
    finished,
    read_listing,
    truth_hash,
    unrendered,
)
from ocr_phases.errors import OcrPhasesError
from ocr_phases.store import fail, file_hash, take, write_status

#: So many pages failing alike before any page went well, or one after another in one worker's place, is no
#: matter of the pages.
GIVE_UP_AFTER = 10

# Failures that trying again does not mend.
_FINAL = ("page", "request")
# Failures of which a worker may be the cause, and outcomes that prove it sound.
_BROKEN = ("model", "died", "error", "timeout")
_SOUND = (None, *_FINAL)

_WAIT_SECONDS = 1.0


@dataclass
class Counts:
    """Progress of a batch. ``kept`` pages were finished by an earlier command."""

    kept: int = 0
    done: int = 0
    failed: int = 0
    again: int = 0  # pages named a second time with equal content and settings

    @property
    def pages(self) -> int:
        """All pages that are accounted for."""
        return self.kept + self.done + self.failed + self.again


@dataclass
class _Task:
    """A page that is handed out: what is asked of a worker, and what became of its attempts so far."""

    folder: Path
    request: dict[str, Any]
    job_id: str
    attempts: list[Outcome] = field(default_factory=list)


class _Work:
    """Hands tasks to a pool as there is room, tries failed ones again, and puts what was written in place.

    ``ended(task, outcome)`` is told of each task's end, ``judge(task, outcome)`` of every attempt's.
    """

    def __init__(
        self,
        pool: Pool,
        retries: int,
        timeout: float | None,
        ended: Callable[[_Task, Outcome], None],
        judge: Callable[[_Task, Outcome], None] = lambda task, outcome: None,
        progress: Callable[[], None] = lambda: None,
    ) -> None:
        self.pool, self.retries, self.timeout = pool, retries, timeout
        self.ended, self.judge, self.progress = ended, judge, progress
        self.tasks: dict[Future[Outcome], _Task] = {}

    def __enter__(self) -> _Work:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Where this stops early, end the workers and clear what they were writing."""
        if kind is not None:
            self.pool.close()
            for task in self.tasks.values():
                clear_left_behind(task.folder)

    def has(self, folder: Path) -> bool:
        """Whether the page of this folder is being done."""
        return any(task.folder == folder for task in self.tasks.values())

    def add(self, task: _Task) -> None:
        """Hand out a task once there is room."""
        while len(self.tasks) >= self.pool.room():
            self.collect()
        self._submit(task)

    def finish(self) -> None:
        """Wait for all of them."""
        while self.tasks:
            self.collect()

    def collect(self) -> None:
        """Take the answers that have come, in the order in which the tasks were handed out."""
        ready, _ = wait(self.tasks, timeout=_WAIT_SECONDS, return_when=FIRST_COMPLETED)
        for future in [future for future in self.tasks if future in ready]:
            task = self.tasks.pop(future)
            outcome = _result(future)
            task.attempts.append(outcome)
            self.judge(task, outcome)
            again = outcome.failure not in _SOUND and len(task.attempts) <= self.retries
            if outcome.place and not again:
                take(task.folder, outcome.place)
            clear_left_behind(task.folder)  # also what a lost worker left, whose task dask began again
            if again:
                self._submit(task)
            else:
                self.ended(task, outcome)
        self.progress()

    def _submit(self, task: _Task) -> None:
        self.tasks[self.pool.submit(task.request, self.timeout)] = task


def measure_pages(
    jobs: Iterable[Job],
    out: Path,
    pool: Pool,
    *,
    mode: str = "measure",
    retries: int = 1,
    timeout: float | None = None,
    progress: Callable[[Counts], None] = lambda counts: None,
) -> Counts:
    """Bring every job to an end below ``out``: done, failed with its reason, or kept from before.

    ``mode`` is ``measure`` or ``notebook``, ``retries`` how often a page that failed is tried again, unless
    the page or the request is at fault, ``timeout`` its seconds. ``progress`` is called after every
    page, and every second. Raises `OcrPhasesError` where going on makes no sense: results cannot be written,
    the model cannot be loaded for the first page, a worker has other versions, the scheduler was lost,
    `GIVE_UP_AFTER` pages fail alike from the start, or so many one after another in one worker's place. What
    is finished then stays so.
    """
    counts = Counts()
    reasons: collections.Counter[str] = collections.Counter()
    failed_by_slot: dict[str, set[str]] = collections.defaultdict(set)

    def judge(task: _Task, outcome: Outcome) -> None:
        _stop_if_no_page_can_succeed(outcome, counts)
        _stop_if_worker_is_broken(outcome, task.job_id, failed_by_slot)

    def ended(task: _Task, outcome: Outcome) -> None:
        write_page(task.folder, task.request["job"], task.attempts, mode)
        if outcome.failure is None:
            counts.done += 1
        else:
            counts.failed += 1
            reasons[outcome.reason] += 1
            _stop_if_all_fail_the_same(outcome, counts, reasons)

    work = _Work(pool, retries, timeout, ended, judge, lambda: progress(counts))
    with work, Listing(out) as listing:
        for job in jobs:
            listing.add(job)
            folder = out / job.folder
            if work.has(folder):
                counts.again += 1
                continue
            clear_left_behind(folder)
            if finished(folder, job.id) is not None:
                counts.kept += 1
                if counts.kept % 100 == 0:
                    progress(counts)
                continue
            if job.problem:
                refused = Outcome("page", job.problem, started=time.time())
                write_page(folder, dict(vars(job)), [refused], mode)
                counts.failed += 1
                continue
            request = {"mode": mode, "job": dict(vars(job)), "folder": str(folder.resolve())}
            work.add(_Task(folder, request, job.id))
        work.finish()
    progress(counts)
    return counts


def standing(jobs: Iterable[Job], out: Path) -> Counts:
    """How the jobs stand before any is measured: ``kept`` are finished, ``failed`` failed or were damaged."""
    counts = Counts()
    for job in jobs:
        folder = out / job.folder
        if finished(folder, job.id) is not None:
            counts.kept += 1
        elif (folder / STATUS).exists():
            counts.failed += 1
    return counts


def auto_device(pool: Pool, waiting: Callable[[], None] = lambda: None) -> str:
    """The device that ``--device auto`` selects on the pool's workers: ``cuda`` or ``cpu``.

    ``waiting`` is called every second until they have answered. Raises `OcrPhasesError` where none can say,
    where they differ, and where the scheduler was lost.
    """
    found: set[str] = set()
    for _ in range(2):  # a worker may be lost over the question, as over a page
        while not (asked := pool.ask({"mode": "device"})):
            waiting()
            time.sleep(_WAIT_SECONDS)
        while wait(asked, timeout=_WAIT_SECONDS).not_done:
            waiting()
        outcomes = [_result(future) for future in asked]
        found = {outcome.device for outcome in outcomes if outcome.failure is None}
        if found:
            break
    if not found:
        raise OcrPhasesError(f"No worker could start: {outcomes[0].reason}")
    if len(found) > 1:
        raise OcrPhasesError("Some workers have a GPU, some do not: give --device cuda or --device cpu.")
    return found.pop()


def render_pages(
    out: Path,
    pool: Pool,
    *,
    retries: int = 1,
    timeout: float | None = None,
    progress: Callable[[int, int], None],
) -> int:
    """Render the report of every measured page that has none yet; how many could not be rendered.

    One that fails is tried again ``retries`` times; what became of it goes into the page's status.
    ``progress(rendered, not rendered)`` is called after every page. Raises `OcrPhasesError` where a status
    cannot be written.
    """
    statuses: dict[Path, PageStatus] = {}
    numbers = collections.Counter[bool]()

    def ended(task: _Task, outcome: Outcome) -> None:
        status = {**statuses.pop(task.folder), "report": _report(outcome, truth_hash(task.folder))}
        write_status(task.folder / STATUS, msgspec.to_builtins(status))
        numbers[outcome.failure is None] += 1

    with _Work(
        pool, retries, timeout, ended, progress=lambda: progress(numbers[True], numbers[False])
    ) as work:
        for entry in read_listing(out):
            folder = out / entry["folder"]
            status = None if work.has(folder) else unrendered(folder, entry["id"])
            if status is not None:
                clear_left_behind(folder)
                statuses[folder] = status
                request = {"mode": "render", "folder": str(folder.resolve())}
                work.add(_Task(folder, request, entry["id"]))
        work.finish()
    return numbers[False]


def _result(future: Future[Outcome]) -> Outcome:
    if future.cancelled():
        raise OcrPhasesError(SCHEDULER_LOST)
    error = future.exception()
    if error is None:
        return future.result()
    if isinstance(error, OcrPhasesError):
        raise error
    return Outcome("died", f"The worker was lost ({type(error).__name__}: {error}).", started=time.time())


def _stop_if_no_page_can_succeed(outcome: Outcome, counts: Counts) -> None:
    if outcome.failure in ("output", "versions"):
        raise OcrPhasesError(f"{outcome.reason} {GOES_ON}")
    if outcome.failure == "model" and not (counts.kept or counts.done or counts.failed):
        raise OcrPhasesError(outcome.reason)


def _stop_if_worker_is_broken(outcome: Outcome, job_id: str, failed_by_slot: dict[str, set[str]]) -> None:
    """A broken device fails its pages faster than sound ones do theirs, and would soon have failed all."""
    if outcome.failure in _SOUND:
        failed_by_slot.pop(outcome.slot, None)
    elif outcome.failure in _BROKEN and outcome.slot:
        failed = failed_by_slot[outcome.slot]
        failed.add(job_id)
        if len(failed) >= GIVE_UP_AFTER:
            where = outcome.slot.partition(":")[0]
            longer = ", or raise --timeout" if outcome.failure == "timeout" else ""
            raise OcrPhasesError(
                f"{len(failed)} pages one after another failed in one worker on {where}, "
                f"the last with: {outcome.reason.rstrip('.')}. "
                f"Mend the device or its model; if it is sound, leave these pages out{longer}. {GOES_ON}"
            )


def _stop_if_all_fail_the_same(outcome: Outcome, counts: Counts, reasons: collections.Counter[str]) -> None:
    if counts.kept or counts.done or reasons[outcome.reason] < GIVE_UP_AFTER:
        return
    raise OcrPhasesError(
        f"The first {GIVE_UP_AFTER} pages failed alike: {outcome.reason.rstrip('.')}. "
        "Correct that and start again."
    )


def write_page(folder: Path, job: Mapping[str, Any], attempts: Sequence[Outcome], mode: str) -> None:
    """Write the status of a page whose last attempt was its end."""
    outcome = attempts[-1]
    status: dict[str, Any] = {
        **job,
        "failure": None,
        "attempts": msgspec.to_builtins(attempts),
        "finished": datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
        "report": None,
    }
    if outcome.failure is not None:
        fail(folder / STATUS, outcome.reason, {**status, "failure": FAILURES[outcome.failure]})
        return
    status["report"] = _report(outcome) if mode == "notebook" else None
    done = {"state": "done", "reason": outcome.reason, "record": file_hash(folder / RECORD)}
    write_status(folder / STATUS, {**status, **done})


def _report(outcome: Outcome, truth: str | None = None) -> dict[str, Any]:
    reason = outcome.reason if outcome.failure else outcome.report
    state = "failed" if reason else "done"
    return {"state": state, "reason": reason, "seconds": outcome.seconds, "truth": truth}
