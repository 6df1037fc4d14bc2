"""Workers of this machine: one thread and one process each, connected by pipes."""

from __future__ import annotations

import os
import shutil
import subprocess
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Protocol

from ocr_phases.batch.child import WORKER_COMMAND, Child
from ocr_phases.batch.outcome import Outcome, WorkerRequest
from ocr_phases.errors import OcrPhasesError


class Pool(Protocol):
    """A pool of workers, as the driver uses it."""

    def submit(self, request: WorkerRequest, timeout: float | None) -> Future[Outcome]:
        """Queue one page; the future's result is its outcome."""

    def ask(self, request: WorkerRequest) -> list[Future[Outcome]]:
        """Send a request to every worker that may differ from the others; empty without workers."""

    def room(self) -> int:
        """The most pages to assign at once: one running and one waiting per worker."""

    def workers(self) -> int:
        """How many workers there are now."""

    def close(self) -> None:
        """Kill running work and free everything."""


class LocalPool:
    """A worker process of this machine for each of ``environments``, which is put over this process's own."""

    def __init__(
        self, environments: Sequence[Mapping[str, str]] = ({},), command: Sequence[str] = WORKER_COMMAND
    ) -> None:
        self.count = len(environments)
        self.environments = list(environments)
        self.command = command
        self.threads = ThreadPoolExecutor(self.count, thread_name_prefix="worker")
        self.own = threading.local()
        self.children: list[Child] = []
        self.closed = False

    def submit(self, request: WorkerRequest, timeout: float | None) -> Future[Outcome]:
        """As in `Pool`."""
        return self.threads.submit(self._run, request, timeout)

    def ask(self, request: WorkerRequest) -> list[Future[Outcome]]:
        """As in `Pool`; here all are alike."""
        return [self.submit(request, None)]

    def room(self) -> int:
        """As in `Pool`."""
        return 2 * self.count

    def workers(self) -> int:
        """As in `Pool`."""
        return self.count

    def close(self) -> None:
        """As in `Pool`."""
        self.closed = True
        self.threads.shutdown(wait=False, cancel_futures=True)
        for child in self.children:
            child.kill()
        self.threads.shutdown(wait=True)
        for child in self.children:
            child.stop()

    def _run(self, request: WorkerRequest, timeout: float | None) -> Outcome:
        if not hasattr(self.own, "child"):
            self.own.child = Child(self.environments.pop(), self.command)
            self.children.append(self.own.child)
            if self.closed:  # while it was being made
                self.own.child.kill()
        return self.own.child.run(request, timeout)


def worker_environments(workers: int | None, device: str) -> list[dict[str, str]]:
    """The variables that give each worker of this machine its own device: a GPU, or a share of the cores.

    Without a number, one worker a GPU that is visible here, and one where there is none. Raises
    `OcrPhasesError` for more workers than GPUs or cores, or several on one named GPU.
    """
    if workers is not None:
        check_workers("workers", workers)
    gpus = [] if device == "cpu" else visible_gpus()
    named = device.partition(":")[2]
    if named or not gpus:
        count = workers or 1
        if count == 1:
            return [{}]
        if device.startswith("cuda"):
            raise OcrPhasesError(f"{count} workers on {device}: give --device cuda, which is one GPU each.")
        return [thread_share(count) for _ in range(count)]
    count = len(gpus) if workers is None else workers
    if count > len(gpus):
        raise OcrPhasesError(f"{count} workers on {len(gpus)} GPUs: timings need a GPU each; ask for fewer.")
    if count == 1:
        return [{"CUDA_VISIBLE_DEVICES": gpus[0]}]
    return [{"CUDA_VISIBLE_DEVICES": gpu, **thread_share(count)} for gpu in gpus[:count]]


def check_workers(option: str, workers: int) -> None:
    """Raise `OcrPhasesError` for less than one worker of this machine, or more than it has cores."""
    if not 1 <= workers <= cores():
        raise OcrPhasesError(f"{option} is {workers}: give 1 to {cores()}, at most one for each core.")


def thread_share(workers: int) -> dict[str, str]:
    """A worker's environment: its share of the cores."""
    share = str(max(1, cores() // workers))
    return dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), share)


def visible_gpus() -> list[str]:
    """The GPUs of this process by their ``CUDA_VISIBLE_DEVICES`` names, without loading a library."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return [name.strip() for name in chosen.split(",") if name.strip() not in ("", "-1")]
    if shutil.which("nvidia-smi") is None:
        return []
    try:
        answer = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise OcrPhasesError(
            f"nvidia-smi names no GPUs ({error}): set CUDA_VISIBLE_DEVICES, or use --device cpu."
        ) from error
    return [str(number) for number, _ in enumerate(_gpu_lines(answer.stdout))]


def cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _gpu_lines(listing: str) -> list[str]:
    return [line for line in listing.splitlines() if line.startswith("GPU ")]
