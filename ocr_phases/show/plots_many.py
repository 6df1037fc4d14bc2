"""The pictures of several records, of a sweep's cells, and of a batch's pages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter, NullLocator

from ocr_phases.analyse.comparison import EQUIVALENT, INCONCLUSIVE, NOISY
from ocr_phases.analyse.floors import times_text
from ocr_phases.analyse.scaling import LOADED, cell_name, frontier, loaded_ways
from ocr_phases.analyse.stages import stage_table, step_table
from ocr_phases.record import PREFILL_STAGES, PhaseRun
from ocr_phases.settings import STRATEGIES
from ocr_phases.show.figures import (
    BLUE,
    FAINT,
    GREEN,
    INK,
    MUTED,
    ORANGE,
    PURPLE,
    REST,
    SKY,
    STAGE_COLOURS,
    VERMILLION,
    Row,
    blank_figure,
    byte_axis,
    hbars,
    label_bar,
    legend_below,
    lines,
    new_figure,
    sentence_figure,
    stacked,
    style_axes,
    takes_axes,
    time_axis,
    title_axes,
)
from ocr_phases.show.page import printable
from ocr_phases.text import count_text, ms_text, percent_text, stage_name

LONGEST_LABEL = 48
_COLOURS = (BLUE, ORANGE, GREEN, VERMILLION, PURPLE, SKY)
_LINES: tuple[Literal["-", "--", ":", "-."], ...] = ("-", "--", ":", "-.")
_MARKERS = "os^DvP"
_FLOOR = (0, (1, 2))  # dotted
_NAMES_APART = 0.08  # of the axis, at least, between two presets' names
_WIDE = 12.0  # from here on largest over smallest is drawn on a logarithmic axis
_WIDE_RATIO = 4.0  # the same of ratios: a tenth and ten times are as far from 1
_KEY_WIDTH, _LINE_LENGTH = 6, 130  # of a legend, in characters

_METRICS = {
    "ttft_ms": "time to first token",
    "inter_token_ms": "decode step, median",
    "inter_token_ms_p90": "decode step, p90",
    "inter_token_ms_p99": "decode step, p99",
    "tokens_per_s": "tokens/s",
    "kv_cache_bytes": "KV cache",
    "agreement": "agreement with the baseline's text",
    "cer": "character error rate",
    "wer": "word error rate",
}
UNJUDGED = (INCONCLUSIVE, NOISY, "n/a", "")
_BETTER, _WORSE = ("faster", "less"), ("slower", "more")
_VERDICTS = {
    **dict.fromkeys(_BETTER, (BLUE, "faster or less")),
    **dict.fromkeys(_WORSE, (VERMILLION, "slower or more")),
    EQUIVALENT: (GREEN, "equivalent: the interval is inside the margin"),
    **dict.fromkeys(UNJUDGED, (MUTED, "no verdict, or inconclusive")),
}

_COSTS = {"page_ms": "Time per page", "prompt_tokens": "Prompt tokens", "peak_bytes": "Peak memory"}
LOST = {"edit_distance": "edit distance to the truth", "agreement": "distance to the reference"}
_MOST_NAMED = 12
_MOST_MARKERS = 2_000  # beyond, a drawing has a megabyte for every 8,000, and a browser is slow
_NAME_WIDTH, _NAME_HEIGHT = 0.2, 0.07  # of an axis

_PANELS = (
    ("ttft_ms", "Time to first token", ms_text, BLUE),
    ("inter_token_ms", "Inter-token latency", ms_text, ORANGE),
    ("tokens", "Tokens", "{:,.0f}".format, GREEN),
    ("vision_share", "Vision in the prefill", percent_text, PURPLE),
)
_MOST_BINS = 30


# -- records ------------------------------------------------------------------------------------------


@takes_axes
def plot_prefill_stages(
    runs: Sequence[PhaseRun], labels: Sequence[str], *, share: bool = False, ax: Axes | None = None
) -> Figure:
    """Each record's prefill as one bar, stage after stage; what no stage holds is light grey.

    Bars are in ms; with ``share`` they are parts of their prefill, and vision's is named behind them. ``ax``
    are axes to draw on.
    """
    known = [(run, label) for run, label in zip(runs, labels, strict=True) if run["prefill_ms"] is not None]
    if not known:
        return sentence_figure("None of these records has a prefill of its own.", ax)
    tables = [
        stage_table(run).query("phase == 'prefill'").groupby("stage")["device_ms"].sum() for run, _ in known
    ]
    times = pd.DataFrame(tables).reset_index(drop=True).fillna(0.0)
    whole = times.pop("prefill")
    times = times[[stage for stage in PREFILL_STAGES if stage in times]]
    times["between"] = (whole - times.sum(axis=1)).clip(lower=0.0)
    if share:
        times = 100.0 * times.div(whole, axis=0)
    colours = {stage: STAGE_COLOURS.get(stage, FAINT) for stage in map(str, times)}
    rows: list[Row] = []
    for (run, label), lengths in zip(known, times.to_dict("records"), strict=True):
        pieces = stacked([(ms, colours[str(stage)]) for stage, ms in lengths.items() if ms > 0])
        told = f"vision {percent_text(run['vision_share'])}" if share else ms_text(whole[len(rows)])
        rows.append((printable(label, LONGEST_LABEL), pieces, told))
    figure, axes = new_figure(1.7 + 0.36 * len(known), ax=ax)
    hbars(axes, rows)
    if share:
        axes.set_xlabel("part of the prefill (%)")
        axes.set_xticks(range(0, 101, 20))
    else:
        time_axis(axes.xaxis, "time")
    title_axes(axes, "Prefill, stage by stage")
    names: dict[str, list[str]] = {}
    for stage, colour in colours.items():
        names.setdefault(colour, []).append("between stages" if colour == FAINT else stage_name(stage))
    keys = [
        Patch(fc=colour, ec=REST if colour == FAINT else colour, label=" or ".join(of))
        for colour, of in names.items()
    ]
    legend_below(figure, keys, 4, ax)
    return figure


def plot_decode(runs: Sequence[PhaseRun], labels: Sequence[str], *, ax: Axes | None = None) -> Figure:
    """Time of each decode step in ms against the length of the KV cache, a line a record, with its spread."""
    curves = [pd.DataFrame()]
    for cell, (run, label) in enumerate(zip(runs, labels, strict=True)):
        name = f"{printable(label, LONGEST_LABEL)}: {ms_text(run['inter_token_ms'])}"
        curves.append(step_table(run).dropna(subset=["cache_len"]).assign(cell=cell, name=name))
    return plot_decode_curves(pd.concat([curve for curve in curves if len(curve)] or curves), "name", ax=ax)


@takes_axes
def plot_decode_curves(
    curves: pd.DataFrame, coloured: str, styled: str = "", *, ax: Axes | None = None
) -> Figure:
    """Time of a decode step in ms against the length of the sequence, a line a ``cell``, with its spread.

    ``curves`` has the columns of a step's time (`step_table`), ``cell``, and those whose values tell the
    lines apart by colour and by line style; ``floor_ms``, where it is there, is dotted below. The scale
    follows the bulk of the steps. ``ax`` are axes to draw on.
    """
    if curves.empty:
        return sentence_figure("There are no decode steps to draw.", ax)
    figure, axes = new_figure(4.2, ax=ax)
    curves, keys = _told_apart(curves, coloured, styled)
    for _, curve in curves.groupby("cell", sort=False):
        lengths, colour = curve["cache_len"].astype("float64"), curve["colour"].iloc[0]
        ends = curve["device_ms_p10"], curve["device_ms_p90"]
        look: dict[str, Any] = {"color": colour, "linestyle": curve["style"].iloc[0]}
        lines(axes, lengths, curve["device_ms"], ends, **look)
        if "floor_ms" in curve:
            axes.plot(lengths, curve["floor_ms"], color=colour, linestyle=_FLOOR, linewidth=1.4)
    if "preset" in curves:
        _name_presets(axes, curves, "cache_len")
    _from_zero(axes, curves.groupby("cell")["device_ms"].quantile(np.asarray([0.0, 0.98])))
    axes.set_xlabel("sequence of a row: prompt and generated (tokens)")
    time_axis(axes.yaxis, "decode step")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    title_axes(axes, "Decode step over the length of the sequence: medians and spread")
    if "floor_ms" in curves and curves["floor_ms"].notna().any():
        keys.append(Line2D([], [], color=INK, linewidth=1.4, linestyle=_FLOOR, label="floor"))
    _legend(figure, keys, ax)
    return figure


def metric_name(metric: str) -> str:
    """What a metric of a comparison is called in a picture or a table."""
    if metric in _METRICS:
        return _METRICS[metric]
    if "/" in metric:
        phase, stage, *view = metric.split("/")
        return " ".join([f"{phase}:", stage_name(stage), *view])
    return metric.removesuffix("_ms").removesuffix("_bytes").replace("_", " ") + (
        " memory" if metric.endswith("_peak_bytes") else ""
    )


@takes_axes
def plot_ratios(table: pd.DataFrame, *, ax: Axes | None = None) -> Figure:
    """Ratio to the baseline with its interval, a row a metric of `Comparison.table`; 1 is no difference.

    ``ax`` are axes to draw on.
    """
    table = table[table["ratio"].notna()].reset_index(drop=True)
    if table.empty:
        return sentence_figure("The records share no metric with a ratio to draw.", ax)
    figure, axes = new_figure(1.7 + 0.3 * len(table), ax=ax)
    keys = {
        words: Line2D([], [], color=colour, marker="o", label=words) for colour, words in _VERDICTS.values()
    }
    ends = ["ratio_low", "ratio_high"]
    for place, row in enumerate(table.to_dict("records")):
        colour, words = _VERDICTS.get(row["verdict"], (MUTED, ""))
        unsure = row["verdict"] in UNJUDGED
        look: dict[str, Any] = {"linestyle": ":" if unsure else "-", "linewidth": 1.2 if unsure else 2.2}
        face = "white" if unsure else colour
        axes.plot([row[end] for end in ends], (place, place), color=colour, solid_capstyle="butt", **look)
        axes.plot(row["ratio"], place, "o", color=colour, markersize=5.5, markerfacecolor=face)
        if words:
            keys[words].set(markerfacecolor=face, **look)
    axes.axvline(1.0, color=INK, linewidth=1.0, zorder=1)
    names = table["metric"].map(metric_name)
    if table["run"].nunique() > 1:
        names = table["run"].map(lambda run: printable(run, LONGEST_LABEL)) + "  " + names
    axes.set_yticks(table.index, names, parse_math=False)
    axes.set_ylim(len(table) - 0.5, -0.5)
    values = table[["ratio", *ends]].to_numpy(np.float64)
    low, high = min(1.0, float(np.nanmin(values))), max(1.0, float(np.nanmax(values)))
    if low > 0 and high / low > _WIDE_RATIO:
        axes.set_xscale("log")
        axes.set_xlim(low / 1.15, high * 1.15)
        _plain_log(axes.xaxis)
    else:
        room = 0.06 * max(high - low, 0.02)
        axes.set_xlim(low - room, high + room)
    axes.set_xlabel("ratio to the baseline (1: no difference), line: 95 % interval over repeats")
    title_axes(axes, "What changed")
    unsure_key = list(keys.values())[-1:] if not table["verdict"].isin(UNJUDGED).any() else []
    legend_below(figure, [key for key in keys.values() if key not in unsure_key], 4, ax)
    return figure


# -- the cells of a sweep -----------------------------------------------------------------------------


@takes_axes
def plot_prefill(table: pd.DataFrame, *, ax: Axes | None = None) -> Figure:
    """Prefill in ms against the prompt's tokens: a line a model, batch size and way to run it, of medians.

    ``ax`` are axes to draw on.
    """
    table = table.dropna(subset=["prefill_ms"])
    if table.empty:
        return sentence_figure("No cell has a prefill to draw.", ax)
    figure, axes = new_figure(3.9, ax=ax)
    table, keys = _cells_apart(_prefill_ways(table).sort_values("batch"), "vision", "batch")
    for _, rows in table.groupby(["model", "vision", "batch"], sort=False):
        colour = rows["colour"].iloc[0]
        axes.plot(rows["prefill_len"], rows["prefill_ms"], "o", color=colour, alpha=0.35, markersize=5, mew=0)
        middle = rows.groupby("prefill_len")["prefill_ms"].median()
        _line(axes, middle.index, middle, rows, marker="o", markersize=5)
    _name_presets(axes, table, "prefill_len")
    _from_zero(axes, table["prefill_ms"])
    axes.set_xlim(left=0)
    axes.set_xlabel("prompt tokens of a row")
    time_axis(axes.yaxis, "prefill")
    title_axes(axes, "Prefill over the length of the prompt")
    _legend(figure, keys, ax)
    return figure


def plot_cells_decode(curves: pd.DataFrame, *, ax: Axes | None = None) -> Figure:
    """Time of a decode step in ms against the cache: colours are strategies, line styles batch sizes.

    ``curves`` are `ocr_phases.analyse.scaling.decode_curves`'. Of several models colours are models, line
    styles strategies, and the smallest batch is drawn.
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
    lines = ["model", "preset", "strategy"]
    # Decode is the same whatever vision does, and eager vision comes first.
    table = _models_named(_longest(table)).drop_duplicates([*lines, "batch"])
    figure, axes = new_figure(4.2, ax=ax)
    table, keys = _cells_apart(table, "strategy", "preset")
    for _, rows in table.sort_values("batch").groupby(lines, sort=False):
        ideal = rows["tokens_per_s"].iloc[0] / rows["batch"].iloc[0] * rows["batch"]
        if len(rows) > 1:
            axes.plot(rows["batch"], ideal, color=FAINT, linewidth=1.2, zorder=1)
        _line(axes, rows["batch"], rows["tokens_per_s"], rows, marker="o")
    batches = sorted(set(table["batch"]))
    axes.set_xscale("log", base=2)
    axes.set_xticks(batches, [str(batch) for batch in batches])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlim(min(batches) / 1.3, max(batches) * 1.3)
    _from_zero(axes, table["tokens_per_s"])
    axes.set_xlabel("batch size (rows)")
    axes.set_ylabel("decode, all rows (tokens/s)")
    title_axes(axes, "Throughput over the batch size")
    words = "as fast for each row as the smallest batch"
    _legend(figure, [*keys, Line2D([], [], color=FAINT, linewidth=1.4, label=words)], ax)
    return figure


