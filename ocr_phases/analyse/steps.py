"""Decode step by step: trend over the cache, outliers, repetition loops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ocr_phases.analyse.kept import kept
from ocr_phases.analyse.summary import OUTLIER_FACTOR, attended, step_table
from ocr_phases.record import PhaseRun
from ocr_phases.text import first_difference, percent_text

#: A loop: a period of at most so many tokens, at least so often and over at least so many tokens at the end.
LOOP_PERIOD = 64
LOOP_TIMES = 4
LOOP_TOKENS = 48

_TREND_STEPS = 16
_PAIRS = 400
_NORMAL = 1.96  # 95 % of a normal distribution lie within so many standard deviations
_CACHE_BLOCK = 256
_MOST_REPEATS = 0.5


@dataclass(frozen=True)
class Trend:
    """A robust line through the medians of the steps over the cache's length.

    ``slope`` is ms per cached token and ``interval`` its 95 % interval; ``span`` is how many tokens the cache
    grew by, ``step_ms`` the median step.
    """

    slope: float
    interval: tuple[float, float]
    span: float
    step_ms: float

    @property
    def growth(self) -> float:
        """The growth over the run in ms."""
        return self.slope * self.span

    @property
    def share(self) -> float:
        """The growth over the run as a part of the median step."""
        return self.growth / self.step_ms if self.step_ms else 0.0

    @property
    def text(self) -> str:
        """``"12 % of a step over the run (95 % interval 10 % to 14 %)"``."""
        low, high = (end * self.span / self.step_ms if self.step_ms else 0.0 for end in self.interval)
        ends = f"95 % interval {percent_text(low)} to {percent_text(high)}"
        return f"{percent_text(self.share)} of a step over the run ({ends})"


@kept
def decode_trend(run: PhaseRun) -> Trend | None:
    """The trend of a run's steps, outliers aside; None for fewer than 16 steps.

    The slope is Theil and Sen's, the median over pairs of steps; its interval is Sen's, from Kendall's
    statistic.
    """
    table = step_table(run).dropna(subset=["cache_len"])
    table = table[~table["outlier"]]
    if len(table) < _TREND_STEPS:
        return None
    x = attended(run, table["cache_len"].to_numpy(dtype=np.float64))
    y = table["device_ms"].to_numpy(dtype=np.float64)
    if len(x) > _PAIRS:  # every pair of some hundred steps says as much as every pair of thousands
        chosen = np.linspace(0, len(x) - 1, _PAIRS).round().astype(int)
        x, y = x[chosen], y[chosen]
    left, right = np.triu_indices(len(x), k=1)
    apart = x[right] - x[left] > 0
    slopes = np.sort((y[right] - y[left])[apart] / (x[right] - x[left])[apart])
    if not slopes.size:
        return None
    count = len(x)
    spread = _NORMAL * np.sqrt(count * (count - 1) * (2 * count + 5) / 18) / 2
    low, high = (int(np.clip(slopes.size / 2 + end, 0, slopes.size - 1)) for end in (-spread, spread))
    interval = float(slopes[low]), float(slopes[high])
    return Trend(float(np.median(slopes)), interval, float(x.max() - x.min()), float(np.median(y)))


def cache_read_slope(run: PhaseRun) -> float | None:
    """What a cached token should cost, ms a step: its bytes at the device's measured memory bandwidth."""
    bandwidth = (run.device.get("ceilings") or {}).get("bandwidth_bytes_per_s")
    per_token = run.cache.get("bytes_per_token")
    return per_token / bandwidth * 1e3 if bandwidth and per_token else None


def outlier_causes(run: PhaseRun) -> list[tuple[int, str]]:
    """The outlier steps, each with its likely cause."""
    table = step_table(run)
    slow = table[table["outlier"]]
    limit = OUTLIER_FACTOR * float(table["device_ms"].median()) if len(table) else 0.0
    spans = run.spans[run.spans["stage"] == "decode_step"]
    return [
        (int(step), _cause(run, int(step), cache_len, spans[spans["step"] == step], limit))
        for step, cache_len in zip(slow["step"], slow["cache_len"], strict=True)
    ]


def _cause(run: PhaseRun, step: int, cache_len: Any, spans: Any, limit: float) -> str:
    every = run.request.get("eos_check_every") or 1
    if step == 0:
        return "the first step, which sets up what the others reuse"
    if (spans["device_ms"] > limit).mean() <= _MOST_REPEATS:
        return "in some repeats only: something else ran on this machine"
    if every > 1 and (step + 1) % every == 0:
        return "the end token is read here, which waits for the device"
    # The step that made cache_len entries is the first to hold one more than a full block.
    grew = isinstance(cache_len, int | np.integer) and attended(run, np.array(cache_len)) == cache_len
    if grew and int(cache_len) % _CACHE_BLOCK <= 1:
        return f"the cache reached {int(cache_len)} entries: it moves to larger memory or another kernel"
    if run.device.get("kind") == "cuda" and spans["host_ms"].median() > 0.9 * spans["device_ms"].median():
        return "the host was late, and the device waited for it"
    return "the device itself took longer" if run.device.get("kind") == "cuda" else "the host was held up"


def repetition_loop(ids: Sequence[int]) -> tuple[int, int] | None:
    """The loop that ``ids`` end in, as (period, tokens it covers); None for none.

    The shortest period counts; what the loop covers may end within a period, as a token limit cuts it.
    """
    for period in range(1, min(LOOP_PERIOD, len(ids) // LOOP_TIMES) + 1):
        covered = period
        while covered < len(ids) and ids[-1 - covered] == ids[-1 - covered + period]:
            covered += 1
        if covered >= max(LOOP_TIMES * period, LOOP_TOKENS):
            return period, covered
    return None


def first_other_token(base: PhaseRun, other: PhaseRun) -> str:
    """Where the tokens of two records first differ: ``number 17: 'cat' here, 'dog' in the base``.

    The index is that of `PhaseRun.tokens_of`; a token without a text is named by its id. Empty where all
    rows that both have are equal.
    """
    for row, (left, right) in enumerate(zip(base.results, other.results, strict=False)):
        place = first_difference(left["ids"], right["ids"])
        if place is not None:
            where = f"number {place}" + (f" of row {row}" if len(base.results) > 1 else "")
            return f"{where}: {_token_text(right, place)} here, {_token_text(left, place)} in the base"
    return ""


def _token_text(result: Mapping[str, Any], place: int) -> str:
    if place >= len(result["ids"]):
        return "the end"
    # As a literal: a token may be a line break, or a control character.
    return repr(result["token_texts"][place] or result["ids"][place])
