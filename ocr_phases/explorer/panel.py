"""The panel: one model that the browser draws and links, and what the kernel does on demand."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

import anywidget
import pandas as pd
import traitlets
from matplotlib.figure import Figure

from ocr_phases.analyse.sentences import findings, headline, noise_warning, preset_text, subject
from ocr_phases.analyse.statistics import LEAST_REPEATS
from ocr_phases.errors import OcrPhasesError, Stopped, stop_signals
from ocr_phases.explorer.form import (
    EAGER_ONLY,
    Form,
    MeasurementJob,
    OfferedPage,
    first_image,
    has_cuda,
    job_again,
    measured_here,
    pages_at,
    presets_of,
    runs_only_eagerly,
)
from ocr_phases.explorer.paths import existing_path, project_path
from ocr_phases.explorer.records import (
    FOLDER,
    RecordRow,
    cells,
    comparison_html,
    file_stem,
    keep_record,
    kept_files,
    rows_html,
    shipped_files,
)
from ocr_phases.explorer.running import REFRESH_S, Live, error_html, error_sentence, start
from ocr_phases.files import LARGEST_FILE, REPORT_FOLDER, folder_for, unpacked
from ocr_phases.models.host import host_name
from ocr_phases.results.run import PhaseRun
from ocr_phases.show.checks_section import checks_section
from ocr_phases.show.kernel_section import kernels_section
from ocr_phases.show.memory_plot import plot_memory
from ocr_phases.show.method_section import method_section
from ocr_phases.show.page_and_text import region_types_section, text_notes_section
from ocr_phases.show.run_overview import (
    cards_section,
    lines_html,
    phase_bar,
    run_title,
    status_html,
)
from ocr_phases.show.run_times import floors_section, latency_section, stages_section
from ocr_phases.show.section import Section
from ocr_phases.show.timeline_plot import plot_phase_timeline
from ocr_phases.show.vision_plot import plot_vision_stages
from ocr_phases.show.web import (
    Html,
    asset_text,
    element,
    fragment,
    note,
    notebook_css,
    printable,
)
from ocr_phases.text import count_text
from ocr_phases.view.assets import view_file
from ocr_phases.view.data import page_address, row_data
from ocr_phases.view.overlay import MOST_OTHERS, overlaid_curves
from ocr_phases.view.scripts import VIEW_SCRIPT
from ocr_phases.view.still import Stilled, running_loop, show_pictures_of_boxes
from ocr_phases.view.still_picture import still_bundle
from ocr_phases.view.widgets import LinkedTraits, selected_tokens

_RECORD_SUFFIXES = (".json", ".json.gz")
_AT_ONCE = 20  # rows of the table that are read before it is drawn again
#: What this kernel measured: another panel in it shows them again.
MEASURED: list[RecordRow] = []


def _file(name: str) -> str:
    return (resources.files("ocr_phases.explorer") / name).read_text(encoding="utf-8")


def _kernels(run: PhaseRun) -> Section:
    if run.kernels is None:
        return Section(note("This record has no kernel view: measure on a GPU with kernels=True."))
    return kernels_section(run)


def _findings(run: PhaseRun) -> Section:
    sentences = findings(run)
    warning = noise_warning(run)
    if warning:
        sentences = [warning, *sentences]
    return Section(lines_html(sentences))


#: What the kernel draws of each view, part by part.
VIEWS: dict[str, tuple[Callable[..., Section | Figure], ...]] = {
    "page": (),
    "latency": (cards_section, latency_section, floors_section, region_types_section),
    "stages": (plot_vision_stages, stages_section, plot_phase_timeline, plot_memory, _kernels),
    "records": (),
    "checks": (_findings, checks_section, text_notes_section, method_section),
}


class HtmlText(traitlets.Unicode[str, str]):
    """A trait that holds HTML as a plain text. What renders a widget may write a text that knows
    that it is HTML as something else: marimo makes an object of it.
    """

    def validate(self, obj: Any, value: Any) -> str:
        """The text of an `Html`."""
        return str(super().validate(obj, value))


@dataclass(frozen=True)
class Command:
    """What a browser asks for: ``do`` names it, ``sender`` is the place that waits for the answer.

    ``key`` is a record's, ``label`` the words of the button, ``value`` what was typed, and
    ``files`` are what was chosen, dropped or pasted, as names and contents.
    """

    do: str
    sender: str = ""
    key: str = ""
    label: str = ""
    value: str = ""
    files: tuple[tuple[str, bytes], ...] = ()

    @classmethod
    def of_message(cls, content: Mapping[str, Any], buffers: Sequence[memoryview]) -> Command:
        """The command of a message of ``panel.js``."""
        names = content.get("names", [])
        contents = [bytes(each) for each in buffers]
        return cls(
            do=content["do"],
            sender=content["from"],
            key=content.get("key", ""),
            label=content.get("label", ""),
            value=content.get("value", ""),
            files=tuple(zip(names, contents, strict=True)),
        )


class Explorer(Stilled, anywidget.AnyWidget, LinkedTraits):
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
    view = traitlets.Enum(list(VIEWS), "page").tag(sync=True)
    ticked = traitlets.List(traitlets.Unicode()).tag(sync=True)
    pinned = traitlets.Unicode("").tag(sync=True)
    keeps = traitlets.Bool(True).tag(sync=True)
    values = traitlets.Dict().tag(sync=True)
    # What the browser draws.
    bar = traitlets.Bool(True).tag(sync=True)
    busy = traitlets.Bool(False).tag(sync=True)
    fields: traitlets.List[Any] = traitlets.List().tag(sync=True)
    told = traitlets.Unicode("").tag(sync=True)
    data = traitlets.Dict().tag(sync=True)
    curves: traitlets.List[Any] = traitlets.List().tag(sync=True)
    head = HtmlText("").tag(sync=True)
    parts = traitlets.Dict().tag(sync=True)
    records = HtmlText("").tag(sync=True)
    compared = HtmlText("").tag(sync=True)
    live = traitlets.Dict().tag(sync=True)
    chosen_page = traitlets.Dict().tag(sync=True)
    live_page = traitlets.Unicode("").tag(sync=True)
    message = HtmlText("").tag(sync=True)

    def __init__(
        self,
        page: str | Path | None = None,
        model: str = "tiny",
        *,
        record: str | Path | None = None,
        runs: Sequence[PhaseRun] = (),
        keep: str | Path | None = FOLDER,
        bar: bool = True,
    ) -> None:
        super().__init__(bar=bar, keeps=keep is not None)
        show_pictures_of_boxes()
        self.folder = project_path(keep or FOLDER)
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
        self._current: RecordRow | None = None
        self._before: PhaseRun | None = None  # drawn with the curve of what repeats it
        self.rows = [*(RecordRow(run) for run in reversed(runs)), *reversed(MEASURED)]
        self._list_files()
        self.observe(self._heed_values, "values")
        self.values = self.form.values(model)
        if page is not None:
            with self._errors_shown():
                self._offer_path(str(page))
        self.on_msg(self._on_message)
        self.observe(lambda _: self._load_row(), "row")
        self.observe(lambda _: self._open(), "view")
        self.observe(lambda _: self.draw_still_soon(), ["row", "token", "view", "color"])
        self.observe(lambda _: self._keep(), "keeps")
        self.observe(lambda _: self._compare(), ["ticked", "pinned"])
        if record is not None:
            self._open_path(str(record))
        else:
            self._show_first()
        if page is not None:
            self._show_chosen_page()

    # -- records ----------------------------------------------------------------------------------

    @property
    def run(self) -> PhaseRun | None:
        """The record shown, or None."""
        return None if self._current is None else self._current.load()

    @property
    def runs(self) -> list[PhaseRun]:
        """The records of this panel that are in memory, the newest first."""
        return [record.run for record in self.rows if record.run is not None]

    def add(self, run: PhaseRun, file: Path | None = None) -> None:
        """Show another record, of ``file`` if it has one; earlier ones stay available."""
        self._show(RecordRow(run, file))

    def _list_files(self) -> None:
        """Offer what is in memory, then the folder's files and the package's."""
        known = {row.file: row for row in self.rows}
        rows = [row for row in self.rows if row.run or row.job]
        for file in kept_files(self.folder):
            rows.append(known.get(file) or RecordRow(file=file))
        for file in shipped_files():
            rows.append(known.get(file) or RecordRow(file=file, own=False))
        self.rows = list(dict.fromkeys(rows))
        self._list()

    def _list(self) -> None:
        self.records = rows_html(self.rows, self._current)
        if self.keeps:
            count = count_text(len(kept_files(self.folder)), "record")
            self.told = f"{count} in {self.folder}"
        else:
            self.told = "Off: new records are lost with the kernel."

    def _show_first(self) -> None:
        """Show the newest record that can be read."""
        for record in self.rows:
            if record.run is None and record.file is None:
                continue
            with self._errors_shown():
                self._show(record)
                return

    def _show(self, record: RecordRow, before: PhaseRun | None = None) -> None:
        """Show a record, over the curve of ``before``; raises where it cannot be read."""
        head = _head(record)
        if record not in self.rows:
            self.rows.insert(0, record)
        self._current = record
        self._before = before
        with self.hold_sync():
            self.row = 0
            self.head = head
            self._load_row()
            self._list()
        self._open()

    def _load_row(self) -> None:
        run = self.run
        assert run is not None
        with self.hold_sync():
            self.selection = []
            self.token = 0
            self.sheet = 0
            self.data = row_data(run, self.row)
            self._overlay()
            self.parts = {}
            self.chosen_page = {}
        self.draw_still_soon()

    def _overlay(self) -> None:
        """Draw the curves of the other chosen records, or of the one that this one repeats."""
        run = self.run
        assert run is not None
        chosen = self._chosen()
        if len(chosen) > 1:
            others = [record.load() for record in chosen if record is not self._current]
            self.curves = overlaid_curves(run, others, self.row)
        elif self._before is not None:
            self.curves = overlaid_curves(run, [self._before], self.row, ["now", "before"])
        else:
            self.curves = []

    def held(self, name: str) -> int:
        """How many there are to choose from: ``texts``, ``pages`` or ``rows`` of the data."""
        return len(self.data.get(name, ()))

    @property
    def selected(self) -> pd.DataFrame | None:
        """The brushed tokens of the row, as rows of `PhaseRun.tokens_of`; None without a record."""
        if self.run is None:
            return None
        return selected_tokens(self.run, self.row, self.selection)

    def _open(self) -> None:
        """Draw the view's parts that are not drawn, or read what the table of records lacks."""
        if self.view == "records":
            self._spawn(self._read_rows())
        elif self._current is not None and VIEWS[self.view] and self.view not in self.parts:
            self.parts = {**self.parts, self.view: []}
            self._spawn(self._draw_parts(self._current, self.view, self.row))

    async def _draw_parts(self, record: RecordRow, view: str, row: int) -> None:
        with self._errors_shown():
            for section in VIEWS[view]:
                arguments = [row] if section is region_types_section else []
                drawn = await asyncio.to_thread(section, record.load(), *arguments)
                html = Section(drawn).html()
                if record is not self._current or row != self.row or view not in self.parts:
                    return
                self.parts = {**self.parts, view: [*self.parts[view], html]}

    async def _read_rows(self) -> None:
        unread = [
            record for record in self.rows if record.file and "prefill_ms" not in record.cells
        ]
        for number, record in enumerate(unread, start=1):
            try:
                await asyncio.to_thread(record.look)
            except OcrPhasesError as error:
                record.cells["steps"] = f"damaged: {error}"
            if number % _AT_ONCE == 0 or number == len(unread):
                self._list()

    def _chosen(self) -> list[RecordRow]:
        """The records to compare: the pinned one before those ticked."""
        rows = {row.key: row for row in self.rows}
        keys = dict.fromkeys([self.pinned, *self.ticked])
        return [rows[key] for key in keys if key in rows]

    def _compare(self) -> None:
        """Compare the chosen records, and draw their curves over one another.

        The linked page is that of the record shown, where it is one of them, else of the first.
        """
        self.compared = ""
        chosen = self._chosen()
        if len(chosen) > 1:
            self.compared = note("Comparing …")
            self._spawn(self._draw_comparison(chosen))
            return
        if self._current is not None:
            self._overlay()

    async def _draw_comparison(self, chosen: list[RecordRow]) -> None:
        with self._errors_shown():
            runs = await asyncio.to_thread(lambda: [each.load() for each in chosen])
            if chosen != self._chosen():
                return
            if self._current not in chosen:
                self._show(chosen[0])
            else:
                self._overlay()
            html = await asyncio.to_thread(comparison_html, runs)
            if chosen == self._chosen():
                self.compared = str(_curves_note(chosen)) + html

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

    @contextlib.contextmanager
    def _errors_shown(self, subject: str = "") -> Iterator[None]:
        """Show an error below the others instead of raising it; ``subject`` stands before it."""
        try:
            yield
        except Stopped:
            self._say("Stopped before a repeat was finished, so there is no record.")
        except Exception as error:  # noqa: BLE001 - a widget alone only logs it
            self.message += str(error_html(error, subject))

    def _say(self, sentence: str) -> None:
        self.message = element("p", sentence, role="status")

    def _answer(self, command: Command, *buffers: bytes, **content: Any) -> None:
        self.send({"to": command.sender, **content}, list(buffers))

    def _record(self, key: str) -> RecordRow:
        for row in self.rows:
            if row.key == key:
                return row
        raise OcrPhasesError("This record is no longer listed: choose another one.")

    def _offer(self, pages: Mapping[str, OfferedPage], chosen: list[str]) -> None:
        """Offer pages and choose some of them; what was said of others stays."""
        message = self.message
        self.form.offer(pages)
        self.values = {**self.values, "pages": chosen}
        self.fields = self.form.fields(self.values["model"])
        self.message = message
        self._show_chosen_page()

    def _offer_path(self, text: str) -> None:
        """Offer a file, or all pages of a folder, and choose the first that can be read.

        What cannot be read before it is left out, with an error.
        """
        pages = pages_at(text)
        for name in [*pages]:
            with self._errors_shown():
                first_image(*pages[name])
                self._offer(pages, [name])
                return
            del pages[name]

    def _heed_values(self, change: Any) -> None:
        """Offer what the chosen model can do alone, and show a page that was chosen."""
        self.message = ""
        model = self.values["model"]
        if self.values["preset"] not in ("", *presets_of(model)):
            self.values = {**self.values, "preset": "", "presets": []}
        if runs_only_eagerly(model):
            eager = {name: options[0] for name, options in EAGER_ONLY.items()}
            if not eager.items() <= self.values.items():
                self.values = {**self.values, **eager}
        self.fields = self.form.fields(model)
        if change.old and change.old["pages"] != change.new["pages"]:
            with self._errors_shown():
                self._show_chosen_page()

    def _show_chosen_page(self) -> None:
        """Show the page that is chosen in the form, unless the record shown is of this page."""
        names = self.values["pages"]
        if not names or self.busy:
            self.chosen_page = {}
            return
        page, name = self.form.pages[names[0]]
        image = first_image(page, name)
        shown = None
        if self.run is not None and self.run.has_page:
            shown = self.run.page_image(0)
        if page_address(shown) == page_address(image):
            self.chosen_page = {}
            return
        sentence = f"{printable(names[0], 60)} has not been measured yet: press Run."
        if self.run is not None:
            sentence += f" What is grey belongs to {printable(self.run.page_file, 60)}."
        self.chosen_page = {"said": sentence, "size": image.size, "href": page_address(image)}

    def _take_files(self, command: Command) -> None:
        """Take files: records are shown, all others are pages. What is refused is left out."""
        pages: dict[str, OfferedPage] = {}
        for name, data in command.files:
            with self._errors_shown(f"{name}: "):
                if not name.endswith(_RECORD_SUFFIXES):
                    first_image(data, name)
                    pages[name] = (data, name)
                    continue
                text = unpacked(data, LARGEST_FILE) if name.endswith(".gz") else data
                self.add(PhaseRun.from_json(text))
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
        self._show(self._record(command.key))

    def _rename_record(self, command: Command) -> None:
        self._record(command.key).rename(command.value)
        self._list()

    def _delete_record(self, command: Command) -> None:
        record = self._record(command.key)
        if record.file is not None:
            record.file.unlink(missing_ok=True)
        for rows in (self.rows, MEASURED):
            rows[:] = [row for row in rows if row is not record]
        if record is self._current:
            self._current = None
            self._show_first()
        self._list()

    def _send_record(self, command: Command) -> None:
        run = self._record(command.key).load()
        self._answer(command, run.to_json(), file=f"{file_stem(run)}.json")

    def _send_report(self, command: Command) -> None:
        run = self._record(command.key).load()
        folder = folder_for(None, project_path(REPORT_FOLDER) / file_stem(run))
        self._say(f"Writing the report into {folder} …")
        self._spawn(self._write_report(command, run, folder))

    async def _write_report(self, command: Command, run: PhaseRun, folder: Path) -> None:
        with self._errors_shown():
            report = await asyncio.to_thread(run.report, folder)
            self._say(f"The report is written to {report}.")
            self._answer(command, report.read_bytes(), file=f"{folder.name}.html")

    def _send_code(self, command: Command) -> None:
        self._answer(command, copy=self.form.jobs(self.values)[0].code())

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
        job = _next_steps(self._current)[command.label]
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
                queue = [RecordRow(job=job) for job in jobs or self.form.jobs(self.values)]
            self.rows = [*reversed(queue), *self.rows]
            for row in queue:
                row.cells["steps"] = "not run" if self._stopped else "running"
                self._list()
                with self._errors_shown():
                    if not self._stopped:
                        await self._measure_row(row, before)
        finally:
            self.busy = False
            self.live = {}
            self._list()
            if all(row.run is None for row in queue):
                with self._errors_shown():
                    self._show_chosen_page()

    async def _measure_row(self, row: RecordRow, before: PhaseRun | None) -> None:
        """Measure one of the queue; whatever ends it is noted in its row, and raised."""
        assert row.job is not None
        try:
            run = await self._watched(row.job)
            row.run = run
            row.cells |= cells(run)
            MEASURED.append(row)
            if self.keeps:
                row.file = await asyncio.to_thread(keep_record, run, self.folder)
        except BaseException as error:
            is_stopped = isinstance(error, Stopped | asyncio.CancelledError)
            row.cells["steps"] = "stopped" if is_stopped else f"failed: {error_sentence(error)}"
            raise
        finally:  # a record that cannot be saved is shown
            self.live = {}
            if row.run is not None:
                self._show(row, before)
        for check in run.live_checks:
            if check.name == "interrupted":
                self._say(f"Stopped: the record has {(check.measured or '').rstrip('.')}.")

    async def _watched(self, job: MeasurementJob) -> PhaseRun:
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

    def _spawn(
        self, job: Coroutine[Any, Any, None], loop: asyncio.AbstractEventLoop | None = None
    ) -> None:
        """Run a job beside the kernel's other work; to its end where no loop is running (a plain
        script).
        """
        loop = loop or running_loop()
        if loop is None:
            asyncio.run(job)
        else:
            asyncio.run_coroutine_threadsafe(job, loop)  # held by what it waits for

    # -- the picture ------------------------------------------------------------------------------

    def _keep(self) -> None:
        """Keep records from now on or not; a confidential page leaves the notebook at once."""
        self._list_files()
        self.draw_still()

    def picture(self) -> dict[str, Any]:
        """What a saved notebook shows, by MIME type; a sentence where records are not kept."""
        run = self.run if self.keeps else None
        return still_bundle(run, self.row, self.token, self.color, self.view)

    def __str__(self) -> str:
        if self.run is None:
            return "Explorer without a record: choose a page and press Run."
        return f"Explorer of {self.run}"

    __repr__ = __str__


