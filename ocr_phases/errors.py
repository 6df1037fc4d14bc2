"""The package's own exception: every message is one sentence that says what to do."""

from __future__ import annotations


class OcrPhasesError(Exception):
    """Bad input or an unusable environment; the command line prints it and exits with code 2."""


class Stopped(Exception):
    """Raised by a callback of a measurement to end it; not an error.

    `run_inference` keeps the repeats that were finished, and passes it on where there is none.
    """
