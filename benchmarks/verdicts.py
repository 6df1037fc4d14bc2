"""How often equal runs are called different: ``python -m benchmarks.verdicts``, a table on the
terminal.

Pairs of equal runs are drawn and judged as `ocr_phases.compare` judges two records: prefill and
decode step at once. A repeat scatters log-normally by 4 %. In the rows with bursts one repeat in
ten takes 1.5 times as long in both metrics, as beside another program.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from ocr_phases.analyse.noise import SPREAD_NOISY
from ocr_phases.analyse.statistics import holm, log_ratio, spread

PAIRS = 2_000
SCATTER, BURST = 0.04, 1.5


def draw(repeats: int, bursts: float, rng: np.random.Generator) -> np.ndarray:
    """Times of equal runs, float64 [pairs, 2 runs, 2 metrics, repeats]."""
    times = np.exp(rng.normal(0.0, SCATTER, (PAIRS, 2, 2, repeats)))
    return np.where(rng.random((PAIRS, 2, 1, repeats)) < bursts, BURST * times, times)


def different(pair: np.ndarray) -> bool:
    """Whether a pair, float64 [2 runs, metrics, repeats], is called different in any metric."""
    tests = {name: log_ratio(*times) for name, times in enumerate(pair.swapaxes(0, 1))}
    ends = [tests[name].interval(alpha) for name, alpha in holm(tests).items()]
    return any(not low <= 1.0 <= high for low, high in ends)


def noisy(pair: np.ndarray) -> bool:
    """Whether one of the two runs is noisy, so that it proves nothing."""
    return any(spread(times) > SPREAD_NOISY for run in pair for times in run)


if __name__ == "__main__":
    rng, rows = np.random.default_rng(0), []
    for bursts in (0.0, 0.1):
        for repeats in (3, 5, 8, 20):
            found = np.array(
                [(different(pair), noisy(pair)) for pair in draw(repeats, bursts, rng)]
            )
            rows.append((repeats, bursts, found[:, 0].mean(), (found[:, 0] & ~found[:, 1]).mean()))
    columns = ["repeats", "bursts", "called different", "and not noisy"]
    print(pd.DataFrame(rows, columns=columns).to_string(index=False, float_format="{:.3f}".format))
