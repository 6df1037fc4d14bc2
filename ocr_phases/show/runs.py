"""The pictures of several records together: decode over the cache, and the prefill stage by stage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from ocr_phases.analyse.stages import stage_table
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
    SKY,
    STAGE_COLOURS,
    VERMILLION,
    WIDTH,
    hbars,
    legend_below,
    new_figure,
    sentence_figure,
    stacked,
    takes_axes,
    time_axis,
    title_axes,
)
from ocr_phases.show.overlay import printable
from ocr_phases.text import ms_text, percent_text, stage_name

LONGEST_LABEL = 48
RUN_COLOURS = (BLUE, ORANGE, GREEN, VERMILLION, PURPLE, SKY)

_Line = Literal["-", "--", ":", "-."]
_LINES: tuple[_Line, ...] = ("-", "--", ":", "-.")
_FLOOR = (0, (1, 2))  # dotted
_NAMES_APART = 0.08  # of the axis, at least, between two presets' names
_WIDE = 12.0  # from here on largest over smallest is drawn on a logarithmic axis


@takes_axes
def plot_decode_curves(
    curves: pd.DataFrame, coloured: str, styled: str = "", *, ax: Axes | None = None
) -> Figure:
    """Time of a decode step in ms against the length of the sequence, a line a ``cell``, with its spread.

    ``curves`` has the columns of a step's time (`step_table`), ``cell``, and those
    whose values tell the lines apart by colour and by line style; ``floor_ms``, where it is there, is dotted
    below. The scale follows the bulk of the steps.
    ``ax`` are axes to draw on.
    """
    if curves.empty:
        return sentence_figure("There are no decode steps to draw.", ax)
    figure, axes = new_figure(4.2, ax=ax)
    looks, bulk = Looks(curves, coloured, styled), []
    for _, curve in curves.groupby("cell", sort=False):
        colour, style = looks.of(curve.iloc[0])
        lengths = curve["cache_len"].astype("float64")
        ends = curve["device_ms_p10"], curve["device_ms_p90"]
        axes.fill_between(lengths, *ends, color=colour, alpha=0.16, linewidth=0)
        marker = "o" if len(curve) == 1 else ""
        axes.plot(lengths, curve["device_ms"], color=colour, linestyle=style, linewidth=1.4, marker=marker)
        if "floor_ms" in curve:
            axes.plot(lengths, curve["floor_ms"], color=colour, linestyle=_FLOOR, linewidth=1.4)
        bulk += curve["device_ms"].quantile([0.0, 0.98]).tolist()
    if "preset" in curves:
        name_presets(axes, curves, "cache_len")
    from_zero(axes, pd.Series(bulk))
    axes.set_xlabel("sequence of a row: prompt and generated (tokens)")
    time_axis(axes.yaxis, "decode step")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    title_axes(axes, "Decode step over the length of the sequence: medians and spread")
    floors = "floor_ms" in curves and curves["floor_ms"].notna().any()
    looks.legend(figure, floors="floor" if floors else "", ax=ax)
    return figure


@takes_axes
def plot_prefill_stages(
    runs: Sequence[PhaseRun], labels: Sequence[str], *, share: bool = False, ax: Axes | None = None
) -> Figure:
    """Each record's prefill as one bar, stage after stage; what no stage holds is light grey.

    Bars are in ms; with ``share`` they are parts of their prefill, and vision's is named behind them. ``ax``
    are axes to draw on.
    """
    shown = [(run, label) for run, label in zip(runs, labels, strict=True) if run["prefill_ms"] is not None]
    if not shown:
        return sentence_figure("None of these records has a prefill of its own.", ax)
    figure, axes = new_figure(1.7 + 0.36 * len(shown), ax=ax)
    drawn, bars = set(), []
    for run, label in shown:
        table = stage_table(run)
        sums = table[table["phase"] == "prefill"].groupby("stage")["device_ms"].sum()
        whole = float(sums["prefill"])
        scale = 100.0 / whole if share else 1.0
        parts = [
            (scale * float(sums[stage]), STAGE_COLOURS[stage]) for stage in PREFILL_STAGES if stage in sums
        ]
        drawn |= {stage for stage in PREFILL_STAGES if stage in sums}
        parts.append((max(0.0, scale * whole - sum(length for length, _ in parts)), FAINT))
        behind = f"vision {percent_text(run['vision_share'])}" if share else ms_text(whole)
        bars.append((printable(label, LONGEST_LABEL), stacked(parts), behind))
    hbars(axes, bars)
    if share:
        axes.set_xlabel("part of the prefill (%)")
        axes.set_xticks(range(0, 101, 20))
    else:
        time_axis(axes.xaxis, "time")
    title_axes(axes, "Prefill, stage by stage")
    named: dict[str, list[str]] = {}
    for stage in (name for name in PREFILL_STAGES if name in drawn):
        named.setdefault(STAGE_COLOURS[stage], []).append(stage_name(stage))
    keys = [Patch(color=colour, label=" or ".join(names)) for colour, names in named.items()]
    keys.append(Patch(color=FAINT, label="between stages"))
    legend_below(figure, keys, 4, ax)
    return figure


def colour_of(number: int) -> str:
    """The colour of a line; they repeat after six."""
    return RUN_COLOURS[number % len(RUN_COLOURS)]


def from_zero(axes: Axes, values: pd.Series) -> None:
    """From zero, so that heights compare; a logarithmic axis where the values lie far apart."""
    low, high = float(values.min()), float(values.max())
    if low > 0 and high / low > _WIDE:
        axes.set_yscale("log")
        axes.set_ylim(low / 1.6, high * 2.0)
        plain_log(axes.yaxis)
    else:
        axes.set_ylim(0, 1.22 * high)


def plain_log(axis: Axis) -> None:
    """Plain numbers on a logarithmic axis, as many as it has room for."""
    low, high = axis.get_view_interval()
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high / low < 200 else (1.0,)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axis.set_minor_formatter(NullFormatter())


def name_presets(axes: Axes, table: pd.DataFrame, column: str) -> None:
    """Each preset's name above where it begins on the horizontal axis; neighbours share a place."""
    starts = table.groupby("preset")[column].min().sort_values()
    near = (starts.diff() > _NAMES_APART * table[column].max()).cumsum()
    for _, group in starts.groupby(near):
        start, preset = group.iloc[0], ", ".join(map(str, group.index))
        for place in group:
            axes.axvline(place, color=FAINT, linewidth=0.9, zorder=0)
        axes.annotate(
            preset,
            (start, 1.0),
            (3, -4),
            xycoords=("data", "axes fraction"),
            textcoords="offset points",
            va="top",
            fontsize=9,
            color=MUTED,
        )


