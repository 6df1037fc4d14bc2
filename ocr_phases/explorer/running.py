"""What happens between Run and a record: jobs, the measuring thread, and what is told of it meanwhile.

The measuring thread only notes what happened and when. A few times a second the panel tells it to the
browser, which draws it, so that watching costs the measurement as little as can be.
"""

from __future__ import annotations

import contextlib
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ocr_phases.analyse.grounding import parse_grounding
from ocr_phases.errors import OcrPhasesError, Stopped
from ocr_phases.explorer.form import Asked, first_image
from ocr_phases.explorer.view_data import boxes, numbers, scale_of
from ocr_phases.families import FAMILIES
from ocr_phases.record import PhaseRun
from ocr_phases.settings import Settings
from ocr_phases.show.page import printable
from ocr_phases.show.web import Html, element, jpeg_file
from ocr_phases.text import ms_text, plain

if TYPE_CHECKING:
    from PIL.Image import Image

REFRESH_S = 0.2
_SHOWN_TEXT = 6_000
_SIDE = 1_000  # pixels of the page under a running measurement
_POINTS = 400
_LINES = 3
#: A family whose way to mark regions takes in the others'.
_ANY_MARKS = next(name for name, facts in FAMILIES.items() if facts.page_mark)
# One for all panels and always the same, because CUDA graphs and compiled code belong to the thread that
# made them.
_THREAD = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ocr_phases")


def error_html(error: BaseException) -> Html:
    """An error as one sentence with a folded traceback."""
    trace = "".join(traceback.format_exception(error))
    folded = element("details", element("summary", "Traceback"), element("pre", trace, tabindex=0))
    return element("div", element("p", error_sentence(error)), folded, class_="opx-error", role="alert")


def error_sentence(error: BaseException) -> str:
    """The package's own message, or the type and first line of any other."""
    if isinstance(error, OcrPhasesError):
        return str(error)
    first = next((line.strip() for line in str(error).splitlines() if line.strip()), "no message")
    return f"{type(error).__name__}: {first if len(first) <= 300 else first[:299] + '…'}"


@dataclass
class Job:
    """One measurement: waiting, running, done, failed, stopped or not run, and a sentence on how it ended."""

    asked: Asked
    state: str = "waiting"
    said: str = ""
    record: str = ""  # the key of its result

    def row(self) -> dict[str, Any]:
        """What the browser's table shows."""
        settings = self.asked.settings
        page = printable(self.asked.page_name or Path(str(self.asked.page)).name, 60)
        cells = {"page": page, "model": settings.model, "preset": settings.preset or "default"}
        cells |= {"how": settings.strategy, "state": self.state, "said": self.said}
        return cells | {"record": self.record}


