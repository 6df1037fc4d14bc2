"""The pictures of one record. Every function takes a PhaseRun and returns a matplotlib Figure of its own.

No pyplot and no global state: a figure can be drawn in any thread and is freed with its last reference.
Figures are 10 inches wide, so that at the report's width type is as large as its points say. Colours are
Okabe and Ito's, told apart with any colour vision.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, ParamSpec

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.text import Text
from matplotlib.ticker import FuncFormatter, MaxNLocator

from ocr_phases.analyse.floors import decode_floor
from ocr_phases.analyse.stages import spread_names, stage_table, step_table, typical_repeat
from ocr_phases.families import VISION_STAGES
from ocr_phases.record import PHASES, PREFILL_STAGES, PhaseRun
from ocr_phases.show.bars import draw_bars
from ocr_phases.show.figures import LiteralFigure, Margins
from ocr_phases.show.overlay import printable
from ocr_phases.text import bytes_text, count_text, ms_text, percent_text, stage_name

WIDTH = 10.0
_SENTENCE_LINE = 52

INK, MUTED, FAINT = "#222222", "#666666", "#d9d9d9"
ON_LIGHT = "#111111"  # type on a light bar: unlike INK it stays dark where a report is dark
ORANGE, SKY, GREEN, YELLOW = "#E69F00", "#56B4E9", "#009E73", "#F0E442"
BLUE, VERMILLION, PURPLE = "#0072B2", "#D55E00", "#CC79A7"

PHASE_COLOURS = {"prepare": "#8c8c8c", "prefill": BLUE, "decode": ORANGE, "generate": GREEN}
STAGE_COLOURS = {
    "load_image": "#5c5c5c",
    "tokenizer": "#8c8c8c",
    "transfer": "#bdbdbd",
    "sam": BLUE,
    "clip": SKY,
    "encoder": SKY,
    "projector": GREEN,
    "vision_fusion": PURPLE,
    "language_model": ORANGE,
    "lm_head": VERMILLION,
    "sampling": YELLOW,
}
_VIEW_COLOURS = {"global": BLUE, "local": SKY, "": BLUE}
_NAMED_OUTLIERS = 4
_ROW_HEIGHT = 0.62
_MOST_MARKS = 1_000  # a figure is as many CSS pixels wide

_Given = ParamSpec("_Given")


def takes_axes(plot: Callable[_Given, Figure]) -> Callable[_Given, Figure]:
    """A plot that also draws on the caller's ``ax``: its texts stay literal there, as in a figure of ours."""

    @wraps(plot)
    def drawn(*args: _Given.args, **options: _Given.kwargs) -> Figure:
        figure = plot(*args, **options)
        axes = options.get("ax")
        if isinstance(axes, Axes):
            for text in axes.findobj(lambda artist: isinstance(artist, Text)):
                text.set(parse_math=False)
        return figure

    return drawn


