"""The energy that a device uses over all measured runs, by the counters that it has."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from time import perf_counter, sleep
from typing import Any, Protocol

import numpy as np
import torch

from ocr_phases.collectors.nvml import Card
from ocr_phases.models.devices import device_of

#: Where Linux shows the counters of a host's CPUs.
POWERCAP = Path("/sys/class/powercap")
#: The shortest window in seconds that a figure is given for: NVML's counter moves every 100 ms.
_LEAST_ENERGY_S = 1.0


class EnergyCounter(Protocol):
    """Counters of joules. ``ranges`` says at how many joules each begins again at zero."""

    ranges: list[float]

    def read(self) -> list[float]:
        """The joules that each counter shows now."""


class EnergyMeter:
    """Joules of a run, by a `mark` at both ends of each.

    They are an NVIDIA card's by NVML, or those of the host's CPUs by powercap. The counters move
    seldom, so the runs are one window, of a second or more, from the first mark to the last.
    ``missing`` says why there is no figure: nvidia-ml-py is not installed, or a counter is not
    there or may not be read.
    """

    def __init__(self, device: torch.device, powercap: Path = POWERCAP) -> None:
        self.missing = ""
        self._times: list[float] = []
        self._readings: list[list[float]] = []
        try:
            self._counter, self._idle_w = counter_and_idle_watts(device, powercap)
        except OSError as error:
            self.missing = str(error)

    def mark(self) -> None:
        """Read the counters now."""
        if self.missing:
            return
        self._times.append(perf_counter())
        try:
            self._readings.append(self._counter.read())
        except OSError as error:
            self.missing = str(error)

    def describe(self) -> dict[str, Any]:
        """``seconds`` of all runs, ``run_joules`` of each and ``idle_w``; or ``missing``."""
        if self.missing:
            return {"missing": self.missing}
        seconds = self._times[-1] - self._times[0]
        if seconds < _LEAST_ENERGY_S:
            reason = f"the repeats took {seconds:.2f} s in all, and the counter needs a second"
            return {"missing": reason}
        runs = len(self._times) // 2
        joules = joules_between(self._readings, self._counter.ranges)
        return {"seconds": seconds, "run_joules": joules / runs, "idle_w": self._idle_w}


def joules_between(readings: Sequence[list[float]], ranges: list[float]) -> float:
    """The joules that all counters together grew by, from the first reading to the last.

    A counter that began again at zero between two readings has gone once through its range of
    ``ranges``.
    """
    return float(np.mod(np.diff(readings, axis=0), ranges).sum())


@cache
def counter_and_idle_watts(device: torch.device, powercap: Path) -> tuple[EnergyCounter, float]:
    """The counter of a device, and the watts of the idle device, measured for a second.

    That second is spent once in a process. ``powercap`` is the folder of a CPU's counters.

    Raises OSError where the device has no counter, or none that this user may read.
    """
    counter: EnergyCounter
    if device.type == "cuda":
        counter = CardCounter(device)
    elif device.type == "cpu":
        counter = PackageCounters(powercap)
    else:
        raise FileNotFoundError(f"{device.type} has no counter that can be read here")
    start = perf_counter()
    before = counter.read()
    sleep(_LEAST_ENERGY_S)
    joules = joules_between([before, counter.read()], counter.ranges)
    return counter, joules / (perf_counter() - start)


class CardCounter:
    """The counter of an NVIDIA card, which never begins again."""

    ranges = [np.inf]

    def __init__(self, device: torch.device) -> None:
        uuid = device_of(device).uuid()
        if uuid is None:
            raise OSError(f"{device} has no name that a driver knows it by")
        self._card = Card(uuid)
        self._card.joules()

    def read(self) -> list[float]:
        """The joules of the card since its driver was loaded, as the only entry."""
        return [self._card.joules()]


class PackageCounters:
    """The counters of the host's CPU packages, as Linux shows them in a folder."""

    def __init__(self, powercap: Path) -> None:
        zones = sorted(powercap.glob("*:*"))
        # A zone with two colons is a part of a package, which counts already.
        self._packages = [zone for zone in zones if zone.name.count(":") == 1]
        if not self._packages:
            raise FileNotFoundError("this host has no powercap counters")
        self.ranges = self._joules_in("max_energy_range_uj")

    def read(self) -> list[float]:
        """The joules of each package. The files count microjoules."""
        return self._joules_in("energy_uj")

    def _joules_in(self, name: str) -> list[float]:
        return [int((package / name).read_text()) / 1e6 for package in self._packages]
