"""Whether times differ: Welch's t on the logarithms of each repeat's value, corrected by Holm.

Times scatter by factors, so their logarithms are compared: a difference of two is the logarithm of
a ratio. A repeat is one value, because what is measured within it shares what that repeat met.
``python -m benchmarks.verdicts`` shows how often equal runs are called different.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from functools import lru_cache
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import ArrayLike

#: The share of equal pairs that may be called different; an interval is of 1 less this.
ALPHA = 0.05
#: Fewer leave an interval so wide that only large changes are told from none.
LEAST_REPEATS = 5

_MOST_FREEDOM = 200  # from here on Student's t is as good as normal
_Name = TypeVar("_Name", bound=Hashable)


def median_share(part: np.ndarray, whole: np.ndarray) -> float | None:
    """The median over repeats of a part over its phase; None where a repeat lacks the phase.

    Both are ms, float64 [repeats]. A repeat that is slow as a whole keeps its shares, so this is
    steadier than the ratio of two medians.
    """
    if not len(whole) or not (whole > 0).all():
        return None
    return float(np.median(part / whole))


def part_ms(part: np.ndarray, whole: np.ndarray) -> float:
    """The time in ms that stands for a part of a phase: its `median_share` of the phase's median.

    So a part that is shown beside its share and its phase is that share of that phase, also in a
    noisy run, where the median of the part's own times belongs to another repeat. Without the
    phase, or of a single repeat, it is the median of the part's times. Both arguments are ms,
    float64 [repeats].
    """
    share = median_share(part, whole)
    if share is None or len(whole) == 1:
        return float(np.median(part))
    return share * float(np.median(whole))


class LogMean(NamedTuple):
    """A mean of logarithms, its standard error and its degrees of freedom; NaN where they are
    unknown.
    """

    mean: float
    error: float
    freedom: float

    @property
    def p(self) -> float:
        """The two-sided probability of so large a mean where the true one is 0; NaN without an
        error.
        """
        if self.error == 0.0:
            return 1.0 if self.mean == 0.0 else 0.0
        if not self.error > 0.0:  # NaN
            return math.nan
        return _outside(abs(self.mean) / self.error, self._whole_freedom)

    def interval(self, alpha: float = ALPHA) -> tuple[float, float]:
        """The ends between which the geometric mean lies with probability 1 - ``alpha``."""
        reach = self.error  # 0 and NaN need no quantile
        if self.error > 0.0:
            reach = _quantile(alpha, self._whole_freedom) * self.error
        return math.exp(self.mean - reach), math.exp(self.mean + reach)

    @property
    def _whole_freedom(self) -> int:
        """The degrees of freedom as the whole number from 1 on that Student's t needs."""
        return min(max(int(self.freedom), 1), _MOST_FREEDOM)


def log_mean(values: ArrayLike) -> LogMean:
    """The mean of the logarithms of ``values``, float64 [repeats].

    Its error is known from two repeats on; mean and error are NaN where a value is not above 0.
    """
    samples = np.asarray(values, dtype=np.float64)
    count = len(samples)
    logs = np.log(samples if (samples > 0).all() else np.full(count, np.nan))
    if count < 2:
        deviation = math.nan
    elif np.ptp(logs) == 0.0:  # the logarithms of equal values deviate by rounding
        deviation = 0.0
    else:
        deviation = float(logs.std(ddof=1))
    return LogMean(float(logs.mean()), deviation / count**0.5, count - 1)


def log_ratio(baseline: ArrayLike, other: ArrayLike) -> LogMean:
    """Welch's t of ``other`` over ``baseline``, both float64 [repeats]."""
    ours = log_mean(baseline)
    theirs = log_mean(other)
    error = math.hypot(ours.error, theirs.error)
    freedom = math.nan
    if error > 0.0:  # Welch and Satterthwaite
        parts = ours.error**4 / ours.freedom + theirs.error**4 / theirs.freedom
        freedom = error**4 / parts
    return LogMean(theirs.mean - ours.mean, error, freedom)


def holm(tests: Mapping[_Name, LogMean]) -> dict[_Name, float]:
    """The alpha at which each test stands in Holm's step-down; all of them together err at `ALPHA`.

    A test is proven where its interval at that alpha leaves 1 out.
    """
    known = sorted(
        (test.p, place, name) for place, (name, test) in enumerate(tests.items()) if test.p >= 0
    )
    alphas = dict.fromkeys(tests, ALPHA)
    largest = math.inf  # of the tests after the first one that is not proven
    for place, (p, _, name) in enumerate(known):
        alphas[name] = min(ALPHA / (len(known) - place), largest)
        if p > alphas[name]:
            largest = alphas[name]
    return alphas


def leaders(values: Mapping[_Name, np.ndarray]) -> list[_Name]:
    """The name of the least value and of those that Welch does not tell from it; empty where none
    is known.

    ``values`` are float64 [repeats] by name. A name of a single repeat has no spread, so it leads
    nothing.
    """
    means = {}
    for name, repeats in values.items():
        mean = log_mean(repeats)
        if mean.error >= 0:  # not NaN
            means[name] = mean.mean
    ranked = sorted(means, key=lambda name: means[name])
    alpha = ALPHA / max(len(ranked) - 1, 1)
    leading = []
    for name in ranked:
        is_slower = log_ratio(values[ranked[0]], values[name]).p <= alpha
        if not is_slower:
            leading.append(name)
    return leading


def spread(values: ArrayLike) -> float:
    """The standard deviation of the logarithms of ``values``, float64 [repeats]; NaN for a single
    one.
    """
    mean = log_mean(values)
    return mean.error * (mean.freedom + 1) ** 0.5


def _outside(t: float, freedom: int) -> float:
    """How probable a Student's t beyond ±``t`` is (Abramowitz and Stegun, 26.7.3 and 26.7.4)."""
    angle = math.atan(t / freedom**0.5)
    is_odd = freedom % 2 == 1
    term = math.cos(angle) if is_odd else 1.0
    total = 0.0
    for number in range(3 if is_odd else 2, freedom + 1, 2):
        total += term
        term *= (number - 1) / number * math.cos(angle) ** 2
    inside = math.sin(angle) * total
    if is_odd:
        inside = 2.0 / math.pi * (angle + inside)
    return max(1.0 - inside, 0.0)  # rounding may leave less than 0


@lru_cache(maxsize=1_000)
def _quantile(alpha: float, freedom: int) -> float:
    """The t beyond which ±t lies with probability ``alpha``."""
    low = 0.0
    high = 1e6
    for _ in range(100):
        middle = (low + high) / 2
        if _outside(middle, freedom) > alpha:
            low = middle
        else:
            high = middle
    return high
