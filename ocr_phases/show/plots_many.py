"""The pictures of several records, of a sweep's cells, and of a batch's pages."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import cycle, product
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator, NullFormatter

from ocr_phases.analyse.compared_metrics import EQUIVALENT, INCONCLUSIVE, NOISY
from ocr_phases.analyse.cost_quality import frontier
from ocr_phases.analyse.figure_rows import FIGURE_ROWS
from ocr_phases.analyse.figures import summary
from ocr_phases.analyse.floors import times_text
from ocr_phases.analyse.stages import PREFILL_STAGES, stage_table, step_table
from ocr_phases.analyse.sweep_table import LOADED, cell_name, loaded_ways, setting_text
from ocr_phases.record import Record
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
    SMALL,
    STAGE_COLOURS,
    VERMILLION,
    bar_charts,
    figure_of,
    legend_below,
    lines,
    name_axis,
    new_figure,
    sentence_figure,
    stacked,
    style_axes,
)
from ocr_phases.show.web import printable
from ocr_phases.text import count_text, ms_text, percent_text, stage_name

LONGEST_LABEL = 48
_COLOURS = (BLUE, ORANGE, GREEN, VERMILLION, PURPLE, SKY)
_LINES = ("-", "--", ":", "-.")
_MARKERS = "os^DvP"
_DOTS: dict[str, Any] = {"linestyle": (0, (1, 2)), "linewidth": 1.4}
_WIDE = 12.0  # from here on largest over smallest is drawn on a logarithmic axis
_WIDE_RATIO = 4.0  # the same of ratios: a tenth and ten times are as far from 1

UNJUDGED = (INCONCLUSIVE, NOISY, "n/a", "")
#: Verdicts -> what the key says, and the colour; any other is hollow.
_VERDICTS = {
    **dict.fromkeys(("faster", "less"), ("faster or less", BLUE)),
    **dict.fromkeys(("slower", "more"), ("slower or more", VERMILLION)),
    EQUIVALENT: ("equivalent: the interval is inside the margin", GREEN),
}
_NO_VERDICT = ("no verdict, or inconclusive", MUTED)

_FLOORS = {
    "Prefill": ("prefill_ms", "prefill_floor_ms"),
    "Decode step": ("inter_token_ms", "step_floor_ms"),
}
_COSTS = {  # column -> title, label and unit
    "page_ms": ("Time per page", "from file to last token (ms)", "ms"),
    "prompt_tokens": ("Prompt tokens", "tokens, image and text", ""),
    "peak_bytes": ("Peak memory", "largest of any phase", "bytes"),
}
LOST = {"edit_distance": "edit distance to the truth", "agreement": "distance to the reference"}
_MOST_NAMED = 12
_MOST_MARKERS = 2_000  # beyond, a drawing has a megabyte for every 8,000, and a browser is slow

_PANELS: dict[
    str, tuple[str, Callable[[float], str], str, str]
] = {  # column -> title, text, unit, colour
    "ttft_ms": ("Time to first token", ms_text, "ms", BLUE),
    "inter_token_ms": ("Inter-token latency", ms_text, "ms", ORANGE),
    "tokens": ("Tokens", "{:,.0f}".format, "", GREEN),
    "vision_share": ("Vision in the prefill", percent_text, "%", PURPLE),
}
_MOST_BINS = 30


# -- records ------------------------------------------------------------------------------------------


def plot_prefill_stages(
    runs: Sequence[Record], labels: Sequence[str], *, ax: Axes | None = None
) -> Figure:
    """Each record's prefill as one bar in ms, stage after stage; what no stage holds is light grey.

    Behind it stand its time and the share of vision. ``ax`` are axes to draw on.
    """
    known = [
        (run, label)
        for run, label in zip(runs, labels, strict=True)
        if summary(run)["prefill_ms"] is not None
    ]
    if not known:
        return sentence_figure("None of these records has a prefill of its own.", ax)
    tables = [stage_table(run).query("phase == 'prefill'") for run, _ in known]
    times = pd.DataFrame([table.groupby("stage")["device_ms"].sum().to_dict() for table in tables])
    whole = times["prefill"]
    times = times.reindex(columns=PREFILL_STAGES).dropna(axis="columns", how="all").fillna(0.0)
    times["between stages"] = (whole - times.sum(axis="columns")).clip(lower=0.0)
    colours = {str(stage): STAGE_COLOURS.get(str(stage), FAINT) for stage in times}
    rows = []
    for (run, label), ms, lengths in zip(known, whole, times.to_numpy(), strict=True):
        told = f"{ms_text(ms)}  (vision {percent_text(summary(run)['vision_share'])})"
        pieces = stacked(zip(lengths, colours.values(), strict=True))
        rows.append((printable(label, LONGEST_LABEL), pieces, told))
    keys = [Patch(fc=colour, ec=REST, label=stage_name(stage)) for stage, colour in colours.items()]
    return bar_charts([("Prefill, stage by stage", rows, "time (ms)")], ax, keys)[0]


def plot_decode(runs: Sequence[Record], labels: Sequence[str], *, ax: Axes | None = None) -> Figure:
    """Time of each decode step in ms against the length of the KV cache, a line a record, with its
    spread.
    """
    curves = [pd.DataFrame()]
    for cell, (run, label) in enumerate(zip(runs, labels, strict=True)):
        name = f"{printable(label, LONGEST_LABEL)}: {ms_text(summary(run)['inter_token_ms'])}"
        curves.append(step_table(run).dropna(subset=["cache_len"]).assign(cell=cell, name=name))
    return _decode_curves(
        pd.concat([curve for curve in curves if len(curve)] or curves), ["name"], ax
    )


def metric_name(metric: str) -> str:
    """What a metric of a comparison is called in a picture or a table."""
    if "/" in metric:
        phase, stage, *view = metric.split("/")
        return " ".join([f"{phase}:", stage_name(stage), *view])
    row = FIGURE_ROWS.get(metric)
    if row is not None:
        return row.metric or row.heading
    return metric.replace("_bytes", " memory").replace("_", " ")


def plot_ratios(table: pd.DataFrame, *, ax: Axes | None = None) -> Figure:
    """Ratio to the baseline with its interval, a row a metric of `Comparison.table`; 1 is no
    difference.

    ``ax`` are axes to draw on: the largest changes that there is room for.
    """
    table = table[table["ratio"].notna()].reset_index(drop=True)
    if table.empty:
        return sentence_figure("The records share no metric with a ratio to draw.", ax)
    # A row takes 0.3 inches.
    room = int(ax.bbox.height / figure_of(ax).dpi / 0.3) if ax else len(table)
    largest = np.log(table["ratio"]).abs().nlargest(max(room, 1)).index.sort_values()
    title = "What changed" if len(largest) == len(table) else f"Largest of {len(table)} changes"
    several, table = table["run"].nunique() > 1, table.loc[largest].reset_index(drop=True)
    _, (axes,) = new_figure(1.7 + 0.3 * len(table), [title], ax)
    runs = table["run"].map(lambda run: f"{printable(run, LONGEST_LABEL)}  " if several else "")
    axes.set_yticks(
        table.index, (runs + table["metric"].map(metric_name)).tolist(), parse_math=False
    )
    kinds = table["verdict"].map(lambda verdict: _VERDICTS.get(verdict, _NO_VERDICT))
    for (words, colour), rows in table.groupby(kinds, sort=False):
        face = "white" if words == _NO_VERDICT[0] else colour
        axes.hlines(rows.index, rows["ratio_low"], rows["ratio_high"], colour, linewidth=1.8)
        axes.plot(rows["ratio"], rows.index, "o", color=colour, ms=5.5, mfc=face, label=words)
    axes.axvline(1.0, color=INK, linewidth=1.0, zorder=1)
    values = table[["ratio", "ratio_low", "ratio_high"]].to_numpy(np.float64)
    low, high = min(1.0, np.nanmin(values)), max(1.0, np.nanmax(values))
    if low > 0 and high / low > _WIDE_RATIO:
        _log_axis(axes.xaxis, low / 1.15, high * 1.15)
    axes.set(xlabel="ratio to the baseline, line: 95 % interval", ylim=(len(table) - 0.5, -0.5))
    return legend_below(axes)


# -- the cells of a sweep -----------------------------------------------------------------------------


def plot_prefill(table: pd.DataFrame, *, ax: Axes | None = None) -> Figure:
    """Prefill in ms against the prompt's tokens: a line a model, batch size and way to run it.

    A point is a cell, lines are medians of those with the same prompt. ``ax`` are axes to draw on.
    """
    table = _prefill_ways(table.dropna(subset=["prefill_ms"])).sort_values("batch")
    if table.empty:
        return sentence_figure("No cell has a prefill to draw.", ax)
    names = {"prefill_len": "prompt tokens of a row", "prefill_ms": "prefill (ms)"}
    table = table.assign(cell="")  # a line goes through all its cells
    axes = _curves(table, "Prefill over the length of the prompt", names, ["vision", "batch"], ax)
    axes.set_xlim(left=0)
    return figure_of(axes)


def plot_cells_decode(curves: pd.DataFrame, *, ax: Axes | None = None) -> Figure:
    """Time of a decode step in ms against the cache, a line a cell; the floor is dotted.

    ``curves`` are those of `ocr_phases.analyse.sweep_table.decode_curves`. ``ax`` are axes to draw on.
    """
    return _decode_curves(
        curves.sort_values(["strategy", "batch"], kind="stable"), ["strategy", "batch"], ax
    )


def plot_throughput(table: pd.DataFrame, *, ax: Axes | None = None) -> Figure:
    """Tokens/s of all rows over the batch size, a line a model, preset and strategy.

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
    # Decode is the same whatever vision does, and eager vision comes first.
    table = _longest(table).drop_duplicates(["model", *LOADED, "preset", "strategy", "batch"])
    names = {"batch": "batch size (rows)", "tokens_per_s": "decode, all rows (tokens/s)"}
    table = table.assign(cell="").sort_values(["strategy", "batch"], kind="stable")
    axes = _curves(table, "Throughput over the batch size", names, ["strategy", "preset"], ax)
    axes.set_xscale("log", base=2)
    axes.set_xticks(batches, list(map(str, batches)))
    return figure_of(axes)


