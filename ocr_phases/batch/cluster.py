"""Pages over many workers with dask.distributed: a cluster on this machine, or a scheduler that is there.

dask places pages, notices workers that are lost and hands their pages out again; what a page needs beyond
that (a timeout, a process that may die) is a `Child` of the dask worker, exactly as without dask. So a dask
worker itself never loads torch, and its death takes its child with it. When a driver is gone, its scheduler
cancels its pages, and the children that were at them are killed: the device is free again.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import shutil
import subprocess
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
_QUIET = logging.ERROR  # of dask's own log

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
    """The workers of a dask scheduler: ``address``, or a cluster of this machine with one worker for each of
    ``environments`` (see `worker_environments`).

    ``dashboard`` is its address in a browser. Raises `OcrPhasesError` without dask.distributed, or where
    the scheduler does not answer.
    """

    def __init__(
        self,
        address: str | None = None,
        environments: Sequence[Mapping[str, str]] = (),
        command: Sequence[str] | None = None,
    ) -> None:
        try:
            import distributed
        except ImportError as error:
            raise OcrPhasesError(
                'Several workers need dask.distributed: pip install "ocr_phases[cluster]".'
            ) from error
        self.command = command
        self.cluster = None if address else _local_cluster(environments)
        try:
            self.client = distributed.Client(address or self.cluster, timeout=_CONNECT_SECONDS)
        except (OSError, ValueError) as error:
            raise OcrPhasesError(f"The scheduler {address} does not answer ({error}).") from error
        self.executor = self.client.get_executor(pure=False)
        self.dashboard = str(self.client.dashboard_link)
        self.counted = (0.0, 0)

    def submit(self, request: Mapping[str, Any], timeout: float | None) -> Future[Outcome]:
        """As in `Pool`; raises `OcrPhasesError` where the scheduler was lost."""
        self._check()
        return self.executor.submit(run_on_worker, dict(request), timeout, self.command)

    def ask(self, request: Mapping[str, Any]) -> list[Future[Outcome]]:
        """As in `Pool`; those of this machine are alike."""
        self._check()
        workers = list(self.client.nthreads())
        executors = [
            self.client.get_executor(pure=False, workers=[worker], allow_other_workers=True)
            for worker in (workers if self.cluster is None else workers[:1])
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
        """As in `Pool`; the workers of a scheduler that was named live on, without a model."""
        if self.client.status == "running":
            self.executor.shutdown(wait=False)
            self.client.run(stop_children, on_error="ignore")
        self.client.close()
        if self.cluster is not None:
            self.cluster.close()

    def _check(self) -> None:
        if self.client.status != "running":
            raise OcrPhasesError(SCHEDULER_LOST)


def worker_environments(workers: int | None, device: str) -> list[dict[str, str]]:
    """The variables that give each worker of this machine its own device: a GPU, or a share of the cores.

    Without a number, one worker a GPU that is visible here, and one where there is none. Raises
    `OcrPhasesError` for more workers than GPUs, or several on one named GPU.
    """
    if workers is not None and workers < 1:
        raise OcrPhasesError(f"workers is {workers}: it must be at least 1.")
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


def thread_share(workers: int) -> dict[str, str]:
    """A worker's environment: its share of the cores. All three: dask's nanny sets to 1 what is left out."""
    share = str(max(1, _cores() // workers))
    return dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), share)


def visible_gpus() -> list[str]:
    """The GPUs this process may use, as ``CUDA_VISIBLE_DEVICES`` names them; no library is loaded for it."""
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


def _cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _gpu_lines(listing: str) -> list[str]:
    return [line for line in listing.splitlines() if line.startswith("GPU ")]


def _local_cluster(environments: Sequence[Mapping[str, str]]) -> Any:
    from distributed import Nanny, Scheduler, SpecCluster

    def worker(environment: Mapping[str, str]) -> dict[str, Any]:
        # The model is in the worker's child, so dask's own memory limit would watch the wrong process.
        options = {"nthreads": 1, "memory_limit": 0, "env": dict(environment), "dashboard": False}
        options["silence_logs"] = _QUIET
        return {"cls": Nanny, "options": options}

    workers = {number: worker(environment) for number, environment in enumerate(environments)}
    scheduler = {"cls": Scheduler, "options": {"host": "127.0.0.1", "port": 0, "dashboard_address": ":0"}}
    return SpecCluster(workers=workers, scheduler=scheduler, silence_logs=_QUIET)
