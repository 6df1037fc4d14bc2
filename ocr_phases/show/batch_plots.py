"""The pictures of the pages of a batch."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ocr_phases.show.axes import name_axis, new_figure, style_axes
from ocr_phases.show.colours import BLUE, GREEN, INK, ORANGE, PURPLE
from ocr_phases.text import ms_text, percent_text

_FEWEST_BINS = 8
_MOST_BINS = 30


class _Panel(NamedTuple):
    """A histogram: the column of its values, its title, how a value is written, and its look."""

    column: str
    title: str
    write: Callable[[float], str]
    unit: str
    colour: str


def _count(value: float) -> str:
    return f"{value:,.0f}"


_PANELS = (
    _Panel("ttft_ms", "Time to first token", ms_text, "ms", BLUE),
    _Panel("inter_token_ms", "Inter-token latency", ms_text, "ms", ORANGE),
    _Panel("tokens", "Tokens", _count, "", GREEN),
    _Panel("vision_share", "Vision in the prefill", percent_text, "%", PURPLE),
)


def plot_distributions(pages: pd.DataFrame) -> Figure:
    """Four histograms over the pages of a batch.

    ``pages`` has the columns ``ttft_ms``, ``inter_token_ms``, ``tokens`` and ``vision_share``, in
    which values may be missing. A dashed line is the median, which the title names; p10 and p90
    stand below.
    """
    figure, all_axes = new_figure(5.4, [""] * len(_PANELS), columns=2)
    for axes, panel in zip(all_axes, _PANELS, strict=True):
        _draw_histogram(axes, panel, pages[panel.column].astype("float64").dropna())
    return figure


def _draw_histogram(axes: Axes, panel: _Panel, values: pd.Series) -> None:
    p10, median, p90 = [panel.write(value) for value in values.quantile([0.1, 0.5, 0.9])]
    if values.empty:
        median = "none"
    style_axes(axes, f"{panel.title}: {median}")
    bins = max(_FEWEST_BINS, 2 * round(len(values) ** 0.5))
    axes.hist(values, min(bins, _MOST_BINS), color=panel.colour, ec="white")
    axes.axvline(values.median(), color=INK, linewidth=1.1, linestyle="--")
    ends = f"p10 {p10}, p90 {p90}"
    if panel.unit == "ms":
        ends = f"in ms: {ends}"
    name_axis(axes.xaxis, ends, panel.unit)
    name_axis(axes.yaxis, "pages", "")