@dataclass
class Live:
    """A running measurement; `state` is what the browser draws of it, `stop` ends it at its next token."""

    tokens_a_run: int = 0
    repeats: int = 0
    warmup: int = 0
    size: tuple[int, int] | None = None
    picture: bytes = b""
    _news: deque[Callable[[], None]] = field(default_factory=deque)
    _read: Callable[[int], str] | None = None
    _began: float = 0.0
    _first: float | None = None
    _doing: str = ""
    _done: int = 0
    _texts: list[list[str]] = field(default_factory=lambda: [[]])
    _times: list[list[float]] = field(default_factory=lambda: [[]])
    _last: float | None = None
    _stop: threading.Event = field(default_factory=threading.Event)

    @property
    def text(self) -> str:
        """What has been written so far; what the longest run wrote where that is more."""
        return max(map("".join, self._texts), key=len)

    def begin(self, tokens_a_run: int, repeats: int, warmup: int, page: Image | None = None) -> None:
        """A measurement of a page starts by loading its model."""
        self.__init__(tokens_a_run, repeats, warmup)  # type: ignore[misc]
        self._began = time.perf_counter()
        if page is not None:
            self.size, self.picture = page.size, jpeg_file(page, _SIDE, _SIDE)[1]

    def stop(self) -> None:
        """Ask the measuring thread to stop at its next token."""
        self._stop.set()

    # -- the panel's side -------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Text, curves, boxes and progress, with the measuring thread's news."""
        while self._news:
            self._news.popleft()()
        shown, longest = self._times[-_LINES:], max(map(len, self._times))
        # Room for what is still to come, without a squeezed start: the next power of two.
        room = 2 ** int(np.ceil(np.log2(max(longest, 32))))
        most = min(room, max(self.tokens_a_run, longest))
        found = [ms for run in shown for ms in numbers(run) if ms is not None]
        # A finished run tells how long the others are.
        expected = max(map(len, self._times[: self._done]), default=0) or self.tokens_a_run
        total = (self.repeats + self.warmup) * expected
        known = self._read is not None and not self._doing
        made = min(self._done * expected + len(self._times[-1]), total) if known else None
        return {
            "doing": self._said(),
            "done": made,
            "total": total,
            "left": self._left(made, total),
            "text": "".join(self._texts[-1])[-_SHOWN_TEXT:],
            "lines": [[len(run), _thinned(numbers(run), most)] for run in shown],
            "count": most,
            "top": 1.3 * scale_of(found),
            "boxes": self._boxes(),
            "size": self.size,
        }

    def _said(self) -> str:
        if self._stop.is_set():
            return "stopping"
        if self._read is None or self._doing:
            return f"{self._doing or 'waiting for its turn'}, {time.perf_counter() - self._began:.0f} s"
        number, runs = min(self._done, self.repeats + self.warmup - 1), self.repeats
        name = f"warm-up {number + 1} of {self.warmup}"
        if number >= self.warmup:
            name = f"repeat {number - self.warmup + 1} of {runs}"
        return ", ".join(filter(None, [f"{name}: {len(self._times[-1]):,} tokens", self._pace()]))

    def _pace(self) -> str:
        """The median time of a token in the finished repeats, with its range, or in the first so far."""
        measured = [np.asarray(run) for run in self._times[self.warmup :]] or [np.asarray(self._times[-1])]
        medians = [float(np.nanmedian(run)) for run in measured if np.isfinite(run).any()]
        if not medians:
            return ""
        each = f"{ms_text(float(np.median(medians)))} a token (host clock)"
        spread = f", {ms_text(min(medians))} to {ms_text(max(medians))} in {len(medians)} repeats"
        return each + (spread if len(medians) > 1 else "")

    def _left(self, made: int | None, total: int) -> str:
        if not made or self._first is None or total <= made:
            return ""
        seconds = (time.perf_counter() - self._first) / made * (total - made)
        return f"{seconds:.0f} s left" if seconds < 90 else f"{seconds / 60:.0f} min left"

    def _boxes(self) -> list[dict[str, Any]]:
        if self.size is None:
            return []
        regions = parse_grounding(plain("".join(self._texts[-1])), _ANY_MARKS).on_page(0).regions
        labels = list(dict.fromkeys(region.label for region in regions))
        return boxes(regions, self.size, labels)

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

    def _next_run(self, done: int) -> None:
        self._doing, self._done, self._last = "", done, None
        self._first = self._first or time.perf_counter()
        if 0 < done < self.repeats + self.warmup:
            self._texts.append([])
            self._times.append([])

    def _take(self, tokens: list[int], clock: float) -> None:
        """Tokens as they were read: their text, and the host's time since the last ones."""
        each = float("nan") if self._last is None else (clock - self._last) * 1000.0 / len(tokens)
        self._times[-1] += [each] * len(tokens)
        self._last = clock
        if self._read is not None:
            self._texts[-1] += [self._read(token) for token in tokens]


def _thinned(times: list[float | None], most: int) -> list[list[float]]:
    """``[token, ms]`` of the slowest of each few tokens, so that no slow one goes missing."""
    bunch = -(-most // _POINTS)
    points = []
    for start in range(0, len(times), bunch):
        known = (
            (ms, token) for token, ms in enumerate(times[start : start + bunch], start) if ms is not None
        )
        points += [[token, ms] for ms, token in sorted(known)[-1:]]
    return points


# -- the measuring thread ----------------------------------------------------------------------------


def start(asked: Asked, live: Live) -> Future[PhaseRun]:
    """Measure in the thread, with the model kept from before if it is the same.

    The future raises what `run_inference` and loading raise, `Stopped` too.
    """
    settings = asked.settings
    live.begin(
        settings.expected_tokens, settings.repeats, settings.warmup, first_image(asked.page, asked.page_name)
    )
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
