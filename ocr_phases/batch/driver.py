"""The driver: assigns pages to workers and records the state of each.

The driver is the only writer of status files and the only judge: a worker's answer counts once, when what it
wrote is put in place and its status is written. Pages are read, hashed and handed out as there is room, so a
million of them are never in memory at once, neither here nor in a scheduler.
"""

from __future__ import annotations

import collections
import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from ocr_phases.batch.job import Job
from ocr_phases.batch.outcome import FAILURES, GOES_ON, SCHEDULER_LOST, Outcome
from ocr_phases.batch.pool import Pool
from ocr_phases.batch.store import (
    Listing,
    Status,
    clear_left_behind,
    finished,
    read_listing,
    record_hash,
    take_attempt,
    truth_hash,
    unrendered,
    write_status,
)
from ocr_phases.errors import OcrPhasesError

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
    """One page that is handed out, with what became of its attempts so far."""

    job: Job
    request: dict[str, Any]
    attempts: list[dict[str, Any]] = field(default_factory=list)


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
    handed_out: dict[Future[Outcome], _Task] = {}
    reasons: collections.Counter[str] = collections.Counter()
    failed_by_slot: dict[str, set[str]] = collections.defaultdict(set)

    def hand_out(task: _Task) -> None:
        handed_out[pool.submit(task.request, timeout)] = task

    def collect() -> None:
        ready, _ = wait(handed_out, timeout=_WAIT_SECONDS, return_when=FIRST_COMPLETED)
        for future in [future for future in handed_out if future in ready]:  # what came first is kept first
            task = handed_out.pop(future)
            outcome = _result(future)
            task.attempts.append(_attempt(outcome))
            _stop_if_no_page_can_succeed(outcome, counts)
            _stop_if_worker_is_broken(outcome, task.job, failed_by_slot)
            folder = out / task.job.folder
            if outcome.failure is None:
                take_attempt(folder, outcome.place)
            clear_left_behind(folder)  # also what a lost worker left, whose task dask began again
            if outcome.failure not in _SOUND and len(task.attempts) <= retries:
                hand_out(task)
                continue
            write_status(folder, _status(task, outcome, mode, folder))
            if outcome.failure is None:
                counts.done += 1
            else:
                counts.failed += 1
                reasons[outcome.reason] += 1
                _stop_if_all_fail_the_same(outcome, counts, reasons)
        progress(counts)

    def folders() -> list[Path]:
        return [out / task.job.folder for task in handed_out.values()]

    with _nothing_left(pool, folders), Listing(out) as listing:
        for job in jobs:
            listing.add(job)
            if any(task.job.id == job.id for task in handed_out.values()):
                counts.again += 1
                continue
            folder = out / job.folder
            clear_left_behind(folder)
            if finished(folder, job.id) is not None:
                counts.kept += 1
                if counts.kept % 100 == 0:
                    progress(counts)
                continue
            if job.problem:
                outcome = Outcome("page", job.problem, started=time.time())
                write_status(folder, _status(_Task(job, {}, [_attempt(outcome)]), outcome, mode, folder))
                counts.failed += 1
                continue
            while len(handed_out) >= pool.room():
                collect()
            request = {"mode": mode, "job": job.as_dict(), "folder": str(folder.resolve())}
            hand_out(_Task(job, request))
        while handed_out:
            collect()
    progress(counts)
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
    handed_out: dict[Future[Outcome], tuple[Path, Status, int]] = {}
    numbers = collections.Counter[bool]()

    def hand_out(folder: Path, status: Status, tries: int) -> None:
        request = {"mode": "render", "folder": str(folder.resolve())}
        handed_out[pool.submit(request, timeout)] = (folder, status, tries)

    def collect() -> None:
        ready, _ = wait(handed_out, return_when=FIRST_COMPLETED)
        for future in ready:
            folder, status, tries = handed_out.pop(future)
            outcome = _result(future)
            if outcome.failure is not None and tries < retries:
                hand_out(folder, status, tries + 1)
                continue
            if outcome.place:
                take_attempt(folder, outcome.place)
            write_status(folder, {**status, "report": _report(outcome, truth_hash(folder))})
            numbers[outcome.failure is None] += 1
        progress(numbers[True], numbers[False])

    with _nothing_left(pool, lambda: [folder for folder, _, _ in handed_out.values()]):
        for entry in read_listing(out):
            folder = out / entry["folder"]
            if any(folder == other for other, _, _ in handed_out.values()):
                continue
            status = unrendered(folder, entry["id"])
            if status is None:
                continue
            clear_left_behind(folder)
            while len(handed_out) >= pool.room():
                collect()
            hand_out(folder, status, 0)
        while handed_out:
            collect()
    return numbers[False]


@contextlib.contextmanager
def _nothing_left(pool: Pool, folders: Callable[[], list[Path]]) -> Iterator[None]:
    """Where this stops early, end the workers and clear what they were writing into ``folders()``."""
    try:
        yield
    except BaseException:
        pool.close()
        for folder in folders():
            clear_left_behind(folder)
        raise


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


def _stop_if_worker_is_broken(outcome: Outcome, job: Job, failed_by_slot: dict[str, set[str]]) -> None:
    """A broken device fails its pages faster than sound ones do theirs, and would soon have failed all."""
    if outcome.failure in _SOUND:
        failed_by_slot.pop(outcome.slot, None)
    elif outcome.failure in _BROKEN and outcome.slot:
        failed = failed_by_slot[outcome.slot]
        failed.add(job.id)
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


def _attempt(outcome: Outcome) -> dict[str, Any]:
    names = ("failure", "reason", "started", "seconds", "load_s", "worker", "rss_bytes", "stderr")
    return {name: getattr(outcome, name) for name in names}


def _status(task: _Task, outcome: Outcome, mode: str, folder: Path) -> dict[str, Any]:
    job = task.job
    failed = outcome.failure is not None
    return {
        **job.as_dict(),
        "state": "failed" if failed else "done",
        "failure": FAILURES[outcome.failure] if outcome.failure else None,
        "reason": outcome.reason,
        "attempts": task.attempts,
        "finished": datetime.now(timezone.utc).isoformat(timespec="milliseconds"),
        "record": None if failed else record_hash(folder),
        "report": _report(outcome) if mode == "notebook" and not failed else None,
    }


def _report(outcome: Outcome, truth: str | None = None) -> dict[str, Any]:
    reason = outcome.reason if outcome.failure else outcome.report
    state = "failed" if reason else "done"
    return {"state": state, "reason": reason, "seconds": outcome.seconds, "truth": truth}