class Looks:
    """How lines are told apart: colours for the values of one column, line styles for those of another.

    Where the first column has a single value, the second gets the colours and every line is solid. A strategy
    has the same colour in every plot, whichever others are there; so has a model in all plots of a sweep.
    """

    def __init__(self, table: pd.DataFrame, coloured: str, styled: str = "") -> None:
        if styled and table[coloured].nunique() == 1:
            coloured, styled = styled, coloured
        self.coloured, self.styled = coloured, styled
        self.colours = self._numbered(table[coloured])
        self.styles = self._numbered(table[styled]) if styled else {}

    def of(self, row: pd.Series) -> tuple[str, _Line]:
        """Colour and style of the line that ``row`` belongs to."""
        style = self.styles[row[self.styled]] if len(self.styles) > 1 else 0
        return colour_of(self.colours[row[self.coloured]]), _LINES[style % len(_LINES)]

    def legend(self, figure: Figure, faint: str = "", floors: str = "", ax: Axes | None = None) -> None:
        """The keys under a figure, or the caller's ``ax``; ``faint`` names grey lines, ``floors`` dotted."""
        keys = [
            Line2D([], [], color=colour_of(number), linewidth=3, label=self._name(self.coloured, value))
            for value, number in self.colours.items()
        ]
        keys += [
            Line2D(
                [],
                [],
                color=INK,
                linewidth=1.4,
                linestyle=_LINES[number % len(_LINES)],
                label=self._name(self.styled, value),
            )
            for value, number in self.styles.items()
            if len(self.styles) > 1
        ]
        if faint:
            keys.append(Line2D([], [], color=FAINT, linewidth=1.4, label=faint))
        if floors:
            keys.append(Line2D([], [], color=INK, linewidth=1.4, linestyle=_FLOOR, label=floors))
        columns = 6 if figure.get_figwidth() >= WIDTH and self.coloured != "name" else 2
        legend_below(figure, keys, columns, ax)

    @staticmethod
    def _numbered(values: pd.Series) -> dict[Any, int]:
        """A number for each value: a strategy's own, a model's by its name, else by first appearance."""
        found = sorted(set(values)) if values.name == "model" else list(dict.fromkeys(values))
        if set(found) <= set(STRATEGIES):
            return {name: number for number, name in enumerate(STRATEGIES) if name in found}
        return {value: number for number, value in enumerate(found)}

    @staticmethod
    def _name(column: str, value: object) -> str:
        return f"{column} {value}" if column in ("batch", "vision") else str(value)
