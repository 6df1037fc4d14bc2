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
    finished,
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

# Failures that trying again does not mend.
_FINAL = ("page", "request")
# Failures of which a worker may be the cause, and outcomes that prove it sound.
_BROKEN = ("model", "died", "error", "timeout")
_SOUND = (None, *_FINAL)

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
class Counts:
    """Progress of a batch. ``kept`` pages were finished by an earlier command, ``again`` named
    twice.

    ``alike`` counts the reasons of failures before any page went well, ``by_slot`` has the pages
    that failed one after another in a worker's place.
    """

    kept: int = 0
    done: int = 0
    failed: int = 0
    again: int = 0
    alike: collections.Counter[str] = field(default_factory=collections.Counter)
    by_slot: dict[str, set[str]] = field(default_factory=lambda: collections.defaultdict(set))

    @property
    def pages(self) -> int:
        """All pages that are accounted for."""
        return self.kept + self.done + self.failed + self.again

    def judge(self, outcome: Outcome, page: str, last: bool) -> None:
        """Raise `OcrPhasesError` after an attempt at a page (its id) that shows that no page can
        succeed.
        """
        well, reason = self.kept + self.done, outcome.reason.rstrip(".")
        if outcome.failure in _SOUND:
            self.by_slot.pop(outcome.slot, None)
        elif outcome.failure in _BROKEN and outcome.slot:
            # A broken device fails its pages faster than sound ones do theirs: soon it had failed
            # all.
            self.by_slot[outcome.slot].add(page)
        self.alike[reason] += last and outcome.failure is not None and not well
        where = outcome.slot.partition(":")[0]
        longer = ", or raise --timeout" if outcome.failure == "timeout" else ""
        broken = (
            f"{GIVE_UP_AFTER} pages one after another failed in one worker on {where}, the last "
            f"with: {reason}. Mend the device or its model; if it is sound, leave these pages "
            f"out{longer}. {GOES_ON}"
        )
        alike = (
            f"The first {GIVE_UP_AFTER} pages failed alike: {reason}. Correct that and start again."
        )
        if outcome.failure in ("output", "versions"):
            raise OcrPhasesError(f"{outcome.reason} {GOES_ON}")
        if outcome.failure == "model" and not well and not self.failed:
            raise OcrPhasesError(outcome.reason)
        if len(self.by_slot[outcome.slot]) >= GIVE_UP_AFTER:
            raise OcrPhasesError(broken)
        if self.alike[reason] >= GIVE_UP_AFTER:
            raise OcrPhasesError(alike)


@dataclass
class Task:
    """A page that is handed out: what is asked of a worker, and what became of its attempts so far.

    ``known`` is what its status says already.
    """

    folder: Path
    mode: str
    known: dict[str, Any]
    attempts: list[Outcome] = field(default_factory=list)

    def write(self, price_per_hour: float | None) -> bool:
        """Write the status of a page whose last attempt, at this price, was its end; whether it
        went well.
        """
        outcome, status = self.attempts[-1], dict(self.known)
        reason = outcome.reason if outcome.failure else outcome.report
        told: dict[str, Any] = {"state": "failed" if reason else "done", "reason": reason}
        told |= {"seconds": outcome.seconds, "price_per_hour": price_per_hour}
        if self.mode == "render":
            told["sha256"] = hash_or_none(self.folder / REPORT)
            status["report"] = {**told, "truth": truth_hash(self.folder)}
        else:
            done = outcome.failure is None
            told["sha256"] = hash_or_none(self.folder / REPORT)
            status |= {
                "state": "done" if done else "failed",
                "failure": None if outcome.failure is None else FAILURES[outcome.failure],
                "reason": outcome.reason,
                "attempts": msgspec.to_builtins(self.attempts),
                "finished": datetime.now(UTC).isoformat(timespec="milliseconds"),
                "record": file_hash(self.folder / RECORD) if done else None,
                "report": told if done and self.mode == "notebook" else None,
            }
        write_status(self.folder / STATUS, status)
        return outcome.failure is None


