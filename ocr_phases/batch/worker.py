"""The worker process: measures or renders pages one by one and keeps the model loaded.

Its standard input is one of a pair of sockets. A request comes in as one JSON message; the answers
are `child.READY` when a page's own time starts (the model is there), then the page's `Outcome`. It
ends at once, in the middle of a page too, when the other end closes: a driver that was killed
leaves nobody behind who still writes.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import queue
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import psutil

from ocr_phases.batch.child import READY, Outcome, WorkerRequest
from ocr_phases.batch.jobs import Job, code_versions
from ocr_phases.batch.store import attempt_folder
from ocr_phases.errors import CannotWrite, OcrPhasesError, OutOfMemory
from ocr_phases.files import RECORD, each_page, write_into
from ocr_phases.settings import Settings
from ocr_phases.versions import seldom_collected

if TYPE_CHECKING:
    from ocr_phases.results.run import PhaseRun

Handler = Callable[[WorkerRequest, Callable[[], None]], Outcome]


class Refused(Exception):
    """A page that could not be done: the kind of its failure (a key of `child.FAILURES`), and the
    reason.
    """


def serve(handler: Handler) -> None:
    """Answer requests with ``handler(request, ready)`` until the other end closes."""
    pipe = Connection(os.dup(0))
    with Path(os.devnull).open() as nothing:  # a process that is started here has no share in it
        os.dup2(nothing.fileno(), 0)
    requests: queue.Queue[bytes] = queue.Queue()
    threading.Thread(target=_read_requests, args=(pipe, requests), daemon=True).start()
    ready = functools.partial(pipe.send_bytes, READY)
    while True:
        try:
            outcome = handler(json.loads(requests.get()), ready)
        except Refused as error:
            outcome = Outcome(*error.args)
        except MemoryError as error:
            outcome = Outcome("memory", f"The host is out of memory ({error}).")
        except Exception as error:  # noqa: BLE001 (the batch goes on; a process in an unknown state does not)
            traceback.print_exc()
            outcome = Outcome("error", f"{type(error).__name__}: {error}")
        rss = psutil.Process().memory_info().rss
        pipe.send_bytes(msgspec.json.encode(msgspec.structs.replace(outcome, rss_bytes=rss)))
        if outcome.failure == "error":
            sys.exit(1)


def _read_requests(pipe: Connection, requests: queue.Queue[bytes]) -> None:
    with contextlib.suppress(EOFError, OSError):
        while True:
            requests.put(pipe.recv_bytes())
    os._exit(0)


def measure_page(request: WorkerRequest, ready: Callable[[], None]) -> Outcome:
    """Measure one page with the loaded model and save its record; in mode ``notebook``, report on
    it too.
    """
    from ocr_phases.analyse.cost import priced
    from ocr_phases.batch.figures import write_figures

    job, folder = Job(**request["job"]), Path(request["folder"])
    if job.problem:
        raise Refused("page", job.problem)
    _check_versions(job)
    with _failing_as("request"):
        settings = Settings(**job.settings)
    with _failing_as("model"):
        from ocr_phases.session.kept import kept_session

        session = kept_session(**settings.of_model())
    ready()
    with _failing_as("request", job.source):
        run = priced(
            session.run_inference(job.source, **settings.of_run()), request["price_per_hour"]
        )
    if job.sha256 not in (None, run.page.sha256):
        raise Refused(
            "page", f"{job.name} was changed in the meantime: the same command takes it as it is."
        )
    given = {**job.settings, "page": job.source}
    with _failing_as("output"):
        place = attempt_folder(folder)
        write_into(place, {RECORD: run.to_json()})
        write_figures(place, run, job.id, job.name)
        unrendered = _report(run, place, given) if request["mode"] == "notebook" else ""
    return Outcome(place=place.name, report=unrendered)


def _report(run: PhaseRun, place: Path, parameters: dict[str, Any]) -> str:
    """Write a page's report; why there is none, if so: a page that is measured stays so."""
    from ocr_phases.report.render import page_report

    try:
        page_report(run, place, {**parameters, "price_per_hour": run.request.price_per_hour})
    except Exception as error:  # noqa: BLE001  (whatever it was, the page has been measured)
        # What an attempt wrote is named as it will be called.
        return str(error).replace(f"{place}{os.sep}", "") or type(error).__name__
    return ""


def count_pages(request: WorkerRequest, ready: Callable[[], None]) -> Outcome:
    """How many pages the file ``source`` has."""
    from ocr_phases.images import page_count

    ready()
    with _failing_as("page"):
        return Outcome(pages=page_count(request["source"]))


def find_device(request: WorkerRequest, ready: Callable[[], None]) -> Outcome:
    """The device that ``auto`` selects in this process."""
    from ocr_phases.models.devices import resolve_device

    ready()
    return Outcome(device=resolve_device("auto"))


@seldom_collected()
def render(request: WorkerRequest, ready: Callable[[], None]) -> Outcome:
    """Render a record that is there, which stays as it is: the notebook's own copy is dropped."""
    from ocr_phases.analyse.cost import priced
    from ocr_phases.batch.figures import page_run

    ready()
    folder = Path(request["folder"])
    with _failing_as("report"):
        run = priced(page_run(folder), request["price_per_hour"])
    with _failing_as("output"):
        place = attempt_folder(folder)
        failed = _report(run, place, {"record": str(folder / RECORD)})
        (place / RECORD).unlink(missing_ok=True)
    return Outcome("report" if failed else None, failed, place=place.name)


#: What is done for a request, by its ``mode``.
HANDLERS: dict[str, Handler] = {
    "measure": measure_page,
    "notebook": measure_page,
    "render": render,
    "device": find_device,
    "count": count_pages,
}


def _check_versions(job: Job) -> None:
    here = code_versions()
    if other := sorted(job.versions.items() - here.items()):
        told = ", ".join(f"{name} {here.get(name)} instead of {asked}" for name, asked in other)
        raise Refused("versions", f"This worker has {told}: start it in the driver's environment.")


@contextlib.contextmanager
def _failing_as(failure: str, page: str = "") -> Iterator[None]:
    """Raise an `OcrPhasesError` as a failure of this kind, or of the ``page`` where that cannot be
    read.
    """
    try:
        yield
    except OcrPhasesError as error:
        from ocr_phases.images import load_page

        with _failing_as("page"):
            for each in each_page(page) if page else ():
                load_page(each)
        kinds: dict[type, str] = {OutOfMemory: "memory", CannotWrite: "output"}
        raise Refused(kinds.get(type(error), failure), str(error)) from error


if __name__ == "__main__":
    serve(lambda request, ready: HANDLERS[request["mode"]](request, ready))
