"""What a class of transformers, or the code around it, raises, told in one sentence.

Such code was written by many people, and raises whatever it likes where something does not suit it:
each call of it that depends on a checkpoint's files stands inside `class_errors_told`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from textwrap import shorten

import torch

from ocr_phases.errors import OcrPhasesError, Stopped

#: Characters that a sentence keeps of a foreign error.
_LONGEST_REASON = 200
#: What says something else than that a class does not suit: it goes on as it is.
_OTHER_NEWS = (OcrPhasesError, Stopped, MemoryError, torch.OutOfMemoryError)


@contextmanager
def class_errors_told(finding: str, remedy: str) -> Iterator[None]:
    """Raise any error of a ``with`` block as an `OcrPhasesError`: finding, reason and remedy.

    Parameters
    ----------
    finding : str
        What cannot be done, without a stop at its end.
    remedy : str
        What the reader can do instead, without a stop at its end.

    Raises
    ------
    OcrPhasesError
        For every error, except for one of this package's own and for a lack of memory, which go on
        as they are.
    """
    try:
        yield
    except _OTHER_NEWS:
        raise
    except Exception as error:
        raise OcrPhasesError(f"{finding} ({error_text(error)}): {remedy}.") from error


def error_text(error: Exception) -> str:
    """A foreign error on one line: its message, or its kind where it has none."""
    words = " ".join(str(error).split())
    return shorten(words, _LONGEST_REASON, placeholder=" …") or type(error).__name__
