"""The panel: records, the form, and the measurements that a person asks for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import traitlets

from ocr_phases.errors import OcrPhasesError, Stopped, stop_signals
from ocr_phases.explorer.commands import Command
from ocr_phases.explorer.form import (
    EAGER_ONLY,
    Form,
    MeasurementJob,
    OfferedPage,
    first_image,
    pages_at,
    presets_of,
    runs_only_eagerly,
)
from ocr_phases.explorer.paths import existing_path, project_path
from ocr_phases.explorer.record_panel import MEASURED, RecordPanel
from ocr_phases.explorer.records import RECORDS_FOLDER, RecordRow, cells, file_stem, keep_record
from ocr_phases.explorer.running import REFRESH_S, Live, error_sentence, start
from ocr_phases.explorer.sections import next_steps
from ocr_phases.files import LARGEST_FILE, REPORT_FOLDER, folder_for, unpacked
from ocr_phases.results.run import PhaseRun
from ocr_phases.show.web import asset_text, notebook_css, printable
from ocr_phases.view.assets import view_file
from ocr_phases.view.data import page_address
from ocr_phases.view.scripts import VIEW_SCRIPT
from ocr_phases.view.still import running_loop

_RECORD_SUFFIXES = (".json", ".json.gz")


def _file(name: str) -> str:
    return (resources.files("ocr_phases.explorer") / name).read_text(encoding="utf-8")


class Explorer(RecordPanel):
    """A JupyterLab panel: choose pages and a model, run, inspect the record.

    Showing records needs no torch: the measuring half is imported when Run is pressed.

    Parameters
    ----------
    page : str or Path, optional
        What the form measures at first: an image, a PDF's page (``scan.pdf#3``) or a folder. The
        default offers the sample pages.
    model : str, default "tiny"
        The model that the form has chosen: a name, a folder, a hub id or a server's address.
    record : str or Path, optional
        The file of a record to show at once. The default is the newest that was kept, else an
        example that comes with the package.
    runs : sequence of PhaseRun, optional
        Records in memory to show and to list, the last one on top.
    keep : str, Path or None, default "ocr_phases_records"
        The folder of the project into which finished records are saved; None saves none.
    bar : bool, default True
        Whether the form stands above the record.

    Attributes
    ----------
    run : PhaseRun or None
        The record shown.
    runs : list of PhaseRun
        All records that this panel has read.
    token, row, sheet, selection, color
        As for every view of a record. They may be set, and change as a person chooses.
    view : {"page", "latency", "stages", "records", "checks"}
        What stands below the headline.

    Raises
    ------
    OcrPhasesError
        If ``record`` cannot be read.

    Examples
    --------
    >>> explorer = Explorer("page.png", "models/DeepSeek-OCR")  # doctest: +SKIP
    >>> explorer.token = 41  # doctest: +SKIP
    """

    _esm = asset_text("sort.js") + VIEW_SCRIPT + _file("panel.js")
    _css = notebook_css(view_file("view.css") + _file("explorer.css"))

    # What a person sets: in the browser, or in a cell.
    values = traitlets.Dict().tag(sync=True)
    # What the browser draws.
    busy = traitlets.Bool(False).tag(sync=True)
    fields: traitlets.List[Any] = traitlets.List().tag(sync=True)
    live = traitlets.Dict().tag(sync=True)
    live_page = traitlets.Unicode("").tag(sync=True)

    def __init__(
        self,
        page: str | Path | None = None,
        model: str = "tiny",
        *,
        record: str | Path | None = None,
        runs: Sequence[PhaseRun] = (),
        keep: str | Path | None = RECORDS_FOLDER,
        bar: bool = True,
    ) -> None:
        super().__init__(runs, keep, bar=bar)
        self.measuring = Live()
        self.form = Form()
        # The loop of the thread that Jupyter's Interrupt reaches; clicks may come in another one.
        self._home = running_loop()
        self._stopped = False
        #: What the browser may ask for, by the names that panel.js sends.
        self._commands: dict[str, Callable[[Command], None]] = {
            "run": self._run_form,
            "again": self._run_again,
            "stop": self.stop,
            "files": self._take_files,
            "path": self._take_path,
            "show": self._show_record,
            "rename": self._rename_record,
            "delete": self._delete_record,
            "download": self._send_record,
            "report": self._send_report,
            "code": self._send_code,
            "save": self._draw_before_save,
        }
        self.observe(self._heed_values, "values")
        self.values = self.form.values(model)
        if page is not None:
            with self._errors_shown():
                self._offer_path(str(page))
        self.on_msg(self._on_message)
        if record is not None:
            self._open_path(str(record))
        else:
            self._show_first()
        if page is not None:
            self._show_chosen_page()

    # -- what a person asks for -------------------------------------------------------------------

    def _on_message(self, _: Any, content: dict[str, Any], buffers: Sequence[memoryview]) -> None:
        """Do what the browser asks for."""
        self.message = ""
        with self._errors_shown():
            # What the browser holds back behind an earlier change.
            self.set_state(content.get("state", {}))
            command = Command.of_message(content, buffers)
            if command.do not in self._commands:
                raise OcrPhasesError(f"The explorer has no command {command.do!r}.")
            self._commands[command.do](command)

    def _answer(self, command: Command, *buffers: bytes, **content: Any) -> None:
        self.send({"to": command.sender, **content}, list(buffers))

    def _listed_record(self, key: str) -> RecordRow:
        """The record of a key; raises `OcrPhasesError` where it was deleted meanwhile."""
        for row in self.rows:
            if row.key == key:
                return row
        raise OcrPhasesError("This record is no longer listed: choose another one.")

    def _offer(self, pages: Mapping[str, OfferedPage], chosen: list[str]) -> None:
        """Offer pages and choose some of them; what was said of others stays."""
        message = self.message
        chosen_before = self.values["pages"]
        self.form.offer(pages)
        self.values = {**self.values, "pages": chosen}
        self.fields = self.form.fields(self.values["model"])
        if chosen == chosen_before:  # the same name, perhaps of another file
            self._show_chosen_page()
        self.message = message

    def _offer_path(self, text: str) -> None:
        """Offer a file, or all pages of a folder, and choose the first that can be read.

        What cannot be read before it is left out, with an error.
        """
        pages = pages_at(text)
        for name in list(pages):
            with self._errors_shown():
                first_image(*pages[name])
                self._offer(pages, [name])
                return
            del pages[name]  # its error is shown

    def _heed_values(self, change: Any) -> None:
        """Offer only what the chosen model can do, and show a page that was chosen.

        A preset or a strategy that the model lacks is replaced in ``values``, which calls this
        method again.
        """
        self.message = ""
        model = self.values["model"]
        if self.values["preset"] not in ("", *presets_of(model)):
            self.values = {**self.values, "preset": "", "presets": []}
        if runs_only_eagerly(model):
            eager_values = dict(self.values)
            for name, options in EAGER_ONLY.items():
                eager_values[name] = options[0]
            if eager_values != self.values:
                self.values = eager_values
        self.fields = self.form.fields(model)
        if change.old and change.old["pages"] != change.new["pages"]:
            with self._errors_shown():
                self._show_chosen_page()

    def _show_chosen_page(self) -> None:
        """Show the page that is chosen in the form, unless the record shown is of this page."""
        self.chosen_page = self._unmeasured_page()

    def _unmeasured_page(self) -> dict[str, Any]:
        """The page that is chosen in the form, as the browser shows it before it is measured.

        Empty where none is chosen, where a measurement runs, and where the record shown is of this
        page.
        """
        names = self.values["pages"]
        if not names or self.busy:
            return {}
        image = first_image(*self.form.pages[names[0]])
        address = page_address(image)
        page_of_record = None
        if self.run is not None and self.run.has_page:
            page_of_record = self.run.page_image(0)
        if page_address(page_of_record) == address:
            return {}
        sentence = f"{printable(names[0], 60)} has not been measured yet: press Run."
        if self.run is not None:
            sentence += f" What is grey belongs to {printable(self.run.page_file, 60)}."
        return {"said": sentence, "size": image.size, "href": address}

    def _take_files(self, command: Command) -> None:
        """Take files: records are shown, all others are pages. What is refused is left out."""
        pages: dict[str, OfferedPage] = {}
        for name, data in command.files:
            with self._errors_shown(f"{name}: "):
                if not name.endswith(_RECORD_SUFFIXES):
                    first_image(data, name)
                    pages[name] = OfferedPage(data, name)
                    continue
                if name.endswith(".gz"):
                    data = unpacked(data, LARGEST_FILE)
                self.add(PhaseRun.from_json(data))
        if pages:
            self._offer(pages, [*pages])

    def _take_path(self, command: Command) -> None:
        self._open_path(command.value)

    def _open_path(self, path: str) -> None:
        """Take a path: a record is shown, anything else is a page or a folder of them."""
        if path.strip().endswith(_RECORD_SUFFIXES):
            file = existing_path(path)
            self.add(PhaseRun.load(file), file)
        else:
            self._offer_path(path)

    def _show_record(self, command: Command) -> None:
        self._show(self._listed_record(command.key))

    def _rename_record(self, command: Command) -> None:
        self._listed_record(command.key).rename(command.value)
        self._list_records()

    def _delete_record(self, command: Command) -> None:
        record = self._listed_record(command.key)
        if record.file is not None:
            record.file.unlink(missing_ok=True)
        if record in self.rows:
            self.rows.remove(record)
        if record in MEASURED:
            MEASURED.remove(record)
        if record is self._current:
            self._current = None
            self._show_first()
        self._list_records()

    def _send_record(self, command: Command) -> None:
        run = self._listed_record(command.key).load()
        self._answer(command, run.to_json(), file=f"{file_stem(run)}.json")

    def _send_report(self, command: Command) -> None:
        run = self._listed_record(command.key).load()
        folder = folder_for(None, project_path(REPORT_FOLDER) / file_stem(run))
        self._say(f"Writing the report into {folder} …")
        self._spawn(self._write_report(command, run, folder))

    async def _write_report(self, command: Command, run: PhaseRun, folder: Path) -> None:
        with self._errors_shown():
            report = await asyncio.to_thread(run.report, folder)
            self._say(f"The report is written to {report}.")
            self._answer(command, report.read_bytes(), file=f"{folder.name}.html")

    def _send_code(self, command: Command) -> None:
        first_job = self.form.jobs(self.values)[0]
        self._answer(command, copy=first_job.code())

    def _draw_before_save(self, command: Command) -> None:
        """Draw the picture now: the browser saves the notebook when it has the answer."""
        try:
            self.draw_still()
        finally:
            self._answer(command, saved=True)

    # -- measuring --------------------------------------------------------------------------------

    def _run_form(self, _: Command) -> None:
        self._spawn(self.measure(), self._home)

    def _run_again(self, command: Command) -> None:
        """Measure the record shown once more, as its next step says."""
        assert self._current is not None
        job = next_steps(self._current)[command.label]
        self._spawn(self.measure([job], self.run), self._home)

    async def measure(
        self, jobs: Sequence[MeasurementJob] | None = None, before: PhaseRun | None = None
    ) -> None:
        """Run: measure with the form's settings, save and show the record, or show the error.

        ``jobs`` stand in place of the form; ``before`` is drawn with the result's curve.
        """
        if self.busy:
            return
        self.message = ""
        self._stopped = False
        self.busy = True
        self.view = "page"
        self.chosen_page = {}
        queue: list[RecordRow] = []
        try:
            with self._errors_shown():
                if not jobs:
                    jobs = self.form.jobs(self.values)
                queue = [RecordRow(job=job) for job in jobs]
            self.rows = [*reversed(queue), *self.rows]
            for row in queue:
                row.cells["steps"] = "not run" if self._stopped else "running"
                self._list_records()
                with self._errors_shown():
                    if not self._stopped:
                        await self._measure_row(row, before)
        finally:
            self.busy = False
            self.live = {}
            self._list_records()
            if all(row.run is None for row in queue):
                with self._errors_shown():
                    self._show_chosen_page()

    async def _measure_row(self, row: RecordRow, before: PhaseRun | None) -> None:
        """Measure one of the queue; whatever ends it is noted in its row, and raised."""
        assert row.job is not None
        try:
            run = await self._measure_and_watch(row.job)
            row.run = run
            row.cells |= cells(run)
            MEASURED.append(row)
            if self.keeps:
                row.file = await asyncio.to_thread(keep_record, run, self.folder)
        except BaseException as error:
            if isinstance(error, Stopped | asyncio.CancelledError):
                row.cells["steps"] = "stopped"
            else:
                row.cells["steps"] = f"failed: {error_sentence(error)}"
            raise
        finally:
            self.live = {}
            if row.run is not None:  # also where it could not be saved
                self._show(row, before)
        self._say_if_stopped(run)

    def _say_if_stopped(self, run: PhaseRun) -> None:
        """Say how much a record has whose measurement was stopped."""
        for check in run.live_checks:
            if check.name == "interrupted":
                finished = (check.measured or "").rstrip(".")
                self._say(f"Stopped: the record has {finished}.")

    async def _measure_and_watch(self, job: MeasurementJob) -> PhaseRun:
        """Measure, and show what is known meanwhile; raises what the measurement raises."""
        live = self.measuring
        future = asyncio.wrap_future(start(job, live))
        self.live_page = live.picture
        try:
            while not future.done():
                # Each time anew: at the end of every cell, the kernel takes it back.
                with stop_signals(self.stop, notebook=True):
                    await asyncio.wait({future}, timeout=REFRESH_S)
                    self.live = live.state()
        except asyncio.CancelledError:
            self.stop()
            await asyncio.wait({future})  # or the next run would wait for it
            raise
        return future.result()

    def stop(self, *_: Any) -> None:
        """End the measurement at its next token, and leave the rest of the queue."""
        self._stopped = True
        self.measuring.stop()
