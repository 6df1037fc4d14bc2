"""The spans of a timeline as a notebook and a terminal show them."""

from __future__ import annotations

import pandas as pd

from ocr_phases.show.html_table import table_html
from ocr_phases.show.section import Bundle, bundle, facts_bundle, facts_text
from ocr_phases.show.shown_figure import figure_html
from ocr_phases.show.terminal_table import table_text
from ocr_phases.show.timeline_plot import plot_spans
from ocr_phases.show.web import element

_NO_SPANS = {"spans": "none yet"}


def timeline_bundle(spans: pd.DataFrame) -> Bundle:
    """The spans of a timeline, drawn, and summed by stage: a line a phase, stage and view."""
    if spans.empty:
        return facts_bundle("Timeline", _NO_SPANS)
    drawn = element("div", figure_html(plot_spans(spans)), class_="op")
    return bundle(drawn + table_html(_time_by_stage(spans)), timeline_text(spans))


def timeline_text(spans: pd.DataFrame) -> str:
    """The spans of a timeline for a terminal, summed by stage."""
    if spans.empty:
        return facts_text("Timeline", _NO_SPANS)
    return table_text(_time_by_stage(spans))


def _time_by_stage(spans: pd.DataFrame) -> pd.DataFrame:
    calls = spans.groupby(["phase", "stage", "view"], sort=False)
    table = calls.agg(
        calls=("device_ms", "size"), device_ms=("device_ms", "sum"), host_ms=("host_ms", "sum")
    )
    return table.reset_index()
