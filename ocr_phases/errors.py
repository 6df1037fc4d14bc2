"""The package's exceptions; every message is one sentence with the remedy."""

from __future__ import annotations


class OcrPhasesError(Exception):
    """Bad input or an unusable environment; the command line prints it and exits with code 2."""


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
