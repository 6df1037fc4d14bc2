"""Where the tokens of two records part."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ocr_phases.record import PhaseRun
from ocr_phases.text import first_difference


def first_other_token(base: PhaseRun, other: PhaseRun) -> str:
    """Where the tokens of two records first differ: ``number 17: 'cat' here, 'dog' in the baseline``.

    Tokens and rows are counted from 1; a token without a text is named by its id. Empty where all
    rows that both have are equal.
    """
    for row, (left, right) in enumerate(zip(base.results, other.results, strict=False)):
        place = first_difference(left["ids"], right["ids"])
        if place is not None:
            where = f"number {place + 1}" + (f" of row {row + 1}" if len(base.results) > 1 else "")
            return f"{where}: {_token_text(right, place)} here, {_token_text(left, place)} in the baseline"
    return ""


def _token_text(result: Mapping[str, Any], place: int) -> str:
    if place >= len(result["ids"]):
        return "the end"
    # As a literal: a token may be a line break, or a control character.
    return repr(result["token_texts"][place] or result["ids"][place])
