"""Tables, comparisons and sweeps: for a cell, a panel, a report and a terminal."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import pandas as pd

from ocr_phases.analyse.checks import CHECK_COLUMNS
from ocr_phases.analyse.compared_metrics import COMPARE_COLUMNS, EQUAL, EQUIVALENT
from ocr_phases.analyse.comparison import ComparedRecords, in_units
from ocr_phases.analyse.comparison_words import STATISTICS
from ocr_phases.analyse.cost_quality import cost_quality_sentence
from ocr_phases.analyse.figure_rows import Place, names_in
from ocr_phases.analyse.floors import FLOOR_COLUMNS
from ocr_phases.analyse.noise import Verdict
from ocr_phases.analyse.sweep_table import LOADED, SWEEP_COLUMNS, loaded_ways
from ocr_phases.analyse.swept_records import SweptRecords
from ocr_phases.images import page_image
from ocr_phases.record.parts import PagePart, to_plain
from ocr_phases.show import plots_many as draw
from ocr_phases.show.results import (
    Bundle,
    Section,
    bundle,
    checks_html,
    facts_bundle,
    facts_text,
    floor_table_html,
    head_html,
    table_text,
)
from ocr_phases.show.web import (
    MISSING,
    Html,
    fold,
    note,
    notebook_style,
    preformatted,
    printable,
    section_heading,
    table_html,
)
from ocr_phases.text import plain

#: What tells cells apart besides their batch size and length.
_WAYS = ["model", "attention", "dtype", "preset", "strategy", "vision"]
_MOST_ROWS = 60
_END = 10  # rows at each end of a longer table
_STEPS = ["prefill_len", "tokens", "prefill_ms", "vision_share", "inter_token_ms", "times_floor"]
_TIMES = ["page_ms", "page_ms_p90", "page_ms_p99", "pages_per_min"]
_COSTS = ["energy_j", "wh_per_1000_pages", "price_per_1000_pages", "repeated_share"]
_HEADINGS = {
    "interval": ("95 % interval", ""),
    "tokens": ("output", ""),
    "page_ms": ("page, p50", "ms"),
}


# -- tables of any result ----------------------------------------------------------------------------


def frame_html(table: pd.DataFrame) -> str:
    """A table of a result in a notebook; of one with many columns those that fit, of a long one its
    ends.
    """
    known = {COMPARE_COLUMNS: compare_html, SWEEP_COLUMNS: cells_html, CHECK_COLUMNS: _checks_html}
    known |= {FLOOR_COLUMNS: floor_table_html}
    return str(notebook_style() + known.get(tuple(table.columns), _ends_html)(table))


def _checks_html(table: pd.DataFrame) -> Html:
    return checks_html(
        Verdict(**dict(zip(CHECK_COLUMNS, row, strict=True))) for row in table.to_numpy()
    )


def _ends_html(table: pd.DataFrame) -> Html:
    if len(table) <= _MOST_ROWS:
        return table_html(table, missing="none")
    ends = pd.concat([table.head(_END), table.tail(_END)])
    return table_html(
        ends, caption=f"{len(table):,} rows, the first and the last {_END}", missing="none"
    )


def frame_text(table: pd.DataFrame) -> str:
    """A table of a result for a terminal: whole, or the ends of a long one."""
    if len(table) <= _MOST_ROWS:
        return table_text(table)
    ends = pd.concat([table.head(_END), table.tail(_END)])
    return f"{len(table):,} rows, the first and the last {_END}\n{table_text(ends)}"


def recorded_page_text(page: PagePart) -> str:
    """What is known of a page of a record, without its picture."""
    return facts_text("Page", to_plain(page))


def recorded_page_bundle(page: PagePart) -> Bundle:
    """A page of a record: its picture, where the record has it, and what is known of it."""
    image = None if page.data is None else page_image(base64.b64decode(page.data))
    pictures = [] if image is None else [(image, page.file)]
    return facts_bundle("Page", to_plain(page), pictures)


# -- comparisons --------------------------------------------------------------------------------------


def comparison_head(comparison: ComparedRecords) -> Section:
    """The baseline's page and the findings."""
    return Section(head_html(comparison.runs[0], comparison.title, comparison.findings))


def compare_html(table: pd.DataFrame, baseline: str = "baseline") -> Html:
    """`ComparedRecords.table`, or some of its rows, as a sortable table; a change that is sure
    stands out.

    ``baseline`` is the label of that record.
    """
    shown = in_units(table, printable(baseline, draw.LONGEST_LABEL))
    shown["metric"] = shown["metric"].map(draw.metric_name)
    ends = zip(shown.pop("ratio_low"), shown.pop("ratio_high"), strict=True)
    shown.insert(
        list(shown).index("ratio") + 1, "interval", [_interval(low, high) for low, high in ends]
    )
    sure = ~table["verdict"].isin((EQUAL, EQUIVALENT, *draw.UNJUDGED))
    words: Any = {
        "missing": "not in both records, or no interval",
        "empty": "The records share no figure.",
    }
    return table_html(
        shown,
        caption=f"Against the baseline. {STATISTICS.rstrip('.')}",
        strong=sure,
        headings=_HEADINGS,
        **words,
    )


