"""The roofline of a record: each stage's rate below the ceiling at its intensity.

After Williams, Waterman and Patterson 2009, "Roofline: an insightful visual performance model".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullLocator

from ocr_phases.analyse.floors import (
    Ceilings,
    ceilings_of,
    datasheet_ceilings,
    floor_table,
    rate_text,
    times_text,
    why_no_floor,
)
from ocr_phases.record import PhaseRun
from ocr_phases.show.plots import (
    BLUE,
    INK,
    MUTED,
    STAGE_COLOURS,
    VERMILLION,
    blank_figure,
    sentence_figure,
    style_axes,
    title_axes,
)
from ocr_phases.text import stage_name

_MARKERS = {"global": "o", "local": "s", "": "D"}
_LINE = 0.07  # of the key's height, from one line to the next


def plot_roofline(run: PhaseRun) -> Figure:
    """FLOP/s over FLOPs a byte, both logarithmic: ceilings as lines, each stage a point with its distance.

    The measured ceilings are solid; a datasheet's are dashed. Prefill stages have a point a view; the decode
    step is one point. Points are numbered from the nearest to its ceiling to the farthest, with their names
    beside; a dotted line leads from each to its ceiling. A sentence where there is no floor.
    """
    reason = why_no_floor(run)
    ceilings = ceilings_of(run)
    if reason is not None or ceilings is None:
        return sentence_figure(reason or "")
    table = floor_table(run)
    points = table[(table["phase"] == "prefill") & (table["stage"] != "prefill")]
    points = pd.concat([points, table[table["stage"] == "decode_step"]])
    points = points[points["device_ms"] > 0]
    points = points.assign(rate=points["flops"] / points["device_ms"] * 1e3)
    figure = blank_figure(4.6)
    axes, key = figure.subplots(1, 2, width_ratios=(3.0, 1.0))
    style_axes(axes)
    key.set(xticks=(), yticks=())  # made otherwise, though nothing shows them
    key.set_axis_off()
    axes.set_xscale("log")
    axes.set_yscale("log")
    sheet = datasheet_ceilings(run)
    drawn = [ceilings] + ([sheet] if sheet and sheet.source != ceilings.source else [])
    ridges = [each.flops_per_s / each.bandwidth_bytes_per_s for each in drawn]
    low = min(points["intensity"].min(), *ridges) / 3
    high = max(points["intensity"].max(), *ridges) * 3
    for each, ridge in zip(drawn, ridges, strict=True):
        _draw_roof(axes, each, ridge, low, high)
    axes.set_xlim(low, high)
    bottom = min(points["rate"].min(), low * ceilings.bandwidth_bytes_per_s) / 3
    axes.set_ylim(bottom, max(each.flops_per_s for each in drawn) * 3)
    _draw_points(axes, key, points, ceilings)
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(FuncFormatter(lambda value, _: rate_text(value).strip()))
        axis.set_minor_locator(NullLocator())
    axes.set_xlabel("arithmetic intensity (FLOPs a byte of weights and KV cache)")
    axes.set_ylabel("arithmetic done (FLOP/s)")
    worst = points.nlargest(1, "times_floor").to_dict("records")[0]
    title_axes(
        axes,
        f"Farthest of these from its ceiling: {_name(worst)}, {times_text(worst['times_floor'])} its floor",
    )
    figure.legend(loc="outside lower center", ncols=2, fontsize=9, frameon=False, labelcolor=INK)
    return figure


def _draw_roof(axes: Axes, ceilings: Ceilings, ridge: float, low: float, high: float) -> None:
    measured = ceilings.source == "measured"
    x = np.asarray([low, ridge, high])
    y = np.minimum(x * ceilings.bandwidth_bytes_per_s, ceilings.flops_per_s)
    rates = f"{rate_text(ceilings.bandwidth_bytes_per_s)}B/s, {rate_text(ceilings.flops_per_s)}FLOP/s"
    axes.plot(
        x,
        y,
        color=INK if measured else MUTED,
        linewidth=1.6 if measured else 1.2,
        linestyle="-" if measured else (0, (6, 3)),
        label=f"{ceilings.name}: {rates}",
    )


def _draw_points(axes: Axes, key: Axes, points: pd.DataFrame, ceilings: Ceilings) -> None:
    """Numbered points, each under its ceiling, and their names in the key."""
    for place, row in enumerate(points.sort_values("times_floor").to_dict("records")):
        stage = "language_model" if row["phase"] == "decode" else row["stage"]
        look = (_MARKERS.get(row["view"], "D"), STAGE_COLOURS.get(stage, MUTED), str(place + 1))
        x, y, line = row["intensity"], row["rate"], 0.96 - _LINE * place
        roof = min(x * ceilings.bandwidth_bytes_per_s, ceilings.flops_per_s)
        axes.plot([x, x], [y, roof], color=look[1], linewidth=1.1, linestyle=":", zorder=1.5)
        _numbered(axes, x, y, *look)
        _numbered(key, 0.0, line, *look)
        text = f"{_name(row)}, {times_text(row['times_floor'])}"
        key.text(0.09, line, text, va="center", fontsize=9, color=INK)
    key.set_xlim(-0.05, 1.0)
    key.set_ylim(0.0, 1.0)


def _numbered(axes: Axes, x: float, y: float, marker: str, colour: str, number: str) -> None:
    size = 9.0 if marker == "D" else 11.5
    axes.plot(x, y, marker, color=colour, markersize=size, markeredgecolor=INK, markeredgewidth=0.7)
    ink = "white" if colour in (BLUE, VERMILLION) else INK
    axes.text(x, y, number, ha="center", va="center_baseline", fontsize=7.5, color=ink)


def _name(row: Mapping[Any, Any]) -> str:
    if row["phase"] == "decode":
        return "decode step"
    return " ".join(filter(None, (stage_name(row["stage"]), row["view"])))