def plot_floors(table: pd.DataFrame) -> Figure:
    """Prefill and decode step of each cell in ms, and the part of them that the hardware needs at
    least.
    """
    table, charts = _longest(table.dropna(subset=["prefill_floor_ms"])), []
    for title, (column, floor) in _FLOORS.items():
        known = table.dropna(subset=[column, floor])
        rows = []
        for name, ms, least in zip(_row_names(known), known[column], known[floor], strict=True):
            told = f"{ms_text(ms)}, {times_text(ms / least)} its floor"
            rows.append((name, stacked([(least, GREEN), (ms - least, FAINT)]), told))
        charts += [(title, rows, "time (ms)")] if rows else []
    if not charts:
        return sentence_figure(
            "No floor is known: the device has neither ceilings nor a datasheet here."
        )
    keys = [Patch(color=GREEN, label="floor"), Patch(fc=FAINT, ec=REST, label="above its floor")]
    return bar_charts(charts, keys=keys)[0]


def plot_vision_share(
    table: pd.DataFrame, records: Mapping[str, Record], *, ax: Axes | None = None
) -> Figure:
    """`plot_prefill_stages` with a bar a model, preset, batch size and way to run it.

    Of cells whose prefills run alike the first strategy's with the longest output is drawn. ``ax``
    are axes to draw on.
    """
    table = _prefill_ways(_longest(table.dropna(subset=["vision_share"])))
    bars = table.drop_duplicates(["model", *LOADED, "prefill_len", "preset", "batch", "vision"])
    names = _row_names(bars, but="strategy")
    return plot_prefill_stages([records[cell] for cell in bars["cell"]], names, ax=ax)