@takes_axes
def plot_token_latency(
    run: PhaseRun, floor_ms: float | Sequence[float] | None = None, *, ax: Axes | None = None
) -> Figure:
    """Time of every decode step in ms: median over repeats, their spread as a band, outliers named.

    ``floor_ms`` draws what the hardware could do, one time or one a step (the column of
    `ocr_phases.analyse.floors.decode_floor`; an empty one draws nothing). The host's times are drawn where it
    reads every token. The scale follows the bulk of the steps, a step above it is marked at the top edge with
    its time. ``ax`` are axes to draw on.
    """
    table = step_table(run)
    if table.empty:
        return sentence_figure("There were no decode steps, so there is no latency to draw.", ax)
    figure, axes = new_figure(3.9, ax=ax)
    drawn = _fewer(table)
    steps, device = drawn["step"].to_numpy(), drawn["device_ms"].to_numpy()
    own_clock = run.device.get("kind") == "cuda"
    name = "device, median" if own_clock else "median"
    marker = "o" if len(table) == 1 else ""
    if len(run.repeats) > 1:
        axes.fill_between(
            steps,
            drawn["device_ms_p10"],
            drawn["device_ms_p90"],
            color=BLUE,
            alpha=0.22,
            linewidth=0,
            label=f"{' to '.join(spread_names(len(run.repeats)))} of {len(run.repeats)} repeats",
        )
    axes.plot(steps, device, color=BLUE, linewidth=1.3, marker=marker, label=name)
    # Where tokens are read every few steps, the host launches many at once and then waits for all of them.
    clocks = ["device_ms"]
    if own_clock and run.request.get("eos_check_every", 1) == 1:
        clocks.append("host_ms")
        axes.plot(
            steps, drawn["host_ms"], color=VERMILLION, linewidth=1.0, linestyle="--", label="host, median"
        )
    median = float(run.summary()["inter_token_ms"])
    axes.axhline(median, color=MUTED, linewidth=0.8, linestyle=":", zorder=1)
    floor = np.asarray([] if floor_ms is None else floor_ms, dtype=np.float64)
    if floor.size:
        curve = np.broadcast_to(floor, len(table))[drawn.index]
        ends = dict.fromkeys((ms_text(curve[0]), ms_text(curve[-1])))
        label = f"hardware floor, {' to '.join(ends)}"
        axes.plot(steps, curve, color=GREEN, linewidth=1.4, linestyle=(0, (6, 2)), marker=marker, label=label)
    # With few repeats p90 is close to the worst one: a wide band must not squeeze the line.
    usual = float(table.loc[~table["outlier"], clocks].quantile(0.99).max())
    band = float(table["device_ms_p90"].quantile(0.75))
    room = 1.6 if table["outlier"].any() else 1.35  # for the names of outliers
    top = room * max(usual, band, median, floor.max(initial=0.0))
    axes.set_ylim(0, top)
    last = int(table["step"].iloc[-1])
    axes.set_xlim(-0.5, max(last, 0) + 0.5)
    _name_outliers(axes, table[table["outlier"]], top, last)
    axes.set_xlabel("decode step")
    time_axis(axes.yaxis, "time of the step")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    found = f"{ms_text(median)} in the median of {len(table):,}" if len(table) > 1 else ms_text(median)
    title_axes(axes, f"Each decode step: {found}")
    legend_below(figure, axes.get_legend_handles_labels()[0], 5, ax)
    return figure


def plot_latency(run: PhaseRun, *, ax: Axes | None = None) -> Figure:
    """`plot_token_latency` over the record's own floor of each step. ``ax`` are axes to draw on."""
    return plot_token_latency(run, decode_floor(run)["floor_ms"].tolist(), ax=ax)


@takes_axes
def plot_vision_stages(run: PhaseRun, *, ax: Axes | None = None) -> Figure:
    """The prefill's stages as bars in ms with their share of it; vision by view, the rest in grey below.

    Bars are medians over repeats, the lines their spread.
    ``ax`` are axes to draw on.
    """
    table = stage_table(run)
    table = table[table["phase"] == "prefill"]
    stages = table[table["stage"].isin(PREFILL_STAGES)]
    if stages.empty:
        reason = "This run has no prefill of its own, so there are no vision stages to draw."
        return sentence_figure(reason, ax)
    whole = float(table.loc[table["stage"] == "prefill", "device_ms"].iloc[0])
    stages = stages.sort_values(
        "stage", key=lambda column: column.map(PREFILL_STAGES.index), kind="stable"
    ).reset_index(drop=True)
    figure, axes = new_figure(1.5 + 0.36 * (len(stages) + 1), ax=ax)
    labels, bars = [], []
    for place, row in enumerate(stages.to_dict("records")):
        vision = row["stage"] in (*VISION_STAGES, "vision_fusion")
        colour = _VIEW_COLOURS.get(row["view"], BLUE) if row["stage"] in VISION_STAGES else PURPLE
        ends = (row["device_ms_p10"], row["device_ms_p90"])
        bars.append((row["device_ms"], ends[1], colour if vision else "#b5b5b5"))
        if len(run.repeats) > 1:
            axes.plot(ends, (place, place), color=INK, linewidth=1.1, solid_capstyle="butt")
        labels.append(" ".join(filter(None, (stage_name(row["stage"]), row["view"]))))
    rest = max(0.0, whole - float(stages["device_ms"].sum()))
    bars.append((rest, rest, FAINT))
    times, ends_at, colours = zip(*bars, strict=True)
    draw_bars(axes, [(0, place - 0.35, ms, 0.7) for place, ms in enumerate(times)], colours)
    for place, (ms, end) in enumerate(zip(times, ends_at, strict=True)):
        text = f"{ms_text(ms)}  ({percent_text(ms / whole if whole else None)})"
        label_bar(axes, max(ms, end), place, text)
    axes.set_yticks(range(len(bars)), [*labels, "between stages"])
    axes.invert_yaxis()
    longest = max(float(stages["device_ms_p90"].max()), rest)
    axes.set_xlim(0, 1.18 * longest)
    axes.grid(visible=False, axis="y")
    names = " to ".join(spread_names(len(run.repeats)))
    time_axis(axes.xaxis, "time", f", line: {names} over repeats" if len(run.repeats) > 1 else "")
    title_axes(axes, f"Vision is {percent_text(run['vision_share'])} of a prefill of {ms_text(whole)}")
    views = [view for view in ("global", "local") if (stages["view"] == view).any()]
    keys = [Patch(color=_VIEW_COLOURS[view], label=f"{view} view") for view in views]
    keys += [Patch(color=PURPLE, label="fusion with the text"), Patch(color="#b5b5b5", label="no vision")]
    axes.legend(handles=keys, loc="lower right", fontsize=9, frameon=False)
    return figure


