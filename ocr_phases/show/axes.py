"""Axes and their common shapes: titles, legends, bars and lines."""

from __future__ import annotations

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
_KEY_LETTERS = 8  # the room that a key takes beside its words
_BELOW_TICKS, _BELOW_LABEL = (
    0.285,
    0.46,
)  # inches under axes, of the ticks' text and of the label, too
_MOST_MARKS = 1_000  # a figure is as many CSS pixels wide
_FEW = 6  # points of a line, which are drawn, too; ticks that have a unit
_BAR = 0.7  # of the room of a row
_ROW, _AROUND, _KEYS = (
    0.3,
    1.1,
    0.5,
)  # inches of a row, around a chart of bars, and of the keys below
#: A part of a bar: where it starts, how long it is, its colour.
Piece = tuple[float, float, Any]
#: A bar: its name, its pieces, and words at the right end of the axes.
Row = tuple[str, Sequence[Piece], str]


def new_figure(
    height: float,
    titles: Sequence[str] = ("",),
    ax: Axes | None = None,
    columns: int = 1,
    **grid: Any,
) -> tuple[Figure, list[Axes]]:
    """A figure of the report's width with axes for each title, in inches; or its figure and ``ax``,
    dressed.

    ``grid`` is what `matplotlib.figure.Figure.subplots` takes. A figure of the caller that nothing
    lays out gets constrained layout: words beside the axes need room.
    """
    figure: Figure = blank_figure(height) if ax is None else figure_of(ax)
    rows = -(-len(titles) // columns)
    drawn = [ax] if ax else figure.subplots(rows, columns, squeeze=False, **grid).ravel().tolist()
    if ax and figure.get_layout_engine() is None and drawn[0].get_subplotspec() is not None:
        figure.set_layout_engine("constrained")
    for axes, title in zip(drawn, titles, strict=True):
        style_axes(axes, title)
    return figure, drawn


def figure_of(axes: Axes) -> Figure:
    """The figure that axes belong to, also where they lie in a part of it."""
    return axes.figure.figure


def style_axes(axes: Axes, title: str = "") -> None:
    """The look that every plot here shares, and its title, which states the finding, in bold on the
    left.
    """
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set(color=AXIS, in_layout=False)
    axes.grid(visible=True, color=FAINT, linewidth=0.5)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=9.5, colors=MUTED, labelcolor=INK)
    # Places given, matplotlib need not look for them below the ticks' text and above what is drawn.
    axes.xaxis.set_label_coords(
        0.5, 0, offset_copy(axes.transAxes, figure_of(axes), y=-_BELOW_TICKS)
    )
    look: Any = {"y": 1.0, "fontweight": "bold", "pad": 9, "wrap": True, **SMALL, "fontsize": 11.5}
    axes.set_title(title, loc="left", **look)


def sentence_figure(text: str, ax: Axes | None = None) -> Figure:
    """A figure with one sentence in place of a plot; or ``ax`` with that sentence."""
    axes = blank_figure(1.0).subplots() if ax is None else ax
    # On the left and in short lines, for a screen that shows no more of it.
    look: Any = {
        "transform": axes.transAxes,
        "va": "center",
        **SMALL,
        "fontsize": 10,
        "color": MUTED,
    }
    axes.text(0, 0.5, textwrap.fill(text, _SENTENCE_LINE), **look)
    axes.set_axis_off()
    return figure_of(axes)


def legend_below(axes: Axes, keys: Sequence[Artist] = ()) -> Figure:
    """Keys under the axes, in as many columns as their words leave room for; by default of what is
    drawn.
    """
    figure, keys = figure_of(axes), keys or axes.get_legend_handles_labels()[0]
    room = _LETTERS * axes.bbox.width / figure.dpi
    words = [len(str(key.get_label())) + _KEY_LETTERS for key in keys]
    fits = [n for n in range(1, len(keys) + 1) if sum(map(max, np.array_split(words, n))) <= room]
    look: Any = {
        "loc": "upper center",
        "bbox_to_anchor": (0.5, 0),
        "fontsize": 9,
        "labelcolor": INK,
    }
    look |= {
        "bbox_transform": offset_copy(axes.transAxes, figure, y=-_BELOW_LABEL),
        "frameon": False,
    }
    look |= {"labelspacing": 0.35, "columnspacing": 1.2}
    legend = axes.legend(handles=keys, ncols=max(fits, default=1), borderaxespad=0, **look)
    for text in legend.get_texts():
        text.set_parse_math(False)
    return figure


