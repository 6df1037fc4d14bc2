"""Two or more records side by side: what changed against the first, the baseline, and whether that is sure.

A verdict holds what differs between the repeats of one record, not what the machine did between two
measurements.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ocr_phases.analyse.noise import ceilings_apart, is_noisy
from ocr_phases.analyse.quality import MEASURES, QUALITY_HIGHER, quality_of, quality_table, reference_of
from ocr_phases.analyse.scaling import sweep_table, ways_sentence
from ocr_phases.analyse.sentences import noise_warning
from ocr_phases.analyse.stages import STAGE_KEYS, repeat_table, stage_repeats, stage_table, step_ms
from ocr_phases.analyse.statistics import ALPHA, LEAST_REPEATS, LogMean, holm, log_ratio
from ocr_phases.analyse.text import plain_text
from ocr_phases.errors import OcrPhasesError, check_known, checked, hinted
from ocr_phases.families import VISION_STAGES
from ocr_phases.record import PhaseRun, elsewhere
from ocr_phases.text import count_text, first_difference, percent_text, stage_name

COMPARE_COLUMNS = (
    *("run", "metric", "verdict", "unit", "baseline", "other", "difference"),
    *("ratio", "ratio_low", "ratio_high", "detectable", "phase", "stage", "view"),
)
MARGIN = 2.0
"""Per cent: two records are equivalent where the whole interval of their ratio lies within this of 1."""
JUDGED = ("prefill_ms", "inter_token_ms", "generate_ms")
"""What a comparison is judged by where nothing else is named, as far as both records have it."""
EQUIVALENT, EQUAL, INCONCLUSIVE, NOISY = "equivalent", "equal", "inconclusive", "noisy"
SHARE = "share"
"""The unit of measures of the text: a share of one."""

_HIGHER_IS_BETTER = ("tokens_per_s", *QUALITY_HIGHER)
#: The figures of a whole run that follow a clock, with their phases.
_FIGURES = {
    "prepare_ms": "prepare",
    "prefill_ms": "prefill",
    "ttft_ms": "",
    "vision_ms": "prefill",
    "decode_ms": "decode",
    "generate_ms": "generate",
    "inter_token_ms": "decode",
    "inter_token_ms_p90": "decode",
    "inter_token_ms_p99": "decode",
    "tokens_per_s": "decode",
}
_QUANTILES = {"inter_token_ms": 0.5, "inter_token_ms_p90": 0.9, "inter_token_ms_p99": 0.99}
#: What is measured, is told in another part, or follows from the model's name and revision.
_NO_SETTING = (
    *(("device", "ceilings"), ("device", "conditions"), ("model", "config")),
    *(("model", "strategy_setup"), ("model", "vision_setup"), ("request", "preset")),
    *(("request", "preset_choice"), ("request", "strategy"), ("request", "vision")),
)


@dataclass(frozen=True)
class Metric:
    """A figure of a record and what it was in each repeat, float64 [repeats].

    A stage's whole phase has an empty ``view``; a figure that is no stage has no ``stage`` either. ``exact``
    is a figure that follows from the tokens, not from a clock.
    """

    name: str
    unit: str
    value: float
    repeats: np.ndarray = field(repr=False)
    phase: str = ""
    stage: str = ""
    view: str = ""
    exact: bool = False


def metrics_of(run: PhaseRun) -> dict[str, Metric]:
    """Every metric of a record by name: figures (``prefill_ms``) first, then stages (``prefill/sam/global``).

    Figures are `PhaseRun.summary`'s. Times are ms on the device clock: a stage's is the median over repeats
    of its sum, of decode's stages of its median over the steps.
    """
    return {metric.name: metric for metric in [*_figures(run), *_stages(run)]}


def _figures(run: PhaseRun) -> Iterator[Metric]:
    summary, each = run.summary(), repeat_table(run).set_index("repeat")
    each["vision_ms"] = sum(run.repeat_ms(stage, "prefill") for stage in VISION_STAGES)
    for name, quantile in _QUANTILES.items():
        each[name] = step_ms(run, quantile)
    for name, phase in _FIGURES.items():
        if summary[name] is not None and each[name].notna().all():
            unit = "ms" if "_ms" in name else "tokens/s"
            yield Metric(name, unit, summary[name], each[name].to_numpy(dtype=np.float64), phase)
    for phase, peaks in run.memory.get("peak_bytes", {}).items():
        yield Metric(f"{phase}_peak_bytes", "bytes", max(peaks), np.asarray(peaks, dtype=np.float64), phase)
    if size := summary["kv_cache_bytes"]:
        yield Metric("kv_cache_bytes", "bytes", size, np.full(len(run.repeats), float(size)), exact=True)


def _stages(run: PhaseRun) -> Iterator[Metric]:
    decode = run.spans[run.spans["phase"] == "decode"]
    steps = decode.groupby([*STAGE_KEYS, "repeat"])["device_ms"].median().unstack("repeat")
    each = pd.concat([stage_repeats(run).drop(index=steps.index), steps.reindex(columns=run.repeats)])
    for key in stage_table(run)[list(STAGE_KEYS)].itertuples(index=False, name=None):
        phase, stage, view = key
        if stage not in (phase, "decode_step"):
            times = each.loc[key].fillna(0.0).to_numpy(dtype=np.float64)
            name = "/".join(filter(None, key))
            yield Metric(name, "ms", float(np.median(times)), times, phase, stage, view)


def run_labels(runs: Sequence[PhaseRun], paths: Iterable[str | Path] | None = None) -> list[str]:
    """A short, unique name for each record: its file's, else the settings that differ."""
    if paths is not None:
        names = [Path(path).name.removesuffix(".gz").removesuffix(".json") for path in paths]
    else:
        settings = [
            (run.page_name(), run.model["name"], run.page.get("preset"), run.model.get("strategy"))
            for run in runs
        ]
        differs = [len(set(values)) > 1 for values in zip(*settings, strict=True)]
        told = differs if any(differs) else [True] * len(differs)
        names = [", ".join(str(value) for value in compress(values, told)) for values in settings]
    return [name if names.count(name) == 1 else f"{name} ({place + 1})" for place, name in enumerate(names)]


