"""Two or more records side by side: what changed against the first, the baseline, and whether that
is sure.

`ocr_phases.analyse.compared_metrics` has the metrics and their verdicts,
`ocr_phases.analyse.comparison_words` the sentences.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from ocr_phases.analyse.compared_metrics import (
    COMPARE_COLUMNS,
    MARGIN,
    compare_two,
    outcomes,
)
from ocr_phases.analyse.comparison_words import comparison_findings
from ocr_phases.analyse.figure_rows import SHARE
from ocr_phases.analyse.first_token import first_token_table
from ocr_phases.analyse.noise import judged_figures
from ocr_phases.analyse.quality import MEASURES
from ocr_phases.analyse.statistics import LEAST_REPEATS
from ocr_phases.errors import Hinted, OcrPhasesError, check_known
from ocr_phases.record import Record
from ocr_phases.record.parts import to_plain
from ocr_phases.text import count_text

#: What is measured, is told in another part, or follows from the model's name and revision.
_NO_SETTING = (
    "device.ceilings",
    "device.conditions",
    "model.config",
    "model.stages",
    "model.strategy_setup",
    "model.vision_setup",
    "request.preset",
    "request.strategy",
    "request.vision",
)


#: What stands for a setting that a record lacks.
_MISSING = "–"


def run_labels(runs: Sequence[Record], paths: Iterable[str | Path] | None = None) -> list[str]:
    """A short, unique name for each record: its file's, else the settings that differ."""
    if paths is not None:
        names = [re.sub(r"(\.json)?(\.gz)?$", "", Path(path).name) for path in paths]
    else:
        names = _setting_labels(runs)
    labels = []
    for number, name in enumerate(names, start=1):
        labels.append(name if names.count(name) == 1 else f"{name} ({number})")
    return labels


def _setting_labels(runs: Sequence[Record]) -> list[str]:
    """Page, model, preset and strategy of each record, as far as these differ."""
    facts = [(run.page_name(), run.model.name, run.preset, run.model.strategy) for run in runs]
    differing = [
        place for place in range(len(facts[0])) if len({fact[place] for fact in facts}) > 1
    ]
    shown = differing or range(len(facts[0]))
    return [", ".join(str(fact[place]) for place in shown) for fact in facts]


