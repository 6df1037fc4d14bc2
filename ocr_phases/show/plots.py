"""The pictures of one record. Every function takes a Record and returns a matplotlib Figure of its
own.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import EngFormatter
from matplotlib.transforms import offset_copy

from ocr_phases.analyse.figures import summary
from ocr_phases.analyse.floors import (
    Ceilings,
    ceilings_of,
    datasheet_ceilings,
    decode_floor,
    floor_table,
    times_text,
    why_no_floor,
)
from ocr_phases.analyse.kernels import has_kernels, of_text, stage_verdict
from ocr_phases.analyse.noise import ceilings_are_wrong
from ocr_phases.analyse.stages import (
    PREFILL_STAGES,
    spread_names,
    stage_table,
    step_table,
    token_of_step,
    typical_repeat,
)
from ocr_phases.record import PHASES, Record, is_whole_phase
from ocr_phases.show.figures import (
    FAINT,
    GREEN,
    INK,
    MUTED,
    ORANGE,
    PHASE_COLOURS,
    REST,
    SMALL,
    STAGE_COLOURS,
    Row,
    bar_charts,
    hbars,
    legend_below,
    lines,
    name_axis,
    new_figure,
    sentence_figure,
    stacked,
)
from ocr_phases.show.page import printable
from ocr_phases.text import (
    bytes_text,
    count_text,
    filled,
    ms_text,
    percent_text,
    rate_text,
    stage_name,
)

_NAMED_OUTLIERS = 4
_SMALL_SHARE = 0.01  # of a whole: what is smaller is drawn with others
_CLOCK_ROUNDING_MS = 1e-5  # starts and lengths of spans are rounded, each by itself
_WHOLES = {"prefill": "whole prefill", "decode_step": "decode step"}
_SOURCES = {
    "cuda_peak_allocated": "allocated on the device",
    "process_high_water_mark": "whole process",
}
#: What is said of the KV cache's end, by the entries of a record.
_CACHE = {"bytes": "{x:bytes}", "lengths": "{x:,} tokens", "entries": "{x:,} held"}
#: Colour, width and style of the line of a ceiling, by its source.
_ROOFS: dict[str, Any] = {"measured": (INK, 1.6, "-"), "datasheet": (MUTED, 1.2, (0, (6, 3)))}


# -- decode -------------------------------------------------------------------------------------------


def plot_latency(run: Record, *, ax: Axes | None = None) -> Figure:
    """Time of every decode step in ms: median over repeats, their spread as a band, outliers named.

    Below it is the record's floor of each step (`ocr_phases.analyse.floors.decode_floor`). The
    host's times are drawn where it reads every token. The scale follows the bulk of the steps: what
    lies above it, and a floor far below, is marked at the edge. ``ax`` are axes to draw on.
    """
    table = step_table(run)
    table = table.assign(token=token_of_step(run, table["step"]))
    if table.empty:
        return sentence_figure("There were no decode steps, so there is no latency to draw.", ax)
    count, median = len(table) * len(run.repeats), float(summary(run)["inter_token_ms"])
    _, (axes,) = new_figure(
        3.9, [f"Each decode step: {ms_text(median)} in the median of {count:,}"], ax
    )
    steps, slow, low, high = (
        table[name] for name in ("token", "outlier", "device_ms_p10", "device_ms_p90")
    )
    own_clock, clocks = run.device.kind == "cuda", ["device_ms"]
    # Where tokens are read every few steps, the host launches many at once and then waits for all
    # of them.
    if own_clock and (run.request.eos_check_every or 1) == 1:
        clocks.append("host_ms")
        # Wide and below the device's, so that it is seen where both are equal.
        lines(
            axes,
            steps,
            table["host_ms"],
            color=REST,
            linewidth=3.5,
            alpha=0.6,
            label="host, median",
        )
    band = (
        f"{' to '.join(spread_names(len(run.repeats)))} of {count_text(len(run.repeats), 'repeat')}"
    )
    name = "device, median" if own_clock else "median"
    lines(axes, steps, table["device_ms"], low, high, band=band, color=ORANGE, label=name)
    axes.axhline(median, color=MUTED, linewidth=0.8, linestyle=":", zorder=1)
    floor = decode_floor(run)["floor_ms"].astype("float64").reindex(table.index).fillna(0.0)
    if ceilings_are_wrong(run):
        floor = pd.Series(0.0, table.index)  # none is known, so none is drawn
    # With few repeats p90 is close to the worst one: a wide band must not squeeze the line.
    bulk = max(
        table.loc[~slow, clocks].quantile(0.99).max(), high.quantile(0.75), median, floor.max()
    )
    # Steps that are alike leave a height to their differences, unless the floor is near.
    least = low.quantile(0.02)
    bottom = 0.75 * least if least > 0.6 * bulk and floor.max() < 0.3 * least else 0.0
    top = bottom + (1.6 if slow.any() else 1.35) * (bulk - bottom)
    axes.set(xlim=(steps.iloc[0] - 0.5, steps.iloc[-1] + 0.5), ylim=(bottom, top))
    if floor.any():
        told = f"hardware floor, {' to '.join(dict.fromkeys(map(ms_text, floor.iloc[[0, -1]])))}"
        if floor.max() < bottom:
            _mark(axes, steps[:1], bottom, 7, GREEN, f"{told}, far below")
        else:
            lines(axes, steps, floor, color=GREEN, linestyle=(0, (6, 2)), label=told)
    _mark(axes, steps[(high > top) & ~slow], top, 6, ORANGE, "spread ends above")
    _mark(axes, steps[slow], table.loc[slow, "device_ms"].clip(upper=top), 6, INK, "outlier")
    _name_slowest(axes, table[slow].nlargest(_NAMED_OUTLIERS, "device_ms").sort_values("token"))
    name_axis(axes.xaxis, "token that the step made", "")
    name_axis(axes.yaxis, "time (ms)")
    return legend_below(axes)


def _mark(axes: Axes, at: pd.Series, heights: Any, marker: int, colour: str, label: str) -> None:
    """Marks at the edge of the axes."""
    if len(at):
        look: Any = {"marker": marker, "linestyle": "", "color": colour, "label": label}
        axes.plot(at, np.broadcast_to(heights, len(at)), clip_on=False, **look)


def _name_slowest(axes: Axes, slowest: pd.DataFrame) -> None:
    """Say of steps, from above, which token took how long; beside them, where there is room."""
    top = axes.get_ylim()[1]
    first, last = axes.get_xlim()
    look: Any = {"arrowprops": {"arrowstyle": "-", "color": MUTED}, "va": "center", **SMALL}
    look["textcoords"] = "data", "axes fraction"
    look["bbox"] = {"facecolor": "white", "edgecolor": "none", "pad": 0.8, "alpha": 0.75}
    for place, row in enumerate(slowest.fillna({"text": ""}).to_dict("records")):
        token, left = printable(str(row["text"]), 12), row["token"] < first + 0.7 * (last - first)
        told = f"token {row['token']}{token and f' “{token}”'}: {ms_text(row['device_ms'])}"
        at = row["token"], min(row["device_ms"], top)
        beside = row["token"] + (0.015 if left else -0.015) * (last - first), 0.93 - 0.08 * place
        axes.annotate(told, at, beside, ha="left" if left else "right", **look)


# -- stages -------------------------------------------------------------------------------------------


def plot_vision_stages(run: Record, *, ax: Axes | None = None) -> Figure:
    """The prefill's stages as bars in ms with their share of it, by view; what no stage holds is
    hollow.

    A share is the median of the repeats', a bar that share of the median prefill, a line the spread
    of the repeats' times. Stages below a hundredth are one bar. ``ax`` are axes to draw on.
    """
    stages = _in_order(stage_table(run).loc[lambda each: each["phase"] == "prefill"])
    if len(stages) < 2:
        reason = "This run has no prefill of its own, so there are no vision stages to draw."
        if run.is_server:
            reason = "The server does not show its stages, so there are no vision stages to draw."
        return sentence_figure(reason, ax)
    whole, stages = float(stages["device_ms"].iloc[0]), stages.iloc[1:]
    small = stages["device_ms"] < _SMALL_SHARE * whole
    large = stages[~small]
    bars = [*zip(large["name"], large["device_ms"], large["stage"].map(STAGE_COLOURS), strict=True)]
    if small.any():
        bars.append(("other stages", stages.loc[small, "device_ms"].sum(), REST))
    coverage = summary(run)["stage_coverage"]
    if coverage is None:
        coverage = stages["device_ms"].sum() / whole
    bars.append(("between stages", max(0.0, 1.0 - coverage) * whole, FAINT))
    rows = []
    for name, ms, colour in bars:
        told = f"{ms_text(ms)}  ({percent_text(ms / whole if whole else None)})"
        rows.append((name, [(0.0, ms, colour)], told))
    title = (
        f"Vision is {percent_text(summary(run)['vision_share'])} of a prefill of {ms_text(whole)}"
    )
    several = len(run.repeats) > 1
    spread = f", line: {' to '.join(spread_names(len(run.repeats)))} over repeats" * several
    figure, (axes,) = bar_charts([(title, rows, f"time (ms){spread}")], ax)
    if several:
        low, middle, high = (large[f"device_ms{end}"].to_numpy() for end in ("_p10", "", "_p90"))
        look: Any = {"elinewidth": 1.3, "capsize": 4, "capthick": 1.3, "ecolor": INK, "fmt": "none"}
        # A share of the median prefill may lie a little outside the repeats' own times.
        reach = np.maximum(middle - low, 0.0), np.maximum(high - middle, 0.0)
        axes.errorbar(middle, range(len(middle)), xerr=reach, **look)
        axes.set_xlim(0, 1.02 * axes.dataLim.xmax or 1.0)
    return figure


def _in_order(table: pd.DataFrame) -> pd.DataFrame:
    """Rows of stages in the order of the prefill, a phase's whole first; ``name`` says stage and
    view.
    """
    order = {stage: place for place, stage in enumerate((*_WHOLES, *PREFILL_STAGES))}
    table = _named(table[table["stage"].isin(order)])
    return table.sort_values(
        "stage", key=lambda names: names.map(order), kind="stable", ignore_index=True
    )


def _named(table: pd.DataFrame) -> pd.DataFrame:
    stages = table["stage"].map(lambda stage: _WHOLES.get(stage) or stage_name(stage))
    return table.assign(name=(stages + " " + table["view"]).str.strip())


def plot_phase_timeline(run: Record) -> Figure:
    """The typical repeat from its start, in ms: prepare and prefill by stage, and below it the
    phases.

    Device times, where the device has a clock. The titles name the repeat, because these times are
    its own and no medians.
    """
    repeat = typical_repeat(run)
    note = (
        f" in repeat {run.repeats.index(repeat) + 1} of {len(run.repeats)}"
        if len(run.repeats) > 1
        else ""
    )
    return plot_spans(run.spans[run.spans["repeat"] == repeat], note)


def plot_spans(spans: pd.DataFrame, note: str = "") -> Figure:
    """`plot_phase_timeline` of the spans of one repeat; ``note`` stands behind the time of each
    title.

    A title's time is the sum of what ran in its phases, and the axis is as long: the time between
    two calls, such as the one in which a person reads the output of a cell, is cut out. A mark
    breaks the axis where such a pause was longer than a hundredth of what is drawn.
    """
    if spans.empty:
        return sentence_figure("There are no spans to draw.")
    in_phases = spans[spans["phase"].isin(PHASES)]
    if len(in_phases):  # a span that a caller puts around phases would hold their pauses, too
        spans = in_phases
    colours = spans["stage"].map(STAGE_COLOURS | PHASE_COLOURS).fillna(ORANGE)
    spans = _named(spans).assign(colour=colours, outermost=_outermost(spans))
    early = spans[spans["phase"].isin(("prepare", "prefill"))]
    charts = []
    breaks = []
    lengths = []
    if len(early):
        drawn, at = _without_pauses(early)
        stages = drawn[~is_whole_phase(drawn)].sort_values("drawn_ms")
        rows = [_lane(str(name), each) for name, each in stages.groupby("name", sort=False)]
        charts.append((_spans_title(drawn, note), rows or _phase_lanes(drawn), _axis_label(at)))
        breaks.append(at)
        lengths.append(_total_ms(drawn))
    if len(early) < len(spans):
        drawn, at = _without_pauses(spans)
        charts.append((_spans_title(drawn, note), _phase_lanes(drawn), _axis_label(at)))
        breaks.append(at)
        lengths.append(_total_ms(drawn))
    figure, all_axes = bar_charts(charts)
    for axes, at, length in zip(all_axes, breaks, lengths, strict=True):
        axes.set_xlim(0, 1.02 * length or 1.0)
        _break_axis(axes, at)
    return figure


def _outermost(spans: pd.DataFrame) -> pd.Series:
    """Which spans lie in no other one: the calls of a person, or the phases of a measured repeat.

    A span lies in another one where it begins before its end, by either clock.
    """
    order = spans.sort_values(["host_start_ms", "host_ms"], ascending=[True, False])
    starts = order[["host_start_ms", "device_start_ms"]].to_numpy(dtype=np.float64)
    ends = starts + order[["host_ms", "device_ms"]].to_numpy(dtype=np.float64)
    found = pd.Series(False, index=spans.index)
    last_end = np.full(2, -np.inf)
    for place, start, end in zip(order.index, starts, ends, strict=True):
        if (start >= last_end - _CLOCK_ROUNDING_MS).all():
            found[place] = True
            last_end = end
    return found


def _without_pauses(spans: pd.DataFrame) -> tuple[pd.DataFrame, list[float]]:
    """The spans with ``drawn_ms``, their starts where the outermost spans follow each other without
    a pause.

    And the places of the pauses that are worth a mark, in ms of that axis.
    """
    calls = spans[spans["outermost"]].sort_values("device_start_ms")
    starts = calls["device_start_ms"].to_numpy(dtype=np.float64)
    lengths = calls["device_ms"].to_numpy(dtype=np.float64)
    drawn_starts = np.concatenate([[0.0], np.cumsum(lengths)[:-1]])
    # A span belongs to the last call that began before it.
    call = np.searchsorted(starts, spans["device_start_ms"] + _CLOCK_ROUNDING_MS, side="right") - 1
    call = call.clip(min=0)
    pauses = starts[1:] - (starts + lengths)[:-1]
    long = pauses > _SMALL_SHARE * lengths.sum()
    drawn = spans.assign(drawn_ms=spans["device_start_ms"] - starts[call] + drawn_starts[call])
    return drawn, drawn_starts[1:][long].tolist()


def _total_ms(spans: pd.DataFrame) -> float:
    """What ran in these spans, each moment counted once."""
    return float(spans.loc[spans["outermost"], "device_ms"].sum())


def _spans_title(spans: pd.DataFrame, note: str) -> str:
    """The phases of these spans, what ran in them together, and how many calls that were."""
    calls = spans[spans["outermost"]]
    phases = _phase_names(spans)
    together = " and ".join(phases).capitalize() or "Outside a phase"
    if "decode" in phases and len(phases) > 1:
        together = "The whole run"
    title = f"{together}, {ms_text(_total_ms(spans))}{note}"
    prefills = int((calls["stage"] == "prefill").sum())
    if prefills > 1:
        title += f", {count_text(prefills, 'prefill')}"
    steps = int((spans["stage"] == "decode_step").sum())
    if steps:
        title += f", {count_text(steps, 'decode step')}"
    return title


def _axis_label(breaks: list[float]) -> str:
    if breaks:
        return "time in the phases (ms); where the axis is broken (//), a pause is left out"
    return "time in the phases (ms)"


def _break_axis(axes: Axes, breaks: list[float]) -> None:
    """Mark the places of an axis where a pause is left out: two strokes on it and a dotted line
    above.
    """
    figure = axes.get_figure(root=True)
    for at in breaks:
        axes.axvline(at, color=MUTED, linewidth=0.9, linestyle=(0, (1, 2)), zorder=3)
        for points in (-1.7, 1.7):
            beside = offset_copy(axes.get_xaxis_transform(), figure, points, 0.0, "points")
            (stroke,) = axes.plot(
                [at], [0.0], transform=beside, marker=[(-1, -2), (1, 2)], markersize=10
            )
            stroke.set(color=INK, markeredgewidth=1.1, clip_on=False, in_layout=False)


def _phase_lanes(spans: pd.DataFrame) -> list[Row]:
    """A lane a phase: its outermost spans."""
    calls = spans[spans["outermost"]]
    known = [phase for phase in PHASES if (calls["phase"] == phase).any()]
    lanes = []
    for phase in known or calls["phase"].unique():
        own = calls[calls["phase"] == phase]
        lanes.append(_lane(_phase_names(own)[0] or "outside a phase", own))
    return lanes


def _phase_names(spans: pd.DataFrame) -> list[str]:
    """What the phases of some spans are called; a server's prefill is not seen, only its first
    token.
    """
    waits = spans["stage"] == "first_token"
    return spans["phase"].mask(waits, "first token").unique().tolist()


def _lane(name: str, spans: pd.DataFrame) -> Row:
    """Spans as a bar, each where it lies, and their sum."""
    pieces = list(zip(spans["drawn_ms"], spans["device_ms"], spans["colour"], strict=True))
    return name, pieces, ms_text(spans["device_ms"].sum())


# -- memory -------------------------------------------------------------------------------------------


def plot_memory(run: Record) -> Figure:
    """Peak memory of each phase, and how the KV cache grows with every step."""
    peaks, sizes = run.memory.peak_bytes, run.cache.bytes
    if not peaks and not sizes:
        return sentence_figure("Neither peak memory nor the KV cache was observed in this run.")
    ends = []
    for name, text in _CACHE.items():
        values = getattr(run.cache, name)
        if values:
            ends.append(filled(text, x=values[-1]))
    titles = (
        "Peak memory of each phase",
        ": ".join(["KV cache", ", ".join(ends)] if ends else ["KV cache"]),
    )
    figure, (left, right) = new_figure(2.9, titles, columns=2)
    if peaks:
        bars = [(phase, max(sizes), PHASE_COLOURS[phase]) for phase, sizes in peaks.items()]
        bars.append(("weights", run.memory.weights_bytes or 0, FAINT))
        hbars(
            left,
            [
                (name, [(0.0, size, colour)], bytes_text(size))
                for name, size, colour in bars
                if size
            ],
        )
        name_axis(left.xaxis, _SOURCES.get(str(run.memory.source), "peak"), "bytes")
    else:
        sentence_figure("Peak memory could not be measured here.", left)
    if sizes:
        lines(right, pd.Series(range(len(sizes))), pd.Series(sizes), color=GREEN, linewidth=2)
        right.set(xlim=(0, max(1, len(sizes) - 1)), ylim=(0, 1.22 * max(sizes)))
        name_axis(right.xaxis, "decode steps done (0: after the prefill)", "")
        name_axis(right.yaxis, "keys and values", "bytes")
    else:
        sentence_figure("The cache was not observed in this run.", right)
    return figure


# -- the device ---------------------------------------------------------------------------------------


def plot_kernels(run: Record) -> Figure:
    """Each stage's time in ms and the part of it that the device worked, with the verdict of
    `stage_verdict`.

    Prefill above, one decode step below; stages below a hundredth of them are left to the table. A
    sentence where the record has no kernel view.
    """
    if not has_kernels(run):
        return sentence_figure(
            "This record has no kernel view: measure on a GPU with kernels=True."
        )
    table, charts = _in_order(stage_verdict(run)), []
    table["busy_ms"] = table[["busy_ms", "wall_ms"]].min(axis="columns")
    for phase, unit in (("prefill", "the prefill"), ("decode", "one profiled decode step")):
        stages = table[table["phase"] == phase]
        stages = stages[stages["wall_ms"] >= _SMALL_SHARE * stages["wall_ms"].max()]
        rows = []
        for name, busy, wall, verdict in stages[
            ["name", "busy_ms", "wall_ms", "verdict"]
        ].to_numpy():
            told = f"{of_text(busy, wall)} ({percent_text(busy / wall)}), {verdict}"
            rows.append((name, stacked([(busy, GREEN), (wall - busy, FAINT)]), told))
        if rows:
            title = f"{unit.capitalize()} is {stages['verdict'].iloc[0]}"
            charts.append((title, rows, "time in the timed runs (ms)"))
    if not charts:
        return sentence_figure("The profiler saw no kernel in the stages of this run.")
    keys = [
        Patch(color=GREEN, label="the GPU works"),
        Patch(fc=FAINT, ec=REST, label="the GPU waits"),
    ]
    return bar_charts(charts, keys=keys)[0]


def plot_roofline(run: Record, *, ax: Axes | None = None) -> Figure:
    """FLOP/s over FLOPs a byte, both logarithmic: ceilings as lines, each stage a point with its
    distance.

    After Williams, Waterman and Patterson 2009, "Roofline: an insightful visual performance model".
    The measured ceilings are solid; a datasheet's are dashed. Prefill stages have a point a view;
    the decode step is one point. A point's area is its part of the time of its phase, those below a
    hundredth are left to the table; a dotted line leads to its ceiling. ``ax`` are axes to draw on.
    A sentence where there is no floor.
    """
    reason, ceilings, sheet = why_no_floor(run), ceilings_of(run), datasheet_ceilings(run)
    if reason is not None or ceilings is None:
        return sentence_figure(reason or "", ax)
    table = _named(floor_table(run))
    table["share"] = table["device_ms"] / table.groupby("phase")["device_ms"].transform("max")
    table["rate"] = table["flops"] / table["device_ms"] * 1e3
    drawn = (table["phase"] == "prefill") & (table["stage"] != "prefill") | (
        table["stage"] == "decode_step"
    )
    points = table[drawn & (table["share"] >= _SMALL_SHARE)].sort_values("times_floor")
    if ceilings_are_wrong(run):
        names = points["name"]
        title = "The ceilings were measured wrongly, so distances to them say nothing"
    else:
        names = points["name"] + ", " + points["times_floor"].map(times_text)
        title = f"Farthest from its ceiling: {names.iloc[-1]} its floor"
    _, (axes,) = new_figure(4.6, [title], ax)
    roofs = [ceilings] + ([sheet] if sheet and sheet.source != ceilings.source else [])
    ridges = [roof.flops_per_s / roof.bandwidth_bytes_per_s for roof in roofs]
    ends = min(points["intensity"].min(), *ridges) / 3, max(points["intensity"].max(), *ridges) * 3
    for roof, ridge in zip(roofs, ridges, strict=True):
        at = np.asarray([ends[0], ridge, ends[1]])
        rates = f"{rate_text(roof.bandwidth_bytes_per_s)}B/s, {rate_text(roof.flops_per_s)}FLOP/s"
        label = f"{roof.name if ax is None else roof.source}: {rates}"
        colour, width, style = _ROOFS[roof.source]
        axes.plot(at, _roof(roof, at), color=colour, linewidth=width, linestyle=style, label=label)
    colours = points["stage"].map(STAGE_COLOURS).fillna(ORANGE).tolist()
    over = _roof(ceilings, points["intensity"])
    axes.vlines(
        points["intensity"], points["rate"], over, colours, linestyle=":", linewidth=1.1, zorder=1.5
    )
    for name, colour, row in zip(names, colours, points.to_dict("records"), strict=True):
        look: Any = {"color": colour, "mec": INK, "ms": 5 + 9 * row["share"] ** 0.5, "label": name}
        axes.plot(
            row["intensity"],
            row["rate"],
            {"global": "o", "local": "s"}.get(row["view"], "D"),
            **look,
        )
    bottom = min(points["rate"].min(), _roof(ceilings, ends[0])) / 3
    top = 3 * max(roof.flops_per_s for roof in roofs)
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=(bottom, top))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(EngFormatter())
    axes.minorticks_off()
    axes.set(
        xlabel="arithmetic intensity (FLOPs a byte of weights and KV cache)", ylabel="done (FLOP/s)"
    )
    return legend_below(axes)


def _roof(ceilings: Ceilings, intensity: Any) -> Any:
    """The best FLOP/s of so many FLOPs a byte."""
    return np.minimum(intensity * ceilings.bandwidth_bytes_per_s, ceilings.flops_per_s)
