"""The time of every decode step, drawn."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ocr_phases.analyse.figures import summary
from ocr_phases.analyse.floors import decode_floor
from ocr_phases.analyse.noise import ceilings_are_wrong
from ocr_phases.analyse.stages import spread_names, step_table, token_of_step
from ocr_phases.record import Record
from ocr_phases.show.axes import SMALL, legend_below, lines, name_axis, new_figure, sentence_figure
from ocr_phases.show.colours import GREEN, INK, MUTED, ORANGE, REST
from ocr_phases.show.web import printable
from ocr_phases.text import count_text, ms_text

_NAMED_OUTLIERS = 4


def plot_latency(run: Record, *, ax: Axes | None = None) -> Figure:
    """Time of every decode step in ms: median over repeats, their spread as a band, outliers named.

    Below it is the record's floor of each step (`ocr_phases.analyse.floors.decode_floor`). The
    host's times are drawn where it reads every token. The scale follows the bulk of the steps: what
    lies above it, and a floor far below, is marked at the edge. ``ax`` are axes to draw on.
    """
    table = step_table(run)
    table = table.assign(token=token_of_step(run, table["step"]))
    if table.empty:
        return sentence_figure("There were no decode steps, so there is no latency to draw.", ax)
    count, median = len(table) * len(run.repeats), float(summary(run)["inter_token_ms"])
    _, (axes,) = new_figure(
        3.9, [f"Each decode step: {ms_text(median)} in the median of {count:,}"], ax
    )
    steps, slow, low, high = (
        table[name] for name in ("token", "outlier", "device_ms_p10", "device_ms_p90")
    )
    own_clock, clocks = run.device.has_own_clock, ["device_ms"]
    # Where tokens are read every few steps, the host launches many at once and then waits for all
    # of them.
    if own_clock and (run.request.eos_check_every or 1) == 1:
        clocks.append("host_ms")
        # Wide and below the device's, so that it is seen where both are equal.
        lines(
            axes,
            steps,
            table["host_ms"],
            color=REST,
            linewidth=3.5,
            alpha=0.6,
            label="host, median",
        )
    band = (
        f"{' to '.join(spread_names(len(run.repeats)))} of {count_text(len(run.repeats), 'repeat')}"
    )
    name = "device, median" if own_clock else "median"
    lines(axes, steps, table["device_ms"], low, high, band=band, color=ORANGE, label=name)
    axes.axhline(median, color=MUTED, linewidth=0.8, linestyle=":", zorder=1)
    floor = decode_floor(run)["floor_ms"].astype("float64").reindex(table.index).fillna(0.0)
    if ceilings_are_wrong(run):
        floor = pd.Series(0.0, table.index)  # none is known, so none is drawn
    # With few repeats p90 is close to the worst one: a wide band must not squeeze the line.
    bulk = max(
        table.loc[~slow, clocks].quantile(0.99).max(), high.quantile(0.75), median, floor.max()
    )
    # Steps that are alike leave a height to their differences, unless the floor is near.
    least = low.quantile(0.02)
    bottom = 0.75 * least if least > 0.6 * bulk and floor.max() < 0.3 * least else 0.0
    top = bottom + (1.6 if slow.any() else 1.35) * (bulk - bottom)
    axes.set(xlim=(steps.iloc[0] - 0.5, steps.iloc[-1] + 0.5), ylim=(bottom, top))
    if floor.any():
        told = f"hardware floor, {' to '.join(dict.fromkeys(map(ms_text, floor.iloc[[0, -1]])))}"
        if floor.max() < bottom:
            _mark(axes, steps[:1], bottom, 7, GREEN, f"{told}, far below")
        else:
            lines(axes, steps, floor, color=GREEN, linestyle=(0, (6, 2)), label=told)
    _mark(axes, steps[(high > top) & ~slow], top, 6, ORANGE, "spread ends above")
    _mark(axes, steps[slow], table.loc[slow, "device_ms"].clip(upper=top), 6, INK, "outlier")
    _name_slowest(axes, table[slow].nlargest(_NAMED_OUTLIERS, "device_ms").sort_values("token"))
    name_axis(axes.xaxis, "token that the step made", "")
    name_axis(axes.yaxis, "time (ms)")
    return legend_below(axes)


def _mark(axes: Axes, at: pd.Series, heights: Any, marker: int, colour: str, label: str) -> None:
    """Marks at the edge of the axes."""
    if len(at):
        look: Any = {"marker": marker, "linestyle": "", "color": colour, "label": label}
        axes.plot(at, np.broadcast_to(heights, len(at)), clip_on=False, **look)


def _name_slowest(axes: Axes, slowest: pd.DataFrame) -> None:
    """Say of steps, from above, which token took how long; beside them, where there is room."""
    top = axes.get_ylim()[1]
    first, last = axes.get_xlim()
    look: Any = {"arrowprops": {"arrowstyle": "-", "color": MUTED}, "va": "center", **SMALL}
    look["textcoords"] = "data", "axes fraction"
    look["bbox"] = {"facecolor": "white", "edgecolor": "none", "pad": 0.8, "alpha": 0.75}
    for place, row in enumerate(slowest.fillna({"text": ""}).to_dict("records")):
        token, left = printable(str(row["text"]), 12), row["token"] < first + 0.7 * (last - first)
        told = f"token {row['token']}{token and f' “{token}”'}: {ms_text(row['device_ms'])}"
        at = row["token"], min(row["device_ms"], top)
        beside = row["token"] + (0.015 if left else -0.015) * (last - first), 0.93 - 0.08 * place
        axes.annotate(told, at, beside, ha="left" if left else "right", **look)
