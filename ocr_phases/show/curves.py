"""One column over another as lines, each line named after what tells it apart."""

from __future__ import annotations

from itertools import cycle, product
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullFormatter
from matplotlib.typing import LineStyleType

from ocr_phases.analyse.sweep_table import loaded_ways, setting_text
from ocr_phases.show.axes import (
    SMALL,
    figure_of,
    legend_below,
    lines,
    name_axis,
    new_figure,
    sentence_figure,
)
from ocr_phases.show.colours import BLUE, FAINT, GREEN, INK, MUTED, ORANGE, PURPLE, SKY, VERMILLION

COLOURS = (BLUE, ORANGE, GREEN, VERMILLION, PURPLE, SKY)
_LINES: tuple[LineStyleType, ...] = ("-", "--", ":", "-.")
_DOTS: dict[str, Any] = {"linestyle": (0, (1, 2)), "linewidth": 1.4}
_WIDE = 12.0  # from here on largest over smallest is drawn on a logarithmic axis


def decode_curves(curves: pd.DataFrame, ways: list[str], ax: Axes | None) -> Figure:
    """Time of a decode step over the cache, a line for each of the ``ways``."""
    if curves.empty:
        return sentence_figure("There are no decode steps to draw.", ax)
    title = "Decode step over the length of the sequence: medians and spread"
    names = {
        "cache_len": "sequence of a row: prompt and generated (tokens)",
        "device_ms": "decode step (ms)",
    }
    return figure_of(curves_of_table(curves, title, names, ways, ax))


def curves_of_table(
    table: pd.DataFrame, title: str, names: dict[str, str], ways: list[str], ax: Axes | None
) -> Axes:
    """A figure of one column over another.

    Parameters
    ----------
    table : DataFrame
        The two columns, the columns of ``ways``, and ``cell``: each cell is a line of its own.
        Where there are the columns ``*_p10`` and ``*_p90`` of the vertical one, they are its
        spread; ``floor_ms`` is drawn with dots.
    title : str
        The title of the axes.
    names : dict of str to str
        The two columns with what their axes are called, the horizontal one first.
    ways : list of str
        The columns that may tell lines apart, besides those of the model. Lines that are alike in
        all of them have the same name and the same look.
    ax : matplotlib.axes.Axes or None
        Axes to draw on; None for those of a new figure.

    Returns
    -------
    matplotlib.axes.Axes
        The axes. Their vertical scale follows the bulk of each line.
    """
    _, (axes,) = new_figure(4.2, [title], ax)
    x, y = names
    differing = _differing_ways(table, ways)
    table = table.assign(line=_line_names(table, differing))
    looks = dict(zip(table["line"].unique(), cycle(product(_LINES, COLOURS)), strict=False))
    for (name, _), rows in table.groupby(["line", "cell"], sort=False):
        style, colour = looks[name]
        _draw_line(axes, rows, x, y, colour, style)
    if "preset" in table and "preset" not in differing:
        _mark_presets(axes, table.groupby("preset")[x].min())
    _scale_to_bulk(axes, table.groupby(["line", "cell"])[y])
    name_axis(axes.xaxis, names[x], "")
    name_axis(axes.yaxis, names[y], "ms" if y.endswith("_ms") else "")
    keys: list[Line2D] = []
    for name, (style, colour) in looks.items():
        keys.append(Line2D([], [], color=colour, linestyle=style, label=name))
    if "floor_ms" in table and table["floor_ms"].notna().any():
        keys.append(Line2D([], [], color=INK, label="floor", **_DOTS))
    legend_below(axes, keys)
    return axes


def _differing_ways(table: pd.DataFrame, ways: list[str]) -> list[str]:
    """The columns that tell lines apart: those of the model and of ``ways`` that vary.

    Where none varies, it is the last of ``ways``, so that a line has a name.
    """
    columns = list(ways)
    if "model" in table:
        columns = ["model", *loaded_ways(table), *ways]
    differing = [column for column in columns if table[column].nunique() > 1]
    if not differing:
        return ways[-1:]
    return differing


def _line_names(table: pd.DataFrame, ways: list[str]) -> list[str]:
    """The name of the line of each row."""
    columns = [[_line_text(way, value) for value in table[way]] for way in ways]
    return [", ".join(texts) for texts in zip(*columns, strict=True)]


def _draw_line(
    axes: Axes, rows: pd.DataFrame, x: str, y: str, colour: str, style: LineStyleType
) -> None:
    """Draw the medians of the rows at each place, with their spread and their floor.

    Where a place has several rows, each of them is a point, too.
    """
    medians = rows.groupby(x).median(numeric_only=True).reset_index()
    places = medians[x]
    spread = None
    if f"{y}_p10" in medians:
        spread = (medians[f"{y}_p10"], medians[f"{y}_p90"])
    lines(axes, places, medians[y], spread, color=colour, linestyle=style)
    if len(rows) > len(medians):
        axes.plot(rows[x], rows[y], "o", color=colour, alpha=0.35, mew=0)
    if "floor_ms" in medians:
        axes.plot(places, medians["floor_ms"], color=colour, **_DOTS)


def _mark_presets(axes: Axes, starts: pd.Series) -> None:
    """A line with the name of each preset where its prompts begin."""
    look = {**SMALL, "color": MUTED}
    for turn, (preset, start) in enumerate(starts.sort_values().items()):
        axes.axvline(start, color=FAINT, linewidth=0.9, zorder=0)
        # In two lines, so that the names of neighbours do not meet.
        down = -4 if turn % 2 == 0 else -15
        axes.annotate(
            str(preset),
            (start, 1),
            (3, down),
            xycoords=axes.get_xaxis_transform(),
            textcoords="offset points",
            va="top",
            **look,
        )


def _scale_to_bulk(axes: Axes, values_by_line: Any) -> None:
    """Set the vertical scale by nearly all of the values of each line, a pandas group of them."""
    bulk = values_by_line.quantile(np.asarray([0.0, 0.98]))
    low = float(bulk.min())
    high = float(bulk.max())
    # From zero, so that heights compare.
    axes.set_ylim(0, 1.22 * high)
    if low > 0 and high / low > _WIDE:
        log_axis(axes.yaxis, low / 1.6, high * 2.0)


def _line_text(way: str, value: object) -> str:
    """What a line's key says of one of its settings; a strategy is named without "decode"."""
    if way == "strategy":
        return str(value)
    return setting_text(way, value)


def log_axis(axis: Axis, low: float, high: float) -> None:
    """Make an axis logarithmic, from ``low`` to ``high``, with numbers and not powers of ten."""
    if axis is axis.axes.xaxis:
        axis.axes.set(xscale="log", xlim=(low, high))
    else:
        axis.axes.set(yscale="log", ylim=(low, high))
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter("{x:,g}")
    axis.set_minor_formatter(NullFormatter())
