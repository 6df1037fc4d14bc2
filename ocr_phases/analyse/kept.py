"""What follows from a record is worked out once: a report asks for the same tables many times."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

import pandas as pd

if TYPE_CHECKING:
    from ocr_phases.record import PhaseRun

_Given = ParamSpec("_Given")
_Made = TypeVar("_Made")


def kept(
    make: Callable[Concatenate[PhaseRun, _Given], _Made],
) -> Callable[Concatenate[PhaseRun, _Given], _Made]:
    """Keep what ``make(run, ...)`` gives with the record, which never changes; each caller has a copy."""

    @wraps(make)
    def known(run: PhaseRun, *args: _Given.args, **named: _Given.kwargs) -> _Made:
        store = run.__dict__.setdefault("_kept", {})
        key = (make, args, *sorted(named.items()))
        if key not in store:
            store[key] = make(run, *args, **named)
        found = store[key]
        changeable: bool = isinstance(found, (pd.DataFrame, list, dict))
        return copy.copy(found) if changeable else found

    return known
