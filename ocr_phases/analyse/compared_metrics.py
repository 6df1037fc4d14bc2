"""What is compared of records, and whether it changed: metrics, ratios, intervals and verdicts.

A verdict holds what differs between the repeats of one record, not what the machine did between two
measurements.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from ocr_phases.analyse.figure_rows import EXACT, HIGHER_IS_BETTER, SHARE, Place, figures_in
from ocr_phases.analyse.figures import figure_repeats, summary
from ocr_phases.analyse.noise import is_noisy
from ocr_phases.analyse.quality import quality_of
from ocr_phases.analyse.stages import STAGE_KEYS, stage_medians, stage_repeats, stage_table
from ocr_phases.analyse.statistics import ALPHA, holm, log_ratio
from ocr_phases.analyse.sweep_table import agreements, own_text
from ocr_phases.record import Record

COMPARE_COLUMNS = (
    "run",
    "metric",
    "verdict",
    "unit",
    "baseline",
    "other",
    "difference",
    "ratio",
    "ratio_low",
    "ratio_high",
    "detectable",
    *STAGE_KEYS,
)
#: Per cent: two records are equivalent where the whole interval of their ratio lies within this of
#: 1.
MARGIN = 2.0
EQUIVALENT = "equivalent"
EXACTLY_EQUAL = "equal"
INCONCLUSIVE = "inconclusive"
NOISY = "noisy"


def metrics_of(run: Record, more: Iterable[str] = ()) -> pd.DataFrame:
    """Every metric of a record by name: figures (``prefill_ms``) first, then stages
    (``prefill/sam/global``).

    Columns ``unit``, ``phase``, ``stage``, ``view``, ``value`` and ``repeats``, what it was in each
    repeat. Figures are `summary`'s. Times are ms on the device clock: a stage's is
    `stage_medians`', and in a repeat its sum, or its median step in decode. A figure that is no
    stage has no ``stage``. ``more`` names figures that are wanted beside those that every record is
    compared by.
    """
    figures = summary(run)
    each = figure_repeats(run)
    wanted = set(more)
    compared = [
        row
        for row in figures_in(Place.COMPARE)
        if row.name in wanted or Place.COMPARE_ANSWER not in row.places
    ]
    rows: list[tuple[Any, ...]] = []
    for row in compared:
        value = figures[row.name]
        if row.name in each and value is not None and each[row.name].notna().all():
            rows.append((row.name, row.unit, row.phase, "", "", value, each[row.name].tolist()))
    for phase, peaks in (run.memory.peak_bytes or {}).items():
        rows.append((f"{phase}_peak_bytes", "bytes", phase, "", "", max(peaks), peaks))
    for row in compared:
        value = figures[row.name]
        if row.name not in each and value:
            rows.append((row.name, row.unit, row.phase, "", "", value, [value]))
    medians = stage_medians(run)
    decode = run.spans[run.spans["phase"] == "decode"].groupby([*STAGE_KEYS, "repeat"])["device_ms"]
    repeats = decode.median().unstack("repeat").combine_first(stage_repeats(run))
    for key in stage_table(run)[list(STAGE_KEYS)].itertuples(index=False, name=None):
        phase, stage, _ = key
        if stage in (phase, "decode_step", "first_token"):  # these are figures
            continue
        name = "/".join(part for part in key if part)
        rows.append((name, "ms", *key, medians[key], repeats.loc[key].tolist()))
    return pd.DataFrame(
        rows, columns=["metric", "unit", *STAGE_KEYS, "value", "repeats"]
    ).set_index("metric")


@dataclass(frozen=True)
class TextChange:
    """A measure of the text of one row in two records."""

    metric: str
    baseline: float
    other: float


def text_changes(baseline: Record, other: Record) -> pd.DataFrame:
    """Measures of the text over all rows: columns ``metric``, ``baseline``, ``other`` and
    ``verdict``.

    Those of `ocr_phases.analyse.quality` where both records have the same truth; and ``agreement``,
    of ``other`` with the text of ``baseline``. Means over the rows that read the same pages.
    Verdicts are equal, better, worse, and for agreement different. Empty where no row has the same
    pages and two texts. Agreement is NaN, and its verdict n/a, where texts differ and the
    libraries that measure it are missing.
    """
    changes: list[TextChange] = []
    for row in range(min(len(baseline.results), len(other.results))):
        changes += _text_changes_of_row(baseline, other, row)
    table = pd.DataFrame(changes, columns=["metric", "baseline", "other"])
    table = table.groupby("metric", sort=False, as_index=False).mean()
    unknown = {change.metric for change in changes if math.isnan(change.other)}
    table["other"] = table["other"].mask(table["metric"].isin(unknown))
    verdicts = [
        _text_verdict(TextChange(*change)) for change in table.itertuples(index=False, name=None)
    ]
    return table.assign(verdict=pd.Series(verdicts, dtype=object))


def _text_changes_of_row(baseline: Record, other: Record, row: int) -> list[TextChange]:
    """`text_changes` of one row; none where it read other pages or a text is missing."""
    ours = own_text(baseline, row)
    theirs = own_text(other, row)
    if ours is None or theirs is None or page_hashes(baseline, row) != page_hashes(other, row):
        return []
    changes = []
    if ours:
        agreement = agreements({"": ours, "other": theirs}, "")["other"]
        changes.append(TextChange("agreement", 1.0, agreement))
    if not _have_one_truth(baseline, other, row):
        return changes
    before = quality_of(baseline, row)
    after = quality_of(other, row)
    for name in before:
        if name in after and name not in ("agreement", "repetition"):
            changes.append(TextChange(name, before[name], after[name]))
    return changes


def _have_one_truth(baseline: Record, other: Record, row: int) -> bool:
    """Whether both records have the same reference text for a row, or both have none."""
    truths = [truth and truth.says() for truth in (baseline.truth_of(row), other.truth_of(row))]
    return truths[0] == truths[1]


def _text_verdict(change: TextChange) -> str:
    if change.other == change.baseline:
        return EXACTLY_EQUAL
    if math.isnan(change.other):
        return "n/a"
    if change.metric == "agreement":
        return "different"
    rose = change.other > change.baseline
    return "better" if rose == (change.metric in HIGHER_IS_BETTER) else "worse"


def page_hashes(run: Record, row: int | None = None) -> list[str]:
    """The hashes of a row's pages, or of all pages."""
    return [page.sha256 for page in run.pages if row is None or page.row == row]


