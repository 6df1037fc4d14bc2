"""How often Python looks for garbage."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

_NEW_OBJECTS = 50_000  # some 10 MB of them; Python's own is 700


@contextlib.contextmanager
def seldom_collected() -> Iterator[None]:
    """For the length of a ``with`` block, look less often: tables and figures are many objects, little garbage.

    That takes a tenth of a report's time otherwise.
    """
    before = gc.get_threshold()
    gc.set_threshold(_NEW_OBJECTS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
