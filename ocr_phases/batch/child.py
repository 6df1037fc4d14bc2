"""A worker process from its parent's side: started when needed, killed when it takes too long.

Whatever can go wrong with a page goes wrong in such a process, with dask and without, so that timeouts and
crashes are handled in one place: dask can neither stop a task nor survive one that takes its process with it.
"""

from __future__ import annotations

import collections
import contextlib
import itertools
import json
import math
import os
import platform
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ocr_phases.batch.outcome import Outcome
from ocr_phases.versions import child_environment

# With -P nothing is imported from the current folder, which may hold a timeit.py.
WORKER_COMMAND = (sys.executable, "-P", "-m", "ocr_phases.batch.worker")

#: Seconds that a worker has to import its libraries and load a model, beside the page's own time. Fetching a
#: model from the hub is part of it.
START_SECONDS = 900.0

_LOOK_SECONDS = 1.0  # between two looks whether a silent process lives
_END_SECONDS = 10.0  # for a process to end that closed its pipe or was killed
_STDERR_LINES = 12
_SHOWN = 80  # characters of an answer that cannot be read

_numbers = itertools.count()


class Child:
    """One worker process that does one page at a time. Not for several threads at once.

    ``environment`` is put over this process's own, ``command`` is the program to start.
    """

    def __init__(
        self, environment: Mapping[str, str] | None = None, command: Sequence[str] = WORKER_COMMAND
    ) -> None:
        self.command = list(command)
        self.environment = {**child_environment(), **(environment or {})}
        self.process: subprocess.Popen[str] | None = None
        self.killed = False
        self.slot = f"{platform.node()}:{os.getpid()}-{next(_numbers)}"

    def run(self, request: Mapping[str, Any], timeout: float | None = None) -> Outcome:
        """Do one page, within ``timeout`` seconds from when the model is loaded; never raises for a page.

        A worker that dies, takes too long or reports an unexpected error is replaced at the next page.
        """
        began = time.time()
        if self.process is not None and self.process.poll() is not None:
            self.stop()  # it died since its last page, which is none of this one's attempts
        if self.process is None:
            self._start()
        try:
            answer = self._ask(request, timeout)
        except TimeoutError as error:
            self.stop()
            return Outcome("timeout", str(error), time.time() - began, started=began, slot=self.slot)
        if answer is None:
            outcome = Outcome("died", self._why_dead(), time.time() - began, started=began)
        else:
            outcome = Outcome(**answer)
            if outcome.failure == "error":
                self._end()
        broken = outcome.failure in ("died", "error")
        return replace(outcome, slot=self.slot, stderr="\n".join(self.errors) if broken else "")

    def kill(self) -> None:
        """Kill the process for good, from another thread: its page ends as died."""
        self.killed = True
        process = self.process
        if process is not None:
            process.kill()

    def stop(self) -> None:
        """Kill the process, if there is one, and wait until it is gone; not for one that the kernel holds."""
        if self.process is None:
            return
        self.process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(_END_SECONDS)
        if self.process.stdin is not None:
            with contextlib.suppress(OSError):  # what was left to write has no reader any more
                self.process.stdin.close()
        self.process = None

    def _start(self) -> None:
        self.process = subprocess.Popen(
            self.command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self.environment,
            text=True,
            encoding="utf-8",
            errors="replace",
            start_new_session=True,  # a Ctrl-C on the terminal is for the driver to handle
        )
        if self.killed:  # while it was being started
            self.process.kill()
        self.answers: queue.Queue[str | None] = queue.Queue()
        self.errors: collections.deque[str] = collections.deque(maxlen=_STDERR_LINES)
        self.readers = [
            threading.Thread(target=_pump, args=(self.process.stdout, self.answers.put), daemon=True),
            threading.Thread(target=_pump, args=(self.process.stderr, self._note), daemon=True),
        ]
        for reader in self.readers:
            reader.start()

    def _note(self, line: str | None) -> None:
        if line and line.strip():
            self.errors.append(line.rstrip())

    def _ask(self, request: Mapping[str, Any], timeout: float | None) -> dict[str, Any] | None:
        """The answer, or None where the process died. Raises TimeoutError."""
        assert self.process is not None and self.process.stdin is not None
        self.asked = next(_numbers)
        try:
            self.process.stdin.write(json.dumps({**request, "id": self.asked}) + "\n")
            self.process.stdin.flush()
        except OSError:  # it is dead already
            return None
        message = self._next(START_SECONDS, "loading the model, a download from the hub included")
        if message is not None and "ready" in message:
            message = self._next(timeout, "the page")
        return message

    def _next(self, seconds: float | None, what: str) -> dict[str, Any] | None:
        """The next answer to what was asked last; one to an earlier request is dropped."""
        assert self.process is not None
        end = math.inf if seconds is None else time.monotonic() + seconds
        while True:
            dead = self.process.poll() is not None
            try:
                line = self.answers.get(timeout=max(0.0, min(_LOOK_SECONDS, end - time.monotonic())))
            except queue.Empty as error:
                if dead:  # a process that it started may hold its pipe open
                    return None
                if time.monotonic() < end:
                    continue
                raise TimeoutError(f"More than {seconds:g} s for {what}: the worker was killed.") from error
            if line is None:
                return None
            try:
                answer = json.loads(line)
                if answer.pop("id") == self.asked:
                    return answer
            except (ValueError, TypeError, LookupError, AttributeError):  # it died in the middle of a line
                self.process.kill()
                self.errors.append(f"its answer was cut short: {line[:_SHOWN]!r}")
                return None

    def _end(self) -> int | None:
        """Let the process end, or kill it; its exit code, with all that it wrote in ``errors``."""
        assert self.process is not None
        process = self.process
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_END_SECONDS)
        self.stop()
        for reader in self.readers:
            reader.join(timeout=1.0)
        return process.returncode

    def _why_dead(self) -> str:
        code = self._end()
        how = signal.Signals(-code).name if code is not None and code < 0 else f"exit code {code}"
        last = self.errors[-1].strip() if self.errors else ""
        hint = " (perhaps out of host memory)" if code == -signal.SIGKILL else ""
        return f"The worker process ended with {how}{hint}{f': {last}' if last else ''}."


def _pump(pipe: Any, put: Any) -> None:
    """Hand on lines until the pipe ends, which may be after the process: a kernel it started has it too."""
    with pipe:
        for line in pipe:
            put(line)
    put(None)