def _longest(table: pd.DataFrame) -> pd.DataFrame:
    """Of cells that differ in their output length alone the longest: it says most about a rate."""
    alike = ["model", *LOADED, "preset", "strategy", "vision", "batch"]
    return table[table["tokens"] == table.groupby(alike)["tokens"].transform("max")]


def _row_names(table: pd.DataFrame, but: str = "") -> list[str]:
    return [cell_name(row, table, but) or str(row["preset"]) for _, row in table.iterrows()]


def _prefill_ways(table: pd.DataFrame) -> pd.DataFrame:
    """The table with all that tells prefills apart in its column ``vision``."""
    captured = table["prefill_captured"].map({True: ", LM captured", False: ""})
    return table.assign(vision=table["vision"] + captured)


# -- the pages of a batch -----------------------------------------------------------------------------


def plot_cost_quality(points: pd.DataFrame) -> Figure:
    """What each way loses, in per cent, over what it costs: ms a page, prompt tokens, bytes of
    memory.

    ``points`` have the columns `ocr_phases.analyse.cost_quality.POINT_COLUMNS`. A line joins the ways
    that no other beats in both, the Pareto frontier of that cost; the others are hollow.
    """
    if len(points) < 2:
        return sentence_figure(
            "Fewer than two cells have a quality, so there is no frontier to draw."
        )
    points = points.assign(lost=100.0 * points["lost"])
    costs = [column for column in _COSTS if points[column].notna().any()]
    titles = [_COSTS[column][0] for column in costs]
    figure, panels = new_figure(3.9, titles, columns=len(costs), sharey=True)
    for axes, column in zip(panels, costs, strict=True):
        _draw_frontier(axes, points.dropna(subset=[column]), column)
    bottom, measure = -0.1 * max(points["lost"].max(), 0.1), LOST[points["measure"].iloc[0]]
    panels[0].set(ylabel=f"{measure} (%)", ylim=(bottom, None))
    keys, words = panels[0].get_legend_handles_labels()
    figure.legend(
        keys, words, loc="outside lower center", ncols=2, fontsize=9, frameon=False, labelcolor=INK
    )
    return figure


