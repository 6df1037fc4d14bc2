"""Axes and their common shapes: titles, legends, bars and lines."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator, PercentFormatter
from matplotlib.transforms import offset_copy

from ocr_phases.show.colours import AXIS, FAINT, INK, MUTED, REST
from ocr_phases.show.shown_figure import blank_figure

#: The look of words on axes: as they stand, dollar signs in a file's name begin no formula.
SMALL: dict[str, Any] = {"fontsize": 9, "color": INK, "parse_math": False}
_SENTENCE_LINE = 52  # characters
_LETTERS = 19.0  # of small type in an inch, and what axes leave beside them
_TITLE_LETTERS = 11.5  # of a title in an inch
_FEWEST_TITLE_LETTERS = 12
_KEY_LETTERS = 8  # the room that a key takes beside its words
#: Inches under axes: of the text of their ticks, and of their label, too.
_BELOW_TICKS = 0.285
_BELOW_LABEL = 0.46
_MOST_MARKS = 1_000  # a figure is as many CSS pixels wide
_FEW = 6  # points of a line, which are drawn, too; ticks that have a unit
_BAR = 0.7  # of the room of a row
#: Inches of a row, around a chart of bars, and of the keys below.
_ROW = 0.3
_AROUND = 1.1
_KEYS = 0.5
#: A part of a bar: where it starts, how long it is, its colour.
Piece = tuple[float, float, Any]
#: A bar: its name, its pieces, and words at the right end of the axes.
ChartBar = tuple[str, Sequence[Piece], str]


def new_figure(
    height: float,
    titles: Sequence[str] = ("",),
    ax: Axes | None = None,
    columns: int = 1,
    **grid: Any,
) -> tuple[Figure, list[Axes]]:
    """A figure of the report's width with axes for each title, and these axes.

    ``height`` is in inches, ``grid`` is what `matplotlib.figure.Figure.subplots` takes. Where the
    caller gives ``ax``, these are styled in place of new ones. Their figure gets constrained layout
    if nothing lays it out: words beside the axes need room.
    """
    if ax is None:
        figure: Figure = blank_figure(height)
        rows = math.ceil(len(titles) / columns)
        panels = figure.subplots(rows, columns, squeeze=False, **grid).ravel().tolist()
    else:
        figure = figure_of(ax)
        panels = [ax]
        if figure.get_layout_engine() is None and ax.get_subplotspec() is not None:
            figure.set_layout_engine("constrained")
    for axes, title in zip(panels, titles, strict=True):
        style_axes(axes, title)
    return figure, panels


def figure_of(axes: Axes) -> Figure:
    """The figure that axes belong to, also where they lie in a part of it."""
    return axes.figure.figure


def style_axes(axes: Axes, title: str = "") -> None:
    """The look that every plot here shares, with its title in bold on the left.

    A title states what was found.
    """
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set(color=AXIS, in_layout=False)
    axes.grid(visible=True, color=FAINT, linewidth=0.5)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=9.5, colors=MUTED, labelcolor=INK)
    # Places given, matplotlib need not look for them below the ticks' text and above what is drawn.
    below_ticks = offset_copy(axes.transAxes, figure_of(axes), y=-_BELOW_TICKS)
    axes.xaxis.set_label_coords(0.5, 0, below_ticks)
    look = {**SMALL, "fontsize": 11.5, "fontweight": "bold"}
    place = axes.get_subplotspec()
    if place is not None and place.get_gridspec().ncols > 1:
        # Matplotlib wraps a title at the edge of the figure, over the title of the axes beside it.
        inches = axes.bbox.width / figure_of(axes).dpi
        title = textwrap.fill(title, max(_FEWEST_TITLE_LETTERS, int(_TITLE_LETTERS * inches)))
    axes.set_title(title, loc="left", y=1.0, pad=9, wrap=True, **look)


def sentence_figure(text: str, ax: Axes | None = None) -> Figure:
    """A figure with one sentence in place of a plot; or ``ax`` with that sentence."""
    axes = ax
    if axes is None:
        axes = blank_figure(1.0).subplots()
    # On the left and in short lines, for a screen that shows no more of it.
    lines_of_text = textwrap.fill(text, _SENTENCE_LINE)
    look = {**SMALL, "fontsize": 10, "color": MUTED}
    axes.text(0, 0.5, lines_of_text, transform=axes.transAxes, va="center", **look)
    axes.set_axis_off()
    return figure_of(axes)


def legend_below(axes: Axes, keys: Sequence[Artist] = ()) -> Figure:
    """Keys under the axes, by default of all that is drawn with a label.

    They stand in as many columns as their words leave room for.
    """
    figure = figure_of(axes)
    if not keys:
        keys, _ = axes.get_legend_handles_labels()
    legend = axes.legend(
        handles=keys,
        ncols=_columns_of_keys(keys, _LETTERS * axes.bbox.width / figure.dpi),
        loc="upper center",
        bbox_to_anchor=(0.5, 0),
        bbox_transform=offset_copy(axes.transAxes, figure, y=-_BELOW_LABEL),
        borderaxespad=0,
        labelspacing=0.35,
        columnspacing=1.2,
        frameon=False,
        fontsize=9,
        labelcolor=INK,
    )
    for text in legend.get_texts():
        text.set_parse_math(False)
    return figure


def _columns_of_keys(keys: Sequence[Artist], room: float) -> int:
    """The most columns in which the keys fit into ``room`` letters, and at least one."""
    letters = [len(str(key.get_label())) + _KEY_LETTERS for key in keys]
    most = 1
    for count in range(2, len(keys) + 1):
        columns = np.array_split(letters, count)  # as matplotlib fills them
        if sum(max(column) for column in columns) <= room:
            most = count
    return most


def name_axis(axis: Axis, label: str, unit: str = "ms") -> None:
    """Name an axis, after its scale is set, and format its ticks.

    ``unit`` is ``ms``, ``bytes``, ``%`` for a share of one, or empty for whole numbers. Each tick
    of bytes has its decimal unit.
    """
    most_ticks: Any = "auto"
    if unit == "bytes":
        axis.set_major_formatter(EngFormatter("B"))
        most_ticks = _FEW
    elif unit == "%":
        axis.set_major_formatter(PercentFormatter(1.0, 0, " %"))
        most_ticks = _FEW
    else:
        axis.set_major_formatter("{x:,g}")
    if axis.get_scale() == "linear":
        steps = [1, 2, 2.5, 5, 10]
        axis.set_major_locator(MaxNLocator(most_ticks, steps=steps, integer=not unit))
    axis.set_label_text(label)


def hbars(axes: Axes, rows: Sequence[ChartBar]) -> None:
    """Horizontal bars from above, between their names and words.

    A piece of `FAINT` is hollow; an outline keeps one in sight that is as thin as itself.
    """
    unit_box = np.array([(0, -0.5), (0, 0.5), (1, 0.5), (1, -0.5)])
    rectangles: list[np.ndarray] = []
    colours: list[Any] = []
    edges: list[Any] = []
    beside: Any = {"xycoords": axes.get_yaxis_transform(), "textcoords": "offset points"}
    name_look = {**SMALL, "fontsize": 9.5}
    for place, (name, pieces, text) in enumerate(rows):
        for start, length, colour in pieces:
            rectangles.append(unit_box * (length, _BAR) + (start, place))
            colours.append(colour)
            edges.append(REST if colour == FAINT else colour)
        axes.annotate(name, (0, place), (-7, 0), ha="right", va="center", **beside, **name_look)
        axes.annotate(text, (1, place), (6, 0), va="center", **beside, **SMALL)
    bars = PolyCollection(rectangles, facecolors=colours, edgecolors=edges, linewidths=0.8)
    axes.add_collection(bars)
    axes.set_ylim(len(rows) - 0.5, -0.5)  # the first row above
    end = 1.02 * axes.dataLim.xmax
    if end == 0.0:
        end = 1.0  # an axis needs a length
    axes.set_xlim(0, end)
    axes.yaxis.set_visible(False)


def bar_charts(
    charts: Sequence[tuple[str, Sequence[ChartBar], str]],
    ax: Axes | None = None,
    keys: Sequence[Artist] = (),
) -> tuple[Figure, list[Axes]]:
    """Charts of bars under each other in one figure, or a single one on ``ax``; and their axes.

    A chart is a title, its rows, and the name of the axis, with its unit ms.
    """
    heights = [_AROUND + _ROW * len(rows) for _, rows, _ in charts]
    height = sum(heights)
    if keys:
        height += _KEYS
    titles = [title for title, _, _ in charts]
    figure, panels = new_figure(height, titles, ax, height_ratios=heights)
    for axes, (_, rows, label) in zip(panels, charts, strict=True):
        hbars(axes, rows)
        name_axis(axes.xaxis, label)
    if keys:
        legend_below(panels[-1], keys)
    return figure, panels


def stacked(parts: Iterable[tuple[float, str]]) -> list[Piece]:
    """The pieces of a bar end to end, given as lengths and colours; none for what has no length."""
    pieces: list[Piece] = []
    end = 0.0
    for length, colour in parts:
        if length > 0:
            end += length
            pieces.append((end - length, length, colour))
    return pieces


def bunches(count: int) -> np.ndarray:
    """The bunch of each of so many marks: one each, or as many bunches as a figure has room for."""
    places = np.arange(count)
    if count <= 2 * _MOST_MARKS:
        return places
    return places * _MOST_MARKS // count


def lines(
    axes: Axes, at: pd.Series, times: pd.Series, *ends: pd.Series, band: str = "", **look: Any
) -> None:
    """Times at their places as a line, and a band between the two ``ends`` of their spread.

    ``band`` is the name of the band in the legend. Of thousands the medians of bunches are drawn,
    and a band from the least to the greatest.
    """
    bunch = bunches(len(times))
    at = at.astype("float64").groupby(bunch).first()
    if not ends:
        ends = (times, times)
    lower_end, upper_end = ends
    low = lower_end.groupby(bunch).min()
    high = upper_end.groupby(bunch).max()
    if (high > low).any():
        axes.fill_between(at, low, high, color=look["color"], alpha=0.22, linewidth=0, label=band)
    marker = "o" if len(at) < _FEW else ""
    look = {"linewidth": 1.4, "marker": marker, **look}
    axes.plot(at, times.groupby(bunch).median(), **look)
