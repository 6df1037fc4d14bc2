"""Pictures of cost against quality: the frontier of a sweep or a batch, and compression page by page."""

from __future__ import annotations

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from ocr_phases.analyse.scaling import cost_quality_sentence, frontier
from ocr_phases.show.figures import (
    BLUE,
    GREEN,
    INK,
    MUTED,
    ORANGE,
    PURPLE,
    SKY,
    VERMILLION,
    Picture,
    blank_figure,
    byte_axis,
    legend_below,
    sentence_figure,
    style_axes,
    time_axis,
    title_axes,
)
from ocr_phases.show.web import Html, fragment, note, section_heading, table_html
from ocr_phases.text import count_text

_COSTS = (("page_ms", "Time per page"), ("prompt_tokens", "Prompt tokens"), ("peak_bytes", "Peak memory"))
_LOST = {"edit_distance": "edit distance to the truth (%)", "agreement": "distance to the reference (%)"}
_PRESET_LOOKS = ((BLUE, "o"), (ORANGE, "s"), (GREEN, "^"), (PURPLE, "D"), (VERMILLION, "v"), (SKY, "P"))
_MOST_NAMED = 12
_MOST_MARKERS = 2_000  # beyond, a drawing has a megabyte for every 8,000, and a browser is slow
_NAME_WIDTH, _NAME_HEIGHT = 0.2, 0.07  # of an axis


def plot_cost_quality(points: pd.DataFrame) -> Figure:
    """What each way loses, in per cent, over what it costs: ms a page, prompt tokens, bytes of memory.

    ``points`` have the columns `ocr_phases.analyse.scaling.POINT_COLUMNS`. A line joins the ways that no
    other beats in both, the Pareto frontier of that cost; the others are hollow.
    """
    if len(points) < 2:
        return sentence_figure(
            "Quality was measured for fewer than two cells, so there is no frontier to draw."
        )
    costs = [(column, title) for column, title in _COSTS if points[column].notna().any()]
    figure = blank_figure(3.9)
    panels = figure.subplots(1, len(costs), sharey=True, squeeze=False)[0]
    for axes, (column, title) in zip(panels, costs, strict=True):
        style_axes(axes)
        _frontier(axes, points.dropna(subset=[column]), column)
        title_axes(axes, title)
    panels[0].set_ylabel(_LOST[points["measure"].iloc[0]], fontsize=10, color=INK)
    panels[0].set_ylim(bottom=-0.1 * max(100.0 * points["lost"].max(), 0.1))
    keys = panels[0].get_legend_handles_labels()[0]
    legend_below(figure, keys, 2)
    return figure


def cost_quality_html(points: pd.DataFrame) -> Html:
    """Heading, sentence, picture and table of `plot_cost_quality`'s points; empty for none."""
    if points.empty:
        return fragment()
    shown = points[["name", "page_ms", "prompt_tokens", "peak_bytes", "lost", "frontier"]]
    lost = _LOST[points["measure"].iloc[0]].removesuffix(" (%)")
    headings = {"name": ("cell", ""), "page_ms": ("time per page", "ms"), "lost": (lost, "%")}
    alt = "What each cell loses over its time, its prompt and its memory"
    return fragment(
        section_heading("Cost against quality"),
        note(cost_quality_sentence(points)),
        Picture(plot_cost_quality(points), alt).html(),
        table_html(shown, caption="Each cell, by its time", headings=headings),
    )


def _frontier(axes: Axes, points: pd.DataFrame, cost: str) -> None:
    # A time that noise spoiled is on no frontier.
    costs = points[cost].mask(points["noisy"]) if cost == "page_ms" else points[cost]
    on = frontier(costs, points["lost"])
    best = points[on].sort_values(cost)
    lost = 100.0 * points["lost"]
    axes.plot(
        points[cost][~on], lost[~on], "o", mfc="white", mec=MUTED, markersize=7, label="beaten by another"
    )
    axes.plot(
        best[cost],
        100.0 * best["lost"],
        "o-",
        color=BLUE,
        drawstyle="steps-post",
        markersize=7,
        linewidth=1.4,
        label="frontier: no other costs and loses less",
    )
    axes.set_xlim(0, 1.28 * points[cost].max())
    _name_points(axes, points if len(points) <= _MOST_NAMED else best, cost)
    axes.xaxis.set_major_locator(MaxNLocator(nbins=4, steps=[1, 2, 2.5, 5, 10]))
    if cost == "page_ms":
        time_axis(axes.xaxis, "from file to last token")
    elif cost == "peak_bytes":
        byte_axis(axes.xaxis, "largest of any phase")
    else:
        axes.set_xlabel("tokens, image and text")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))


def _name_points(axes: Axes, points: pd.DataFrame, cost: str) -> None:
    """A name beside each point, below it where another's name stands just above."""
    across, up = (points[name].to_numpy(float) for name in (cost, "lost"))
    for name, x, y in zip(points["name"], across, up, strict=True):
        beside = abs(across - x) < _NAME_WIDTH * across.max()
        over = (up > y) & (up - y < _NAME_HEIGHT * up.max())
        shift = -13 if (beside & over).any() else 5
        axes.annotate(name, (x, 100.0 * y), (7, shift), textcoords="offset points", fontsize=9, color=INK)


def plot_compression(pages: pd.DataFrame, lost: str = "edit_distance") -> Figure:
    """What each page lost, in per cent, over its compression, a point a page, a colour a preset.

    ``pages`` have ``preset``, ``compression`` (generated tokens over valid image tokens) and ``lost``, the
    column of what is drawn: ``edit_distance``, or ``agreement`` as its distance from 1.
    """
    known = pages.dropna(subset=["compression", lost])
    if known.empty:
        return sentence_figure("No page has both a truth and a text, so there is no compression to draw.")
    figure = blank_figure(4.4)
    axes = figure.subplots()
    style_axes(axes)
    values = known[lost] if lost == "edit_distance" else 1.0 - known[lost]
    order = known.groupby("preset")["compression"].median().sort_values(ascending=False).index
    for number, preset in enumerate(order):
        rows = known["preset"] == preset
        colour, marker = _PRESET_LOOKS[number % len(_PRESET_LOOKS)]
        median = 100.0 * values[rows].median()
        label = f"{preset}: {count_text(int(rows.sum()), 'page')}, median {median:.1f} %"
        axes.plot(
            known["compression"][rows],
            100.0 * values[rows],
            marker,
            color=colour,
            alpha=0.7,
            mew=0,
            label=label,
            rasterized=len(known) > _MOST_MARKERS,
        )
    axes.set_xlim(left=0)
    axes.set_ylim(bottom=-1)
    axes.set_xlabel("compression: generated tokens over image tokens", fontsize=10, color=INK)
    axes.set_ylabel(_LOST[lost], fontsize=10, color=INK)
    title_axes(axes, "What a page loses over its compression, a point a page")
    legend_below(figure, axes.get_legend_handles_labels()[0], 3)
    return figure