def plot_floors(table: pd.DataFrame) -> Figure:
    """Prefill and decode step of each cell beside what the hardware allows, on logarithmic axes in ms."""
    table = _longest(table.dropna(subset=["prefill_floor_ms"])).reset_index(drop=True)
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
        axes.set_xscale("log")
        known = table.dropna(subset=[measured, floor])
        axes.hlines(known.index, known[floor], known[measured], color=FAINT, linewidth=3, zorder=1)
        axes.plot(known[floor], known.index, "|", color=GREEN, markersize=13, mew=2.5, label="floor")
        axes.plot(known[measured], known.index, "o", color=BLUE, markersize=6, label="measured")
        for place, row in zip(known.index, known.to_dict("records"), strict=True):
            label_bar(axes, row[measured], place, times_text(row[measured] / row[floor]))
        if len(known):
            axes.set_xlim(known[floor].min() / 1.6, known[measured].max() * 6)
            _plain_log(axes.xaxis)
            time_axis(axes.xaxis, "time")
    panels[0].set_yticks(table.index, _row_names(table))
    panels[0].set_ylim(len(table) - 0.5, -0.5)
    legend_below(figure, panels[0].get_legend_handles_labels()[0], 2)
    return figure


def plot_vision_share(
    table: pd.DataFrame, records: Mapping[str, PhaseRun], *, ax: Axes | None = None
) -> Figure:
    """The stages of each prefill, a bar a model, preset, batch size and way to run it.

    They are parts of their prefill, or in ms where there are several models. Of cells whose prefills run
    alike the first strategy's with the longest output is drawn.
    """
    table = _prefill_ways(_longest(table.dropna(subset=["vision_share"])))
    bars = table.drop_duplicates(["model", "prefill_len", "preset", "batch", "vision"])
    share = bars["model"].nunique() == 1
    names = _row_names(bars, but="strategy")
    return plot_prefill_stages([records[cell] for cell in bars["cell"]], names, share=share, ax=ax)


