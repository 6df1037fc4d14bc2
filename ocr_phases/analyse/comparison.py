"""Two or more records side by side: what changed against the first, the baseline, and whether that
is sure.

A verdict holds what differs between the repeats of one record, not what the machine did between two
measurements.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ocr_phases.analyse.figures import STEP_QUANTILES, figure_repeats, summary
from ocr_phases.analyse.noise import is_noisy, judged_figures
from ocr_phases.analyse.quality import MEASURES, QUALITY_HIGHER, quality_of
from ocr_phases.analyse.scaling import agreements, own_text, sweep_table, ways_sentence
from ocr_phases.analyse.sentences import noise_sentences
from ocr_phases.analyse.stages import (
    STAGE_KEYS,
    grounding_of,
    stage_medians,
    stage_repeats,
    stage_table,
)
from ocr_phases.analyse.statistics import ALPHA, LEAST_REPEATS, holm, log_ratio
from ocr_phases.errors import Hinted, OcrPhasesError, check_known
from ocr_phases.record import Record
from ocr_phases.record.parts import ResultPart, to_plain
from ocr_phases.stages import stage_title
from ocr_phases.text import count_text, filled, first_difference, percent_text

_MEASURED = (
    "run metric verdict unit baseline other difference ratio ratio_low ratio_high detectable"
)
COMPARE_COLUMNS = (*_MEASURED.split(), *STAGE_KEYS)
#: Per cent: two records are equivalent where the whole interval of their ratio lies within this of
#: 1.
MARGIN = 2.0
EQUIVALENT, EQUAL, INCONCLUSIVE, NOISY = "equivalent", "equal", "inconclusive", "noisy"
#: What `ComparedRecords.table` has for a time in each record, and its ratio of.
STATISTICS = (
    "Times are medians over repeats, ratios are of geometric means, as their intervals are."
)
#: The unit of measures of the text: a share of one.
SHARE = "share"

_TEXTS = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
_SAID, _NOTES = (_TEXTS[part] for part in ("said", "notes"))
_EXACT = "kv_cache_bytes"  # follows from the tokens, not from a clock
_HIGHER_IS_BETTER = ("tokens_per_s", *QUALITY_HIGHER)
#: The figures of a whole run that follow a clock, and the phase of those that are not named by it.
_FIGURES = (
    "prepare_ms",
    "prefill_ms",
    "ttft_ms",
    "vision_ms",
    "decode_ms",
    "generate_ms",
    *STEP_QUANTILES,
)
_PHASES = {
    "ttft": "",
    "ntpot": "",
    "page": "",
    "vision": "prefill",
    "inter": "decode",
    "tokens": "decode",
}
#: What is measured, is told in another part, or follows from the model's name and revision.
_NO_SETTING = (
    *(
        "device.ceilings",
        "device.conditions",
        "model.config",
        "model.strategy_setup",
        "model.vision_setup",
    ),
    *("request.preset", "request.strategy", "request.vision"),
)
_OF_PAGE = ("file", "sha256", "width", "height", "preset", "grid", "image_tokens", "text_tokens")


def metrics_of(run: Record, more: Iterable[str] = ()) -> pd.DataFrame:
    """Every metric of a record by name: figures (``prefill_ms``) first, then stages
    (``prefill/sam/global``).

    Columns ``unit``, ``phase``, ``stage``, ``view``, ``value`` and ``repeats``, what it was in each
    repeat. Figures are `Record.summary`'s. Times are ms on the device clock: a stage's is
    `stage_medians`', and in a repeat its sum, or its median step in decode. A figure that is no
    stage has no ``stage``. ``more`` are figures beside those that every record is compared by.
    """
    figures = summary(run)
    each = figure_repeats(run)
    rows: list[tuple[Any, ...]] = []
    for name in dict.fromkeys([*_FIGURES, *more, "tokens_per_s"]):
        first, unit = name.partition("_")[0], "ms" if "_ms" in name else "tokens/s"
        if figures[name] is not None and each[name].notna().all():
            rows.append(
                (name, unit, _PHASES.get(first, first), "", "", figures[name], each[name].tolist())
            )
    for phase, peaks in (run.memory.peak_bytes or {}).items():
        rows.append((f"{phase}_peak_bytes", "bytes", phase, "", "", max(peaks), peaks))
    for name, unit in ((_EXACT, "bytes"), ("energy_j", "J")):
        if value := figures[name]:
            rows.append((name, unit, "", "", "", value, [value]))
    sums, medians = stage_repeats(run), stage_medians(run)
    decode = run.spans[run.spans["phase"] == "decode"].groupby([*STAGE_KEYS, "repeat"])["device_ms"]
    sums.update(decode.median().unstack("repeat"))
    for key in stage_table(run)[list(STAGE_KEYS)].itertuples(index=False, name=None):
        if key[1] not in (key[0], "decode_step", "first_token"):
            rows.append(
                ("/".join(filter(None, key)), "ms", *key, medians[key], sums.loc[key].tolist())
            )
    return pd.DataFrame(
        rows, columns=["metric", "unit", *STAGE_KEYS, "value", "repeats"]
    ).set_index("metric")


def run_labels(runs: Sequence[Record], paths: Iterable[str | Path] | None = None) -> list[str]:
    """A short, unique name for each record: its file's, else the settings that differ."""
    facts = [(run.page_name(), run.model.name, run.page.preset, run.model.strategy) for run in runs]
    differ = [values for values in zip(*facts, strict=True) if len(set(values)) > 1]
    names = [", ".join(map(str, row)) for row in (zip(*differ, strict=True) if differ else facts)]
    if paths is not None:
        names = [re.sub(r"(\.json)?(\.gz)?$", "", Path(path).name) for path in paths]
    return [
        name if names.count(name) == 1 else f"{name} ({place + 1})"
        for place, name in enumerate(names)
    ]


