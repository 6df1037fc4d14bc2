"""Workers of this machine: a thread for each, which waits on a process of its own."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Protocol

from ocr_phases.batch.child import WORKER_COMMAND, Child
from ocr_phases.batch.outcome import Outcome

Request = Mapping[str, Any]


class Pool(Protocol):
    """Where pages are done: what the driver needs of it."""

    def submit(self, request: Request, timeout: float | None) -> Future[Outcome]:
        """Do one page some time; the future's result is its outcome."""

    def ask(self, request: Request) -> list[Future[Outcome]]:
        """The same of every worker that may differ from the others; none while there is no worker."""

    def room(self) -> int:
        """How many pages should be handed out at most: every worker busy, and one page waiting for each."""

    def workers(self) -> int:
        """How many workers there are now."""

    def close(self) -> None:
        """Kill what is running and free everything."""


class LocalPool:
    """``workers`` processes of this machine, each with ``environment`` over this process's own."""

    def __init__(
        self,
        workers: int = 1,
        environment: Mapping[str, str] | None = None,
        command: Sequence[str] = WORKER_COMMAND,
    ) -> None:
        self.count = workers
        self.environment = environment
        self.command = command
        self.threads = ThreadPoolExecutor(workers, thread_name_prefix="worker")
        self.own = threading.local()
        self.children: list[Child] = []
        self.closed = False

    def submit(self, request: Request, timeout: float | None) -> Future[Outcome]:
        """As in `Pool`."""
        return self.threads.submit(self._run, request, timeout)

    def ask(self, request: Request) -> list[Future[Outcome]]:
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

    def _run(self, request: Request, timeout: float | None) -> Outcome:
        if not hasattr(self.own, "child"):
            self.own.child = Child(self.environment, self.command)
            self.children.append(self.own.child)
            if self.closed:  # while it was being made
                self.own.child.kill()
        return self.own.child.run(request, timeout)
