"""The panel itself: settings, Run and Stop, tabs over the record shown, and a picture in its place."""

from __future__ import annotations

import asyncio
import base64
import io
import textwrap
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any

import anywidget
import ipywidgets as widgets
from IPython.display import DisplayHandle, display
from PIL import Image

from ocr_phases.analyse.sentences import findings, headline, subject
from ocr_phases.errors import OcrPhasesError, Stopped, stop_signals
from ocr_phases.explorer.form import Asked, Fold, Form, first_image
from ocr_phases.explorer.kept_records import (
    FOLDER,
    MEASURED,
    KeptRecords,
    file_label,
    found,
    label,
    shipped,
)
from ocr_phases.explorer.running import REFRESH_S, Job, Live, Messages, Queue, start
from ocr_phases.explorer.tabs import ComparePane, LinkedPane, PagePane, Pane, RecordPane
from ocr_phases.record import PhaseRun
from ocr_phases.show import results
from ocr_phases.show.figures import blank_figure, figure_png
from ocr_phases.show.page import plot_page, printable
from ocr_phases.show.plots import plot_latency
from ocr_phases.show.results import Section, run_title
from ocr_phases.show.web import (
    Html,
    asset_text,
    data_address,
    element,
    fold,
    fragment,
    note,
    notebook_style,
)
from ocr_phases.text import count_text

_HERE = resources.files("ocr_phases.explorer")
_NONE = ""  # a value of None would leave the list blank
_NO_KERNELS = "This record has no kernel view: measure on a GPU with kernels=True."

# The picture of the panel.
_STILL_INCHES = (10.5, 4.6)
_STILL_WIDTH = 1050  # pixels
_STILL_COLOURS = 128
_STILL_BYTES = 100_000  # the bundle holds it twice, as base64

# Without its kernel JupyterLab says "model not found" in the output before this one.
_STILL_STYLE = (
    ".jp-OutputArea-child:not(:has(.opx)):has(+ .jp-OutputArea-child .opx-still){display:none}"
    ".opx-still img{max-width:100%;height:auto}"
)


class PanelScript(anywidget.AnyWidget):
    """Shows nothing: keeps the keys of the panel and sorts its tables, in the browser."""

    _esm = asset_text("sort.js") + _HERE.joinpath("panel.js").read_text("utf-8")


