"""What the device at hand can do at its best, measured on the spot: bandwidth, matrix products, launches.

The bounds that `ocr_phases.analyse.floors` holds a run against. A ceiling is the best of its repeats:
whatever slows one down is none of the device's own. Taken after everything timed, in about half a second.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

import torch

_MIB = 1 << 20
_COPY_BYTES = {"cuda": 512 * _MIB, "cpu": 128 * _MIB}
_LARGEST_PRODUCT = 8192
_PRODUCT_MS = {"cuda": 20.0, "cpu": 40.0}  # a size that would take longer is not tried
_REPEATS = {"cuda": 20, "cpu": 5}
_LAUNCHES = 1000


def measure_ceilings(device: torch.device | str, dtype: torch.dtype) -> dict[str, Any] | None:
    """The ceilings of ``device``, as kept in a record's ``device["ceilings"]``; None where memory is short.

    ``bandwidth_bytes_per_s`` of a large copy, bytes read and written; ``matmul_flops_per_s`` of a square
    product in ``dtype`` (``matmul_dtype``), as large as fits in a few milliseconds; ``launch_us``, the time
    that one more small operation takes in a long row of them: on a GPU a kernel launch through torch.
    ``taken`` says with which sizes and how often, and the time of each repeat (``copy_ms``, ``matmul_ms``).
    """
    device = torch.device(device)
    started = perf_counter()
    try:
        with torch.no_grad():
            copy_bytes, copy_ms = _copy(device)
            size, matmul_ms = _matmul(device, dtype)
            launch_us = _launch(device)
    except (RuntimeError, MemoryError):  # out of memory, on a CPU too, or a broken device: the runs stand
        return None
    return {
        "bandwidth_bytes_per_s": 2 * copy_bytes / min(copy_ms) * 1e3,
        "matmul_flops_per_s": 2 * size**3 / min(matmul_ms) * 1e3,
        "matmul_dtype": str(dtype).removeprefix("torch."),
        "launch_us": launch_us,
        "taken": {
            "copied_bytes": copy_bytes,
            "copy_ms": [round(ms, 4) for ms in copy_ms],
            "matmul_size": size,
            "matmul_ms": [round(ms, 4) for ms in matmul_ms],
            "float32_precision": torch.get_float32_matmul_precision(),
            "repeats": _REPEATS[device.type],
            "launches": _LAUNCHES,
            "threads": torch.get_num_threads() if device.type == "cpu" else None,
            "seconds": round(perf_counter() - started, 3),
        },
    }


def _copy(device: torch.device) -> tuple[int, list[float]]:
    """Bytes of one buffer, far beyond any cache, and ms of each time that it was copied."""
    count = _COPY_BYTES[device.type]
    if device.type == "cuda":
        count = min(count, torch.cuda.mem_get_info(device)[0] // 8)
    source = torch.ones(count, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return count, _times(device, lambda: target.copy_(source), _REPEATS[device.type])


def _matmul(device: torch.device, dtype: torch.dtype) -> tuple[int, list[float]]:
    """Side of the largest square product that takes no longer than allowed, and ms of each time it ran."""
    size, limit = 512, _PRODUCT_MS[device.type]
    # Of its own, so that a caller's random numbers stay what they would have been.
    generator = torch.Generator(device).manual_seed(0)
    while True:
        left = torch.randn((size, size), device=device, generator=generator, dtype=torch.float32).to(dtype)
        target = torch.empty_like(left)

        def product(left: torch.Tensor = left, target: torch.Tensor = target) -> None:
            torch.mm(left, left, out=target)

        times = _times(device, product, 2)
        if size >= _LARGEST_PRODUCT or 8 * min(times) > limit:
            return size, [*times, *_times(device, product, _REPEATS[device.type])]
        size *= 2


def _launch(device: torch.device) -> float:
    """Microseconds for each of many additions to one number, one after another, host and device together."""
    number = torch.zeros(1, device=device)

    def row() -> None:
        for _ in range(_LAUNCHES):
            number.add_(1)

    return min(_times(device, row, 3)) / _LAUNCHES * 1e3


def _times(device: torch.device, action: Callable[[], Any], repeats: int) -> list[float]:
    """Milliseconds of each of ``repeats`` calls, after one that warms up."""
    action()
    if device.type != "cuda":
        return [_host_ms(action) for _ in range(repeats)]
    events = [torch.cuda.Event(enable_timing=True) for _ in range(repeats + 1)]
    events[0].record()
    for event in events[1:]:
        action()
        event.record()
    torch.cuda.synchronize(device)
    return [before.elapsed_time(after) for before, after in zip(events, events[1:], strict=False)]


def _host_ms(action: Callable[[], Any]) -> float:
    start = perf_counter()
    action()
    return (perf_counter() - start) * 1e3