def plot_phase_timeline(run: PhaseRun, repeat: int | None = None) -> Figure:
    """One repeat from its start, in ms: prepare and prefill by stage, and below it the whole with every step.

    ``repeat`` defaults to the typical one (`typical_repeat`). Device times, where the device has a clock.
    """
    if repeat is None:
        repeat = typical_repeat(run)
    return plot_spans(run.spans[run.spans["repeat"] == repeat], f" (repeat {repeat})")


def plot_spans(spans: pd.DataFrame, note: str = "") -> Figure:
    """`plot_phase_timeline` of the spans of one repeat; ``note`` stands behind the first title."""
    if spans.empty:
        return sentence_figure("There are no spans to draw.")
    early = spans[spans["phase"].isin(("prepare", "prefill"))]
    panels = [part for part in (early, spans) if len(part)]
    if len(early) == len(spans):
        panels = [early]
    figure = blank_figure(0.2 + 2.4 * len(panels))
    for axes, part in zip(figure.subplots(len(panels), squeeze=False)[:, 0], panels, strict=True):
        _lanes(axes, part, _ends(part))
        time_axis(axes.xaxis, "time since the start" if part is panels[-1] else "")
        if part is early:
            _stage_keys(axes, part)
            name = " and ".join(part["phase"].unique()).capitalize()
            title_axes(axes, f"{name}, {ms_text(_ends(part))}{note}")
        else:
            steps = int((part["stage"] == "decode_step").sum())
            tail = f", {count_text(steps, 'decode step')}" if steps else ""
            title_axes(axes, f"The whole run, {ms_text(_ends(part))}{tail}")
    return figure


def plot_memory(run: PhaseRun) -> Figure:
    """Peak memory of each phase, and how the KV cache grows with every step."""
    if not any(run.memory.get("peak_bytes", {}).values()) and not run.cache.get("bytes"):
        return sentence_figure("Neither peak memory nor the KV cache was observed in this run.")
    figure = blank_figure(3.3)
    left, right = figure.subplots(1, 2, width_ratios=(1.0, 1.25))
    _draw_peaks(left, run)
    _draw_cache(right, run)
    return figure


def _draw_peaks(axes: Axes, run: PhaseRun) -> None:
    style_axes(axes)
    title_axes(axes, "Peak memory of each phase")
    peaks = {phase: max(values) for phase, values in run.memory.get("peak_bytes", {}).items() if values}
    peaks = {phase: peaks[phase] for phase in PHASES if phase in peaks}
    if not peaks:
        _inside(axes, "Peak memory could not be measured here.")
        return
    for place, (phase, peak) in enumerate(peaks.items()):
        axes.bar(place, peak, color=PHASE_COLOURS[phase], width=0.62)
        axes.annotate(
            bytes_text(peak), (place, peak), (0, 3), textcoords="offset points", ha="center", fontsize=9
        )
    weights = run.memory.get("weights_bytes")
    if weights:
        label = f"weights {bytes_text(weights)}"
        axes.axhline(weights, color=INK, linewidth=1.0, linestyle="--", label=label)
        axes.legend(loc="lower left", fontsize=9, framealpha=0.9)
    axes.set_xticks(range(len(peaks)), list(peaks))
    axes.set_ylim(0, 1.18 * max(*peaks.values(), weights or 0))
    axes.grid(visible=False, axis="x")
    sources = {"cuda_peak_allocated": "allocated on the device", "process_high_water_mark": "whole process"}
    byte_axis(axes.yaxis, sources.get(str(run.memory.get("source")), "peak"))


