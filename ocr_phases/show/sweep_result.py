"""A sweep as it shows itself: its HTML and text, and its plots."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ocr_phases.analyse.scaling import SweepResult, decode_curves
from ocr_phases.errors import public
from ocr_phases.show import html
from ocr_phases.show import sweep as drawing
from ocr_phases.show.faces import Bundle, bundle

_TERMINAL_COLUMNS = ["cell", "prefill_len", "prefill_ms", "vision_share", "inter_token_ms", "tokens_per_s"]


def head_html(sweep: SweepResult) -> str:
    """The page, and the verdict as its lead."""
    if not sweep.runs:
        return html.note_html(sweep.verdict)
    what = [", ".join(dict.fromkeys(sweep.table[name])) for name in ("model", "device", "dtype")]
    title = f"Sweep over {sweep.first.page['file']}"
    return html.header_html(sweep.first, title, lead=sweep.verdict, about=" · ".join(what))


def quality_html(sweep: SweepResult) -> str:
    """Cost against quality under a heading; empty for a sweep whose texts cannot be compared."""
    if sweep.cost_quality.empty:
        return ""
    from ocr_phases.show.cost_quality import cost_quality_html

    return cost_quality_html(sweep.cost_quality)


def sweep_bundle(sweep: SweepResult) -> Bundle:
    """What a notebook shows of a sweep."""
    if not sweep.runs:
        return bundle(head_html(sweep) + drawing.failures_html(sweep.failures), sweep.verdict)
    shown = head_html(sweep) + drawing.sweep_html(sweep.table) + drawing.failures_html(sweep.failures)
    columns = sweep.table[_TERMINAL_COLUMNS]
    table = columns.to_string(index=False, float_format="{:,.3f}".format, na_rep="")
    return bundle(shown, f"{sweep.verdict}\n{table}")


@public
class SweepPlots:
    """The plots of a sweep: each is a matplotlib figure that shows itself, drawn on ``ax`` if given."""

    def __init__(self, sweep: SweepResult) -> None:
        self._sweep = sweep

    def prefill(self, *, ax: Axes | None = None) -> Figure:
        """Prefill over the length of the prompt: `ocr_phases.show.sweep.plot_prefill`."""
        return drawing.plot_prefill(self._sweep.table, ax=ax)

    def vision(self, *, ax: Axes | None = None) -> Figure:
        """The stages of each prefill: `ocr_phases.show.sweep.plot_vision_share`."""
        return drawing.plot_vision_share(self._sweep.table, self._sweep.runs, ax=ax)

    def decode(self, *, ax: Axes | None = None) -> Figure:
        """Time of a decode step over the cache: `ocr_phases.show.sweep.plot_decode`."""
        return drawing.plot_decode(decode_curves(self._sweep.runs), ax=ax)

    def throughput(self, *, ax: Axes | None = None) -> Figure:
        """Tokens per second over the batch size: `ocr_phases.show.sweep.plot_throughput`."""
        return drawing.plot_throughput(self._sweep.table, ax=ax)

    def cost_quality(self) -> Figure:
        """What each cell loses over what it costs: `ocr_phases.show.cost_quality.plot_cost_quality`."""
        from ocr_phases.show.cost_quality import plot_cost_quality

        return plot_cost_quality(self._sweep.cost_quality)

    def floors(self) -> Figure:
        """Each cell beside its floors: `ocr_phases.show.sweep.plot_floors`."""
        return drawing.plot_floors(self._sweep.table)
