"""The energy of each phase, drawn."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from ocr_phases.analyse.energy import phase_energy_table
from ocr_phases.errors import OcrPhasesError
from ocr_phases.record import Record
from ocr_phases.show.axes import ChartBar, bar_charts, sentence_figure, stacked
from ocr_phases.show.colours import FAINT, GREEN, REST
from ocr_phases.text import digits_text, percent_text


def plot_phase_energy(run: Record, *, ax: Axes | None = None) -> Figure:
    """The joules of one page in vision, prefill and decode as bars, with their share of the page.

    The pale part of a bar is what the idle device would have taken in the same time. A sentence
    where the record has no such figures. ``ax`` are axes to draw on.
    """
    try:
        table = phase_energy_table(run)
    except OcrPhasesError as error:
        return sentence_figure(str(error), ax)
    bars = [_phase_bar(row) for row in table[table["phase"] != "page"].to_dict("records")]
    whole = table.loc[table["phase"] == "page", "joules"].iloc[0]
    title = f"A page takes {digits_text(whole)} J"
    keys = [
        Patch(fc=FAINT, ec=REST, label="the idle device"),
        Patch(color=GREEN, label="the work"),
    ]
    figure, _ = bar_charts([(title, bars, "energy (J)")], ax, keys=keys if ax is None else ())
    return figure


def _phase_bar(phase: dict[Hashable, Any]) -> ChartBar:
    """The bar of a row of `phase_energy_table`."""
    joules = phase["joules"]
    idle_joules = 0.0
    if pd.notna(phase["idle_joules"]):
        idle_joules = min(phase["idle_joules"], joules)
    name = phase["phase"]
    if name == "vision":
        name = "vision, part of prefill"
    share = percent_text(phase["of_page"])
    words = f"{digits_text(joules)} J ({share}), {phase['watts']:.0f} W"
    return name, stacked([(idle_joules, FAINT), (joules - idle_joules, GREEN)]), words
