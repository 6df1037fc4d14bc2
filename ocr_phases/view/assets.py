"""The scripts and the style sheet of the linked view, which a browser gets as text."""

from __future__ import annotations

from functools import cache
from importlib import resources


@cache
def view_file(name: str) -> str:
    """The text of a file of this folder, such as ``view.js``."""
    return (resources.files("ocr_phases.view") / name).read_text(encoding="utf-8")
