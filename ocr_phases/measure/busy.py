"""Says after the warm-up that the machine is too busy, before the repeats spend their time.

It is said to whoever watches the measurement: above the bar of a command or of a notebook's cell,
in the explorer, to the driver of a batch. Who that is, is kept in a context variable, because what
measures lies far below what shows progress.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar

import torch

from ocr_phases.analyse.noise import busy_warning
from ocr_phases.collectors.conditions import CoreWaits
from ocr_phases.measure.progress import write_line
from ocr_phases.models.devices import usable_cores

#: Gets the warning, a sentence or two.
Listener = Callable[[str], object]

_listener: ContextVar[Listener] = ContextVar("listener", default=write_line)


@contextlib.contextmanager
def busy_warnings_to(listener: Listener) -> Iterator[None]:
    """Give ``listener`` the warnings of measurements in a ``with`` block, instead of writing
    them.
    """
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


@contextlib.contextmanager
def one_busy_warning() -> Iterator[None]:
    """Of all measurements in a ``with`` block, such as the cells of a sweep, let only the first
    warn that has a reason to.
    """
    listener = _listener.get()
    warnings: list[str] = []

    def listen_once(warning: str) -> None:
        if not warnings:
            listener(warning)
        warnings.append(warning)

    with busy_warnings_to(listen_once):
        yield


def warn_if_busy(waits: CoreWaits, device: str) -> None:
    """Warn where this program has waited for its cores since ``waits`` was made."""
    cores = len(usable_cores())
    kind = torch.device(device).type
    warning = busy_warning(waits.share, kind, cores, torch.get_num_threads())
    if warning:
        listener = _listener.get()
        listener(warning)
