"""The tab Compare: two records side by side, and figure by figure."""

from __future__ import annotations

import html
from collections.abc import Sequence
from typing import Any

import ipywidgets as widgets

from ocr_phases.analyse.repeat import same_tokens, then_and_now, what_differs
from ocr_phases.record import PhaseRun
from ocr_phases.show import plots
from ocr_phases.show.explorer.panes import Pane, figure_html
from ocr_phases.show.html import note_html, table_html


class ComparePane(Pane):
    """Two slots, filled from all records of this session; drawn when both are filled and the tab is open."""

    def __init__(self) -> None:
        super().__init__(name="compare")
        self._runs: Sequence[PhaseRun] = ()
        self._pair: tuple[int | None, int | None] = (None, None)
        self._seen = False
        self.first = widgets.Dropdown(description="First")
        self.second = widgets.Dropdown(description="Second")
        self.first.add_class("opx-first")
        self.second.add_class("opx-second")
        slots = widgets.Box([self.first, self.second])
        slots.add_class("opx-slots")
        self.children = [slots, self._content]
        for slot in (self.first, self.second):
            slot.observe(self._chosen, "value")

    def offer(self, runs: Sequence[PhaseRun], names: Sequence[str], shown: int) -> None:
        """All records there are; the one shown becomes the second, the one before it the first."""
        self._runs = runs
        options = list(zip(names, range(len(runs)), strict=True))
        kept = self.first.value
        for slot in (self.first, self.second):
            slot.unobserve(self._chosen, "value")
            slot.options = options
        before = shown - 1 if shown else min(1, len(runs) - 1)
        self.first.value = kept if kept is not None and kept != shown else before
        self.second.value = shown
        for slot in (self.first, self.second):
            slot.observe(self._chosen, "value")

    def reveal(self) -> None:
        """Draw the pair, unless it is drawn."""
        self._seen = True
        if len(self._runs) < 2:
            self._content.value = note_html(
                "There is one record so far: run again with another setting, or load one under Record."
            )
            return
        pair = self.first.value, self.second.value
        if pair != self._pair:
            self._content.value = compare_html(self._runs[pair[0]], self._runs[pair[1]])
            self._pair = pair

    def _chosen(self, _: Any) -> None:
        if self._seen and None not in (self.first.value, self.second.value):
            self.reveal()


def compare_html(first: PhaseRun, second: PhaseRun) -> str:
    """Both latency figures and vision figures side by side, and a table of every figure that both have."""
    figures = "".join(
        f'<div class="opx-side"><h3>{name}: {html.escape(str(run.page["file"]))}</h3>'
        f"{figure_html(plots.plot_token_latency(run), f'{name}: time of each decode step')}"
        f"{figure_html(plots.plot_vision_stages(run), f'{name}: stages of the prefill')}</div>"
        for name, run in (("First", first), ("Second", second))
    )
    table = then_and_now(first, second)
    table["figure"] = table["figure"].str.replace("_", " ")
    headings = {"then": ("first", ""), "now": ("second", ""), "ratio": ("second / first", "")}
    differs = what_differs(first, second)
    words = "Both wrote the same tokens." if same_tokens(first, second) else "They wrote different tokens."
    measured = f" Not measured alike: {'; '.join(differs)}." if differs else " Same device and versions."
    return (
        f'<div class="opx-sides">{figures}</div>'
        f"{note_html(words + measured)}{table_html(table, headings=headings)}"
    )
