"""The stages under the ceilings of the device, drawn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter

from ocr_phases.analyse.floors import (
    Ceilings,
    ceilings_of,
    datasheet_ceilings,
    floor_table,
    times_text,
    why_no_floor,
)
from ocr_phases.analyse.noise import ceilings_are_wrong
from ocr_phases.record import Record
from ocr_phases.show.axes import legend_below, new_figure, sentence_figure
from ocr_phases.show.colours import INK, MUTED, ORANGE, STAGE_COLOURS
from ocr_phases.show.stage_rows import SMALL_SHARE, with_names
from ocr_phases.text import rate_text

#: Colour, width and style of the line of a ceiling, by its source.
_ROOFS: dict[str, Any] = {"measured": (INK, 1.6, "-"), "datasheet": (MUTED, 1.2, (0, (6, 3)))}
#: The marker of a stage by its view; a diamond for any other.
_MARKERS = {"global": "o", "local": "s"}


def plot_roofline(run: Record, *, ax: Axes | None = None) -> Figure:
    """FLOP/s over FLOPs per byte, both logarithmic: ceilings as lines, and each stage as a point.

    After Williams, Waterman and Patterson 2009, "Roofline: an insightful visual performance model".
    The measured ceilings are solid; a datasheet's are dashed. Prefill stages have a point for each
    view; the decode step is one point. A point's area is its part of the time of its phase, and
    those below a hundredth are left to the table; a dotted line leads to its ceiling.

    Parameters
    ----------
    run : Record
        The measurement.
    ax : matplotlib.axes.Axes, optional
        Axes to draw on; by default those of a new figure.

    Returns
    -------
    matplotlib.figure.Figure
        The figure of the axes; a sentence where there is no floor.
    """
    reason = why_no_floor(run)
    ceilings = ceilings_of(run)
    if reason is not None or ceilings is None:
        return sentence_figure(reason or "", ax)
    points = _points_of_stages(run)
    if ceilings_are_wrong(run):
        names = points["name"]
        title = "The ceilings were measured wrongly, so distances to them say nothing"
    else:
        names = points["name"] + ", " + points["times_floor"].map(times_text)
        title = f"Farthest from the hardware's limit: {names.iloc[-1]} its floor"
    _, (axes,) = new_figure(4.6, [title], ax)
    roofs = [ceilings]
    sheet = datasheet_ceilings(run)
    if sheet is not None and sheet.source != ceilings.source:
        roofs.append(sheet)
    # Three times beyond everything that is drawn.
    ridges = [_ridge(roof) for roof in roofs]
    left = min(points["intensity"].min(), *ridges) / 3
    right = max(points["intensity"].max(), *ridges) * 3
    bottom = min(points["rate"].min(), _roof(ceilings, left)) / 3
    top = 3 * max(roof.flops_per_s for roof in roofs)
    for roof in roofs:
        name = roof.source
        if ax is None:  # there is room for the name of the device
            name = roof.name
        _draw_roof(axes, roof, np.asarray([left, _ridge(roof), right]), name)
    _draw_stages(axes, points, names, ceilings)
    axes.set(xscale="log", yscale="log", xlim=(left, right), ylim=(bottom, top))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(EngFormatter())
    axes.minorticks_off()
    axes.set(
        xlabel="arithmetic intensity (FLOPs per byte of weights and KV cache)",
        ylabel="achieved (FLOP/s)",
    )
    return legend_below(axes)


def _points_of_stages(run: Record) -> pd.DataFrame:
    """The stages that are drawn, the nearest to its floor first.

    ``share`` is a stage's part of the time of its phase, ``rate`` what it did in FLOP/s.
    """
    table = with_names(floor_table(run))
    longest_ms = table.groupby("phase")["device_ms"].transform("max")  # that of the whole phase
    table["share"] = table["device_ms"] / longest_ms
    table["rate"] = table["flops"] / table["device_ms"] * 1e3
    in_prefill = (table["phase"] == "prefill") & (table["stage"] != "prefill")
    is_step = table["stage"] == "decode_step"
    is_large = table["share"] >= SMALL_SHARE
    return table[(in_prefill | is_step) & is_large].sort_values("times_floor")


def _draw_roof(axes: Axes, roof: Ceilings, at: np.ndarray, name: str) -> None:
    """The line of a device's ceilings through the intensities ``at``, with its rates in its key."""
    bandwidth = f"{rate_text(roof.bandwidth_bytes_per_s)}B/s"
    arithmetic = f"{rate_text(roof.flops_per_s)}FLOP/s"
    label = f"{name}: {bandwidth}, {arithmetic}"
    colour, width, style = _ROOFS[roof.source]
    axes.plot(at, _roof(roof, at), color=colour, linewidth=width, linestyle=style, label=label)


def _draw_stages(axes: Axes, points: pd.DataFrame, names: pd.Series, ceilings: Ceilings) -> None:
    """A point for each stage, and a dotted line from it to its ceiling."""
    colours = points["stage"].map(STAGE_COLOURS).fillna(ORANGE).tolist()
    best = _roof(ceilings, points["intensity"])
    look: Any = {"linestyle": ":", "linewidth": 1.1, "zorder": 1.5}
    axes.vlines(points["intensity"], points["rate"], best, colours, **look)
    for name, colour, point in zip(names, colours, points.to_dict("records"), strict=True):
        size = 5 + 9 * point["share"] ** 0.5
        marker = _MARKERS.get(point["view"], "D")
        look = {"color": colour, "mec": INK, "ms": size, "label": name}
        axes.plot(point["intensity"], point["rate"], marker, **look)


def _ridge(ceilings: Ceilings) -> float:
    """The FLOPs per byte from which on arithmetic is the limit, and no longer the bandwidth."""
    return ceilings.flops_per_s / ceilings.bandwidth_bytes_per_s


def _roof(ceilings: Ceilings, intensity: Any) -> Any:
    """The best FLOP/s at an intensity, which is in FLOPs per byte."""
    return np.minimum(intensity * ceilings.bandwidth_bytes_per_s, ceilings.flops_per_s)
