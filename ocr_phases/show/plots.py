"""The pictures of one record. Every function takes a PhaseRun and returns a matplotlib Figure of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LinearSegmentedColormap, Normalize, to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullLocator

from ocr_phases.analyse.floors import (
    Ceilings,
    ceilings_of,
    datasheet_ceilings,
    decode_floor,
    floor_table,
    rate_text,
    times_text,
    why_no_floor,
)
from ocr_phases.analyse.kernels import (
    has_kernels,
    idle_gaps,
    kernel_table,
    of_text,
    stage_verdict,
)
from ocr_phases.analyse.stages import spread_names, stage_table, step_table, typical_repeat
from ocr_phases.record import PHASES, PREFILL_STAGES, PhaseRun
from ocr_phases.show.figures import (
    FAINT,
    GOLD,
    GREEN,
    INK,
    MUTED,
    ORANGE,
    PHASE_COLOURS,
    PURPLE,
    REST,
    SMALL,
    STAGE_COLOURS,
    VERMILLION,
    Chart,
    Row,
    bar_charts,
    blank_figure,
    bunches,
    byte_axis,
    hbars,
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
from ocr_phases.text import bytes_text, count_text, ms_text, percent_text, stage_name

_NAMED_OUTLIERS = 4
_SMALL_SHARE = 0.01  # of a whole: what is smaller is drawn with others
_STEP_COLOURS = LinearSegmentedColormap.from_list("steps", [GOLD, ORANGE, VERMILLION], 16)
_UNITS = {"prefill": "the prefill", "decode": "one profiled decode step"}
_WHOLES = {"prefill": "whole prefill", "decode_step": "decode step"}
_CAUSES = {
    "host sync": ("the host had waited for the device", PURPLE),
    "launch": ("the host was late with the launch", VERMILLION),
    "device": ("the launch was there", REST),
}
_SOURCES = {"cuda_peak_allocated": "allocated on the device", "process_high_water_mark": "whole process"}
_ROOFS: dict[str, Any] = {
    "measured": {"color": INK, "linewidth": 1.6},
    "datasheet": {"color": MUTED, "linewidth": 1.2, "linestyle": (0, (6, 3))},
}
_MARKERS = {"global": "o", "local": "s", "": "D"}


# -- decode -------------------------------------------------------------------------------------------


@takes_axes
def plot_token_latency(
    run: PhaseRun, floor_ms: float | Sequence[float] | None = None, *, ax: Axes | None = None
) -> Figure:
    """Time of every decode step in ms: median over repeats, their spread as a band, outliers named.

    ``floor_ms`` draws what the hardware could do, one time or one a step (the column of
    `ocr_phases.analyse.floors.decode_floor`; an empty one draws nothing). The host's times are drawn where it
    reads every token. The scale follows the bulk of the steps: what lies above it, and a floor far below,
    is marked at the edge. ``ax`` are axes to draw on.
    """
    table = step_table(run)
    if table.empty:
        return sentence_figure("There were no decode steps, so there is no latency to draw.", ax)
    figure, axes = new_figure(3.9, ax)
    steps, repeats = table["step"], count_text(len(run.repeats), "repeat")
    own_clock = run.device.get("kind") == "cuda"
    clocks = ["device_ms"]
    # Where tokens are read every few steps, the host launches many at once and then waits for all of them.
    if own_clock and run.request.get("eos_check_every", 1) == 1:
        clocks.append("host_ms")
        # Wide and below the device's, so that it is seen where both are equal.
        lines(axes, steps, table["host_ms"], color=REST, linewidth=3.5, alpha=0.6, label="host, median")
    ends = table["device_ms_p10"], table["device_ms_p90"]
    spread = f"{' to '.join(spread_names(len(run.repeats)))} of {repeats}"
    name = "device, median" if own_clock else "median"
    lines(axes, steps, table["device_ms"], ends, spread, color=ORANGE, label=name)
    median = float(run.summary()["inter_token_ms"])
    axes.axhline(median, color=MUTED, linewidth=0.8, linestyle=":", zorder=1)
    outliers = table[table["outlier"]]
    floor = np.asarray([] if floor_ms is None else floor_ms, dtype=np.float64)
    # With few repeats p90 is close to the worst one: a wide band must not squeeze the line.
    high = max(table.loc[~table["outlier"], clocks].quantile(0.99).max(), ends[1].quantile(0.75), median)
    low, floor_top = ends[0].quantile(0.02), floor.max(initial=0.0)
    # Steps that are alike leave a height to their differences, unless the floor is near.
    bottom = 0.75 * low if low > 0.6 * high and floor_top < 0.3 * low else 0.0
    top = bottom + (1.6 if len(outliers) else 1.35) * (max(high, floor_top) - bottom)
    axes.set(xlim=(-0.5, steps.iloc[-1] + 0.5), ylim=(bottom, top), xlabel="decode step")
    if floor.size:
        _draw_floor(axes, steps, floor)
    above = (ends[1] > top) & ~table["outlier"]
    if above.any():
        edge: Any = {"marker": 6, "linestyle": "", "color": ORANGE, "label": "spread ends above"}
        axes.plot(steps[above], [top] * above.sum(), **edge)
    if len(outliers):
        _name_outliers(axes, outliers)
    time_axis(axes.yaxis, "time")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    count = len(table) * len(run.repeats)
    found = f"{ms_text(median)} in the median of {count:,}" if count > 1 else ms_text(median)
    title_axes(axes, f"Each decode step: {found}")
    legend_below(figure, axes.get_legend_handles_labels()[0], 5, ax)
    return figure


def plot_latency(run: PhaseRun, *, ax: Axes | None = None) -> Figure:
    """`plot_token_latency` over the record's own floor of each step. ``ax`` are axes to draw on."""
    return plot_token_latency(run, decode_floor(run)["floor_ms"].tolist(), ax=ax)


