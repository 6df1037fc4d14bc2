"""The host's waits for a CUDA device, as far as torch's sync debug mode tells of them."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator
from typing import Any

import torch

#: How torch words its warning of a wait.
_SYNC = "called a synchronizing CUDA operation"


@contextlib.contextmanager
def note_host_syncs(waits: list[str]) -> Iterator[None]:
    """Put a message into ``waits`` for each wait of a ``with`` block; other warnings are shown.

    The mode does not see a ``synchronize()``. Its warnings take time, so it is on in no timed run.
    Only CUDA has it: enter this for no other device.
    """
    mode = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        # torch warns once that the mode misses some waits: the docstring above says so.
        warnings.filterwarnings("ignore", message="Synchronization debug mode")
        warnings.filterwarnings("always", message=_SYNC)
        show_other = warnings.showwarning

        def show(message: Warning | str, *place: Any, **more: Any) -> None:
            if _SYNC in str(message):
                waits.append(str(message))
            else:
                show_other(message, *place, **more)

        warnings.showwarning = show
        torch.cuda.set_sync_debug_mode("warn")
        try:
            yield
        finally:
            torch.cuda.set_sync_debug_mode(mode)
