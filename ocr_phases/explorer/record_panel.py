"""The half of the panel that shows, lists and compares records; it measures nothing."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any

import anywidget
import pandas as pd
import traitlets

from ocr_phases.errors import OcrPhasesError, Stopped
from ocr_phases.explorer.paths import project_path
from ocr_phases.explorer.records import (
    RECORDS_FOLDER,
    RecordRow,
    comparison_html,
    kept_files,
    rows_html,
    shipped_files,
)
from ocr_phases.explorer.running import error_html
from ocr_phases.explorer.sections import VIEWS, curves_note, draw_part, panel_head
from ocr_phases.results.run import PhaseRun
from ocr_phases.show.section import Section
from ocr_phases.show.web import element, note
from ocr_phases.text import count_text
from ocr_phases.view.data import row_data
from ocr_phases.view.overlay import overlaid_curves
from ocr_phases.view.still import Stilled, running_loop, show_pictures_of_boxes
from ocr_phases.view.still_picture import still_bundle
from ocr_phases.view.widgets import LinkedTraits, selected_tokens

_AT_ONCE = 20  # rows of the table that are read before it is drawn again
#: What this kernel measured: another panel in it shows them again.
MEASURED: list[RecordRow] = []


class HtmlText(traitlets.Unicode[str, str]):
    """A trait that holds HTML as a plain text. What renders a widget may write a text that knows
    that it is HTML as something else: marimo makes an object of it.
    """

    def validate(self, obj: Any, value: Any) -> str:
        """The text of an `Html`."""
        return str(super().validate(obj, value))


class RecordPanel(Stilled, anywidget.AnyWidget, LinkedTraits):
    """The records of a panel: the one that is shown, the table of all, and a comparison.

    Parameters
    ----------
    runs : sequence of PhaseRun, optional
        Records in memory to list, the last one on top.
    keep : str, Path or None, default "ocr_phases_records"
        The folder of the project into which finished records are saved; None saves none.
    bar : bool, default True
        Whether the form stands above the record.
    """

    # What a person sets: in the browser, or in a cell.
    view = traitlets.Enum(list(VIEWS), "page").tag(sync=True)
    ticked = traitlets.List(traitlets.Unicode()).tag(sync=True)
    pinned = traitlets.Unicode("").tag(sync=True)
    keeps = traitlets.Bool(True).tag(sync=True)
    # What the browser draws.
    bar = traitlets.Bool(True).tag(sync=True)
    told = traitlets.Unicode("").tag(sync=True)
    data = traitlets.Dict().tag(sync=True)
    curves: traitlets.List[Any] = traitlets.List().tag(sync=True)
    head = HtmlText("").tag(sync=True)
    parts = traitlets.Dict().tag(sync=True)
    records = HtmlText("").tag(sync=True)
    compared = HtmlText("").tag(sync=True)
    chosen_page = traitlets.Dict().tag(sync=True)
    message = HtmlText("").tag(sync=True)

    def __init__(
        self,
        runs: Sequence[PhaseRun] = (),
        keep: str | Path | None = RECORDS_FOLDER,
        *,
        bar: bool = True,
    ) -> None:
        super().__init__(bar=bar, keeps=keep is not None)
        show_pictures_of_boxes()
        self.folder = project_path(keep or RECORDS_FOLDER)
        self._current: RecordRow | None = None
        self._before: PhaseRun | None = None  # drawn with the curve of what repeats it
        self.rows = [*(RecordRow(run) for run in reversed(runs)), *reversed(MEASURED)]
        self._list_files()
        self.observe(lambda _: self._load_row(), "row")
        self.observe(lambda _: self._open_view(), "view")
        drawn = ["row", "token", "view", "color", "curves"]
        self.observe(lambda _: self.draw_still_soon(), drawn)
        self.observe(lambda _: self._heed_keeps(), "keeps")
        self.observe(lambda _: self._compare(), ["ticked", "pinned"])

    # -- the record shown -------------------------------------------------------------------------

    @property
    def run(self) -> PhaseRun | None:
        """The record shown, or None."""
        if self._current is None:
            return None
        return self._current.load()

    @property
    def runs(self) -> list[PhaseRun]:
        """The records of this panel that are in memory, the newest first."""
        return [record.run for record in self.rows if record.run is not None]

    def add(self, run: PhaseRun, file: Path | None = None) -> None:
        """Show another record, of ``file`` if it has one; earlier ones stay available."""
        self._show(RecordRow(run, file))

    def _show_first(self) -> None:
        """Show the newest record that can be read."""
        for record in self.rows:
            if record.run is None and record.file is None:
                continue
            with self._errors_shown():
                self._show(record)
                return

    def _show(self, record: RecordRow, before: PhaseRun | None = None) -> None:
        """Show a record, with the latency curve of ``before`` beneath its own.

        Raises `OcrPhasesError` for a record that cannot be read, before anything is changed.
        """
        head = panel_head(record)
        if record not in self.rows:
            self.rows.insert(0, record)
        self._current = record
        self._before = before
        with self.hold_sync():  # the browser gets all of it in one message
            self.row = 0
            self.head = head
            self._load_row()
            self._list_records()
        self._open_view()

    def _load_row(self) -> None:
        """Show the chosen row of the record from its first token on."""
        run = self.run
        assert run is not None
        with self.hold_sync():
            self.selection = []
            self.token = 0
            self.sheet = 0
            self.data = row_data(run, self.row)
            self._draw_curves()
            self.parts = {}
            self.chosen_page = {}
        self.draw_still_soon()

    def _draw_curves(self) -> None:
        """Draw the curves of the other chosen records, or of the one that this one repeats."""
        run = self.run
        assert run is not None
        chosen = self._records_to_compare()
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

    def _open_view(self) -> None:
        """Draw the view's parts that are not drawn, or read what the table of records lacks."""
        view = self.view
        if view == "records":
            self._spawn(self._read_rows())
            return
        has_parts = len(VIEWS[view]) > 0
        if self._current is not None and has_parts and view not in self.parts:
            self.parts = {**self.parts, view: []}
            self._spawn(self._draw_parts(self._current, view, self.row))

    async def _draw_parts(self, record: RecordRow, view: str, row: int) -> None:
        """Draw a view part by part, until another record or another row is shown."""
        with self._errors_shown():
            for draw in VIEWS[view]:
                part = await asyncio.to_thread(draw_part, draw, record.load(), row)
                html = Section(part).html()
                if record is not self._current or row != self.row or view not in self.parts:
                    return
                self.parts = {**self.parts, view: [*self.parts[view], html]}

    # -- the table of records ---------------------------------------------------------------------

    def _list_files(self) -> None:
        """Offer what is in memory, then the folder's files and the package's.

        A file that is listed already keeps its row, with its key and what was read of it.
        """
        rows_of_files = {row.file: row for row in self.rows}
        rows = [row for row in self.rows if row.run is not None or row.job is not None]
        for file in kept_files(self.folder):
            rows.append(rows_of_files.get(file) or RecordRow(file=file))
        for file in shipped_files():
            rows.append(rows_of_files.get(file) or RecordRow(file=file, own=False))
        self.rows = list(dict.fromkeys(rows))  # each once
        self._list_records()

    def _list_records(self) -> None:
        """Draw the table anew, and say how many records are kept."""
        self.records = rows_html(self.rows, self._current)
        if self.keeps:
            count = count_text(len(kept_files(self.folder)), "record")
            self.told = f"{count} in {self.folder}"
        else:
            self.told = "Off: new records are lost with the kernel."

    async def _read_rows(self) -> None:
        """Read the files of the table whose figures are not known yet."""
        unread = []
        for row in self.rows:
            if row.file is not None and "prefill_ms" not in row.cells:
                unread.append(row)
        for number, row in enumerate(unread, start=1):
            try:
                await asyncio.to_thread(row.look)
            except OcrPhasesError as error:
                row.cells["steps"] = f"damaged: {error}"
            if number % _AT_ONCE == 0 or number == len(unread):
                self._list_records()

    # -- the comparison ---------------------------------------------------------------------------

    def _records_to_compare(self) -> list[RecordRow]:
        """The records to compare: the pinned one before those ticked."""
        rows = {row.key: row for row in self.rows}
        keys = dict.fromkeys([self.pinned, *self.ticked])
        return [rows[key] for key in keys if key in rows]

    def _compare(self) -> None:
        """Compare the chosen records, and draw their curves over one another.

        The linked page is that of the record shown, where it is one of them, else of the first.
        """
        self.compared = ""
        chosen = self._records_to_compare()
        if len(chosen) > 1:
            self.compared = note("Comparing …")
            self._spawn(self._draw_comparison(chosen))
            return
        if self._current is not None:
            self._draw_curves()

    async def _draw_comparison(self, compared: list[RecordRow]) -> None:
        """Draw a comparison, unless other records are chosen before it is done."""
        with self._errors_shown():
            runs = []
            for record in compared:
                runs.append(await asyncio.to_thread(record.load))
            if compared != self._records_to_compare():
                return
            if self._current in compared:
                self._draw_curves()
            else:
                self._show(compared[0])
            html = await asyncio.to_thread(comparison_html, runs)
            if compared == self._records_to_compare():
                self.compared = str(curves_note(compared)) + html

    # -- errors, and work beside the kernel's -----------------------------------------------------

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

    def _spawn(
        self, work: Coroutine[Any, Any, None], loop: asyncio.AbstractEventLoop | None = None
    ) -> None:
        """Do work beside the kernel's other; to its end where no loop is running (a plain
        script).
        """
        loop = loop or running_loop()
        if loop is None:
            asyncio.run(work)
        else:
            asyncio.run_coroutine_threadsafe(work, loop)  # held by what it waits for

    # -- the picture ------------------------------------------------------------------------------

    def _heed_keeps(self) -> None:
        """Keep records from now on or not; a confidential page leaves the notebook at once."""
        self._list_files()
        self.draw_still()

    def picture(self) -> dict[str, Any]:
        """What a saved notebook shows, by MIME type; a sentence where records are not kept."""
        run = None
        if self.keeps:
            run = self.run
        return still_bundle(run, self.row, self.token, self.color, self.view, self.curves)

    def __str__(self) -> str:
        if self.run is None:
            return "Explorer without a record: choose a page and press Run."
        return f"Explorer of {self.run}"

    __repr__ = __str__
