"""Draws synthetic pages whose ground truth is known: samples, training, tests, sweeps over complexity.

``python -m ocr_phases.synth OUT_DIR`` writes the sample pages of ``data/pages``, each as ``NAME.png`` and
``NAME.json``. `random_page` draws endlessly many others, `degrade` makes them look scanned or photographed.
Nothing is fetched: at run time the type is what matplotlib carries; `ocr_phases.synth.fonts` collects more on
a Debian machine.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from ocr_phases.files import output_folder
from ocr_phases.synth.canvas import MONO, PAPER, STYLES, Canvas, load_font, wrap
from ocr_phases.synth.effects import degrade
from ocr_phases.synth.fonts import (
    CHARACTERS,
    DEBIAN_PACKAGES,
    FontFamily,
    debian_families,
    matplotlib_families,
)
from ocr_phases.synth.page import BOX_MAX, Letters, Region, SynthPage, renderer, truth_bytes, write_page
from ocr_phases.synth.random_pages import KINDS, PageSettings, random_page
from ocr_phases.synth.samples import SAMPLES, bars, draw_page

__all__ = [
    "BOX_MAX",
    "CHARACTERS",
    "DEBIAN_PACKAGES",
    "KINDS",
    "MONO",
    "PAPER",
    "SAMPLES",
    "STYLES",
    "Canvas",
    "FontFamily",
    "Letters",
    "PageSettings",
    "Region",
    "SynthPage",
    "bars",
    "debian_families",
    "degrade",
    "draw_page",
    "load_font",
    "matplotlib_families",
    "random_page",
    "renderer",
    "truth_bytes",
    "wrap",
    "write_page",
]


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the sample pages into a folder."""
    parser = argparse.ArgumentParser(prog="python -m ocr_phases.synth", description=main.__doc__)
    parser.add_argument("folder", metavar="OUT_DIR", help="created where it is missing")
    folder = output_folder(parser.parse_args(arguments).folder)
    for name in SAMPLES:
        write_page(draw_page(name), folder, name)