def _draw_floor(axes: Axes, steps: pd.Series, floor: np.ndarray) -> None:
    """The floor of each step; where it lies below the axes, a mark at their lower edge."""
    ends = " to ".join(dict.fromkeys((ms_text(floor.flat[0]), ms_text(floor.flat[-1]))))
    bottom, below = axes.get_ylim()[0], floor.max() < axes.get_ylim()[0]
    look: Any = {"color": GREEN, "label": f"hardware floor, {ends}{', far below' if below else ''}"}
    if below:
        axes.plot(steps.iloc[:1], [bottom], marker=7, markersize=8, linestyle="", clip_on=False, **look)
    else:
        curve = pd.Series(np.broadcast_to(floor, len(steps)), steps.index)
        lines(axes, steps, curve, linestyle=(0, (6, 2)), **look)


def _name_outliers(axes: Axes, outliers: pd.DataFrame) -> None:
    """Mark slow steps, at the top edge where they are above it, and name the slowest few."""
    top, last = axes.get_ylim()[1], axes.get_xlim()[1]
    shown = outliers["device_ms"].clip(upper=top)
    axes.plot(outliers["step"], shown, marker=6, linestyle="", color=INK, label="outlier")
    named = outliers.assign(shown=shown).nlargest(_NAMED_OUTLIERS, "device_ms").sort_values("step")
    for place, row in enumerate(named.to_dict("records")):
        text = "" if pd.isna(row["text"]) else printable(str(row["text"]), 12)
        side, shift = ("left", 0.015) if row["step"] < 0.7 * last else ("right", -0.015)
        axes.annotate(
            f"step {row['step']}{f' “{text}”' if text else ''}: {ms_text(row['device_ms'])}",
            (row["step"], row["shown"]),
            (row["step"] + shift * last, 0.93 - 0.08 * place),
            textcoords=("data", "axes fraction"),
            ha=side,
            va="center",
            **SMALL,
            arrowprops={"arrowstyle": "-", "color": MUTED, "relpos": (float(side == "right"), 0.5)},
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8, "alpha": 0.75},
        )


