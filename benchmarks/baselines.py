"""How often a gate for CI raises a false alarm: ``python -m benchmarks.baselines``, a table on the
terminal.

``compare --baseline DIR NEW.json --fail-above 5`` is played with records that are equal but for
chance: 8 repeats of prefill and decode step, which scatter log-normally by 4 %. With bursts one
repeat in ten takes 1.5 times as long in both metrics, as beside another program. With drift each
record is of another day, on which the machine is faster or slower as a whole, log-normally by so
many per cent. The same gate is also played with a new record that is slower by a fifth.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from ocr_phases.analyse.history import LEAST_RECORDS, predicted_ratio
from ocr_phases.analyse.noise import SPREAD_NOISY
from ocr_phases.analyse.statistics import LogMean, holm, log_ratio, spread

GATES = 2_000
REPEATS = 8
METRICS = 2
SCATTER = 0.04
BURST = 1.5
LIMIT = 1.05
SLOWER = 1.2

#: Times of one record, float64 [metrics, repeats].
Times = np.ndarray


def draw(records: int, bursts: float, drift: float, rng: np.random.Generator) -> np.ndarray:
    """Times of equal records of different days, float64 [records, metrics, repeats]."""
    times = np.exp(rng.normal(0.0, SCATTER, (records, METRICS, REPEATS)))
    times = np.where(rng.random((records, 1, REPEATS)) < bursts, BURST * times, times)
    return times * np.exp(rng.normal(0.0, drift, (records, 1, 1)))


def is_noisy(record: Times) -> bool:
    """Whether a record proves nothing, as `ocr_phases.analyse.noise` says of one."""
    return any(spread(repeats) > SPREAD_NOISY for repeats in record)


def tests_of(earlier: np.ndarray, new: Times) -> Mapping[int, LogMean]:
    """The test of each metric, as `ocr_phases.analyse.history.against_history` makes it."""
    quiet = [record for record in earlier if not is_noisy(record)]
    if len(quiet) >= LEAST_RECORDS:
        return {
            metric: predicted_ratio([record[metric] for record in quiet], new[metric])
            for metric in range(METRICS)
        }
    return {metric: log_ratio(earlier[0][metric], new[metric]) for metric in range(METRICS)}


def is_worse(earlier: np.ndarray, new: Times) -> bool:
    """Whether the gate fails: exit code 1. A noisy record is undecided and does not."""
    quiet = [record for record in earlier if not is_noisy(record)]
    pair_is_noisy = len(quiet) < LEAST_RECORDS and is_noisy(earlier[0])
    if is_noisy(new) or pair_is_noisy:
        return False
    tests = tests_of(earlier, new)
    ends = [tests[metric].interval(alpha) for metric, alpha in holm(tests).items()]
    return any(low > LIMIT for low, _ in ends)


def alarms(
    records: int, bursts: float, drift: float, *, gates: int = GATES, seed: int = 0
) -> tuple[float, float]:
    """The share of gates that fail for equal records, and for a record slower by a fifth."""
    rng = np.random.default_rng(seed)
    false = 0
    right = 0
    for _ in range(gates):
        *earlier, new = draw(records + 1, bursts, drift, rng)
        false += is_worse(np.array(earlier), new)
        right += is_worse(np.array(earlier), SLOWER * new)
    return false / gates, right / gates


def table(gates: int = GATES) -> pd.DataFrame:
    """A row for each number of earlier records, with and without bursts and drift."""
    rows = []
    for drift in (0.0, 0.02, 0.05):
        for bursts in (0.0, 0.1):
            for records in (1, 3, 5, 8):
                false, right = alarms(records, bursts, drift, gates=gates)
                rows.append((drift, bursts, records, false, right))
    columns = ["drift", "bursts", "earlier records", "false alarms", "a fifth slower is found"]
    return pd.DataFrame(rows, columns=columns)


if __name__ == "__main__":
    print(table().to_string(index=False, float_format="{:.3f}".format))