def _draw_frontier(axes: Axes, points: pd.DataFrame, cost: str) -> None:
    # A time that noise spoiled is on no frontier.
    on = frontier(points[cost].mask(points["noisy"] & (cost == "page_ms")), points["lost"])
    best, beaten = points[on].sort_values(cost), points[~on]
    axes.plot(
        beaten[cost], beaten["lost"], "o", mfc="white", mec=MUTED, ms=7, label="beaten by another"
    )
    words = "frontier: no other costs and loses less"
    axes.step(best[cost], best["lost"], "o-", where="post", color=BLUE, ms=7, lw=1.4, label=words)
    named = points if len(points) <= _MOST_NAMED else best
    # Above the frontier, which a name below would cross; only the last is below, clear of its
    # neighbour's.
    last = named["lost"].rank(method="first") == 1
    for below, name, x, y in zip(last, named["name"], named[cost], named["lost"], strict=True):
        axes.annotate(name, (x, y), (7, -13 if below else 5), textcoords="offset points", **SMALL)
    axes.set_xlim(0, 1.28 * points[cost].max())
    _, label, unit = _COSTS[cost]
    name_axis(axes.xaxis, label, unit)


def plot_compression(pages: pd.DataFrame, lost: str = "edit_distance") -> Figure:
    """What each page lost, in per cent, over its compression, a point a page, a colour a preset.

    ``pages`` have ``preset``, ``compression`` (generated tokens over valid image tokens) and
    ``lost``, the column of what is drawn: ``edit_distance``, or ``agreement`` as its distance from
    1.
    """
    known = pages.dropna(subset=["compression", lost])
    if known.empty:
        return sentence_figure(
            "No page has both a truth and a text, so there is no compression to draw."
        )
    _, (axes,) = new_figure(4.4, ["What a page loses over its compression, a point a page"])
    known = known.assign(
        lost=100.0 * (known[lost] if lost == "edit_distance" else 1.0 - known[lost])
    )
    presets = known.groupby("preset")["compression"].median().sort_values(ascending=False).index
    for preset, colour, marker in zip(presets, cycle(_COLOURS), cycle(_MARKERS), strict=False):
        rows = known[known["preset"] == preset]
        label = f"{preset}: {count_text(len(rows), 'page')}, median {rows['lost'].median():.1f} %"
        look: dict[str, Any] = {
            "color": colour,
            "alpha": 0.7,
            "mew": 0,
            "label": label,
            "clip_on": False,
        }
        axes.plot(
            rows["compression"], rows["lost"], marker, rasterized=len(known) > _MOST_MARKERS, **look
        )
    axes.set(xlabel="compression: generated tokens over image tokens", ylabel=f"{LOST[lost]} (%)")
    axes.set(xlim=(0, None), ylim=(0, None))
    return legend_below(axes)


def plot_distributions(pages: pd.DataFrame) -> Figure:
    """Four histograms over pages (columns ``ttft_ms``, ``inter_token_ms``, ``tokens``,
    ``vision_share``).

    A dashed line is the median, the title names it; p10 and p90 stand below. Missing values are
    left out.
    """
    figure, panels = new_figure(5.4, [""] * len(_PANELS), columns=2)
    for axes, (column, (name, text, unit, colour)) in zip(panels, _PANELS.items(), strict=True):
        values = pages[column].astype("float64").dropna()
        low, median, high = map(text, values.quantile([0.1, 0.5, 0.9]))
        style_axes(axes, f"{name}: {median if len(values) else 'none'}")
        axes.hist(
            values, min(_MOST_BINS, max(8, round(len(values) ** 0.5) * 2)), color=colour, ec="white"
        )
        axes.axvline(values.median(), color=INK, linewidth=1.1, linestyle="--")
        name_axis(axes.xaxis, f"{'in ms: ' * (unit == 'ms')}p10 {low}, p90 {high}", unit)
        name_axis(axes.yaxis, "pages", "")
    return figure


