"""Says after the warm-up that the machine is too busy, before the repeats spend their time.

It is said to whoever watches the measurement: above the bar of a command or of a notebook's cell,
in the explorer, to the driver of a batch.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager

import torch

from ocr_phases.analyse.noise import busy_warning
from ocr_phases.collectors.conditions import CoreWaits
from ocr_phases.listeners import Channel, Listener
from ocr_phases.measure.progress import write_line
from ocr_phases.models.devices import usable_cores

_warnings = Channel("busy warnings", default=write_line)


def busy_warnings_to(listener: Listener) -> AbstractContextManager[None]:
    """Give ``listener`` the warnings of measurements in a ``with`` block, instead of writing
    them.
    """
    return _warnings.heard_by(listener)


@contextlib.contextmanager
def one_busy_warning() -> Iterator[None]:
    """Of all measurements in a ``with`` block, such as the cells of a sweep, let only the first
    warn that has a reason to.
    """
    listener = _warnings.listener
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
        _warnings.say(warning)
