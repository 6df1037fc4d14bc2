"""Worker processes from their parent's side, and pools of them: of this machine, and of a dask
scheduler.

Whatever can go wrong with a page goes wrong in such a process, with dask and without, so that
timeouts and crashes are handled in one place: dask can neither stop a task nor survive one that
takes its process with it. dask places pages, notices workers that are lost and hands their pages
out again; a dask worker itself never loads torch, and its death takes its child with it. When a
driver is gone, its scheduler cancels its pages, and the children that were at them are killed: the
device is free again.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import platform
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing import Pipe
from typing import Any

import msgspec

from ocr_phases.collectors.nvml import card_count
from ocr_phases.errors import Keyword, OcrPhasesError, SettingError
from ocr_phases.versions import child_environment

WorkerRequest = Mapping[str, Any]
Command = Sequence[str]
_Process = subprocess.Popen[bytes]

#: Why an attempt failed, as the index names it.
FAILURES = {
    "page": "the page cannot be read",
    "request": "the request cannot be met",
    "model": "the model cannot be loaded",
    "versions": "the worker has other versions",
    "memory": "out of memory",
    "output": "the results cannot be written",
    "report": "the report cannot be rendered",
    "error": "unexpected error",
    "died": "the worker died",
    "timeout": "timeout",
}
#: The end of what a batch that stops says.
GOES_ON = "Finished pages are kept: the same command resumes."
SCHEDULER_LOST = f"The scheduler was lost. {GOES_ON}"

# With -P nothing is imported from the current folder, which may hold a timeit.py.
WORKER = (sys.executable, "-P", "-m", "ocr_phases.batch.worker")

#: Seconds that a worker has to import its libraries and load a model, beside the page's own time.
#: Fetching a model from the hub is part of it.
START_SECONDS = 900.0

#: What a worker answers when the model is loaded and a page's own time starts.
READY = b"ready"

_LOOK_SECONDS = 0.2  # between two looks whether a silent process lives, and is wanted
_END_SECONDS = 10.0  # for a process to end that closed its pipe or was killed
_STDERR_BYTES, _STDERR_LINES = 4096, 12

CONNECT_SECONDS = 30
COUNT_SECONDS = 5.0


class Outcome(msgspec.Struct, frozen=True):
    """One attempt at one page: ``failure`` is None for success, else a key of `FAILURES`.

    ``seconds`` is the page's own time in the worker, ``load_s`` what loading the model took on top
    (0 where it was warm), ``started`` UNIX time, ``rss_bytes`` the worker's memory when it was
    done. ``worker`` is the process, ``slot`` its place, which stays the same when the process is
    replaced, and ``stderr`` the last lines of one that is replaced. ``report`` is why the report of
    a page that was measured could not be rendered with it, ``place`` the folder of this attempt's
    files, below the page's own: see `store.take`.

    ``device`` is what ``auto`` stands for there, ``pages`` how many pages a PDF has, where that was
    the request.
    """

    failure: str | None = None
    reason: str = ""
    seconds: float = 0.0
    load_s: float = 0.0
    started: float = 0.0
    worker: str = ""
    slot: str = ""
    rss_bytes: int = 0
    report: str = ""
    place: str = ""
    device: str = ""
    pages: int = 0
    stderr: str = ""


class Child:
    """One worker process that does one page at a time. Not for several threads at once.

    ``environment`` is put over this process's own, ``command`` is the program to start. Requests
    and answers are messages on the pair of sockets that is the program's standard input.
    """

    def __init__(
        self, environment: Mapping[str, str] | None = None, command: Command = WORKER
    ) -> None:
        self.command = list(command)
        self.options: dict[str, Any] = {
            "env": {**child_environment(), **(environment or {})},
            "stderr": subprocess.STDOUT,  # and what libraries print
            "start_new_session": True,  # a Ctrl-C on the terminal is for the driver to handle
        }
        self.process: _Process | None = None
        self.unwanted: Callable[[], bool] = lambda: False
        self.slot = f"{platform.node()}:{uuid.uuid4().hex}"

    def run(self, request: WorkerRequest, timeout: float | None = None) -> Outcome:
        """Do one page, within ``timeout`` seconds from when the model is loaded; never raises for a
        page.

        A worker that dies, takes too long or reports an unexpected error is replaced at the next
        page. It is killed when its page is ``unwanted()``.
        """
        if self.process is not None and self.process.poll() is not None:
            self.close()  # it died since its last page, which is none of this one's attempts
        process = self.process or self._start()
        # The wall clock may be set meanwhile, so it tells only when the page began.
        began = self.ready_at = time.monotonic()
        self.started = time.time()
        try:
            outcome = self._answer(process, request, timeout)
        except TimeoutError as error:
            outcome = Outcome("timeout", str(error))
        except (OSError, EOFError):
            outcome = Outcome("died")
        times = {"load_s": self.ready_at - began, "seconds": time.monotonic() - self.ready_at}
        place = {"slot": self.slot, "worker": f"{platform.node()}:{process.pid}", "stderr": ""}
        if outcome.failure in ("timeout", "died", "error"):
            place["stderr"] = self.close(0.0 if outcome.failure == "timeout" else _END_SECONDS)
        reason = (
            _why_dead(process, place["stderr"]) if outcome.failure == "died" else outcome.reason
        )
        return msgspec.structs.replace(
            outcome, reason=reason, started=self.started, **times, **place
        )

    def close(self, patience: float = 0.0) -> str:
        """End the process, if there is one, which may do so itself within ``patience`` seconds.

        Returns the last lines that it wrote. One that the kernel holds is not waited for.
        """
        if self.process is None:
            return ""
        for seconds in (patience, _END_SECONDS):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(seconds)
            self.process.kill()
        self.errors.seek(max(0, self.errors.seek(0, os.SEEK_END) - _STDERR_BYTES))
        lines = self.errors.read().decode("utf-8", "replace").splitlines()
        self.pipe.close()
        self.errors.close()
        self.process = None
        return "\n".join([line.rstrip() for line in lines if line.strip()][-_STDERR_LINES:])

    def _start(self) -> _Process:
        self.pipe, other = Pipe()
        errors = self.errors = tempfile.TemporaryFile()  # noqa: SIM115 (it lives as long as the process)
        with other:
            self.process = subprocess.Popen(
                self.command, stdin=other.fileno(), stdout=errors, **self.options
            )
        return self.process

    def _answer(self, process: _Process, request: WorkerRequest, timeout: float | None) -> Outcome:
        """The answer. Raises TimeoutError, and OSError or EOFError where the process died."""
        self.pipe.send_bytes(json.dumps(dict(request)).encode())
        loading = "loading the model, a download from the hub included"
        for seconds, what in ((START_SECONDS, loading), (timeout, "the page")):
            end = math.inf if seconds is None else time.monotonic() + seconds
            while not self.pipe.poll(max(0.0, min(_LOOK_SECONDS, end - time.monotonic()))):
                if process.poll() is not None:  # one that it started may hold its socket open
                    raise EOFError
                if self.unwanted():
                    process.kill()
                if time.monotonic() >= end:
                    raise TimeoutError(
                        f"More than {seconds:g} s for {what}: the worker was killed."
                    )
            message = self.pipe.recv_bytes()
            if message != READY:
                break
            self.ready_at = time.monotonic()
            self.started = time.time()
        return msgspec.json.decode(message, type=Outcome)


def _why_dead(process: _Process, stderr: str) -> str:
    code = process.returncode
    how = signal.Signals(-code).name if code is not None and code < 0 else f"exit code {code}"
    hint = " (perhaps out of host memory)" if code == -signal.SIGKILL else ""
    last = f": {stderr.splitlines()[-1].strip()}" if stderr else ""
    return f"The worker process ended with {how}{hint}{last}."


class LocalPool:
    """A worker process of this machine for each of ``environments``, which is put over this
    process's own.
    """

    def __init__(
        self, environments: Sequence[Mapping[str, str]] = ({},), command: Command = WORKER
    ) -> None:
        self.children = [Child(environment, command) for environment in environments]
        self.closed, self.thread, free = threading.Event(), threading.local(), iter(self.children)

        def begin() -> None:
            self.thread.child = next(free)
            self.thread.child.unwanted = self.closed.is_set

        self.executor = ThreadPoolExecutor(len(self.children), "worker", begin)

    def submit(self, request: WorkerRequest, timeout: float | None) -> Future[Outcome]:
        """Queue one page; the future's result is its outcome."""
        return self.executor.submit(lambda: self.thread.child.run(request, timeout))

    def ask(self, request: WorkerRequest) -> list[Future[Outcome]]:
        """Send a request to every worker that may differ from the others: here all are alike."""
        return [self.submit(request, None)]

    def workers(self) -> int:
        """How many workers there are now."""
        return len(self.children)

    def close(self) -> None:
        """Kill running work and free everything."""
        self.closed.set()
        self.executor.shutdown(cancel_futures=True)
        for child in self.children:
            child.close()


