"""The worker process: measures or renders pages one by one and keeps the model loaded.

It reads one JSON request a line on stdin and answers one JSON object a line: ``{"ready": true}`` when a
page's own time starts (the model is there), then the page's `Outcome`, both with the request's ``id``. It
ends at once, in the middle of a page too, when stdin closes: a driver that was killed leaves nobody behind
who still writes.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import msgspec

from ocr_phases.batch.child import Outcome, WorkerRequest
from ocr_phases.batch.figures import write_figures
from ocr_phases.batch.jobs import Job, code_versions
from ocr_phases.batch.store import TRUTH, attempt_folder, drop_open_attempts
from ocr_phases.batch.tables import write_rows
from ocr_phases.errors import CannotWrite, OcrPhasesError, OutOfMemory
from ocr_phases.files import RECORD, each_page, write_into
from ocr_phases.record import PhaseRun
from ocr_phases.settings import Settings
from ocr_phases.versions import seldom_collected

Handler = Callable[[WorkerRequest, Callable[[], None]], Outcome]


class Refused(Exception):
    """A page that could not be done, with the kind of its failure (a key of `child.FAILURES`)."""

    def __init__(self, failure: str, reason: str) -> None:
        super().__init__(reason)
        self.failure = failure


def serve(handler: Handler) -> None:
    """Answer requests on stdin with ``handler(request, ready)`` until stdin closes."""
    replies = _private_stdout()
    requests: queue.Queue[str] = queue.Queue()
    threading.Thread(target=_read_requests, args=(requests,), daemon=True).start()

    def answer(message: Mapping[str, Any]) -> None:
        replies.write(json.dumps({**message, "id": request["id"]}) + "\n")
        replies.flush()

    while True:
        request = json.loads(requests.get())
        clock = _Clock()

        def ready(clock: _Clock = clock) -> None:
            clock.page_starts()
            answer({"ready": True})

        broken = False
        try:
            outcome = handler(request, ready)
        except Refused as error:
            outcome = Outcome(error.failure, str(error))
        except MemoryError as error:
            outcome = Outcome("memory", f"The host is out of memory ({error}).")
        except Exception as error:  # noqa: BLE001 (the batch goes on; a process in an unknown state does not)
            traceback.print_exc()
            outcome = Outcome("error", f"{type(error).__name__}: {error}")
            broken = True
        answer(
            {
                **msgspec.to_builtins(outcome),
                **clock.times(),
                "worker": worker_name(),
                "rss_bytes": rss_bytes(),
            }
        )
        if broken:
            sys.exit(1)


def measure_page(request: WorkerRequest, ready: Callable[[], None]) -> Outcome:
    """Measure one page with the loaded model and save its record; in mode ``notebook``, report on it too."""
    job, folder = _job_and_folder(request)
    settings = _settings(job)
    with _failing_as("model"):
        from ocr_phases.session import kept_session

        session = kept_session(**settings.of_model())
    ready()
    try:
        run = session.run_inference(job.source, **settings.of_run())
    except OcrPhasesError as error:
        raise _refused(job, error) from error
    _check_unchanged(job, run)
    unrendered = ""
    with _failing_as("output"), attempt_folder(folder) as place:
        write_into(place, {RECORD: run.to_json()})
        write_figures(place, run)
        write_rows(place, run)
        if request["mode"] == "notebook":
            unrendered = _report(run, place, {**job.settings, "page": job.source})
    return Outcome(place=place.name, report=unrendered)


def _report(run: PhaseRun, place: Path, parameters: dict[str, Any]) -> str:
    """Write a page's report; why there is none, if so: a page that is measured stays so."""
    from ocr_phases.report.render import page_report

    try:
        page_report(run, place, parameters)
    except Exception as error:  # noqa: BLE001  (whatever it was, the page has been measured)
        # What an attempt wrote is named as it will be called.
        return str(error).replace(f"{place}{os.sep}", "") or type(error).__name__
    return ""


