"""The machine: what it is and can do at best, what else it did during the repeats, and peak memory."""

from __future__ import annotations

import contextlib
import platform
import re
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from time import perf_counter, process_time, sleep
from typing import Any

import numpy as np
import pandas as pd
import psutil
import torch

from ocr_phases.collectors.timeline import Timeline
from ocr_phases.steps.execution import decode_backends
from ocr_phases.versions import __version__, code_hash, git_state

_CODE = code_hash()  # while the modules are loaded, not when they may have been edited


def now() -> str:
    """The time, ISO 8601 in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def versions() -> dict[str, Any]:
    """Versions of everything a time depends on; None for what is not there."""
    import tokenizers
    import transformers

    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "tokenizers": tokenizers.__version__,
        "cuda": torch.version.cuda,
        "driver": _found(r"Kernel Module.*?(\d+\.\d+(?:\.\d+)?)", "/proc/driver/nvidia/version"),
        "ocr_phases": __version__,
        "code": _CODE,
        "git": git_state(),
    }


def describe_device(device: str) -> dict[str, Any]:
    """Name, kind, memory in bytes, cores and bytes of the last cache of ``device``, and its host.

    ``cores`` are multiprocessors on CUDA, else those that this process may use, as ``host_cores``
    are; ``threads`` is how many of them torch computes with.
    """
    cores, host = len(_cores()), _found(r"model name\s*:\s*(.+)", "/proc/cpuinfo")
    host = host or platform.processor() or platform.machine()
    values = host, "cpu", psutil.virtual_memory().total, cores, _last_cache_bytes()
    if torch.device(device).type == "cuda":
        chip = torch.cuda.get_device_properties(device)
        sizes = chip.total_memory, chip.multi_processor_count, getattr(chip, "L2_cache_size", None)
        values = chip.name, "cuda", *sizes
    own = dict(zip(("name", "kind", "memory_bytes", "cores", "cache_bytes"), values, strict=True))
    return {
        **own,
        "host": host,
        "host_cores": cores,
        "threads": torch.get_num_threads(),
        "ceilings": None,
    }


def attention_kernels(device: str, strategy: str = "eager") -> list[str]:
    """The SDPA kernels that a run, or a decode step of ``strategy``, may use, by name."""
    return [backend.name.lower() for backend in decode_backends(device, strategy)] or ["default"]


def _found(pattern: str, path: str) -> str | None:
    """The group of ``pattern`` in a file of the system; None where either is missing."""
    match = re.search(pattern, Path(path).read_text()) if Path(path).exists() else None
    return match[1].strip() if match else None


def _cores() -> Sequence[int]:
    """Cores that this process may run on: a container or a batch system often gives fewer than
    there are.
    """
    process = psutil.Process()
    return (
        process.cpu_affinity()
        if hasattr(process, "cpu_affinity")
        else range(psutil.cpu_count() or 1)
    )


def _last_cache_bytes() -> int | None:
    """Bytes of the host's largest cache; None where the system does not tell."""
    sizes = [
        path.read_text().strip()
        for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("*/size")
    ]
    known = [
        int(size[:-1]) * {"K": 1 << 10, "M": 1 << 20}[size[-1]]
        for size in sizes
        if size[-1:] in "KM"
    ]
    return max(known, default=None)


_COPY_BYTES = {"cuda": 512 << 20, "cpu": 128 << 20}
_LARGEST_PRODUCT = 8192
_PRODUCT_MS = {"cuda": 20.0, "cpu": 40.0}  # a size that would take longer is not tried
_REPEATS = {"cuda": 20, "cpu": 5}
_LAUNCHES = 1000