# -- stages -------------------------------------------------------------------------------------------


@takes_axes
def plot_vision_stages(run: PhaseRun, *, ax: Axes | None = None) -> Figure:
    """The prefill's stages as bars in ms with their share of it, by view; what no stage holds is hollow.

    Bars are medians over repeats, the lines their spread. Stages below a hundredth are one bar.
    ``ax`` are axes to draw on.
    """
    table = stage_table(run)
    table = table[table["phase"] == "prefill"]
    stages = table[table["stage"].isin(PREFILL_STAGES)]
    if stages.empty:
        reason = "This run has no prefill of its own, so there are no vision stages to draw."
        return sentence_figure(reason, ax)
    whole = float(table.loc[table["stage"] == "prefill", "device_ms"].iloc[0])
    stages = _in_order(stages)
    small = stages["device_ms"] < _SMALL_SHARE * whole
    small &= small.sum() > 1
    large = stages[~small]
    bars = [(_label(row), row["device_ms"], STAGE_COLOURS[row["stage"]]) for row in large.to_dict("records")]
    if small.any():
        bars.append(("other stages", stages.loc[small, "device_ms"].sum(), REST))
    bars.append(("between stages", max(0.0, whole - stages["device_ms"].sum()), FAINT))
    rows = [
        (name, [(0.0, ms, colour)], f"{ms_text(ms)}  ({percent_text(ms / whole if whole else None)})")
        for name, ms, colour in bars
    ]
    title = f"Vision is {percent_text(run['vision_share'])} of a prefill of {ms_text(whole)}"
    note = f", line: {' to '.join(spread_names(len(run.repeats)))} over repeats"
    several = len(run.repeats) > 1
    figure, (axes,) = bar_charts([Chart(title, rows, "time", note if several else "")], ax)
    if several:
        low, middle, high = (large[f"device_ms{end}"].to_numpy() for end in ("_p10", "", "_p90"))
        look: Any = {"elinewidth": 1.3, "capsize": 4, "capthick": 1.3, "ecolor": INK, "fmt": "none"}
        axes.errorbar(middle, range(len(middle)), xerr=(middle - low, high - middle), **look)
        axes.set_xlim(0, max(axes.get_xlim()[1], 1.02 * high.max(initial=0.0)))
        time_axis(axes.xaxis, "time", note)
    return figure


def _in_order(table: pd.DataFrame) -> pd.DataFrame:
    """Rows of stages in the order of the prefill; a phase's whole first."""
    order = {stage: place for place, stage in enumerate((*_WHOLES, *PREFILL_STAGES))}
    return table.sort_values("stage", key=lambda names: names.map(order), kind="stable", ignore_index=True)


def _label(row: Mapping[Any, Any]) -> str:
    name = _WHOLES.get(row["stage"]) or stage_name(row["stage"])
    return f"{name} {row['view']}".strip()


def plot_phase_timeline(run: PhaseRun, repeat: int | None = None) -> Figure:
    """One repeat from its start, in ms: prepare and prefill by stage, and below it the whole with every step.

    ``repeat`` defaults to the typical one (`typical_repeat`). Device times, where the device has a clock.
    """
    if repeat is None:
        repeat = typical_repeat(run)
    return plot_spans(run.spans[run.spans["repeat"] == repeat], f" (repeat {run.repeats.index(repeat) + 1})")


