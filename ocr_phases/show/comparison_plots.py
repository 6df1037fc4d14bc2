"""The pictures of several records side by side."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from ocr_phases.analyse.compared_metrics import EQUIVALENT, INCONCLUSIVE, NOISY
from ocr_phases.analyse.figure_rows import FIGURE_ROWS
from ocr_phases.analyse.figures import summary
from ocr_phases.analyse.stages import prefill_stages, stage_table, step_table
from ocr_phases.record import Record
from ocr_phases.show.axes import (
    bar_charts,
    figure_of,
    legend_below,
    new_figure,
    sentence_figure,
    stacked,
)
from ocr_phases.show.colours import BLUE, FAINT, GREEN, INK, MUTED, REST, VERMILLION
from ocr_phases.show.curves import decode_curves, log_axis
from ocr_phases.show.web import printable
from ocr_phases.stages import stage_colour, stage_of, stage_place, stage_title
from ocr_phases.text import ms_text, percent_text

LONGEST_LABEL = 48
_WIDE_RATIO = 4.0  # the same of ratios: a tenth and ten times are as far from 1
UNJUDGED = (INCONCLUSIVE, NOISY, "n/a", "")
#: Verdicts -> what the key says, and the colour; any other is hollow.
_VERDICTS = {
    **dict.fromkeys(("faster", "less"), ("faster or less", BLUE)),
    **dict.fromkeys(("slower", "more"), ("slower or more", VERMILLION)),
    EQUIVALENT: ("equivalent: the interval is inside the margin", GREEN),
}
_NO_VERDICT = ("no verdict, or inconclusive", MUTED)


#: A legend names so many stages; the built-in ones are fewer. The shortest others are one piece.
_MOST_STAGES = 16


def plot_prefill_stages(
    runs: Sequence[Record], labels: Sequence[str], *, ax: Axes | None = None
) -> Figure:
    """Each record's prefill as one bar in ms, stage after stage; what no stage holds is light grey.

    Of very many stages the longest are drawn, and all others as one piece. Behind it stand its
    time and the share of vision. ``ax`` are axes to draw on.
    """
    known = [
        (run, label)
        for run, label in zip(runs, labels, strict=True)
        if summary(run)["prefill_ms"] is not None
    ]
    if not known:
        return sentence_figure("None of these records has a prefill of its own.", ax)
    tables = [stage_table(run).query("phase == 'prefill'") for run, _ in known]
    times = pd.DataFrame([table.groupby("stage")["device_ms"].sum().to_dict() for table in tables])
    whole = times["prefill"]
    stages = {name: stage_of(name) for run, _ in known for name in prefill_stages(run)}
    ordered = [stage.name for stage in sorted(stages.values(), key=stage_place)]
    times = times.reindex(columns=ordered).dropna(axis="columns", how="all").fillna(0.0)
    times, others = _largest_stages(times)
    colours = {str(stage): stage_colour(str(stage)) for stage in times}
    if others:
        colours[others] = REST
    times["between stages"] = (whole - times.sum(axis="columns")).clip(lower=0.0)
    colours["between stages"] = FAINT
    rows = []
    for (run, label), ms, lengths in zip(known, whole, times.to_numpy(), strict=True):
        told = f"{ms_text(ms)}  (vision {percent_text(summary(run)['vision_share'])})"
        pieces = stacked(zip(lengths, colours.values(), strict=True))
        rows.append((printable(label, LONGEST_LABEL), pieces, told))
    keys = [
        Patch(fc=colour, ec=REST, label=stage_title(stage)) for stage, colour in colours.items()
    ]
    return bar_charts([("Prefill, stage by stage", rows, "time (ms)")], ax, keys)[0]


def _largest_stages(times: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """The stages that a legend has room for, with all others as the last column, and its name.

    ``times`` has a row a record and a column a stage. The name is empty where there are no others.
    """
    if len(times.columns) <= _MOST_STAGES:
        return times, ""
    kept = set(times.sum().nlargest(_MOST_STAGES).index)
    is_kept = [stage in kept for stage in times.columns]
    others = f"{len(is_kept) - sum(is_kept):,} others"
    rest = times.loc[:, [not each for each in is_kept]].sum(axis="columns")
    return times.loc[:, is_kept].assign(**{others: rest}), others


def plot_decode(runs: Sequence[Record], labels: Sequence[str], *, ax: Axes | None = None) -> Figure:
    """Time of each decode step in ms against the length of the KV cache, a line a record, with its
    spread.
    """
    curves = [pd.DataFrame()]
    for cell, (run, label) in enumerate(zip(runs, labels, strict=True)):
        name = f"{printable(label, LONGEST_LABEL)}: {ms_text(summary(run)['inter_token_ms'])}"
        curves.append(step_table(run).dropna(subset=["cache_len"]).assign(cell=cell, name=name))
    return decode_curves(
        pd.concat([curve for curve in curves if len(curve)] or curves), ["name"], ax
    )


def metric_name(metric: str) -> str:
    """What a metric of a comparison is called in a picture or a table."""
    if "/" in metric:
        phase, stage, *view = metric.split("/")
        return " ".join([f"{phase}:", stage_title(stage), *view])
    row = FIGURE_ROWS.get(metric)
    if row is not None:
        return row.metric or row.heading
    return metric.replace("_bytes", " memory").replace("_", " ")


def plot_ratios(table: pd.DataFrame, *, ax: Axes | None = None) -> Figure:
    """Ratio to the baseline with its interval, a row a metric of `Comparison.table`; 1 is no
    difference.

    ``ax`` are axes to draw on: the largest changes that there is room for.
    """
    table = table[table["ratio"].notna()].reset_index(drop=True)
    if table.empty:
        return sentence_figure("The records share no metric with a ratio to draw.", ax)
    # A row takes 0.3 inches.
    room = int(ax.bbox.height / figure_of(ax).dpi / 0.3) if ax else len(table)
    largest = np.log(table["ratio"]).abs().nlargest(max(room, 1)).index.sort_values()
    title = "What changed" if len(largest) == len(table) else f"Largest of {len(table)} changes"
    several, table = table["run"].nunique() > 1, table.loc[largest].reset_index(drop=True)
    _, (axes,) = new_figure(1.7 + 0.3 * len(table), [title], ax)
    runs = table["run"].map(lambda run: f"{printable(run, LONGEST_LABEL)}  " if several else "")
    axes.set_yticks(
        table.index, (runs + table["metric"].map(metric_name)).tolist(), parse_math=False
    )
    kinds = table["verdict"].map(lambda verdict: _VERDICTS.get(verdict, _NO_VERDICT))
    for (words, colour), rows in table.groupby(kinds, sort=False):
        face = "white" if words == _NO_VERDICT[0] else colour
        axes.hlines(rows.index, rows["ratio_low"], rows["ratio_high"], colour, linewidth=1.8)
        axes.plot(rows["ratio"], rows.index, "o", color=colour, ms=5.5, mfc=face, label=words)
    axes.axvline(1.0, color=INK, linewidth=1.0, zorder=1)
    values = table[["ratio", "ratio_low", "ratio_high"]].to_numpy(np.float64)
    low, high = min(1.0, np.nanmin(values)), max(1.0, np.nanmax(values))
    if low > 0 and high / low > _WIDE_RATIO:
        log_axis(axes.xaxis, low / 1.15, high * 1.15)
    axes.set(xlabel="ratio to the baseline, line: 95 % interval", ylim=(len(table) - 0.5, -0.5))
    return legend_below(axes)
