"""Progress on stderr; Ctrl-C ends a measurement and keeps the finished repeats."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from typing import Any

from tqdm import tqdm

from ocr_phases.errors import Stopped, stop_signals

_LOG_SECONDS = 30.0


class Bar(tqdm):
    """tqdm's bar on a terminal, which goes at the end; else a line of the same now and then, for a log."""

    def __init__(self, total: int, unit: str, desc: str | None = None) -> None:
        log = not sys.stderr.isatty()
        seconds = _LOG_SECONDS if log else 0.1
        # With gui, display is all that writes.
        options: dict[str, Any] = {"gui": log, "mininterval": seconds, "miniters": 0, "smoothing": 0}
        super().__init__(total=total, unit=unit, desc=desc, leave=False, **options)

    def display(self, msg: str | None = None, pos: int | None = None) -> bool:
        """Write the state."""
        if not self.gui:
            return super().display(msg, pos)
        print(self, file=sys.stderr, flush=True)
        return True

    def tell(self, through: int, worked: int, note: str) -> None:
        """``through`` of all are through, ``worked`` of them by this command: these make the rate."""
        if not worked:  # what is kept is looked through first
            self.start_t = self.last_print_t
        self.n, self.initial = through, through - worked
        self.set_postfix_str(note, refresh=False)
        self.update(0)


class Watch:
    """Shows runs and tokens of one measurement: a bar on a terminal, else a line per finished run.

    `progress` and `on_tokens` are `run_inference`'s callbacks. A signal to stop (`watching`) makes them raise
    `Stopped`; ``asked`` is then its number.
    """

    def __init__(self, warmup: int, tokens_a_run: int) -> None:
        self.warmup, self.tokens_a_run = warmup, tokens_a_run
        self.done = self.asked = 0
        self.began = time.monotonic()
        self.bar: Any = None

    def progress(self, done: int, total: int) -> None:
        """``done`` of ``total`` runs, warm-up included, are finished."""
        if self.bar is None:
            self.bar = Bar(total * self.tokens_a_run, "token")
        # Before it is said: who reads the line may press Ctrl-C at once.
        finished, self.done = done > self.done, done
        if finished and self.bar.gui:
            warm = done <= self.warmup
            of = (done, self.warmup) if warm else (done - self.warmup, total - self.warmup)
            took = time.monotonic() - self.began
            name = "Warm-up" if warm else "Repeat"
            print(f"{name} {of[0]} of {of[1]} done in {took:.1f} s", file=sys.stderr, flush=True)
        self.began = time.monotonic()
        self.bar.tell(done * self.tokens_a_run, done * self.tokens_a_run, f"{done} of {total} runs done")
        self._stop_if_asked()

    def on_tokens(self, repeat: int, new: list[list[int]]) -> None:
        """The current run has ``new`` tokens per row."""
        self.bar.update(len(new[0]))
        self._stop_if_asked()

    def ask(self, number: int, _: object) -> None:
        """Signal handler: with a finished repeat the first signal stops at the next token, else at once."""
        if self.asked or self.done <= self.warmup:
            raise KeyboardInterrupt(number)
        self.asked = number

    def _stop_if_asked(self) -> None:
        if self.asked:
            raise Stopped


@contextlib.contextmanager
def watching(warmup: int, tokens_a_run: int) -> Iterator[Watch]:
    """A `Watch` that Ctrl-C, SIGTERM and SIGHUP ask to stop, for the length of a ``with`` block."""
    watch = Watch(warmup, tokens_a_run)
    with stop_signals(watch.ask):
        try:
            yield watch
        finally:
            if watch.bar is not None:
                watch.bar.close()