def _longest(table: pd.DataFrame) -> pd.DataFrame:
    """Of cells that differ in their output length alone the longest: it says most about a rate."""
    alike = ["model", "attention", "dtype", "preset", "strategy", "vision", "batch"]
    return table[table["tokens"] == table.groupby(alike)["tokens"].transform("max")]


def _row_names(table: pd.DataFrame, but: str = "") -> list[str]:
    return [cell_name(row, table, but) or str(row["preset"]) for _, row in table.iterrows()]


def _models_named(table: pd.DataFrame) -> pd.DataFrame:
    """The table with all that tells loaded models apart in its column ``model``."""
    names = table["model"]
    for name in loaded_ways(table):
        names = names + ", " + table[name].map(LOADED[name].format)
    return table.assign(model=names)


def _prefill_ways(table: pd.DataFrame) -> pd.DataFrame:
    """The table with all that tells prefills apart in its columns ``model`` and ``vision``."""
    captured = table["prefill_captured"].map({True: ", LM captured", False: ""})
    return _models_named(table).assign(vision=table["vision"] + captured)


def _cells_apart(table: pd.DataFrame, coloured: str, styled: str) -> tuple[pd.DataFrame, list[Line2D]]:
    """`_told_apart` by these columns; where there are several models, those have the colours."""
    if table["model"].nunique() == 1:
        return _told_apart(table, coloured, styled)
    return _told_apart(table, "model", styled if table[coloured].nunique() == 1 else coloured)


