"""Tabs that show sections of a report, drawn when opened."""

from __future__ import annotations

from collections.abc import Callable

import ipywidgets as widgets

from ocr_phases.record import PhaseRun
from ocr_phases.show.results import Section


class Pane(widgets.VBox):
    """One tab. `show` sets the record; `reveal` draws it."""

    def __init__(self, name: str, *sections: Callable[[PhaseRun], Section]) -> None:
        self._sections = sections
        self._shown = [widgets.HTML() for _ in sections] or [widgets.HTML()]
        self._run: PhaseRun | None = None
        self._drawn: PhaseRun | None = None
        super().__init__(self._shown)
        self.add_class("opx-pane")
        self.add_class(f"opx-pane-{name}")

    def show(self, run: PhaseRun | None) -> None:
        """Set the record to show."""
        self._run = run
        if run is not self._drawn:  # nothing of another record is seen while this one is drawn
            self._drawn = None
            for content in self._shown:
                content.value = ""

    def reveal(self) -> None:
        """Draw the record, unless it is drawn."""
        if self._drawn is self._run:
            return
        if self._run is not None:
            self.draw(self._run)
        self._drawn = self._run

    def draw(self, run: PhaseRun) -> None:
        """Draw the record, section by section: each is seen before the next is drawn."""
        for content, section in zip(self._shown, self._sections, strict=True):
            content.value = section(run).html()