def count_pages(request: WorkerRequest, ready: Callable[[], None]) -> Outcome:
    """How many pages the file ``source`` has."""
    from ocr_phases.inputs.images import page_count

    ready()
    with _failing_as("page"):
        return Outcome(pages=page_count(request["source"]))


def find_device(request: WorkerRequest, ready: Callable[[], None]) -> Outcome:
    """The device that ``auto`` selects in this process."""
    from ocr_phases.models.load import resolve_device

    ready()
    return Outcome(device=resolve_device("auto"))


@seldom_collected()
def render(request: WorkerRequest, ready: Callable[[], None]) -> Outcome:
    """Render a record that is there, which stays as it is: the notebook's own copy is dropped."""
    ready()
    folder = Path(request["folder"])
    record, truth = folder / RECORD, folder / TRUTH
    with _failing_as("report"):
        run = PhaseRun.load(record)
        run = run.with_truth(truth) if truth.exists() else run
    with _failing_as("output"), attempt_folder(folder) as place:
        failed = _report(run, place, {"record": str(record)})
        (place / RECORD).unlink(missing_ok=True)
    return Outcome("report" if failed else None, failed, place=place.name)


def handle_page(request: WorkerRequest, ready: Callable[[], None]) -> Outcome:
    """Handle a request by its ``mode``: ``measure``, ``notebook``, ``render``, ``device`` or ``count``."""
    handlers = {
        "measure": measure_page,
        "notebook": measure_page,
        "render": render,
        "device": find_device,
        "count": count_pages,
    }
    return handlers[request["mode"]](request, ready)


def _job_and_folder(request: WorkerRequest) -> tuple[Job, Path]:
    job = Job(**request["job"])
    here = code_versions()
    if here != job.versions:
        different = ", ".join(
            f"{name} {here.get(name)} instead of {asked}"
            for name, asked in job.versions.items()
            if here.get(name) != asked
        )
        raise Refused("versions", f"This worker has {different}: start it in the driver's environment.")
    return job, Path(request["folder"])


def _settings(job: Job) -> Settings:
    with _failing_as("request"):
        return Settings(**job.settings)


@contextlib.contextmanager
def _failing_as(failure: str) -> Iterator[None]:
    try:
        yield
    except OcrPhasesError as error:
        raise Refused(failure, str(error)) from error


def _refused(job: Job, error: OcrPhasesError) -> Refused:
    """The kind of a measurement's failure: not least, a page to blame or the request."""
    if isinstance(error, OutOfMemory):
        return Refused("memory", str(error))
    if isinstance(error, CannotWrite):
        return Refused("output", str(error))
    from ocr_phases.inputs.images import load_page

    try:
        for page in each_page(job.source):
            load_page(page)
    except OcrPhasesError as unreadable:
        return Refused("page", str(unreadable))
    return Refused("request", str(error))


def _check_unchanged(job: Job, run: PhaseRun) -> None:
    if job.sha256 not in (None, run.page["sha256"]):
        raise Refused("page", f"{job.name} was changed in the meantime: the same command takes it as it is.")


def worker_name() -> str:
    """This process among all of a batch's: host and process id."""
    return f"{platform.node()}:{os.getpid()}"


def rss_bytes() -> int:
    """Resident memory of this process; 0 where the system does not say."""
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


class _Clock:
    """Loading apart from the page's own time."""

    def __init__(self) -> None:
        self.began = self.page_began = time.perf_counter()
        self.started = time.time()

    def page_starts(self) -> None:
        self.page_began = time.perf_counter()
        self.started = time.time()

    def times(self) -> dict[str, float]:
        return {
            "seconds": time.perf_counter() - self.page_began,
            "load_s": self.page_began - self.began,
            "started": self.started,
        }


def _private_stdout() -> IO[str]:
    """Standard output for answers alone: whatever a library prints goes to stderr."""
    own = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return own


def _read_requests(requests: queue.Queue[str]) -> None:
    for line in sys.stdin:
        requests.put(line)
    drop_open_attempts()
    os._exit(0)


def main() -> None:
    """Serve a driver."""
    serve(handle_page)


if __name__ == "__main__":
    main()
