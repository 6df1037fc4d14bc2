"""The energy of each phase as a section of a report."""

from __future__ import annotations

from ocr_phases.analyse.energy import phase_energy_sentence, phase_energy_table
from ocr_phases.record import Record
from ocr_phases.show.energy_plot import plot_phase_energy
from ocr_phases.show.html_table import table_html
from ocr_phases.show.section import Section
from ocr_phases.show.web import note, section_heading

_CAPTION = (
    "Each phase was repeated alone for three seconds or more, after the timed runs. The page is "
    "prefill and decode; vision is a part of the prefill."
)


def energy_section(run: Record) -> Section:
    """The energy of each phase under its own heading; empty where nobody asked for it."""
    if run.phase_energy is None:
        return Section()
    heading = section_heading("Energy by phase")
    account = note(phase_energy_sentence(run))
    if run.phase_energy.missing is not None:
        return Section(heading, account)
    headings = {
        "call_ms": ("time of a call", "ms"),
        "watts": ("power", "W"),
        "joules": ("energy", "J"),
        "of_page": ("share of page", ""),
        "idle_joules": ("idle device", "J"),
        "thousand_tokens_j": ("1,000 tokens", "J"),
    }
    table = table_html(phase_energy_table(run), caption=_CAPTION, headings=headings)
    return Section(heading, account, table, plot_phase_energy(run))
