"""Checks as a record keeps them, and those of any measurement's repeats.

Needs no torch: a server's measurement is checked here, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ocr_phases.errors import OcrPhasesError
from ocr_phases.record.parts import CheckPart
from ocr_phases.text import count_text

#: Characters that a sentence keeps of an error which is not the package's.
_ERROR_LENGTH = 300


def check_that(holds: bool, name: str, measured: str, otherwise: str = "") -> CheckPart:
    """A check that passes where something ``holds``, else it fails.

    ``measured`` says what was seen, ``otherwise`` what was seen where the check fails.
    """
    if holds:
        return CheckPart(name=name, verdict="pass", measured=measured)
    return CheckPart(name=name, verdict="fail", measured=otherwise or measured)


def passing_check(name: str, measured: str) -> CheckPart:
    """A check that passes."""
    return CheckPart(name=name, verdict="pass", measured=measured)


def failing_check(name: str, measured: str) -> CheckPart:
    """A check that fails."""
    return CheckPart(name=name, verdict="fail", measured=measured)


def note_check(name: str, measured: str) -> CheckPart:
    """A check that neither passes nor fails: something that a reader should know."""
    return CheckPart(name=name, verdict="note", measured=measured)


def unknown_check(name: str, reason: str) -> CheckPart:
    """A check that could not be made, and why."""
    return CheckPart(name=name, verdict="n/a", measured=reason)


def repeat_checks(ids: Sequence[Any], asked: int, missing: str = "") -> Iterator[CheckPart]:
    """Whether the repeats' ``ids`` are equal, and where a stop left something out, what.

    ``asked`` is the number of repeats that were asked for, ``missing`` says in words what else was
    left out.
    """
    count = count_text(len(ids), "repeat")
    equal = all(each == ids[0] for each in ids)
    yield check_that(equal, "repeats_agree", f"{count}, equal tokens", f"{count}, different tokens")
    if len(ids) < asked or missing:
        yield note_check("interrupted", f"{len(ids)} of {count_text(asked, 'repeat')}{missing}")


def one_sentence(error: Exception) -> str:
    """Why something could not be measured, as one line.

    An error that is not the package's says its kind.
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[0] if lines else "no message"
    if isinstance(error, OcrPhasesError):
        return text
    return f"{type(error).__name__}: {text[:_ERROR_LENGTH]}"
