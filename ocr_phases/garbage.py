"""How often Python looks for garbage."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

_NEW_OBJECTS = 50_000  # some 10 MB of them; Python's own is 700


@contextlib.contextmanager
def seldom_collected() -> Iterator[None]:
    """Look for it less often for the length of a ``with`` block.

    Tables, figures and torch's modules are many objects and little garbage: the search takes a tenth of a
    report's time, and of that in which torch is imported.
    """
    before = gc.get_threshold()
    gc.set_threshold(_NEW_OBJECTS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
