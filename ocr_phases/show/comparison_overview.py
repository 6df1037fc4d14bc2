"""A comparison of records as a notebook, a report and a terminal show it."""

from __future__ import annotations

import numpy as np
import pandas as pd

from ocr_phases.analyse.compared_metrics import EQUIVALENT, EXACTLY_EQUAL
from ocr_phases.analyse.comparison import ComparedRecords, in_units
from ocr_phases.analyse.comparison_words import STATISTICS
from ocr_phases.analyse.sentences import subject
from ocr_phases.show.comparison_plots import LONGEST_LABEL, UNJUDGED, metric_name
from ocr_phases.show.html_table import table_html
from ocr_phases.show.run_overview import head_html
from ocr_phases.show.section import Bundle, Section, bundle
from ocr_phases.show.terminal_table import table_text
from ocr_phases.show.web import NOT_AVAILABLE, Html, fold, preformatted, printable
from ocr_phases.text import plain


def comparison_head(comparison: ComparedRecords) -> Section:
    """The baseline's page and the findings."""
    baseline = comparison.runs[0]
    about = f"The baseline: {subject(baseline)}"
    return Section(head_html(baseline, comparison.title, comparison.findings, about))


def compare_html(table: pd.DataFrame, baseline: str = "baseline") -> Html:
    """`ComparedRecords.table`, or some of its rows, as a sortable table.

    A change that is sure stands out. ``baseline`` is the label of that record.
    """
    shown = in_units(table, printable(baseline, LONGEST_LABEL))
    shown["metric"] = shown["metric"].map(metric_name)
    intervals = []
    for low, high in zip(shown["ratio_low"], shown["ratio_high"], strict=True):
        intervals.append(_interval(low, high))
    shown = shown.drop(columns=["ratio_low", "ratio_high"])
    behind_ratio = list(shown.columns).index("ratio") + 1
    shown.insert(behind_ratio, "interval", intervals)
    has_no_change = table["verdict"].isin((EXACTLY_EQUAL, EQUIVALENT, *UNJUDGED))
    return table_html(
        shown,
        caption=f"Against the baseline. {STATISTICS.rstrip('.')}",
        strong=~has_no_change,
        headings={"interval": ("95 % interval", "")},
        missing="not in both records, or no interval",
        empty="The records share no figure.",
    )


def _interval(low: float, high: float) -> str:
    """The interval of a ratio in words, with at least three digits that count of its lower end."""
    if np.isnan(low):
        return NOT_AVAILABLE
    decimals = 3
    if low < 0.0995:  # which three decimals would write with two digits, as in 0.033
        decimals = 4
    return f"{low:.{decimals}f} to {high:.{decimals}f}"


def environment_html(table: pd.DataFrame) -> Html:
    """`ComparedRecords.differs` as a table, or a sentence where nothing does."""
    same = "Device, versions, model, page and request are the same."
    shown = table.assign(name=table["name"].str.replace("_", " "))
    return table_html(shown, caption="What differs", classes="op-words", empty=same)


def first_token_html(table: pd.DataFrame) -> Html:
    """`ComparedRecords.first_token` as a table: what the time to the first token consists of."""
    return table_html(
        table,
        caption="Where the time until the first token goes (medians, which need not add up)",
        missing="nobody tells it, for the reason in the last column",
        classes="op-words",
    )


def comparison_bundle(comparison: ComparedRecords) -> Bundle:
    """What a notebook shows of a comparison."""
    tables = [compare_html(comparison.headline, comparison.labels[0])]
    if comparison.has_server:
        tables.append(first_token_html(comparison.first_token))
    tables.append(environment_html(comparison.differs))
    parts: list[Section | Html] = [comparison_head(comparison), *tables]
    if comparison.text_diff:
        parts.append(fold("How the text differs", preformatted(comparison.text_diff)))
    return bundle(Section(*parts).html(), comparison_text(comparison))


def comparison_text(comparison: ComparedRecords) -> str:
    """A comparison for a terminal: its verdict and its headline figures."""
    parts = [comparison.verdict, table_text(in_units(comparison.headline, comparison.labels[0]))]
    if comparison.has_server:
        parts.append(table_text(comparison.first_token))
    return plain("\n".join(parts))