def in_units(table: pd.DataFrame, baseline: str = "baseline") -> pd.DataFrame:
    """`ComparedRecords.table` for reading: bytes as MB, shares as %, columns called by their
    records.

    ``baseline`` is that record's label. What follows from the other columns is left out. The
    verdict on the agreement says that it is of the text: boxes may differ all the same.
    """
    is_agreement = table["metric"] == "agreement"
    of_text = table["verdict"].replace({"equal": "text equal", "different": "text differs"})
    table = table.assign(verdict=table["verdict"].mask(is_agreement, of_text))
    table = table.drop(columns=["difference", "phase", "stage", "view"])
    factors = table["unit"].map({"bytes": 1e-6, SHARE: 100.0}).fillna(1.0)
    values = ["baseline", "other"]
    table[values] = table[values].mul(factors, axis="index")
    table["unit"] = table["unit"].replace({"bytes": "MB", SHARE: "%"})
    labels = {"baseline": baseline}
    if table["run"].nunique() == 1:
        labels["other"] = str(table["run"].iloc[0])
        table = table.drop(columns="run")
    new_names = {name: label for name, label in labels.items() if label not in table}
    return table.rename(columns=new_names)


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
                f"A margin of {margin:g} is not possible: give a percentage from 0 to below 100, "
                "such as 2."
            )
        if len(self.runs) < 2:
            raise OcrPhasesError("A comparison needs at least two records: name another one.")
        if len(self.labels) != len(self.runs) or len(set(self.labels)) != len(self.labels):
            count = count_text(len(self.runs), "label")
            named = ", ".join(self.labels) or "none"
            raise OcrPhasesError(
                f"Give {count}, one for each record and all different, instead of {named}."
            )
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
        metric or has a single repeat. What follows from the tokens alone is `EXACTLY_EQUAL`,
        less or more. Other metrics have none. Measures of the text (`text_changes`) come last, with
        the unit `SHARE` and neither ratio nor interval.
        """
        wanted = [*self.figures, *self.judged]
        rows: list[dict[Any, Any]] = []
        for run, label in self._others:
            compared = compare_two(self.runs[0], run, self.judged, wanted, self.margin)
            rows += compared.assign(run=label).to_dict("records")
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

        Parts are device, versions, model, page and request. Between a server and a model that is
        loaded, what only one of the two has differs by its nature, and is left out.
        """
        settings = [pd.json_normalize(_settings(run)).astype(object) for run in self.runs]
        table = pd.concat(settings).set_axis(self.labels).T.map(_setting_text)
        is_setting = ~table.index.str.startswith(_NO_SETTING)
        table = table[(table.nunique(axis="columns") > 1) & is_setting]
        if self.has_server and not all(run.is_server for run in self.runs):
            table = table[(table != _MISSING).all(axis="columns")]
        names = [tuple(str(name).split(".", 1)) for name in table.index]
        table.index = pd.MultiIndex.from_tuples(names, names=["part", "name"])
        return table.reset_index(allow_duplicates=True)

    @cached_property
    def first_token(self) -> pd.DataFrame:
        """Where the time until the first token goes, of each record: its parts, each with who tells
        it (`ocr_phases.analyse.first_token.first_token_table`).
        """
        return first_token_table(self.runs, self.labels)

    @property
    def has_server(self) -> bool:
        """Whether one of the records is of a server."""
        return any(run.is_server for run in self.runs)

    @cached_property
    def findings(self) -> list[str]:
        """What `verdict` says, piece by piece: the judged figures, and caveats."""
        return comparison_findings(self.runs, self.labels, self.table, self.figures)

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
        lines: list[str] = []
        for run, label in self._others:
            pairs = zip(self.runs[0].results, run.results, strict=False)
            for number, (then, now) in enumerate(pairs, start=1):
                of_row = f", row {number}" if len(run.results) > 1 else ""
                lines += difflib.unified_diff(
                    (then.text or "").splitlines(),
                    (now.text or "").splitlines(),
                    self.labels[0] + of_row,
                    label + of_row,
                    lineterm="",
                )
        return "\n".join(lines)

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
        table = self.table
        if metrics:
            table = ComparedRecords(self.runs, self.labels, judged=metrics).table
        rows = table[table["metric"].isin(metrics or self.figures) & table["difference"].notna()]
        for name in metrics:
            known = list(dict.fromkeys([*table["metric"], *MEASURES]))
            check_known("metric", name, known, listed_in="the table that compare prints")
            lacks = ", ".join({*self.labels[1:]} - {*rows.loc[rows["metric"] == name, "run"]})
            if lacks:
                remedy = "name another metric"
                if name in MEASURES:
                    remedy = f"give both the same reference text, or {remedy}"
                raise OcrPhasesError(f"{name} is not in both records ({lacks}): {remedy}.")
        if rows.empty:
            raise OcrPhasesError(
                f"The records share none of {', '.join(self.figures)}: name a metric (--metric)."
            )
        if "n/a" in set(rows["verdict"]):
            raise OcrPhasesError(
                "A record of a single repeat says nothing about the spread: measure with "
                f"{LEAST_REPEATS} repeats or more."
            )
        return rows.assign(outcome=outcomes(rows, percent)).reset_index(drop=True)


def _settings(run: Record) -> dict[str, Any]:
    """How a record was measured, by part and name."""
    page: dict[str, Any] = {"file": run.page_file}
    if run.has_page:
        page = {
            "file": run.page.file,
            "sha256": run.page.sha256,
            "width": run.page.width,
            "height": run.page.height,
            "preset": run.page.preset,
            "grid": run.page.grid,
            "image_tokens": run.page.image_tokens,
            "text_tokens": run.page.text_tokens,
            "pages": len(run.pages),
        }
    return {
        "device": to_plain(run.device),
        "versions": run.versions,
        "model": to_plain(run.model),
        "page": page,
        "request": to_plain(run.request),
    }


def _setting_text(value: Any) -> str:
    """A setting as text; a dash for one that a record lacks."""
    if isinstance(value, list | tuple):
        return ", ".join(_setting_text(item) for item in value)
    if value is None or value != value:  # only NaN differs from itself
        return _MISSING
    return str(value)