def worker_environments(workers: int | None, device: str) -> list[dict[str, str]]:
    """The variables that give each worker of this machine its own device: a GPU, or a share of the
    cores.

    Without a number, one worker a GPU that is visible here, and one where there is none. Raises
    `OcrPhasesError` for more workers than GPUs or cores, or several on one named GPU.
    """
    check_workers(Keyword("workers"), 1 if workers is None else workers)
    gpus = [] if device == "cpu" or ":" in device else visible_gpus()
    count = workers or len(gpus) or 1
    if gpus and count > len(gpus):
        raise OcrPhasesError(
            f"{count} workers on {len(gpus)} GPUs: timings need a GPU each; ask for fewer."
        )
    if not gpus and count > 1 and device.startswith("cuda"):
        raise OcrPhasesError(
            f"{count} workers on {device}: give --device cuda, which is one GPU each."
        )
    places = [{"CUDA_VISIBLE_DEVICES": gpu} for gpu in gpus[:count]] or [{}] * count
    return [{**place, **(thread_share(count) if count > 1 else {})} for place in places]


def check_workers(option: Keyword, workers: int) -> None:
    """Raise `SettingError` for less than one worker of this machine, or more than it has cores."""
    if not 1 <= workers <= cores():
        raise SettingError(
            option.name,
            option,
            f" is {workers}: give 1 to {cores()}, at most one for each core.",
        )