def _run(
    tasks: Iterator[Task],
    workers: Workers,
    counts: Counts,
    *,
    retries: int = 1,
    timeout: float | None = None,
    price_per_hour: float | None = None,
    progress: Callable[[Counts], None] = lambda counts: None,
) -> Counts:
    """Hand ``tasks`` to the workers as there is room, try failed ones again, and put what was
    written in place.

    Where this is given up or interrupted, the workers end and what they were writing is cleared.
    """
    running, retried = dict[Future[Outcome], Task](), list[Task]()
    try:
        while True:
            room = max(0, max(2, 2 * workers.count()) - len(running))
            for task in [*retried, *itertools.islice(tasks, room)]:
                request = {"mode": task.mode, "job": task.known, "price_per_hour": price_per_hour}
                request["folder"] = str(task.folder.resolve())
                running[workers.submit(request, timeout)] = task
            retried.clear()
            progress(counts)
            if not running:
                return counts
            ready, _ = wait(running, timeout=WAIT_SECONDS, return_when=FIRST_COMPLETED)
            for future in [future for future in running if future in ready]:
                task, outcome = running[future], _result(future)
                task.attempts.append(outcome)
                again = outcome.failure not in _SOUND and len(task.attempts) <= retries
                if outcome.place and not again:
                    take(task.folder, outcome.place)
                clear_left_behind(
                    task.folder
                )  # also what a lost worker left, whose task dask began again
                del running[future]
                if task.mode != "render":
                    counts.judge(outcome, task.known["id"], last=not again)
                if again:
                    if task.mode == "notebook":
                        # Perhaps it was the report that the worker could not bear: it comes last.
                        task.mode = "measure"
                    retried.append(task)
                elif task.write(price_per_hour):
                    counts.done += 1
                else:
                    counts.failed += 1
    finally:
        if running:
            workers.close()
            for task in running.values():
                clear_left_behind(task.folder)


def measure_pages(out: Path, workers: Workers, *, mode: str = "measure", **options: Any) -> Counts:
    """Bring every page of `list_pages` to an end: done, failed with its reason, or kept from
    before.

    ``mode`` is ``measure`` or ``notebook``. Of the ``options``, ``retries`` is how often a page
    that failed is tried again, unless the page or the request is at fault (1), ``timeout`` its
    seconds (None), ``price_per_hour`` goes into its record, and ``progress(counts)`` is called
    after every page, and every second. Raises `OcrPhasesError` where going on makes no sense:
    results cannot be written, the model cannot be loaded for the first page, a worker has other
    versions, the scheduler was lost, `GIVE_UP_AFTER` pages fail alike from the start, or so many
    one after another in one worker's place. What is finished then stays so.
    """
    counts = Counts()

    def tasks() -> Iterator[Task]:
        seen = set[str]()
        for entry in read_listing(out):
            folder = out / entry["folder"]
            if entry["id"] in seen:
                counts.again += 1
                continue
            seen.add(entry["id"])
            clear_left_behind(folder)
            if finished(folder, entry["id"]):
                counts.kept += 1
            elif entry["id"] and "job" in entry:
                yield Task(folder, mode, json.loads(entry["job"]))

    return _run(tasks(), workers, counts, **options)


def render_pages(out: Path, workers: Workers, **options: Any) -> Counts:
    """Render the report of every page of `waiting_reports`: ``done`` and ``failed``.

    One that fails is tried again; what became of it goes into the page's status. The ``options``
    are `measure_pages`'. Raises `OcrPhasesError` where a status cannot be written.
    """

    def tasks() -> Iterator[Task]:
        for folder in waiting_reports(out, options.get("price_per_hour")):
            clear_left_behind(folder)
            yield Task(folder, "render", json.loads(read_regular(folder / STATUS)))

    return _run(tasks(), workers, Counts(), **options)


def auto_device(workers: Workers, waiting: Callable[[], None] = lambda: None) -> str:
    """The device that ``--device auto`` selects on the workers: ``cuda`` or ``cpu``.

    ``waiting`` is called every second until they have answered. Raises `OcrPhasesError` where none
    can say, where they differ, and where the scheduler was lost.
    """
    for _ in range(2):  # a worker may be lost over the question, as over a page
        while not (asked := workers.ask({"mode": "device"})):
            waiting()
            time.sleep(WAIT_SECONDS)
        while wait(asked, timeout=WAIT_SECONDS).not_done:
            waiting()
        outcomes = [_result(future) for future in asked]
        if found := {outcome.device for outcome in outcomes if outcome.failure is None}:
            break
    if not found:
        raise OcrPhasesError(f"No worker could start: {outcomes[0].reason}")
    if len(found) > 1:
        raise OcrPhasesError(
            "Some workers have a GPU, some do not: give --device cuda or --device cpu."
        )
    return found.pop()


def _result(future: Future[Outcome]) -> Outcome:
    if future.cancelled():
        raise OcrPhasesError(SCHEDULER_LOST)
    if (error := future.exception()) is None:
        return future.result()
    return Outcome(
        "died", f"The worker was lost ({type(error).__name__}: {error}).", started=time.time()
    )
