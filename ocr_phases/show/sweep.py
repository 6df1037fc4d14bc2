"""Pictures of a sweep: how prefill, decode and throughput scale, and what of the prefill is vision."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from ocr_phases.analyse.floors import times_text
from ocr_phases.analyse.scaling import LOADED, SweepResult, decode_curves, loaded_ways
from ocr_phases.errors import public
from ocr_phases.record import PhaseRun
from ocr_phases.show.figures import (
    BLUE,
    FAINT,
    GREEN,
    WIDTH,
    blank_figure,
    label_bar,
    legend_below,
    new_figure,
    sentence_figure,
    style_axes,
    takes_axes,
    time_axis,
    title_axes,
)
from ocr_phases.show.results import Bundle, bundle, head_html
from ocr_phases.show.runs import (
    Looks,
    from_zero,
    name_presets,
    plain_log,
    plot_decode_curves,
    plot_prefill_stages,
)
from ocr_phases.show.web import Html, fragment, note, table_html

#: What tells cells apart besides their batch size and length.
_WAYS = ["model", "attention", "dtype", "preset", "strategy", "vision"]
_TERMINAL_COLUMNS = ["cell", "prefill_len", "prefill_ms", "vision_share", "inter_token_ms", "tokens_per_s"]
_MISSING = "not measured in the cell"


def sweep_html(table: pd.DataFrame) -> Html:
    """The columns of `ocr_phases.analyse.scaling.sweep_table` that fit a page, as a sortable table."""
    if table.empty:
        return note("No cell of this sweep could be measured.")
    columns = [*_WAYS, "batch", "prefill_len", "tokens", "prefill_ms", "vision_share", "inter_token_ms"]
    shown = table[columns].assign(
        times_floor=table["inter_token_ms"] / table["step_floor_ms"], tokens_per_s=table["tokens_per_s"]
    )
    shown = _without_constants(shown).dropna(axis="columns", how="all")
    headings = {"tokens": ("output", "")}
    caption = "Each cell, medians over the repeats"
    return table_html(shown, caption=caption, headings=headings, missing=_MISSING)


def end_to_end_html(table: pd.DataFrame) -> Html:
    """Time per page from its file to its last token, pages per minute and memory, of each cell."""
    if table.empty:
        return fragment()
    times = ["page_ms", "page_ms_p90", "page_ms_p99", "pages_per_min"]
    shown = _without_constants(table[[*_WAYS, "batch", "tokens", *times, "kv_cache_bytes", "peak_bytes"]])
    headings = {
        "tokens": ("output", ""),
        "page_ms": ("page, p50", "ms"),
        "page_ms_p90": ("p90", "ms"),
        "page_ms_p99": ("p99", "ms"),
        "pages_per_min": ("pages/min", ""),
    }
    caption = "Each page end to end, quantiles over the repeats, and memory; the rows of a batch end together"
    return table_html(shown, caption=caption, headings=headings, missing="too few repeats")


def _without_constants(cells: pd.DataFrame) -> pd.DataFrame:
    """The same without the ways of which there is one only; a preset is always named."""
    varied = ["preset", *(name for name in _WAYS if name not in LOADED and cells[name].nunique() > 1)]
    return cells.drop(columns={*_WAYS} - {*varied, *loaded_ways(cells)})


def failures_html(failures: pd.DataFrame) -> Html:
    """The cells that could not be measured, each with its reason; a sentence where there are none."""
    if failures.empty:
        return note("Every cell was measured.")
    return table_html(failures[["cell", "reason"]], caption="What failed")


def sweep_head(sweep: SweepResult) -> Html:
    """The page and the findings; of a sweep without a record why there is none."""
    if not sweep.runs:
        return note(sweep.verdict)
    what = [", ".join(dict.fromkeys(sweep.table[name])) for name in ("model", "device", "dtype")]
    title = f"Sweep over {sweep.first.page['file']}"
    return head_html(sweep.first, title, sweep.findings, " · ".join(what))


def sweep_bundle(sweep: SweepResult) -> Bundle:
    """What a notebook shows of a sweep."""
    shown = [
        sweep_head(sweep),
        *([sweep_html(sweep.table)] if sweep.runs else []),
        failures_html(sweep.failures),
    ]
    columns = sweep.table[_TERMINAL_COLUMNS] if sweep.runs else pd.DataFrame()
    table = columns.to_string(index=False, float_format="{:,.3f}".format, na_rep="") if sweep.runs else ""
    return bundle(fragment(*shown), f"{sweep.verdict}\n{table}".strip())


@takes_axes
def plot_prefill(table: pd.DataFrame, width: float = WIDTH, *, ax: Axes | None = None) -> Figure:
    """Prefill in ms against the prompt's tokens: a line a model, batch size and way to run it, of medians.

    ``width`` is in inches, ``ax`` are axes to draw on.
    """
    table = table.dropna(subset=["prefill_ms"])
    if table.empty:
        return sentence_figure("No cell has a prefill to draw.", ax)
    figure, axes = new_figure(3.9, width, ax)
    table = _prefill_ways(table).sort_values("batch")
    looks = _looks(table, "vision", "batch")
    for _, rows in table.groupby(["model", "vision", "batch"], sort=False):
        colour, style = looks.of(rows.iloc[0])
        axes.plot(rows["prefill_len"], rows["prefill_ms"], "o", color=colour, alpha=0.35, markersize=5, mew=0)
        middle = rows.groupby("prefill_len")["prefill_ms"].median()
        axes.plot(
            middle.index, middle, color=colour, linestyle=style, marker="o", markersize=5, linewidth=1.4
        )
    name_presets(axes, table, "prefill_len")
    from_zero(axes, table["prefill_ms"])
    axes.set_xlim(left=0)
    axes.set_xlabel("prompt tokens of a row")
    time_axis(axes.yaxis, "prefill")
    title_axes(axes, "Prefill over the length of the prompt")
    looks.legend(figure, ax=ax)
    return figure


def plot_decode(curves: pd.DataFrame, *, ax: Axes | None = None) -> Figure:
    """Time of a decode step in ms against the cache: colours are strategies, line styles batch sizes.

    Of several models colours are models, line styles strategies, and the smallest batch is drawn.
    """
    curves = _models_named(curves)
    if curves["model"].nunique() > 1:
        smallest = curves[curves["batch"] == curves["batch"].min()]
        return plot_decode_curves(smallest, "model", "strategy", ax=ax)
    return plot_decode_curves(curves, "strategy", "batch", ax=ax)


@takes_axes
def plot_throughput(table: pd.DataFrame, *, ax: Axes | None = None) -> Figure:
    """Tokens/s of all rows over the batch size, a line a model, preset and strategy; faint: linear growth."""
    table = table.dropna(subset=["tokens_per_s"])
    if table.empty:
        return sentence_figure("No cell has decode steps, so there is no throughput to draw.", ax)
    if table["batch"].nunique() == 1:
        return sentence_figure("A single batch size was measured, so there is no scaling to draw.", ax)
    # Decode is the same whatever vision does, and eager vision comes first.
    table = _models_named(_longest(table)).drop_duplicates(["model", "preset", "strategy", "batch"])
    figure, axes = new_figure(4.2, ax=ax)
    looks = _looks(table, "strategy", "preset")
    for _, rows in table.groupby(["model", "preset", "strategy"], sort=False):
        rows = rows.sort_values("batch")
        colour, style = looks.of(rows.iloc[0])
        ideal = rows["tokens_per_s"].iloc[0] / rows["batch"].iloc[0] * rows["batch"]
        if len(rows) > 1:
            axes.plot(rows["batch"], ideal, color=FAINT, linewidth=1.2, zorder=1)
        axes.plot(rows["batch"], rows["tokens_per_s"], "o", linestyle=style, color=colour, linewidth=1.5)
    batches = sorted(set(table["batch"]))
    axes.set_xscale("log", base=2)
    axes.set_xticks(batches, [str(batch) for batch in batches])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlim(min(batches) / 1.3, max(batches) * 1.3)
    from_zero(axes, table["tokens_per_s"])
    axes.set_xlabel("batch size (rows)")
    axes.set_ylabel("decode, all rows (tokens/s)")
    title_axes(axes, "Throughput over the batch size")
    looks.legend(figure, "as fast for each row as the smallest batch", ax=ax)
    return figure


def plot_floors(table: pd.DataFrame) -> Figure:
    """Prefill and decode step of each cell beside what the hardware allows, on logarithmic axes in ms."""
    table = _models_named(_longest(table.dropna(subset=["prefill_floor_ms"]))).reset_index(drop=True)
    if table.empty:
        return sentence_figure("No floor is known: the device has neither ceilings nor a datasheet here.")
    figure = blank_figure(1.6 + 0.3 * len(table))
    panels = figure.subplots(1, 2, sharey=True)
    for axes, title, measured, floor in (
        (panels[0], "Prefill", "prefill_ms", "prefill_floor_ms"),
        (panels[1], "Decode step", "inter_token_ms", "step_floor_ms"),
    ):
        style_axes(axes)
        title_axes(axes, title)
        _draw_floors(axes, table.dropna(subset=[measured, floor]), measured, floor)
    labels = _row_names(table, "{of_model}{preset}, {strategy}, batch {batch}{of_vision}")
    panels[0].set_yticks(table.index, labels)
    panels[0].set_ylim(len(table) - 0.5, -0.5)
    legend_below(figure, panels[0].get_legend_handles_labels()[0], 2)
    return figure


def _draw_floors(axes: Axes, table: pd.DataFrame, measured: str, floor: str) -> None:
    axes.set_xscale("log")
    if table.empty:
        return
    axes.hlines(table.index, table[floor], table[measured], color=FAINT, linewidth=3, zorder=1)
    axes.plot(table[floor], table.index, "|", color=GREEN, markersize=13, mew=2.5, label="floor")
    axes.plot(table[measured], table.index, "o", color=BLUE, markersize=6, label="measured")
    for place, row in zip(table.index, table.to_dict("records"), strict=True):
        label_bar(axes, row[measured], place, times_text(row[measured] / row[floor]))
    axes.set_xlim(table[floor].min() / 1.6, table[measured].max() * 6)
    plain_log(axes.xaxis)
    time_axis(axes.xaxis, "time")


def plot_vision_share(
    table: pd.DataFrame, records: Mapping[str, PhaseRun], *, ax: Axes | None = None
) -> Figure:
    """The stages of each prefill, a bar a model, preset, batch size and way to run it.

    They are parts of their prefill, or in ms where there are several models. Of cells whose prefills run
    alike the first strategy's with the longest output is drawn.
    """
    table = table.dropna(subset=["vision_share"])
    shares = _prefill_ways(_longest(table)).drop_duplicates(
        ["model", "prefill_len", "preset", "batch", "vision"]
    )
    names = _row_names(shares, "{of_model}{preset} ({prefill_len:,} tokens){of_batch}{of_vision}")
    one = shares["model"].nunique() == 1
    return plot_prefill_stages([records[cell] for cell in shares["cell"]], names, share=one, ax=ax)


def _longest(table: pd.DataFrame) -> pd.DataFrame:
    """Of cells that differ in their output length alone the longest: it says most about a rate."""
    longest = table.groupby([*_WAYS, "batch"])["tokens"].transform("max")
    return table[table["tokens"] == longest]


def _looks(table: pd.DataFrame, coloured: str, styled: str) -> Looks:
    """Colours and line styles by these columns; where there are several models, those have the colours."""
    if table["model"].nunique() == 1:
        return Looks(table, coloured, styled)
    return Looks(table, "model", styled if table[coloured].nunique() == 1 else coloured)


def _row_names(table: pd.DataFrame, text: str) -> list[str]:
    """The rows by a template of columns; ``of_model`` and so on are empty where the table has one only."""
    for name, part in (("model", "{}, "), ("batch", ", batch {}"), ("vision", ", vision {}")):
        part = part if table[name].nunique() > 1 else ""
        table = table.assign(**{f"of_{name}": table[name].map(part.format)})
    return [text.format_map(row) for row in table.to_dict("records")]


def _models_named(table: pd.DataFrame) -> pd.DataFrame:
    """The table with all that tells loaded models apart in its column ``model``."""
    names = table["model"]
    for name in loaded_ways(table):
        names = names + ", " + table[name].map(LOADED[name].format)
    return table.assign(model=names)


def _prefill_ways(table: pd.DataFrame) -> pd.DataFrame:
    """The table with all that tells prefills apart in its column ``vision``."""
    captured = table["prefill_captured"].map({True: ", LM captured", False: ""})
    return _models_named(table).assign(vision=table["vision"] + captured)


@public
class SweepPlots:
    """The plots of a sweep: each is a matplotlib figure that shows itself, drawn on ``ax`` if given."""

    def __init__(self, sweep: SweepResult) -> None:
        self._sweep = sweep

    def prefill(self, *, ax: Axes | None = None) -> Figure:
        """Prefill over the length of the prompt: `ocr_phases.show.sweep.plot_prefill`."""
        return plot_prefill(self._sweep.table, ax=ax)

    def vision(self, *, ax: Axes | None = None) -> Figure:
        """The stages of each prefill: `ocr_phases.show.sweep.plot_vision_share`."""
        return plot_vision_share(self._sweep.table, self._sweep.runs, ax=ax)

    def decode(self, *, ax: Axes | None = None) -> Figure:
        """Time of a decode step over the cache: `ocr_phases.show.sweep.plot_decode`."""
        return plot_decode(decode_curves(self._sweep.runs), ax=ax)

    def throughput(self, *, ax: Axes | None = None) -> Figure:
        """Tokens per second over the batch size: `ocr_phases.show.sweep.plot_throughput`."""
        return plot_throughput(self._sweep.table, ax=ax)

    def cost_quality(self) -> Figure:
        """What each cell loses over what it costs: `ocr_phases.show.cost_quality.plot_cost_quality`."""
        from ocr_phases.show.cost_quality import plot_cost_quality

        return plot_cost_quality(self._sweep.cost_quality)

    def floors(self) -> Figure:
        """Each cell beside its floors: `ocr_phases.show.sweep.plot_floors`."""
        return plot_floors(self._sweep.table)