def thread_share(workers: int) -> dict[str, str]:
    """A worker's environment: its share of the cores."""
    share = str(max(1, cores() // workers))
    return dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), share)


def visible_gpus() -> list[str]:
    """The GPUs of this process by their ``CUDA_VISIBLE_DEVICES`` names; none where NVML is missing."""
    if (chosen := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        return [name.strip() for name in chosen.split(",") if name.strip() not in ("", "-1")]
    try:
        return [str(number) for number in range(card_count())]
    except OSError:
        return []


def cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_children: dict[tuple[str, ...], Child] = {}
_one_page_at_a_time = threading.Lock()


def run_on_worker(
    request: WorkerRequest, timeout: float | None, command: Command | None = None
) -> Outcome:
    """One page in this dask worker's child, which stays for the next; one at a time, whatever its
    threads.

    Without a ``command`` it is this worker's own interpreter, which need not lie where the driver's
    does.
    """
    from distributed import get_worker

    task, tasks = get_worker().get_current_task(), get_worker().state.tasks
    with _one_page_at_a_time:
        key = tuple(command or WORKER)
        child = _children[key] = _children.get(key) or Child(command=key)
        # dask cancels the tasks of a driver that is gone.
        child.unwanted = lambda: getattr(tasks.get(task), "state", "cancelled") == "cancelled"
        return child.run(request, timeout)


def stop_children() -> None:
    """End this dask worker's children, so that the device is free again; the next page starts a new
    one.
    """
    for process in filter(None, [child.process for child in _children.values()]):
        process.kill()


class DaskPool:
    """The workers of the dask scheduler at ``address``.

    dask's own configuration names the files of a TLS connection. ``plain`` says that the connection
    is not encrypted, and so that the scheduler asks nobody who they are. Raises `OcrPhasesError`
    without dask.distributed, or where the scheduler does not answer.
    """

    def __init__(self, address: str, command: Command | None = None) -> None:
        try:
            import distributed

            self.client = distributed.Client(address, timeout=CONNECT_SECONDS)
        except ImportError as error:
            advice = 'pip install "ocr_phases[cluster]"'
            raise OcrPhasesError(f"A scheduler needs dask.distributed: {advice}.") from error
        except (
            OSError,
            ValueError,
            TypeError,
            RuntimeError,
        ) as error:  # the last two: of certificates
            raise OcrPhasesError(f"The scheduler {address} does not answer ({error}).") from error
        self.command, self.counted = command, (0.0, 0)
        # dask-gateway's own is TLS, too.
        self.plain = not str(self.client.scheduler.address).startswith(
            ("tls://", "wss://", "gateway://")
        )
        self.executor = self.client.get_executor(pure=False)

    def submit(
        self, request: WorkerRequest, timeout: float | None, **where: Any
    ) -> Future[Outcome]:
        """As in `LocalPool`; raises `OcrPhasesError` where the scheduler was lost."""
        if self.client.status != "running":
            raise OcrPhasesError(SCHEDULER_LOST)
        return self.executor.submit(run_on_worker, dict(request), timeout, self.command, **where)

    def ask(self, request: WorkerRequest) -> list[Future[Outcome]]:
        """As in `LocalPool`."""
        workers = self._addresses()
        return [
            self.submit(request, None, workers=[each], allow_other_workers=True) for each in workers
        ]

    def workers(self) -> int:
        """How many workers the scheduler has now; they may come and go."""
        if time.monotonic() - self.counted[0] > COUNT_SECONDS:
            self.counted = (time.monotonic(), len(self._addresses()))
        return self.counted[1]

    def _addresses(self) -> list[str]:
        if self.client.status == "running":
            with contextlib.suppress(OSError):
                return list(self.client.nthreads())
        raise OcrPhasesError(SCHEDULER_LOST)

    def close(self) -> None:
        """As in `LocalPool`; the workers live on, without a model."""
        if self.client.status == "running":
            self.executor.shutdown(wait=False)
            self.client.run(stop_children, on_error="ignore")
        self.client.close()


#: The workers of a batch, as the driver uses them.
Pool = LocalPool | DaskPool
