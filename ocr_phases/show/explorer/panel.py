"""The panel itself: settings, Run and Stop, and the tabs over the record shown."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import ipywidgets as widgets

from ocr_phases.analyse.headline import subject, verdict
from ocr_phases.record import PhaseRun
from ocr_phases.show import html, sections
from ocr_phases.show.blocks import fragment
from ocr_phases.show.document import notebook_style
from ocr_phases.show.explorer.compare_tab import ComparePane
from ocr_phases.show.explorer.form import Asked, Form
from ocr_phases.show.explorer.live import REFRESH_S, Live
from ocr_phases.show.explorer.measuring import Measurer
from ocr_phases.show.explorer.messages import Messages
from ocr_phases.show.explorer.page_tab import LinkedPane, PagePane
from ocr_phases.show.explorer.panes import Pane
from ocr_phases.show.explorer.record_tab import RecordPane
from ocr_phases.show.overlay import printable


class Explorer(widgets.VBox):
    """A JupyterLab panel: choose a page and a model, run, inspect the record.

    ``page`` and ``model`` fill the form; ``record`` (a file) and ``runs`` are shown at once. Neither showing
    nor loading a record needs torch: the measuring half is imported when Run is pressed. `run` is the record
    shown, `runs` are all of this panel, for use in further cells. Raises `OcrPhasesError` for a ``record``
    that cannot be read.
    """

    def __init__(
        self,
        page: str | Path | None = None,
        model: str = "tiny",
        *,
        record: str | Path | None = None,
        runs: Sequence[PhaseRun] = (),
    ) -> None:
        self.runs: list[PhaseRun] = []
        self.messages = Messages()
        guarded = self.messages.guarded
        self.run_button = widgets.Button(description="Run", icon="play", button_style="primary")
        self.stop_button = widgets.Button(description="Stop", icon="stop", disabled=True)
        self.run_button.add_class("opx-run")
        self.stop_button.add_class("opx-stop")
        self.live = Live()
        buttons = widgets.Box([self.run_button, self.stop_button, self.live.status])
        buttons.add_class("opx-buttons")
        self.form = Form(page, model, guarded, below=buttons)
        self.page_pane = PagePane()
        self.compare_pane = ComparePane()
        self.record_pane = RecordPane(self.add, self.messages, self._in_background)
        self.panes: dict[str, Pane] = {
            "Latency": Pane("latency", sections.cards, sections.latency, sections.floors),
            "Vision": Pane("vision", sections.vision, sections.stages),
            "Timeline": LinkedPane("timeline", self.page_pane, sections.memory, sections.kernels),
            "Page": self.page_pane,
            "Text": LinkedPane("text", self.page_pane, sections.text_notes, above=True),
            "Checks": Pane("checks", sections.checks_summary, sections.checks),
            "Compare": self.compare_pane,
            "Record": self.record_pane,
        }
        self.tabs = widgets.Tab(list(self.panes.values()), titles=tuple(self.panes))
        self.tabs.add_class("opx-tabs")
        self.shown = widgets.Dropdown(description="Record shown")
        self.shown.add_class("opx-shown")
        self._verdict = widgets.HTML()
        self._verdict.add_class("opx-verdict")
        self._measurer = Measurer()
        self._tasks: set[asyncio.Task[None]] = set()
        css = resources.files("ocr_phases.show.explorer").joinpath("explorer.css").read_text(encoding="utf-8")
        super().__init__(
            [
                widgets.HTML(f"{notebook_style()}<style>{css}</style>"),
                self.form,
                self.messages,
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
        self._show_chosen = guarded(self._show)
        self.shown.observe(self._show_chosen, "value")
        self.shown.layout.display = self._verdict.layout.display = "none"
        for run in [*runs, *([] if record is None else [PhaseRun.load(record)])]:
            self.add(run)

    @property
    def run(self) -> PhaseRun | None:
        """The record shown, or None."""
        return None if self.shown.value is None else self.runs[self.shown.value]

    def add(self, run: PhaseRun) -> None:
        """Show another record; earlier ones stay available."""
        self.runs.append(run)
        # New options first put the list on its first record: that is not to be drawn.
        self.shown.unobserve(self._show_chosen, "value")
        self.shown.options = [(name, number) for number, name in enumerate(self._names())]
        self.shown.value = len(self.runs) - 1
        self.shown.observe(self._show_chosen, "value")
        self.shown.layout.display = self._verdict.layout.display = None
        with self.messages:
            self._show()

    async def measure(self) -> None:
        """Run: measure with the form's settings and show the record or the error."""
        self.messages.say("")
        self._set_busy(True)
        try:
            with self.messages:
                asked = self.form.asked()
                run = await self._watched(asked)
                self.add(run)
                if len(run.repeats) < asked.settings.repeats:
                    kept = f"{len(run.repeats)} of {asked.settings.repeats}"
                    self.messages.say(f"Stopped: the record has {kept} repeats.")
        finally:
            self.live.clear()
            self._set_busy(False)

    async def _watched(self, asked: Asked) -> PhaseRun:
        """Measure, drawing what comes in between; raises what the measurement raises."""
        settings = asked.settings
        self.live.begin(settings.max_new_tokens, settings.repeats, settings.warmup, self.form.page.image)
        future = asyncio.wrap_future(self._measurer.start(asked, self.live))
        while not future.done():
            await asyncio.wait({future}, timeout=REFRESH_S)
            self.live.refresh()
        return future.result()

    def _stop(self) -> None:
        self.stop_button.disabled = True
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
        return [
            f"{number}: {printable(str(run.page['file']), 40)}, {printable(str(run.model.get('name')), 40)}, "
            f"{run.page.get('preset')}, {run.model.get('strategy')}, {run.token_count} tokens, "
            f"{str(run.created)[:19].replace('T', ' ')}"
            for number, run in enumerate(self.runs, start=1)
        ]

    def _show(self, _: Any = None) -> None:
        run = self.run
        if run is None:
            return
        for pane in self.panes.values():
            pane.show(run)
        self.compare_pane.offer(self.runs, self._names(), self.shown.value)
        self._open_tab()
        # Last, so that it never stands above another record's tabs and download.
        self._verdict.value = fragment(html.note_html(subject(run)), html.note_html(verdict(run)))

    def _open_tab(self) -> None:
        with self.messages:
            if self.tabs.selected_index is not None:
                list(self.panes.values())[self.tabs.selected_index].reveal()
