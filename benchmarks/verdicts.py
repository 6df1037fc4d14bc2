"""How often equal runs are called different: ``python -m benchmarks.verdicts``, a table on the terminal.

Pairs of equal runs are drawn and judged as `ocr_phases.compare` judges two records: prefill and decode step
at once. A repeat scatters log-normally by 4 %. In the rows with bursts one repeat in ten takes 1.5 times as
long in both metrics, as beside another program.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd

from ocr_phases.analyse.noise import SPREAD_NOISY
from ocr_phases.analyse.statistics import holm, log_ratio, spread

PAIRS = 2_000
REPEATS = (3, 5, 8, 20)
SCATTER, BURSTS, BURST = 0.04, 0.1, 1.5
METRICS = ("prefill_ms", "inter_token_ms")


def draw(count: int, bursts: float, rng: np.random.Generator, pairs: int = PAIRS) -> np.ndarray:
    """Times of equal runs, float64 [pairs, 2 runs, metrics, count repeats]."""
    times = np.exp(rng.normal(0.0, SCATTER, (pairs, 2, len(METRICS), count)))
    burst = rng.random((pairs, 2, 1, count)) < bursts
    return np.where(burst, BURST * times, times)


def different(pair: np.ndarray) -> bool:
    """Whether a pair, float64 [2 runs, metrics, repeats], is called different in any metric."""
    tests = {name: log_ratio(*times) for name, times in zip(METRICS, pair.swapaxes(0, 1), strict=True)}
    ends = [test.interval(alpha) for test, alpha in zip(tests.values(), holm(tests).values(), strict=True)]
    return any(not low <= 1.0 <= high for low, high in ends)


def noisy(pair: np.ndarray) -> bool:
    """Whether one of the two runs is noisy, so that it proves nothing."""
    return any(spread(times) > SPREAD_NOISY for run in pair for times in run)


def rates(pairs: int = PAIRS) -> Iterator[tuple[int, float, float, float]]:
    """Rows of the table: repeats, share of bursts, shares of pairs called different: all, and the quiet."""
    rng = np.random.default_rng(0)
    for bursts in (0.0, BURSTS):
        for count in REPEATS:
            drawn = draw(count, bursts, rng, pairs)
            found = np.array([(different(pair), noisy(pair)) for pair in drawn])
            yield count, bursts, float(found[:, 0].mean()), float((found[:, 0] & ~found[:, 1]).mean())


def main() -> None:
    """Print the false verdict rate of equal pairs."""
    columns = ["repeats", "bursts", "called different", "and not noisy"]
    print(pd.DataFrame(rates(), columns=columns).to_string(index=False, float_format="{:.3f}".format))


if __name__ == "__main__":
    main()