def _text(value: Any) -> str:
    """A setting as text; a dash for one that a record lacks."""
    if isinstance(value, list | tuple):
        return ", ".join(map(_text, value))
    return "–" if value is None or value != value else str(value)


def text_changes(baseline: Record, other: Record) -> pd.DataFrame:
    """Measures of the text over all rows: columns ``metric``, ``baseline``, ``other`` and
    ``verdict``.

    Those of `ocr_phases.analyse.quality` where both records have the same truth; and ``agreement``,
    of ``other`` with the text of ``baseline``. Means over the rows that read the same pages.
    Verdicts are equal, better, worse, and for agreement different. Empty where no row has the same
    pages and two texts.
    """
    count = min(len(baseline.results), len(other.results))
    pairs = [pair for row in range(count) for pair in _text_pairs(baseline, other, row)]
    table = pd.DataFrame(pairs, columns=["metric", "baseline", "other"])
    table = table.groupby("metric", sort=False, as_index=False).mean()
    then, now, metric = (table[name] for name in ("baseline", "other", "metric"))
    verdicts = {EQUAL: now == then, "different": metric == "agreement"}
    verdicts["better"] = (now > then) == metric.isin(QUALITY_HIGHER)
    return table.assign(verdict=_first(verdicts, "worse"))


def _text_pairs(baseline: Record, other: Record, row: int) -> Iterator[tuple[str, float, float]]:
    ours, theirs = (own_text(run, row) for run in (baseline, other))
    if _pages(baseline, row) != _pages(other, row) or ours is None or theirs is None:
        return
    if ours:
        yield "agreement", 1.0, agreements({"": ours, "other": theirs}, "")["other"]
    truths = [truth and truth.says() for truth in (baseline.truth_of(row), other.truth_of(row))]
    if truths[0] == truths[1]:
        before, after = quality_of(baseline, row), quality_of(other, row)
        for name in before:
            if name in after and name not in ("agreement", "repetition"):
                yield name, before[name], after[name]


def _pages(run: Record, row: int | None = None) -> list[str]:
    """The hashes of a row's pages, or of all pages."""
    return [page.sha256 for page in run.pages if row is None or page.row == row]