def plot_spans(spans: pd.DataFrame, note: str = "") -> Figure:
    """`plot_phase_timeline` of the spans of one repeat; ``note`` stands behind the first title."""
    if spans.empty:
        return sentence_figure("There are no spans to draw.")
    early = spans[spans["phase"].isin(("prepare", "prefill"))]
    steps = spans[spans["stage"] == "decode_step"]
    charts = []
    if len(early):
        stages = early[early["stage"] != early["phase"]].sort_values("device_start_ms")
        rows = [
            _lane(_label({"stage": stage, "view": view}), own, STAGE_COLOURS.get(str(stage), MUTED))
            for (stage, view), own in stages.groupby(["stage", "view"], sort=False)
        ]
        name = " and ".join(early["phase"].unique()).capitalize()
        charts.append(Chart(f"{name}, {ms_text(_end(early))}{note}", rows or _phase_lanes(early)))
    if len(early) < len(spans):
        tail = f", {count_text(len(steps), 'decode step')}" if len(steps) else ""
        charts.append(Chart(f"The whole run, {ms_text(_end(spans))}{tail}", _phase_lanes(spans)))
    charts[-1] = charts[-1]._replace(label="time since the start")
    figure, drawn = bar_charts(charts)
    if len(steps) > 1:
        scale = figure.colorbar(_step_scale(steps["device_ms"]), ax=drawn[-1], label="step (ms)")
        scale.outline.set_visible(False)
        style_axes(scale.ax)
    return figure


def _phase_lanes(spans: pd.DataFrame) -> list[Row]:
    """A lane a phase: of decode its steps, of others the whole, or what there is of it."""
    lanes = []
    for phase in (name for name in PHASES if (spans["phase"] == name).any()):
        own = spans[spans["phase"] == phase]
        whole, steps = (own[own["stage"] == stage] for stage in (phase, "decode_step"))
        pieces = next(part for part in (steps, whole, own) if len(part))
        name, bar, _ = _lane(phase, pieces, PHASE_COLOURS[phase])
        lanes.append((name, bar, ms_text((whole if len(whole) else pieces)["device_ms"].sum())))
    return lanes


def _lane(name: str, spans: pd.DataFrame, colour: str) -> Row:
    """Spans as a bar, each where it lies, and their sum; decode steps in the colour of their time."""
    bunch = bunches(len(spans))
    starts = spans["device_start_ms"].groupby(bunch).min()
    lengths = (spans["device_start_ms"] + spans["device_ms"]).groupby(bunch).max() - starts
    colours = [colour] * len(starts)
    if len(spans) > 1 and (spans["stage"] == "decode_step").all():
        slowest = spans["device_ms"].groupby(bunch).max()
        colours = [to_hex(each) for each in _step_scale(spans["device_ms"]).to_rgba(slowest.to_numpy())]
    return name, list(zip(starts, lengths, colours, strict=True)), ms_text(spans["device_ms"].sum())


def _step_scale(times: pd.Series) -> ScalarMappable:
    """The colours of decode steps by their time, over the bulk of the times."""
    return ScalarMappable(Normalize(*times.quantile((0.02, 0.98))), _STEP_COLOURS)


def _end(spans: pd.DataFrame) -> float:
    return float((spans["device_start_ms"] + spans["device_ms"]).max())


# -- memory -------------------------------------------------------------------------------------------


def plot_memory(run: PhaseRun) -> Figure:
    """Peak memory of each phase, and how the KV cache grows with every step."""
    if not any(run.memory.get("peak_bytes", {}).values()) and not run.cache.get("bytes"):
        return sentence_figure("Neither peak memory nor the KV cache was observed in this run.")
    figure = blank_figure(2.9)
    left, right = figure.subplots(1, 2)
    _draw_peaks(left, run)
    _draw_cache(right, run)
    return figure


def _draw_peaks(axes: Axes, run: PhaseRun) -> None:
    style_axes(axes)
    title_axes(axes, "Peak memory of each phase")
    bars = [
        (phase, max(peaks), PHASE_COLOURS[phase])
        for phase, peaks in run.memory.get("peak_bytes", {}).items()
        if peaks
    ]
    if not bars:
        sentence_figure("Peak memory could not be measured here.", axes)
        return
    bars.append(("weights", run.memory.get("weights_bytes") or 0, FAINT))
    hbars(axes, [(name, [(0.0, size, colour)], bytes_text(size)) for name, size, colour in bars if size])
    byte_axis(axes.xaxis, _SOURCES.get(str(run.memory.get("source")), "peak"))