# -- the pages of a batch -----------------------------------------------------------------------------


def plot_cost_quality(points: pd.DataFrame) -> Figure:
    """What each way loses, in per cent, over what it costs: ms a page, prompt tokens, bytes of memory.

    ``points`` have the columns `ocr_phases.analyse.scaling.POINT_COLUMNS`. A line joins the ways that no
    other beats in both, the Pareto frontier of that cost; the others are hollow.
    """
    if len(points) < 2:
        return sentence_figure(
            "Quality was measured for fewer than two cells, so there is no frontier to draw."
        )
    costs = [column for column in _COSTS if points[column].notna().any()]
    figure = blank_figure(3.9)
    panels = figure.subplots(1, len(costs), sharey=True, squeeze=False)[0]
    for axes, column in zip(panels, costs, strict=True):
        style_axes(axes)
        _draw_frontier(axes, points.dropna(subset=[column]).assign(lost=100.0 * points["lost"]), column)
        title_axes(axes, _COSTS[column])
    panels[0].set_ylabel(f"{LOST[points['measure'].iloc[0]]} (%)", fontsize=10, color=INK)
    panels[0].set_ylim(bottom=-0.1 * max(100.0 * points["lost"].max(), 0.1))
    legend_below(figure, panels[0].get_legend_handles_labels()[0], 2)
    return figure


