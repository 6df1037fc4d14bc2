"""What happens between Run and a record: the measuring thread, and what is shown of it meanwhile.

The measuring thread only notes what happened and when. A few times a second the panel sends that to
the browser, which draws it, so that watching costs the measurement as little as can be.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec
import pandas as pd

from ocr_phases.analyse.grounding import parse_grounding
from ocr_phases.errors import OcrPhasesError, Stopped
from ocr_phases.explorer.form import MeasurementJob, first_image
from ocr_phases.families import FAMILIES
from ocr_phases.measure.progress import RunProgress, left_text
from ocr_phases.results.run import PhaseRun
from ocr_phases.show.web import Html, element, fold, preformatted
from ocr_phases.text import ms_text, plain
from ocr_phases.view.curves import curve_top, slowest_points
from ocr_phases.view.data import boxes, page_address

if TYPE_CHECKING:
    from PIL.Image import Image

#: Seconds between two pictures of a running measurement.
REFRESH_S = 0.2
_SHOWN_LETTERS = 6_000  # of the text, the last ones
_MOST_POINTS = 400  # of a curve while a page is measured
_SHORTEST_AXIS = 32  # in tokens
#: A family whose way to mark regions takes in the others'.
_ANY_MARKS = next(name for name, facts in FAMILIES.items() if facts.page_mark)
# One for all panels and always the same, because CUDA graphs and compiled code belong to the thread
# that made them.
_THREAD = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ocr_phases")


def error_html(error: BaseException, subject: str = "") -> Html:
    """An error as one sentence, after what it is about, with a folded traceback."""
    sentence = element("p", subject, error_sentence(error))
    trace = "".join(traceback.format_exception(error))
    folded = fold("Traceback", preformatted(trace), classes="")
    return element("div", sentence, folded, class_="opx-error", role="alert")


def error_sentence(error: BaseException) -> str:
    """The package's own message, or the type and first line of any other."""
    if isinstance(error, OcrPhasesError):
        return str(error)
    lines = str(error).strip().splitlines() or ["no message"]
    return f"{type(error).__name__}: {lines[0].strip()[:300]}"


class Live:
    """A running measurement; `state` is what the browser draws of it, `stop` ends it at its next
    token.
    """

    def __init__(self) -> None:
        self.begin(0, 0, 0)

    def begin(self, token_limit: int, repeats: int, warmup: int, page: Image | None = None) -> None:
        """A measurement of a page starts by loading its model.

        ``token_limit`` is the maximum number of new tokens of each run.
        """
        self.repeats = repeats
        self.warmup = warmup
        self._runs = RunProgress(token_limit, warmup)
        self.size = None if page is None else page.size
        self.picture = page_address(page)
        self._news = deque[Callable[[], None]]()
        self._new_reader: Callable[[], Callable[[int], str]] = lambda: _number_of_token
        self._began_at = time.perf_counter()
        self._last_token_at = float("nan")
        self._work = "waiting for its turn"  # without tokens; empty while a run makes them
        self._busy_warning = ""
        self._texts: list[list[str]] = [[]]
        self._times: list[list[float]] = [[]]
        self._stop = threading.Event()

    def stop(self) -> None:
        """Ask the measuring thread to stop at its next token."""
        self._stop.set()

    # -- the panel's side -------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """Text, curves, boxes and progress, with the measuring thread's news."""
        while self._news:
            heed = self._news.popleft()
            heed()
        state = self._progress_state()
        state.update(self._curves_state())
        state.update(self._text_state())
        return state

    def _progress_state(self) -> dict[str, Any]:
        """What is being done, the tokens done and in total, the time that is left, and a warning.

        While a model is loaded, and in the first run, nobody knows how much there is to do: the
        numbers then are None.
        """
        state: dict[str, Any] = {
            "doing": self._status(),
            "done": None,
            "total": None,
            "left": "",
            "warning": self._busy_warning,
        }
        if self._work:
            return state
        state["left"] = left_text(self._runs.left_s)
        state["total"] = self._runs.tokens_total
        if state["total"] is not None:
            state["done"] = self._runs.tokens_done
        return state

    def _curves_state(self) -> dict[str, Any]:
        """The curves of times, as points, with the axes that all of them fit into."""
        finished = self._runs.done
        curves = self._curves(finished)
        count = self._tokens_across(finished)
        known_times = []
        for times in curves:
            known_times += [ms for ms in times if math.isfinite(ms)]
        return {
            "lines": [slowest_points(times, count, _MOST_POINTS) for times in curves],
            "count": count,
            "top": curve_top(known_times),
        }

    def _text_state(self) -> dict[str, Any]:
        """The end of the text, and the regions that it marks on the page.

        While the first run is under way it is that run's text, afterwards that of the last finished
        one, which is whole.
        """
        shown_run = max(self._runs.done - 1, 0)
        text = "".join(self._texts[shown_run])
        regions = parse_grounding(plain(text), _ANY_MARKS).on_page(0).regions
        return {
            "text": text[-_SHOWN_LETTERS:],
            "boxes": boxes(regions, self.size or (1, 1)),
            "size": self.size,
        }

    def _curves(self, finished: int) -> list[list[float]]:
        """The times of the run under way in ms, and the median over the finished repeats.

        Where no repeat is finished, that median is over the warm-ups; in the first run there is
        none.
        """
        curves = [self._times[-1]]
        to_compare = self._times[self.warmup : finished]
        if not to_compare:
            to_compare = self._times[:finished]
        if to_compare:
            curves.append(pd.DataFrame(to_compare).median().tolist())
        return curves

    def _tokens_across(self, finished: int) -> int:
        """How many tokens the axis is long.

        It is a power of two with room for the tokens so far, so that it seldom changes while they
        come; but it is no longer than a run can be, which a finished run or the limit tells.
        """
        lengths = [len(times) for times in self._times]
        longest = max(lengths)
        exponent = math.ceil(math.log2(max(longest, _SHORTEST_AXIS)))
        with_room = 2**exponent
        expected = max(lengths[:finished], default=0)
        if expected == 0:
            expected = self._runs.token_limit
        return max(min(with_room, expected), longest)

    def _status(self) -> str:
        """What is being done, in words."""
        if self._stop.is_set():
            return "stopping"
        if self._work:
            return f"{self._work}, {time.perf_counter() - self._began_at:.0f} s"
        median_ms = pd.Series(self._times[-1], dtype=float).median()
        if math.isnan(median_ms):
            return self._runs.text
        return f"{self._runs.text}, {ms_text(median_ms)} per token (host clock)"

    # -- the measuring thread's side --------------------------------------------------------------

    def doing(self, what: str) -> None:
        """Show work without tokens, such as loading a model, until the next run begins."""
        self._news.append(partial(self._set_work, what))
        self.stop_if_asked()

    def warn(self, warning: str) -> None:
        """Show until the end of the measurement that the machine is too busy for it."""
        self._news.append(partial(self._set_warning, warning))

    def reader(self, new: Callable[[], Callable[[int], str]]) -> None:
        """Set what makes, for each run, the function that turns its tokens into text."""
        self._news.append(partial(self._set_reader, new))

    def on_tokens(self, repeat: int, new: list[list[int]]) -> None:
        """`run_inference`'s callback; raises `Stopped` after Stop was pressed."""
        self._news.append(partial(self._take, new[0], time.perf_counter()))
        self.stop_if_asked()

    def progress(self, done: int, total: int) -> None:
        """`run_inference`'s callback after set-up and after each run."""
        self._news.append(partial(self._next_run, done, total, time.perf_counter()))
        self.stop_if_asked()

    def stop_if_asked(self) -> None:
        """Raise `Stopped` after Stop was pressed."""
        if self._stop.is_set():
            raise Stopped

    # -- what the news do, once the panel reads them ----------------------------------------------

    def _set_work(self, what: str) -> None:
        self._work = what

    def _set_warning(self, warning: str) -> None:
        self._busy_warning = warning

    def _set_reader(self, new: Callable[[], Callable[[int], str]]) -> None:
        self._new_reader = new

    def _next_run(self, done: int, total: int, clock: float) -> None:
        self._work = ""
        self._last_token_at = float("nan")
        self._runs.next_run(done, total, clock)
        self._read = self._new_reader()  # no half character of the run before
        if 0 < done < self.repeats + self.warmup:
            self._texts.append([])
            self._times.append([])

    def _take(self, tokens: list[int], clock: float) -> None:
        """Add tokens as they were read: their text, and the host's time since the last ones."""
        self._runs.add_tokens(len(tokens))
        ms = (clock - self._last_token_at) * 1000.0 / len(tokens)
        self._times[-1] += [ms] * len(tokens)
        self._last_token_at = clock
        self._texts[-1] += map(self._read, tokens)


