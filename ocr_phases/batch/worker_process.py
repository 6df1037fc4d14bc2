"""A worker process from its parent's side: it does one page at a time.

Whatever can go wrong with a page goes wrong in such a process, with dask and without, so that
timeouts and crashes are handled in one place.
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
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from multiprocessing import Pipe
from typing import Any

import msgspec

from ocr_phases.batch.outcome import Outcome
from ocr_phases.versions import child_environment

WorkerRequest = Mapping[str, Any]
#: A program and its arguments, which start a worker.
WorkerCommand = Sequence[str]
_Process = subprocess.Popen[bytes]

# With -P nothing is imported from the current folder, which may hold a timeit.py.
WORKER = (sys.executable, "-P", "-m", "ocr_phases.batch.worker")

#: Seconds that a worker has to import its libraries and load a model, beside the page's own time.
#: Fetching a model from the hub is part of it.
START_SECONDS = 900.0

#: What a worker answers when the model is loaded and a page's own time starts.
READY = b"ready"

_LOOK_SECONDS = 0.2  # between two looks whether a silent process lives, and is wanted
_END_SECONDS = 10.0  # for a process to end that closed its pipe or was killed
#: How much of a process's last lines is kept.
_STDERR_BYTES = 4096
_STDERR_LINES = 12


class WorkerProcess:
    """One worker process that does one page at a time. Not for several threads at once.

    ``environment`` is put over this process's own, ``command`` is the program to start. Requests
    and answers are messages on the pair of sockets that is the program's standard input.
    """

    def __init__(
        self, environment: Mapping[str, str] | None = None, command: WorkerCommand = WORKER
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
        began = time.monotonic()
        self.ready_at = began
        self.started = time.time()
        try:
            outcome = self._answer(process, request, timeout)
        except TimeoutError as error:
            outcome = Outcome("timeout", str(error))
        except (OSError, EOFError):
            outcome = Outcome("died")
        seconds = time.monotonic() - self.ready_at
        stderr = ""
        reason = outcome.reason
        if outcome.failure == "timeout":
            stderr = self.close()
        elif outcome.failure in ("died", "error"):
            stderr = self.close(_END_SECONDS)
        if outcome.failure == "died":
            reason = _why_dead(process, stderr)
        return msgspec.structs.replace(
            outcome,
            reason=reason,
            started=self.started,
            load_s=self.ready_at - began,
            seconds=seconds,
            slot=self.slot,
            worker=f"{platform.node()}:{process.pid}",
            stderr=stderr,
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
        written = [line.rstrip() for line in lines if line.strip()]
        return "\n".join(written[-_STDERR_LINES:])

    def _start(self) -> _Process:
        """Start the program, with a pair of sockets as its standard input."""
        self.pipe, other = Pipe()
        self.errors = tempfile.TemporaryFile()  # noqa: SIM115 (it lives as long as the process)
        with other:
            self.process = subprocess.Popen(
                self.command, stdin=other.fileno(), stdout=self.errors, **self.options
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
    """How a process ended, in one sentence with the last line that it wrote."""
    code = process.returncode
    how = f"exit code {code}"
    if code is not None and code < 0:
        how = signal.Signals(-code).name
    if code == -signal.SIGKILL:
        how += " (perhaps out of host memory)"
    if stderr:
        how += f": {stderr.splitlines()[-1].strip()}"
    return f"The worker process ended with {how}."
