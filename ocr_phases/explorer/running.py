"""What happens between Run and a record: the queue, the measuring thread, its live view and messages.

The measuring thread only notes what happened and when. A few times a second the panel tells it to the
browser, which draws it, so that watching costs the measurement as little as can be.
"""

from __future__ import annotations

import contextlib
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import ipywidgets as widgets
import numpy as np

from ocr_phases.errors import OcrPhasesError, Stopped
from ocr_phases.explorer.form import Asked
from ocr_phases.explorer.view import LiveView
from ocr_phases.record import PhaseRun
from ocr_phases.settings import Settings
from ocr_phases.show.page import printable
from ocr_phases.show.web import Html, element
from ocr_phases.text import ms_text

if TYPE_CHECKING:
    from PIL.Image import Image

REFRESH_S = 0.2
_SHOWN_TEXT = 6_000
_SIGNS = {"waiting": "○", "running": "▶", "done": "✓", "failed": "✗", "stopped": "■", "not run": "–"}
# One for all panels and always the same, because CUDA graphs and compiled code belong to the thread that
# made them.
_THREAD = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ocr_phases")


# -- messages ----------------------------------------------------------------------------------------


class Messages(widgets.HTML):
    """One message at a time. As a context manager it shows and swallows an `Exception`."""

    def __init__(self) -> None:
        super().__init__()
        self.add_class("opx-messages")

    def say(self, sentence: str) -> None:
        """Show a sentence; an empty one clears the message."""
        self.value = element("p", sentence, role="status") if sentence else ""

    def show_error(self, error: BaseException) -> None:
        """Show an error as one sentence with a folded traceback."""
        trace = "".join(traceback.format_exception(error))
        folded = element("details", element("summary", "Traceback"), element("pre", trace, tabindex=0))
        sentence = element("p", error_sentence(error))
        self.value = element("div", sentence, folded, class_="opx-error", role="alert")

    def guarded(self, handler: Callable[..., object]) -> Callable[..., None]:
        """A widget's handler that shows its errors here; a widget alone only logs them."""

        def call(*arguments: Any) -> None:
            self.say("")
            with self:
                handler(*arguments)

        return call

    def __enter__(self) -> Messages:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if isinstance(error, Exception):
            self.show_error(error)
        return isinstance(error, Exception)


def error_sentence(error: BaseException) -> str:
    """The package's own message, or the type and first line of any other."""
    if isinstance(error, OcrPhasesError):
        return str(error)
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), "no message")
    return f"{type(error).__name__}: {first if len(first) <= 300 else first[:299] + '…'}"


# -- the queue ---------------------------------------------------------------------------------------


@dataclass
class Job:
    """One measurement with its ``state``, a key of the list's signs, and a sentence about how it ended."""

    asked: Asked
    state: str = "waiting"
    said: str = ""

    @property
    def name(self) -> str:
        """Page and preset."""
        page = self.asked.page_name or Path(str(self.asked.page)).name
        return f"{printable(page, 60)}, {self.asked.settings.preset or 'default preset'}"


class Queue(widgets.HTML):
    """The list of jobs; a single one is not listed."""

    def __init__(self) -> None:
        super().__init__()
        self.add_class("opx-queue")
        self.jobs: list[Job] = []

    def begin(self, asked: Sequence[Asked]) -> None:
        """List new jobs, all waiting."""
        self.jobs = [Job(one) for one in asked]
        self._draw()

    @contextlib.contextmanager
    def running(self, job: Job) -> Iterator[None]:
        """Mark ``job`` while it runs; an exception is its reason to fail, and goes on."""
        job.state = "running"
        self._draw()
        try:
            yield
        except Exception as error:
            job.state, job.said = "failed", error_sentence(error)
            raise
        except BaseException:  # the task was cancelled
            job.state = "stopped"
            raise
        finally:
            self._draw()

    def leave(self) -> None:
        """Leave out what waits."""
        for job in self.jobs:
            job.state = "not run" if job.state == "waiting" else job.state
        self._draw()

    def _draw(self) -> None:
        items = [_item(job) for job in self.jobs]
        ended = sum(job.state not in ("waiting", "running") for job in self.jobs)
        head = element("p", f"{ended} of {len(items)} measurements ended", role="status")
        self.value = element("div", head, element("ol", *items)) if len(items) > 1 else ""


