"""Tables, comparisons and sweeps: for a cell, a panel, a report and a terminal."""

from __future__ import annotations

import base64

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ocr_phases.analyse.checks import CHECK_COLUMNS
from ocr_phases.analyse.comparison import COMPARE_COLUMNS, EQUAL, EQUIVALENT, Comparison, in_units
from ocr_phases.analyse.noise import Verdict
from ocr_phases.analyse.scaling import (
    LOADED,
    SWEEP_COLUMNS,
    SweepResult,
    cost_quality_sentence,
    decode_curves,
    loaded_ways,
)
from ocr_phases.errors import public
from ocr_phases.inputs.images import page_image
from ocr_phases.record import Plots, RecordedPage
from ocr_phases.show import plots_many as draw
from ocr_phases.show.figures import Picture
from ocr_phases.show.page import printable
from ocr_phases.show.results import Bundle, Section, bundle, checks_html, facts_bundle, head_html
from ocr_phases.show.web import (
    MISSING,
    Html,
    fold,
    fragment,
    note,
    notebook_style,
    preformatted,
    section_heading,
    table_html,
)

#: What tells cells apart besides their batch size and length.
_WAYS = ["model", "attention", "dtype", "preset", "strategy", "vision"]
_MOST_ROWS = 60
_END = 10  # rows at each end of a longer table
_LONGEST_TEXT = 120
_TERMINAL_COLUMNS = ["cell", "prefill_len", "prefill_ms", "vision_share", "inter_token_ms", "tokens_per_s"]
_HEADINGS = {"interval": ("95 % interval", ""), "tokens": ("output", ""), "page_ms": ("page, p50", "ms")}


# -- tables of any result ----------------------------------------------------------------------------


def frame_html(table: pd.DataFrame) -> str:
    """A table of a result in a notebook; of one with many columns those that fit, of a long one its ends."""
    known = {COMPARE_COLUMNS: compare_html, SWEEP_COLUMNS: cells_html, CHECK_COLUMNS: _checks_html}
    return str(notebook_style() + known.get(tuple(table.columns), _ends_html)(table))


def _checks_html(table: pd.DataFrame) -> Html:
    return checks_html(Verdict(**dict(zip(CHECK_COLUMNS, row, strict=True))) for row in table.to_numpy())


def _ends_html(table: pd.DataFrame) -> Html:
    ends = pd.concat([table.head(_END), table.tail(_END)]) if len(table) > _MOST_ROWS else table
    words = {str(name): ends[name].map(_one_line) for name in ends.select_dtypes(exclude="number")}
    rows = f"{len(table):,} rows, the first and the last {_END}" if len(ends) < len(table) else ""
    return table_html(ends.assign(**words), caption=rows)


def _one_line(value: object) -> object:
    return printable(value, _LONGEST_TEXT) if isinstance(value, str) else value


def recorded_page_bundle(page: RecordedPage) -> Bundle:
    """A page of a record: its picture, where the record has it, and what is known of it."""
    data = page.get("data")
    facts = {name.replace("_", " "): value for name, value in page.items() if name != "data"}
    image = page_image(data and base64.b64decode(data))
    return facts_bundle("Page", facts, [] if image is None else [(image, str(page["file"]))])


# -- comparisons --------------------------------------------------------------------------------------


@public
class ComparePlots(Plots):
    """The plots of a comparison: each is a matplotlib figure that shows itself, drawn on ``ax`` if given."""

    def __init__(self, comparison: Comparison) -> None:
        self._comparison = comparison

    def stages(self, *, share: bool = False, ax: Axes | None = None) -> Figure:
        """Each record's prefill, stage by stage: `ocr_phases.show.plots_many.plot_prefill_stages`."""
        return draw.plot_prefill_stages(self._comparison.runs, self._comparison.labels, share=share, ax=ax)

    def decode(self, *, ax: Axes | None = None) -> Figure:
        """Time of each decode step over the cache: `ocr_phases.show.plots_many.plot_decode`."""
        return draw.plot_decode(self._comparison.runs, self._comparison.labels, ax=ax)

    def ratios(self, *, ax: Axes | None = None) -> Figure:
        """Ratio of each figure to the baseline's: `ocr_phases.show.plots_many.plot_ratios`."""
        return draw.plot_ratios(self._comparison.headline, ax=ax)


