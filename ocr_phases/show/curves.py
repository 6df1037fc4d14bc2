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
_LINES = ("-", "--", ":", "-.")
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
    """A figure of one column over another, with its spread where it is known; ``floor_ms`` is
    dotted.

    Lines are called by what varies of the model and ``ways``, and have a look by that; each
    ``cell`` has one. ``names`` are those of the two columns, the horizontal one first. The vertical
    scale follows the bulk of each line.
    """
    _, (axes,) = new_figure(4.2, [title], ax)
    x, y = names
    loaded = ["model", *loaded_ways(table)] if "model" in table else []
    told = [way for way in (*loaded, *ways) if table[way].nunique() > 1] or ways[-1:]
    words = [[_line_text(way, value) for value in table[way]] for way in told]
    table = table.assign(line=[", ".join(each) for each in zip(*words, strict=True)])
    looks = dict(zip(dict.fromkeys(table["line"]), cycle(product(_LINES, COLOURS)), strict=False))
    for _, rows in table.groupby(["line", "cell"], sort=False):
        style, colour = looks[rows["line"].iloc[0]]
        middle = rows.groupby(x).median(numeric_only=True).reset_index()
        ends = [middle[end] for end in (f"{y}_p10", f"{y}_p90") if end in middle]
        lines(axes, middle[x], middle[y], *ends, color=colour, linestyle=style)
        if len(rows) > len(middle):
            axes.plot(rows[x], rows[y], "o", color=colour, alpha=0.35, mew=0)
        if "floor_ms" in middle:
            axes.plot(middle[x], middle["floor_ms"], color=colour, **_DOTS)
    if "preset" in table and "preset" not in told:
        for turn, (preset, start) in enumerate(
            table.groupby("preset")[x].min().sort_values().items()
        ):
            axes.axvline(start, color=FAINT, linewidth=0.9, zorder=0)
            # In two lines, so that the names of neighbours do not meet.
            look: Any = {"textcoords": "offset points", "va": "top", **SMALL, "color": MUTED}
            place, shift = (start, 1), (3, -4 - 11 * (turn % 2))
            axes.annotate(str(preset), place, shift, xycoords=axes.get_xaxis_transform(), **look)
    bulk = table.groupby(["line", "cell"])[y].quantile(np.asarray([0.0, 0.98]))
    low, high = float(bulk.min()), float(bulk.max())
    # From zero, so that heights compare.
    axes.set_ylim(0, 1.22 * high)
    if low > 0 and high / low > _WIDE:
        log_axis(axes.yaxis, low / 1.6, high * 2.0)
    name_axis(axes.xaxis, names[x], "")
    name_axis(axes.yaxis, names[y], "ms" if y.endswith("_ms") else "")
    keys = [
        Line2D([], [], color=look[1], linestyle=look[0], label=name) for name, look in looks.items()
    ]
    if "floor_ms" in table and table["floor_ms"].notna().any():
        keys.append(Line2D([], [], color=INK, label="floor", **_DOTS))
    legend_below(axes, keys)
    return axes


def _line_text(way: str, value: object) -> str:
    """What a line's key says of one of its settings; a strategy is named without "decode"."""
    return str(value) if way == "strategy" else setting_text(way, value)


def log_axis(axis: Axis, low: float, high: float) -> None:
    """A logarithmic axis between these, with plain numbers."""
    name = "x" if axis is axis.axes.xaxis else "y"
    axis.axes.set(**{f"{name}scale": "log", f"{name}lim": (low, high)})
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter("{x:,g}")
    axis.set_minor_formatter(NullFormatter())
