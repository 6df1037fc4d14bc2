"""The pictures of the pages of a batch."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd
from matplotlib.figure import Figure

from ocr_phases.show.axes import name_axis, new_figure, style_axes
from ocr_phases.show.colours import BLUE, GREEN, INK, ORANGE, PURPLE
from ocr_phases.text import ms_text, percent_text

_PANELS: dict[
    str, tuple[str, Callable[[float], str], str, str]
] = {  # column -> title, text, unit, colour
    "ttft_ms": ("Time to first token", ms_text, "ms", BLUE),
    "inter_token_ms": ("Inter-token latency", ms_text, "ms", ORANGE),
    "tokens": ("Tokens", "{:,.0f}".format, "", GREEN),
    "vision_share": ("Vision in the prefill", percent_text, "%", PURPLE),
}
_MOST_BINS = 30


def plot_distributions(pages: pd.DataFrame) -> Figure:
    """Four histograms over pages (columns ``ttft_ms``, ``inter_token_ms``, ``tokens``,
    ``vision_share``).

    A dashed line is the median, the title names it; p10 and p90 stand below. Missing values are
    left out.
    """
    figure, panels = new_figure(5.4, [""] * len(_PANELS), columns=2)
    for axes, (column, (name, text, unit, colour)) in zip(panels, _PANELS.items(), strict=True):
        values = pages[column].astype("float64").dropna()
        low, median, high = map(text, values.quantile([0.1, 0.5, 0.9]))
        style_axes(axes, f"{name}: {median if len(values) else 'none'}")
        axes.hist(
            values, min(_MOST_BINS, max(8, round(len(values) ** 0.5) * 2)), color=colour, ec="white"
        )
        axes.axvline(values.median(), color=INK, linewidth=1.1, linestyle="--")
        name_axis(axes.xaxis, f"{'in ms: ' * (unit == 'ms')}p10 {low}, p90 {high}", unit)
        name_axis(axes.yaxis, "pages", "")
    return figure
