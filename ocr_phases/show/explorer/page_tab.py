"""The tab Page: regions over the page, and a scrubber that goes through the output token by token."""

from __future__ import annotations

import uuid
from typing import Any

import ipywidgets as widgets
import pandas as pd

from ocr_phases.analyse.grounding import PREAMBLE, Region, parse_grounding, region_table
from ocr_phases.analyse.typical import typical_run
from ocr_phases.record import PhaseRun
from ocr_phases.show import sections
from ocr_phases.show.blocks import element, fragment
from ocr_phases.show.explorer.panes import Pane
from ocr_phases.show.explorer.svg import Curve, cursor_css, curve_svg, kinds, page_css, page_svg
from ocr_phases.show.html import note_html
from ocr_phases.show.overlay import hex_colour, label_colour, printable, time_colours
from ocr_phases.words import ms_text, percent_text

_BY_TYPE, _BY_TIME = "region type", "decode time"
_MOST_ROWS = 8  # of the list of regions
_AROUND = 420  # characters shown before and after the current token


class PagePane(Pane):
    """`token` is where the scrubber stands; `region` is the region that this token belongs to."""

    def __init__(self) -> None:
        super().__init__("page")
        self._scope = f"opx-{uuid.uuid4().hex[:12]}"
        self._regions: tuple[Region, ...] = ()
        self._tokens = pd.DataFrame()
        self._table = pd.DataFrame()
        self._curve = Curve(1, 1.0)
        self.row = widgets.Dropdown(description="Row")
        self.scrubber = self._new_scrubber(1)
        self.list = widgets.Select(options=[], rows=_MOST_ROWS, description="Region")
        self.list.add_class("opx-regions")
        self.opacity = widgets.FloatSlider(value=0.12, min=0, max=0.8, step=0.04, description="Opacity")
        self.opacity.add_class("opx-opacity")
        self.labels = widgets.Checkbox(value=True, description="Labels", indent=False)
        self.colour = widgets.Dropdown(options=[_BY_TYPE, _BY_TIME], description="Colour by")
        self.types = widgets.Box([])
        self.types.add_class("opx-types")
        self._sheet, self._page, self._graph, self._status, self._detail = (widgets.HTML() for _ in range(5))
        for widget, name in ((self._status, "opx-token-text"), (self._detail, "opx-detail")):
            widget.add_class(name)
        self._page.add_class("opx-page-box")
        controls = widgets.Box([self.row, self.colour, self.opacity, self.labels])
        controls.add_class("opx-controls")
        left = widgets.VBox([self._page, controls, self.types])
        left.add_class("opx-left")
        self._right = widgets.VBox([self.scrubber, self._status, self._graph, self.list, self._detail])
        self._right.add_class("opx-right")
        both = widgets.Box([left, self._right])
        both.add_class("opx-columns")
        self._note = widgets.HTML()
        self._types = widgets.HTML()
        self.children = [self._sheet, self._note, both, self._types]
        self.add_class(self._scope)
        self.list.observe(self._selected, "value")
        self.row.observe(self._row_chosen, "value")
        for widget in (self.opacity, self.labels, self.colour):
            widget.observe(self._restyle, "value")

    @property
    def token(self) -> int:
        """Index of the token under the scrubber."""
        return self.scrubber.value

    @property
    def region(self) -> int:
        """The region of that token; -1 is the preamble."""
        return int(self._tokens["region"].iloc[self.token]) if len(self._tokens) else PREAMBLE

    def draw(self, run: PhaseRun) -> None:
        """Show another record's first row, at its first token."""
        self._shown = run
        rows = range(len(run.results))
        self.row.unobserve(self._row_chosen, "value")
        self.row.options = [(f"row {row}", row) for row in rows]
        self.row.value = 0
        self.row.observe(self._row_chosen, "value")
        self.row.layout.display = None if len(rows) > 1 else "none"
        self._draw_row(0)

    def _draw_row(self, row: int) -> None:
        run = self._shown
        grounding = parse_grounding(run.results[row]["text"] or "", run.model.get("family"))
        self._regions = grounding.regions
        self._tokens = run.tokens_of(row)
        self._table = region_table(grounding, typical_run(run).tokens_of(row))
        numbers = [number for number, page in enumerate(run.pages) if page["row"] == row]
        page = run.pages[numbers[0]]
        self._note.value = note_html(_remark(run, row, len(numbers), grounding.dropped))
        items: list[Any] = list(self._table.itertuples())
        self._types.value = sections.region_types(run, row).html()
        notes = {item.region: _hint(item) for item in items}
        size = int(page["width"]), int(page["height"])
        self._page.value = page_svg(run.page_image(numbers[0]), size, grounding.on_page(0).regions, notes)
        times = self._tokens["device_ms"].tolist()
        self._curve = Curve.of([times])
        own = self._tokens.groupby("region")["index"].agg(["min", "max"])
        bands = {region: (start, end + 1) for region, start, end in own.itertuples()}
        self._graph.value = curve_svg(
            self._curve, [times], title="Latency of each token", bands=bands, cursor=True
        )
        self._offer_types()
        options = [(_line(item), item.region) for item in items]
        self.list.unobserve(self._selected, "value")
        self.list.options = options
        self.list.rows = min(max(len(options), 2), _MOST_ROWS)
        self.list.observe(self._selected, "value")
        self.scrubber.close()
        self.scrubber = self._new_scrubber(len(self._tokens))
        self._right.children = (self.scrubber, *self._right.children[1:])
        self._moved()

    def _new_scrubber(self, count: int) -> widgets.IntSlider:
        """One a record: in the browser, the End key of a slider goes to the ``max`` it was made with."""
        scrubber = widgets.IntSlider(min=0, max=max(count - 1, 0), description="Token", readout=False)
        scrubber.add_class("opx-scrubber")
        scrubber.observe(self._moved, "value")
        return scrubber

    def _offer_types(self) -> None:
        for box in self.types.children:
            box.unobserve_all()
        boxes = []
        for number, label in enumerate(kinds(self._regions)):
            count = sum(region.label == label for region in self._regions)
            box = widgets.Checkbox(value=True, description=f"{printable(label)} ({count})", indent=False)
            box.add_class(f"opx-type-{number}")
            box.observe(self._restyle, "value")
            boxes.append(box)
        self.types.children = boxes

    def _row_chosen(self, _: Any) -> None:
        self._draw_row(self.row.value)

    def _selected(self, _: Any) -> None:
        """A region of the list: go to its first token, unless the scrubber stands in it."""
        if self.list.value is None or self.list.value == self.region:
            return
        own = self._tokens.loc[self._tokens["region"] == self.list.value, "index"]
        if len(own):
            self.scrubber.value = int(own.iloc[0])

    def _moved(self, _: Any = None) -> None:
        if not len(self._tokens):
            return
        token, region = self._tokens.iloc[self.token], self.region
        if self.list.value != region and region in [number for _, number in self.list.options]:
            self.list.value = region
        ms = None if pd.isna(token["device_ms"]) else float(token["device_ms"])
        step = "from the prefill" if pd.isna(token["step"]) else f"step {int(token['step'])}"
        text = printable(str(token["text"])) or "no text"
        self._status.value = element(
            "p",
            element("strong", f"Token {self.token + 1}"),
            f" of {len(self._tokens)}, {step}: ",
            element("code", text),
            " ",
            element("strong", "" if ms is None else ms_text(ms)),
        )
        self._detail.value = self._detail_html(region)
        self._restyle()

    def _detail_html(self, region: int) -> str:
        """The current region's figures, and its tokens as written with the current one marked."""
        rows = self._table[self._table["region"] == region]
        if rows.empty:
            return ""
        item = rows.iloc[0]
        each = f", {ms_text(item['ms_per_char'])} a character" if item["characters"] else ""
        name = "Preamble" if region == PREAMBLE else f"Region {region}, {printable(str(item['label']))}"
        own = self._tokens[self._tokens["region"] == region]
        before = "".join(own.loc[own["index"] < self.token, "text"])[-_AROUND:]
        after = "".join(own.loc[own["index"] > self.token, "text"])[:_AROUND]
        now = str(self._tokens["text"].iloc[self.token])
        cost = f"{ms_text(item['decode_ms'])} ({percent_text(item['share'])} of the decode){each}"
        figures = f": {item['tokens']} tokens, {cost}"
        return fragment(
            element("p", element("strong", name, data_region=region), figures),
            element("pre", before, element("mark", now), after, tabindex=0),
        )

    def _restyle(self, _: Any = None) -> None:
        """Everything that moves or is switched, as one small style sheet."""
        token = self.token
        ms = self._tokens["device_ms"].iloc[token] if len(self._tokens) else float("nan")
        hidden = [number for number, box in enumerate(self.types.children) if not box.value]
        colours = None
        if self.colour.value == _BY_TIME and len(self._table):
            cost = dict(zip(self._table["region"], self._table["decode_ms"], strict=True))
            timed = time_colours(self._regions, cost)
            colours = {region: hex_colour(colour) for region, colour in timed.items()}
        css = page_css(
            self._scope,
            current=self.region,
            opacity=self.opacity.value,
            labels=self.labels.value,
            hidden=hidden,
            colours=colours,
        )
        css += cursor_css(self._scope, self._curve, token, None if pd.isna(ms) else float(ms), self.region)
        for number, label in enumerate(kinds(self._regions)):
            css += f".{self._scope} .opx-type-{number}{{--op-region:{hex_colour(label_colour(label))}}}"
        self._sheet.value = f"<style>{css}</style>"


def _remark(run: PhaseRun, row: int, pages: int, dropped: int) -> str:
    """Notes about this row's page; empty if there are none."""
    if run.results[row]["text"] is None:
        return "This record has no text, so its regions are unknown."
    sentences = []
    if run.pages[0].get("data") is None:
        sentences.append("This record has no page image: the boxes are on an empty sheet.")
    if pages > 1:
        sentences.append(f"This row has {pages} pages: the boxes are shown on the first.")
    if dropped:
        sentences.append(f"{dropped} box(es) could not be read.")
    if not parse_grounding(run.results[row]["text"], run.model.get("family")).regions:
        sentences.append("The output marks no region on the page.")
    return " ".join(sentences)


def _hint(item: Any) -> str:
    text = printable(str(item.text), 200)
    return (
        f"{item.region} {printable(str(item.label))}: {item.tokens} tokens, {ms_text(item.decode_ms)}\n{text}"
    )


def _line(item: Any) -> str:
    name = "preamble" if item.region == PREAMBLE else f"{item.region} {printable(str(item.label))}"
    begins = printable(str(item.text), 28)
    return " · ".join(filter(None, (name, f"{item.tokens} tokens", ms_text(item.decode_ms), begins)))
