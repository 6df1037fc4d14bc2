"""The tab Record: load, save, download or report a record."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ipywidgets as widgets

from ocr_phases.errors import OcrPhasesError
from ocr_phases.explorer.kept_records import file_stem
from ocr_phases.explorer.messages import Messages
from ocr_phases.explorer.panes import Pane
from ocr_phases.explorer.places import found, placed, shown_path
from ocr_phases.files import REPORT_FOLDER, folder_for, save_new
from ocr_phases.record import PhaseRun
from ocr_phases.show.results import method
from ocr_phases.show.web import Html, data_address, element, fragment


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
        self.target = widgets.Text(description="Save as")
        self.target.add_class("opx-save-path")
        self.save = widgets.Button(description="Save", tooltip="Write the record shown to this file")
        self.save.add_class("opx-save")
        self.folder = widgets.Text(value=REPORT_FOLDER, description="Report folder")
        self.report = widgets.Button(
            description="Make report", tooltip="Write report.html into a folder of its own"
        )
        self.report.add_class("opx-report")
        self._download, self._report, self._method = widgets.HTML(), widgets.HTML(), widgets.HTML()
        self._download.add_class("opx-download")
        self._report.add_class("opx-report-view")
        self._own = widgets.VBox(
            [
                _line(self.target, self.save, self._download),
                _line(self.folder, self.report),
                self._report,
                self._method,
            ]
        )
        self._own.layout.display = "none"
        self.children = [_line(self.path, self.load, self.upload), self._own]
        self.load.on_click(guarded(self._load_path))
        self.upload.observe(guarded(self._load_upload), "value")
        self.save.on_click(guarded(self._save))
        self.report.on_click(guarded(self._make_report))

    def draw(self, run: PhaseRun) -> None:
        """Show the actions for this record."""
        name = file_stem(run)
        data = json.dumps(run.to_dict(), ensure_ascii=False, separators=(",", ":")).encode()
        self.target.value = f"{name}.json"
        self._download.value = download_html(data, f"{name}.json", "application/json", "Download the record")
        self._report.value = ""
        self._method.value = method(run).html()
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

    def _save(self, _: Any) -> None:
        assert self._run is not None  # the button is only there with a record
        if not self.target.value.strip():
            raise OcrPhasesError("The file has no name yet: type one.")
        path = placed(self.target.value)
        own = path.name == f"{file_stem(self._run)}.json"
        path = save_new(self._run.save, path) if own else self._run.save(path)
        self._messages.say(f"Saved as {path}.")

    def _make_report(self, _: Any) -> None:
        assert self._run is not None
        run = self._run
        folder = folder_for(None, placed(self.folder.value) / file_stem(run))
        self._messages.say(f"Writing the report into {shown_path(folder)} …")
        self._in_background(lambda: run.report(folder), self._made)

    def _made(self, report: Path) -> None:
        self._messages.say("")
        document = report.read_bytes()
        link = download_html(document, f"{report.parent.name}.html", "text/html", "Download the report")
        # The frame may run the report's own table sorting and nothing else.
        shown = {"sandbox": "allow-scripts", "title": "The report", "srcdoc": document.decode()}
        self._report.value = fragment(element("p", link, f" Written to {report}"), element("iframe", **shown))


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
