"""The sections of a record's report, each a few fragments and figures: for a notebook's cell and for a panel.

What is called in a cell shows itself; `Section.html` is the same as one string.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ocr_phases.analyse.checks import run_checks
from ocr_phases.analyse.floors import why_no_floor
from ocr_phases.analyse.kernels import has_kernels
from ocr_phases.analyse.sentences import checks_verdict
from ocr_phases.analyse.stages import step_table
from ocr_phases.record import PhaseRun
from ocr_phases.show import html, kernels_html, plots, regions
from ocr_phases.show import kernels as kernel_plots
from ocr_phases.show.figures import Picture
from ocr_phases.show.floors_html import floors_html
from ocr_phases.show.roofline import plot_roofline
from ocr_phases.show.web import notebook_style

_SLOWEST = 8


class Section:
    """HTML fragments and pictures in their order; empty ones are left out."""

    def __init__(self, *parts: str | Picture) -> None:
        self.parts = [part for part in parts if part]

    def html(self) -> str:
        """All of it as one fragment."""
        return "".join(part if isinstance(part, str) else part.html() for part in self.parts)

    def _ipython_display_(self) -> None:
        from IPython.display import HTML, display

        for part in self.parts:
            display(HTML(part) if isinstance(part, str) else part)


def style() -> Section:
    """The look of all sections in JupyterLab; a report brings its own."""
    return Section(notebook_style())


def overview(run: PhaseRun) -> Section:
    """The page, headline, checks and key figures; for a batch also its rows."""
    return Section(html.header_html(run), *cards(run).parts, html.rows_html(run))


def cards(run: PhaseRun) -> Section:
    """The key figures."""
    return Section(html.cards_html(run))


def stages(run: PhaseRun) -> Section:
    """Each phase with its stages, and each repeat."""
    return Section(html.stages_html(run), html.repeats_html(run))


def latency(run: PhaseRun) -> Section:
    """Every decode step over its floor, and the slowest steps."""
    figure = plots.plot_latency(run)
    return Section(Picture(figure, "Time of each decode step"), _slowest_steps(run))


def _slowest_steps(run: PhaseRun) -> str:
    steps = step_table(run)
    if steps.empty:
        return ""
    slowest = steps.nlargest(_SLOWEST, "device_ms")
    slowest["index"] += 1  # a person counts tokens from one
    columns = ["step", "index", "text", "cache_len", "device_ms", "device_ms_p10", "device_ms_p90"]
    if run.device.get("kind") == "cuda":
        columns.append("host_ms")
    headings = {"index": ("token", ""), "device_ms": ("median", "ms"), **html.spread_headings(run)}
    return html.table_html(slowest[columns], caption=f"The {len(slowest)} slowest steps", headings=headings)


def vision(run: PhaseRun) -> Section:
    """The prefill's stages, global and local views apart."""
    return Section(Picture(plots.plot_vision_stages(run), "Stages of the prefill, with their share of it"))


def floors(run: PhaseRun) -> Section:
    """Each stage beside its floor, or the reason why there is none."""
    if why_no_floor(run) is not None:
        return Section(floors_html(run))
    roofline = Picture(plot_roofline(run), "Roofline: arithmetic done over arithmetic intensity")
    return Section(floors_html(run), roofline)


def timeline(run: PhaseRun) -> Section:
    """One repeat from its start."""
    return Section(Picture(plots.plot_phase_timeline(run), "Phases and stages of one repeat over time"))


def kernels(run: PhaseRun) -> Section:
    """The kernel view, if the record has one."""
    told = kernels_html.kernels_html(run)
    if not has_kernels(run):
        return Section(told)
    return Section(
        told,
        Picture(kernel_plots.plot_busy(run), "GPU busy time of each stage"),
        Picture(kernel_plots.plot_idle_gaps(run), "Idle time by length of the gap and by cause"),
        kernels_html.kernel_details_html(run),
    )


def memory(run: PhaseRun) -> Section:
    """Peak memory and the KV cache."""
    return Section(Picture(plots.plot_memory(run), "Peak memory of each phase and growth of the KV cache"))


def page(run: PhaseRun) -> Section:
    """The page with its boxes, and the decode time of each region and type of region."""
    types = [region_types(run, row) for row in regions.shown_rows(run)]
    pictures = [picture for section in types for picture in section.parts]
    return Section(regions.page_html(run), *pictures, regions.region_tables_html(run))


def region_types(run: PhaseRun, row: int) -> Section:
    """Decode time by type of region in one row of a batch; nothing where no region has a time."""
    if not regions.has_region_times(run, row):
        return Section()
    return Section(Picture(regions.plot_region_types(run, row), "Decode time by type of region"))


def text_notes(run: PhaseRun) -> Section:
    """What speaks against relying on the text, and the compression ratio."""
    return Section(html.uncertain_html(run), html.compression_html(run))


def text(run: PhaseRun) -> Section:
    """The generated text of each row."""
    rows = []
    for row, result in enumerate(run.results):
        name = "The text as the model wrote it" if len(run.results) == 1 else f"Text of row {row}"
        missing = html.note_html("This record has no text (return_text=False).")
        rows.append(missing if result["text"] is None else html.text_html(result["text"], name))
    return Section(*text_notes(run).parts, *rows)


def quality(run: PhaseRun) -> Section:
    """The text against its truth, under a heading of its own; empty for a record without one."""
    if run.truths is None:
        return Section()
    from ocr_phases.show.quality import quality_html

    return Section(quality_html(run))


def checks(run: PhaseRun) -> Section:
    """The verification checklist."""
    return Section(html.checks_html(run_checks(run)))


def verification(run: PhaseRun) -> Section:
    """The head of a report on the checks alone."""
    lead = checks_verdict(run_checks(run))
    return Section(html.header_html(run, f"Verification: {run.page['file']}", lead=lead))


def references(rows: Sequence[Mapping[str, Any]] | None) -> Section:
    """Source lines of the measured code; None if unknown, as for a loaded record."""
    if rows is None:
        missing = "Records do not contain source lines; verify shows them when it measures."
        return Section(html.note_html(missing))
    return Section(html.references_html(rows))


def method(run: PhaseRun) -> Section:
    """Device, versions, model, page and request."""
    return Section(html.measured_html(run))