def _draw_frontier(axes: Axes, points: pd.DataFrame, cost: str) -> None:
    # A time that noise spoiled is on no frontier.
    on = frontier(points[cost].mask(points["noisy"] & (cost == "page_ms")), points["lost"])
    best, beaten = points[on].sort_values(cost), points[~on]
    axes.plot(beaten[cost], beaten["lost"], "o", mfc="white", mec=MUTED, ms=7, label="beaten by another")
    words = "frontier: no other costs and loses less"
    axes.step(best[cost], best["lost"], "o-", where="post", color=BLUE, ms=7, lw=1.4, label=words)
    axes.set_xlim(0, 1.28 * points[cost].max())
    _name_points(axes, points if len(points) <= _MOST_NAMED else best, cost)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=4, steps=[1, 2, 2.5, 5, 10]))
    if cost == "page_ms":
        time_axis(axes.xaxis, "from file to last token")
    elif cost == "peak_bytes":
        byte_axis(axes.xaxis, "largest of any phase")
    else:
        axes.set_xlabel("tokens, image and text")
        axes.xaxis.set_major_formatter("{x:,g}")


def _name_points(axes: Axes, points: pd.DataFrame, cost: str) -> None:
    """A name beside each point, below it where another's name stands just above."""
    across, up = (points[name].to_numpy(float) for name in (cost, "lost"))
    for name, x, y in zip(points["name"], across, up, strict=True):
        beside = abs(across - x) < _NAME_WIDTH * across.max()
        over = (up > y) & (up - y < _NAME_HEIGHT * up.max())
        shift = -13 if (beside & over).any() else 5
        axes.annotate(name, (x, y), (7, shift), textcoords="offset points", fontsize=9, color=INK)


