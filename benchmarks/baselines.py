"""How often a gate for CI raises a false alarm, and how often it decides nothing:
``python -m benchmarks.baselines``, a table on the terminal.

``compare --baseline DIR NEW.json --fail-above 5`` is played with records that are equal but for
chance: 8 repeats of prefill and decode step, which scatter log-normally by 4 %. With bursts one
repeat in ten takes 1.5 times as long in both metrics, as beside another program. With drift each
record is of another day, on which the machine is faster or slower as a whole, log-normally by so
many per cent. The same gate is also played with a new record that is slower by a fifth, and with
a limit of 10 %.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

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
LIMITS = (1.05, 1.1)
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


@dataclass(frozen=True)
class Shares:
    """What the gate says of new records, as shares of one.

    Attributes
    ----------
    false_alarms
        The equal records that it calls slower: exit code 1.
    undecided
        The equal records of which it decides nothing: exit code 3. All others pass.
    found
        The records slower by a fifth that it calls slower.
    """

    false_alarms: float
    undecided: float
    found: float


def exit_code(earlier: np.ndarray, new: Times, limit: float) -> int:
    """The exit code of the gate: 0, 1 for a record that is slower, 3 where that is undecided."""
    quiet = [record for record in earlier if not is_noisy(record)]
    pair_is_noisy = len(quiet) < LEAST_RECORDS and is_noisy(earlier[0])
    if is_noisy(new) or pair_is_noisy:
        return 3
    tests = tests_of(earlier, new)
    ends = [tests[metric].interval(alpha) for metric, alpha in holm(tests).items()]
    if any(low > limit for low, _ in ends):
        return 1
    if all(high <= limit for _, high in ends):
        return 0
    return 3


def play(
    records: int,
    bursts: float,
    drift: float,
    *,
    limit: float = LIMITS[0],
    gates: int = GATES,
    seed: int = 0,
) -> Shares:
    """Play the gate with equal records, and with a new record that is slower by a fifth."""
    rng = np.random.default_rng(seed)
    of_equal = []
    of_slower = []
    for _ in range(gates):
        *earlier, new = draw(records + 1, bursts, drift, rng)
        of_equal.append(exit_code(np.array(earlier), new, limit))
        of_slower.append(exit_code(np.array(earlier), SLOWER * new, limit))
    return Shares(
        false_alarms=of_equal.count(1) / gates,
        undecided=of_equal.count(3) / gates,
        found=of_slower.count(1) / gates,
    )


def table(gates: int = GATES) -> pd.DataFrame:
    """A row for each limit and number of earlier records, with and without bursts and drift."""
    rows = []
    for drift in (0.0, 0.02, 0.05):
        for bursts in (0.0, 0.1):
            for records in (1, 3, 5, 8):
                for limit in LIMITS:
                    of_gate = play(records, bursts, drift, limit=limit, gates=gates)
                    shares = (of_gate.false_alarms, of_gate.undecided, of_gate.found)
                    rows.append((drift, bursts, records, limit, *shares))
    names = ["false alarms", "equal is undecided", "a fifth slower is found"]
    return pd.DataFrame(rows, columns=["drift", "bursts", "earlier records", "limit", *names])


if __name__ == "__main__":
    print(table().to_string(index=False, float_format="{:.3f}".format))