def _item(job: Job) -> Html:
    sign = element("span", _SIGNS[job.state], aria_hidden="true")
    reason = f": {job.said}" if job.said else ""
    return element("li", sign, f" {job.name}: ", element("strong", job.state), reason)


# -- the live view -----------------------------------------------------------------------------------


class Live(widgets.Box):
    """Streamed text, page and latency curve of the running measurement; ``status`` is its progress."""

    def __init__(self) -> None:
        self.status = widgets.HTML()
        self.status.add_class("opx-status")
        self.stream = widgets.HTML()
        self.stream.add_class("opx-stream")
        self.view = LiveView()
        super().__init__([self.stream, self.view])
        self.add_class("opx-live")
        self._stop = threading.Event()
        self.clear()

    # -- the panel's side -------------------------------------------------------------------------

    def clear(self) -> None:
        """Show that nothing runs."""
        self._news: deque[Callable[[], None]] = deque()
        self._read: Callable[[int], str] | None = None
        self._started = time.perf_counter()
        self._doing = ""
        self._tokens_a_run = self._runs = self._warmup = self._done = 0
        self._texts: list[str] = []
        self._texts_before: list[str] = []  # of the longest run before
        self._times: list[list[float]] = [[]]
        self._last: float | None = None
        self._stop.clear()
        self.layout.display = "none"
        self.status.value = self.stream.value = ""

    @property
    def text(self) -> str:
        """What has been written so far."""
        return "".join(self._texts)

    def end(self) -> None:
        """Show that nothing runs any more; the text so far stays until the next run."""
        self.refresh()
        self._texts = max(self._texts_before, self._texts, key=len)
        self._draw()
        self.status.value = ""
        if not self._texts:
            self.clear()

    def begin(self, tokens_a_run: int, repeats: int, warmup: int, page: Image | None = None) -> None:
        """Show that a measurement of a page starts by loading its model."""
        self.clear()
        self.view.begin(page)
        self._tokens_a_run, self._runs, self._warmup = tokens_a_run, repeats + warmup, warmup
        self.layout.display = None
        self.refresh()

    def stop(self) -> None:
        """Ask the measuring thread to stop at its next token."""
        self._stop.set()
        self.refresh()

    def refresh(self) -> None:
        """Draw the measuring thread's news."""
        fresh = bool(self._news)
        while self._news:
            self._news.popleft()()
        self._draw_status()
        if fresh:
            self._draw()

    def _next_run(self, done: int) -> None:
        self._doing, self._done, self._last = "", done, None
        if 0 < done < self._runs:
            self._texts_before = max(self._texts_before, self._texts, key=len)
            self._texts, self._times = [], [*self._times, []]

    def _take(self, tokens: list[int], clock: float) -> None:
        """Tokens as they were read: their text, and the host's time since the last ones."""
        each = float("nan") if self._last is None else (clock - self._last) * 1000.0 / len(tokens)
        self._times[-1] += [each] * len(tokens)
        self._last = clock
        if self._read is not None:
            self._texts += [self._read(token) for token in tokens]

    def _draw_status(self) -> None:
        known = self._read is not None and not self._doing
        if self._stop.is_set():
            doing = "stopping"
        elif not known:
            doing = f"{self._doing or 'starting'}, {time.perf_counter() - self._started:.0f} s"
        else:
            doing = self._run_name()
        total = self._runs * self._tokens_a_run
        at = f' value="{self._done * self._tokens_a_run + len(self._times[-1])}"' if known else ""
        self.status.value = (
            f'<progress max="{total}"{at} aria-label="Progress"></progress> '
            f"{element('span', doing, role='status')}"
        )

    def _run_name(self) -> str:
        number = min(self._done, self._runs - 1)
        repeats = self._runs - self._warmup
        name = (
            f"warm-up {number + 1} of {self._warmup}"
            if number < self._warmup
            else f"repeat {number - self._warmup + 1} of {repeats}"
        )
        times = np.asarray(self._times[-1])
        times = times[np.isfinite(times)]
        pace = f", {ms_text(float(np.median(times)))} a token (host clock)" if len(times) else ""
        return f"{name}: {len(self._times[-1]):,} tokens{pace}"

    def _draw(self) -> None:
        if not self._times[-1]:
            return
        text = self.text[-_SHOWN_TEXT:]
        self.stream.value = element("div", element("pre", text, tabindex=0), class_="opx-scroll")
        longest = max(map(len, self._times))
        # Room for what is still to come, without a squeezed start: the next power of two.
        room = 2 ** int(np.ceil(np.log2(max(longest, 32))))
        self.view.update(self._texts, self._times, min(room, max(self._tokens_a_run, longest)))

    # -- the measuring thread's side --------------------------------------------------------------

    def doing(self, what: str) -> None:
        """Show work without tokens, such as loading a model; an empty text clears it."""
        self._news.append(partial(setattr, self, "_doing", what))
        self.stop_if_asked()

    def reader(self, read: Callable[[int], str]) -> None:
        """Set the function that turns tokens into text."""
        self._news.append(partial(setattr, self, "_read", read))

    def on_tokens(self, repeat: int, new: list[list[int]]) -> None:
        """`run_inference`'s callback; raises `Stopped` after Stop was pressed."""
        self._news.append(partial(self._take, new[0], time.perf_counter()))
        self.stop_if_asked()

    def progress(self, done: int, total: int) -> None:
        """`run_inference`'s callback after set-up and after each run."""
        self._news.append(partial(self._next_run, done))
        self.stop_if_asked()

    def stop_if_asked(self) -> None:
        """Raise `Stopped` after Stop was pressed."""
        if self._stop.is_set():
            raise Stopped


