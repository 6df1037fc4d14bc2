"""The stages of the prefill, drawn."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ocr_phases.analyse.figures import summary
from ocr_phases.analyse.stages import spread_names, stage_table, stages_of
from ocr_phases.record import Record
from ocr_phases.show.axes import bar_charts, sentence_figure
from ocr_phases.show.colours import FAINT, INK, REST
from ocr_phases.show.stage_rows import SMALL_SHARE, in_prefill_order
from ocr_phases.stages import stage_colour
from ocr_phases.text import ms_text, percent_text


def plot_vision_stages(run: Record, *, ax: Axes | None = None) -> Figure:
    """The prefill's stages as bars in ms with their share of it, by view; what no stage holds is
    hollow.

    A share is the median of the repeats', a bar that share of the median prefill, a line the spread
    of the repeats' times. Stages below a hundredth are one bar. ``ax`` are axes to draw on.
    """
    table = stage_table(run)
    stages = in_prefill_order(table[table["phase"] == "prefill"], stages_of(run))
    if len(stages) < 2:
        reason = "This run has no prefill of its own, so there are no vision stages to draw."
        if run.is_server:
            reason = "The server does not show its stages, so there are no vision stages to draw."
        return sentence_figure(reason, ax)
    whole = float(stages["device_ms"].iloc[0])
    stages = stages.iloc[1:]
    small = stages["device_ms"] < SMALL_SHARE * whole
    large = stages[~small]
    colours = large["stage"].map(stage_colour)
    bars = [*zip(large["name"], large["device_ms"], colours, strict=True)]
    if small.any():
        bars.append(("other stages", stages.loc[small, "device_ms"].sum(), REST))
    coverage = summary(run)["stage_coverage"]
    if coverage is None:
        coverage = stages["device_ms"].sum() / whole
    bars.append(("between stages", max(0.0, 1.0 - coverage) * whole, FAINT))
    rows = []
    for name, ms, colour in bars:
        told = f"{ms_text(ms)}  ({percent_text(ms / whole if whole else None)})"
        rows.append((name, [(0.0, ms, colour)], told))
    title = (
        f"Vision is {percent_text(summary(run)['vision_share'])} of a prefill of {ms_text(whole)}"
    )
    several = len(run.repeats) > 1
    spread = ""
    if several:
        spread = f", line: {' to '.join(spread_names(len(run.repeats)))} over repeats"
    figure, (axes,) = bar_charts([(title, rows, f"time (ms){spread}")], ax)
    if several:
        low = large["device_ms_p10"].to_numpy()
        middle = large["device_ms"].to_numpy()
        high = large["device_ms_p90"].to_numpy()
        look: Any = {"elinewidth": 1.3, "capsize": 4, "capthick": 1.3, "ecolor": INK, "fmt": "none"}
        # A share of the median prefill may lie a little outside the repeats' own times.
        reach = np.maximum(middle - low, 0.0), np.maximum(high - middle, 0.0)
        axes.errorbar(middle, range(len(middle)), xerr=reach, **look)
        axes.set_xlim(0, 1.02 * axes.dataLim.xmax or 1.0)
    return figure
