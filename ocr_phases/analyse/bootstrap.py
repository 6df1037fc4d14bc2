"""Bootstrap intervals: how far a figure would move if the same repeats were drawn again.

The percentile bootstrap (Efron and Tibshirani, An Introduction to the Bootstrap, 1993, chapter 13): draw as
many repeats as there are, with replacement, `DRAWS` times; the middle 95 % of the figure's values are the
interval. Draws come from a seeded generator, so the same data give the same interval.

Fewer than `LEAST_REPEATS` repeats cannot fill such an interval: what n of them span holds their true median
with probability 1 - 2^(1 - n) (a sign test's), 94 % for 5 but 75 % for 3. Two records are then compared by
the wider of it and Welch's t interval, which is wide enough for so few where they scatter log-normally.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from ocr_phases.errors import OcrPhasesError

DRAWS = 2_000
CONFIDENCE = 0.95
LEAST_REPEATS = 5

# The 97.5 % quantile of Student's t for 1, 2, ... degrees of freedom; the last stands for more.
_T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228)

_CHUNK = 4_000_000  # values of one resampled block, 32 MB


@dataclass(frozen=True)
class Interval:
    """A figure with its 95 % interval; ``low`` and ``high`` are NaN for a single repeat."""

    value: float
    low: float
    high: float


def median_interval(values: np.ndarray, seed: int = 0) -> Interval:
    """The median of ``values``, float64 [repeats], with its interval."""
    samples = np.asarray(values, dtype=np.float64)[:, None]
    return _interval(float(np.median(samples)), resampled(samples, 0.5, seed), len(samples))


def paired_ratio(ours: np.ndarray, theirs: np.ndarray, seed: int = 0) -> Interval:
    """The median of ``ours / theirs`` over pairs that were taken one after the other, with its interval.

    Both float64 [pairs]. Raises `OcrPhasesError` where they are not as many.
    """
    if len(ours) != len(theirs):
        raise OcrPhasesError(f"Pairs need as many of both: {len(ours)} against {len(theirs)}.")
    return median_interval(np.asarray(ours, dtype=np.float64) / np.asarray(theirs, dtype=np.float64), seed)


def difference_and_ratio(
    base: np.ndarray, other: np.ndarray, quantile: float, seed: int = 0
) -> tuple[Interval, Interval]:
    """``other`` minus ``base``, and ``other`` over ``base``, of a quantile pooled over repeats.

    Both float64 [repeats, values a repeat] (NaN where a repeat has fewer values); the two were measured
    apart, so their repeats are drawn independently. Fewer than `LEAST_REPEATS` widen both intervals to
    Welch's. A zero base has no ratio (NaN).
    """
    before, after = (float(np.nanquantile(samples, quantile)) for samples in (base, other))
    least = min(len(base), len(other))
    # Two seeds, or equal repeat counts would be drawn alike.
    lower, upper = resampled(base, quantile, seed), resampled(other, quantile, seed + 1)
    difference = _interval(after - before, upper - lower, least)
    each = [np.nanquantile(samples, quantile, axis=1) for samples in (base, other)]
    # Without any spread the bootstrap is exact, and a logarithm would round it.
    few = 2 <= least < LEAST_REPEATS and any(np.ptp(values) > 0 for values in each)
    if few:
        difference = _widened(difference, *_welch(*each))
    if before == 0 or not lower.all():
        return difference, Interval(float("nan"), float("nan"), float("nan"))
    ratio = _interval(after / before, upper / lower, least)
    if few and all((values > 0).all() for values in each):
        ratio = _widened(ratio, *np.exp(_welch(*map(np.log, each))))
    return difference, ratio


def resampled(samples: np.ndarray, quantile: float, seed: int) -> np.ndarray:
    """The pooled quantile of `DRAWS` draws of the repeats with replacement, float64 [DRAWS].

    ``samples`` is float64 [repeats, values a repeat]; a repeat is drawn as a whole, because its values share
    what that repeat met.
    """
    distinct, place = _draws(len(samples), seed)
    quantile_of = np.nanquantile if np.isnan(samples).any() else np.quantile
    pieces = max(1, distinct.size * samples.shape[1] // _CHUNK)
    found = [
        quantile_of(samples[piece].reshape(len(piece), -1), quantile, axis=1)
        for piece in np.array_split(distinct, pieces)
        if len(piece)
    ]
    return np.concatenate(found)[place]


@lru_cache(maxsize=8)
def _draws(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The different draws of ``count`` repeats, int64 [different, count], and which `DRAWS` times were drawn.

    Few repeats have few different draws (three have ten). All figures of a record are drawn alike.
    """
    draws = np.sort(np.random.default_rng(seed).integers(count, size=(DRAWS, count)), axis=1)
    distinct, place = np.unique(draws, axis=0, return_inverse=True)
    return distinct, place.reshape(-1)


def _welch(base: np.ndarray, other: np.ndarray) -> tuple[float, float]:
    """Welch's 95 % interval of the mean of ``other`` less that of ``base``, two or more values each."""
    apart = float(other.mean() - base.mean())
    ours, theirs = (float(values.var(ddof=1)) / len(values) for values in (base, other))
    error = ours + theirs
    if error == 0:
        return apart, apart
    freedom = error**2 / (ours**2 / (len(base) - 1) + theirs**2 / (len(other) - 1))
    reach = _T[min(int(freedom), len(_T)) - 1] * error**0.5
    return apart - reach, apart + reach


def _widened(interval: Interval, low: float, high: float) -> Interval:
    return Interval(interval.value, min(interval.low, float(low)), max(interval.high, float(high)))


def _interval(value: float, values: np.ndarray, repeats: int) -> Interval:
    if repeats < 2:
        return Interval(value, float("nan"), float("nan"))
    tail = (1.0 - CONFIDENCE) / 2.0
    low, high = np.quantile(values, (tail, 1.0 - tail))
    return Interval(value, float(low), float(high))