def _draw_cache(axes: Axes, run: PhaseRun) -> None:
    style_axes(axes)
    title_axes(axes, "KV cache")
    sizes, lengths = run.cache.get("bytes") or [], run.cache.get("lengths") or []
    held = run.cache.get("entries") or lengths
    if not sizes:
        sentence_figure("The cache was not observed in this run.", axes)
        return
    steps = pd.Series(range(len(sizes)))
    lines(axes, steps, pd.Series(sizes), color=GREEN, linewidth=2)
    axes.set(xlim=(0, max(1, len(sizes) - 1)), ylim=(0, 1.22 * max(sizes)))
    for place in sorted({0, len(sizes) - 1}):
        tokens = f", {lengths[place]:,} tokens" if place < len(lengths) else ""
        tokens += f" seen, {held[place]:,} held" if tokens and held[place] < lengths[place] else ""
        last = place > 0
        axes.annotate(
            f"{bytes_text(sizes[place])}{tokens}",
            (place, sizes[place]),
            (-4, 6) if last else (4, -15 if len(sizes) > 1 else 6),
            textcoords="offset points",
            ha="right" if last else "left",
            **SMALL,
        )
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("decode steps done (0: after the prefill)")
    byte_axis(axes.yaxis, "keys and values")


# -- the device ---------------------------------------------------------------------------------------


def plot_kernels(run: PhaseRun) -> Figure:
    """Each stage's time in ms and the part of it that the device worked, with the verdict of `stage_verdict`.

    Prefill above, one decode step below; stages below a hundredth of them are left to the table. A sentence
    where the record has no kernel view.
    """
    if not has_kernels(run):
        return sentence_figure("This record has no kernel view: measure on a GPU with kernels=True.")
    table, charts = _in_order(stage_verdict(run)), []
    for phase, unit in _UNITS.items():
        stages, rows = table[table["phase"] == phase], []
        for row in stages[stages["wall_ms"] >= _SMALL_SHARE * stages["wall_ms"].max()].to_dict("records"):
            wall, busy = row["wall_ms"], min(row["busy_ms"], row["wall_ms"])
            works = f"{of_text(busy, wall)} ({percent_text(busy / wall)}), {row['verdict']}"
            rows.append((_label(row), stacked([(busy, GREEN), (wall - busy, FAINT)]), works))
        if rows:
            title = f"{unit.capitalize()} is {stages['verdict'].iloc[0]}"
            charts.append(Chart(title, rows, "time in the timed runs"))
    if not charts:
        return sentence_figure("The profiler saw no kernel in the stages of this run.")
    figure, _ = bar_charts(charts)
    keys = [Patch(color=GREEN, label="the GPU works"), Patch(fc=FAINT, ec=REST, label="the GPU waits")]
    legend_below(figure, keys, 2)
    return figure


def plot_idle_gaps(run: PhaseRun) -> Figure:
    """Idle time between the device's work by its cause: prefill and a decode step.

    The titles say how long the device is idle in the timed runs. The bars were seen under the profiler, where
    the host is slower and gaps are longer. Raises `OcrPhasesError` without a kernel view.
    """
    table, charts = idle_gaps(run), []
    stages = kernel_table(run).dropna(subset="wall_ms")
    wholes = stages[stages["stage"].isin(_WHOLES)].set_index("stage").to_dict("index")
    for (phase, unit), whole in zip(_UNITS.items(), _WHOLES, strict=True):
        gaps = table[table["phase"] == phase]
        if gaps.empty:
            continue
        idle = gaps.groupby("cause")["idle_ms"].sum()
        rows = [
            (name, [(0.0, ms, colour)], ms_text(ms))
            for cause, (name, colour) in _CAUSES.items()
            for ms in [idle.get(cause, 0.0)]
        ]
        title = f"Idle in {unit}"
        if whole in wholes:  # else the timed runs have no such stage
            busy, wall = (wholes[whole][clock] for clock in ("busy_ms", "wall_ms"))
            title = f"{unit.capitalize()} is idle for {of_text(max(0.0, wall - busy), wall)}"
        told = f": {gaps['gaps'].sum():,.0f} gaps, {ms_text(idle.sum())}"
        charts.append(Chart(title, rows, "idle time under the profiler", told))
    if not charts:
        return sentence_figure("The device was never idle between two kernels.")
    return bar_charts(charts)[0]