def plot_compression(pages: pd.DataFrame, lost: str = "edit_distance") -> Figure:
    """What each page lost, in per cent, over its compression, a point a page, a colour a preset.

    ``pages`` have ``preset``, ``compression`` (generated tokens over valid image tokens) and ``lost``, the
    column of what is drawn: ``edit_distance``, or ``agreement`` as its distance from 1.
    """
    known = pages.dropna(subset=["compression", lost])
    if known.empty:
        return sentence_figure("No page has both a truth and a text, so there is no compression to draw.")
    figure, axes = new_figure(4.4)
    known = known.assign(lost=100.0 * (known[lost] if lost == "edit_distance" else 1.0 - known[lost]))
    presets = known.groupby("preset")["compression"].median().sort_values(ascending=False).index
    for number, preset in enumerate(map(str, presets)):
        rows, place = known[known["preset"] == preset], number % len(_COLOURS)
        label = f"{preset}: {count_text(len(rows), 'page')}, median {rows['lost'].median():.1f} %"
        look: dict[str, Any] = {"color": _COLOURS[place], "alpha": 0.7, "mew": 0, "label": label}
        many = len(known) > _MOST_MARKERS
        axes.plot(rows["compression"], rows["lost"], _MARKERS[place], rasterized=many, **look)
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=-1)
    axes.set_xlabel("compression: generated tokens over image tokens")
    axes.set_ylabel(f"{LOST[lost]} (%)")
    title_axes(axes, "What a page loses over its compression, a point a page")
    legend_below(figure, axes.get_legend_handles_labels()[0], 3)
    return figure


def plot_distributions(pages: pd.DataFrame) -> Figure:
    """Four histograms over pages (columns ``ttft_ms``, ``inter_token_ms``, ``tokens``, ``vision_share``).

    A dashed line is the median, the title names it; p10 and p90 stand below. Missing values are left out.
    """
    figure = blank_figure(5.4)
    for axes, (column, name, text, colour) in zip(figure.subplots(2, 2).flat, _PANELS, strict=True):
        style_axes(axes)
        axes.set_ylabel("pages")
        values = pages[column].astype("float64").dropna().to_numpy()
        if not values.size:
            title_axes(axes, f"{name}: none")
            axes.set(xticks=[], yticks=[])
            continue
        bins = min(_MOST_BINS, max(8, round(np.sqrt(values.size)) * 2))
        # A single value is one bar among others that are empty, not as wide as the axis.
        span = (0.9 * values.min(), 1.1 * values.max()) if np.ptp(values) == 0 else None
        axes.hist(values, bins, range=span, color=colour, edgecolor="white", linewidth=0.6)
        low, median, high = np.quantile(values, (0.1, 0.5, 0.9))
        axes.axvline(median, color=INK, linewidth=1.1, linestyle="--")
        axes.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
        axes.xaxis.set_major_locator(MaxNLocator(nbins=6, integer=column == "tokens"))
        if column.endswith("_ms"):
            time_axis(axes.xaxis)
        else:
            axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _, text=text: text(value)))
        axes.set_xlabel(f"p10 {text(low)}, p90 {text(high)}")
        title_axes(axes, f"{name}: {text(median)}")
    return figure


