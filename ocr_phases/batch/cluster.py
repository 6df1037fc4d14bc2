"""Pages over the workers of a dask scheduler that is there.

dask places pages, notices workers that are lost and hands their pages out again; what a page needs beyond
that (a timeout, a process that may die) is a `Child` of the dask worker, exactly as without dask. So a dask
worker itself never loads torch, and its death takes its child with it. When a driver is gone, its scheduler
cancels its pages, and the children that were at them are killed: the device is free again.
"""

from __future__ import annotations

import atexit
import contextlib
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

from ocr_phases.batch.child import WORKER_COMMAND, Child
from ocr_phases.batch.outcome import SCHEDULER_LOST, Outcome
from ocr_phases.errors import OcrPhasesError

_CONNECT_SECONDS = 30
_COUNT_SECONDS = 5.0
_WATCH_SECONDS = 1.0
_ENCRYPTED = ("tls://", "wss://", "gateway://")  # dask-gateway's is TLS, too

_children: dict[tuple[str, ...], Child] = {}
_one_page_at_a_time = threading.Lock()


def run_on_worker(
    request: Mapping[str, Any], timeout: float | None, command: Sequence[str] | None = None
) -> Outcome:
    """One page in this dask worker's child, which stays for the next; one at a time, whatever its threads.

    Without a ``command`` it is this worker's own interpreter, which need not lie where the driver's does.
    """
    with _one_page_at_a_time:
        key = tuple(command or WORKER_COMMAND)
        if key not in _children:
            _children[key] = Child(command=key)
            atexit.register(_children[key].stop)
        child = _children[key]
        with _killed_when_cancelled(child):
            outcome = child.run(request, timeout)
        if child.killed and _children.pop(key, None) is not None:
            atexit.unregister(child.stop)
        return outcome


@contextlib.contextmanager
def _killed_when_cancelled(child: Child) -> Iterator[None]:
    """Kill the child when this task is cancelled, which dask does to a driver's tasks when it is gone."""
    from distributed import get_worker

    worker = get_worker()
    task = worker.get_current_task()
    done = threading.Event()

    def watch() -> None:
        while not done.wait(_WATCH_SECONDS):
            known = worker.state.tasks.get(task)
            if known is None or known.state == "cancelled":
                child.kill()
                return

    threading.Thread(target=watch, name="watch", daemon=True).start()
    try:
        yield
    finally:
        done.set()


def stop_children() -> None:
    """End this dask worker's children, so that the device is free again; the next page starts a new one."""
    while _children:
        _, child = _children.popitem()
        child.kill()
        atexit.unregister(child.stop)


class DaskPool:
    """The workers of the dask scheduler at ``address``.

    dask's own configuration names the files of a TLS connection. ``plain`` says that the connection is not
    encrypted, and so that the scheduler asks nobody who they are.
    Raises `OcrPhasesError` without dask.distributed, or where the scheduler does not answer.
    """

    def __init__(self, address: str, command: Sequence[str] | None = None) -> None:
        try:
            import distributed
        except ImportError as error:
            raise OcrPhasesError(
                'A scheduler needs dask.distributed: pip install "ocr_phases[cluster]".'
            ) from error
        self.command = command
        try:
            self.client = distributed.Client(address, timeout=_CONNECT_SECONDS)
        except (OSError, ValueError, TypeError, RuntimeError) as error:  # the last two: of certificates
            raise OcrPhasesError(f"The scheduler {address} does not answer ({error}).") from error
        self.plain = not str(self.client.scheduler.address).startswith(_ENCRYPTED)
        self.executor = self.client.get_executor(pure=False)
        self.counted = (0.0, 0)

    def submit(self, request: Mapping[str, Any], timeout: float | None) -> Future[Outcome]:
        """As in `Pool`; raises `OcrPhasesError` where the scheduler was lost."""
        self._check()
        return self.executor.submit(run_on_worker, dict(request), timeout, self.command)

    def ask(self, request: Mapping[str, Any]) -> list[Future[Outcome]]:
        """As in `Pool`."""
        self._check()
        executors = [
            self.client.get_executor(pure=False, workers=[worker], allow_other_workers=True)
            for worker in self.client.nthreads()
        ]
        return [executor.submit(run_on_worker, dict(request), None, self.command) for executor in executors]

    def room(self) -> int:
        """As in `Pool`."""
        return max(2, 2 * self.workers())

    def workers(self) -> int:
        """How many workers the scheduler has now; they may come and go."""
        when, count = self.counted
        if time.monotonic() - when > _COUNT_SECONDS:
            self._check()
            try:
                count = len(self.client.nthreads())
            except (OSError, TimeoutError) as error:
                raise OcrPhasesError(SCHEDULER_LOST) from error
            self.counted = (time.monotonic(), count)
        return count

    def close(self) -> None:
        """As in `Pool`; the workers live on, without a model."""
        if self.client.status == "running":
            self.executor.shutdown(wait=False)
            self.client.run(stop_children, on_error="ignore")
        self.client.close()

    def _check(self) -> None:
        if self.client.status != "running":
            raise OcrPhasesError(SCHEDULER_LOST)