def _draw_cache(axes: Axes, run: PhaseRun) -> None:
    style_axes(axes)
    title_axes(axes, "KV cache")
    sizes, lengths = run.cache.get("bytes") or [], run.cache.get("lengths") or []
    held = run.cache.get("entries") or lengths
    if not sizes:
        _inside(axes, "The cache was not observed in this run.")
        return
    after = np.unique(np.linspace(0, len(sizes) - 1, min(len(sizes), _MOST_MARKS)).astype(int))
    drawn = np.asarray(sizes)[after]
    axes.fill_between(after, drawn, color=GREEN, alpha=0.18, linewidth=0)
    axes.plot(after, drawn, color=GREEN, linewidth=1.6, marker="o" if len(sizes) == 1 else "")
    axes.set_xlim(0, max(1, len(sizes) - 1))
    axes.set_ylim(0, 1.22 * max(sizes))
    named = [(len(sizes) - 1, "right", -4, 6) if len(sizes) > 1 else (0, "left", 4, 6)]
    # The first is named under the line, if there is room under it.
    if len(sizes) > 1 and sizes[0] > 0.15 * sizes[-1]:
        named.append((0, "left", 4, -15))
    for place, side, right, up in named:
        tokens = f", {lengths[place]:,} tokens" if place < len(lengths) else ""
        tokens += f" seen, {held[place]:,} held" if tokens and held[place] < lengths[place] else ""
        axes.annotate(
            f"{bytes_text(sizes[place])}{tokens}",
            (place, sizes[place]),
            (right, up),
            textcoords="offset points",
            ha=side,
            fontsize=9,
        )
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("decode steps done (0: after the prefill)")
    byte_axis(axes.yaxis, "keys and values")


def _name_outliers(axes: Axes, outliers: pd.DataFrame, top: float, last: int) -> None:
    """Mark slow steps, at the top edge where they are above it, and name the slowest few."""
    if outliers.empty:
        return
    shown = outliers["device_ms"].clip(upper=0.975 * top)
    axes.plot(outliers["step"], shown, "^", color=VERMILLION, markersize=6, linestyle="", label="outlier")
    named = outliers.nlargest(_NAMED_OUTLIERS, "device_ms").sort_values("step")
    for place, (_, row) in enumerate(named.iterrows()):
        text = "" if pd.isna(row["text"]) else printable(str(row["text"]), 12)
        token = f" “{text}”" if text else ""
        left = row["step"] < 0.72 * last
        axes.annotate(
            f"step {row['step']}{token}: {ms_text(row['device_ms'])}",
            (row["step"], min(row["device_ms"], 0.975 * top)),
            (row["step"] + (0.015 if left else -0.015) * last, 0.95 - 0.075 * place),
            textcoords=("data", "axes fraction"),
            ha="left" if left else "right",
            va="center",
            fontsize=9,
            color=INK,
            arrowprops={
                "arrowstyle": "-",
                "color": VERMILLION,
                "linewidth": 0.7,
                "relpos": (0.0 if left else 1.0, 0.5),
            },
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8, "alpha": 0.75},
        )


