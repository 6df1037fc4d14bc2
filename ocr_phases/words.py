"""Numbers with their nouns."""

from __future__ import annotations


def count_text(number: int, noun: str) -> str:
    """``"1 page"``, ``"2,000 pages"``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