def same_tokens(then: Record, now: Record) -> bool:
    """Whether every row generated the same tokens."""
    return [row.ids for row in then.results] == [row.ids for row in now.results]


_OF_TEXT = {EQUAL: "text equal", "different": "text differs"}


def in_units(table: pd.DataFrame, baseline: str = "baseline") -> pd.DataFrame:
    """`ComparedRecords.table` for reading: bytes as MB, shares as %, columns called by their
    records.

    ``baseline`` is that record's label. What follows from the other columns is left out. The
    verdict on the agreement says that it is of the text: boxes may differ all the same.
    """
    of_text = table["metric"] == "agreement"
    table = table.assign(verdict=table["verdict"].mask(of_text, table["verdict"].replace(_OF_TEXT)))
    table = table.drop(columns=["difference", "phase", "stage", "view"])
    factors, values = (
        table["unit"].map({"bytes": 1e-6, SHARE: 100.0}).fillna(1.0),
        ["baseline", "other"],
    )
    table[values] = table[values].mul(factors, axis="index")
    table["unit"] = table["unit"].replace({"bytes": "MB", SHARE: "%"})
    labels = {"baseline": baseline}
    if table["run"].nunique() == 1:
        labels["other"] = str(table["run"].iloc[0])
        table = table.drop(columns="run")
    return table.rename(
        columns={name: label for name, label in labels.items() if label not in table}
    )


