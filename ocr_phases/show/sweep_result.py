"""A sweep as a result that shows itself: what `OCRSession.sweep` gives."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ocr_phases.analyse.sweep import Sweep, decode_curves
from ocr_phases.errors import public
from ocr_phases.record import PhaseRun
from ocr_phases.show import html
from ocr_phases.show import sweep as drawing
from ocr_phases.show.faces import Bundle, bundle

_TERMINAL_COLUMNS = ["cell", "prefill_len", "prefill_ms", "vision_share", "inter_token_ms", "tokens_per_s"]


@public
class SweepResult(Sweep):
    """The records of a sweep by cell in ``runs``, with ``table``, ``failures``, ``verdict`` and ``plot``."""

    @property
    def plot(self) -> SweepPlots:
        """The plots of this sweep."""
        return SweepPlots(self)

    @property
    def first(self) -> PhaseRun:
        """The first record of the smallest batch: one of a single row holds the page."""
        return min(self.runs.values(), key=lambda run: len(run.results))

    def head_html(self) -> str:
        """The page, and the verdict as its lead."""
        if not self.runs:
            return html.note_html(self.verdict)
        what = [", ".join(dict.fromkeys(self.table[name])) for name in ("model", "device", "dtype")]
        title = f"Sweep over {self.first.page['file']}"
        return html.header_html(self.first, title, lead=self.verdict, about=" · ".join(what))

    def quality_html(self) -> str:
        """Cost against quality under a heading; empty for a sweep whose texts cannot be compared."""
        points = self.cost_quality
        if points.empty:
            return ""
        from ocr_phases.show.cost_quality import cost_quality_html

        return cost_quality_html(points)

    def _repr_mimebundle_(self, **_: Any) -> Bundle:
        shown = self.head_html() + drawing.sweep_html(self.table) + drawing.failures_html(self.failures)
        columns = self.table[_TERMINAL_COLUMNS]
        table = columns.to_string(index=False, float_format="{:,.3f}".format, na_rep="")
        return bundle(shown, f"{self.verdict}\n{table}" if self.runs else self.verdict)


@public
class SweepPlots:
    """The plots of a sweep: each is a matplotlib figure that shows itself, drawn on ``ax`` if given."""

    def __init__(self, sweep: Sweep) -> None:
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