def compare_two(
    baseline: Record, other: Record, judged: Collection[str], wanted: Iterable[str], margin: float
) -> pd.DataFrame:
    """One record against the baseline, a row a metric, columns `COMPARE_COLUMNS` without ``run``.

    ``judged`` are the metrics that get a verdict, ``wanted`` those that are shown although they are
    not compared by default, ``margin`` is in per cent. Measures of the text come last.
    """
    ours = metrics_of(baseline, wanted)
    theirs = metrics_of(other, wanted)
    both = ours.index.intersection(theirs.index)
    tests = {name: log_ratio(ours["repeats"][name], theirs["repeats"][name]) for name in both}
    alphas = holm({name: tests[name] for name in both if name in judged})
    # What does not vary has no interval, and the ratio of its two values.
    varying = {name: test for name, test in tests.items() if name not in EXACT}
    means = pd.Series({name: np.exp(test.mean) for name, test in varying.items()})
    ends = {name: test.interval(alphas.get(name, ALPHA)) for name, test in varying.items()}
    ends.update(dict.fromkeys(EXACT.intersection(both), (np.inf, -np.inf)))

    table = pd.concat([ours, theirs.drop(index=both)])
    table = table.assign(baseline=ours["value"], other=theirs["value"])
    table = table.join(pd.DataFrame(ends, index=["low", "high"], dtype="float64").T)
    table["difference"] = table["other"] - table["baseline"]
    # Of the statistic that the interval is of, so that it lies inside.
    figures = (table["other"] / table["baseline"]).where(table["baseline"] != 0)
    table["ratio"] = means.reindex(table.index).fillna(figures)
    # Rounding apart, these are the ends as they are, and the ratio itself for what does not vary.
    table["ratio_low"] = np.minimum(table["low"], table["ratio"])
    table["ratio_high"] = np.maximum(table["high"], table["ratio"])
    reach_down = table["ratio"] / table["ratio_low"]
    reach_up = table["ratio_high"] / table["ratio"]
    table["detectable"] = np.maximum(reach_down, reach_up) - 1.0
    noisy = is_noisy(baseline) or is_noisy(other)
    table = table.reset_index()
    table["verdict"] = [
        _verdict(row, judged=row["metric"] in judged, noisy=noisy, margin=margin)
        for row in table.to_dict("records")
    ]

    texts = text_changes(baseline, other)
    texts = texts.assign(unit=SHARE, difference=texts["other"] - texts["baseline"])
    rows = [*table.to_dict("records"), *texts.to_dict("records")]
    return pd.DataFrame(rows, columns=[name for name in COMPARE_COLUMNS if name != "run"])


def _verdict(row: dict[Any, Any], *, judged: bool, noisy: bool, margin: float) -> str:
    """What the interval of one metric's ratio says; empty for a metric that is not judged."""
    low = row["ratio_low"]
    high = row["ratio_high"]
    is_known = not math.isnan(row["difference"])
    is_exact = row["metric"] in EXACT
    is_amount = is_exact or row["unit"] == "bytes"  # there is more or less of it, and no noise
    if not judged and not (is_exact and is_known):
        return ""
    if is_exact and row["ratio"] == 1.0:
        return EXACTLY_EQUAL
    if noisy and is_known and not is_amount:
        return NOISY
    if math.isnan(low):
        return "n/a"
    widest = 1.0 + margin / 100.0
    if low >= 1.0 / widest and high <= widest and not is_exact:
        return EQUIVALENT
    if low <= 1.0 <= high:
        return INCONCLUSIVE
    rose = low > 1.0
    if is_amount:
        return "more" if rose else "less"
    got_better = rose == (row["metric"] in HIGHER_IS_BETTER)
    return "faster" if got_better else "slower"


def outcomes(rows: pd.DataFrame, percent: float) -> list[str]:
    """Of each row of a comparison whether it is ``worse`` by more than ``percent``, ``within``
    that, or ``undecided``.
    """
    # Both ends of the change for the worse, a share of one: of the ratio, of a text's measure in
    # points.
    falls = rows["metric"].isin(HIGHER_IS_BETTER)
    is_share = rows["unit"] == SHARE
    points = rows["difference"].where(~falls, -rows["difference"])
    low = rows["ratio_low"].where(~falls, 1.0 / rows["ratio_high"]) - 1.0
    high = rows["ratio_high"].where(~falls, 1.0 / rows["ratio_low"]) - 1.0
    lows = 100.0 * low.mask(is_share, points)
    highs = 100.0 * high.mask(is_share, points)
    return [
        _outcome(verdict, least, most, percent)
        for verdict, least, most in zip(rows["verdict"], lows, highs, strict=True)
    ]


def _outcome(verdict: str, least: float, most: float, percent: float) -> str:
    """The outcome of a change for the worse that lies between ``least`` and ``most`` per cent."""
    if verdict == NOISY:
        return "undecided"
    if least > percent:
        return "worse"
    if most <= percent:
        return "within"
    return "undecided"
