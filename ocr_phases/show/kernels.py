"""Pictures of a record's kernel view: busy and idle time of the device."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from ocr_phases.analyse.kernels import (
    GAP_CAUSES,
    has_kernels,
    idle_gaps,
    kernel_table,
    of_text,
    stage_verdict,
)
from ocr_phases.record import PhaseRun
from ocr_phases.show.bars import draw_bars
from ocr_phases.show.plots import (
    BLUE,
    FAINT,
    PURPLE,
    VERMILLION,
    blank_figure,
    label_bar,
    legend_below,
    sentence_figure,
    style_axes,
    time_axis,
    title_axes,
)
from ocr_phases.text import ms_text, percent_text, stage_name

_UNITS = {"prefill": "the prefill", "decode": "one decode step"}
_WHOLE = {"prefill": "whole prefill", "decode_step": "whole step"}
_CAUSE_COLOURS = dict(zip(GAP_CAUSES, (PURPLE, VERMILLION, FAINT), strict=True))
_CAUSE_NAMES = {
    "host sync": "the host had waited for the device",
    "launch": "the host was late with the launch",
    "device": "the launch was there: the space between kernels",
}


def plot_kernels(run: PhaseRun) -> Figure:
    """`plot_busy` with the floors of the record; a sentence where it has no kernel view."""
    if not has_kernels(run):
        return sentence_figure("This record has no kernel view: measure on a GPU with kernels=True.")
    return plot_busy(run)


def plot_busy(run: PhaseRun) -> Figure:
    """Each stage's time in ms and the part of it that the device worked, with the verdict of `stage_verdict`.

    Prefill above, one decode step below. Raises `OcrPhasesError` without a kernel view.
    """
    table = stage_verdict(run)
    tables = {phase: table[table["phase"] == phase].reset_index(drop=True) for phase in _UNITS}
    tables = {phase: rows for phase, rows in tables.items() if len(rows)}
    if not tables:
        return sentence_figure("The profiler saw no kernel in the stages of this run.")
    heights = [len(rows) + 1.3 for rows in tables.values()]
    figure = blank_figure(0.9 + 0.36 * sum(heights))
    panels = figure.subplots(len(tables), 1, height_ratios=heights, squeeze=False)[:, 0]
    for axes, (phase, rows) in zip(panels, tables.items(), strict=True):
        _draw_busy(axes, phase, rows)
    for axes in panels[:-1]:
        time_axis(axes.xaxis)
    time_axis(panels[-1].xaxis, "time in the timed runs", ", and the part of it that the GPU worked")
    keys = [Patch(color=BLUE, label="the GPU works"), Patch(color=FAINT, label="the GPU waits")]
    legend_below(figure, keys, 2)
    return figure


def plot_idle_gaps(run: PhaseRun) -> Figure:
    """Idle time between the device's work by its cause: prefill and a decode step.

    The titles say how long the device is idle in the timed runs. The bars were seen under the profiler, where
    the host is slower and gaps are longer. Raises `OcrPhasesError` without a kernel view.
    """
    table = idle_gaps(run)
    phases = [phase for phase in _UNITS if (table["phase"] == phase).any()]
    if not phases:
        return sentence_figure("The device was never idle between two kernels.")
    figure = blank_figure(3.7)
    stages = kernel_table(run)
    for axes, phase in zip(figure.subplots(1, len(phases), squeeze=False)[0], phases, strict=True):
        _draw_gaps(axes, table[table["phase"] == phase])
        title_axes(axes, _idle_title(phase, stages))
    keys = [Patch(color=colour, label=_CAUSE_NAMES[cause]) for cause, colour in _CAUSE_COLOURS.items()]
    legend_below(figure, keys, 3)
    return figure


def _draw_busy(axes: Axes, phase: str, rows: pd.DataFrame) -> None:
    style_axes(axes)
    walls, works = rows["wall_ms"], rows[["busy_ms", "wall_ms"]].min(axis=1)
    for ends, colour in ((walls, FAINT), (works, BLUE)):
        draw_bars(axes, [(0, place - 0.35, end, 0.7) for place, end in enumerate(ends)], colour)
    for place, (busy, wall, verdict) in enumerate(zip(works, walls, rows["verdict"], strict=True)):
        label_bar(axes, wall, place, f"{of_text(busy, wall)} ({percent_text(busy / wall)}), {verdict}")
    names = [
        " ".join(filter(None, (_WHOLE.get(stage) or stage_name(stage), view)))
        for stage, view in zip(rows["stage"], rows["view"], strict=True)
    ]
    axes.set_yticks(range(len(rows)), names)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.55 * rows["wall_ms"].max())
    axes.grid(visible=False, axis="y")
    title_axes(axes, f"{_UNITS[phase].capitalize()} is {rows.iloc[0]['verdict']}")


def _draw_gaps(axes: Axes, gaps: pd.DataFrame) -> None:
    style_axes(axes)
    idle = gaps.groupby("cause")["idle_ms"].sum()
    for place, (cause, colour) in enumerate(_CAUSE_COLOURS.items()):
        draw_bars(axes, [(place - 0.4, 0.0, 0.8, idle.get(cause, 0.0))], colour)
    axes.set_xticks(range(len(_CAUSE_COLOURS)), _CAUSE_COLOURS)
    axes.grid(visible=False, axis="x")
    axes.set_xlabel(f"{gaps['gaps'].sum():,.0f} gaps, {ms_text(idle.sum())} under the profiler")
    axes.set_ylim(0, 1.15 * idle.max())
    time_axis(axes.yaxis, "idle time under the profiler")


def _idle_title(phase: str, stages: pd.DataFrame) -> str:
    """How long the device was idle in the timed runs; their time is unknown where they have no such stage."""
    timed = stages.dropna(subset="wall_ms")
    timed = timed[timed["stage"] == ("decode_step" if phase == "decode" else phase)]
    for busy, wall in timed[["busy_ms", "wall_ms"]].itertuples(index=False, name=None):
        return f"{_UNITS[phase].capitalize()} is idle for {of_text(max(0.0, wall - busy), wall)}"
    return f"Idle in {_UNITS[phase]}"