def _lanes(axes: Axes, spans: pd.DataFrame, end: float) -> None:
    """Phases in the upper lane, stages (in decode: steps) in the lower one."""
    style_axes(axes)
    blocks = []
    for row in spans[spans["stage"] == spans["phase"]].to_dict("records"):
        phase, start, length = row["phase"], row["device_start_ms"], row["device_ms"]
        name = f"{phase} {ms_text(length)}" if length > 0.16 * end else phase
        blocks.append((1, start, length, PHASE_COLOURS[phase], name))
    steps = spans[spans["stage"] == "decode_step"].sort_values("step")
    if len(steps):
        bunch = _bunches(len(steps))
        starts = steps["device_start_ms"].groupby(bunch).min()
        ends = (steps["device_start_ms"] + steps["device_ms"]).groupby(bunch).max()
        slowest = steps["device_ms"].groupby(bunch).max()
        bars = list(zip(starts, ends - starts, strict=True))
        shades = _step_shades(slowest.to_numpy())
        axes.broken_barh(bars, (-_ROW_HEIGHT / 2, _ROW_HEIGHT), facecolors=shades, linewidth=0)
        axes.text(end, -0.42, "darker: slower step", ha="right", va="top", fontsize=9, color=MUTED)
    inner = spans[(spans["stage"] != spans["phase"]) & (spans["phase"] != "decode")]
    for row in inner.to_dict("records"):
        stage, start, length = row["stage"], row["device_start_ms"], row["device_ms"]
        name, view = stage_name(stage), row["view"]
        if view and _fits(f"{name} {view}", length, end):
            name = f"{name} {view}"
        blocks.append((0, start, length, STAGE_COLOURS.get(stage, MUTED), name))
    _draw_blocks(axes, blocks, end)
    axes.set_yticks((1, 0), ("phase", "step" if len(steps) else "stage"))
    if len(steps) and len(inner):
        axes.set_yticks((1, 0), ("phase", "stage, step"))
    axes.set_ylim(-0.75 if len(steps) else -0.5, 1.5)
    axes.set_xlim(0, end * 1.005 or 1.0)
    axes.grid(visible=False, axis="y")


def _draw_blocks(axes: Axes, blocks: Sequence[tuple[int, float, float, str, str]], end: float) -> None:
    """Blocks of a lane, start, length, colour and name, with the names that fit."""
    places = [(start, lane - _ROW_HEIGHT / 2, length, _ROW_HEIGHT) for lane, start, length, *_ in blocks]
    # An outline would hide a block that is as thin as itself.
    outlines = [0.6 if length > 0.01 * end else 0.0 for _, _, length, *_ in blocks]
    colours = [colour for *_, colour, _ in blocks]
    draw_bars(axes, places, colours, edgecolors="white", linewidths=outlines)
    for lane, start, length, colour, name in blocks:
        if _fits(name, length, end):
            light = colour in (YELLOW, SKY, ORANGE, "#bdbdbd", PURPLE)
            axes.text(
                start + length / 2,
                lane,
                name,
                ha="center",
                va="center",
                fontsize=9,
                color=ON_LIGHT if light else "white",
            )


def _fits(name: str, length: float, end: float) -> bool:
    """Whether a block can carry its name: about 140 characters of 9 points fit across a panel."""
    return length / (end or 1.0) * 140 > len(name) + 1


def _bunches(count: int) -> np.ndarray:
    """The bunch of each of so many marks: one each, or as many bunches as a figure has room for."""
    places = np.arange(count)
    return places if count <= 2 * _MOST_MARKS else places * _MOST_MARKS // count


