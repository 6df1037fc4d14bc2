"""What a command hands to the notebook that it runs, besides its parameters.

Parameters are text in a cell. A record that was just measured, or one that is already in memory, is
neither written nor read again: the command puts it into a `LiveObjects`, and a cell of the notebook
asks for it by `live_objects`. In JupyterLab, where no command runs the notebook, there are none.
"""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

    from ocr_phases.analyse.swept_records import SweptRecords
    from ocr_phases.record import Record


@dataclass(frozen=True, kw_only=True)
class LiveObjects:
    """The objects of a running notebook; each is None or empty where the command has none.

    Attributes
    ----------
    run : Record, optional
        What ``page_report`` and ``verify`` show instead of measuring.
    references : pandas.DataFrame, optional
        The source lines of the measured code, for ``verify``.
    runs : sequence of Record, optional
        What ``compare_runs`` compares, the baseline first.
    sweep : SweptRecords, optional
        What ``sweep_report`` shows.
    parameters : collection of str
        The names of the parameters that papermill was given.
    """

    run: Record | None = None
    references: pd.DataFrame | None = None
    runs: Sequence[Record] | None = None
    sweep: SweptRecords | None = None
    parameters: Collection[str] = ()


_OBJECTS: ContextVar[LiveObjects] = ContextVar("live_objects")


def live_objects() -> LiveObjects:
    """What the command that runs this notebook handed to it; nothing where no command runs it.

    Examples
    --------
    >>> live_objects().run is None
    True
    """
    return _OBJECTS.get(LiveObjects())


@contextlib.contextmanager
def handed_over(objects: LiveObjects) -> Iterator[None]:
    """Hand these objects to the notebook that runs in the ``with`` block."""
    before = _OBJECTS.set(objects)
    try:
        yield
    finally:
        _OBJECTS.reset(before)
