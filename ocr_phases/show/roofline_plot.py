"""The stages under the ceilings of the device, drawn."""

from __future__ import annotations

from typing import Any

import numpy as np
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


def plot_roofline(run: Record, *, ax: Axes | None = None) -> Figure:
    """FLOP/s over FLOPs a byte, both logarithmic: ceilings as lines, each stage a point with its
    distance.

    After Williams, Waterman and Patterson 2009, "Roofline: an insightful visual performance model".
    The measured ceilings are solid; a datasheet's are dashed. Prefill stages have a point a view;
    the decode step is one point. A point's area is its part of the time of its phase, those below a
    hundredth are left to the table; a dotted line leads to its ceiling. ``ax`` are axes to draw on.
    A sentence where there is no floor.
    """
    reason, ceilings, sheet = why_no_floor(run), ceilings_of(run), datasheet_ceilings(run)
    if reason is not None or ceilings is None:
        return sentence_figure(reason or "", ax)
    table = with_names(floor_table(run))
    table["share"] = table["device_ms"] / table.groupby("phase")["device_ms"].transform("max")
    table["rate"] = table["flops"] / table["device_ms"] * 1e3
    drawn = (table["phase"] == "prefill") & (table["stage"] != "prefill") | (
        table["stage"] == "decode_step"
    )
    points = table[drawn & (table["share"] >= SMALL_SHARE)].sort_values("times_floor")
    if ceilings_are_wrong(run):
        names = points["name"]
        title = "The ceilings were measured wrongly, so distances to them say nothing"
    else:
        names = points["name"] + ", " + points["times_floor"].map(times_text)
        title = f"Farthest from its ceiling: {names.iloc[-1]} its floor"
    _, (axes,) = new_figure(4.6, [title], ax)
    roofs = [ceilings] + ([sheet] if sheet and sheet.source != ceilings.source else [])
    ridges = [roof.flops_per_s / roof.bandwidth_bytes_per_s for roof in roofs]
    ends = min(points["intensity"].min(), *ridges) / 3, max(points["intensity"].max(), *ridges) * 3
    for roof, ridge in zip(roofs, ridges, strict=True):
        at = np.asarray([ends[0], ridge, ends[1]])
        rates = f"{rate_text(roof.bandwidth_bytes_per_s)}B/s, {rate_text(roof.flops_per_s)}FLOP/s"
        label = f"{roof.name if ax is None else roof.source}: {rates}"
        colour, width, style = _ROOFS[roof.source]
        axes.plot(at, _roof(roof, at), color=colour, linewidth=width, linestyle=style, label=label)
    colours = points["stage"].map(STAGE_COLOURS).fillna(ORANGE).tolist()
    over = _roof(ceilings, points["intensity"])
    axes.vlines(
        points["intensity"], points["rate"], over, colours, linestyle=":", linewidth=1.1, zorder=1.5
    )
    for name, colour, row in zip(names, colours, points.to_dict("records"), strict=True):
        look: Any = {"color": colour, "mec": INK, "ms": 5 + 9 * row["share"] ** 0.5, "label": name}
        axes.plot(
            row["intensity"],
            row["rate"],
            {"global": "o", "local": "s"}.get(row["view"], "D"),
            **look,
        )
    bottom = min(points["rate"].min(), _roof(ceilings, ends[0])) / 3
    top = 3 * max(roof.flops_per_s for roof in roofs)
    axes.set(xscale="log", yscale="log", xlim=ends, ylim=(bottom, top))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(EngFormatter())
    axes.minorticks_off()
    axes.set(
        xlabel="arithmetic intensity (FLOPs a byte of weights and KV cache)", ylabel="done (FLOP/s)"
    )
    return legend_below(axes)


def _roof(ceilings: Ceilings, intensity: Any) -> Any:
    """The best FLOP/s of so many FLOPs a byte."""
    return np.minimum(intensity * ceilings.bandwidth_bytes_per_s, ceilings.flops_per_s)
