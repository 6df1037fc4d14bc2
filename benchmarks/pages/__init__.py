"""Draws random pages whose truth is known, for benchmarks and tests, in the type that matplotlib carries.

The built-in model learned from pages of its larger forerunner: see data/tiny/README.md.
"""

from __future__ import annotations

from benchmarks.pages.faces import CHARACTERS, FontFamily, family_characters, matplotlib_families
from benchmarks.pages.random_pages import KINDS, PageSettings, random_page
from benchmarks.pages.sheet import BOX_MAX, Region, SynthPage

__all__ = [
    "BOX_MAX",
    "CHARACTERS",
    "KINDS",
    "FontFamily",
    "PageSettings",
    "Region",
    "SynthPage",
    "family_characters",
    "matplotlib_families",
    "random_page",
]
