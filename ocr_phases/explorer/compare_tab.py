"""The tab Compare: two or more records on common axes, page by page, region by region."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import ipywidgets as widgets

from ocr_phases.analyse.comparison import Comparison, run_labels, same_tokens
from ocr_phases.analyse.grounding import parse_grounding
from ocr_phases.analyse.regions import region_pairs
from ocr_phases.explorer.panes import Pane
from ocr_phases.record import PhaseRun
from ocr_phases.show import results_many
from ocr_phases.show.figures import Picture
from ocr_phases.show.page import draw_boxes, printable
from ocr_phases.show.web import Html, element, fold, fragment, image_html, note, preformatted, table_html

_PAGE_WIDTH = 420  # CSS pixels of a page beside others
_PARTS = 5  # of `records_html`
_MOST_ROWS = 6  # of the list of records


class ComparePane(Pane):
    """Compares records of this session with one of them, the baseline; drawn when the tab is open."""

    def __init__(self) -> None:
        super().__init__("compare")
        self._runs: Sequence[PhaseRun] = ()
        self._compared: tuple[int, ...] = ()
        self._seen = False
        self.base = widgets.Dropdown(description="Baseline")
        self.others = widgets.SelectMultiple(description="Compared with it (Ctrl or Shift: several)")
        self.base.add_class("opx-base")
        self.others.add_class("opx-others")
        slots = widgets.Box([self.base, self.others])
        slots.add_class("opx-slots")
        self._shown = [widgets.HTML() for _ in range(_PARTS)]
        self.children = [slots, *self._shown]
        for slot in (self.base, self.others):
            slot.observe(self._chosen, "value")

    def show(self, run: PhaseRun | None) -> None:
        """Nothing to do: `offer` sets the records."""

    def offer(self, runs: Sequence[PhaseRun], names: Sequence[str], shown: int) -> None:
        """Offer all records; the one shown is compared with the baseline, by default the one before it."""
        self._runs = runs
        options = list(zip(names, range(len(runs)), strict=True))
        kept = self.base.value
        for slot in (self.base, self.others):
            slot.unobserve(self._chosen, "value")
            slot.options = options
        before = shown - 1 if shown else min(1, len(runs) - 1)
        self.base.value = before if kept is None or kept == shown else kept
        self.others.value = (shown,)
        self.others.rows = min(max(len(runs), 2), _MOST_ROWS)
        for slot in (self.base, self.others):
            slot.observe(self._chosen, "value")

    def reveal(self) -> None:
        """Draw the comparison, unless it is drawn."""
        self._seen = True
        if len(self._runs) < 2:
            none = "No record yet: press Run, or load two under Record."
            one = "Only one record so far: run again with another setting, or load one under Record."
            self._fill([note(one if self._runs else none)])
            return
        places = (self.base.value, *(place for place in self.others.value if place != self.base.value))
        if len(places) < 2:
            self._fill([note("Choose another record than the baseline.")])
        elif places != self._compared:
            self._fill(records_html([self._runs[place] for place in places]))
        self._compared = places

    def _fill(self, parts: Iterable[str]) -> None:
        """Show the parts, each before the next is drawn, and nothing behind them."""
        following = iter(parts)
        for content in self._shown:
            content.value = next(following, "")

    def _chosen(self, _: Any) -> None:
        if self._seen and self.base.value is not None:
            self.reveal()


def records_html(runs: Sequence[PhaseRun]) -> Iterator[str]:
    """Verdict, curves, stages on common axes, pages and regions side by side, figures with intervals."""
    labels = run_labels(runs)
    compared = Comparison(runs, labels)
    same = " All wrote the same tokens." if all(same_tokens(runs[0], run) for run in runs[1:]) else ""
    yield element("p", compared.verdict, same, class_="op")
    yield Picture(compared.plot.decode(), "Time of each decode step, a line a record").html()
    yield Picture(compared.plot.stages(), "Stages of the prefill, a bar a record").html()
    pages = [_page(run, label) for run, label in zip(runs, labels, strict=True)]
    yield element("div", *pages, class_="opx-sides")
    difference = compared.text_diff
    yield fragment(
        _regions(runs, labels),
        fold("How the text differs", preformatted(difference)) if difference else "",
        results_many.compare_html(compared.headline, labels[0]),
        results_many.environment_html(compared.differs),
    )


def _page(run: PhaseRun, label: str) -> Html:
    """The first page under its boxes."""
    image = run.page_image()
    regions = parse_grounding(run.text or "", run.model.get("family")).on_page(0)
    count = f"{len(regions.regions)} regions"
    if image is None:
        drawn = note("The page is not in this record.")
    else:
        drawn = image_html(draw_boxes(image, regions), f"{label}: the page, {count}", width=_PAGE_WIDTH)
    return element(
        "figure", element("figcaption", element("strong", label), f": {count}"), drawn, class_="opx-side"
    )


def _regions(runs: Sequence[PhaseRun], labels: Sequence[str]) -> Html:
    pairs = region_pairs(runs, labels)
    if len(pairs) < 2:
        return fragment()
    for name in ("label", "text"):
        pairs[name] = [printable(str(text), 40) for text in pairs[name]]
    headings = {label: (printable(label, 40), "ms") for label in labels}
    caption = "Decode time of each region of the baseline"
    missing = "the record has no such region"
    return table_html(pairs, caption=caption, headings=headings, missing=missing, classes="op-words")