def _interval(low: float, high: float) -> str:
    digits = 3 if low >= 0.0995 else 4  # a thirtieth has three that count, too
    return MISSING if np.isnan(low) else f"{low:.{digits}f} to {high:.{digits}f}"


def environment_html(table: pd.DataFrame) -> Html:
    """`ComparedRecords.differs` as a table, or a sentence where nothing does."""
    same = "Device, versions, model, page and request are the same."
    shown = table.assign(name=table["name"].str.replace("_", " "))
    return table_html(shown, caption="What differs", classes="op-words", empty=same)


def comparison_bundle(comparison: ComparedRecords) -> Bundle:
    """What a notebook shows of a comparison."""
    table, baseline, changes = comparison.headline, comparison.labels[0], comparison.text_diff
    tables = compare_html(table, baseline), environment_html(comparison.differs)
    text = changes and fold("How the text differs", preformatted(changes))
    shown = Section(comparison_head(comparison), *tables, text).html()
    return bundle(shown, comparison_text(comparison))


def comparison_text(comparison: ComparedRecords) -> str:
    """A comparison for a terminal: its verdict and its headline figures."""
    table = table_text(in_units(comparison.headline, comparison.labels[0]))
    return plain(f"{comparison.verdict}\n{table}")


# -- sweeps -------------------------------------------------------------------------------------------


def sweep_head(sweep: SweptRecords) -> Section:
    """The page and the findings; of a sweep without a record why there is none."""
    if not sweep.runs:
        return Section(note(sweep.verdict))
    what = [", ".join(dict.fromkeys(sweep.table[name])) for name in ("model", "device", "dtype")]
    title = f"Sweep over {sweep.first.page.file}"
    return Section(head_html(sweep.first, title, sweep.findings, " · ".join(what)))


def cells_html(table: pd.DataFrame) -> Html:
    """The columns of `ocr_phases.analyse.sweep_table.sweep_table` that fit a page, as a sortable table."""
    table = table.assign(times_floor=table["inter_token_ms"] / table["step_floor_ms"])
    shown, caption = _cells(table, *_STEPS, "tokens_per_s"), "Each cell, medians over the repeats"
    return table_html(
        shown, caption=caption, headings=_HEADINGS, empty="No cell could be measured."
    )


def end_to_end_html(table: pd.DataFrame) -> Html:
    """Time per page from its file to its last token, pages per minute and memory, of each cell."""
    costs = [name for name in _COSTS if (table[name] > 0).any()]
    shown = _cells(table, "tokens", *_TIMES, "kv_cache_bytes", "peak_bytes", *costs)
    caption = "Each page end to end, quantiles over the repeats, and memory; the rows of a batch end together"
    if len(costs) > costs.count("repeated_share"):
        caption += "; 1,000 pages: one measurement after another"
    return table_html(
        shown, caption=caption, headings=_HEADINGS, missing="too few repeats", empty=""
    )


def _cells(table: pd.DataFrame, *columns: str) -> pd.DataFrame:
    """These columns behind those that tell cells apart; a preset is always named."""
    varied = [name for name in _WAYS if name not in LOADED and table[name].nunique() > 1]
    named = {"preset", *varied, *loaded_ways(table)}
    return table[[*(name for name in _WAYS if name in named), "batch", *columns]]


def failures_html(failures: pd.DataFrame) -> Html:
    """The cells that could not be measured, each with its reason; a sentence where there are none."""
    return table_html(
        failures[["cell", "reason"]], caption="What failed", empty="Every cell was measured."
    )


def cells(sweep: SweptRecords) -> Section:
    """The tables of a sweep: its cells by stage and end to end, and what failed."""
    table = sweep.table
    return Section(cells_html(table), end_to_end_html(table), failures_html(sweep.failures))


def cost_quality(sweep: SweptRecords) -> Section:
    """Cost against quality under its own heading: the sentence, picture and table; empty without a
    text.
    """
    points = sweep.cost_quality
    if points.empty:
        return Section()
    lost = draw.LOST[points["measure"].iloc[0]]
    headings = {"name": ("cell", ""), "page_ms": ("time per page", "ms"), "lost": (lost, "%")}
    table = points.drop(columns=["measure", "reference", "noisy"])
    shown = table_html(table, caption="Each cell, by its time", headings=headings)
    head = section_heading("Cost against quality"), note(cost_quality_sentence(points))
    return Section(*head, draw.plot_cost_quality(points), shown)


def sweep_bundle(sweep: SweptRecords) -> Bundle:
    """What a notebook shows of a sweep."""
    shown = Section(sweep_head(sweep), cells_html(sweep.table), failures_html(sweep.failures))
    return bundle(shown.html(), sweep_text(sweep))


def sweep_text(sweep: SweptRecords) -> str:
    """A sweep for a terminal: its verdict and a line per cell."""
    if not sweep.runs:
        return plain(sweep.verdict)
    table = sweep.table[["cell", *names_in(Place.SWEEP_TEXT)]]
    return plain(f"{sweep.verdict}\n{table_text(table)}")