def _number_of_token(token: int) -> str:
    """A token where nothing reads it, as on a server, which has no tokenizer here."""
    return f"<{token}>"


# -- the measuring thread --------------------------------------------------------------------------


def start(job: MeasurementJob, live: Live) -> Future[PhaseRun]:
    """Measure in the thread, with the model kept from before if it is the same.

    The future raises what `run_inference` and loading raise, `Stopped` too.
    """
    settings = job.settings
    page = first_image(job.page, job.page_name)
    live.begin(settings.expected_tokens, settings.repeats, settings.warmup, page)
    return _THREAD.submit(_measure, job, live)


def _measure(job: MeasurementJob, live: Live) -> PhaseRun:
    live.doing(f"loading {job.settings.model}")
    from ocr_phases.collectors.hooks import layer_hooks
    from ocr_phases.measure.busy import busy_warnings_to
    from ocr_phases.measure.memory_fit import fit
    from ocr_phases.models.tokenizers import TokenReader
    from ocr_phases.session.kept import kept_session
    from ocr_phases.steps.preparing import announcements_to

    with contextlib.suppress(OcrPhasesError):  # loading says what is wrong
        live.doing(f"loading: {fit(job.page, job.settings).sentence}")
    session = kept_session(**job.settings.of_model())
    options = job.settings.of_run()
    device = getattr(session, "device", "")  # a server has neither that nor a tokenizer
    live.doing("preparing")
    if device:
        live.reader(lambda: TokenReader(session.tokenizer).read)
        # Every token is shown, and Stop heard, as it is written, unless another interval is asked
        # for.
        options["eos_check_every"] = options["eos_check_every"] or 1
    # What is compiled has no hooks, and a GPU is only told what to do.
    is_eager = job.settings.strategy == job.settings.vision == "eager"
    with contextlib.ExitStack() as stack:
        stack.enter_context(announcements_to(live.doing))
        stack.enter_context(busy_warnings_to(live.warn))
        if device == "cpu" and is_eager:
            stack.enter_context(layer_hooks(session.model, live.stop_if_asked))
        run = session.run_inference(
            job.page, **options, on_tokens=live.on_tokens, progress=live.progress
        )
    if job.page_name is not None:
        return _with_upload_name(run, job.page_name)
    return run


def _with_upload_name(run: PhaseRun, upload: str) -> PhaseRun:
    """The record of an upload under its name.

    Bytes carry no name, so that the record calls its page ``image``, or ``image#2`` for a page of a
    PDF, which keeps its number.
    """
    pages = []
    for page in run.pages:
        number = page.file.removeprefix("image")
        pages.append(msgspec.structs.replace(page, file=upload + number))
    return replace(run, pages=pages)
