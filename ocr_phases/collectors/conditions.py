"""What else the machine did while the repeats ran: read before and after each of them, never in between.

A few files of /proc take a millisecond; a GPU is asked through ``nvidia-smi``, once before the first run and
once behind the last. What a system does not tell is None.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import torch

_FEWEST_TICKS = 20  # in less time than this, ticks of 10 ms say nothing
_IDLE, _IOWAIT, _STEAL = 3, 4, 7  # fields of a cpu line in /proc/stat
_FIELDS = ("clocks.sm", "clocks.max.sm", "clocks_throttle_reasons.active", "utilization.gpu")


class Conditions:
    """Collects what the host did in each repeat (`of`); `described` is the record's part about it."""

    def __init__(self, device: torch.device | str) -> None:
        self._device = torch.device(device)
        self._repeats: list[dict[str, Any]] = []
        self._before = gpu_state(self._device)

    @contextlib.contextmanager
    def of(self, repeat: int) -> Iterator[None]:
        """Around one run; warm-up has a negative number and is not kept, nor is a run that did not end."""
        before = _read()
        yield
        after = _read()
        if repeat >= 0:
            self._repeats.append({"repeat": repeat, **_between(before, after)})

    def described(self) -> dict[str, Any]:
        """``repeats``: a dict each; ``gpu``: its state before and after all runs, or None on a CPU."""
        gpu = None
        if self._device.type == "cuda":
            gpu = {"before": self._before, "after": gpu_state(self._device)}
        return {"repeats": self._repeats, "gpu": gpu}


@dataclass(frozen=True)
class _Moment:
    wall_s: float
    cpu_s: float
    threads_s: dict[int, float]  # of the other Python threads, by id
    waited_s: float | None
    load: float | None
    ticks: tuple[int, int, int] | None  # all, idle, stolen; of the cores that this process may use


def _read() -> _Moment:
    try:
        load: float | None = os.getloadavg()[0]
    except OSError:
        load = None
    return _Moment(perf_counter(), process_time(), *_threads(), load, _ticks())


def _between(before: _Moment, after: _Moment) -> dict[str, Any]:
    """Seconds of wall, of CPU time, of other threads and of waiting; shares of all cores; load averages."""
    cpu_s = after.cpu_s - before.cpu_s
    others_s = sum(now - before.threads_s.get(thread, 0.0) for thread, now in after.threads_s.items())
    waited = None if before.waited_s is None or after.waited_s is None else after.waited_s - before.waited_s
    others = steal = None
    if before.ticks is not None and after.ticks is not None:
        total, idle, stolen = (now - then for then, now in zip(before.ticks, after.ticks, strict=True))
        if total >= _FEWEST_TICKS:
            own = cpu_s * os.sysconf("SC_CLK_TCK")
            others, steal = max(0.0, (total - idle - stolen - own) / total), stolen / total
    return {
        "wall_s": round(after.wall_s - before.wall_s, 4),
        "cpu_s": round(cpu_s, 4),
        "other_threads_s": None if after.waited_s is None else round(others_s, 4),
        # A thread that ended in between took its count along.
        "waited_s": None if waited is None else round(max(0.0, waited), 4),
        "others": None if others is None else round(others, 4),
        "steal": None if steal is None else round(steal, 4),
        "load_start": before.load,
        "load_end": after.load,
    }


def _threads() -> tuple[dict[int, float], float | None]:
    """Seconds that each other Python thread of this process has run, by its id, and that all have waited.

    From the scheduler's counts, ``schedstat``: run time and run delay. Without them the wait is None.
    """
    others = {thread.native_id for thread in threading.enumerate()} - {threading.get_native_id()}
    ran, waited = {}, 0
    for path in Path("/proc/self/task").glob("*/schedstat"):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that has just ended
            run, delay, _ = map(int, path.read_text().split())
            waited += delay
            if int(path.parent.name) in others:
                ran[int(path.parent.name)] = run / 1e9
    return ran, waited / 1e9 if waited else None


def _ticks() -> tuple[int, int, int] | None:
    path = Path("/proc/stat")
    if not path.exists():
        return None
    names = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    lines = (line.split() for line in path.read_text().splitlines())
    # Guests are counted among the users already.
    cores = [[int(count) for count in line[1:9]] for line in lines if line and line[0] in names]
    if not cores:
        return None
    sums = [sum(column) for column in zip(*cores, strict=True)]
    return sum(sums), sums[_IDLE] + sums[_IOWAIT], sums[_STEAL]


def gpu_state(device: torch.device) -> dict[str, Any] | None:
    """Clocks, throttling and other users of a CUDA device by ``nvidia-smi``; None where it does not tell.

    ``sm_mhz`` and ``max_sm_mhz``, ``throttle_reasons`` (NVML's bit mask), ``utilization`` in per cent and
    ``other_processes``, the compute processes beside this one.
    """
    if device.type != "cuda" or shutil.which("nvidia-smi") is None:
        return None
    # A visible device's number need not be the driver's.
    uuid = getattr(torch.cuda.get_device_properties(device), "uuid", None)
    chosen = f"GPU-{uuid}" if uuid else str(device.index or 0)
    values = _smi(f"--query-gpu={','.join(_FIELDS)}", chosen)
    if len(values) != 1:
        return None
    clock, most, reasons, used = (_number(value) for value in values[0].split(","))
    # One of them is this process, under whatever number a container gives it.
    processes = len(_smi("--query-compute-apps=pid", chosen))
    return {
        "sm_mhz": clock,
        "max_sm_mhz": most,
        "throttle_reasons": reasons,
        "utilization": used,
        "other_processes": max(0, processes - 1),
    }


def _smi(query: str, device: str) -> list[str]:
    """The lines that ``nvidia-smi`` answers a query with; none where it fails or takes too long."""
    command = ["nvidia-smi", query, "--format=csv,noheader,nounits", "-i", device]
    try:
        output = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return [line for line in output.splitlines() if line.strip()]


def _number(value: str) -> int | None:
    """A whole number, decimal or hexadecimal; None for ``[N/A]`` and the like."""
    try:
        return int(value.strip(), 0)
    except ValueError:
        return None
