"""Tables and pictures of two or more records side by side; the first is the baseline."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import LogLocator, NullLocator

from ocr_phases.analyse.comparison import EQUAL, EQUIVALENT, INCONCLUSIVE, NOISY, Comparison, in_units
from ocr_phases.analyse.stages import step_table
from ocr_phases.errors import public
from ocr_phases.record import PhaseRun
from ocr_phases.show.figures import (
    BLUE,
    GREEN,
    INK,
    MUTED,
    VERMILLION,
    WIDTH,
    legend_below,
    new_figure,
    sentence_figure,
    takes_axes,
    title_axes,
)
from ocr_phases.show.overlay import printable
from ocr_phases.show.results import Bundle, bundle, head_html
from ocr_phases.show.runs import LONGEST_LABEL, plot_decode_curves
from ocr_phases.show.runs import plot_prefill_stages as plot_prefill_stages
from ocr_phases.show.web import MISSING, Html, fold, fragment, note, preformatted, table_html
from ocr_phases.text import ms_text, stage_name

VERDICT_COLOURS = {
    "faster": BLUE,
    "less": BLUE,
    "slower": VERMILLION,
    "more": VERMILLION,
    EQUIVALENT: GREEN,
    INCONCLUSIVE: MUTED,
    NOISY: MUTED,
}

_NAMES = {
    "ttft_ms": "time to first token",
    "inter_token_ms": "decode step, median",
    "inter_token_ms_p90": "decode step, p90",
    "inter_token_ms_p99": "decode step, p99",
    "tokens_per_s": "tokens/s",
    "kv_cache_bytes": "KV cache",
    "agreement": "agreement with the baseline's text",
    "cer": "character error rate",
    "wer": "word error rate",
}
_MISSING = "not in both records, or no interval"
_LOG_FROM = 4.0  # ratio of the largest to the smallest
_UNJUDGED = (INCONCLUSIVE, NOISY, "n/a", "")
_WORDS = {
    "faster": "faster or less",
    "slower": "slower or more",
    EQUIVALENT: "equivalent: the interval is inside the margin",
}
_UNJUDGED_WORDS = "no verdict, or inconclusive"


def metric_name(metric: str) -> str:
    """What a metric of a comparison is called in a picture or a table."""
    if metric in _NAMES:
        return _NAMES[metric]
    if "/" in metric:
        phase, stage, *view = metric.split("/")
        return " ".join([f"{phase}:", stage_name(stage), *view])
    return metric.removesuffix("_ms").removesuffix("_bytes").replace("_", " ") + (
        " memory" if metric.endswith("_peak_bytes") else ""
    )


def compare_html(table: pd.DataFrame, baseline: str = "baseline") -> Html:
    """`Comparison.table`, or some of its rows, as a sortable table; a change that is sure stands out.

    ``baseline`` is the label of that record.
    """
    if table.empty:
        return note("The records have nothing in common that could be compared.")
    shown = in_units(table, printable(baseline, LONGEST_LABEL))
    shown["metric"] = shown["metric"].map(metric_name)
    ends = zip(shown.pop("ratio_low"), shown.pop("ratio_high"), strict=True)
    shown.insert(list(shown).index("ratio") + 1, "interval", [_interval(low, high) for low, high in ends])
    strong = (~table["verdict"].isin((EQUAL, EQUIVALENT, *_UNJUDGED))).tolist()
    headings = {"interval": ("95 % interval", ""), "detectable": ("smallest resolved change", "%")}
    return table_html(
        shown, caption="Against the baseline", strong=strong, headings=headings, missing=_MISSING
    )


def environment_html(table: pd.DataFrame) -> Html:
    """`environment_table` as a table, or a sentence where nothing differs."""
    if table.empty:
        return note("Device, versions, model, page and request are the same.")
    shown = table.assign(name=table["name"].str.replace("_", " "))
    shown = shown.map(lambda text: printable(str(text), 80))
    return table_html(shown, caption="What differs", classes="op-words")


def comparison_bundle(comparison: Comparison) -> Bundle:
    """What a notebook shows of a comparison."""
    baseline = comparison.labels[0]
    parts = [
        head_html(comparison.runs[0], comparison.title, comparison.findings),
        compare_html(comparison.headline, baseline),
        environment_html(comparison.differs),
    ]
    if comparison.text_diff:
        parts.append(fold("How the text differs", preformatted(comparison.text_diff)))
    readable = in_units(comparison.headline, baseline)
    table = readable.to_string(index=False, float_format="{:,.3f}".format, na_rep="")
    return bundle(fragment(*parts), f"{comparison.verdict}\n{table}")


@takes_axes
def plot_ratios(table: pd.DataFrame, width: float = WIDTH, *, ax: Axes | None = None) -> Figure:
    """Ratio to the baseline with its interval, a row a metric of `Comparison.table`; 1 is no difference.

    ``width`` is in inches; below `WIDTH` names stand above their rows and leave them the whole width.
    ``ax`` are axes to draw on.
    """
    table = table[table["ratio"].notna()].reset_index(drop=True)
    if table.empty:
        return sentence_figure("The records share no metric with a ratio to draw.", ax)
    narrow = width < WIDTH
    figure, axes = new_figure(1.7 + (0.42 if narrow else 0.3) * len(table), width, ax)
    for place, (_, row) in enumerate(table.iterrows()):
        colour = VERDICT_COLOURS.get(row["verdict"], MUTED)
        unsure = row["verdict"] in _UNJUDGED
        if not np.isnan(row["ratio_low"]):
            ends = (row["ratio_low"], row["ratio_high"])
            width, style = (1.2, ":") if unsure else (2.2, "-")
            axes.plot(
                ends,
                (place, place),
                color=colour,
                linewidth=width,
                linestyle=style,
                solid_capstyle="butt",
            )
        face = "white" if unsure else colour
        axes.plot(row["ratio"], place, "o", color=colour, markersize=5.5, markerfacecolor=face)
    axes.axvline(1.0, color=INK, linewidth=1.0, zorder=1)
    several = table["run"].nunique() > 1
    labels = [
        f"{printable(row['run'], LONGEST_LABEL)}  {metric_name(row['metric'])}" if several
        else metric_name(row["metric"])
        for _, row in table.iterrows()
    ]  # fmt: skip
    if narrow:
        axes.set_yticks([])
        for place, label in enumerate(labels):
            name = axes.text(0.0, place - 0.42, label, va="center", fontsize=9, color=INK, parse_math=False)
            name.set(transform=axes.get_yaxis_transform())
            name.set_bbox({"facecolor": "white", "edgecolor": "none", "pad": 0.8, "alpha": 0.75})
    else:
        axes.set_yticks(range(len(table)), labels, parse_math=False)
    axes.set_ylim(len(table) - 0.5, -0.75 if narrow else -0.5)
    values = table[["ratio", "ratio_low", "ratio_high"]].to_numpy(dtype=np.float64)
    low, high = min(1.0, float(np.nanmin(values))), max(1.0, float(np.nanmax(values)))
    if low > 0 and high / low > _LOG_FROM:  # a tenth as long and ten times as fast are as far from 1
        axes.set_xscale("log")
        axes.set_xlim(low / 1.15, high * 1.15)
        # Matplotlib's own would name powers of ten alone, and there is often but one of them.
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 1.5, 2, 3, 5, 7) if high / low < 10 else (1, 2, 5)))
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_formatter("{x:g}")
    else:
        room = 0.06 * max(high - low, 0.02)
        axes.set_xlim(low - room, high + room)
    between = "\n" if narrow else " "
    axes.set_xlabel(f"ratio to the baseline (1: no difference),{between}line: 95 % interval over repeats")
    title_axes(axes, "What changed")
    keys = [
        Line2D([], [], color=VERDICT_COLOURS[verdict], marker="o", linewidth=2.2, label=words)
        for verdict, words in _WORDS.items()
    ]
    if table["verdict"].isin(_UNJUDGED).any():
        unsure_key = Line2D([], [], color=MUTED, marker="o", markerfacecolor="white", linestyle=":")
        unsure_key.set(linewidth=1.2, label=_UNJUDGED_WORDS)
        keys.append(unsure_key)
    legend_below(figure, keys, 2 if narrow else 4, ax)
    return figure


def plot_decode(runs: Sequence[PhaseRun], labels: Sequence[str], *, ax: Axes | None = None) -> Figure:
    """Time of each decode step in ms against the length of the KV cache, a line a record, with its spread."""
    curves = []
    for cell, (run, label) in enumerate(zip(runs, labels, strict=True)):
        name = f"{printable(label, LONGEST_LABEL)}: {ms_text(run['inter_token_ms'])}"
        curve = step_table(run).dropna(subset=["cache_len"])
        curves += [curve.assign(cell=cell, name=name)] if len(curve) else []
    return plot_decode_curves(pd.concat(curves) if curves else pd.DataFrame(), "name", ax=ax)


def _interval(low: float, high: float) -> str:
    digits = 3 if low >= 0.0995 else 4  # a thirtieth has three that count, too
    return MISSING if np.isnan(low) else f"{low:.{digits}f} to {high:.{digits}f}"


@public
class ComparePlots:
    """The plots of a comparison: each is a matplotlib figure that shows itself, drawn on ``ax`` if given."""

    def __init__(self, comparison: Comparison) -> None:
        self._comparison = comparison

    def stages(self, *, share: bool = False, ax: Axes | None = None) -> Figure:
        """Each record's prefill, stage by stage: `ocr_phases.show.runs.plot_prefill_stages`."""
        comparison = self._comparison
        return plot_prefill_stages(comparison.runs, comparison.labels, share=share, ax=ax)

    def decode(self, *, ax: Axes | None = None) -> Figure:
        """Time of each decode step over the cache: `ocr_phases.show.compare.plot_decode`."""
        return plot_decode(self._comparison.runs, self._comparison.labels, ax=ax)

    def ratios(self, *, ax: Axes | None = None) -> Figure:
        """Ratio of each figure to the baseline's: `ocr_phases.show.compare.plot_ratios`."""
        return plot_ratios(self._comparison.headline, ax=ax)
