"""What limits each stage by the kernel view, drawn."""

from __future__ import annotations

from matplotlib.figure import Figure
from matplotlib.patches import Patch

from ocr_phases.analyse.kernels import has_kernels, of_text, stage_verdict
from ocr_phases.analyse.stages import stages_of
from ocr_phases.record import Record
from ocr_phases.show.axes import bar_charts, sentence_figure, stacked
from ocr_phases.show.colours import FAINT, GREEN, REST
from ocr_phases.show.stage_rows import SMALL_SHARE, in_prefill_order
from ocr_phases.text import percent_text


def plot_kernels(run: Record) -> Figure:
    """Each stage's time in ms and the part of it that the device worked, with the verdict of
    `stage_verdict`.

    Prefill above, one decode step below; stages below a hundredth of them are left to the table. A
    sentence where the record has no kernel view.
    """
    if not has_kernels(run):
        return sentence_figure(
            "This record has no kernel view: measure on a GPU with kernels=True."
        )
    table = in_prefill_order(stage_verdict(run), stages_of(run))
    charts = []
    table["busy_ms"] = table[["busy_ms", "wall_ms"]].min(axis="columns")
    for phase, unit in (("prefill", "the prefill"), ("decode", "one profiled decode step")):
        stages = table[table["phase"] == phase]
        stages = stages[stages["wall_ms"] >= SMALL_SHARE * stages["wall_ms"].max()]
        rows = []
        for name, busy, wall, verdict in stages[
            ["name", "busy_ms", "wall_ms", "verdict"]
        ].to_numpy():
            told = f"{of_text(busy, wall)} ({percent_text(busy / wall)}), {verdict}"
            rows.append((name, stacked([(busy, GREEN), (wall - busy, FAINT)]), told))
        if rows:
            title = f"{unit.capitalize()} is {stages['verdict'].iloc[0]}"
            charts.append((title, rows, "time in the timed runs (ms)"))
    if not charts:
        return sentence_figure("The profiler saw no kernel in the stages of this run.")
    keys = [
        Patch(color=GREEN, label="the GPU works"),
        Patch(fc=FAINT, ec=REST, label="the GPU waits"),
    ]
    return bar_charts(charts, keys=keys)[0]
