"""Jupyter kernels of this interpreter, fresh and reused.

They talk over UNIX sockets where they are to be had (kernels started at once race for TCP ports), find this
package also in a source tree, and keep their own files in a folder that goes at the end.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from ocr_phases.assets import child_environment
from ocr_phases.errors import OcrPhasesError
from ocr_phases.files import TemporaryFolder

#: Notebooks that one reused kernel runs before a new one takes its place, unless it holds a model.
PAGES_A_KERNEL = 200

# A UNIX socket's path may have 107 characters, and the kernel appends to this one.
_LONGEST_SOCKET = 80
_START_SECONDS = 120.0
# Everything the last notebook named goes, its outputs and figures too; what it imported stays imported.
_RESET = "get_ipython().reset(new_session=True); __import__('gc').collect()"


@contextlib.contextmanager
def fresh_kernel(variables: Mapping[str, str]) -> Iterator[dict[str, Any]]:
    """How papermill starts a kernel of its own: its options, for the length of a ``with`` block.

    ``variables`` are added to its environment.
    The kernel is killed at the end of its notebook, also where a signal ends the wait for its start.
    """
    from jupyter_client.manager import AsyncKernelManager
    from jupyter_core.utils import run_sync

    made: list[AsyncKernelManager] = []
    clients: list[Any] = []
    with TemporaryFolder() as folder:
        environment = {**_environment(folder), **variables}

        class Manager(AsyncKernelManager):
            def __init__(self, **options: Any) -> None:
                super().__init__(**{**options, **_manager_options(folder)})
                made.append(self)

            def client(self, **options: Any) -> Any:
                clients.append(super().client(**options))
                return clients[-1]

            async def start_kernel(self, **options: Any) -> None:
                await super().start_kernel(**options, env=environment)

        try:
            # Asked to go, a kernel in the middle of a cell would write its traceback to this terminal.
            yield {"kernel_manager_class": Manager, "shutdown_kernel": "immediate"}
        finally:
            # A signal may have come before nbclient could: its tasks would tell of a dead kernel, and ZeroMQ
            # waits for ever for a socket left open.
            _cancel_tasks()
            for client in clients:
                client.stop_channels()
            for manager in made:
                if manager.has_kernel:
                    run_sync(manager.shutdown_kernel)(now=True)


def _cancel_tasks() -> None:
    """End what an interrupt has left in this thread's event loop, unless others run in it."""
    from jupyter_core.utils import ensure_event_loop

    loop = ensure_event_loop()
    if not loop.is_running() and (tasks := asyncio.all_tasks(loop)):
        for task in tasks:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))


class KernelLost(OcrPhasesError):
    """A kernel died, or never answered."""


class ReusedKernel:
    """One kernel for many notebooks: imports stay loaded, names are removed between notebooks.

    `papermill_options` is for one notebook. A kernel that died, or a notebook that was broken off,
    makes the next one start afresh; so does the number of notebooks in ``pages_a_kernel`` (None: never).
    Modules that a notebook changed stay changed until then. Its own files are in a folder below ``scratch``
    (None: the system's for temporary files), which `stop` removes.
    """

    def __init__(self, pages_a_kernel: int | None = PAGES_A_KERNEL, scratch: str | None = None) -> None:
        self.pages_a_kernel = pages_a_kernel
        self.scratch = scratch
        self.manager: Any = None
        self.folder: TemporaryFolder | None = None
        self.pages = 0

    @contextlib.contextmanager
    def papermill_options(self) -> Iterator[dict[str, Any]]:
        """The options that make papermill use this kernel, with an empty namespace."""
        from papermill.exceptions import PapermillExecutionError

        if self.pages_a_kernel is not None and self.pages >= self.pages_a_kernel:
            self.stop()
        try:
            self.run(_RESET)
        except OcrPhasesError:  # it died since the last notebook
            self.stop()
            self.run(_RESET)
        self.pages += 1
        manager = self.manager
        clients: list[Any] = []
        make_client = manager.client

        def client(**options: Any) -> Any:
            clients.append(make_client(**options))
            return clients[-1]

        manager.client = client  # papermill leaves the channels of a kernel that is not its own open
        try:
            yield {"km": manager}
        except PapermillExecutionError:  # a cell failed, and the kernel is none the worse
            raise
        except BaseException:  # it is dead, or still busy with what took too long
            self.stop()
            raise
        finally:
            manager.client = make_client
            for made in clients:
                made.stop_channels()

    def run(self, code: str) -> None:
        """Run code outside any notebook, starting the kernel where needed.

        Raises `OcrPhasesError` if the code fails, `KernelLost` if the kernel does.
        """
        if not self._alive():
            self.stop()
            self._start()
        client = self.manager.blocking_client()
        client.start_channels()
        try:
            client.wait_for_ready(timeout=_START_SECONDS)
            content = self._reply(client, client.execute(code, silent=True))
        except RuntimeError as error:
            self.stop()
            raise KernelLost(f"The kernel could not be used ({error}).") from error
        finally:
            client.stop_channels()
        if content["status"] != "ok":
            raise OcrPhasesError(str(content.get("evalue") or content["status"]))

    def _reply(self, client: Any, message: str) -> dict[str, Any]:
        """The answer to a message, however long it takes; RuntimeError where the kernel dies over it."""
        while True:
            try:
                reply = client.get_shell_msg(timeout=1.0)
            except queue.Empty:
                if not self._alive():
                    raise RuntimeError("it died") from None
                continue
            if reply["parent_header"].get("msg_id") == message:
                return reply["content"]

    def _alive(self) -> bool:
        from jupyter_core.utils import run_sync

        return self.manager is not None and bool(run_sync(self.manager.is_alive)())

    def stop(self) -> None:
        """Kill the kernel, if there is one."""
        from jupyter_core.utils import run_sync

        if self.manager is not None:
            run_sync(self.manager.shutdown_kernel)(now=True)
            self.manager = None
        if self.folder is not None:
            self.folder.cleanup()
            self.folder = None
        self.pages = 0

    def _start(self) -> None:
        from jupyter_client.manager import AsyncKernelManager
        from jupyter_core.utils import run_sync

        self.folder = TemporaryFolder(self.scratch)
        # Not the synchronous one: nbclient would wait for it without ever looking whether it still lives.
        self.manager = AsyncKernelManager(kernel_name="python3", **_manager_options(self.folder.name))
        run_sync(self.manager.start_kernel)(env=_environment(self.folder.name))


def _manager_options(folder: str) -> dict[str, Any]:
    from jupyter_client.kernelspec import KernelSpecManager
    from jupyter_client.manager import KernelManager

    connection = str(Path(folder, "kernel.json"))
    options = {"kernel_spec_manager": KernelSpecManager(kernel_dirs=[]), "connection_file": connection}
    if os.name == "posix" and len(connection) <= _LONGEST_SOCKET:
        return options | {"transport": "ipc"}
    # A message without the key is dropped, but any user here could read along were it not encrypted, too.
    options |= {"transport": "tcp", "ip": "127.0.0.1"}
    if hasattr(KernelManager, "transport_encryption"):  # jupyter_client 8.10
        options |= {"transport_encryption": "auto"}
    return options


def _environment(folder: str) -> dict[str, str]:
    return {**child_environment(), "IPYTHONDIR": folder, "PYDEVD_DISABLE_FILE_VALIDATION": "1"}
