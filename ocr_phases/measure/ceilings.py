"""The ceilings of a device: how fast it copies, multiplies matrices and starts small operations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from ocr_phases.collectors.timeline import Timeline
from ocr_phases.models.devices import device_of

_LARGEST_PRODUCT = 8192
_LAUNCHES = 1000


@dataclass(frozen=True)
class Effort:
    """How much work the ceilings of a kind of device are taken with."""

    copy_bytes: int  # far beyond any cache
    product_ms: float  # a matrix whose product would take longer is not tried
    repeats: int


_ON_CPU = Effort(copy_bytes=128 << 20, product_ms=40.0, repeats=5)
_ON_GPU = Effort(copy_bytes=512 << 20, product_ms=20.0, repeats=20)


@torch.no_grad()
def measure_ceilings(device: torch.device | str, dtype: torch.dtype) -> dict[str, Any]:
    """The ceilings of ``device``, as kept in a record's ``device["ceilings"]``.

    ``bandwidth_bytes_per_s`` of a large copy, bytes read and written; ``matmul_flops_per_s`` of a
    square product in ``dtype`` (``matmul_dtype``), as large as fits in a few milliseconds;
    ``launch_us``, the time that each of many small operations takes that follow one another: on a
    GPU, that of a kernel launch through torch. ``taken`` says with which sizes and how often, and
    the time of each repeat (``copy_ms``, ``matmul_ms``).
    """
    device = torch.device(device)
    copy_bytes, copy_ms = _copy_times(device)
    size, matmul_ms = _matmul_times(device, dtype)
    launches_ms = _launch_times(device)
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


def _effort_on(device: torch.device) -> Effort:
    return _ON_CPU if device.type == "cpu" else _ON_GPU


def _copy_times(device: torch.device) -> tuple[int, list[float]]:
    """Bytes of one buffer, and ms of each time that it was copied."""
    effort = _effort_on(device)
    count = effort.copy_bytes
    if device.type != "cpu":
        count = min(count, device_of(device).free_bytes() // 8)
    source = torch.ones(count, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    return count, _times(device, partial(target.copy_, source), effort.repeats)


def _matmul_times(device: torch.device, dtype: torch.dtype) -> tuple[int, list[float]]:
    """Side of the largest square product that is fast enough, and ms of each time it ran."""
    effort = _effort_on(device)
    size = 512
    # Of its own, so that a caller's random numbers stay what they would have been.
    generator = torch.Generator(device).manual_seed(0)
    while True:
        numbers = torch.randn((size, size), device=device, generator=generator, dtype=torch.float32)
        matrix = numbers.to(dtype)
        product = partial(torch.mm, matrix, matrix, out=torch.empty_like(matrix))
        times = _times(device, product, 2)
        if size >= _LARGEST_PRODUCT or 8 * min(times) > effort.product_ms:
            return size, [*times, *_times(device, product, effort.repeats)]
        size *= 2


def _launch_times(device: torch.device) -> list[float]:
    """Ms of each time that a long row of small operations took."""
    number = torch.zeros(1, device=device)

    def row_of_additions() -> None:
        for _ in range(_LAUNCHES):
            number.add_(1)

    return _times(device, row_of_additions, 3)


def _times(device: torch.device, action: Callable[[], object], repeats: int) -> list[float]:
    """Milliseconds of each of ``repeats`` calls, after one that warms up."""
    action()
    timeline = Timeline(device)
    for _ in range(repeats):
        with timeline.span("ceiling"):
            action()
    return timeline.table()["device_ms"].tolist()
