"""How the figures of many pages spread."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from ocr_phases.show.figures import (
    BLUE,
    GREEN,
    INK,
    ORANGE,
    PURPLE,
    blank_figure,
    style_axes,
    time_axis,
    title_axes,
)
from ocr_phases.text import ms_text, percent_text

_PANELS = (
    ("ttft_ms", "Time to first token", "ms", BLUE),
    ("inter_token_ms", "Inter-token latency", "ms a token", ORANGE),
    ("tokens", "Tokens", "tokens", GREEN),
    ("vision_share", "Vision in the prefill", "% of the prefill", PURPLE),
)
_BINS = 30


def plot_distributions(pages: pd.DataFrame) -> Figure:
    """Four histograms over pages (columns ``ttft_ms``, ``inter_token_ms``, ``tokens``, ``vision_share``).

    A dashed line is the median, the title names it with p10 and p90. Values that are missing are left out.
    """
    figure = blank_figure(5.4)
    figure.get_layout_engine().set(w_pad=2.5, h_pad=2.0)  # type: ignore[union-attr, call-arg]
    for axes, (column, name, unit, colour) in zip(figure.subplots(2, 2).flat, _PANELS, strict=True):
        values = pages[column].astype("float64").dropna().to_numpy()
        _histogram(axes, values * (100 if unit.startswith("%") else 1), name, unit, colour)
    return figure


def _histogram(axes: Axes, values: np.ndarray, name: str, unit: str, colour: str) -> None:
    style_axes(axes)
    axes.set_xlabel(unit)
    axes.set_ylabel("pages")
    if not values.size:
        title_axes(axes, f"{name}: none")
        axes.set(xticks=[], yticks=[])
        return
    axes.hist(values, bins=_edges(values).tolist(), color=colour, edgecolor="white", linewidth=0.6)
    low, median, high = np.quantile(values, (0.1, 0.5, 0.9))
    axes.axvline(median, color=INK, linewidth=1.1, linestyle="--")
    axes.yaxis.set_major_locator(MaxNLocator(nbins=5, integer=True))
    axes.xaxis.set_major_locator(MaxNLocator(nbins=7, integer=unit == "tokens"))
    title_axes(axes, f"{name}: {_text(median, unit)}")
    ends = f"p10 {_text(low, unit)}, p90 {_text(high, unit)}"
    if unit.startswith("ms"):
        time_axis(axes.xaxis, unit.replace("ms", "time", 1), f": {ends}")
    else:
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
        axes.set_xlabel(f"{unit} ({ends})")


def _edges(values: np.ndarray) -> np.ndarray:
    low, high = float(values.min()), float(values.max())
    if low == high:  # one value is one bar, not as wide as the axis
        half = abs(low) * 0.02 or 0.5
        return np.asarray([low - half, low + half])
    return np.histogram_bin_edges(values, bins=min(_BINS, max(8, round(np.sqrt(values.size)) * 2)))


def _text(value: float, unit: str) -> str:
    if unit.startswith("%"):
        return percent_text(value / 100)
    return f"{value:,.0f}" if unit == "tokens" else ms_text(value)
