"""Draws pages with their truth, from seeds, for the figures of docs/quality.md.

``python -m benchmarks.random_pages.quality FOLDER``, then ``ocr-phases batch FOLDER --truth FOLDER
--presets ...``.
"""

from __future__ import annotations

import json
import math
import random
import sys
from pathlib import Path
from typing import Any

from benchmarks.random_pages.faces import matplotlib_families
from benchmarks.random_pages.page import KINDS, PageSettings, random_page

#: A square of a view, A4 at 120 and at 150 dots an inch.
SIZES = ((1024, 1024), (992, 1403), (1240, 1754))
LETTERS = (80, 2_000)
TYPE = (16.0, 34.0)  # pixels on a page of 1024


def draw(folder: Path, pages: int, seed: int) -> None:
    """``pages`` PNG files with a page JSON each: each kind of page, few letters to many, any
    type.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(pages):
        rng = random.Random(f"quality {seed} {number}")
        kind = KINDS[number % len(KINDS)]
        width, height = rng.choice(SIZES)
        smallest = rng.uniform(*TYPE) * width / SIZES[0][0]
        settings = PageSettings(
            width=width,
            height=height,
            type_px=(smallest, 1.15 * smallest),
            max_characters=round(math.exp(rng.uniform(*map(math.log, LETTERS)))),
            fonts=tuple(matplotlib_families()),
            kinds=(kind,),
        )
        page = random_page(rng, settings)
        name = folder / f"{kind}-{number:03}"
        page.image.save(name.with_suffix(".png"), optimize=True)
        truth: dict[str, Any] = {
            "kind": kind,
            "size": page.image.size,
            "regions": [{"label": r.label, "box": r.box, "text": r.text} for r in page.regions],
        }
        name.with_suffix(".json").write_text(
            json.dumps(truth, ensure_ascii=False), encoding="utf-8"
        )


if __name__ == "__main__":
    draw(Path(sys.argv[1]), 200, seed=1)