class ComparedRecords(Hinted):
    """Records against the first of them: ``verdict``, ``table``, ``differs`` and ``text_diff``.

    ``judged`` are the metrics that get a verdict, by default those of `judged_figures`. Raises
    `OcrPhasesError` for fewer than two records, labels that are not one a record, all different,
    and a margin that is no percentage.
    """

    def __init__(
        self,
        runs: Sequence[Record],
        labels: Sequence[str] | None = None,
        *,
        margin: float = MARGIN,
        judged: Iterable[str] | None = None,
    ) -> None:
        self.runs = tuple(runs)
        self.margin = margin
        #: The figures that the verdict is about, with what they are called.
        self.figures = judged_figures(self.runs)
        self.judged = tuple(self.figures if judged is None else judged)
        self.labels = run_labels(runs) if labels is None else list(labels)
        if not 0.0 <= margin < 100.0:
            raise OcrPhasesError(
                f"{margin:g} is no margin: give per cent from 0 to below 100, like 2."
            )
        if len(self.runs) < 2:
            raise OcrPhasesError("A comparison needs at least two records: name another one.")
        if len(self.labels) != len(self.runs) or len(set(self.labels)) != len(self.labels):
            count = count_text(len(self.runs), "label")
            named = ", ".join(self.labels) or "none"
            raise OcrPhasesError(f"Give {count}, one a record and all different: got {named}.")
        self._others = [*zip(self.runs[1:], self.labels[1:], strict=True)]

    @cached_property
    def table(self) -> pd.DataFrame:
        """Each record against the baseline, columns `COMPARE_COLUMNS`, one row a record and metric.

        ``baseline`` and ``other`` are the figures, medians for times, ``difference`` other minus
        baseline in ``unit``. ``ratio`` is other over baseline, of the geometric means of each
        repeat's value; ``ratio_low`` and ``ratio_high`` are its 95 % interval by Welch's t on their
        logarithms; of the judged metrics, together 95 % by Holm. ``detectable`` is the smallest
        change that so wide an interval would have told from none, a share of one.

        ``verdict`` is of the judged metrics: `NOISY` where one of the records is; `EQUIVALENT`
        where the interval lies within ``margin`` per cent of 1, else faster or slower (less or
        more, for bytes) where it leaves 1 out, else `INCONCLUSIVE`; n/a where a record lacks the
        metric or has a single repeat. What follows from the tokens alone is `EQUAL`, less or more.
        Other metrics have none. Measures of the text (`text_changes`) come last, with the unit
        `SHARE` and neither ratio nor interval.
        """
        rows = [row for run, label in self._others for row in self._rows(run, label)]
        table = pd.DataFrame(rows, columns=list(COMPARE_COLUMNS))
        return table.fillna(dict.fromkeys(["verdict", "phase", "stage", "view"], ""))

    @property
    def headline(self) -> pd.DataFrame:
        """The rows of `table` that are figures of the whole run, which both records have."""
        table = self.table
        known = table["ratio"].notna() | (table["unit"] == SHARE)
        return table[(table["stage"] == "") & known].reset_index(drop=True)

    @cached_property
    def differs(self) -> pd.DataFrame:
        """What differs in how the records were measured, columns ``part``, ``name`` and the labels;
        texts.

        Parts are device, versions, model, page and request.
        """
        flat = []
        for run in self.runs:
            page = {name: getattr(run.page, name) for name in _OF_PAGE} | {"pages": len(run.pages)}
            parts = {
                "device": to_plain(run.device),
                "versions": run.versions,
                "model": to_plain(run.model),
                "page": page,
            }
            flat.append(
                pd.json_normalize({**parts, "request": to_plain(run.request)}).astype(object)
            )
        table = pd.concat(flat).set_axis(self.labels).T.map(_text)
        table = table[
            (table.nunique(axis="columns") > 1) & ~table.index.str.startswith(_NO_SETTING)
        ]
        names = [tuple(str(name).split(".", 1)) for name in table.index]
        table.index = pd.MultiIndex.from_tuples(names, names=["part", "name"])
        return table.reset_index(allow_duplicates=True)

    @cached_property
    def findings(self) -> list[str]:
        """What `verdict` says, piece by piece: the judged figures, and caveats."""
        return list(filter(None, _findings(self)))

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
        """Each text against the baseline's, row by row, as a unified diff; empty where all are the
        same.
        """
        pieces = list[str]()
        for run, label in self._others:
            for row, sides in enumerate(
                zip(self.runs[0].results, run.results, strict=False), start=1
            ):
                of_row = f", row {row}" if len(run.results) > 1 else ""
                then, now = ((side.text or "").splitlines() for side in sides)
                names = self.labels[0] + of_row, label + of_row
                pieces += difflib.unified_diff(then, now, *names, lineterm="")
        return "\n".join(pieces)

    def against_limit(self, percent: float, metrics: Sequence[str] = ()) -> pd.DataFrame:
        """The judged rows of `table` with one more column, ``outcome``.

        It is ``worse`` where the whole interval lies beyond ``percent`` worse than the baseline,
        ``within`` where all of it lies on this side, else ``undecided``; of a noisy record's times
        always undecided. A figure without an interval is judged by itself, a measure of the text by
        points. ``metrics`` names what alone is judged, by default those of `figures` that both
        records have.

        Raises `OcrPhasesError` where a name is unknown, a record lacks a named metric, or a single
        repeat leaves nothing to judge by.
        """
        table = (
            ComparedRecords(self.runs, self.labels, judged=metrics).table if metrics else self.table
        )
        rows = table[table["metric"].isin(metrics or self.figures) & table["difference"].notna()]
        for name in metrics:
            check_known("metric", name, [*table["metric"], *MEASURES])
            lacks = ", ".join({*self.labels[1:]} - {*rows.loc[rows["metric"] == name, "run"]})
            if lacks:
                raise OcrPhasesError(
                    f"{name} is not in both records ({lacks}): give both the same truth, or name another "
                    "metric."
                )
        if rows.empty:
            raise OcrPhasesError(
                f"The records share none of {', '.join(self.figures)}: name a metric (--metric)."
            )
        if "n/a" in set(rows["verdict"]):
            raise OcrPhasesError(
                "A record of a single repeat says nothing about the spread: measure with "
                f"{LEAST_REPEATS} repeats or more."
            )
        # Both ends of the change for the worse, a share of one: of the ratio, of a text's measure
        # in points.
        falls, low, high = (
            rows["metric"].isin(_HIGHER_IS_BETTER),
            rows["ratio_low"],
            rows["ratio_high"],
        )
        points = rows["difference"].where(~falls, -rows["difference"])
        low, high = low.where(~falls, 1.0 / high) - 1.0, high.where(~falls, 1.0 / low) - 1.0
        low, high = (100.0 * end.mask(rows["unit"] == SHARE, points) for end in (low, high))
        told = {
            "undecided": rows["verdict"] == NOISY,
            "worse": low > percent,
            "within": high <= percent,
        }
        return rows.assign(outcome=_first(told, "undecided")).reset_index(drop=True)

    def _rows(self, run: Record, label: str) -> list[dict[Any, Any]]:
        more = [*self.figures, *self.judged]
        more = [name for name in more if name in ("ntpot_ms", "page_ms")]
        ours = metrics_of(self.runs[0], more)
        theirs = metrics_of(run, more)
        both = ours.index.intersection(theirs.index)
        tests = {name: log_ratio(ours["repeats"][name], theirs["repeats"][name]) for name in both}
        alphas = holm({name: tests[name] for name in both if name in self.judged})
        ends = {name: test.interval(alphas.get(name, ALPHA)) for name, test in tests.items()}
        ends |= {name: (np.inf, -np.inf) for name in both if name == _EXACT}
        table = pd.concat([ours, theirs.drop(index=both)])
        table = table.assign(run=label, baseline=ours["value"], other=theirs["value"])
        table = table.join(pd.DataFrame(ends, index=["low", "high"], dtype="float64").T)
        table["difference"] = table["other"] - table["baseline"]
        # Of the statistic that the interval is of, so that it lies inside; what does not vary has
        # one value.
        means = pd.Series(
            {name: np.exp(test.mean) for name, test in tests.items() if name != _EXACT}
        )
        figures = (table["other"] / table["baseline"]).where(table["baseline"] != 0)
        ratio = table["ratio"] = means.reindex(table.index).fillna(figures)
        # Rounding apart, these are the ends as they are, and the ratio itself for what does not
        # vary.
        low = table["ratio_low"] = np.minimum(table["low"], ratio)
        high = table["ratio_high"] = np.maximum(table["high"], ratio)
        table["detectable"] = np.maximum(ratio / low, high / ratio) - 1.0
        table["verdict"] = self._verdicts(table, is_noisy(self.runs[0]) or is_noisy(run))
        texts = text_changes(self.runs[0], run)
        texts = texts.assign(run=label, unit=SHARE, difference=texts["other"] - texts["baseline"])
        return [*table.reset_index().to_dict("records"), *texts.to_dict("records")]

    def _verdicts(self, table: pd.DataFrame, noisy: bool) -> np.ndarray:
        low, high, margin = table["ratio_low"], table["ratio_high"], 1.0 + self.margin / 100.0
        judged, exact = table.index.isin(self.judged), table.index == _EXACT
        lacking, size = table["difference"].isna(), table["unit"] == "bytes"
        verdicts = {
            "": ~judged & (lacking | ~exact),
            EQUAL: exact & (table["ratio"] == 1.0),
            NOISY: noisy & ~size & ~lacking,
            "n/a": low.isna(),
            EQUIVALENT: (low >= 1.0 / margin) & (high <= margin) & ~exact,
            INCONCLUSIVE: (low <= 1.0) & (high >= 1.0),
            "more": size & (low > 1.0),
            "less": size,
            "slower": (low > 1.0) != table.index.isin(_HIGHER_IS_BETTER),
        }
        return _first(verdicts, "faster")


