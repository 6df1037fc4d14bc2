"""Records that a command has read, for the notebook that it runs: a long one takes seconds to read."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from contextvars import ContextVar

from ocr_phases.record import PhaseRun

_HANDED: ContextVar[Mapping[str, PhaseRun] | None] = ContextVar("handed", default=None)


@contextlib.contextmanager
def handing(runs: Mapping[str, PhaseRun]) -> Iterator[None]:
    """For the length of a ``with`` block, `open_record` has these records, by path."""
    token = _HANDED.set(runs)
    try:
        yield
    finally:
        _HANDED.reset(token)


def open_record(path: str) -> PhaseRun:
    """The record that the command has read from ``path``, or `PhaseRun.load` of it."""
    return (_HANDED.get() or {}).get(path) or PhaseRun.load(path)
