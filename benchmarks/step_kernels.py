"""Kernels of a compiled step beside the time of their bytes: ``python -m benchmarks.step_kernels
PAGE``.

The full-size model with random weights at base, on a CUDA device. The kernel view names the kernels
of a step and times them; what each reads and writes is what the compiler notes of those that it
makes. A step's own kernels (`steps/token_step.py`) have no such note. They overlap, so together
they take longer than the step.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch._inductor.codecache import PyCodeCache

from benchmarks.documents import markdown
from ocr_phases import OCRSession, PhaseRun
from ocr_phases.analyse.floors import ceilings_of
from ocr_phases.analyse.kernels import short_kernel, stage_verdict, top_kernels


def noted_bytes() -> dict[str, float]:
    """What a call of each kernel moves, bytes by its name; of one name the kernel that was made
    first.
    """
    made: list[Any] = [
        value for module in reversed(PyCodeCache.modules) for value in vars(module).values()
    ]
    notes = [getattr(value, "inductor_meta", {}) for value in made]
    return {
        note["kernel_name"]: 1e9 * note["kernel_num_gb"]
        for note in notes
        if "kernel_num_gb" in note
    }


def kernel_rows(run: PhaseRun, moved: Mapping[str, float]) -> Iterator[tuple[str, str, str, str]]:
    """Kernel, calls, us and floor of one step: the longest kernels, all others, the step."""
    rate = ceilings_of(run).bandwidth_bytes_per_s
    table = top_kernels(run, "decode")
    table["is_all_others"] = table["kernel"] == ""
    table = table.sort_values(["is_all_others", "device_ms"], ascending=[True, False])
    for kernel, calls, ms in table[["kernel", "count", "device_ms"]].itertuples(index=False):
        floor = f"{1e6 * calls * moved[kernel] / rate:.1f}" if kernel in moved else ""
        yield f"`{short_kernel(kernel)}`", f"{calls:.0f}", f"{1e3 * ms:.1f}", floor
    step = stage_verdict(run).query("stage == 'decode_step'").iloc[0]
    yield (
        "the step",
        f"{table['count'].sum():.0f}",
        f"{1e3 * step.wall_ms:.1f}",
        f"{1e3 * step.floor_ms:.1f}",
    )


if __name__ == "__main__":
    with torch._inductor.config.patch(
        benchmark_kernel=True
    ):  # without it the compiler notes no bytes
        session = OCRSession.load("dummy", device="cuda")
        options = {"preset": "base", "strategy": "compiled", "max_new_tokens": 128, "kernels": True}
        measured = session.run_inference(sys.argv[1], **options)
    print(markdown(("kernel", "calls", "us", "floor, us"), kernel_rows(measured, noted_bytes())))
