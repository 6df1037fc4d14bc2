"""What limits each stage by the kernel view, drawn."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from ocr_phases.analyse.kernels import has_kernels, of_text, stage_verdict
from ocr_phases.analyse.stages import stages_of
from ocr_phases.record import Record
from ocr_phases.show.axes import ChartBar, bar_charts, sentence_figure, stacked
from ocr_phases.show.colours import FAINT, GREEN, REST
from ocr_phases.show.stage_rows import SMALL_SHARE, in_prefill_order
from ocr_phases.text import percent_text


def plot_kernels(run: Record) -> Figure:
    """Each stage's time in ms and the part of it that the device worked, with its verdict.

    The prefill stands above, one decode step below; stages below a hundredth of them are left to
    the table. A sentence where the record has no kernel view.
    """
    if not has_kernels(run):
        return sentence_figure(
            "This record has no kernel view: measure on a GPU with kernels=True."
        )
    table = in_prefill_order(stage_verdict(run), stages_of(run))
    charts = []
    for phase, name in (("prefill", "The prefill"), ("decode", "One profiled decode step")):
        stages = table[table["phase"] == phase]
        stages = stages[stages["wall_ms"] >= SMALL_SHARE * stages["wall_ms"].max()]
        if len(stages):
            title = f"{name} is {stages['verdict'].iloc[0]}"
            charts.append((title, _stage_bars(stages), "time in the timed runs (ms)"))
    if not charts:
        return sentence_figure("The profiler saw no kernel in the stages of this run.")
    keys = [
        Patch(color=GREEN, label="the GPU works"),
        Patch(fc=FAINT, ec=REST, label="the GPU waits"),
    ]
    figure, _ = bar_charts(charts, keys=keys)
    return figure


def _stage_bars(stages: pd.DataFrame) -> list[ChartBar]:
    """A bar for each row of `stage_verdict`."""
    bars: list[ChartBar] = []
    for stage in stages.to_dict("records"):
        wall_ms = stage["wall_ms"]
        busy_ms = min(stage["busy_ms"], wall_ms)
        share = percent_text(busy_ms / wall_ms)
        words = f"{of_text(busy_ms, wall_ms)} ({share}), {stage['verdict']}"
        pieces = stacked([(busy_ms, GREEN), (wall_ms - busy_ms, FAINT)])
        bars.append((stage["name"], pieces, words))
    return bars