def _first(cases: Mapping[str, Any], default: str) -> np.ndarray:
    """In each place the name of the first case that holds there."""
    return np.select(list(cases.values()), list(cases), default)


# -- sentences, in the words of comparison.toml -------------------------------------------------------

_FIGURE_NAMES = {
    "inter_token_ms": "a decode step",
    "ttft_ms": "the wait for the first token",
    "ntpot_ms": "the mean time per token over the whole answer",
    "page_ms": "the whole answer",
}
_FAR = 2.0  # a ratio from here on is told as such, not in percent


def few_repeats(runs: Sequence[Record], labels: Sequence[str]) -> str:
    """A note on intervals over few repeats; empty if all records have `LEAST_REPEATS`."""
    counts = {label: len(run.repeats) for run, label in zip(runs, labels, strict=True)}
    few = {label: count for label, count in counts.items() if count < LEAST_REPEATS}
    said = " and ".join(
        f"{label} has {count_text(count, 'repeat')}" for label, count in few.items()
    )
    note = _NOTES["single" if 1 in few.values() else "few"]
    return note.format(counts=said, least=LEAST_REPEATS) if few else ""


def _findings(comparison: ComparedRecords) -> Iterator[str]:
    runs, labels, table = comparison.runs, comparison.labels, comparison.table
    named = dict(zip(labels, runs, strict=True))
    for label, run in named.items():
        if said := noise_sentences(run):
            yield from (f"{label}: {said[0]}", *said[1:])
    judged = table[table["metric"].isin(comparison.figures) & table["ratio"].notna()]
    for label in labels[1:]:
        told = ", ".join(_said(row) for row in judged[judged["run"] == label].to_dict("records"))
        alone = _NOTES["alone"].format(label=label, baseline=labels[0])
        yield f"{label} against {labels[0]}: {told}." if told else alone
        yield from _caveats(runs[0], named[label], label)
        yield _text_sentence(table[(table["run"] == label) & (table["unit"] == SHARE)])
    alike = {label: run for label, run in named.items() if _subject(run) == _subject(runs[0])}
    yield ways_sentence(sweep_table(alike), "strategy")
    yield few_repeats(runs, labels)


