"""The time of every decode step, drawn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.markers import CARETDOWN, CARETUP

from ocr_phases.analyse.figures import summary
from ocr_phases.analyse.floors import decode_floor
from ocr_phases.analyse.noise import ceilings_are_wrong
from ocr_phases.analyse.stages import (
    OUTLIER_FACTOR,
    spread_names,
    step_repeats,
    step_table,
    token_of_step,
)
from ocr_phases.record import Record
from ocr_phases.show.axes import SMALL, legend_below, lines, name_axis, new_figure, sentence_figure
from ocr_phases.show.colours import GREEN, INK, MUTED, ORANGE, REST
from ocr_phases.show.web import printable
from ocr_phases.text import count_text, ms_text

#: How many slow steps are named in the picture.
_NAMED_OUTLIERS = 4


def plot_latency(run: Record, *, ax: Axes | None = None) -> Figure:
    """Time of every decode step in ms: median over repeats, their spread as a band, outliers named.

    A mark stands on an outlier's median, or where only single repeats were slow, on the slowest of
    them, and its name says which of the two.

    Below it is the record's floor of each step (`ocr_phases.analyse.floors.decode_floor`). The
    host's times are drawn where it reads every token. The scale begins at 0, so that the floor is
    to scale, and follows the bulk of the steps: what lies above it is marked at the edge.

    Parameters
    ----------
    run : Record
        The measurement.
    ax : matplotlib.axes.Axes, optional
        Axes to draw on; by default those of a new figure.

    Returns
    -------
    matplotlib.figure.Figure
        The figure of the axes; a sentence where there were no decode steps.
    """
    table = step_table(run)
    table = table.assign(token=token_of_step(run, table["step"]))
    if table.empty:
        return sentence_figure("There were no decode steps, so there is no latency to draw.", ax)
    table = _with_marked_times(run, table)
    median_ms = float(summary(run)["inter_token_ms"])
    count = len(table) * len(run.repeats)
    title = f"Each decode step: median {ms_text(median_ms)} of {count:,} steps"
    _, (axes,) = new_figure(3.9, [title], ax)
    clocks = _draw_times(axes, run, table)
    axes.axhline(median_ms, color=MUTED, linewidth=0.8, linestyle=":", zorder=1)
    floor = _floor_of_steps(run, table)
    top = _highest_drawn(table, clocks, median_ms, float(floor.max()))
    tokens = table["token"]
    axes.set(xlim=(tokens.iloc[0] - 0.5, tokens.iloc[-1] + 0.5), ylim=(0.0, top))
    if floor.any():
        _draw_floor(axes, tokens, floor)
    _mark_what_lies_above(axes, table)
    # A step that is always slow says more than one that was slow once.
    by_weight = table[table["outlier"]].sort_values(
        ["of_one_repeat", "marked_ms"], ascending=[True, False]
    )
    slowest = by_weight.head(_NAMED_OUTLIERS)
    _name_slowest(axes, slowest.sort_values("token"))
    name_axis(axes.xaxis, "token that the step made", "")
    name_axis(axes.yaxis, "time (ms)")
    return legend_below(axes)


def _with_marked_times(run: Record, table: pd.DataFrame) -> pd.DataFrame:
    """The steps with ``marked_ms``, the time by which an outlier stands out.

    That is its median, or the time of its slowest repeat where the median is a usual one; then
    ``of_one_repeat`` is true.
    """
    is_usual = table["device_ms"] <= OUTLIER_FACTOR * table["device_ms"].median()
    slowest_repeat_ms = step_repeats(run).max(axis="columns").to_numpy()
    marked_ms = table["device_ms"].mask(is_usual, slowest_repeat_ms)
    return table.assign(marked_ms=marked_ms, of_one_repeat=is_usual)


def _draw_times(axes: Axes, run: Record, table: pd.DataFrame) -> list[str]:
    """Draw the times of the steps with their spread; returns the columns that are drawn."""
    tokens = table["token"]
    clocks = ["device_ms"]
    label = "median"
    if run.device.has_own_clock:
        label = "device, median"
    if _host_times_are_of_one_step(run):
        clocks.append("host_ms")
        # Drawn first and wide, so that it shows on both sides of a device's line over it.
        look: dict[str, Any] = {"linewidth": 3.5, "alpha": 0.6, "label": "host, median"}
        lines(axes, tokens, table["host_ms"], color=REST, **look)
    low, high = spread_names(len(run.repeats))
    band = f"{low} to {high} of {count_text(len(run.repeats), 'repeat')}"
    spread = (table["device_ms_p10"], table["device_ms_p90"])
    lines(axes, tokens, table["device_ms"], spread, band=band, color=ORANGE, label=label)
    return clocks


def _host_times_are_of_one_step(run: Record) -> bool:
    """Whether there are times of the host, apart from the device's, that say what a step took.

    Where tokens are read every few steps, they do not: the host launches several steps at once and
    then waits for all of them.
    """
    reads_each_token = run.request.eos_check_every in (None, 1)
    return run.device.has_own_clock and reads_each_token


def _floor_of_steps(run: Record, table: pd.DataFrame) -> pd.Series:
    """The floor of each step in ms; 0 where none is known."""
    if ceilings_are_wrong(run):
        return pd.Series(0.0, table.index)
    floor = decode_floor(run)["floor_ms"].astype("float64")
    return floor.reindex(table.index).fillna(0.0)


def _highest_drawn(
    table: pd.DataFrame, clocks: list[str], median_ms: float, highest_floor_ms: float
) -> float:
    """The upper end of the scale in ms, which follows the bulk of the steps."""
    slow = table["outlier"]
    usual_ms = float(table.loc[~slow, clocks].quantile(0.99).max())
    # A quarter of the band's upper ends may lie higher: with few repeats such an end is about the
    # worst repeat of a step, and a wide band must not press the line flat.
    band_ms = float(table["device_ms_p90"].quantile(0.75))
    bulk_ms = max(usual_ms, band_ms, median_ms, highest_floor_ms)
    if slow.any():
        return 1.6 * bulk_ms  # the names of outliers stand above the bulk
    return 1.35 * bulk_ms


def _draw_floor(axes: Axes, tokens: pd.Series, floor: pd.Series) -> None:
    """The floor as a line, whose key says where it begins and ends."""
    first = ms_text(floor.iloc[0])
    last = ms_text(floor.iloc[-1])
    label = f"hardware floor, {first}"
    if last != first:
        label += f" to {last}"
    lines(axes, tokens, floor, color=GREEN, linestyle=(0, (6, 2)), label=label)


def _mark_what_lies_above(axes: Axes, table: pd.DataFrame) -> None:
    """Marks that point down at outliers, and marks at the upper edge for what lies above it."""
    top = axes.get_ylim()[1]
    tokens = table["token"]
    slow = table["outlier"]
    spread_ends_above = (table["device_ms_p90"] > top) & ~slow
    _mark(axes, tokens[spread_ends_above], top, CARETUP, ORANGE, "slowest repeat is above the plot")
    lies_above = slow & (table["marked_ms"] > top)
    _mark(axes, tokens[lies_above], top, CARETUP, INK, "outlier above the plot")
    drawn = slow & ~lies_above
    drawn_ms = table.loc[drawn, "marked_ms"]
    _mark(axes, tokens[drawn], drawn_ms, CARETDOWN, INK, "outlier: a far slower step")


def _mark(axes: Axes, at: pd.Series, heights: Any, marker: Any, colour: str, label: str) -> None:
    """Marks that may lie on the edge of the axes."""
    if len(at):
        look: Any = {"marker": marker, "linestyle": "", "color": colour, "label": label}
        axes.plot(at, np.broadcast_to(heights, len(at)), clip_on=False, **look)


def _name_slowest(axes: Axes, slowest: pd.DataFrame) -> None:
    """Write beside steps which token took how long, one step below the other."""
    top = axes.get_ylim()[1]
    first, last = axes.get_xlim()
    width = last - first
    look: Any = {
        "va": "center",
        **SMALL,
        "textcoords": ("data", "axes fraction"),
        "bbox": {"facecolor": "white", "edgecolor": "none", "pad": 0.8, "alpha": 0.75},
    }
    for place, step in enumerate(slowest.fillna({"text": ""}).to_dict("records")):
        token = step["token"]
        ms = step["marked_ms"]
        name = f"token {token}"
        text = printable(str(step["text"]), 12)
        if text:
            name += f" “{text}”"
        words = f"{name}: {ms_text(ms)}"
        if step["of_one_repeat"]:
            words += " in its slowest repeat"
        point = (token, min(ms, top))
        height = 0.93 - 0.08 * place
        # The words are on the right of the step, unless they would then leave the axes. The line
        # ends at the side of the words that is nearer to the step.
        line: Any = {"arrowstyle": "-", "color": MUTED}
        if token < first + 0.7 * width:
            line["relpos"] = (0.0, 0.5)
            place_of_words = (token + 0.015 * width, height)
            axes.annotate(words, point, place_of_words, ha="left", arrowprops=line, **look)
        else:
            line["relpos"] = (1.0, 0.5)
            place_of_words = (token - 0.015 * width, height)
            axes.annotate(words, point, place_of_words, ha="right", arrowprops=line, **look)
