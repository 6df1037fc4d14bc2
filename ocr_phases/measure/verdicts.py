"""A check as a record keeps it, and the checks of any measurement's repeats; no torch is needed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from ocr_phases.text import count_text

LiveCheck = dict[str, str]  # its name, verdict, and what was measured


def check(name: str, verdict: bool | str, measured: str, broken: str = "") -> LiveCheck:
    """A check as the record keeps it; where ``verdict`` is False, ``broken`` is what was measured."""
    if isinstance(verdict, bool):
        verdict, measured = ("pass", measured) if verdict else ("fail", broken or measured)
    return {"name": name, "verdict": verdict, "measured": measured}


def repeat_checks(ids: Sequence[Any], asked: int, without: str = "") -> Iterator[LiveCheck]:
    """Whether the repeats' ``ids`` are equal, and where there are fewer than ``asked`` for, how
    many.

    ``without`` are words on what else a stop left out.
    """
    same, count = all(each == ids[0] for each in ids), count_text(len(ids), "repeat")
    yield check("repeats_agree", same, f"{count}, {'equal' if same else 'different'} tokens")
    if len(ids) < asked or without:
        yield check("interrupted", "note", f"{len(ids)} of {count_text(asked, 'repeat')}{without}")
