"""The tab Compare: two records side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ipywidgets as widgets
from matplotlib.figure import Figure

from ocr_phases.analyse.compare import Compared, run_labels, same_tokens
from ocr_phases.record import PhaseRun
from ocr_phases.show import compare, plots
from ocr_phases.show.blocks import Html, element, fragment
from ocr_phases.show.explorer.panes import Pane
from ocr_phases.show.figures import Picture
from ocr_phases.show.html import note_html

_INCHES = 6.0  # two figures beside each other, with type of its own size


class ComparePane(Pane):
    """Compares two records of this session; drawn when the tab is open."""

    def __init__(self) -> None:
        super().__init__("compare")
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

    def show(self, run: PhaseRun | None) -> None:
        """Nothing to do: `offer` sets the records."""

    def offer(self, runs: Sequence[PhaseRun], names: Sequence[str], shown: int) -> None:
        """Offer all records; the one shown becomes the second, the one before it the first."""
        self._runs = runs
        options = list(zip(names, range(len(runs)), strict=True))
        kept = self.first.value
        for slot in (self.first, self.second):
            slot.unobserve(self._chosen, "value")
            slot.options = options
        before = shown - 1 if shown else min(1, len(runs) - 1)
        self.first.value = before if kept is None or kept == shown else kept
        self.second.value = shown
        for slot in (self.first, self.second):
            slot.observe(self._chosen, "value")

    def reveal(self) -> None:
        """Draw the pair, unless it is drawn."""
        self._seen = True
        if len(self._runs) < 2:
            self._content.value = note_html(
                "Only one record so far: run again with another setting, or load one under Record."
                if self._runs
                else "No record yet: press Run, or load two under Record."
            )
            return
        pair = self.first.value, self.second.value
        if pair != self._pair:
            runs, labels = [self._runs[place] for place in pair], run_labels(self._runs)
            same = pair[0] == pair[1]
            self._content.value = both_html(
                runs, run_labels(runs) if same else [labels[place] for place in pair]
            )
            self._pair = pair

    def _chosen(self, _: Any) -> None:
        if self._seen and None not in (self.first.value, self.second.value):
            self.reveal()


def both_html(runs: Sequence[PhaseRun], labels: Sequence[str]) -> str:
    """Latency and vision figures of two records side by side, then figure by figure with intervals."""
    compared = Compared(runs, labels)
    sides = [
        element(
            "div",
            element("h3", label),
            _narrow(plots.plot_token_latency(run), f"{name}: time of each decode step"),
            _narrow(plots.plot_vision_stages(run), f"{name}: stages of the prefill"),
            class_="opx-side",
        )
        for name, run, label in zip(("First record", "Second record"), runs, labels, strict=True)
    ]
    same = " Both wrote the same tokens." if same_tokens(*runs) else ""
    return fragment(
        element("p", compared.verdict, same, class_="op"),
        element("div", *sides, class_="opx-sides"),
        compare.compare_html(compared.headline),
        compare.environment_html(compared.differs),
    )


def _narrow(figure: Figure, alt: str) -> Html:
    figure.set_figwidth(_INCHES)
    return Picture(figure, alt).html()
