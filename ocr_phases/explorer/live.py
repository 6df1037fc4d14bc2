"""The view of a running measurement: progress, text and latency.

The measuring thread only notes what happened and when. A few times a second the panel tells it to the
browser, which draws it, so that watching costs the measurement as little as can be.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import ipywidgets as widgets
import numpy as np

from ocr_phases.errors import Stopped
from ocr_phases.explorer.view import LiveView
from ocr_phases.show.web import element
from ocr_phases.text import ms_text

if TYPE_CHECKING:
    from PIL.Image import Image

REFRESH_S = 0.2
_SHOWN_TEXT = 6_000


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
        self._news: deque[tuple[Any, ...]] = deque()
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
        fresh = False
        while self._news:
            fresh = True
            kind, *news = self._news.popleft()
            if kind == "doing":
                self._doing = news[0]
            elif kind == "reader":
                self._read = news[0]
            elif kind == "run":
                self._doing, self._done, self._last = "", news[0], None
                if 0 < self._done < self._runs:
                    self._texts_before = max(self._texts_before, self._texts, key=len)
                    self._texts, self._times = [], [*self._times, []]
            else:
                self._take(*news)
        self._draw_status()
        if fresh:
            self._draw()

    def _take(self, tokens: list[int], clock: float) -> None:
        """Tokens as they were read: their text, and the host's time since the last ones."""
        if self._last is not None:
            self._times[-1] += [(clock - self._last) * 1000.0 / len(tokens)] * len(tokens)
        else:
            self._times[-1] += [float("nan")] * len(tokens)
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
        self._news.append(("doing", what))
        self.stop_if_asked()

    def reader(self, read: Callable[[int], str]) -> None:
        """Set the function that turns tokens into text."""
        self._news.append(("reader", read))

    def on_tokens(self, repeat: int, new: list[list[int]]) -> None:
        """`run_inference`'s callback; raises `Stopped` after Stop was pressed."""
        self._news.append(("tokens", new[0], time.perf_counter()))
        self.stop_if_asked()

    def progress(self, done: int, total: int) -> None:
        """`run_inference`'s callback after set-up and after each run."""
        self._news.append(("run", done))
        self.stop_if_asked()

    def stop_if_asked(self) -> None:
        """Raise `Stopped` after Stop was pressed."""
        if self._stop.is_set():
            raise Stopped