@takes_axes
def plot_roofline(run: PhaseRun, *, ax: Axes | None = None) -> Figure:
    """FLOP/s over FLOPs a byte, both logarithmic: ceilings as lines, each stage a point with its distance.

    After Williams, Waterman and Patterson 2009, "Roofline: an insightful visual performance model". The
    measured ceilings are solid; a datasheet's are dashed. Prefill stages have a point a view; the decode step
    is one point. A point's area is its part of the time of its phase, those below a hundredth are left to the
    table; a dotted line leads to its ceiling. ``ax`` are axes to draw on. A sentence where there is no floor.
    """
    reason, ceilings, sheet = why_no_floor(run), ceilings_of(run), datasheet_ceilings(run)
    if reason is not None or ceilings is None:
        return sentence_figure(reason or "", ax)
    table = floor_table(run)
    share = table["device_ms"] / table.groupby("phase")["device_ms"].transform("max")
    points = table.assign(share=share, rate=table["flops"] / table["device_ms"] * 1e3)
    points = points[points["share"] >= _SMALL_SHARE].sort_values("times_floor")
    points = points.query("stage == 'decode_step' or (phase == 'prefill' and stage != 'prefill')")
    figure, axes = new_figure(4.6, ax)
    axes.set(xscale="log", yscale="log")
    roofs = [ceilings] + ([sheet] if sheet and sheet.source != ceilings.source else [])
    ridges = [roof.flops_per_s / roof.bandwidth_bytes_per_s for roof in roofs]
    ends = min(points["intensity"].min(), *ridges) / 3, max(points["intensity"].max(), *ridges) * 3
    for roof, ridge in zip(roofs, ridges, strict=True):
        at = [ends[0], ridge, ends[1]]
        rates = f"{rate_text(roof.bandwidth_bytes_per_s)}B/s, {rate_text(roof.flops_per_s)}FLOP/s"
        label = f"{roof.name if ax is None else roof.source}: {rates}"
        axes.plot(at, [_roof(roof, each) for each in at], label=label, **_ROOFS[roof.source])
    names = [f"{_label(row)}, {times_text(row['times_floor'])}" for row in points.to_dict("records")]
    for row, name in zip(points.to_dict("records"), names, strict=True):
        colour = STAGE_COLOURS.get(row["stage"], ORANGE)
        at, rate, size = row["intensity"], row["rate"], 5 + 9 * row["share"] ** 0.5
        axes.plot(
            [at, at], [rate, _roof(ceilings, at)], color=colour, linewidth=1.1, linestyle=":", zorder=1.5
        )
        axes.plot(at, rate, _MARKERS.get(row["view"], "D"), color=colour, mec=INK, ms=size, label=name)
    bottom = min(points["rate"].min(), _roof(ceilings, ends[0])) / 3
    axes.set(xlim=ends, ylim=(bottom, 3 * max(roof.flops_per_s for roof in roofs)))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: rate_text(value).strip()))
        axis.set_minor_locator(NullLocator())
    axes.set_xlabel("arithmetic intensity (FLOPs a byte of weights and KV cache)")
    axes.set_ylabel("done (FLOP/s)")
    title_axes(axes, f"Farthest from its ceiling: {names[-1]} its floor")
    legend_below(figure, axes.get_legend_handles_labels()[0], 4, ax)
    return figure


def _roof(ceilings: Ceilings, intensity: float) -> float:
    """The best FLOP/s of so many FLOPs a byte."""
    return min(intensity * ceilings.bandwidth_bytes_per_s, ceilings.flops_per_s)