def comparison_head(comparison: Comparison) -> Section:
    """The baseline's page and the findings."""
    return Section(head_html(comparison.runs[0], comparison.title, comparison.findings))


def compare_html(table: pd.DataFrame, baseline: str = "baseline") -> Html:
    """`Comparison.table`, or some of its rows, as a sortable table; a change that is sure stands out.

    ``baseline`` is the label of that record.
    """
    shown = in_units(table, printable(baseline, draw.LONGEST_LABEL))
    shown["metric"] = shown["metric"].map(draw.metric_name)
    ends = zip(shown.pop("ratio_low"), shown.pop("ratio_high"), strict=True)
    shown.insert(list(shown).index("ratio") + 1, "interval", [_interval(low, high) for low, high in ends])
    return table_html(
        shown,
        caption="Against the baseline",
        strong=~table["verdict"].isin((EQUAL, EQUIVALENT, *draw.UNJUDGED)),
        headings=_HEADINGS,
        missing="not in both records, or no interval",
        empty="The records have nothing in common that could be compared.",
    )


def _interval(low: float, high: float) -> str:
    digits = 3 if low >= 0.0995 else 4  # a thirtieth has three that count, too
    return MISSING if np.isnan(low) else f"{low:.{digits}f} to {high:.{digits}f}"


def environment_html(table: pd.DataFrame) -> Html:
    """`environment_table` as a table, or a sentence where nothing differs."""
    same = "Device, versions, model, page and request are the same."
    shown = table.assign(name=table["name"].str.replace("_", " ")).map(lambda text: printable(str(text), 80))
    return table_html(shown, caption="What differs", classes="op-words", empty=same)


def comparison_bundle(comparison: Comparison) -> Bundle:
    """What a notebook shows of a comparison."""
    baseline = comparison.labels[0]
    shown = Section(
        *comparison_head(comparison).parts,
        compare_html(comparison.headline, baseline),
        environment_html(comparison.differs),
        comparison.text_diff and fold("How the text differs", preformatted(comparison.text_diff)),
    )
    return bundle(shown.html(), f"{comparison.verdict}\n{_words(in_units(comparison.headline, baseline))}")


# -- sweeps -------------------------------------------------------------------------------------------


@public
class SweepPlots(Plots):
    """The plots of a sweep: each is a matplotlib figure that shows itself, drawn on ``ax`` if given."""

    def __init__(self, sweep: SweepResult) -> None:
        self._sweep = sweep

    def prefill(self, *, ax: Axes | None = None) -> Figure:
        """Prefill over the length of the prompt: `ocr_phases.show.plots_many.plot_prefill`."""
        return draw.plot_prefill(self._sweep.table, ax=ax)

    def vision(self, *, ax: Axes | None = None) -> Figure:
        """The stages of each prefill: `ocr_phases.show.plots_many.plot_vision_share`."""
        return draw.plot_vision_share(self._sweep.table, self._sweep.runs, ax=ax)

    def decode(self, *, ax: Axes | None = None) -> Figure:
        """Time of a decode step over the cache: `ocr_phases.show.plots_many.plot_cells_decode`."""
        return draw.plot_cells_decode(decode_curves(self._sweep.runs), ax=ax)

    def throughput(self, *, ax: Axes | None = None) -> Figure:
        """Tokens per second over the batch size: `ocr_phases.show.plots_many.plot_throughput`."""
        return draw.plot_throughput(self._sweep.table, ax=ax)

    def floors(self) -> Figure:
        """Each cell beside its floors: `ocr_phases.show.plots_many.plot_floors`."""
        return draw.plot_floors(self._sweep.table)

    def cost_quality(self) -> Figure:
        """What each cell loses over what it costs: `ocr_phases.show.plots_many.plot_cost_quality`."""
        return draw.plot_cost_quality(self._sweep.cost_quality)