class Explorer(widgets.VBox):
    """A JupyterLab panel: choose pages and a model, run, inspect the record.

    ``page`` and ``model`` fill the form; ``record`` (a file) and ``runs`` are shown at once. Neither showing
    nor loading a record needs torch: the measuring half is imported when Run is pressed. `run` is the record
    shown, `runs` are all of this panel, for use in further cells. Finished records are saved into ``keep``,
    a folder of the project; None saves none. Raises `OcrPhasesError` for a ``record`` that cannot be read.
    """

    def __init__(
        self,
        page: str | Path | None = None,
        model: str = "tiny",
        *,
        record: str | Path | None = None,
        runs: Sequence[PhaseRun] = (),
        keep: str | Path | None = FOLDER,
    ) -> None:
        self.runs: list[PhaseRun] = []
        self._files: list[Path | None] = []  # of each, where it was saved or loaded
        self._current: int | None = None
        self.messages = Messages()
        guarded = self.messages.guarded
        self.run_button = widgets.Button(description="Run", icon="play", button_style="primary")
        self.stop_button = widgets.Button(description="Stop", icon="stop", disabled=True)
        self.run_button.add_class("opx-run")
        self.stop_button.add_class("opx-stop")
        self.live = Live()
        self.kept = KeptRecords(keep, guarded(self._keep_changed))
        self.form = Form(page, model, guarded, below=self.kept)
        self.fold = Fold("Settings", self.form, unfolded=True)
        buttons = widgets.Box([self.run_button, self.stop_button, self.fold.button, self.live.status])
        buttons.add_class("opx-buttons")
        self.page_pane = PagePane()
        self.compare_pane = ComparePane()
        self.record_pane = RecordPane(self.add, self.messages, self._in_background)
        self.panes: dict[str, Pane] = {
            "Latency": Pane("latency", results.cards, results.latency, results.floors),
            "Vision": Pane("vision", results.vision, results.stages),
            "Timeline": LinkedPane("timeline", self.page_pane, results.memory),
            "Kernels": Pane("kernels", _kernels),
            "Page": self.page_pane,
            "Text": LinkedPane("text", self.page_pane, results.text_notes, above=True),
            "Checks": Pane("checks", results.checks),
            "Compare": self.compare_pane,
            "Record": self.record_pane,
        }
        self.tabs = widgets.Tab(list(self.panes.values()), titles=tuple(self.panes))
        self.tabs.add_class("opx-tabs")
        self.shown = widgets.Dropdown(description="Record shown")
        self.shown.add_class("opx-shown")
        self._verdict = widgets.HTML()
        self._verdict.add_class("opx-verdict")
        self._still: DisplayHandle | None = None  # once a cell has it
        self.queue = Queue()
        self._stopped = False
        self._tasks: set[asyncio.Task[None]] = set()
        css = _HERE.joinpath("explorer.css").read_text(encoding="utf-8")
        super().__init__(
            [
                widgets.HTML(f"{notebook_style()}<style>{css}</style>"),
                PanelScript(),
                self.form,
                buttons,
                self.messages,
                self.queue,
                self.live,
                self.shown,
                self._verdict,
                self.tabs,
            ]
        )
        self.add_class("opx")
        self.run_button.on_click(lambda _: self._spawn(self.measure()))
        self.stop_button.on_click(lambda _: self._stop())
        self.tabs.observe(lambda _: self._open_tab(), "selected_index")
        self._show_chosen = guarded(self._choose)
        self.shown.observe(self._show_chosen, "value")
        self._verdict.layout.display = "none"
        for run, file in [*MEASURED, *((run, None) for run in runs)]:
            self._append(run, file)
        if record is not None:
            file = found(record)
            self._append(PhaseRun.load(file), file)
        self._list_records()
        with self.messages:
            self._show()

    @property
    def run(self) -> PhaseRun | None:
        """The record shown, or None."""
        return None if self._current is None else self.runs[self._current]

    def add(self, run: PhaseRun, file: Path | None = None) -> None:
        """Show another record, of ``file`` if it has one; earlier ones stay available."""
        self._append(run, file)
        self._list_records()
        with self.messages:
            self._show()

    def _append(self, run: PhaseRun, file: Path | None) -> None:
        self.runs.append(run)
        self._files.append(file)
        self._current = len(self.runs) - 1

    def _list_records(self) -> None:
        """Offer this panel's records, then files that are not loaded."""
        self.kept.tell()
        options: list[tuple[str, int | Path | str]] = [
            (name, number) for number, name in enumerate(self._names())
        ]
        if self._current is None:
            options.insert(0, ("none so far: press Run, or choose one", _NONE))
        for path in self.kept.files():
            if path not in self._files:
                options.append((file_label(path), path))
        with_the_package = [path for path in shipped() if path not in self._files]
        options += [(f"with the package: {file_label(path)}", path) for path in with_the_package]
        # New options first put the list on its first record: that is not to be drawn.
        self.shown.unobserve(self._show_chosen, "value")
        self.shown.options = options
        self.shown.value = _NONE if self._current is None else self._current
        self.shown.observe(self._show_chosen, "value")

    def _choose(self, _: Any) -> None:
        """Show the chosen record; a file is loaded now."""
        chosen = self.shown.value
        if isinstance(chosen, Path):
            try:
                self.add(PhaseRun.load(chosen), chosen)
            except OcrPhasesError:
                self._list_records()  # back to the record shown
                raise
        elif chosen != _NONE:
            self._current = chosen
            self._show()

    async def measure(self) -> None:
        """Run: measure with the form's settings, save and show the record, or show the error."""
        self.messages.say("")
        self._stopped = False
        self.queue.begin([])
        self._set_busy(True)
        try:
            with self.messages:
                self.queue.begin(self.form.jobs())
            for job in self.queue.jobs:
                if self._stopped:
                    break
                with self.messages, self.queue.running(job):
                    await self._measure_one(job)
        finally:
            self.queue.leave()
            self._set_busy(False)
            self._draw_still()

    async def _measure_one(self, job: Job) -> None:
        asked = job.asked
        try:
            run = await self._watched(asked)
        except Stopped:
            below = " The text so far is below." if self.live.text else ""
            self.messages.say(f"Stopped before a repeat was finished, so there is no record.{below}")
            job.state = "stopped"
            return
        file = None
        try:
            file = await asyncio.to_thread(self.kept.save, run)
        finally:  # a record that cannot be saved is shown
            MEASURED.append((run, file))
            self.live.clear()
            self.fold.button.value = False
            self.add(run, file)
        job.state, job.said = "done", count_text(run.token_count, "token")
        if len(run.repeats) < asked.settings.repeats:
            kept = f"{len(run.repeats)} of {asked.settings.repeats} repeats"
            job.state, job.said = "stopped", kept
            self.messages.say(f"Stopped: the record has {kept}.")

    async def _watched(self, asked: Asked) -> PhaseRun:
        """Measure, drawing what comes in between; raises what the measurement raises."""
        settings = asked.settings
        page = first_image(asked.page, asked.page_name)
        self.live.begin(settings.expected_tokens, settings.repeats, settings.warmup, page)
        future = asyncio.wrap_future(start(asked, self.live))
        try:
            while not future.done():
                # Each time anew: at the end of every cell, the kernel takes it back.
                with stop_signals(lambda *_: self._stop(), notebook=True):
                    await asyncio.wait({future}, timeout=REFRESH_S)
                    self.live.refresh()
        except asyncio.CancelledError:
            self._stop()
            await asyncio.wait({future})  # or the next run would wait for it
            raise
        finally:
            self.live.end()
        return future.result()

    def _stop(self) -> None:
        self._stopped = self.stop_button.disabled = True
        self.live.stop()

    def _set_busy(self, busy: bool) -> None:
        self.run_button.disabled = busy
        self.stop_button.disabled = not busy

    def _in_background(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """Slow ``work`` in a thread of its own; ``done`` gets its result, the panel an error."""

        async def job() -> None:
            with self.messages:
                done(await asyncio.to_thread(work))

        self._spawn(job())

    def _spawn(self, job: Coroutine[Any, Any, None]) -> None:
        """Run a job beside the kernel's other work; to its end where no loop is running (a plain script)."""
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:
            asyncio.run(job)
            return
        task = loop.create_task(job)
        self._tasks.add(task)  # the loop itself holds tasks only weakly
        task.add_done_callback(self._tasks.discard)

    def _names(self) -> list[str]:
        return [f"{number}: {label(run)}" for number, run in enumerate(self.runs, start=1)]

    def _show(self) -> None:
        run = self.run
        if run is None or self._current is None:
            return
        for pane in self.panes.values():
            pane.show(run)
        self.compare_pane.offer(self.runs, self._names(), self._current)
        self._open_tab()
        # Last, so that it never stands above another record's tabs and download.
        found = fold("Findings", results.lines_html(findings(run)), classes="op op-why")
        self._verdict.value = results.head_html(run, picture=False) + found
        self._verdict.layout.display = None
        self._draw_still()

    def _draw_still(self) -> None:
        """Draw the picture for a notebook without a kernel, but never beside a measurement."""
        if self._still is not None and not self.run_button.disabled:
            run = self._pictured
            self._in_background(lambda: picture_bundle(run), partial(self._keep_picture, run))

    @property
    def _pictured(self) -> PhaseRun | None:
        """The record that a saved notebook may show: none where records are not kept."""
        return self.run if self.kept.on.value else None

    def _keep_picture(self, run: PhaseRun | None, bundle: dict[str, Any]) -> None:
        if self._still is not None and run is self._pictured:  # and no other one was chosen meanwhile
            self._still.update(bundle, raw=True)

    def _keep_changed(self) -> None:
        self._list_records()
        self._draw_still()

    def _open_tab(self) -> None:
        with self.messages:
            if self.tabs.selected_index is not None:
                list(self.panes.values())[self.tabs.selected_index].reveal()

    def _ipython_display_(self) -> None:
        # No words for the panel itself: where it cannot be shown, the picture stands for it.
        view = {**self._repr_mimebundle_(), "text/plain": ""}
        display(view, raw=True)
        self._still = display(picture_bundle(self._pictured), raw=True, display_id=True)


def _kernels(run: PhaseRun) -> Section:
    return Section(note(_NO_KERNELS)) if run.kernels is None else results.kernels(run)


def picture_bundle(run: PhaseRun | None) -> dict[str, Any]:
    """``run`` by MIME type, less than 300 kB: HTML, a PNG for viewers that drop HTML, and text.

    Without a record it is a sentence.
    """
    if run is None:
        said = "Run this cell to open the explorer."
        return {"text/html": _framed(element("p", said)), "text/plain": said}
    png, said = picture_png(run), f"{run_title(run)} · {subject(run)}\n{headline(run)}"
    image = element("img", src=data_address(png, "image/png"), alt=said, width=_STILL_WIDTH)
    return {
        "text/html": _framed(image),
        "image/png": base64.b64encode(png).decode(),
        "text/plain": said,
    }


def picture_png(run: PhaseRun) -> bytes:
    """The page with its regions, the headline, and the latency of each decode step; at most 100 kB."""
    figure = blank_figure(_STILL_INCHES[1], _STILL_INCHES[0])
    page, curve = figure.subplots(1, 2, width_ratios=(2, 3))
    title = f"{printable(run_title(run), 80)} · {printable(subject(run), 120)}"
    words = textwrap.fill(headline(run), 115, max_lines=3, placeholder=" …")
    figure.suptitle(f"{title}\n{words}", x=0.01, ha="left", fontsize=10)
    plot_page(run, ax=page)
    plot_latency(run, ax=curve)
    drawn = Image.open(io.BytesIO(figure_png(figure))).convert("RGB")
    drawn.thumbnail((_STILL_WIDTH, _STILL_WIDTH))
    while True:
        buffer = io.BytesIO()
        drawn.quantize(_STILL_COLOURS).save(buffer, "PNG", optimize=True)
        if buffer.tell() <= _STILL_BYTES:
            return buffer.getvalue()
        drawn = drawn.resize((drawn.width * 4 // 5, drawn.height * 4 // 5), Image.Resampling.LANCZOS)


def _framed(content: Html) -> Html:
    return fragment(element("div", content, class_="opx-still"), Html(f"<style>{_STILL_STYLE}</style>"))
