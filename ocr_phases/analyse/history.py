"""A record against several earlier ones of the same measurement, so that the days count too.

Two records alone tell how much the repeats of each scatter, and not how much the machine changes
from one day to another. Of several earlier records that is known: each of them is one value, and a
new record is held against the range in which one more of them would lie (a prediction interval,
Hahn and Meeker 1991, "Statistical Intervals", section 4.7). ``python -m benchmarks.baselines``
shows how often either way calls equal records different.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from ocr_phases.analyse.compared_metrics import NOISY, metrics_of, outcomes
from ocr_phases.analyse.comparison import ComparedRecords
from ocr_phases.analyse.figure_rows import SHARE
from ocr_phases.analyse.noise import is_noisy
from ocr_phases.analyse.statistics import LogMean, holm, log_mean
from ocr_phases.errors import OcrPhasesError
from ocr_phases.record import Record
from ocr_phases.record.parts import to_plain

#: From so many earlier records on their scatter from day to day is known well enough.
LEAST_RECORDS = 3
#: How many earlier records are taken, the newest first.
MOST_RECORDS = 8

#: What a model is, beside its weights.
_OF_MODEL = (
    "family",
    "implementation",
    "dtype",
    "attention",
    "cuda_calls",
    "config",
)
#: What of a request changes no time, or only how many values there are.
_NO_MATTER = ("repeats", "price_per_hour", "embed_page", "verify", "preset_choice", "prompt")


def measured_settings(run: Record) -> dict[str, Any]:
    """What two records must share to be the same measurement, by name.

    Page, preset and cut; the weights and how they run; the request; the device's name. The weights
    are known by their revision, else by the model's name. Versions are not among them, because a
    change of version is what somebody wants to judge.
    """
    model = to_plain(run.model)
    request = to_plain(run.request)
    settings: dict[str, Any] = {
        "page": [[page.row, page.sha256, page.preset, list(page.grid)] for page in run.pages],
        "weights": run.model.revision or run.model.name,
        "card": run.device.name,
    }
    for name in _OF_MODEL:
        settings[name] = model.get(name)
    for name, value in request.items():
        if name not in _NO_MATTER:
            settings[name] = value
    return settings


def differing_settings(ours: Record, theirs: Record) -> list[str]:
    """The names of `measured_settings` that differ; none for the same measurement."""
    first = measured_settings(ours)
    second = measured_settings(theirs)
    return [name for name in {**first, **second} if first.get(name) != second.get(name)]


def predicted_ratio(earlier: Sequence[Sequence[float]], now: Sequence[float]) -> LogMean:
    """The ratio of a new record to earlier ones, with the error of predicting one more of them.

    ``earlier`` has the repeats of each earlier record, ``now`` those of the new one. With means
    m_1..m_K of the logarithms and their standard deviation s, the difference from the mean of the
    m has the standard error s sqrt(1 + 1/K) and K - 1 degrees of freedom.
    """
    means = np.array([log_mean(repeats).mean for repeats in earlier])
    count = len(means)
    deviation = 0.0 if np.ptp(means) == 0.0 else float(means.std(ddof=1))
    error = deviation * (1.0 + 1.0 / count) ** 0.5
    return LogMean(log_mean(now).mean - float(means.mean()), error, count - 1)


def against_history(
    earlier: Sequence[Record], run: Record, percent: float, metrics: Sequence[str] = ()
) -> pd.DataFrame:
    """A record judged by a limit against earlier ones of the same measurement.

    Parameters
    ----------
    earlier : sequence of Record
        The earlier records, the newest first.
    run : Record
        The new record.
    percent : float
        The limit of a change for the worse, in per cent.
    metrics : sequence of str
        What is judged, as `ComparedRecords.against_limit` takes it.

    Returns
    -------
    DataFrame
        The rows of `ComparedRecords.against_limit` of the newest earlier record and this one. From
        `LEAST_RECORDS` earlier records on, ratio and interval are those of `predicted_ratio` over
        all of them that are not noisy, together at 95 % by Holm, and ``baseline`` is their
        geometric mean. Measures of the text are against the newest one.

    Raises
    ------
    OcrPhasesError
        As `ComparedRecords.against_limit` does.
    """
    if not earlier:
        raise OcrPhasesError("There is no earlier record to compare with: give at least one.")
    table = ComparedRecords([earlier[0], run]).against_limit(percent, metrics)
    quiet = [record for record in earlier if not is_noisy(record)]
    if len(quiet) < LEAST_RECORDS:
        return table
    ours = metrics_of(run, metrics)["repeats"]
    theirs = [metrics_of(record, metrics)["repeats"] for record in quiet]
    tests = {}
    for name in table.loc[table["unit"] != SHARE, "metric"]:
        repeats = [record[name] for record in theirs if name in record]
        if len(repeats) >= LEAST_RECORDS:
            tests[name] = predicted_ratio(repeats, ours[name])
    alphas = holm(tests)
    table = table.set_index("metric", drop=False)
    for name, test in tests.items():
        low, high = test.interval(alphas[name])
        table.loc[name, ["ratio", "ratio_low", "ratio_high"]] = [np.exp(test.mean), low, high]
        table.loc[name, "baseline"] = np.exp(log_mean(ours[name]).mean - test.mean)
        # Noise of the newest earlier record is no matter here: the others say what is usual.
        if table.loc[name, "verdict"] == NOISY and not is_noisy(run):
            table.loc[name, "verdict"] = ""
    table["difference"] = table["other"] - table["baseline"]
    table = table.reset_index(drop=True)
    return table.assign(outcome=outcomes(table, percent))
