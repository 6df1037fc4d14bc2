"""Runs measurements for the panel in their own thread."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ocr_phases.explorer.form import Asked
from ocr_phases.explorer.live import Live
from ocr_phases.record import PhaseRun
from ocr_phases.settings import Settings

if TYPE_CHECKING:
    from ocr_phases.session import OCRSession


class Measurer:
    """Runs measurements one after the other and keeps the loaded model for the next.

    It is always the same thread, because CUDA graphs and compiled code belong to the one that made them.
    """

    def __init__(self) -> None:
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ocr_phases")
        self._session: OCRSession | None = None
        self._loaded: dict[str, Any] | None = None

    def start(self, asked: Asked, live: Live) -> Future[PhaseRun]:
        """Measure in the thread; the future raises what `run_inference` and loading raise, `Stopped` too."""
        return self._worker.submit(self._measure, asked, live)

    def _measure(self, asked: Asked, live: Live) -> PhaseRun:
        session = self._session_for(asked.settings, live)
        from ocr_phases.models.load import TokenReader
        from ocr_phases.steps.execution import stoppable, told_of_preparing

        def progress(done: int, total: int) -> None:
            live.reader(TokenReader(session.tokenizer).read)  # no half character of the run before
            live.progress(done, total)

        live.doing(set_up_text(asked.settings))
        # Every token is shown, and Stop heard, as it is written, unless another interval is asked for.
        options = asked.settings.of_run()
        options["eos_check_every"] = options["eos_check_every"] or 1
        # What is compiled has no hooks, and a GPU is only told what to do.
        layered = session.device == "cpu" and asked.settings.strategy == asked.settings.vision == "eager"
        layers = stoppable(session.model, live.stop_if_asked) if layered else nullcontext()
        with told_of_preparing(live.doing), layers:
            run = session.run_inference(asked.page, **options, on_tokens=live.on_tokens, progress=progress)
        if asked.page_name is None:
            return run
        # Bytes carry no name: the upload's takes the place of "image" (a page of a PDF keeps its number).
        pages = [{**page, "file": asked.page_name + page["file"].removeprefix("image")} for page in run.pages]
        return replace(run, pages=pages)

    def _session_for(self, settings: Settings, live: Live) -> OCRSession:
        wanted = settings.of_model()
        if self._session is not None and self._loaded == wanted:
            return self._session
        live.doing(f"loading {settings.model}")
        from ocr_phases.session import OCRSession

        self._session = self._loaded = None  # makes room for the next one
        self._session = OCRSession.load(**wanted)
        self._loaded = wanted
        return self._session


def set_up_text(settings: Settings) -> str:
    """The set-up before the first run of these strategies; empty for eager."""
    if settings.strategy != "eager":
        return "compiling / capturing the decode step"
    return "compiling the vision stages" if settings.vision != "eager" else ""
