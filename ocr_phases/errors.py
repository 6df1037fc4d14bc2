"""The package's exceptions; every message is one sentence with the remedy."""

from __future__ import annotations

import os
import traceback
from typing import Any


class OcrPhasesError(Exception):
    """Bad input or an unusable environment; the command line prints it and exits with code 2.

    A notebook's cell shows the sentence alone. ``%tb`` shows the traceback, and the environment variable
    ``OCR_PHASES_TRACEBACK`` shows it at once.
    """

    _shown = False

    def _render_traceback_(self) -> list[str]:
        """The lines that IPython shows."""
        again, self._shown = self._shown, True
        if again or os.environ.get("OCR_PHASES_TRACEBACK"):
            return "".join(traceback.format_exception(self)).splitlines()
        return [f"{type(self).__name__}: {self}"]


class WrongCall(OcrPhasesError, TypeError):
    """A call with arguments that it does not take, or of a wrong type."""


class UnknownAttribute(OcrPhasesError, AttributeError):
    """A name that an object does not have."""


class UnknownName(OcrPhasesError, KeyError):
    """A key that a record does not have."""

    __str__ = Exception.__str__  # KeyError's own is a repr


class OutOfMemory(OcrPhasesError):
    """The device has too little memory for the request."""


class CannotWrite(OcrPhasesError):
    """A file or folder for results cannot be written."""


class NotebookFailed(OcrPhasesError):
    """A notebook was not run to its end.

    ``ename`` and ``evalue`` are the type and the text of what ended it: the error of a cell, or
    ``DeadKernelError``.
    """

    def __init__(self, message: str, ename: str, evalue: str) -> None:
        super().__init__(message)
        self.ename = ename
        self.evalue = evalue


class Stopped(Exception):
    """Raised by a callback of a measurement to end it; not an error.

    `run_inference` keeps the repeats that were finished, and passes it on where there is none.
    """


class Interrupted(KeyboardInterrupt):
    """An interrupted `run_inference`; a cell shows one sentence.

    ``run`` is the record of the finished repeats, as in ``session.last_run``, or None. ``number`` is the
    signal's.
    """

    def __init__(self, run: Any, number: int) -> None:
        super().__init__(number)
        self.run = run
        self.number = number

    def __str__(self) -> str:
        if self.run is None:
            return "Interrupted before a repeat was finished: there is no record."
        return f"Interrupted: session.last_run has the finished repeats ({len(self.run.repeats)})."

    def _render_traceback_(self) -> list[str]:
        return [str(self)]
