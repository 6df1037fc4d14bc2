"""The peak memory of each phase of one run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from ocr_phases.models.devices import device_of


class PeakMemory:
    """Peak memory of each phase of one run: enter `during` around a phase, then read ``peaks``.

    ``peaks`` has bytes by the name of the phase. ``source`` says what is counted: the peak of the
    CUDA allocator, or on Linux CPUs the process's high-water mark, which counts everything
    resident. Where neither can be had it is None, and ``peaks`` stays empty.
    """

    def __init__(self, device: torch.device | str) -> None:
        self._device = device_of(device)
        self.peaks: dict[str, int] = {}
        self.source: str | None = None
        if self._device.peak_bytes() is not None:
            self.source = self._device.peak_source

    @contextlib.contextmanager
    def during(self, phase: str) -> Iterator[None]:
        """Keep the peak of a ``with`` block as that of ``phase``."""
        self._device.peak_bytes()  # the next call then gives the peak from here on
        yield
        peak = self._device.peak_bytes()
        if peak is not None:
            self.peaks[phase] = peak
