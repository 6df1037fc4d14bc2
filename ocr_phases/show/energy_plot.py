"""The energy of each phase, drawn."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from ocr_phases.analyse.energy import phase_energy_table
from ocr_phases.errors import OcrPhasesError
from ocr_phases.record import Record
from ocr_phases.show.axes import bar_charts, sentence_figure, stacked
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
    rows = []
    for row in table[table["phase"] != "page"].to_dict("records"):
        idle = 0.0
        if row["idle_joules"] == row["idle_joules"]:  # is known
            idle = min(row["idle_joules"], row["joules"])
        joules = f"{digits_text(row['joules'])} J ({percent_text(row['of_page'])})"
        watts = f"{row['watts']:.0f} W"
        name = "vision, part of prefill" if row["phase"] == "vision" else row["phase"]
        pieces = stacked([(idle, FAINT), (row["joules"] - idle, GREEN)])
        rows.append((name, pieces, f"{joules}, {watts}"))
    whole = table.loc[table["phase"] == "page", "joules"].iloc[0]
    title = f"A page takes {digits_text(whole)} J"
    keys = [
        Patch(fc=FAINT, ec=REST, label="the idle device"),
        Patch(color=GREEN, label="the work"),
    ]
    return bar_charts([(title, rows, "energy (J)")], ax, keys=keys if ax is None else ())[0]