def _fewer(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of a step table that a line needs: all, or the fastest and the slowest of each bunch."""
    each = table["device_ms"].groupby(_bunches(len(table)))
    return table.loc[sorted({*each.idxmin(), *each.idxmax()})]


def _step_shades(times: np.ndarray) -> np.ndarray:
    """RGBA [n, 4] of steps from light to dark orange by their time, over the bulk of the times."""
    low, high = np.quantile(times, (0.02, 0.98))
    place = np.clip((times - low) / ((high - low) or 1.0), 0.0, 1.0)
    return np.asarray(matplotlib.colormaps["YlOrBr"](0.35 + 0.55 * place))


def _stage_keys(axes: Axes, spans: pd.DataFrame) -> None:
    """Every stage's colour and time under the panel: most blocks are too narrow to carry their name."""
    inner = spans[spans["stage"] != spans["phase"]]
    sums = inner.groupby("stage", sort=False)["device_ms"].sum()
    keys = [
        Patch(color=STAGE_COLOURS.get(stage, MUTED), label=f"{stage_name(stage)} {ms_text(ms)}")
        for stage, ms in zip(map(str, sums.index), sums, strict=True)
    ]
    if keys:
        columns = math.ceil(len(keys) / 2) if len(keys) > 5 else len(keys)
        axes.legend(
            handles=keys,
            loc="upper center",
            bbox_to_anchor=(0.5, -0.14),
            ncols=columns,
            fontsize=9,
            frameon=False,
            handlelength=1.2,
            columnspacing=1.4,
        )


def _ends(spans: pd.DataFrame) -> float:
    ends = spans["device_start_ms"] + spans["device_ms"]
    return float(ends.max()) if len(spans) else 0.0


def blank_figure(height: float, width: float = WIDTH) -> Figure:
    """A figure of the report's width that draws every text as it stands; sizes in inches."""
    return LiteralFigure(figsize=(width, height), layout=Margins(), facecolor="white")


def new_figure(height: float, width: float = WIDTH, ax: Axes | None = None) -> tuple[Figure, Axes]:
    """A figure of the report's width with one pair of axes, in inches; or ``ax``, dressed, and its figure."""
    axes = blank_figure(height, width).subplots() if ax is None else ax
    style_axes(axes)
    return figure_of(axes), axes


def figure_of(axes: Axes) -> Figure:
    """The figure that axes belong to, also where they lie in a part of it."""
    figure = axes.figure
    while not isinstance(figure, Figure):
        figure = figure.figure
    return figure


def style_axes(axes: Axes) -> None:
    """The look that every plot here shares."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#999999")
    axes.grid(visible=True, color="#e6e6e6", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=9.5, colors="#444444", labelcolor=INK)
    axes.xaxis.label.set(fontsize=10, color=INK)
    axes.yaxis.label.set(fontsize=10, color=INK)


def label_bar(axes: Axes, end: float, place: int, text: str) -> None:
    """Words behind a horizontal bar that ends at ``end``."""
    axes.annotate(text, (end, place), (7, 0), textcoords="offset points", va="center", fontsize=9, color=INK)


def legend_below(figure: Figure, keys: Sequence[Artist], columns: int, ax: Axes | None = None) -> None:
    """The keys of a whole figure, under it; or under the caller's ``ax``, which may stand among others."""
    look: dict[str, Any] = {"fontsize": 9, "frameon": False, "labelcolor": INK}
    if ax is None:
        figure.legend(handles=keys, loc="outside lower center", ncols=columns, **look)
    else:
        look |= {"ncols": min(columns, 3), "bbox_to_anchor": (0.5, -0.16)}
        ax.legend(handles=keys, loc="upper center", **look)


def title_axes(axes: Axes, text: str) -> None:
    """Set a plot's title, which states the finding."""
    # Its place given, matplotlib need not look for it above what is drawn: nothing is.
    axes.set_title(text, loc="left", y=1.0, fontsize=11.5, fontweight="bold", color=INK, pad=9)


def time_axis(axis: Axis, label: str = "", note: str = "") -> None:
    """Name an axis of ms in the unit that suits its size, as `ms_text` would; after its limits are set.

    ``note`` comes behind the unit. Without a label each tick has its unit.
    """
    low, high = sorted(axis.get_view_interval())
    size = math.sqrt(low * high) if axis.get_scale() == "log" else high
    scale, unit = (1e3, "s") if size >= 1e3 else (1.0, "ms")
    behind = "" if label else f" {unit}"
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / scale:,g}{behind}"))
    if label:
        axis.set_label_text(f"{label} ({unit}){note}")


def byte_axis(axis: Axis, label: str) -> None:
    """Ticks of an axis of bytes in one decimal unit that suits it; after its limits are set."""
    top = axis.get_view_interval()[1]
    units: Sequence[tuple[float, str]] = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "bytes"))
    size, unit = next((pair for pair in units if top >= pair[0]), units[-1])
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / size:g}"))
    axis.set_major_locator(MaxNLocator(nbins=5, steps=[1, 2, 2.5, 5, 10]))
    axis.set_label_text(f"{label} ({unit})")


def _inside(axes: Axes, text: str) -> None:
    axes.set_axis_off()
    axes.text(0.5, 0.5, text, ha="center", va="center", fontsize=10, color=MUTED, transform=axes.transAxes)


def sentence_figure(text: str, ax: Axes | None = None) -> Figure:
    """A figure with one sentence in place of a plot; or ``ax`` with that sentence."""
    axes = blank_figure(1.0).subplots() if ax is None else ax
    # On the left and in short lines, for a screen that shows no more of it.
    lines = "\n".join(textwrap.wrap(text, _SENTENCE_LINE))
    axes.set_axis_off()
    axes.text(0, 0.5, lines, ha="left", va="center", fontsize=10, color=MUTED, transform=axes.transAxes)
    return figure_of(axes)
