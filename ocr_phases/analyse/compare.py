"""Two or more records compared: changes, their intervals and verdicts.

Every comparison is against the first record, the base. Intervals come from `ocr_phases.analyse.bootstrap`:
they hold what differs between the repeats of one record, not what the machine did between two measurements.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from ocr_phases.analyse.bootstrap import LEAST_REPEATS, difference_and_ratio
from ocr_phases.analyse.compare_text import EQUIVALENT, SHARE, text_changes, text_sentence
from ocr_phases.analyse.environments import environment_table, run_labels
from ocr_phases.analyse.noise import ceilings_apart
from ocr_phases.analyse.quality import MEASURES, QUALITY_HIGHER
from ocr_phases.analyse.sentences import noise_warning
from ocr_phases.analyse.stages import repeat_table
from ocr_phases.analyse.steps import first_other_token
from ocr_phases.analyse.strategy_text import ways_sentence
from ocr_phases.analyse.sweep import sweep_table
from ocr_phases.errors import OcrPhasesError
from ocr_phases.families import VISION_STAGES
from ocr_phases.record import PHASES, PhaseRun
from ocr_phases.text import count_text, nearest, percent_text, stage_name

COMPARE_COLUMNS = (
    "run",
    "metric",
    "phase",
    "stage",
    "view",
    "unit",
    "base",
    "other",
    "difference",
    "difference_low",
    "difference_high",
    "ratio",
    "ratio_low",
    "ratio_high",
    "detectable",
    "verdict",
)
#: Per cent: two records are equivalent where the whole interval of their ratio lies within this of 1.
MARGIN = 2.0
INCONCLUSIVE = "inconclusive"
#: What a comparison is judged by where nothing else is named, as far as both records have it.
JUDGED = ("prefill_ms", "inter_token_ms", "generate_ms")

_HIGHER_IS_BETTER = ("tokens_per_s", *QUALITY_HIGHER)
_FAR = 2.0  # a ratio from here on is told as such, not in percent
_STEP_QUANTILES = {"inter_token_ms": 0.5, "inter_token_ms_p90": 0.9, "inter_token_ms_p99": 0.99}


@dataclass(frozen=True)
class Metric:
    """A figure with what it was in each repeat.

    ``samples`` are float64 [repeats, values a repeat], ``quantile`` is what of them is the figure. A stage's
    whole phase has an empty ``view``; a figure that is no stage has no ``stage`` either. ``exact`` is a
    figure that follows from the tokens, not from a clock.
    """

    name: str
    unit: str
    samples: np.ndarray = field(repr=False)
    quantile: float = 0.5
    phase: str = ""
    stage: str = ""
    view: str = ""
    exact: bool = False


def metrics_of(run: PhaseRun) -> dict[str, Metric]:
    """Every metric of a record by name: figures (``prefill_ms``) first, then stages (``prefill/sam/global``).

    Times are ms on the device clock. A figure is the one of `PhaseRun.summary`, but for ``ttft_ms``: that is
    prepare plus prefill of each repeat.
    """
    return {metric.name: metric for metric in [*_headline(run), *_stages(run)]}


def compare_runs(
    runs: Sequence[PhaseRun], labels: Sequence[str] | None = None, *, margin: float = MARGIN
) -> pd.DataFrame:
    """Each record against the first, columns `COMPARE_COLUMNS`, one row a record and metric.

    ``base`` and ``other`` are the figures, ``difference`` other minus base in ``unit``, ``ratio`` other over
    base, each with its 95 % interval (`ocr_phases.analyse.bootstrap` says what fewer than `LEAST_REPEATS`
    repeats do to it). ``detectable`` is the smallest change that so wide an interval would have told from
    none, a share of one. ``verdict`` is `EQUIVALENT` where the whole interval of the ratio lies within
    ``margin`` per cent of 1, else faster or slower (less or more, for bytes) where it leaves 1 out, else
    `INCONCLUSIVE`; n/a where one of the two lacks the metric or has a single repeat. Measures of the text
    (`text_changes`) come last, with the unit ``share`` and neither ratio nor interval.

    Raises `OcrPhasesError` for fewer than two records or a margin that is no percentage.
    """
    if not 0.0 <= margin < 100.0:
        raise OcrPhasesError(f"{margin:g} is no margin: give per cent from 0 to below 100, like 2.")
    names = run_labels(runs) if labels is None else list(labels)
    if len(runs) < 2:
        raise OcrPhasesError("A comparison needs at least two records: name another one.")
    base = metrics_of(runs[0])
    rows = []
    for run, label in zip(runs[1:], names[1:], strict=True):
        other = metrics_of(run)
        order = [*base, *(name for name in other if name not in base)]
        rows += [(label, *_compared(base.get(name), other.get(name), margin)) for name in order]
        rows += [(label, *row) for row in _text_rows(text_changes(runs[0], run))]
    return pd.DataFrame(rows, columns=list(COMPARE_COLUMNS))


def _text_rows(changes: pd.DataFrame) -> Iterator[tuple[Any, ...]]:
    """Measures of the text as rows behind their record's label."""
    for name, base, other, verdict in changes.itertuples(index=False, name=None):
        yield (name, "", "", "", SHARE, base, other, *[other - base] * 3, *[np.nan] * 4, verdict)


