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
#: Letters of a legend for each inch that its axes are wide; it may be wider than they are.
_LEGEND_LETTERS_PER_INCH = 19.0
#: Letters that would fit into the room of a key's line or patch and of the gaps around it.
_KEY_LETTERS = 8
_TITLE_LETTERS_PER_INCH = 11.5
_FEWEST_TITLE_LETTERS = 12
#: Inches from the lower edge of axes to below the text of their ticks, and to below their label.
_BELOW_TICKS = 0.285
_BELOW_LABEL = 0.46
_MOST_MARKS = 1_000  # a figure is as many CSS pixels wide
#: A line of fewer points than these has a dot at each of them.
_LINE_WITHOUT_DOTS = 6
#: An axis has no more ticks than these where each of them names its unit.
_MOST_TICKS_WITH_UNIT = 6
_BAR_HEIGHT = 0.7  # rows
#: The height of a chart of bars, and of the keys below the last chart.
_ROW_INCHES = 0.3
_AROUND_ROWS_INCHES = 1.1
_KEYS_INCHES = 0.5
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
    # The label and the title get fixed places. Otherwise matplotlib would measure the ticks' text
    # and all that is drawn to find places beside them.
    below_ticks = offset_copy(axes.transAxes, figure_of(axes), y=-_BELOW_TICKS)
    axes.xaxis.set_label_coords(0.5, 0, below_ticks)
    cell = axes.get_subplotspec()
    if cell is not None and cell.get_gridspec().ncols > 1:
        # Matplotlib wraps a title only at the edge of the figure, so that a long one would run over
        # the title of the axes beside it.
        inches = axes.bbox.width / figure_of(axes).dpi
        letters = max(_FEWEST_TITLE_LETTERS, int(_TITLE_LETTERS_PER_INCH * inches))
        title = textwrap.fill(title, letters)
    look = {**SMALL, "fontsize": 11.5, "fontweight": "bold"}
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
        ncols=_columns_of_keys(keys, _LEGEND_LETTERS_PER_INCH * axes.bbox.width / figure.dpi),
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
    """The largest number of columns in which the keys are at most ``room`` letters wide; or one."""
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
        most_ticks = _MOST_TICKS_WITH_UNIT
    elif unit == "%":
        axis.set_major_formatter(PercentFormatter(1.0, 0, " %"))
        most_ticks = _MOST_TICKS_WITH_UNIT
    else:
        axis.set_major_formatter("{x:,g}")
    if axis.get_scale() == "linear":
        steps = [1, 2, 2.5, 5, 10]
        axis.set_major_locator(MaxNLocator(most_ticks, steps=steps, integer=not unit))
    axis.set_label_text(label)


def hbars(axes: Axes, rows: Sequence[ChartBar]) -> None:
    """Draw a row for each bar, from above: its name on the left, its words on the right.

    A piece has an outline, which keeps it in sight however short it is. That of a piece in `FAINT`
    is darker than the piece, which then looks hollow.
    """
    rectangles: list[list[tuple[float, float]]] = []
    colours: list[Any] = []
    outlines: list[Any] = []
    beside: Any = {"xycoords": axes.get_yaxis_transform(), "textcoords": "offset points"}
    name_look = {**SMALL, "fontsize": 9.5}
    for row, (name, pieces, words) in enumerate(rows):
        for start, length, colour in pieces:
            rectangles.append(_rectangle(start, length, row))
            colours.append(colour)
            outlines.append(REST if colour == FAINT else colour)
        axes.annotate(name, (0, row), (-7, 0), ha="right", va="center", **beside, **name_look)
        axes.annotate(words, (1, row), (6, 0), va="center", **beside, **SMALL)
    # As one collection, since a timeline has thousands of pieces.
    bars = PolyCollection(rectangles, facecolors=colours, edgecolors=outlines, linewidths=0.8)
    axes.add_collection(bars)
    axes.set_ylim(len(rows) - 0.5, -0.5)  # upside down, so that the first row is on top
    end = 1.02 * axes.dataLim.xmax
    if end == 0.0:
        end = 1.0  # an axis needs a length
    axes.set_xlim(0, end)
    axes.yaxis.set_visible(False)


def _rectangle(start: float, length: float, row: int) -> list[tuple[float, float]]:
    """The corners of a piece of a bar, whose row counts from 0."""
    end = start + length
    top = row - _BAR_HEIGHT / 2
    bottom = row + _BAR_HEIGHT / 2
    return [(start, top), (start, bottom), (end, bottom), (end, top)]


def bar_charts(
    charts: Sequence[tuple[str, Sequence[ChartBar], str]],
    ax: Axes | None = None,
    keys: Sequence[Artist] = (),
) -> tuple[Figure, list[Axes]]:
    """Charts of bars under each other in one figure, or a single one on ``ax``; and their axes.

    A chart is a title, its rows, and the name of the axis, with its unit ms.
    """
    heights = [_AROUND_ROWS_INCHES + _ROW_INCHES * len(rows) for _, rows, _ in charts]
    height = sum(heights)
    if keys:
        height += _KEYS_INCHES
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
    """The number of the bunch of neighbours to which each of ``count`` marks belongs.

    As long as a figure has room for all marks, each is a bunch of its own. More of them make
    `_MOST_MARKS` bunches.
    """
    places = np.arange(count)
    if count <= 2 * _MOST_MARKS:
        return places
    return places * _MOST_MARKS // count


def lines(
    axes: Axes,
    places: pd.Series,
    times: pd.Series,
    spread: tuple[pd.Series, pd.Series] | None = None,
    *,
    band: str = "",
    **look: Any,
) -> None:
    """Draw times over their places as a line, and their spread as a band around it.

    ``spread`` has the lower and the upper end of the band at each place, and ``band`` names it in
    the legend. A figure has no room for thousands of points: then a point is the median of a bunch
    of neighbours, and the band goes from the least to the greatest of them.
    """
    bunch = bunches(len(times))
    drawn_places = places.astype("float64").groupby(bunch).first()
    if spread is None:
        spread = (times, times)
    lower_ends, upper_ends = spread
    low = lower_ends.groupby(bunch).min()
    high = upper_ends.groupby(bunch).max()
    if (high > low).any():
        colour = look["color"]
        axes.fill_between(drawn_places, low, high, color=colour, alpha=0.22, lw=0, label=band)
    marker = "o" if len(drawn_places) < _LINE_WITHOUT_DOTS else ""
    look = {"linewidth": 1.4, "marker": marker, **look}
    axes.plot(drawn_places, times.groupby(bunch).median(), **look)
