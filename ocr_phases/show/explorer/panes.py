"""The tabs that only show: each is a record turned into HTML when its tab is opened."""

from __future__ import annotations

from collections.abc import Callable

import ipywidgets as widgets
from matplotlib.figure import Figure

from ocr_phases.analyse.checks import checks_verdict, run_checks
from ocr_phases.analyse.floors import decode_floor, floor_sentence, floor_table, why_no_floor
from ocr_phases.analyse.kernels import has_kernels
from ocr_phases.analyse.summary import step_table
from ocr_phases.record import PhaseRun
from ocr_phases.show import html, kernels_html, plots
from ocr_phases.show import kernels as kernel_plots
from ocr_phases.show.figures import figure_svg
from ocr_phases.show.floors_html import floors_html
from ocr_phases.show.roofline import plot_roofline

_SLOWEST = 8


class Pane(widgets.VBox):
    """One tab. `show` notes the record; it is drawn when the tab is revealed, at once or later."""

    def __init__(self, draw: Callable[[PhaseRun], str] | None = None, name: str = "") -> None:
        self._content = widgets.HTML()
        self._draw_html = draw
        self._run: PhaseRun | None = None
        self._drawn: PhaseRun | None = None
        super().__init__([self._content])
        self.add_class("opx-pane")
        if name:
            self.add_class(f"opx-pane-{name}")

    def show(self, run: PhaseRun | None) -> None:
        """The record that this tab is to show from now on."""
        self._run = run
        if run is not self._drawn:  # nothing of another record is seen while this one is drawn
            self._drawn = None
            self._content.value = ""

    def reveal(self) -> None:
        """The tab is seen now: draw what it is to show, unless it shows that already."""
        if self._drawn is self._run:
            return
        if self._run is not None:
            self.draw(self._run)
        self._drawn = self._run

    def draw(self, run: PhaseRun) -> None:
        """Turn the record into what is seen."""
        if self._draw_html is not None:
            self._content.value = self._draw_html(run)


def latency_html(run: PhaseRun) -> str:
    """The key figures, every decode step over its floor, the slowest steps, the floors, the roofline."""
    figure = plots.plot_token_latency(run, decode_floor(run)["floor_ms"].tolist())
    parts = [
        html.cards_html(run),
        html.note_html(floor_sentence(run)),
        figure_html(figure, "Time of each decode step"),
    ]
    steps = step_table(run)
    if len(steps):
        slowest = steps.nlargest(_SLOWEST, "device_ms")
        slowest["index"] += 1  # as the tab Page counts
        columns = ["step", "index", "text", "cache_len", "device_ms", "device_ms_p10", "device_ms_p90"]
        if run.device.get("kind") == "cuda":
            columns.append("host_ms")
        caption = f"The {len(slowest)} slowest steps"
        headings = {"index": ("token", ""), "device_ms": ("median", "ms")}
        parts.append(html.table_html(slowest[columns], caption=caption, headings=headings))
    parts.append(floors_html(run))
    if why_no_floor(run) is None:
        parts.append(figure_html(plot_roofline(run), "Roofline: arithmetic done over arithmetic intensity"))
    return "".join(parts)


def vision_html(run: PhaseRun) -> str:
    """The prefill's stages, global and local views apart, and the table of all stages."""
    figure = figure_html(plots.plot_vision_stages(run), "Stages of the prefill, with their share of it")
    return figure + html.stages_html(run)


def timeline_html(run: PhaseRun) -> str:
    """One repeat from its start, memory, all repeats, and the kernels where they were taken."""
    parts = [
        figure_html(plots.plot_phase_timeline(run), "Phases and stages of one repeat over time"),
        figure_html(plots.plot_memory(run), "Peak memory of each phase and growth of the KV cache"),
        html.repeats_html(run),
    ]
    floors = floor_table(run)
    parts.append(kernels_html.kernels_html(run, floors))
    if has_kernels(run):
        busy, gaps = kernel_plots.plot_busy(run, floors), kernel_plots.plot_idle_gaps(run)
        parts.append(figure_html(busy, "How long the device works in each stage"))
        parts.append(figure_html(gaps, "Idle time by length of the gap and by cause"))
        parts.append(kernels_html.kernel_details_html(run))
    return "".join(parts)


def text_pane(run: PhaseRun) -> str:
    """What was written, row by row, as it was written."""
    parts = [html.text_doubt_html(run), html.compression_html(run)]
    for row, result in enumerate(run.results):
        name = "The text as the model wrote it" if len(run.results) == 1 else f"Text of row {row}"
        if result["text"] is None:
            parts.append(html.note_html("The text was left out of this record (return_text=False)."))
        else:
            parts.append(html.text_html(result["text"], name))
    return "".join(parts)


def checks_pane(run: PhaseRun) -> str:
    """The verification checklist."""
    checks = run_checks(run)
    return html.note_html(checks_verdict(checks)) + html.checks_html(checks)


def figure_html(figure: Figure, alt: str, inches: float | None = None) -> str:
    """A figure in the theme's colours, of its own width at most; ``inches`` draws it narrower."""
    if inches is not None:
        figure.set_figwidth(inches)
    return f'<div class="opx-figure">{figure_svg(figure, alt)}</div>'
