"""What else the machine did during the repeats: its processors, its load, its GPU's clocks."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, process_time
from typing import Any, NamedTuple

import pandas as pd
import psutil
import torch

from ocr_phases.collectors.energy import EnergyMeter
from ocr_phases.collectors.nvml import Card
from ocr_phases.models.devices import device_of, usable_cores

#: The processors' counts move in ticks of 10 ms: for a shorter time they say nothing.
_LEAST_CORES_S = 0.2


class Conditions:
    """Collects what the host and its GPU did in each repeat: enter `during` around it.

    `describe` gives the record's part about it.
    """

    def __init__(self, device: torch.device | str) -> None:
        self._device = torch.device(device)
        self._repeats: list[dict[str, Any]] = []
        self._card: Card | None = None
        self._card_missing = ""
        uuid = device_of(device).uuid()
        if uuid is not None:
            try:
                self._card = Card(uuid)
            except OSError as error:
                self._card_missing = str(error)
        self._before = None if self._card is None else gpu_state(self._card)
        self._energy = EnergyMeter(self._device)

    @contextlib.contextmanager
    def during(self, repeat: int) -> Iterator[None]:
        """Count what happens in a ``with`` block, which is one repeat.

        A repeat that an error ended is not kept.
        """
        before = _Counts.now()
        self._energy.mark()
        yield
        after = _Counts.now()
        self._energy.mark()
        self._repeats.append({"repeat": repeat, **_repeat_entries(before, after)})

    def describe(self) -> dict[str, Any]:
        """``repeats``, a dict each; ``gpu``, its state before and after; ``energy``.

        ``gpu`` is None on a CPU. ``missing`` says there why nothing tells of a GPU.
        """
        gpu: dict[str, Any] | None = None
        if self._card is not None:
            gpu = {"before": self._before, "after": gpu_state(self._card)}
        elif self._card_missing:
            gpu = {"before": None, "after": None, "missing": self._card_missing}
        return {"repeats": self._repeats, "gpu": gpu, "energy": self._energy.describe()}


@dataclass(frozen=True)
class _Counts:
    """Seconds that the system has counted so far."""

    wall_s: float
    cpu_s: float  # of this process
    cores_s: float  # of all cores that it may use, idle ones too
    idle_s: float
    steal_s: float
    threads_s: dict[int, float]  # of each other Python thread of this process, by its id
    waited_s: float | None  # that threads of this process wanted to run and could not
    load: float  # processes that ran or waited to run, on average over the last minute

    @classmethod
    def now(cls) -> _Counts:
        cores = pd.DataFrame(psutil.cpu_times(percpu=True)).reindex(list(usable_cores())).sum()
        threads = _thread_seconds()
        return cls(
            # Guests are counted among the users already.
            cores_s=cores.sum() - cores.get("guest", 0.0) - cores.get("guest_nice", 0.0),
            idle_s=cores["idle"] + cores.get("iowait", 0.0),
            steal_s=cores.get("steal", 0.0),
            wall_s=perf_counter(),
            cpu_s=process_time(),
            threads_s=threads.ran_s,
            waited_s=threads.waited_s,
            load=psutil.getloadavg()[0],
        )


class CoreWaits:
    """How long the threads of this process have waited for a core since this was made."""

    def __init__(self) -> None:
        self._before = _Counts.now()

    @property
    def share(self) -> float | None:
        """The time waited over the CPU time needed, 0 to 1; None where nothing counts it."""
        after = _Counts.now()
        if after.waited_s is None:
            return None
        waited_s = max(0.0, after.waited_s - (self._before.waited_s or 0.0))
        needed_s = after.cpu_s - self._before.cpu_s + waited_s
        return waited_s / needed_s if needed_s > 0 else 0.0


def _repeat_entries(before: _Counts, after: _Counts) -> dict[str, float | None]:
    """The entries of one repeat: seconds, shares of all cores, and load averages."""
    cpu_s = after.cpu_s - before.cpu_s
    cores_s = after.cores_s - before.cores_s
    idle_s = after.idle_s - before.idle_s
    steal_s = after.steal_s - before.steal_s
    values: dict[str, float | None] = {
        "wall_s": after.wall_s - before.wall_s,
        "cpu_s": cpu_s,
        "other_threads_s": None,
        "waited_s": None,
        "others": None,
        "steal": None,
    }
    if after.waited_s is not None:
        values["other_threads_s"] = sum(
            seconds - before.threads_s.get(thread, 0.0)
            for thread, seconds in after.threads_s.items()
        )
        # A thread that has ended took its count along.
        values["waited_s"] = max(0.0, after.waited_s - (before.waited_s or 0.0))
    if cores_s >= _LEAST_CORES_S:
        values["others"] = max(0.0, (cores_s - idle_s - steal_s - cpu_s) / cores_s)
        values["steal"] = steal_s / cores_s
    for name, value in values.items():
        if value is not None:
            values[name] = round(float(value), 4)
    return {**values, "load_start": before.load, "load_end": after.load}


class _ThreadSeconds(NamedTuple):
    """What the scheduler has counted of the threads of this process.

    ``ran_s`` has each other Python thread by its id. ``waited_s`` is how long all threads wanted to
    run and could not; None where nothing counts it.
    """

    ran_s: dict[int, float]
    waited_s: float | None


def _thread_seconds() -> _ThreadSeconds:
    """Read the scheduler's counts, which Linux shows in ``schedstat``: run time and run delay."""
    others = {thread.native_id for thread in threading.enumerate()} - {threading.get_native_id()}
    ran_s: dict[int, float] = {}
    waited_ns = 0
    for path in Path("/proc/self/task").glob("*/schedstat"):
        # A thread that has just ended has no file any more.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            run_ns, delay_ns, _ = map(int, path.read_text().split())
            waited_ns += delay_ns
            if int(path.parent.name) in others:
                ran_s[int(path.parent.name)] = run_ns / 1e9
    # Without the counts there is no file, and where the kernel does not keep them they are zeros.
    waited_s = waited_ns / 1e9 if waited_ns else None
    return _ThreadSeconds(ran_s, waited_s)


def gpu_state(card: Card) -> dict[str, int | None]:
    """Clocks, throttling and other users of a card now; None for what it does not tell.

    ``sm_mhz`` and ``max_sm_mhz``, ``throttle_reasons`` (NVML's bit mask), ``utilization`` in per
    cent and ``other_processes``, the compute processes beside this one.
    """
    processes = card.compute_processes()
    others = None
    if processes is not None:
        # One of them is this process, under whatever number a container gives it.
        others = max(0, processes - 1)
    return {
        "sm_mhz": card.sm_mhz(),
        "max_sm_mhz": card.max_sm_mhz(),
        "throttle_reasons": card.throttle_reasons(),
        "utilization": card.utilization(),
        "other_processes": others,
    }