def environment_table(
    runs: Sequence[PhaseRun], labels: Sequence[str] | None = None, *, everything: bool = False
) -> pd.DataFrame:
    """What the records were measured with, columns ``part``, ``name`` and one a record; texts.

    Parts are device, versions, model, page and request. Only what differs, unless ``everything``.
    """
    settings = [dict(_settings(run)) for run in runs]
    keys = dict.fromkeys(key for entries in settings for key in entries)
    rows = [(*key, *(_text(entries.get(key)) for entries in settings)) for key in keys]
    if not everything:
        rows = [row for row in rows if len(set(row[2:])) > 1]
    return pd.DataFrame(rows, columns=["part", "name", *(run_labels(runs) if labels is None else labels)])


def _settings(run: PhaseRun) -> Iterator[tuple[tuple[str, str], Any]]:
    """Everything a time depends on, as ((part, name), value)."""
    names = ("file", "sha256", "width", "height", "preset", "grid", "image_tokens", "text_tokens")
    page = {name: run.page.get(name) for name in names} | {"pages": len(run.pages)}
    parts = {"device": run.device, "versions": run.versions, "model": run.model, "page": page}
    for part, values in {**parts, "request": run.request}.items():
        for name, value in _flat(values):
            if (part, name.partition(".")[0]) not in _NO_SETTING:
                yield (part, name), value