def sweep_head(sweep: SweepResult) -> Section:
    """The page and the findings; of a sweep without a record why there is none."""
    if not sweep.runs:
        return Section(note(sweep.verdict))
    what = [", ".join(dict.fromkeys(sweep.table[name])) for name in ("model", "device", "dtype")]
    title = f"Sweep over {sweep.first.page['file']}"
    return Section(head_html(sweep.first, title, sweep.findings, " · ".join(what)))


def cells_html(table: pd.DataFrame) -> Html:
    """The columns of `ocr_phases.analyse.scaling.sweep_table` that fit a page, as a sortable table."""
    columns = [*_WAYS, "batch", "prefill_len", "tokens", "prefill_ms", "vision_share", "inter_token_ms"]
    shown = _without_constants(table[columns])
    shown["times_floor"] = table["inter_token_ms"] / table["step_floor_ms"]
    shown["tokens_per_s"] = table["tokens_per_s"]
    return table_html(
        shown.dropna(axis="columns", how="all"),
        caption="Each cell, medians over the repeats",
        headings=_HEADINGS,
        missing="not measured in the cell",
        empty="No cell of this sweep could be measured.",
    )


def end_to_end_html(table: pd.DataFrame) -> Html:
    """Time per page from its file to its last token, pages per minute and memory, of each cell."""
    times = ["page_ms", "page_ms_p90", "page_ms_p99", "pages_per_min"]
    shown = _without_constants(table[[*_WAYS, "batch", "tokens", *times, "kv_cache_bytes", "peak_bytes"]])
    caption = "Each page end to end, quantiles over the repeats, and memory; the rows of a batch end together"
    return table_html(shown, caption=caption, headings=_HEADINGS, missing="too few repeats", empty="")


def _without_constants(cells: pd.DataFrame) -> pd.DataFrame:
    """The same without the ways of which there is one only; a preset is always named."""
    varied = ["preset", *(name for name in _WAYS if name not in LOADED and cells[name].nunique() > 1)]
    return cells.drop(columns={*_WAYS} - {*varied, *loaded_ways(cells)})


def failures_html(failures: pd.DataFrame) -> Html:
    """The cells that could not be measured, each with its reason; a sentence where there are none."""
    return table_html(failures[["cell", "reason"]], caption="What failed", empty="Every cell was measured.")


def cells(sweep: SweepResult) -> Section:
    """The tables of a sweep: its cells by stage and end to end, and what failed."""
    table = sweep.table
    return Section(cells_html(table), end_to_end_html(table), failures_html(sweep.failures))


def cost_quality(sweep: SweepResult) -> Section:
    """Cost against quality under its own heading: the sentence, picture and table; empty without a text."""
    points = sweep.cost_quality
    if points.empty:
        return Section()
    lost = draw.LOST[points["measure"].iloc[0]]
    headings = {"name": ("cell", ""), "page_ms": ("time per page", "ms"), "lost": (lost, "%")}
    columns = ["name", "page_ms", "prompt_tokens", "peak_bytes", "lost", "frontier"]
    return Section(
        section_heading("Cost against quality"),
        note(cost_quality_sentence(points)),
        Picture(sweep.plot.cost_quality(), "What each cell loses over its time, its prompt and its memory"),
        table_html(points[columns], caption="Each cell, by its time", headings=headings),
    )


def sweep_bundle(sweep: SweepResult) -> Bundle:
    """What a notebook shows of a sweep."""
    shown = [*sweep_head(sweep).parts, failures_html(sweep.failures)]
    if not sweep.runs:
        return bundle(fragment(*shown), sweep.verdict)
    shown.insert(1, cells_html(sweep.table))
    return bundle(fragment(*shown), f"{sweep.verdict}\n{_words(sweep.table[_TERMINAL_COLUMNS])}")


def _words(table: pd.DataFrame) -> str:
    return table.to_string(index=False, float_format="{:,.3f}".format, na_rep="")