# -- lines and their keys -----------------------------------------------------------------------------


def _told_apart(table: pd.DataFrame, coloured: str, styled: str = "") -> tuple[pd.DataFrame, list[Line2D]]:
    """The table with each row's ``colour`` and line ``style`` by these columns, and the keys that say so.

    Where the first column has a single value, the second gets the colours and every line is solid. A strategy
    has the same colour in every plot, whichever others are there; so has a model in all plots of a sweep.
    """
    if styled and table[coloured].nunique() == 1:
        coloured, styled = styled, coloured
    colours = {value: _COLOURS[number % len(_COLOURS)] for value, number in _numbered(table[coloured])}
    keys = [
        Line2D([], [], color=colour, linewidth=3, label=_key(coloured, value))
        for value, colour in colours.items()
    ]
    table = table.assign(colour=table[coloured].map(colours), style="-")
    if styled and table[styled].nunique() > 1:
        styles = {value: _LINES[number % len(_LINES)] for value, number in _numbered(table[styled])}
        table["style"] = table[styled].map(styles)
        keys += [
            Line2D([], [], color=INK, linewidth=1.4, linestyle=style, label=_key(styled, value))
            for value, style in styles.items()
        ]
    return table, keys


def _numbered(values: pd.Series) -> list[tuple[Any, int]]:
    """Each value with a number: a strategy's own, a model's by its name, else by first appearance."""
    found = list(dict.fromkeys(values))
    known = list(STRATEGIES) if set(found) <= set(STRATEGIES) else found
    known = sorted(found) if values.name == "model" else known
    return [(value, number) for number, value in enumerate(known) if value in found]


def _key(column: str, value: object) -> str:
    return f"{column} {value}" if column in ("batch", "vision") else str(value)


def _line(axes: Axes, x: Any, y: Any, rows: pd.DataFrame, **look: Any) -> None:
    """A line in the looks that `_told_apart` gave its rows."""
    colour, style = rows[["colour", "style"]].iloc[0]
    axes.plot(x, y, color=colour, linestyle=style, linewidth=1.4, **look)


def _legend(figure: Figure, keys: Sequence[Line2D], ax: Axes | None) -> None:
    length = sum(len(str(key.get_label())) + _KEY_WIDTH for key in keys)
    legend_below(figure, keys, len(keys) if length < _LINE_LENGTH else 2, ax)


def _from_zero(axes: Axes, values: pd.Series) -> None:
    """From zero, so that heights compare; a logarithmic axis where the values lie far apart."""
    low, high = float(values.min()), float(values.max())
    if low > 0 and high / low > _WIDE:
        axes.set_yscale("log")
        axes.set_ylim(low / 1.6, high * 2.0)
        _plain_log(axes.yaxis)
    else:
        axes.set_ylim(0, 1.22 * high)


def _plain_log(axis: Axis) -> None:
    """Plain numbers on a logarithmic axis, as many as it has room for; after its limits are set."""
    low, high = axis.get_view_interval()
    steps = {10.0: (1.0, 1.5, 2.0, 3.0, 5.0, 7.0), 2e3: (1.0, 2.0, 5.0), np.inf: (1.0,)}
    axis.set_major_locator(LogLocator(subs=next(subs for most, subs in steps.items() if high / low < most)))
    axis.set_major_formatter("{x:,g}")
    axis.set_minor_formatter(NullFormatter())


def _name_presets(axes: Axes, table: pd.DataFrame, column: str) -> None:
    """Each preset's name above where it begins on the horizontal axis; neighbours share a place."""
    starts = table.groupby("preset")[column].min().sort_values()
    near = (starts.diff() > _NAMES_APART * table[column].max()).cumsum()
    for _, group in starts.groupby(near):
        for place in group:
            axes.axvline(place, color=FAINT, linewidth=0.9, zorder=0)
        name, place = ", ".join(map(str, group.index)), (group.iloc[0], 1.0)
        look: dict[str, Any] = {"va": "top", "fontsize": 9, "color": MUTED}
        axes.annotate(name, place, (3, -4), ("data", "axes fraction"), "offset points", **look)