def _flat(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value


def _text(value: Any) -> str:
    if isinstance(value, list | tuple):
        return ", ".join(map(_text, value))
    return "–" if value is None else str(value)


def text_changes(baseline: PhaseRun, other: PhaseRun) -> pd.DataFrame:
    """Measures of the text over all rows: columns ``metric``, ``baseline``, ``other`` and ``verdict``.

    Those of `ocr_phases.analyse.quality` where both records have the same truth; and ``agreement``, of
    ``other`` with the text of ``baseline``. Means over the rows that read the same pages. Verdicts are equal,
    better, worse, and for agreement different. Empty where no row has the same pages and two texts.
    """
    count = min(len(baseline.results), len(other.results))
    pairs = [pair for row in range(count) for pair in _text_pairs(baseline, other, row)]
    means = pd.DataFrame(pairs, columns=["metric", "baseline", "other"]).groupby("metric", sort=False).mean()
    rows = []
    for name, before, after in means.itertuples(name=None):
        better = (after > before) == (name in QUALITY_HIGHER)
        verdict = "different" if name == "agreement" else "better" if better else "worse"
        rows.append((name, before, after, EQUAL if before == after else verdict))
    return pd.DataFrame(rows, columns=["metric", "baseline", "other", "verdict"])


def _text_pairs(baseline: PhaseRun, other: PhaseRun, row: int) -> Iterator[tuple[str, float, float]]:
    texts = [run.results[row]["text"] for run in (baseline, other)]
    if _pages(baseline, row) != _pages(other, row) or None in texts:
        return
    reference = reference_of(baseline, row)
    if plain_text(reference.text):
        found = quality_table(other, reference, row).set_index("measure")["value"]
        yield "agreement", 1.0, float(found["agreement"])
    truths = [truth and truth.says() for truth in (baseline.truth_of(row), other.truth_of(row))]
    if truths[0] == truths[1]:
        before, after = quality_of(baseline, row), quality_of(other, row)
        for name in before.keys() & after.keys() - {"agreement", "repetition"}:
            yield name, before[name], after[name]


def _pages(run: PhaseRun, row: int | None = None) -> list[str]:
    """The hashes of a row's pages, or of all pages."""
    return [page["sha256"] for page in run.pages if row is None or page["row"] == row]


def same_tokens(then: PhaseRun, now: PhaseRun) -> bool:
    """Whether every row generated the same tokens."""
    return [row["ids"] for row in then.results] == [row["ids"] for row in now.results]


def in_units(table: pd.DataFrame, baseline: str = "baseline") -> pd.DataFrame:
    """`Comparison.table` for reading: bytes as MB, shares as %, columns called by their records.

    ``baseline`` is that record's label. What follows from the other columns is left out.
    """
    table = table.drop(columns=["difference", "phase", "stage", "view"])
    for unit, factor, name in (("bytes", 1e-6, "MB"), (SHARE, 100.0, "%")):
        rows = table["unit"] == unit
        table.loc[rows, ["baseline", "other"]] *= factor
        table.loc[rows, "unit"] = name
    labels = {"baseline": baseline}
    if table["run"].nunique() == 1:
        labels["other"] = str(table["run"].iloc[0])
        table = table.drop(columns="run")
    return table.rename(columns={name: label for name, label in labels.items() if label not in table})


@checked()
def compare(
    *runs: PhaseRun | str | Path, labels: Sequence[str] | None = None, margin: float = MARGIN
) -> Comparison:
    """Compare each record, or file of a record, with the first, the baseline.

    ``labels`` name the records, by default `run_labels`; ``margin`` is per cent within which two are
    equivalent. Raises `OcrPhasesError` as `Comparison` does.
    """
    records = [run if isinstance(run, PhaseRun) else PhaseRun.load(run) for run in runs]
    return Comparison(records, labels, margin=margin)


@hinted
class Comparison:
    """Records against the first of them: ``verdict``, ``table``, ``differs``, ``text_diff`` and ``plot``.

    ``judged`` are the metrics that get a verdict. Raises `OcrPhasesError` for fewer than two records, labels
    that are not one a record, all different, and a margin that is no percentage.
    """

    def __init__(
        self,
        runs: Sequence[PhaseRun],
        labels: Sequence[str] | None = None,
        *,
        margin: float = MARGIN,
        judged: Sequence[str] = JUDGED,
    ) -> None:
        self.runs, self.margin, self.judged = tuple(runs), margin, tuple(judged)
        self.labels = run_labels(runs) if labels is None else list(labels)
        if not 0.0 <= margin < 100.0:
            raise OcrPhasesError(f"{margin:g} is no margin: give per cent from 0 to below 100, like 2.")
        if len(self.runs) < 2:
            raise OcrPhasesError("A comparison needs at least two records: name another one.")
        if len(set(self.labels)) < len(self.labels) or len(self.labels) != len(self.runs):
            raise OcrPhasesError(
                f"Give {count_text(len(self.runs), 'label')}, one a record and all different: got "
                f"{', '.join(self.labels) or 'none'}."
            )

    @cached_property
    def table(self) -> pd.DataFrame:
        """Each record against the baseline, columns `COMPARE_COLUMNS`, one row a record and metric.

        ``baseline`` and ``other`` are the figures, ``difference`` other minus baseline in ``unit``, ``ratio``
        other over baseline. ``ratio_low`` and ``ratio_high`` are its 95 % interval by Welch's t on the
        logarithms of each repeat's value; of the judged metrics, together 95 % by Holm. ``detectable`` is the
        smallest change that so wide an interval would have told from none, a share of one.

        ``verdict`` is of the judged metrics: `NOISY` where one of the records is; `EQUIVALENT` where the
        interval lies within ``margin`` per cent of 1, else faster or slower (less or more, for bytes) where
        it leaves 1 out, else `INCONCLUSIVE`; n/a where a record lacks the metric or has a single repeat. What
        follows from the tokens alone is `EQUAL`, less or more. Other metrics have none. Measures of the text
        (`text_changes`) come last, with the unit `SHARE` and neither ratio nor interval.
        """
        rows = [row for run, label in self._others for row in self._rows(run, label)]
        table = pd.DataFrame(rows, columns=list(COMPARE_COLUMNS))
        texts = ["metric", "verdict", "unit", "phase", "stage", "view"]
        return table.fillna(dict.fromkeys(texts, ""))

    @property
    def headline(self) -> pd.DataFrame:
        """The rows of `table` that are figures of the whole run, which both records have."""
        table = self.table
        known = table["ratio"].notna() | (table["unit"] == SHARE)
        return table[(table["stage"] == "") & known].reset_index(drop=True)

    @cached_property
    def differs(self) -> pd.DataFrame:
        """`environment_table`: what differs in device, versions, model, page and request."""
        return environment_table(self.runs, self.labels)

    @cached_property
    def findings(self) -> list[str]:
        """What `verdict` says, piece by piece: the judged figures, and caveats."""
        return [each for each in _verdict_sentences(self) if each]

    @property
    def verdict(self) -> str:
        """The findings for the judged figures and caveats of the comparison, as plain text."""
        return " ".join(self.findings)

    @property
    def title(self) -> str:
        """The labels compared."""
        return f"{' and '.join(self.labels[1:])} against {self.labels[0]}"

    @property
    def text_diff(self) -> str:
        """Each text against the baseline's, row by row, as a unified diff; empty where all are the same."""
        pieces = list[str]()
        for run, label in self._others:
            for row, sides in enumerate(zip(self.runs[0].results, run.results, strict=False)):
                of_row = f", row {row + 1}" if len(run.results) > 1 else ""
                then, now = ((side["text"] or "").splitlines() for side in sides)
                names = f"{self.labels[0]}{of_row}", f"{label}{of_row}"
                pieces += difflib.unified_diff(then, now, *names, lineterm="")
        return "\n".join(pieces)

    @property
    def plot(self) -> Any:
        """The plots of this comparison: `ocr_phases.show.compare.ComparePlots`."""
        return elsewhere("show.compare.ComparePlots")(self)

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return elsewhere("show.compare.comparison_bundle")(self)

    def against_limit(self, percent: float, metrics: Sequence[str] = ()) -> pd.DataFrame:
        """The judged rows of `table` with one more column, ``outcome``.

        It is ``worse`` where the whole interval lies beyond ``percent`` worse than the baseline, ``within``
        where all of it lies on this side, else ``undecided``; of a noisy record's times always undecided. A
        figure without an interval is judged by itself, a measure of the text by points. ``metrics`` names
        what alone is judged, by default those of `JUDGED` that both records have.

        Raises `OcrPhasesError` where a name is unknown, a record lacks a named metric, or a single repeat
        leaves nothing to judge by.
        """
        table = Comparison(self.runs, self.labels, judged=metrics).table if metrics else self.table
        for name in metrics:
            check_known("metric", name, [*table["metric"], *MEASURES])
        rows = table[table["metric"].isin(metrics or JUDGED) & table["difference"].notna()]
        for name in metrics:
            if lacks := set(self.labels[1:]) - set(rows.loc[rows["metric"] == name, "run"]):
                raise OcrPhasesError(
                    f"{name} is not in both records ({', '.join(sorted(lacks))}): give both the same truth, "
                    "or name another metric."
                )
        if rows.empty:
            raise OcrPhasesError(f"The records share none of {', '.join(JUDGED)}: name a metric (--metric).")
        if (rows["verdict"] == "n/a").any():
            raise OcrPhasesError(
                "A record of a single repeat says nothing about the spread: measure with "
                f"{LEAST_REPEATS} repeats or more."
            )
        # Both ends of the change for the worse, a share of one.
        ends = rows[["ratio_low", "ratio_high"]].to_numpy() - 1.0
        falls = rows["metric"].isin(_HIGHER_IS_BETTER).to_numpy()[:, None]
        ends = np.where(falls, 1.0 / (1.0 + ends[:, ::-1]) - 1.0, ends)
        points = (rows["unit"] == SHARE).to_numpy()[:, None]
        lost = rows[["difference"]].to_numpy() * np.where(falls, -1.0, 1.0)
        low, high = (np.where(points, lost, ends) * 100.0).T
        told = {"undecided": rows["verdict"] == NOISY, "worse": low > percent, "within": high <= percent}
        outcome = np.select(list(told.values()), list(told), "undecided")
        return rows.assign(outcome=outcome).reset_index(drop=True)

    @property
    def _others(self) -> Iterator[tuple[PhaseRun, str]]:
        return zip(self.runs[1:], self.labels[1:], strict=True)

    def _rows(self, run: PhaseRun, label: str) -> Iterator[dict[str, Any]]:
        ours, theirs = metrics_of(self.runs[0]), metrics_of(run)
        tests = {name: log_ratio(ours[name].repeats, theirs[name].repeats) for name in ours if name in theirs}
        alphas = holm({name: test for name, test in tests.items() if name in self.judged})
        noisy = is_noisy(self.runs[0]) or is_noisy(run)
        for name, metric in {**ours, **theirs}.items():
            row: dict[str, Any] = {"run": label, "metric": name, "unit": metric.unit}
            row |= {"phase": metric.phase, "stage": metric.stage, "view": metric.view}
            sides = {"baseline": ours.get(name), "other": theirs.get(name)}
            row |= {side: known.value for side, known in sides.items() if known is not None}
            judged = name in self.judged
            if name in tests:
                row |= _ratio(ours[name], theirs[name], tests[name], alphas.get(name, ALPHA))
                if judged or metric.exact:
                    row["verdict"] = self._judge(metric, row, noisy)
            elif judged:
                row["verdict"] = "n/a"
            yield row
        changes = text_changes(self.runs[0], run)
        difference = changes["other"] - changes["baseline"]
        for change in changes.assign(run=label, unit=SHARE, difference=difference).to_dict("records"):
            yield {str(name): value for name, value in change.items()}

    def _judge(self, metric: Metric, row: Mapping[str, Any], noisy: bool) -> str:
        low, high, margin = row["ratio_low"], row["ratio_high"], 1.0 + self.margin / 100.0
        if metric.exact and low == high == 1.0:
            return EQUAL
        if noisy and metric.unit != "bytes":
            return NOISY
        if np.isnan(low):
            return "n/a"
        if 1.0 / margin <= low and high <= margin and not metric.exact:
            return EQUIVALENT
        if low <= 1.0 <= high:
            return INCONCLUSIVE
        if metric.unit == "bytes":
            return "more" if low > 1.0 else "less"
        return "slower" if (low > 1.0) != (metric.name in _HIGHER_IS_BETTER) else "faster"


def _ratio(ours: Metric, theirs: Metric, test: LogMean, alpha: float) -> dict[str, float]:
    """The cells of a row that compare its two figures."""
    cells = {"difference": theirs.value - ours.value}
    if not ours.value:
        return cells
    ratio = theirs.value / ours.value
    # The figures are medians, the interval is of means: it holds what both say.
    low, high = (ratio, ratio) if ours.exact else test.interval(alpha)
    low, high = (end if np.isnan(end) else pick(end, ratio) for end, pick in ((low, min), (high, max)))
    reach = max(ratio / low, high / ratio) - 1.0 if ratio else np.nan
    return cells | {"ratio": ratio, "ratio_low": low, "ratio_high": high, "detectable": reach}


# -- sentences ----------------------------------------------------------------------------------------

_FAR = 2.0  # a ratio from here on is told as such, not in percent
_SINGLE = "so its spread is unknown and nothing is called faster, slower or equivalent"
_UNPROVEN = {"n/a": "by a single repeat", NOISY: "which noise leaves unproven"}
_FEW = "so the intervals are wide and small changes stay inconclusive"


def few_repeats(runs: Sequence[PhaseRun], labels: Sequence[str]) -> str:
    """A note on intervals over few repeats; empty if all records have `LEAST_REPEATS`."""
    few = {label: len(run.repeats) for run, label in zip(runs, labels, strict=True)}
    few = {label: count for label, count in few.items() if count < LEAST_REPEATS}
    if not few:
        return ""
    counts = " and ".join(f"{label} has {count_text(count, 'repeat')}" for label, count in few.items())
    rests = _SINGLE if min(few.values()) == 1 else _FEW
    return f"{counts}, {rests}. Set Repeats (--repeats) to {LEAST_REPEATS} or more."


def _verdict_sentences(comparison: Comparison) -> Iterator[str]:
    runs, labels, table = comparison.runs, comparison.labels, comparison.table
    for run, label in zip(runs, labels, strict=True):
        if warning := noise_warning(run):
            yield f"{label}: {warning}"
    for run, label in zip(runs[1:], labels[1:], strict=True):
        rows = table[(table["run"] == label) & table["metric"].isin(JUDGED) & table["ratio"].notna()]
        told = ", ".join(_said(row) for row in rows.to_dict("records"))
        nothing = f"{label} and {labels[0]} have no phase in common."
        yield f"{label} against {labels[0]}: {told}." if told else nothing
        yield from _caveats(runs[0], run, label)
        yield _text_sentence(text_changes(runs[0], run))
    named = dict(zip(labels, runs, strict=True))
    alike = {label: run for label, run in named.items() if _subject(run) == _subject(runs[0])}
    yield ways_sentence(sweep_table(alike), "strategy")
    yield few_repeats(runs, labels)


def _subject(run: PhaseRun) -> tuple[Any, ...]:
    """Page, prompt, model and device: where these are the same, strategies compare."""
    model = [run.model.get(name) for name in ("name", "revision", "implementation", "dtype")]
    return _pages(run), run.request["prompt"], run.device.get("name"), model


def _said(row: Mapping[Any, Any]) -> str:
    name = "a decode step" if row["metric"] == "inter_token_ms" else stage_name(row["phase"])
    if row["verdict"] in _UNPROVEN:
        return f"{name} takes {_times(row['ratio'])}, {_UNPROVEN[row['verdict']]}"
    span = _times(row["ratio"], row["ratio_low"], row["ratio_high"])
    if row["verdict"] == INCONCLUSIVE:
        least = percent_text(row["detectable"])
        return f"{name} is inconclusive ({span}; changes below {least} cannot be resolved)"
    if row["verdict"] == EQUIVALENT or not 1.0 / _FAR < row["ratio"] < _FAR:
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


def _text_sentence(changes: pd.DataFrame) -> str:
    """The agreement and the edit distances in words; empty for equal texts."""
    then, now = (dict(zip(changes["metric"], changes[side], strict=True)) for side in ("baseline", "other"))
    if now.get("agreement", 1.0) == 1.0:
        return ""
    sentence = f"Its text agrees with the baseline's to {percent_text(now['agreement'])}"
    if "edit_distance" in then:
        before, after = (percent_text(side["edit_distance"]) for side in (then, now))
        sentence += f"; its edit distance to the truth is {after}, not {before}"
    return f"{sentence}."


def _facts(run: PhaseRun) -> dict[str, Any]:
    """What a caveat is told of where it differs, by the sentence."""
    return {
        "{label} read another page.": _pages(run),
        "Its prompt has {} tokens, not {}.": f"{run.request['prefill_len']:,}",
        "It has {} rows side by side, not {}.": len(run.results),
        "The devices differ.": run.device.get("name"),
        "The model is {}, not {}.": run.model["name"],
        "It computes in {}, not {}.": run.model["dtype"],
    }


def _caveats(baseline: PhaseRun, other: PhaseRun, label: str) -> Iterator[str]:
    """What else differs, a sentence each."""
    yield ceilings_apart(baseline, other)
    then = _facts(baseline)
    for sentence, value in _facts(other).items():
        if value != then[sentence]:
            yield sentence.format(value, then[sentence], label=label)
    revisions = {(run.model["name"], run.model.get("revision")) for run in (baseline, other)}
    if len(revisions) > len({name for name, _ in revisions}):
        yield "The model's weights have another revision."
    if same_tokens(baseline, other):
        return
    counts = [f"{run.token_count:,}" for run in (other, baseline)]
    if counts[0] == counts[1]:
        yield f"The tokens differ; both have {counts[0]}."
    else:
        yield f"It has {counts[0]} tokens, not {counts[1]}: compare decode steps, not whole decodes."
    if differ := first_other_token(baseline, other):
        yield f"The first different token is {differ}."


def first_other_token(baseline: PhaseRun, other: PhaseRun) -> str:
    """Where the tokens of two records first differ: ``number 17: 'cat' here, 'dog' in the baseline``.

    Tokens and rows are counted from 1; a token without a text is named by its id. Empty where all
    rows that both have are equal.
    """
    for row, (left, right) in enumerate(zip(baseline.results, other.results, strict=False)):
        place = first_difference(left["ids"], right["ids"])
        if place is not None:
            where = f"number {place + 1}" + (f" of row {row + 1}" if len(baseline.results) > 1 else "")
            return f"{where}: {_token_text(right, place)} here, {_token_text(left, place)} in the baseline"
    return ""


def _token_text(result: Mapping[str, Any], place: int) -> str:
    if place >= len(result["ids"]):
        return "the end"
    # As a literal: a token may be a line break, or a control character.
    return repr(result["token_texts"][place] or result["ids"][place])