def name_axis(axis: Axis, label: str, unit: str = "ms") -> None:
    """Name an axis, after its scale is set, of ms, bytes, a share in % or, without a unit, whole
    numbers.

    Each tick of bytes has its decimal unit.
    """
    ticks: dict[str, Any] = {"bytes": EngFormatter("B"), "%": PercentFormatter(1.0, 0, " %")}
    axis.set_major_formatter(ticks.get(unit, "{x:,g}"))
    if axis.get_scale() == "linear":
        most: Any = _FEW if unit in ticks else "auto"
        axis.set_major_locator(MaxNLocator(most, steps=[1, 2, 2.5, 5, 10], integer=not unit))
    axis.set_label_text(label)


def hbars(axes: Axes, rows: Sequence[Row]) -> None:
    """Horizontal bars from above, between their names and words.

    A piece of `FAINT` is hollow; an outline keeps one in sight that is as thin as itself.
    """
    parts = [(place, *piece) for place, (_, pieces, _) in enumerate(rows) for piece in pieces]
    corners = np.array([(0, -0.5), (0, 0.5), (1, 0.5), (1, -0.5)])
    boxes = [corners * (length, _BAR) + (start, place) for place, start, length, _ in parts]
    colours = [colour for *_, colour in parts]
    edges = [REST if colour == FAINT else colour for colour in colours]
    axes.add_collection(PolyCollection(boxes, facecolors=colours, edgecolors=edges, linewidths=0.8))
    look: Any = {"xycoords": axes.get_yaxis_transform(), "textcoords": "offset points", **SMALL}
    for place, (name, _, text) in enumerate(rows):
        axes.annotate(
            name, (0, place), (-7, 0), ha="right", va="center", **look | {"fontsize": 9.5}
        )
        axes.annotate(text, (1, place), (6, 0), va="center", **look)
    axes.set(ylim=(len(rows) - 0.5, -0.5), xlim=(0, 1.02 * axes.dataLim.xmax or 1.0))
    axes.yaxis.set_visible(False)


def bar_charts(
    charts: Sequence[tuple[str, Sequence[Row], str]],
    ax: Axes | None = None,
    keys: Sequence[Artist] = (),
) -> tuple[Figure, list[Axes]]:
    """Charts of bars under each other in one figure, or a single one on ``ax``; and the axes of
    each.

    A chart is a title, its rows, and the name of the axis, with its unit ms.
    """
    heights = [_AROUND + _ROW * len(rows) for _, rows, _ in charts]
    titles = [title for title, _, _ in charts]
    figure, drawn = new_figure(sum(heights) + _KEYS * bool(keys), titles, ax, height_ratios=heights)
    for axes, (_, rows, label) in zip(drawn, charts, strict=True):
        hbars(axes, rows)
        name_axis(axes.xaxis, label)
    return legend_below(drawn[-1], keys) if keys else figure, drawn


def stacked(parts: Iterable[tuple[float, str]]) -> list[Piece]:
    """The pieces of a bar end to end, given as lengths and colours; none for what has no length."""
    parts = [part for part in parts if part[0] > 0]
    ends = np.cumsum([length for length, _ in parts]).tolist()
    return [
        (end - length, length, colour) for end, (length, colour) in zip(ends, parts, strict=True)
    ]


def bunches(count: int) -> np.ndarray:
    """The bunch of each of so many marks: one each, or as many bunches as a figure has room for."""
    places = np.arange(count)
    return places if count <= 2 * _MOST_MARKS else places * _MOST_MARKS // count


def lines(
    axes: Axes, at: pd.Series, times: pd.Series, *ends: pd.Series, band: str = "", **look: Any
) -> None:
    """Times at their places as a line, and a band between the ``ends`` of their spread, which has a
    name.

    Of thousands the medians of bunches are drawn, and a band from the least to the greatest.
    """
    bunch = bunches(len(times))
    at = at.astype("float64").groupby(bunch).first()
    low, high = (each.groupby(bunch) for each in ends or (times, times))
    if (high.max() > low.min()).any():
        axes.fill_between(
            at, low.min(), high.max(), color=look["color"], alpha=0.22, linewidth=0, label=band
        )
    look = {"linewidth": 1.4, "marker": "o" if len(at) < _FEW else "", **look}
    axes.plot(at, times.groupby(bunch).median(), **look)
