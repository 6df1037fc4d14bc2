"""Draws random pages whose ground truth is known, for training, evaluation, tests and benchmarks.

`random_page` draws them, `degrade` makes them look scanned or photographed. Nothing is fetched: at run time
the type is what matplotlib carries; `synth.fonts` collects more on a Debian machine.
"""

from __future__ import annotations

from synth.effects import degrade
from synth.fonts import (
    CHARACTERS,
    DEBIAN_PACKAGES,
    FontFamily,
    debian_families,
    matplotlib_families,
)
from synth.page import BOX_MAX, Letters, Region, SynthPage
from synth.random_pages import KINDS, PageSettings, random_page

__all__ = [
    "BOX_MAX",
    "CHARACTERS",
    "DEBIAN_PACKAGES",
    "KINDS",
    "FontFamily",
    "Letters",
    "PageSettings",
    "Region",
    "SynthPage",
    "debian_families",
    "degrade",
    "matplotlib_families",
    "random_page",
]
