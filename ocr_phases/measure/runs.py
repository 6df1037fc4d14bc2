"""The runs of a measurement, and the record that they leave, however they end.

Needs no torch: a server's repeats are run here, too.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeVar

from tqdm import tqdm

from ocr_phases.errors import Interrupted, Stopped, signal_of, stop_signals
from ocr_phases.measure.progress import is_in_notebook
from ocr_phases.results.run import PhaseRun
from ocr_phases.settings import Request

#: Called with the number of a repeat, -1 for a warm-up, and the new ids of each row.
OnRunTokens = Callable[[int, list[list[int]]], object]
#: Called with the new ids of each row.
OnTokens = Callable[[list[list[int]]], None]
#: Called with the number of runs that are done, and of all runs.
OnProgress = Callable[[int, int], object]

_COUNTING_BAR = "{percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} [{elapsed}]"
_Item = TypeVar("_Item")


class Recordable(Protocol):
    """A measurement, of a loaded model or of a server.

    ``result`` is its record once it has ended, None where no repeat was finished.
    """

    result: PhaseRun | None

    def record(self) -> PhaseRun | None:
        """The record of the finished repeats; None where there is none."""


@contextlib.contextmanager
def recording(measurement: Recordable) -> Iterator[None]:
    """Set a measurement's ``result`` at the end of a ``with`` block, however the block ends.

    A `Stopped` that leaves the block only ends it, if a repeat was finished. Raises `Interrupted`,
    with the record, for a KeyboardInterrupt, and `Stopped` where no repeat was finished.
    """
    try:
        try:
            with contextlib.suppress(Stopped):
                yield
        finally:
            with stop_signals():  # they wait for the record
                measurement.result = measurement.record()
    except KeyboardInterrupt as interrupt:
        raise Interrupted(measurement.result, signal_of(interrupt)) from None
    if measurement.result is None:
        raise Stopped


def numbered_runs(request: Request, progress: OnProgress | None) -> Iterator[int]:
    """The number of each run: warm-ups below 0, then the repeats from 0.

    ``progress`` is called with the number of finished runs before each run and at the end; without
    it a notebook's cell shows a bar.
    """
    numbers = range(-request.warmup, request.repeats)
    if progress is None:
        yield from bar_in_cell(numbers, "run", len(numbers))
        return
    for done, number in enumerate(numbers):
        progress(done, len(numbers))
        yield number
    progress(len(numbers), len(numbers))


def tokens_of_run(on_tokens: OnRunTokens | None, number: int) -> OnTokens | None:
    """What is called with the new tokens of the run of this number; None for nobody."""
    if on_tokens is None:
        return None

    def tell(new_ids: list[list[int]]) -> None:
        on_tokens(max(number, -1), new_ids)

    return tell


def bar_in_cell(
    steps: Iterable[_Item], unit: str, total: int, *, alike: bool = True
) -> Iterable[_Item]:
    """``steps``, with a bar on one line of a notebook's cell while they go by.

    Outside of a notebook there is no bar, because a command has its own. Steps that are not
    ``alike`` differ in cost, so the bar counts them and estimates no end.
    """
    return tqdm(
        steps,
        total=total,
        unit=unit,
        bar_format=None if alike else _COUNTING_BAR,
        file=sys.stdout,
        disable=not is_in_notebook(),
    )
