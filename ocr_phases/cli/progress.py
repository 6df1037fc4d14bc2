"""Progress of a measurement on stderr; Ctrl-C ends it and keeps the finished repeats."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from typing import Any

from ocr_phases.errors import Stopped, signals_to

_SILENT_S = 10.0


class Watch:
    """Shows runs and tokens of one measurement: a bar on a terminal, else a line per finished run.

    `progress` and `on_tokens` are `run_inference`'s callbacks. A signal to stop (`watching`) makes them raise
    `Stopped`; ``asked`` is then its number.
    """

    def __init__(self, warmup: int, tokens_a_run: int) -> None:
        self.warmup, self.tokens_a_run = warmup, tokens_a_run
        self.done = self.tokens = 0
        self.asked = 0
        self.began = self.told = time.monotonic()
        self.first: float | None = None  # when the first token of the run came
        self.total = 0
        self.bar: Any = None

    def progress(self, done: int, total: int) -> None:
        """``done`` of ``total`` runs, warm-up included, are finished."""
        self.show(done, total, 0)
        self._stop_if_asked()

    def on_tokens(self, repeat: int, new: list[list[int]]) -> None:
        """The current run has ``new`` tokens per row."""
        self.tokens += len(new[0])
        if self.bar is not None:
            self.bar.update(len(new[0]))
            if self.bar.disable:
                self._tell_the_rest()
        self._stop_if_asked()

    def show(self, done: int, total: int, tokens: int) -> None:
        """``done`` of ``total`` runs are finished, and ``tokens`` tokens of the next one."""
        from tqdm import tqdm

        if self.bar is None:
            self.bar = tqdm(total=total * self.tokens_a_run, unit="token", disable=None, leave=False)
        finished = self._name(done, total) if done > self.done else None
        # Before it is said: who reads the line may press Ctrl-C at once.
        self.done, self.total, self.tokens, self.first = done, total, tokens, None
        if finished is not None:
            took, self.began = time.monotonic() - self.began, time.monotonic()
            if self.bar.disable:
                print(f"{finished} done in {took:.1f} s", file=sys.stderr, flush=True)
        self.bar.n = done * self.tokens_a_run + tokens
        self.bar.set_postfix_str(f"{done} of {total} runs done")

    def _tell_the_rest(self) -> None:
        """A line now and then in a slow run, where no bar tells."""
        now = time.monotonic()
        if self.first is None:
            self.first, self.told = now, now
        elif now - self.told > _SILENT_S:
            self.told = now
            left = (now - self.first) / (self.tokens - 1) * (self.tokens_a_run - self.tokens)
            run = self._name(self.done + 1, self.total)
            print(
                f"{run}: {self.tokens} of at most {self.tokens_a_run} tokens, {left:,.0f} s left at most",
                file=sys.stderr,
                flush=True,
            )

    def _name(self, done: int, total: int) -> str:
        if done <= self.warmup:
            return f"Warm-up {done} of {self.warmup}"
        return f"Repeat {done - self.warmup} of {total - self.warmup}"

    def ask(self, number: int, _: object) -> None:
        """Signal handler: with a finished repeat the first signal stops at the next token, else at once."""
        if self.asked or self.done <= self.warmup:
            raise KeyboardInterrupt(number)
        self.asked = number

    def _stop_if_asked(self) -> None:
        if self.asked:
            raise Stopped

    def close(self) -> None:
        """Remove the bar."""
        if self.bar is not None:
            self.bar.close()


@contextlib.contextmanager
def watching(warmup: int, tokens_a_run: int) -> Iterator[Watch]:
    """A `Watch` that Ctrl-C, SIGTERM and SIGHUP ask to stop, for the length of a ``with`` block."""
    watch = Watch(warmup, tokens_a_run)
    with signals_to(watch.ask):
        try:
            yield watch
        finally:
            watch.close()
