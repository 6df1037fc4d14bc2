"""The driver: assigns pages to workers and records the state of each.

The driver is the only writer of status files and the only judge: a worker's answer counts once, when what it
wrote is put in place and its status is written. Pages are read, hashed and handed out as there is room, so a
million of them are never in memory at once, neither here nor in a scheduler.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import json
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
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
    clear_left_behind,
    finished,
    read_listing,
    truth_hash,
    waiting_reports,
    write_listing,
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
class Task:
    """A page that is handed out: what is asked of a worker, and what became of its attempts so far.

    ``known`` is what its status says already.
    """

    folder: Path
    request: dict[str, Any]
    known: Mapping[str, Any]
    attempts: list[Outcome] = field(default_factory=list)


def run_tasks(
    tasks: Iterable[Task], pool: Pool, retries: int, timeout: float | None
) -> Generator[tuple[Task, bool] | None]:
    """Hand ``tasks`` to a pool as there is room, try failed ones again, and put what was written in place.

    Yields a task with every attempt, and whether that was its last; None at least once a second. Where this
    is closed early, the workers end and what they were writing is cleared.
    """
    tasks, running = iter(tasks), dict[Future[Outcome], Task]()
    try:
        while True:
            room = max(2, 2 * pool.workers()) - len(running)
            for task in itertools.islice(tasks, max(0, room)):
                running[pool.submit(task.request, timeout)] = task
            if not running:
                return
            ready, _ = wait(running, timeout=_WAIT_SECONDS, return_when=FIRST_COMPLETED)
            for future in [future for future in running if future in ready]:
                task = running[future]
                outcome = _result(future)
                task.attempts.append(outcome)
                again = outcome.failure not in _SOUND and len(task.attempts) <= retries
                if outcome.place and not again:
                    take(task.folder, outcome.place)
                clear_left_behind(task.folder)  # also what a lost worker left, whose task dask began again
                del running[future]
                if again:
                    running[pool.submit(task.request, timeout)] = task
                yield task, not again
            yield None
    finally:
        if running:
            pool.close()
            for task in running.values():
                clear_left_behind(task.folder)


def list_pages(jobs: Iterable[Job], out: Path) -> Counts:
    """List every job in ``jobs.jsonl``: ``kept`` are finished, ``failed`` failed before or were damaged.

    The others are not counted. Raises `OcrPhasesError` where it cannot be written.
    """
    counts = Counts()
    for job, folder in write_listing(out, jobs):
        if finished(folder, job.id) is not None:
            counts.kept += 1
        elif (folder / STATUS).exists():
            counts.failed += 1
    return counts


def measure_pages(
    out: Path,
    pool: Pool,
    *,
    mode: str = "measure",
    retries: int = 1,
    timeout: float | None = None,
    progress: Callable[[Counts], None] = lambda counts: None,
) -> Counts:
    """Bring every page of `list_pages` to an end: done, failed with its reason, or kept from before.

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

    def tasks() -> Iterator[Task]:
        seen = set[str]()
        for entry in read_listing(out):
            if not entry["id"]:
                continue
            folder, job = out / entry["folder"], json.loads(entry["job"])
            if entry["id"] in seen:
                counts.again += 1
                continue
            seen.add(entry["id"])
            clear_left_behind(folder)
            if finished(folder, entry["id"]) is not None:
                counts.kept += 1
                if counts.kept % 100 == 0:
                    progress(counts)
            elif job["problem"]:
                write_page(folder, job, [Outcome("page", job["problem"], started=time.time())], mode)
                counts.failed += 1
            else:
                yield Task(folder, {"mode": mode, "job": job, "folder": str(folder.resolve())}, job)

    with contextlib.closing(run_tasks(tasks(), pool, retries, timeout)) as attempts:
        for attempt in attempts:
            if attempt is None:
                progress(counts)
                continue
            task, last = attempt
            outcome = task.attempts[-1]
            _stop_if_no_page_can_succeed(outcome, counts)
            _stop_if_worker_is_broken(outcome, task.known["id"], failed_by_slot)
            if not last:
                continue
            write_page(task.folder, task.known, task.attempts, mode)
            if outcome.failure is None:
                counts.done += 1
            else:
                counts.failed += 1
                reasons[outcome.reason] += 1
                _stop_if_all_fail_the_same(outcome, counts, reasons)
    progress(counts)
    return counts


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
    numbers = collections.Counter[bool]()

    def tasks() -> Iterator[Task]:
        for folder, status in waiting_reports(out):
            clear_left_behind(folder)
            yield Task(folder, {"mode": "render", "folder": str(folder.resolve())}, status)

    with contextlib.closing(run_tasks(tasks(), pool, retries, timeout)) as attempts:
        for attempt in attempts:
            if attempt is not None and attempt[1]:
                task, outcome = attempt[0], attempt[0].attempts[-1]
                report = _report(outcome, truth_hash(task.folder))
                write_status(task.folder / STATUS, msgspec.to_builtins({**task.known, "report": report}))
                numbers[outcome.failure is None] += 1
            progress(numbers[True], numbers[False])
    return numbers[False]


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
