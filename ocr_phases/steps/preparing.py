"""What is compiled or captured before a run: it is announced, and its time is taken.

That can take a minute or more, in which nothing else is to be seen. So each part is announced
before it is made, to whoever listens: a progress bar, the explorer. Who listens is kept in a
context variable, because what compiles lies far below what shows progress.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from time import perf_counter

import torch

from ocr_phases.errors import OcrPhasesError
from ocr_phases.models.devices import device_of

#: Gets what is made next, in words ("compiling SAM"). It may raise `Stopped`.
Listener = Callable[[str], None]


def _ignore(what: str) -> None:
    """The listener where nobody wants to know."""


_listener: ContextVar[Listener] = ContextVar("listener", default=_ignore)


def announce(what: str) -> None:
    """Say what is compiled or captured next; raises what the listener raises."""
    listener = _listener.get()
    listener(what)


@contextlib.contextmanager
def announcements_to(listener: Listener) -> Iterator[None]:
    """Give ``listener`` what is announced in a ``with`` block."""
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


@contextlib.contextmanager
def numbered_announcements(total: int | None) -> Iterator[None]:
    """Number what is announced in a ``with`` block: "compiling SAM (1 of 3)".

    Where some of it may be there already, ``total`` is None and only the number is said.
    """
    listener = _listener.get()
    numbers = itertools.count(1)
    of_total = "" if total is None else f" of {total}"

    def with_number(what: str) -> None:
        listener(f"{what} ({next(numbers)}{of_total})")

    with announcements_to(with_number):
        yield


@dataclass
class Preparation:
    """How long a preparation took, the device's work included; 0 until it has ended."""

    ms: float = 0.0


@contextlib.contextmanager
def timed_preparation(device: torch.device | str) -> Iterator[Preparation]:
    """Take the time of a ``with`` block, which compiles or captures something.

    Raises `OcrPhasesError` where the compiler fails in it.
    """
    waited_for = device_of(device)
    preparation = Preparation()
    waited_for.synchronize()
    start = perf_counter()
    try:
        yield preparation
    except torch._dynamo.exc.TorchDynamoException as error:
        lines = str(error).strip().splitlines()
        first = lines[0] if lines else type(error).__name__
        raise OcrPhasesError(f"torch.compile failed here ({first}): use 'eager'.") from error
    waited_for.synchronize()
    preparation.ms = (perf_counter() - start) * 1e3