@torch.no_grad()
def measure_ceilings(device: torch.device | str, dtype: torch.dtype) -> dict[str, Any]:
    """The ceilings of ``device``, as kept in a record's ``device["ceilings"]``.

    ``bandwidth_bytes_per_s`` of a large copy, bytes read and written; ``matmul_flops_per_s`` of a
    square product in ``dtype`` (``matmul_dtype``), as large as fits in a few milliseconds;
    ``launch_us``, the time that one more small operation takes in a long row of them: on a GPU a
    kernel launch through torch. ``taken`` says with which sizes and how often, and the time of each
    repeat (``copy_ms``, ``matmul_ms``).
    """
    device = torch.device(device)
    copy_bytes, copy_ms = _copy(device)
    size, matmul_ms = _matmul(device, dtype)
    number = torch.zeros(1, device=device)
    launches_ms = _times(device, lambda: [number.add_(1) for _ in range(_LAUNCHES)], 3)
    return {
        "bandwidth_bytes_per_s": 2 * copy_bytes / min(copy_ms) * 1e3,
        "matmul_flops_per_s": 2 * size**3 / min(matmul_ms) * 1e3,
        "matmul_dtype": str(dtype).removeprefix("torch."),
        "launch_us": min(launches_ms) / _LAUNCHES * 1e3,
        "taken": {
            "copied_bytes": copy_bytes,
            "copy_ms": [round(ms, 4) for ms in copy_ms],
            "matmul_size": size,
            "matmul_ms": [round(ms, 4) for ms in matmul_ms],
            "float32_precision": torch.get_float32_matmul_precision(),
        },
    }