def _curves_note(chosen: Sequence[RecordRow]) -> Html:
    """Where the curves of the compared records are drawn over one another."""
    drawn = f"the first {MOST_OTHERS + 1} of these records"
    if len(chosen) <= MOST_OTHERS + 1:
        drawn = f"these {len(chosen)} records"
    return note(f"The view Page draws the latency curves of {drawn} over one another.")


def _head(record: RecordRow) -> Html:
    """The words above the views, and buttons of what can be measured next."""
    run = record.load()
    model = ", ".join(filter(None, [run.model.name, preset_text(run)]))
    about = [element("strong", run_title(run)), f" · {model} · {run.device.name}"]
    if not record.own:
        sentence = f" · Example, measured on {run.created[:10]}: press Run for your own."
        about.append(element("span", sentence, class_="opx-example"))
    parts = [
        element("p", *about, class_="opx-about", title=subject(run)),
        element("p", headline(run), class_="opx-headline"),
        phase_bar(run),
        status_html(run),
    ]
    buttons = [
        element("button", words, class_="opx-next", data_ask="again")
        for words in _next_steps(record)
    ]
    parts += buttons
    if buttons and not measured_here(run):
        where = f"This record was measured on {run.device.name}. "
        here = f"A new measurement runs on this machine, {host_name()}."
        parts.append(element("span", where, here, class_="opx-elsewhere"))
    return fragment(*parts)


def _next_steps(record: RecordRow) -> dict[str, MeasurementJob]:
    """What the panel can measure next of a record, by the button's words."""
    run = record.load()
    job = record.job or job_again(run)
    if job is None:
        return {}
    steps: dict[str, MeasurementJob] = {}
    repeats = max(8, 2 * len(run.repeats))
    if noise_warning(run) or len(run.repeats) < LEAST_REPEATS:
        settings = replace(job.settings, repeats=repeats)
        again = "Measure again" if measured_here(run) else "Measure on this machine"
        steps[f"{again} with {repeats} repeats"] = replace(job, settings=settings)
    if run.model.strategy == "eager" and has_cuda():
        settings = replace(job.settings, strategy="cuda_graph")
        words = "Try cuda_graph" if measured_here(run) else "Try cuda_graph on this machine"
        steps[words] = replace(job, settings=settings)
    return steps
