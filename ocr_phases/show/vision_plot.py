"""The stages of the prefill, drawn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ocr_phases.analyse.figures import summary
from ocr_phases.analyse.stages import spread_names, stage_table, stages_of
from ocr_phases.record import Record
from ocr_phases.show.axes import ChartBar, bar_charts, sentence_figure
from ocr_phases.show.colours import FAINT, INK, REST
from ocr_phases.show.stage_rows import SMALL_SHARE, in_prefill_order
from ocr_phases.stages import stage_colour
from ocr_phases.text import ms_text, percent_text


def plot_vision_stages(run: Record, *, ax: Axes | None = None) -> Figure:
    """The stages of the prefill as bars in ms with their share of it, by view.

    A share is the median of the repeats' shares, a bar is that share of the median prefill, and a
    line is the spread of the repeats' times. Stages below a hundredth are one bar, and what no
    stage holds is a hollow one. Of a prompt without an image no bar is of vision, which the title
    says.

    Parameters
    ----------
    run : Record
        The measurement.
    ax : matplotlib.axes.Axes, optional
        Axes to draw on; by default those of a new figure.

    Returns
    -------
    matplotlib.figure.Figure
        The figure of the axes; a sentence where the record does not have the stages.
    """
    table = stage_table(run)
    stages = in_prefill_order(table[table["phase"] == "prefill"], stages_of(run))
    if len(stages) < 2:
        reason = "This run has no prefill of its own, so there are no vision stages to draw."
        if run.is_server:
            reason = "The server does not show its stages, so there are no vision stages to draw."
        return sentence_figure(reason, ax)
    whole_ms = float(stages["device_ms"].iloc[0])
    stages = stages.iloc[1:]
    large = stages[stages["device_ms"] >= SMALL_SHARE * whole_ms]
    vision_share = percent_text(summary(run)["vision_share"])
    title = f"Vision is {vision_share} of a prefill of {ms_text(whole_ms)}"
    if not run.has_page:
        title = f"No vision, because the prompt has no image: a prefill of {ms_text(whole_ms)}"
    label = "time (ms)"
    if len(run.repeats) > 1:
        low, high = spread_names(len(run.repeats))
        label += f", line: {low} to {high} over repeats"
    figure, (axes,) = bar_charts([(title, _stage_bars(run, stages, whole_ms), label)], ax)
    if len(run.repeats) > 1:
        _draw_spread(axes, large)
    return figure


def _stage_bars(run: Record, stages: pd.DataFrame, whole_ms: float) -> list[ChartBar]:
    """A bar for each stage of a prefill of ``whole_ms``, for the small ones, and for the rest."""
    is_large = stages["device_ms"] >= SMALL_SHARE * whole_ms
    bars: list[ChartBar] = []
    for stage in stages[is_large].to_dict("records"):
        ms = stage["device_ms"]
        bars.append(_bar(stage["name"], ms, stage_colour(stage["stage"]), whole_ms))
    if not is_large.all():
        small_ms = stages.loc[~is_large, "device_ms"].sum()
        bars.append(_bar("other stages", small_ms, REST, whole_ms))
    coverage = summary(run)["stage_coverage"]
    if coverage is None:
        coverage = stages["device_ms"].sum() / whole_ms
    uncovered_ms = max(0.0, 1.0 - coverage) * whole_ms
    bars.append(_bar("between stages", uncovered_ms, FAINT, whole_ms))
    return bars


def _bar(name: str, ms: float, colour: str, whole_ms: float) -> ChartBar:
    """A bar of one piece, with its time and its share of the prefill."""
    share = percent_text(ms / whole_ms if whole_ms else None)
    return name, [(0.0, ms, colour)], f"{ms_text(ms)}  ({share})"


def _draw_spread(axes: Axes, stages: pd.DataFrame) -> None:
    """A line at the end of each stage's bar for the spread of the repeats' times."""
    ends_of_bars = stages["device_ms"].to_numpy()
    # A bar is a share of the median prefill, so that it may end a little outside the repeats' own
    # times. Then the line begins at its end.
    below = np.maximum(ends_of_bars - stages["device_ms_p10"].to_numpy(), 0.0)
    above = np.maximum(stages["device_ms_p90"].to_numpy() - ends_of_bars, 0.0)
    look: Any = {"elinewidth": 1.3, "capsize": 4, "capthick": 1.3, "ecolor": INK, "fmt": "none"}
    axes.errorbar(ends_of_bars, range(len(stages)), xerr=(below, above), **look)
    axes.set_xlim(0, 1.02 * axes.dataLim.xmax or 1.0)  # an axis needs a length
