"""Signals that end a measurement: Ctrl-C, SIGTERM and the terminal's SIGHUP."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from typing import Any

_STOPPING = [number for number in signal.Signals if number.name in ("SIGINT", "SIGTERM", "SIGHUP")]


@contextlib.contextmanager
def signals_to(handler: Callable[[int, object], None]) -> Iterator[None]:
    """In a ``with`` block of the main thread, ``handler(number, frame)`` gets the signals that stop.

    One that is ignored (nohup) stays so. Other threads never get a signal, so nothing changes in them.
    """
    before = {}
    if threading.current_thread() is threading.main_thread():
        for number in _STOPPING:
            if signal.getsignal(number) not in (signal.SIG_IGN, None):  # None: not Python's
                before[number] = signal.signal(number, handler)
    try:
        yield
    finally:
        for number, handled in before.items():
            signal.signal(number, handled)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """A signal that stops waits until the end of a ``with`` block: nothing in it is left half done."""
    waiting: list[int] = []
    try:
        with signals_to(lambda number, _: waiting.append(number)):
            yield
    finally:
        for number in waiting[:1]:  # an impatient second one says nothing new
            signal.raise_signal(number)


class Interrupts:
    """In a ``with`` block of the main thread, Ctrl-C and a notebook's Interrupt call ``handler``.

    A kernel ignores Interrupt between two cells, and says so again at the end of each: `take` it back.
    While a cell runs, it is the cell that is interrupted.
    """

    def __init__(self, handler: Callable[[], None]) -> None:
        self._handler = handler
        self._before: Any = None

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._handle)
        return self

    def take(self) -> None:
        """Take over where the kernel has begun to ignore it."""
        if self._before is not None and signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
            self._before = signal.signal(signal.SIGINT, self._handle)

    def __exit__(self, *_: object) -> None:
        if self._before is not None and signal.getsignal(signal.SIGINT) == self._handle:
            signal.signal(signal.SIGINT, self._before)

    def _handle(self, number: int, frame: object) -> None:
        self._handler()
