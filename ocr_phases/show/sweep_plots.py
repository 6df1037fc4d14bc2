"""The pictures of the cells of a sweep."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from ocr_phases.analyse.floors import times_text
from ocr_phases.analyse.sweep_table import LOADED, cell_name
from ocr_phases.record import Record
from ocr_phases.show.axes import ChartBar, bar_charts, figure_of, sentence_figure, stacked
from ocr_phases.show.colours import FAINT, GREEN, REST
from ocr_phases.show.comparison_plots import plot_prefill_stages
from ocr_phases.show.curves import curves_of_table, decode_curves
from ocr_phases.text import ms_text

_FLOORS = {
    "Prefill": ("prefill_ms", "prefill_floor_ms"),
    "Decode step": ("inter_token_ms", "step_floor_ms"),
}


def plot_prefill(table: pd.DataFrame, *, ax: Axes | None = None) -> Figure:
    """Prefill in ms over the tokens of the prompt.

    There is a line for each model, batch size and way to run the prefill. Each cell is a point; the
    lines go through the medians of cells with the same prompt. ``ax`` are axes to draw on.
    """
    table = _prefill_ways(table.dropna(subset=["prefill_ms", "prefill_len"])).sort_values("batch")
    if table.empty:
        return sentence_figure("No cell has a prefill to draw.", ax)
    names = {"prefill_len": "prompt tokens of a row", "prefill_ms": "prefill (ms)"}
    table = table.assign(cell="")  # a line goes through all its cells
    axes = curves_of_table(
        table, "Prefill over the length of the prompt", names, ["vision", "batch"], ax
    )
    axes.set_xlim(left=0)
    return figure_of(axes)


def plot_cells_decode(curves: pd.DataFrame, *, ax: Axes | None = None) -> Figure:
    """Time of a decode step in ms over the length of the cache, a line for each cell.

    Floors are dotted.
    ``curves`` are those of `ocr_phases.analyse.sweep_table.decode_curve_table`. ``ax`` are axes to
    draw on.
    """
    return decode_curves(
        curves.sort_values(["strategy", "batch"], kind="stable"), ["strategy", "batch"], ax
    )


def plot_throughput(table: pd.DataFrame, *, ax: Axes | None = None) -> Figure:
    """Tokens/s of all rows over the batch size, a line for each model, preset and strategy.

    ``ax`` are axes to draw on.
    """
    table = table.dropna(subset=["tokens_per_s"])
    if table.empty:
        return sentence_figure("No cell has decode steps, so there is no throughput to draw.", ax)
    batches = sorted(set(table["batch"]))
    if len(batches) == 1:
        return sentence_figure(
            "A single batch size was measured, so there is no scaling to draw.", ax
        )
    # Cells that differ only in their vision decode alike: one of them stands for all, which is the
    # first, the eager one.
    table = _longest(table).drop_duplicates(["model", *LOADED, "preset", "strategy", "batch"])
    names = {"batch": "batch size (rows)", "tokens_per_s": "decode, all rows (tokens/s)"}
    table = table.assign(cell="").sort_values(["strategy", "batch"], kind="stable")
    axes = curves_of_table(
        table, "Throughput over the batch size", names, ["strategy", "preset"], ax
    )
    axes.set_xscale("log", base=2)
    axes.set_xticks(batches, list(map(str, batches)))
    return figure_of(axes)


def plot_floors(table: pd.DataFrame) -> Figure:
    """Prefill and decode step of each cell in ms, with the part that the hardware needs anyway."""
    table = _longest(table.dropna(subset=["prefill_floor_ms"]))
    charts: list[tuple[str, list[ChartBar], str]] = []
    for title, (column, floor) in _FLOORS.items():
        known = table.dropna(subset=[column, floor])
        bars: list[ChartBar] = []
        for name, ms, floor_ms in zip(_row_names(known), known[column], known[floor], strict=True):
            words = f"{ms_text(ms)}, {times_text(ms / floor_ms)} its floor"
            bars.append((name, stacked([(floor_ms, GREEN), (ms - floor_ms, FAINT)]), words))
        if bars:
            charts.append((title, bars, "time (ms)"))
    if not charts:
        return sentence_figure(
            "No floor is known: the device has neither ceilings nor a datasheet here."
        )
    keys = [Patch(color=GREEN, label="floor"), Patch(fc=FAINT, ec=REST, label="above its floor")]
    figure, _ = bar_charts(charts, keys=keys)
    return figure


def plot_vision_share(
    table: pd.DataFrame, records: Mapping[str, Record], *, ax: Axes | None = None
) -> Figure:
    """`plot_prefill_stages` with a bar for each model, preset, batch size and way to run a prefill.

    Prefills of several cells may run alike, because neither the length of the output nor the
    strategy of the decode changes them. Then the cell with the longest output is drawn, and of
    several strategies the first. ``ax`` are axes to draw on.
    """
    table = _prefill_ways(_longest(table.dropna(subset=["vision_share"])))
    cells = table.drop_duplicates(["model", *LOADED, "prefill_len", "preset", "batch", "vision"])
    names = _row_names(cells, but="strategy")
    runs = [records[cell] for cell in cells["cell"]]
    return plot_prefill_stages(runs, names, ax=ax)


def _longest(table: pd.DataFrame) -> pd.DataFrame:
    """The cells without those that differ from another one only by a shorter output.

    The more tokens a cell made, the better its rates are known.
    """
    alike = ["model", *LOADED, "preset", "strategy", "vision", "batch"]
    longest_output = table.groupby(alike)["tokens"].transform("max")
    return table[table["tokens"] == longest_output]


def _row_names(table: pd.DataFrame, but: str = "") -> list[str]:
    """The names of cells by what differs between them, apart from the setting ``but``."""
    names = []
    for _, row in table.iterrows():
        name = cell_name(row, table, but)
        if not name:  # nothing differs
            name = str(row["preset"])
        names.append(name)
    return names


def _prefill_ways(table: pd.DataFrame) -> pd.DataFrame:
    """The table with all that tells prefills apart in its column ``vision``.

    Besides vision, that is whether the language model's part of the prefill was captured.
    """
    captured = table["prefill_captured"].map({True: ", LM captured", False: ""})
    return table.assign(vision=table["vision"] + captured)
