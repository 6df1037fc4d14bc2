"""The workers of a dask scheduler, each with a worker process of ours below it.

dask can neither stop a task nor survive one that takes its process with it, so a page is done in a
process of its own (`WorkerProcess`). dask places pages, notices workers that are lost and hands
their pages out again; a dask worker itself never loads torch, and its death takes its process with
it. When a driver is gone, its scheduler cancels its pages, and the processes that were at them are
killed: the device is free again.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from concurrent.futures import Future
from typing import Any

from ocr_phases.batch.outcome import SCHEDULER_LOST, Outcome
from ocr_phases.batch.worker_process import WORKER, WorkerCommand, WorkerProcess, WorkerRequest
from ocr_phases.errors import OcrPhasesError

#: How long the scheduler has to answer, and how long a count of its workers is good for.
CONNECT_SECONDS = 30
COUNT_SECONDS = 5.0

#: This dask worker's processes by the program that they run.
_processes: dict[tuple[str, ...], WorkerProcess] = {}
_one_page_at_a_time = threading.Lock()


def run_on_worker(
    request: WorkerRequest, timeout: float | None, command: WorkerCommand | None = None
) -> Outcome:
    """One page in this dask worker's process, which stays for the next; one at a time, whatever its
    threads.

    Without a ``command`` it is this worker's own interpreter, which need not lie where the driver's
    does.
    """
    from distributed import get_worker

    task = get_worker().get_current_task()
    tasks = get_worker().state.tasks

    def is_cancelled() -> bool:
        """Whether dask cancelled this task, as it does where the driver is gone."""
        return getattr(tasks.get(task), "state", "cancelled") == "cancelled"

    with _one_page_at_a_time:
        key = tuple(command or WORKER)
        if key not in _processes:
            _processes[key] = WorkerProcess(command=key)
        process = _processes[key]
        process.unwanted = is_cancelled
        return process.run(request, timeout)


def stop_processes() -> None:
    """End this dask worker's processes, so that the device is free again; the next page starts a
    new one.
    """
    for worker in _processes.values():
        if worker.process is not None:
            worker.process.kill()


class DaskWorkers:
    """The workers of the dask scheduler at ``address``.

    dask's own configuration names the files of a TLS connection. ``is_plain`` says that the
    connection is not encrypted, and so that the scheduler asks nobody who they are. Raises
    `OcrPhasesError` without dask.distributed, or where the scheduler does not answer.
    """

    def __init__(self, address: str, command: WorkerCommand | None = None) -> None:
        try:
            import distributed

            self.client = distributed.Client(address, timeout=CONNECT_SECONDS)
        except ImportError as error:
            raise OcrPhasesError(
                'A scheduler needs dask.distributed: pip install "ocr_phases[cluster]".'
            ) from error
        except (OSError, ValueError, TypeError, RuntimeError) as error:
            # TypeError and RuntimeError come of certificates that cannot be used.
            raise OcrPhasesError(f"The scheduler {address} does not answer ({error}).") from error
        self.command = command
        #: How many workers there were when they were counted last, and when that was.
        self._last_count = 0
        self._counted_at = -math.inf
        # dask-gateway's own is TLS, too.
        self.is_plain = not str(self.client.scheduler.address).startswith(
            ("tls://", "wss://", "gateway://")
        )
        self.executor = self.client.get_executor(pure=False)

    def submit(
        self, request: WorkerRequest, timeout: float | None, **where: Any
    ) -> Future[Outcome]:
        """As in `LocalWorkers`; raises `OcrPhasesError` where the scheduler was lost."""
        if self.client.status != "running":
            raise OcrPhasesError(SCHEDULER_LOST)
        return self.executor.submit(run_on_worker, dict(request), timeout, self.command, **where)

    def ask(self, request: WorkerRequest) -> list[Future[Outcome]]:
        """As in `LocalWorkers`."""
        workers = self._addresses()
        return [
            self.submit(request, None, workers=[each], allow_other_workers=True) for each in workers
        ]

    def count(self) -> int:
        """How many workers the scheduler has now; they may come and go."""
        if time.monotonic() - self._counted_at > COUNT_SECONDS:
            self._last_count = len(self._addresses())
            self._counted_at = time.monotonic()
        return self._last_count

    def _addresses(self) -> list[str]:
        """The addresses of the scheduler's workers; `OcrPhasesError` where it was lost."""
        if self.client.status == "running":
            with contextlib.suppress(OSError):
                return list(self.client.nthreads())
        raise OcrPhasesError(SCHEDULER_LOST)

    def close(self) -> None:
        """As in `LocalWorkers`; the workers live on, without a model."""
        if self.client.status == "running":
            self.executor.shutdown(wait=False)
            self.client.run(stop_processes, on_error="ignore")
        self.client.close()
