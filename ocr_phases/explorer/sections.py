"""What the kernel draws of the record shown: the words above its views, and the parts of each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from matplotlib.figure import Figure

from ocr_phases.analyse.sentences import findings, headline, noise_warning, preset_text, subject
from ocr_phases.analyse.statistics import LEAST_REPEATS
from ocr_phases.explorer.form import MeasurementJob, has_cuda, job_again, measured_here
from ocr_phases.explorer.records import RecordRow
from ocr_phases.models.host import host_name
from ocr_phases.results.run import PhaseRun
from ocr_phases.show.checks_section import checks_section
from ocr_phases.show.kernel_section import kernels_section
from ocr_phases.show.memory_plot import plot_memory
from ocr_phases.show.method_section import method_section
from ocr_phases.show.page_and_text import region_types_section, text_notes_section
from ocr_phases.show.run_overview import (
    cards_section,
    lines_html,
    phase_bar,
    run_title,
    status_html,
)
from ocr_phases.show.run_times import floors_section, latency_section, stages_section
from ocr_phases.show.section import Section
from ocr_phases.show.timeline_plot import plot_phase_timeline
from ocr_phases.show.vision_plot import plot_vision_stages
from ocr_phases.show.web import Html, element, fragment, note
from ocr_phases.view.overlay import MOST_OTHERS


def _kernels(run: PhaseRun) -> Section:
    if run.kernels is None:
        return Section(note("This record has no kernel view: measure on a GPU with kernels=True."))
    return kernels_section(run)


def _findings(run: PhaseRun) -> Section:
    sentences = findings(run)
    warning = noise_warning(run)
    if warning:
        sentences = [warning, *sentences]
    return Section(lines_html(sentences))


#: What the kernel draws of each view, part by part.
VIEWS: dict[str, tuple[Callable[..., Section | Figure], ...]] = {
    "page": (),
    "latency": (cards_section, latency_section, floors_section, region_types_section),
    "stages": (plot_vision_stages, stages_section, plot_phase_timeline, plot_memory, _kernels),
    "records": (),
    "checks": (_findings, checks_section, text_notes_section, method_section),
}
#: Those that are of one row of a batch; all others are of the whole record.
_PARTS_OF_A_ROW = (region_types_section,)


def draw_part(draw: Callable[..., Section | Figure], run: PhaseRun, row: int) -> Section | Figure:
    """A part of `VIEWS`, of a row counted from 0."""
    if draw in _PARTS_OF_A_ROW:
        return draw(run, row)
    return draw(run)


def panel_head(record: RecordRow) -> Html:
    """The words above the views, and buttons of what can be measured next."""
    run = record.load()
    words_of_model = [run.model.name]
    preset = preset_text(run)
    if preset:
        words_of_model.append(preset)
    about = [
        element("strong", run_title(run)),
        f" · {', '.join(words_of_model)} · {run.device.name}",
    ]
    if not record.own:
        sentence = f" · Example, measured on {run.created[:10]}: press Run for your own."
        about.append(element("span", sentence, class_="opx-example"))
    parts = [
        element("p", *about, class_="opx-about", title=subject(run)),
        element("p", headline(run), class_="opx-headline"),
        phase_bar(run),
        status_html(run),
    ]
    steps = next_steps(record)
    for words in steps:
        parts.append(element("button", words, class_="opx-next", data_ask="again"))
    if steps and not measured_here(run):
        where = f"This record was measured on {run.device.name}. "
        here = f"A new measurement runs on this machine, {host_name()}."
        parts.append(element("span", where, here, class_="opx-elsewhere"))
    return fragment(*parts)


def next_steps(record: RecordRow) -> dict[str, MeasurementJob]:
    """What the panel can measure next of a record, by the words of the button."""
    run = record.load()
    job = record.job or job_again(run)
    if job is None:
        return {}
    steps: dict[str, MeasurementJob] = {}
    is_here = measured_here(run)
    if noise_warning(run) or len(run.repeats) < LEAST_REPEATS:
        repeats = max(8, 2 * len(run.repeats))
        words = f"Measure again with {repeats} repeats"
        if not is_here:
            words = f"Measure on this machine with {repeats} repeats"
        more_repeats = replace(job.settings, repeats=repeats)
        steps[words] = replace(job, settings=more_repeats)
    if run.model.strategy == "eager" and has_cuda():
        words = "Try cuda_graph"
        if not is_here:
            words = "Try cuda_graph on this machine"
        captured = replace(job.settings, strategy="cuda_graph")
        steps[words] = replace(job, settings=captured)
    return steps


def curves_note(records: Sequence[RecordRow]) -> Html:
    """Where the curves of the compared records are drawn over one another."""
    drawn = f"the first {MOST_OTHERS + 1} of these records"
    if len(records) <= MOST_OTHERS + 1:
        drawn = f"these {len(records)} records"
    return note(f"The view Page draws the latency curves of {drawn} over one another.")
