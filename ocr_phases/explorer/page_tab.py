"""The tabs Page, Text and Timeline: a record's row as linked views."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ocr_phases.explorer.panes import Pane
from ocr_phases.explorer.view import View
from ocr_phases.record import PhaseRun
from ocr_phases.show import results
from ocr_phases.show.results import Section


class PagePane(Pane):
    """`token` is the index of the token shown, `region` the region it belongs to; -1 is the preamble."""

    def __init__(self) -> None:
        super().__init__("page")
        self.view = View()
        self.children = [self.view, *self._shown]
        self.view.observe(self._types, "row")

    @property
    def token(self) -> int:
        """Index of the token shown, from 0."""
        return self.view.token

    @token.setter
    def token(self, index: int) -> None:
        """Move the view there; what lies outside goes to its first or last token."""
        self.view.token = index

    @property
    def region(self) -> int:
        """The region of that token; -1 is the preamble."""
        return self.view.region

    def draw(self, run: PhaseRun) -> None:
        """Show another record's first row, at its first token."""
        self.view.show(run)
        self._types()

    def _types(self, _: Any = None) -> None:
        if self._run is not None:
            self._shown[0].value = results.region_types(self._run, self.view.row).html()


class LinkedPane(Pane):
    """A `View` of another mode at the row and token that the tab Page shows; sections below (or above) it."""

    def __init__(
        self, mode: str, page: PagePane, *sections: Callable[[PhaseRun], Section], above: bool = False
    ) -> None:
        super().__init__(mode, *sections)
        self.view = View(mode)
        self._page = page
        self.children = [*self._shown, self.view] if above else [self.view, *self._shown]
        for name in ("row", "token"):
            self.view.observe(self._moved, name)

    def reveal(self) -> None:
        """Draw the record, unless it is drawn, and go to the row and token of the tab Page."""
        self._page.reveal()
        row, token = self._page.view.row, self._page.view.token
        super().reveal()
        self.view.row, self.view.token = row, token

    def draw(self, run: PhaseRun) -> None:
        """Show another record."""
        self.view.show(run)
        super().draw(run)

    def _moved(self, change: Any) -> None:
        setattr(self._page.view, change["name"], change["new"])