def _subject(run: Record) -> tuple[Any, ...]:
    """Page, prompt, model and device: where these are the same, strategies compare."""
    model = [run.model.name, run.model.revision, run.model.implementation, run.model.dtype]
    return _pages(run), run.request.prompt, run.device.name, model


def _said(row: Mapping[Any, Any]) -> str:
    ratio, verdict = row["ratio"], row["verdict"]
    near = verdict != EQUIVALENT and 1.0 / _FAR < ratio < _FAR
    name = _FIGURE_NAMES.get(row["metric"]) or stage_title(row["phase"])
    by, span = (
        f"{percent_text(abs(ratio - 1.0))} " * near,
        _times(ratio, row["ratio_low"], row["ratio_high"]),
    )
    return filled(
        _SAID.get(verdict, _SAID["other"]), row, name=name, by=by, span=span, takes=_times(ratio)
    )


def _times(ratio: float, *ends: float) -> str:
    """``1.77 times as long, 1.76 to 1.83``; from a half down the other way round: ``33.3 times as
    fast``.
    """
    word, values = "long", (ratio, *ends)
    if 0 < ratio <= 0.5 and min(values) > 0:
        word, values = "fast", (1.0 / ratio, *(1.0 / end for end in reversed(ends)))
    first, *span = [
        f"{each:,.{2 if each < 9.995 else 1 if each < 99.95 else 0}f}" for each in values
    ]
    return f"{first} times as {word}" + (f", {' to '.join(span)}" if span else "")


def _text_sentence(changes: pd.DataFrame) -> str:
    """The agreement and the edit distances in words; empty for equal texts."""
    now, then = (
        dict(zip(changes["metric"], changes[side], strict=True)) for side in ("other", "baseline")
    )
    if now.get("agreement", 1.0) == 1.0:
        return ""
    note = _NOTES["distance" if "edit_distance" in now else "agreement"]
    return filled(note, now, before=then.get("edit_distance"))


