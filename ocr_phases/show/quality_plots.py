"""What readings lose, drawn over what they cost and how far they compress."""

from __future__ import annotations

from itertools import cycle
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ocr_phases.analyse.cost_quality import frontier
from ocr_phases.show.axes import SMALL, legend_below, name_axis, new_figure, sentence_figure
from ocr_phases.show.colours import BLUE, INK, MUTED
from ocr_phases.show.curves import COLOURS
from ocr_phases.text import count_text

_MARKERS = "os^DvP"
_COSTS = {  # column -> title, label and unit
    "page_ms": ("Time per page", "from file to last token (ms)", "ms"),
    "prompt_tokens": ("Prompt tokens", "tokens, image and text", ""),
    "peak_bytes": ("Peak memory", "largest of any phase", "bytes"),
}
LOST = {
    "edit_distance": "edit distance to the reference text",
    "agreement": "distance to the reference",
}
_MOST_NAMED = 12
#: More markers than these are drawn as pixels: as shapes, 8,000 of them take a megabyte.
_MOST_MARKERS = 2_000


def plot_cost_quality(points: pd.DataFrame) -> Figure:
    """What each way to read loses, in per cent, over what it costs.

    The costs are the time of a page, the tokens of its prompt, and memory. ``points`` have the
    columns `ocr_phases.analyse.cost_quality.POINT_COLUMNS`. A line joins the ways that no other one
    beats in both, the Pareto frontier of that cost; the others are hollow.
    """
    if len(points) < 2:
        return sentence_figure(
            "Fewer than two cells have a quality, so there is no frontier to draw."
        )
    points = points.assign(lost=100.0 * points["lost"])
    costs = [column for column in _COSTS if points[column].notna().any()]
    titles = [_COSTS[column][0] for column in costs]
    figure, panels = new_figure(3.9, titles, columns=len(costs), sharey=True)
    for axes, column in zip(panels, costs, strict=True):
        _draw_frontier(axes, points.dropna(subset=[column]), column)
    bottom = -0.1 * max(points["lost"].max(), 0.1)
    measure = LOST[points["measure"].iloc[0]]
    panels[0].set(ylabel=f"{measure} (%)", ylim=(bottom, None))
    keys, words = panels[0].get_legend_handles_labels()
    figure.legend(
        keys, words, loc="outside lower center", ncols=2, fontsize=9, frameon=False, labelcolor=INK
    )
    return figure


def _draw_frontier(axes: Axes, points: pd.DataFrame, cost: str) -> None:
    """Draw the points over one cost with its frontier; ``cost`` is a column of ``points``."""
    costs = points[cost]
    if cost == "page_ms":
        costs = costs.mask(points["noisy"])  # a time that noise spoiled is on no frontier
    on_frontier = frontier(costs, points["lost"])
    best = points[on_frontier].sort_values(cost)
    beaten = points[~on_frontier]
    hollow: dict[str, Any] = {"mfc": "white", "mec": MUTED, "ms": 7}
    axes.plot(beaten[cost], beaten["lost"], "o", **hollow, label="beaten by another")
    words = "frontier: no other costs and loses less"
    axes.step(best[cost], best["lost"], "o-", where="post", color=BLUE, ms=7, lw=1.4, label=words)
    if len(points) <= _MOST_NAMED:
        _name_points(axes, points, cost)
    else:
        _name_points(axes, best, cost)
    axes.set_xlim(0, 1.28 * points[cost].max())
    _, label, unit = _COSTS[cost]
    name_axis(axes.xaxis, label, unit)


def _name_points(axes: Axes, points: pd.DataFrame, cost: str) -> None:
    """Write the name of each point on its right.

    A name stands above its point, because one below would cross the frontier. Where the frontier
    ends, at the point that loses least, nothing is crossed: that name stands below, clear of its
    neighbour's.
    """
    is_least = points["lost"].rank(method="first") == 1  # of several that are equal, one
    for below, point in zip(is_least, points.to_dict("records"), strict=True):
        height = 5
        if below:
            height = -13
        place = (point[cost], point["lost"])
        axes.annotate(point["name"], place, (7, height), textcoords="offset points", **SMALL)


def plot_compression(pages: pd.DataFrame, lost: str = "edit_distance") -> Figure:
    """What each page lost, in per cent, over its compression; each preset has a colour.

    ``pages`` have ``preset``, ``compression``, which is generated tokens over valid image tokens,
    and the column that ``lost`` names: ``edit_distance``, or ``agreement``, of which the distance
    from 1 is drawn.
    """
    known = pages.dropna(subset=["compression", lost])
    if known.empty:
        return sentence_figure(
            "No page has both a reference text and a text of the model, so there is no "
            "compression to draw."
        )
    _, (axes,) = new_figure(4.4, ["What a page loses over its compression, one point per page"])
    losses = known[lost]
    if lost != "edit_distance":
        losses = 1.0 - losses
    known = known.assign(lost=100.0 * losses)
    look: dict[str, Any] = {"alpha": 0.7, "mew": 0, "clip_on": False}
    look["rasterized"] = len(known) > _MOST_MARKERS
    medians = known.groupby("preset")["compression"].median()
    presets = medians.sort_values(ascending=False).index
    for preset, colour, marker in zip(presets, cycle(COLOURS), cycle(_MARKERS), strict=False):
        rows = known[known["preset"] == preset]
        label = f"{preset}: {count_text(len(rows), 'page')}, median {rows['lost'].median():.1f} %"
        axes.plot(rows["compression"], rows["lost"], marker, color=colour, label=label, **look)
    axes.set(xlabel="compression: generated tokens over image tokens", ylabel=f"{LOST[lost]} (%)")
    axes.set(xlim=(0, None), ylim=(0, None))
    return legend_below(axes)