# -- the measuring thread ----------------------------------------------------------------------------


def start(asked: Asked, live: Live) -> Future[PhaseRun]:
    """Measure in the thread, with the model kept from before if it is the same.

    The future raises what `run_inference` and loading raise, `Stopped` too.
    """
    return _THREAD.submit(_measure, asked, live)


def _measure(asked: Asked, live: Live) -> PhaseRun:
    live.doing(f"loading {asked.settings.model}")
    from ocr_phases.models.load import TokenReader
    from ocr_phases.session import kept_session
    from ocr_phases.steps.execution import stoppable, told_of_preparing

    session = kept_session(**asked.settings.of_model())

    def progress(done: int, total: int) -> None:
        live.reader(TokenReader(session.tokenizer).read)  # no half character of the run before
        live.progress(done, total)

    live.doing(_set_up_text(asked.settings))
    # Every token is shown, and Stop heard, as it is written, unless another interval is asked for.
    options = asked.settings.of_run()
    options["eos_check_every"] = options["eos_check_every"] or 1
    # What is compiled has no hooks, and a GPU is only told what to do.
    layered = session.device == "cpu" and asked.settings.strategy == asked.settings.vision == "eager"
    layers = stoppable(session.model, live.stop_if_asked) if layered else contextlib.nullcontext()
    with told_of_preparing(live.doing), layers:
        run = session.run_inference(asked.page, **options, on_tokens=live.on_tokens, progress=progress)
    if asked.page_name is None:
        return run
    # Bytes carry no name: the upload's takes the place of "image" (a page of a PDF keeps its number).
    pages = [{**page, "file": asked.page_name + page["file"].removeprefix("image")} for page in run.pages]
    return replace(run, pages=pages)


def _set_up_text(settings: Settings) -> str:
    """The set-up before the first run of these strategies; empty for eager."""
    if settings.strategy != "eager":
        return "compiling / capturing the decode step"
    return "compiling the vision stages" if settings.vision != "eager" else ""