def _copy(device: torch.device) -> tuple[int, list[float]]:
    """Bytes of one buffer, far beyond any cache, and ms of each time that it was copied."""
    count = _COPY_BYTES[device.type]
    if device.type == "cuda":
        count = min(count, torch.cuda.mem_get_info(device)[0] // 8)
    source = torch.ones(count, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return count, _times(device, partial(target.copy_, source), _REPEATS[device.type])


def _matmul(device: torch.device, dtype: torch.dtype) -> tuple[int, list[float]]:
    """Side of the largest square product that takes no longer than allowed, and ms of each time it
    ran.
    """
    size, limit = 512, _PRODUCT_MS[device.type]
    # Of its own, so that a caller's random numbers stay what they would have been.
    generator = torch.Generator(device).manual_seed(0)
    while True:
        left = torch.randn(
            (size, size), device=device, generator=generator, dtype=torch.float32
        ).to(dtype)
        product = partial(torch.mm, left, left, out=torch.empty_like(left))
        times = _times(device, product, 2)
        if size >= _LARGEST_PRODUCT or 8 * min(times) > limit:
            return size, [*times, *_times(device, product, _REPEATS[device.type])]
        size *= 2


def _times(device: torch.device, action: Callable[[], Any], repeats: int) -> list[float]:
    """Milliseconds of each of ``repeats`` calls, after one that warms up."""
    action()
    timeline = Timeline(device)
    for _ in range(repeats):
        with timeline.span("ceiling"):
            action()
    return timeline.table()["device_ms"].tolist()


_LEAST_CORES_S = 0.2  # in less time than this, ticks of 10 ms say nothing
#: What a GPU's state is called here and by ``nvidia-smi``.
_FIELDS = {
    "sm_mhz": "clocks.sm",
    "max_sm_mhz": "clocks.max.sm",
    "throttle_reasons": "clocks_throttle_reasons.active",
    "utilization": "utilization.gpu",
}


class Conditions:
    """Collects what the host did in each repeat (`of`); `described` is the record's part about it."""

    def __init__(self, device: torch.device | str) -> None:
        self._device = torch.device(device)
        self._repeats: list[dict[str, Any]] = []
        self._before = gpu_state(self._device)
        self._energy = EnergyMeter(self._device)

    @contextlib.contextmanager
    def of(self, repeat: int) -> Iterator[None]:
        """Around one repeat; one that did not end is not kept."""
        before = _read()
        self._energy.mark()
        yield
        after = _read()
        self._energy.mark()
        self._repeats.append({"repeat": repeat, **_between(before, after)})

    def described(self) -> dict[str, Any]:
        """``repeats``: a dict each; ``gpu``: its state before and after, or None on a CPU;
        ``energy``.
        """
        states = {"before": self._before, "after": gpu_state(self._device)}
        return {
            "repeats": self._repeats,
            "gpu": self._before and states,
            "energy": self._energy.described(),
        }


def _read() -> dict[str, Any]:
    """Seconds so far, those of other Python threads by id, and the load; ``cores_s`` has idle ones
    too.
    """
    cores = pd.DataFrame(psutil.cpu_times(percpu=True)).reindex(list(_cores())).sum()
    threads_s, waited_s = _threads()
    return {
        # Guests are counted among the users already.
        "cores_s": cores.sum() - cores.get("guest", 0.0) - cores.get("guest_nice", 0.0),
        "idle_s": cores["idle"] + cores.get("iowait", 0.0),
        "steal_s": cores.get("steal", 0.0),
        "wall_s": perf_counter(),
        "cpu_s": process_time(),
        "threads_s": threads_s,
        "waited_s": waited_s,
        "load": psutil.getloadavg()[0],
    }


def _between(before: dict[str, Any], after: dict[str, Any]) -> dict[str, Any]:
    """Seconds of wall, of CPU time, of other threads and of waiting; shares of all cores; load
    averages.
    """
    names = ("wall_s", "cpu_s", "cores_s", "idle_s", "steal_s")
    wall_s, cpu_s, total, idle, stolen = (after[name] - before[name] for name in names)
    threads, known = before["threads_s"], after["waited_s"] is not None
    others_s = sum(now - threads.get(thread, 0.0) for thread, now in after["threads_s"].items())
    enough = total >= _LEAST_CORES_S
    found = {
        "wall_s": wall_s,
        "cpu_s": cpu_s,
        "other_threads_s": others_s if known else None,
        # A thread that has ended took its count along.
        "waited_s": max(0.0, after["waited_s"] - (before["waited_s"] or 0.0)) if known else None,
        "others": max(0.0, (total - idle - stolen - cpu_s) / total) if enough else None,
        "steal": stolen / total if enough else None,
    }
    rounded = {
        name: None if value is None else round(float(value), 4) for name, value in found.items()
    }
    return {**rounded, "load_start": before["load"], "load_end": after["load"]}


def _threads() -> tuple[dict[int, float], float | None]:
    """Seconds that each other Python thread of this process has run, by its id, and that all have
    waited.

    From the scheduler's counts, ``schedstat``: run time and run delay. Without them the wait is
    None.
    """
    others = {thread.native_id for thread in threading.enumerate()} - {threading.get_native_id()}
    ran, waited = {}, 0
    for path in Path("/proc/self/task").glob("*/schedstat"):
        with contextlib.suppress(
            FileNotFoundError, ProcessLookupError
        ):  # a thread that has just ended
            run, delay, _ = map(int, path.read_text().split())
            waited += delay
            if int(path.parent.name) in others:
                ran[int(path.parent.name)] = run / 1e9
    return ran, waited / 1e9 if waited else None


_LEAST_ENERGY_S = 1.0  # NVML's counter moves every 100 ms


class EnergyMeter:
    """Joules of a run, by a `mark` at both ends of each: of an NVIDIA card by NVML, of CPUs by
    powercap.

    The counters move seldom, so the runs are one window, of a second or more, from the first mark
    to the last. ``missing`` says why there is no figure: nvidia-ml-py is not installed, or a
    counter is not there or may not be read.
    """

    def __init__(self, device: torch.device, powercap: Path = Path("/sys/class/powercap")) -> None:
        self.missing, self._times, self._counts = "", list[float](), list[list[float]]()
        try:
            self._read, self._ranges, self._idle_w = _counters(device, powercap)
        except (ImportError, OSError) as error:
            self.missing = str(error)

    def mark(self) -> None:
        """Read the counters now."""
        if not self.missing:
            self._times.append(perf_counter())
            self._counts.append(self._read())

    def described(self) -> dict[str, Any]:
        """``seconds`` of all runs, ``run_joules`` of each and ``idle_w``; or ``missing``."""
        if self.missing:
            return {"missing": self.missing}
        seconds = self._times[-1] - self._times[0]
        if seconds < _LEAST_ENERGY_S:
            return {
                "missing": f"the repeats took {seconds:.2f} s in all, and the counter needs a second"
            }
        each = _joules(self._counts, self._ranges) / (len(self._times) // 2)
        return {"seconds": seconds, "run_joules": each, "idle_w": self._idle_w}


def _joules(counts: Sequence[list[float]], ranges: list[float]) -> float:
    """What all counters together grew by."""
    return float(np.mod(np.diff(counts, axis=0), ranges).sum())


@cache
def _counters(
    device: torch.device, powercap: Path
) -> tuple[Callable[[], list[float]], list[float], float]:
    """What reads the counters, their ranges, and the watts of the idle device, measured for a
    second.
    """
    read, ranges = _nvml(device) if device.type == "cuda" else _powercap(powercap)
    start, before = perf_counter(), read()
    sleep(_LEAST_ENERGY_S)
    return read, ranges, _joules([before, read()], ranges) / (perf_counter() - start)


def _nvml(device: torch.device) -> tuple[Callable[[], list[float]], list[float]]:
    """The card's counter, which never begins again."""
    import pynvml  # an optional dependency

    try:
        pynvml.nvmlInit()
        card = pynvml.nvmlDeviceGetHandleByUUID(
            f"GPU-{torch.cuda.get_device_properties(device).uuid}"
        )
        pynvml.nvmlDeviceGetTotalEnergyConsumption(card)
    except pynvml.NVMLError as error:
        raise OSError(f"NVML: {error}") from error
    return lambda: [pynvml.nvmlDeviceGetTotalEnergyConsumption(card) / 1e3], [np.inf]


def _powercap(folder: Path) -> tuple[Callable[[], list[float]], list[float]]:
    """The counters of the host's packages."""
    zones = [zone for zone in sorted(folder.glob("*:*")) if zone.name.count(":") == 1]
    if not zones:
        raise FileNotFoundError("this host has no powercap counters")

    def read(name: str) -> list[float]:
        return [int((zone / name).read_text()) / 1e6 for zone in zones]

    return partial(read, "energy_uj"), read("max_energy_range_uj")


def gpu_state(device: torch.device) -> dict[str, Any] | None:
    """Clocks, throttling and other users of a CUDA device by ``nvidia-smi``; None where it does not
    tell.

    ``sm_mhz`` and ``max_sm_mhz``, ``throttle_reasons`` (NVML's bit mask), ``utilization`` in per
    cent and ``other_processes``, the compute processes beside this one.
    """
    if device.type != "cuda":
        return None
    # A visible device's number need not be the driver's.
    chosen = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
    lines = _smi(f"--query-gpu={','.join(_FIELDS.values())}", chosen)
    if len(lines) != 1:
        return None
    # Decimal or hexadecimal; a card that has no such state says ``[N/A]``.
    values = [int(text, 0) if text.strip()[:1].isdigit() else None for text in lines[0].split(",")]
    state = dict(zip(_FIELDS, values, strict=True))
    # One of them is this process, under whatever number a container gives it.
    return {**state, "other_processes": max(0, len(_smi("--query-compute-apps=pid", chosen)) - 1)}


def _smi(query: str, device: str) -> list[str]:
    """The lines that ``nvidia-smi`` answers a query with; none where it fails or takes too long."""
    command, output = ["nvidia-smi", query, "--format=csv,noheader,nounits", "-i", device], ""
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        output = subprocess.run(
            command, capture_output=True, text=True, timeout=10, check=True
        ).stdout
    return [line for line in output.splitlines() if line.strip()]


class PeakMemory:
    """Peak memory of each phase of one run: `of` around a phase, then bytes by phase in ``peaks``.

    ``source`` says what is counted: the CUDA allocator's peak, or on Linux CPUs the process's
    high-water mark (``VmHWM``, which counts everything resident), or None where neither can be had.
    """

    def __init__(self, device: torch.device | str) -> None:
        self._device = torch.device(device)
        self.peaks: dict[str, int] = {}
        source = "cuda_peak_allocated" if self._device.type == "cuda" else "process_high_water_mark"
        self.source = None if self._peak() is None else source

    @contextlib.contextmanager
    def of(self, phase: str) -> Iterator[None]:
        """Keep the peak of a ``with`` block as that of ``phase``."""
        self._peak()
        yield
        if (peak := self._peak()) is not None:
            self.peaks[phase] = peak

    def _peak(self) -> int | None:
        """Bytes, since the last call; None where it cannot be read or reset."""
        if self._device.type == "cuda":
            peak = torch.cuda.max_memory_allocated(self._device)
            torch.cuda.reset_peak_memory_stats(self._device)
            return peak
        kilobytes = _found(r"VmHWM:\s+(\d+) kB", "/proc/self/status")
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")
            return int(kilobytes) * 1024 if kilobytes else None
        return None
