"""The kernels of a token's step on a CUDA device: ``python -m benchmarks.token_kernels``.

It replays the captured step of the full-size model with random weights at base. First it looks
whether equal runs give equal tokens and logits, then it tries other sizes of each kernel, one after
the other, and keeps what is faster.
"""

from __future__ import annotations

import hashlib
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ocr_phases import OCRSession
from ocr_phases.errors import OcrPhasesError
from ocr_phases.steps.captured import StaticStep
from ocr_phases.steps.graphs import capture
from ocr_phases.steps.token_step import SIZES, Size

PROMPT_LEN = 300
ENTRIES = 8192
#: Rows and warps that are tried.
ROWS = {
    "project": (1, 2, 4, 8),
    "attend": (64, 128, 256),
    "add_attention": (4, 8, 16),
    "gate": (2, 4, 8, 16),
    "gate_experts": (2, 4, 8, 16),
    "add_experts": (1, 2, 4, 8),
    "score_words": (4, 8, 16),
    "close_step": (1,),
}
WARPS = (1, 2, 4, 8, 16)
#: Of the others each warp has at least one row.
WARPS_WITHOUT_ROWS = ("attend", "add_attention", "close_step")


@dataclass
class Replays:
    """A step that is captured anew for each trial."""

    model: torch.nn.Module

    def step(self) -> StaticStep:
        """A step with the present sizes."""
        step = StaticStep(self.model, 1, ENTRIES, "compiled")
        if step.token_step is None:
            raise OcrPhasesError("The step's own kernels do not fit: use a CUDA device and Triton.")
        return step

    @torch.no_grad()
    def us(self, tokens: int = 700, repeats: int = 7, steps: int = 100) -> float:
        """Microseconds of a replayed step behind a prompt, the median of some series."""
        step = self.step()
        with step.execution():
            replay = capture(step.uncaptured(PROMPT_LEN + tokens))
        series = []
        for _ in range(repeats):
            begin = torch.cuda.Event(enable_timing=True)
            end = torch.cuda.Event(enable_timing=True)
            begin.record()
            for _ in range(steps):
                replay()
            end.record()
            torch.cuda.synchronize()
            series.append(1e3 * begin.elapsed_time(end) / steps)
        return statistics.median(series)

    @torch.no_grad()
    def results(self, runs: int = 150, steps: int = 64) -> set[str]:
        """What equal runs of some steps gave: a digest for each different result."""
        step = self.step()
        with step.execution():
            replay = capture(step.uncaptured(PROMPT_LEN))
        assert step.token_step is not None
        state = step.token_step.state
        before = [value.clone() for value in vars(state).values()]
        cached = [layer.keys.clone() for layer in step.cache.layers]
        digests = set()
        for _ in range(runs):
            for value, first in zip(vars(state).values(), before, strict=True):
                value.copy_(first)
            for layer, keys in zip(step.cache.layers, cached, strict=True):
                layer.keys.copy_(keys)
            seen: list[Tensor] = []
            for _ in range(steps):
                seen.append(replay().clone())
            logits = torch.stack(seen).cpu().view(torch.uint8).numpy().tobytes()
            digests.add(hashlib.sha256(logits).hexdigest())
        return digests


def candidates(name: str) -> Iterator[Size]:
    """The other sizes of a kernel."""
    for rows in ROWS[name]:
        for warps in WARPS:
            size = Size(rows, warps)
            if size != SIZES[name] and (warps <= rows or name in WARPS_WITHOUT_ROWS):
                yield size


def tune(time: Callable[[], float]) -> None:
    """Try other sizes of each kernel, and keep in `SIZES` what is at least 0.3 % faster."""
    best = time()
    print(f"as it is: {best:.1f} us")
    for name in ROWS:
        for size in candidates(name):
            kept = SIZES[name]
            SIZES[name] = size
            us = time()
            print(f"{name} {size.rows} rows, {size.warps} warps: {us:.1f} us", flush=True)
            if us < 0.997 * best:
                best = us
            else:
                SIZES[name] = kept
    print(f"best: {best:.1f} us with {SIZES}")


if __name__ == "__main__":
    session = OCRSession.load("dummy", device="cuda")
    replays = Replays(session.model)
    print(f"{len(replays.results())} different results of equal runs")
    tune(replays.us)
    for entries in (100, 1500, 3500, 7000):
        print(f"behind {entries} tokens: {replays.us(entries):.1f} us")