def headline_metrics(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of `compare_runs` that are figures of the whole run, which both records have."""
    known = table["ratio"].notna() | (table["unit"] == SHARE)
    return table[(table["stage"] == "") & known].reset_index(drop=True)


def in_units(table: pd.DataFrame) -> pd.DataFrame:
    """`compare_runs` for reading: bytes as MB, shares as %, without what follows from the other columns."""
    columns = ["run", "metric", "unit", "base", "other", "ratio", "ratio_low", "ratio_high"]
    shown = table[[*columns, "detectable", "verdict"]].copy()
    size = shown["unit"] == "bytes"
    shown.loc[size, ["base", "other"]] /= 1e6
    shown.loc[shown["unit"] == SHARE, ["base", "other"]] *= 100.0
    shown["unit"] = shown["unit"].replace({"bytes": "MB", SHARE: "%"})
    return shown if shown["run"].nunique() > 1 else shown.drop(columns="run")


def against_limit(table: pd.DataFrame, percent: float, metrics: Sequence[str] = ()) -> pd.DataFrame:
    """The judged rows of `compare_runs` with one more column, ``outcome``.

    It is ``worse`` where the whole interval lies beyond ``percent`` worse than the base, ``within`` where all
    of it lies on this side, else ``undecided``. A measure of the text has no interval: ``percent`` are then
    points, since a ratio to an error of zero says nothing. ``metrics`` names what is judged, by default those
    of `JUDGED` that both records have.

    Raises `OcrPhasesError` where a name is unknown, a record lacks a named
    one, or a single repeat leaves nothing to judge by.
    """
    known = dict.fromkeys([*table["metric"], *MEASURES])
    unknown = [name for name in metrics if name not in known]
    if unknown:
        hint = nearest(unknown[0], known)
        raise OcrPhasesError(f"There is no metric {', '.join(unknown)}: use {', '.join(known)}.{hint}")
    judged = table[table["metric"].isin(metrics or JUDGED)]
    for name in metrics:
        lacks = set(table["run"]) - set(judged.loc[judged["metric"] == name, "run"])
        if lacks:
            raise OcrPhasesError(
                f"{name} is not in both records ({', '.join(sorted(lacks))}): give both the same truth, or "
                "name another metric."
            )
    if not metrics:  # what the records do not share is not for them to be judged by
        judged = judged[judged["ratio"].notna()]
    if judged.empty:
        raise OcrPhasesError(f"The records share none of {', '.join(JUDGED)}: name a metric (--metric).")
    text = judged["unit"] == SHARE
    lacking = judged[judged["ratio"].isna() & ~text]
    if len(lacking):
        raise OcrPhasesError(f"{lacking['metric'].iloc[0]} is not in both records: name another metric.")
    if (judged["ratio_low"].isna() & ~text).any():
        raise OcrPhasesError(
            "A record of a single repeat says nothing about the spread: measure with "
            f"{LEAST_REPEATS} repeats or more."
        )
    limit = 1.0 + percent / 100.0
    rises = ~judged["metric"].isin(_HIGHER_IS_BETTER)
    least = judged["ratio_low"].where(rises, 1.0 / judged["ratio_high"].replace(0.0, np.nan))
    most = judged["ratio_high"].where(rises, 1.0 / judged["ratio_low"].replace(0.0, np.nan))
    lost = judged["difference"].where(rises, -judged["difference"]) * 100.0
    worse = (least > limit).where(~text, lost > percent)
    within = (most <= limit).where(~text, lost <= percent)
    outcome = np.select([worse, within], ["worse", "within"], "undecided")
    return judged.assign(outcome=outcome).reset_index(drop=True)


def few_repeats(runs: Sequence[PhaseRun], labels: Sequence[str]) -> str:
    """A note on intervals over few repeats; empty if all records have `LEAST_REPEATS`."""
    counts = {label: len(run.repeats) for run, label in zip(runs, labels, strict=True)}
    few = {label: count for label, count in counts.items() if count < LEAST_REPEATS}
    if not few:
        return ""
    repeats_text = " and ".join(f"{label} has {count_text(count, 'repeat')}" for label, count in few.items())
    rests = (
        "which leaves no interval, so nothing is called faster, slower or equivalent"
        if min(few.values()) == 1
        else "so the intervals rest on the assumption that repeats scatter log-normally (Welch's t), and are "
        "wide: small changes stay inconclusive"
    )
    return f"{repeats_text}, {rests}. Set Repeats (--repeats) to {LEAST_REPEATS} or more."


def same_tokens(then: PhaseRun, now: PhaseRun) -> bool:
    """Whether every row generated the same tokens."""
    return [row["ids"] for row in then.results] == [row["ids"] for row in now.results]


class Compared:
    """Records against the first of them, with their labels given once.

    ``labels`` are by default `run_labels`; ``margin`` is that of `compare_runs`. Raises `OcrPhasesError` as
    `compare_runs` does, and for labels that are not one a record, all different.
    """

    def __init__(
        self, runs: Sequence[PhaseRun], labels: Sequence[str] | None = None, *, margin: float = MARGIN
    ) -> None:
        self.runs = tuple(runs)
        self.labels = run_labels(runs) if labels is None else list(labels)
        self.margin = margin
        if len(set(self.labels)) < len(self.labels) or len(self.labels) != len(self.runs):
            raise OcrPhasesError(
                f"Give {count_text(len(self.runs), 'label')}, one a record and all different: got "
                f"{', '.join(self.labels) or 'none'}."
            )

    @cached_property
    def table(self) -> pd.DataFrame:
        """`compare_runs`: each record against the first, one row a record and metric."""
        return compare_runs(self.runs, self.labels, margin=self.margin)

    @property
    def headline(self) -> pd.DataFrame:
        """`headline_metrics`: the rows of `table` that are figures of the whole run."""
        return headline_metrics(self.table)

    @cached_property
    def differs(self) -> pd.DataFrame:
        """`environment_table`: what differs in device, versions, model, page and request."""
        return environment_table(self.runs, self.labels)

    @cached_property
    def verdict(self) -> str:
        """The findings for the judged figures and caveats of the comparison, as plain text."""
        runs, labels, table = self.runs, self.labels, self.table
        warnings = [(label, noise_warning(run)) for run, label in zip(runs, labels, strict=True)]
        sentences = [f"{label}: {warning}" for label, warning in warnings if warning]
        for run, label in zip(runs[1:], labels[1:], strict=True):
            rows = table[(table["run"] == label) & table["metric"].isin(JUDGED) & table["ratio"].notna()]
            found = [_said(row) for _, row in rows.iterrows()]
            if found:
                sentences.append(f"{label} against {labels[0]}: {', '.join(found)}.")
            else:
                sentences.append(f"{label} and {labels[0]} have no phase in common.")
            sentences += _caveats(runs[0], run, label)
            sentences += filter(None, [text_sentence(text_changes(runs[0], run))])
        ways = ways_sentence(sweep_table(_same_subject(runs, labels)), "strategy")
        return " ".join(filter(None, [*sentences, ways, few_repeats(runs, labels)]))

    @property
    def text_diff(self) -> str:
        """Each text against the base's, row by row, as a unified diff; empty where all are the same."""
        base, pieces = self.runs[0], list[str]()
        for run, label in zip(self.runs[1:], self.labels[1:], strict=True):
            for row, (before, after) in enumerate(zip(base.results, run.results, strict=False)):
                of_row = f", row {row}" if len(base.results) > 1 else ""
                then, now = ((result["text"] or "").splitlines() for result in (before, after))
                pieces += difflib.unified_diff(
                    then, now, f"{self.labels[0]}{of_row}", f"{label}{of_row}", lineterm=""
                )
        return "\n".join(pieces)


def _same_subject(runs: Sequence[PhaseRun], labels: Sequence[str]) -> dict[str, PhaseRun]:
    """The records of the base's page, prompt, model and device, by label."""

    def subject(run: PhaseRun) -> tuple[Any, ...]:
        model = [run.model.get(name) for name in ("name", "revision", "implementation", "dtype")]
        return run.page["sha256"], run.request["prompt"], run.device.get("name"), *model

    return {label: run for label, run in zip(labels, runs, strict=True) if subject(run) == subject(runs[0])}


def _headline(run: PhaseRun) -> Iterator[Metric]:
    repeats = repeat_table(run)
    for phase in PHASES:
        name = f"{phase}_ms"
        if repeats[name].notna().all():
            yield Metric(name, "ms", repeats[[name]].to_numpy(dtype=np.float64), phase=phase)
            if phase == "prefill":
                yield Metric("ttft_ms", "ms", repeats[["ttft_ms"]].to_numpy(dtype=np.float64))
                vision = run.spans[run.spans["stage"].isin(VISION_STAGES)]
                yield Metric("vision_ms", "ms", _sums(run, vision), phase=phase)
    steps = _step_times(run)
    if steps.size:
        for name, quantile in _STEP_QUANTILES.items():
            yield Metric(name, "ms", steps, quantile, phase="decode")
        rate = repeats[["tokens_per_s"]].to_numpy(dtype=np.float64)
        yield Metric("tokens_per_s", "tokens/s", rate, phase="decode")
    for phase, peaks in run.memory.get("peak_bytes", {}).items():
        samples = np.asarray(peaks, dtype=np.float64)[:, None]
        yield Metric(f"{phase}_peak_bytes", "bytes", samples, 1.0, phase=phase)
    sizes = run.cache.get("bytes")
    if sizes:
        # The same in every repeat: the tokens are.
        yield Metric("kv_cache_bytes", "bytes", np.full((len(run.repeats), 1), float(max(sizes))), exact=True)


def _stages(run: PhaseRun) -> Iterator[Metric]:
    groups = run.spans.groupby(["phase", "stage", "view"], sort=False)
    order = sorted(groups, key=lambda item: (PHASES.index(item[0][0]), item[1]["host_start_ms"].min()))
    for key, spans in order:
        phase, stage, view = map(str, key)
        if stage != phase:
            name = "/".join(filter(None, (phase, stage, view)))
            yield Metric(name, "ms", _sums(run, spans), phase=phase, stage=stage, view=view)


def _sums(run: PhaseRun, spans: pd.DataFrame) -> np.ndarray:
    """The time of some spans in each repeat, ms, float64 [repeats, 1]."""
    sums = spans.groupby("repeat")["device_ms"].sum().reindex(run.repeats, fill_value=0.0)
    return sums.to_numpy(dtype=np.float64)[:, None]


def _step_times(run: PhaseRun) -> np.ndarray:
    """Every decode step's ms, float64 [repeats, steps]; NaN behind the end of a shorter repeat."""
    spans = run.spans[run.spans["stage"] == "decode_step"]
    return spans.pivot(index="repeat", columns="step", values="device_ms").to_numpy(dtype=np.float64)


def _compared(base: Metric | None, other: Metric | None, margin: float) -> tuple[Any, ...]:
    """The cells of a row behind its record's label."""
    metric = base or other
    assert metric is not None
    named = (metric.name, metric.phase, metric.stage, metric.view, metric.unit)
    if base is None or other is None:
        values = [side and float(np.nanquantile(side.samples, side.quantile)) for side in (base, other)]
        return (*named, *values, *[np.nan] * 7, "n/a")
    difference, ratio = difference_and_ratio(base.samples, other.samples, metric.quantile)
    return (
        *named,
        float(np.nanquantile(base.samples, base.quantile)),
        float(np.nanquantile(other.samples, other.quantile)),
        *(difference.value, difference.low, difference.high),
        *(ratio.value, ratio.low, ratio.high),
        max(ratio.value / ratio.low, ratio.high / ratio.value) - 1.0 if ratio.low else np.nan,
        _verdict(metric, ratio.low, ratio.high, 0.0 if metric.exact else margin / 100.0),
    )


def _verdict(metric: Metric, low: float, high: float, margin: float) -> str:
    if np.isnan(low):
        return "n/a"
    if 1.0 / (1.0 + margin) <= low and high <= 1.0 + margin:
        return EQUIVALENT
    if low <= 1.0 <= high:
        return INCONCLUSIVE
    if metric.unit == "bytes":
        return "more" if low > 1.0 else "less"
    return "slower" if (low > 1.0) != (metric.name in _HIGHER_IS_BETTER) else "faster"


def _said(row: pd.Series) -> str:
    name = "a decode step" if row["metric"] == "inter_token_ms" else stage_name(row["phase"])
    if np.isnan(row["ratio_low"]):
        return f"{name} takes {_times(row['ratio'])}, by a single repeat"
    span = _times(row["ratio"], row["ratio_low"], row["ratio_high"])
    if row["verdict"] == EQUIVALENT:
        return f"{name} is equivalent ({span})"
    if row["verdict"] == INCONCLUSIVE:
        shown = percent_text(row["detectable"])
        return f"{name} is inconclusive ({span}; changes below {shown} cannot be resolved)"
    if not 1.0 / _FAR < row["ratio"] < _FAR:
        return f"{name} is {row['verdict']} ({span})"
    return f"{name} is {percent_text(abs(row['ratio'] - 1.0))} {row['verdict']} ({span})"


def _times(ratio: float, *ends: float) -> str:
    """``1.77 times as long, 1.76 to 1.83``; from a half down the other way round: ``33.3 times as fast``."""
    word = "long"
    if 0 < ratio <= 0.5 and all(end > 0 for end in ends):
        word, ratio, ends = "fast", 1.0 / ratio, tuple(1.0 / end for end in reversed(ends))
    first, *span = [
        f"{value:,.{2 if value < 9.995 else 1 if value < 99.95 else 0}f}" for value in (ratio, *ends)
    ]
    return f"{first} times as {word}" + (f", {' to '.join(span)}" if span else "")


def _caveats(base: PhaseRun, other: PhaseRun, label: str) -> list[str]:
    caveats = list(filter(None, [ceilings_apart(base, other)]))
    if base.page["sha256"] != other.page["sha256"]:
        caveats.append(f"{label} read another page.")
    if base.request["prefill_len"] != other.request["prefill_len"]:
        caveats.append(
            f"Its prompt has {other.request['prefill_len']:,} tokens, not {base.request['prefill_len']:,}."
        )
    if len(base.results) != len(other.results):
        caveats.append(f"It has {len(other.results)} rows side by side, not {len(base.results)}.")
    if not same_tokens(base, other):
        counts = [other.token_count, base.token_count]
        if counts[0] == counts[1]:
            caveats.append(f"The tokens differ; both have {counts[0]:,}.")
        else:
            caveats.append(
                f"It has {counts[0]:,} tokens, not {counts[1]:,}: compare decode steps, not whole decodes."
            )
        if differ := first_other_token(base, other):
            caveats.append(f"The first different token is {differ}.")
    if base.device.get("name") != other.device.get("name"):
        caveats.append("The devices differ.")
    if base.model["name"] != other.model["name"]:
        caveats.append(f"The model is {other.model['name']}, not {base.model['name']}.")
    elif base.model.get("revision") != other.model.get("revision"):
        caveats.append("The model's weights have another revision.")
    if base.model["dtype"] != other.model["dtype"]:
        caveats.append(f"It computes in {other.model['dtype']}, not {base.model['dtype']}.")
    return caveats
