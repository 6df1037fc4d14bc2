"""A sweep as a notebook, a report and a terminal show it."""

from __future__ import annotations

import pandas as pd

from ocr_phases.analyse.cost_quality import cost_quality_sentence
from ocr_phases.analyse.figure_rows import Place, names_in
from ocr_phases.analyse.sweep_table import LOADED, loaded_ways
from ocr_phases.analyse.swept_records import SweptRecords
from ocr_phases.show.html_table import table_html
from ocr_phases.show.quality_plots import LOST, plot_cost_quality
from ocr_phases.show.run_overview import head_html
from ocr_phases.show.section import Bundle, Section, bundle
from ocr_phases.show.terminal_table import table_text
from ocr_phases.show.web import Html, note, section_heading
from ocr_phases.text import plain

#: What tells cells apart besides their batch size and length.
_WAYS = ["model", "attention", "dtype", "preset", "strategy", "vision"]
SWEEP_HEADINGS = {
    "tokens": ("output", ""),
    "page_ms": ("page, p50", "ms"),
}


def sweep_head(sweep: SweptRecords) -> Section:
    """The page and the findings; of a sweep without a record why there is none."""
    if not sweep.runs:
        return Section(note(sweep.verdict))
    measured = []
    for name in ("model", "device", "dtype"):
        measured.append(", ".join(dict.fromkeys(sweep.table[name])))
    title = f"Sweep over {sweep.first.page_file}"
    return Section(head_html(sweep.first, title, sweep.findings, " · ".join(measured)))


def cells_html(table: pd.DataFrame) -> Html:
    """Those columns of `ocr_phases.analyse.sweep_table.sweep_table` that fit a page, as a table."""
    table = table.assign(times_floor=table["inter_token_ms"] / table["step_floor_ms"])
    return table_html(
        columns_of_cells(table, *names_in(Place.SWEEP_STEPS)),
        caption="Each cell, medians over the repeats",
        headings=SWEEP_HEADINGS,
        empty="No cell could be measured.",
    )


def end_to_end_html(table: pd.DataFrame) -> Html:
    """Time per page from its file to its last token, pages per minute and memory, of each cell.

    What costs nothing in any cell, or is not known, has no column.
    """
    costs = [name for name in names_in(Place.SWEEP_COSTS) if (table[name] > 0).any()]
    shown = columns_of_cells(table, "tokens", *names_in(Place.SWEEP_PAGES), *costs)
    caption = (
        "Each page end to end, quantiles over the repeats, and memory; "
        "the rows of a batch end together"
    )
    has_price_or_energy = bool(set(costs) - {"repeated_share"})
    if has_price_or_energy:
        caption += "; 1,000 pages: one measurement after another"
    return table_html(
        shown, caption=caption, headings=SWEEP_HEADINGS, missing="too few repeats", empty=""
    )


def columns_of_cells(table: pd.DataFrame, *columns: str) -> pd.DataFrame:
    """These columns behind those that tell cells apart.

    The preset and the batch size of a cell are always among these, the other ways to run it only
    where they vary.
    """
    loaded = loaded_ways(table)
    ways = []
    for name in _WAYS:
        if name in LOADED:
            is_named = name in loaded
        else:
            is_named = name == "preset" or table[name].nunique() > 1
        if is_named:
            ways.append(name)
    return table[[*ways, "batch", *columns]]


def failures_html(failures: pd.DataFrame) -> Html:
    """The cells that could not be measured, each with its reason; a sentence if there are none."""
    shown = failures[["cell", "reason"]]
    return table_html(shown, caption="What failed", empty="Every cell was measured.")


def cells_section(sweep: SweptRecords) -> Section:
    """The tables of a sweep: its cells by stage and end to end, and what failed."""
    table = sweep.table
    return Section(cells_html(table), end_to_end_html(table), failures_html(sweep.failures))


def cost_quality_section(sweep: SweptRecords) -> Section:
    """Cost against quality under its own heading; empty where no cell has a quality."""
    points = sweep.cost_quality
    if points.empty:
        return Section()
    lost = LOST[points["measure"].iloc[0]]
    headings = {"name": ("cell", ""), "page_ms": ("time per page", "ms"), "lost": (lost, "%")}
    table = points.drop(columns=["measure", "reference", "noisy"])
    shown = table_html(table, caption="Each cell, by its time", headings=headings)
    return Section(
        section_heading("Cost against quality"),
        note(cost_quality_sentence(points)),
        plot_cost_quality(points),
        shown,
    )


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
