"""The worker process: does pages one by one and keeps the model loaded.

Its standard input is one of a pair of sockets. A request comes in as one JSON message; the answers
are `worker_process.READY` when a page's own time starts (the model is there), then the page's
`Outcome`. It ends at once, in the middle of a page too, when the other end closes: a driver that
was killed leaves nobody behind who still writes.
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
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec
import psutil

from ocr_phases.batch.measuring import Refused, measure_page, refusing_as, render_page
from ocr_phases.batch.outcome import Outcome
from ocr_phases.batch.worker_process import READY, WorkerRequest

Handler = Callable[[WorkerRequest, Callable[[], None]], Outcome]


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


def count_pages(request: WorkerRequest, ready: Callable[[], None]) -> Outcome:
    """How many pages the file ``source`` has."""
    from ocr_phases.images import page_count

    ready()
    with refusing_as("page"):
        return Outcome(pages=page_count(request["source"]))


def find_device(request: WorkerRequest, ready: Callable[[], None]) -> Outcome:
    """The device that ``auto`` selects in this process."""
    from ocr_phases.models.devices import resolve_device

    ready()
    return Outcome(device=resolve_device("auto"))


#: What is done for a request, by its ``mode``.
HANDLERS: dict[str, Handler] = {
    "measure": measure_page,
    "notebook": measure_page,
    "render": render_page,
    "device": find_device,
    "count": count_pages,
}


if __name__ == "__main__":
    serve(lambda request, ready: HANDLERS[request["mode"]](request, ready))
