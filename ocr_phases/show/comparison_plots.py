"""The pictures of several records side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

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
    ChartBar,
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
from ocr_phases.stages import Stage, stage_colour, stage_of, stage_place, stage_title
from ocr_phases.text import ms_text, percent_text

LONGEST_LABEL = 48
UNJUDGED = (INCONCLUSIVE, NOISY, "n/a", "")
#: A legend names so many stages; the built-in ones are fewer. The shortest others are one piece.
_MOST_STAGES = 16
_BETWEEN_STAGES = "between stages"
#: From here on largest over smallest ratio is drawn on a logarithmic axis: a tenth and ten times
#: then are as far from 1.
_WIDE_RATIO = 4.0
_ROW_INCHES = 0.3
_AROUND_ROWS_INCHES = 1.7


class _Mark(NamedTuple):
    """How the ratios of some verdicts are drawn: the words of their key, and their colour."""

    words: str
    colour: str
    hollow: bool = False


_BETTER = _Mark("faster or less", BLUE)
_WORSE = _Mark("slower or more", VERMILLION)
_NO_VERDICT = _Mark("no verdict, or inconclusive", MUTED, hollow=True)
_MARKS = {
    "faster": _BETTER,
    "less": _BETTER,
    "slower": _WORSE,
    "more": _WORSE,
    EQUIVALENT: _Mark("equivalent: the interval is inside the margin", GREEN),
}


def plot_prefill_stages(
    runs: Sequence[Record], labels: Sequence[str], *, ax: Axes | None = None
) -> Figure:
    """Each record's prefill as one bar in ms, stage after stage; what no stage holds is light grey.

    Behind a bar stand its time and the share of vision. Of very many stages the longest are drawn,
    and all others as one piece.

    Parameters
    ----------
    runs : sequence of Record
        Those without a prefill of their own are left out.
    labels : sequence of str
        The name of each record.
    ax : matplotlib.axes.Axes, optional
        Axes to draw on; by default those of a new figure.

    Returns
    -------
    matplotlib.figure.Figure
        The figure of the axes; a sentence where no record has a prefill.
    """
    known = []
    known_labels = []
    for run, label in zip(runs, labels, strict=True):
        if summary(run)["prefill_ms"] is not None:
            known.append(run)
            known_labels.append(label)
    if not known:
        return sentence_figure("None of these records has a prefill of its own.", ax)
    whole_ms = _prefill_times(known)
    times, others = _largest_stages(_times_by_stage(known))
    covered_ms = times.sum(axis="columns")
    times = times.assign(**{_BETWEEN_STAGES: (whole_ms - covered_ms).clip(lower=0.0)})
    colours: dict[str, str] = {}
    for name in times.columns:
        colours[name] = stage_colour(name)
    if others:
        colours[others] = REST
    colours[_BETWEEN_STAGES] = FAINT
    bars: list[ChartBar] = []
    for place, (run, label) in enumerate(zip(known, known_labels, strict=True)):
        pieces = stacked(zip(times.iloc[place], colours.values(), strict=True))
        vision_share = percent_text(summary(run)["vision_share"])
        words = f"{ms_text(whole_ms[place])}  (vision {vision_share})"
        bars.append((printable(label, LONGEST_LABEL), pieces, words))
    keys = [Patch(fc=colour, ec=REST, label=stage_title(name)) for name, colour in colours.items()]
    figure, _ = bar_charts([("Prefill, stage by stage", bars, "time (ms)")], ax, keys)
    return figure


def _prefill_times(runs: Sequence[Record]) -> pd.Series:
    """The whole prefill of each record in ms."""
    times = []
    for run in runs:
        table = stage_table(run)
        is_whole = (table["phase"] == "prefill") & (table["stage"] == "prefill")
        times.append(float(table.loc[is_whole, "device_ms"].sum()))
    return pd.Series(times)


def _times_by_stage(runs: Sequence[Record]) -> pd.DataFrame:
    """The time of each stage of the prefill in ms, all views together.

    The table has a row for each record and a column for each stage, in the order of the stages. A
    stage that a record does not have takes no time.
    """
    rows = []
    stages: dict[str, Stage] = {}
    for run in runs:
        table = stage_table(run)
        in_prefill = table[table["phase"] == "prefill"]
        rows.append(in_prefill.groupby("stage")["device_ms"].sum().to_dict())
        for name in prefill_stages(run):
            stages[name] = stage_of(name)
    ordered = [stage.name for stage in sorted(stages.values(), key=stage_place)]
    times = pd.DataFrame(rows).reindex(columns=ordered)
    return times.dropna(axis="columns", how="all").fillna(0.0)


def _largest_stages(times: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """The stages that a legend has room for, with the sum of all others as the last column.

    ``times`` is `_times_by_stage`. Also the name of that column, empty where there are no others.
    """
    if len(times.columns) <= _MOST_STAGES:
        return times, ""
    largest = times.sum().nlargest(_MOST_STAGES).index
    drawn = times.loc[:, times.columns.isin(largest)]  # in the order of the stages
    rest = times.drop(columns=drawn.columns)
    others = f"{len(rest.columns):,} others"
    return drawn.assign(**{others: rest.sum(axis="columns")}), others


def plot_decode(runs: Sequence[Record], labels: Sequence[str], *, ax: Axes | None = None) -> Figure:
    """Time of each decode step in ms over the length of the KV cache, with its spread.

    Each record is a line, whose key has the record's label and its inter-token latency. ``ax`` are
    axes to draw on.
    """
    curves = []
    for cell, (run, label) in enumerate(zip(runs, labels, strict=True)):
        steps = step_table(run).dropna(subset=["cache_len"])
        if len(steps):
            latency = ms_text(summary(run)["inter_token_ms"])
            name = f"{printable(label, LONGEST_LABEL)}: {latency}"
            curves.append(steps.assign(cell=cell, name=name))
    table = pd.concat(curves) if curves else pd.DataFrame()
    return decode_curves(table, ["name"], ax)


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
    """The ratio of each metric to the baseline with its interval; 1 is no difference.

    Parameters
    ----------
    table : DataFrame
        `ocr_phases.analyse.comparison.ComparedRecords.table`, or some of its rows.
    ax : matplotlib.axes.Axes, optional
        Axes to draw on, which get the largest changes that there is room for. By default those of a
        new figure, which has room for all of them.

    Returns
    -------
    matplotlib.figure.Figure
        The figure of the axes; a sentence where no metric has a ratio.
    """
    known = table[table["ratio"].notna()].reset_index(drop=True)
    if known.empty:
        return sentence_figure("The records share no metric with a ratio to draw.", ax)
    drawn = _largest_changes(known, ax)
    title = "What changed"
    if len(drawn) < len(known):
        title = f"Largest of {len(known)} changes"
    height = _AROUND_ROWS_INCHES + _ROW_INCHES * len(drawn)
    _, (axes,) = new_figure(height, [title], ax)
    names = _names_of_ratios(drawn, with_label=known["run"].nunique() > 1)
    axes.set_yticks(drawn.index, names, parse_math=False)
    _draw_ratios(axes, drawn)
    axes.axvline(1.0, color=INK, linewidth=1.0, zorder=1)
    _scale_to_ratios(axes, drawn)
    axes.set(xlabel="ratio to the baseline, line: 95 % interval", ylim=(len(drawn) - 0.5, -0.5))
    return legend_below(axes)


def _largest_changes(table: pd.DataFrame, ax: Axes | None) -> pd.DataFrame:
    """The rows with the largest changes, as many as ``ax`` have room for, in their order."""
    room = len(table)
    if ax is not None:
        inches = ax.bbox.height / figure_of(ax).dpi
        room = max(int(inches / _ROW_INCHES), 1)
    changes = np.log(table["ratio"]).abs()
    largest = changes.nlargest(room).index.sort_values()
    return table.loc[largest].reset_index(drop=True)


def _names_of_ratios(table: pd.DataFrame, *, with_label: bool) -> list[str]:
    """The metric of each row, behind the record's label where there are several records."""
    names = []
    for label, metric in zip(table["run"], table["metric"], strict=True):
        name = metric_name(metric)
        if with_label:
            name = f"{printable(label, LONGEST_LABEL)}  {name}"
        names.append(name)
    return names


def _draw_ratios(axes: Axes, table: pd.DataFrame) -> None:
    """A point and the line of its interval for each row, in the colour of its verdict."""
    marks = [_MARKS.get(verdict, _NO_VERDICT) for verdict in table["verdict"]]
    for mark in dict.fromkeys(marks):  # each once, since each has one key
        has_mark = [other == mark for other in marks]
        rows = table[has_mark]
        axes.hlines(rows.index, rows["ratio_low"], rows["ratio_high"], mark.colour, linewidth=1.8)
        look: dict[str, Any] = {"color": mark.colour, "ms": 5.5, "label": mark.words}
        if mark.hollow:
            look["mfc"] = "white"
        axes.plot(rows["ratio"], rows.index, "o", **look)


def _scale_to_ratios(axes: Axes, table: pd.DataFrame) -> None:
    """Make the horizontal axis logarithmic where the ratios and their intervals are far apart."""
    values = table[["ratio", "ratio_low", "ratio_high"]].to_numpy(np.float64)
    low = min(1.0, np.nanmin(values))
    high = max(1.0, np.nanmax(values))
    if low > 0 and high / low > _WIDE_RATIO:
        log_axis(axes.xaxis, low / 1.15, high * 1.15)