# -- lines and their keys -----------------------------------------------------------------------------


def _decode_curves(curves: pd.DataFrame, ways: list[str], ax: Axes | None) -> Figure:
    if curves.empty:
        return sentence_figure("There are no decode steps to draw.", ax)
    title = "Decode step over the length of the sequence: medians and spread"
    names = {
        "cache_len": "sequence of a row: prompt and generated (tokens)",
        "device_ms": "decode step (ms)",
    }
    return figure_of(_curves(curves, title, names, ways, ax))


def _line_text(way: str, value: object) -> str:
    """What a line's key says of one of its settings; a strategy is named without "decode"."""
    return str(value) if way == "strategy" else setting_text(way, value)


def _curves(
    table: pd.DataFrame, title: str, names: dict[str, str], ways: list[str], ax: Axes | None
) -> Axes:
    """A figure of one column over another, with its spread where it is known; ``floor_ms`` is
    dotted.

    Lines are called by what varies of the model and ``ways``, and have a look by that; each
    ``cell`` has one. ``names`` are those of the two columns, the horizontal one first. The vertical
    scale follows the bulk of each line.
    """
    _, (axes,) = new_figure(4.2, [title], ax)
    x, y = names
    loaded = ["model", *loaded_ways(table)] if "model" in table else []
    told = [way for way in (*loaded, *ways) if table[way].nunique() > 1] or ways[-1:]
    words = [[_line_text(way, value) for value in table[way]] for way in told]
    table = table.assign(line=[", ".join(each) for each in zip(*words, strict=True)])
    looks = dict(zip(dict.fromkeys(table["line"]), cycle(product(_LINES, _COLOURS)), strict=False))
    for _, rows in table.groupby(["line", "cell"], sort=False):
        style, colour = looks[rows["line"].iloc[0]]
        middle = rows.groupby(x).median(numeric_only=True).reset_index()
        ends = [middle[end] for end in (f"{y}_p10", f"{y}_p90") if end in middle]
        lines(axes, middle[x], middle[y], *ends, color=colour, linestyle=style)
        if len(rows) > len(middle):
            axes.plot(rows[x], rows[y], "o", color=colour, alpha=0.35, mew=0)
        if "floor_ms" in middle:
            axes.plot(middle[x], middle["floor_ms"], color=colour, **_DOTS)
    if "preset" in table and "preset" not in told:
        for turn, (preset, start) in enumerate(
            table.groupby("preset")[x].min().sort_values().items()
        ):
            axes.axvline(start, color=FAINT, linewidth=0.9, zorder=0)
            # In two lines, so that the names of neighbours do not meet.
            look: Any = {"textcoords": "offset points", "va": "top", **SMALL, "color": MUTED}
            place, shift = (start, 1), (3, -4 - 11 * (turn % 2))
            axes.annotate(str(preset), place, shift, xycoords=axes.get_xaxis_transform(), **look)
    bulk = table.groupby(["line", "cell"])[y].quantile(np.asarray([0.0, 0.98]))
    low, high = float(bulk.min()), float(bulk.max())
    # From zero, so that heights compare.
    axes.set_ylim(0, 1.22 * high)
    if low > 0 and high / low > _WIDE:
        _log_axis(axes.yaxis, low / 1.6, high * 2.0)
    name_axis(axes.xaxis, names[x], "")
    name_axis(axes.yaxis, names[y], "ms" if y.endswith("_ms") else "")
    keys = [
        Line2D([], [], color=look[1], linestyle=look[0], label=name) for name, look in looks.items()
    ]
    if "floor_ms" in table and table["floor_ms"].notna().any():
        keys.append(Line2D([], [], color=INK, label="floor", **_DOTS))
    legend_below(axes, keys)
    return axes


def _log_axis(axis: Axis, low: float, high: float) -> None:
    """A logarithmic axis between these, with plain numbers."""
    name = "x" if axis is axis.axes.xaxis else "y"
    axis.axes.set(**{f"{name}scale": "log", f"{name}lim": (low, high)})
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter("{x:,g}")
    axis.set_minor_formatter(NullFormatter())
