"""The workers of this machine, each with a device or a share of the cores of its own."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from ocr_phases.batch.outcome import Outcome
from ocr_phases.batch.worker_process import WORKER, WorkerCommand, WorkerProcess, WorkerRequest
from ocr_phases.collectors.nvml import card_count
from ocr_phases.errors import Keyword, OcrPhasesError, SettingError


class LocalWorkers:
    """A worker process of this machine for each of ``environments``, which is put over this
    process's own.
    """

    def __init__(
        self, environments: Sequence[Mapping[str, str]] = ({},), command: WorkerCommand = WORKER
    ) -> None:
        self.processes = [WorkerProcess(environment, command) for environment in environments]
        self._closed = threading.Event()
        self._thread = threading.local()
        free_processes = iter(self.processes)

        def take_process() -> None:
            """Give a new thread a process of its own."""
            process = next(free_processes)
            process.unwanted = self._closed.is_set
            self._thread.process = process

        self._executor = ThreadPoolExecutor(len(self.processes), "worker", take_process)

    def submit(self, request: WorkerRequest, timeout: float | None) -> Future[Outcome]:
        """Queue one page; the future's result is its outcome."""
        return self._executor.submit(self._run, request, timeout)

    def _run(self, request: WorkerRequest, timeout: float | None) -> Outcome:
        """Do one page in the process of the current thread."""
        process: WorkerProcess = self._thread.process
        return process.run(request, timeout)

    def ask(self, request: WorkerRequest) -> list[Future[Outcome]]:
        """Send a request to every worker that may differ from the others: here all are alike."""
        return [self.submit(request, None)]

    def count(self) -> int:
        """How many workers there are now."""
        return len(self.processes)

    def close(self) -> None:
        """Kill running work and free everything."""
        self._closed.set()
        self._executor.shutdown(cancel_futures=True)
        for process in self.processes:
            process.close()


def worker_environments(workers: int | None, device: str) -> list[dict[str, str]]:
    """The variables that give each worker of this machine its own device: a GPU, or a share of the
    cores.

    Without a number, one worker a GPU that is visible here, and one where there is none. Raises
    `OcrPhasesError` for more workers than GPUs or cores, or several on one named GPU.
    """
    check_workers(Keyword("workers"), 1 if workers is None else workers)
    gpus: list[str] = []
    if device != "cpu" and ":" not in device:
        gpus = visible_gpus()
    count = workers or len(gpus) or 1
    if gpus and count > len(gpus):
        raise OcrPhasesError(
            f"There are {len(gpus)} GPUs for {count} workers, but times are right only if each "
            f"worker has a GPU of its own: ask for at most {len(gpus)}."
        )
    if not gpus and count > 1 and device.startswith("cuda"):
        raise OcrPhasesError(
            f"{count} workers cannot share {device}: give --device cuda, and each gets a GPU of "
            "its own."
        )
    share: dict[str, str] = {}
    if count > 1:
        share = thread_share(count)
    if not gpus:
        return [share.copy() for _ in range(count)]
    return [{"CUDA_VISIBLE_DEVICES": gpu, **share} for gpu in gpus[:count]]


def check_workers(option: Keyword, workers: int) -> None:
    """Raise `SettingError` for less than one worker of this machine, or more than it has cores."""
    if not 1 <= workers <= cores():
        raise SettingError(
            option.name,
            "{option} is {workers}: give 1 to {most}, at most one for each core.",
            option=option,
            workers=workers,
            most=cores(),
        )


def thread_share(workers: int) -> dict[str, str]:
    """A worker's environment: its share of the cores."""
    share = str(max(1, cores() // workers))
    return dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), share)


def visible_gpus() -> list[str]:
    """The GPUs of this process by their ``CUDA_VISIBLE_DEVICES`` names; none where NVML is
    missing.
    """
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        names = [name.strip() for name in chosen.split(",")]
        return [name for name in names if name not in ("", "-1")]
    try:
        return [str(number) for number in range(card_count())]
    except OSError:
        return []


def cores() -> int:
    """The cores this process may use."""
    if hasattr(os, "sched_getaffinity"):  # macOS has none
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