def _caveats(baseline: Record, other: Record, label: str) -> Iterator[str]:
    """What else differs, a sentence each, with the value of both records."""
    if _pages(baseline) != _pages(other):
        names = [
            ", ".join(dict.fromkeys(page.file for page in run.pages)) for run in (other, baseline)
        ]
        if names[0] == names[1]:
            yield f"{label} read another page of the same name, {names[0]}."
        else:
            yield f"{label} read another page: {names[0]} (baseline: {names[1]})."
    for name, now, then in zip(_FACTS, _facts(other), _facts(baseline), strict=True):
        if now != then:
            yield f"{name}: {now} (baseline: {then})."
    if baseline.model.name == other.model.name:
        yield from _other_revision(baseline.model.revision, other.model.revision)
    known = baseline.knows_tokens and other.knows_tokens
    if known and other.token_count != baseline.token_count:
        counts = f"{other.token_count:,} (baseline: {baseline.token_count:,})"
        yield f"Tokens: {counts}, so compare decode steps, not whole decodes."
    if _numbers_pieces(baseline) or _numbers_pieces(other):
        return  # how a text was cut into pieces says nothing about its tokens
    if same_tokens(baseline, other):
        return
    if parts := other_parts(baseline, other):
        yield f"The text is equal; {parts} differ."
    elif baseline.token_count == other.token_count:
        yield _NOTES["same_count"].format(baseline=baseline)
    if differ := first_other_token(baseline, other):
        yield _NOTES["first_token"].format(where=differ)


_FACTS = ("Prompt", "Rows side by side", "Device", "Server", "Model", "Dtype")


def _facts(run: Record) -> tuple[str, ...]:
    """What a record is of, in the order of `_FACTS`, as text."""
    server = run.model.server or {}
    prompt = f"{run.request.prefill_len:,} tokens"
    return (
        prompt,
        f"{len(run.results):,}",
        run.device.name,
        server.get("url", "none"),
        run.model.name,
        run.model.dtype,
    )


def _other_revision(then: str | None, now: str | None) -> Iterator[str]:
    """A sentence where both revisions of a model's weights are known and differ."""
    if then is not None and now is not None and then != now:
        yield f"Revision of the weights: {now} (baseline: {then})."


def other_parts(baseline: Record, other: Record) -> str:
    """What differs beside equal text: ``the boxes``, ``the labels and the boxes``; empty where
    texts differ.

    Text is equal where the words of all rows are the same without the model's marks, which is what
    agreement compares.
    """
    parts: dict[str, None] = {}
    for row in range(min(len(baseline.results), len(other.results))):
        ours, theirs = own_text(baseline, row), own_text(other, row)
        if ours is None or ours != theirs or len(baseline.results) != len(other.results):
            return ""
        parts |= dict.fromkeys(_other_parts_of(baseline, other, row))
    return " and ".join(parts)


def _other_parts_of(baseline: Record, other: Record, row: int) -> list[str]:
    """`other_parts` of one row; none where its tokens are the same."""
    if baseline.results[row].ids == other.results[row].ids:
        return []
    if baseline.results[row].text == other.results[row].text:
        return ["the tokens that it is made of"]
    ours, theirs = (grounding_of(run, row).regions for run in (baseline, other))
    found = []
    if [region.label for region in ours] != [region.label for region in theirs]:
        found.append("the labels")
    if [region.boxes for region in ours] != [region.boxes for region in theirs]:
        found.append("the boxes")
    return found or ["marks or white space"]


def _numbers_pieces(run: Record) -> bool:
    """Whether a server sent no ids, so that what stands for them numbers its pieces of text."""
    return any(result.pieces for result in run.results)


def first_other_token(baseline: Record, other: Record) -> str:
    """Where the tokens of two records first differ: ``number 17: 'cat' here, 'dog' in the
    baseline``.

    Tokens and rows are counted from 1; a token without a text is named by its id. Empty where all
    rows that both have are equal.
    """
    for row, pair in enumerate(zip(other.results, baseline.results, strict=False)):
        place = first_difference(*(result.ids for result in pair))
        if place is not None:
            where = f"number {place + 1}" + (
                f" of row {row + 1}" if len(baseline.results) > 1 else ""
            )
            return f"{where}: {' here, '.join(_token_text(each, place) for each in pair)} in the baseline"
    return ""


def _token_text(result: ResultPart, place: int) -> str:
    if place >= len(result.ids):
        return "the end"
    # As a literal: a token may be a line break, or a control character.
    return repr(result.token_texts[place] or result.ids[place])
