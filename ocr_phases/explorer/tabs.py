"""The panel's tabs: sections of a report, linked views, a comparison, and the record's file."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import ipywidgets as widgets

from ocr_phases.analyse.comparison import Comparison, run_labels, same_tokens
from ocr_phases.analyse.regions import region_pairs
from ocr_phases.errors import OcrPhasesError
from ocr_phases.explorer.kept_records import file_stem, found, placed, shown_path
from ocr_phases.explorer.running import Messages
from ocr_phases.explorer.view import View
from ocr_phases.files import REPORT_FOLDER, folder_for
from ocr_phases.record import PhaseRun
from ocr_phases.show import results
from ocr_phases.show.figures import Picture
from ocr_phases.show.page import printable
from ocr_phases.show.results import Section
from ocr_phases.show.results_many import comparison_bundle
from ocr_phases.show.web import Html, data_address, element, fragment, note, table_html

_MOST_ROWS = 6  # of the list of records


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
    """The view of the tab Page once more, as what this tab is for; sections below (or above) it."""

    def __init__(
        self, name: str, page: PagePane, *sections: Callable[[PhaseRun], Section], above: bool = False
    ) -> None:
        super().__init__(name, *sections)
        self._page = page
        self.children = [*self._shown, page.view] if above else [page.view, *self._shown]

    def reveal(self) -> None:
        """Draw the record, unless it is drawn."""
        self._page.reveal()
        super().reveal()


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
        self._seen = False  # what is set here is not drawn
        for slot in (self.base, self.others):
            slot.options = options
        before = shown - 1 if shown else min(1, len(runs) - 1)
        self.base.value = before if kept is None or kept == shown else kept
        self.others.value = (shown,)
        self.others.rows = min(max(len(runs), 2), _MOST_ROWS)

    def reveal(self) -> None:
        """Draw the comparison, unless it is drawn."""
        self._seen = True
        places = (self.base.value, *(place for place in self.others.value if place != self.base.value))
        if len(self._runs) < 2:
            none = "No record yet: press Run, or load two under Record."
            one = "Only one record so far: run again with another setting, or load one under Record."
            self._shown[0].value = note(one if self._runs else none)
        elif len(places) < 2:
            self._shown[0].value = note("Choose another record than the baseline.")
        elif places != self._compared:
            self._shown[0].value = comparison_html([self._runs[place] for place in places])
        self._compared = places

    def _chosen(self, _: Any) -> None:
        if self._seen and self.base.value is not None:
            self.reveal()


def comparison_html(runs: Sequence[PhaseRun]) -> Html:
    """What a cell shows of `compare`, curves and stages on common axes, and the baseline's regions."""
    labels = run_labels(runs)
    compared = Comparison(runs, labels)
    same = "All wrote the same tokens." if all(same_tokens(runs[0], run) for run in runs[1:]) else ""
    return fragment(
        Html(comparison_bundle(compared)["text/html"]),
        note(same) if same else "",
        Picture(compared.plot.decode(), "Time of each decode step, a line a record").html(),
        Picture(compared.plot.stages(), "Stages of the prefill, a bar a record").html(),
        _regions(runs, labels),
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


class RecordPane(Pane):
    """Loading works without a record shown; the rest is about the one that is.

    ``loaded(run, file)`` is called with a record that was read, ``in_background(work, done)`` runs slow work.
    """

    def __init__(
        self,
        loaded: Callable[..., None],
        messages: Messages,
        in_background: Callable[[Callable[[], Any], Callable[[Any], None]], None],
    ) -> None:
        super().__init__("record")
        self._loaded = loaded
        self._messages = messages
        guarded = messages.guarded
        self._in_background = in_background
        self.path = widgets.Text(placeholder="run.json", description="Record file")
        self.path.add_class("opx-load-path")
        self.load = widgets.Button(description="Load", tooltip="Show the record in this file")
        self.load.add_class("opx-load")
        self.upload = widgets.FileUpload(accept=".json", multiple=True, description="Upload")
        self.folder = widgets.Text(value=REPORT_FOLDER, description="Report folder")
        self.report = widgets.Button(
            description="Make report", tooltip="Write report.html into a folder of its own"
        )
        self.report.add_class("opx-report")
        self._download, self._report, self._method = widgets.HTML(), widgets.HTML(), widgets.HTML()
        self._download.add_class("opx-download")
        self._own = widgets.VBox(
            [self._download, _line(self.folder, self.report), self._report, self._method]
        )
        self._own.layout.display = "none"
        self.children = [_line(self.path, self.load, self.upload), self._own]
        self.load.on_click(guarded(self._load_path))
        self.upload.observe(guarded(self._load_upload), "value")
        self.report.on_click(guarded(self._make_report))

    def draw(self, run: PhaseRun) -> None:
        """Show the actions for this record."""
        data = json.dumps(run.to_dict(), ensure_ascii=False, separators=(",", ":")).encode()
        self._download.value = download_html(
            data, f"{file_stem(run)}.json", "application/json", "Download the record"
        )
        self._report.value = ""
        self._method.value = results.method(run).html()
        self._own.layout.display = None

    def _load_path(self, _: Any) -> None:
        if not self.path.value.strip():
            raise OcrPhasesError("No record chosen yet: type the path of a run.json.")
        file = found(self.path.value)
        self._loaded(PhaseRun.load(file), file)

    def _load_upload(self, change: Any) -> None:
        refused = []
        for file in change["new"]:
            try:
                self._loaded(read_record(bytes(file["content"]), str(file["name"])), None)
            except OcrPhasesError as error:
                refused.append(str(error))
        if refused:
            raise OcrPhasesError(" ".join(refused))

    def _make_report(self, _: Any) -> None:
        assert self._run is not None  # the button is only there with a record
        run = self._run
        folder = folder_for(None, placed(self.folder.value) / file_stem(run))
        self._messages.say(f"Writing the report into {shown_path(folder)} …")
        self._in_background(lambda: run.report(folder), self._made)

    def _made(self, report: Path) -> None:
        self._messages.say("")
        name = f"{report.parent.name}.html"
        link = download_html(report.read_bytes(), name, "text/html", "Download the report")
        self._report.value = element("p", link, f" Written to {report}")


def read_record(data: bytes, name: str) -> PhaseRun:
    """A record from a file's bytes; `OcrPhasesError`, naming the file, for anything else."""
    try:
        return PhaseRun.from_json(data)
    except OcrPhasesError as error:
        raise OcrPhasesError(f"{name}: {error}") from error


def download_html(data: bytes, name: str, kind: str, text: str) -> Html:
    """A link that saves ``data``, which it carries itself."""
    return element("a", text, class_="opx-link", download=name, href=data_address(data, kind))


def _line(*children: widgets.Widget) -> widgets.Box:
    line = widgets.Box(list(children))
    line.add_class("opx-row")
    return line
