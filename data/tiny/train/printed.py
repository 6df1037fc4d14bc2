"""Pages that a browser laid out (`browser.py`), drawn by pdfium at the size that a bucket wants."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from ocr_phases.families import Preset
from synth.page import Letters, Region, SynthPage, to_box

_TRIES = 40
_POINT = 0.75  # a CSS pixel in PDF's points
_MOST_SQUEEZED = 1.7
_LARGEST = 4.0  # type, in the smallest sizes


@dataclass(frozen=True, eq=False)
class Line:
    """One line of a region: its text, box, and where its letters stand, CSS pixels."""

    text: str
    size: float
    box: tuple[float, float, float, float]
    middles: np.ndarray


@dataclass(frozen=True, eq=False)
class PrintedPage:
    """A page of a PDF file, and its regions as (label, box, text, lines) in CSS pixels."""

    file: Path
    number: int
    width: float
    height: float
    body: float
    regions: tuple[tuple[str, tuple[float, ...], str, tuple[Line, ...]], ...]

    @property
    def letters(self) -> int:
        """Of its text, tags counted too."""
        return sum(len(text) for _, _, text, _ in self.regions)


def load_printed(folder: Path | None) -> tuple[PrintedPage, ...]:
    """The pages of a folder that have anything on them."""
    if folder is None:
        return ()
    pages = []
    for path in sorted(folder.glob("*.json.gz")):
        file = path.with_name(path.name.replace(".json.gz", ".pdf"))
        with gzip.open(path, "rt", encoding="utf-8") as source:
            for number, row in enumerate(json.load(source)):
                regions = tuple(_region(region) for region in row["regions"])
                if regions:
                    pages.append(PrintedPage(file, number, row["width"], row["height"], row["body"], regions))
    return tuple(pages)


def _region(row: dict[str, Any]) -> tuple[str, tuple[float, ...], str, tuple[Line, ...]]:
    lines = []
    for line in row["lines"]:
        across = np.cumsum(line["middles"], dtype=float)
        middles = np.column_stack((across, np.full(len(across), line["y"])))
        lines.append(Line(line["text"], line["size"], tuple(line["box"]), middles))
    return row["label"], tuple(row["box"]), row["text"], tuple(lines)


@lru_cache(maxsize=64)
def _open(file: Path) -> Any:
    import pypdfium2  # type: ignore[import-untyped]

    return pypdfium2.PdfDocument(file)


def cut(page: PrintedPage, rng: random.Random) -> tuple[float, float]:
    """Top and bottom of a part of the page whose edges run through no region, CSS pixels."""
    edges = sorted({0.0, page.height, *(box[1] - 4 for _, box, _, _ in page.regions)})
    free = [y for y in edges if not any(box[1] < y < box[3] for _, box, _, _ in page.regions)]
    top, bottom = sorted(rng.sample(free, 2)) if len(free) > 2 else (0.0, page.height)
    if any(top <= box[1] and box[3] <= bottom for _, box, _, _ in page.regions):
        return max(0.0, top), bottom
    return 0.0, page.height


def printed_page(
    rng: random.Random, pages: Sequence[PrintedPage], preset: Preset, grid: tuple[int, int], least_px: float,
    letters: int,
) -> SynthPage | None:  # fmt: skip
    """One of the pages, or a part of one, for the preset's views; None where none was found that fits.

    Its type is ``least_px`` and more in the view, its text about ``letters`` at most.
    """
    side = preset.image_size if preset.crops else preset.base_size
    for _ in range(_TRIES):
        page = rng.choice(pages)
        whole = bool(preset.crops) or rng.random() < 0.4
        top, bottom = (0.0, page.height) if whole else cut(page, rng)
        width, height = page.width, bottom - top
        if preset.squeezes and not 1 / _MOST_SQUEEZED < width / height < _MOST_SQUEEZED:
            continue
        if preset.crops:
            view = min(grid[0] * side / width, grid[1] * side / height)
            scale = view * rng.uniform(0.7, 1.15)
            if preset.grid(round(width * scale), round(height * scale)) != grid:
                continue
        else:
            view = side / ((width * height) ** 0.5 if preset.squeezes else max(width, height))
            scale = side / max(width, height) * rng.uniform(0.85, 1.7)
        kept = [region for region in page.regions if top <= region[1][1] and region[1][3] <= bottom]
        said = sum(len(text) for _, _, text, _ in kept)
        if least_px <= page.body * view <= _LARGEST * least_px and said <= letters:
            drawn = _drawn(page, kept, (top, bottom), scale)
            # pdfium rounds a size its own way, and a pixel more may want another grid.
            if not preset.crops or preset.grid(*drawn.image.size) == grid:
                return drawn
    return None


def _drawn(page: PrintedPage, regions: Sequence[Any], part: tuple[float, float], scale: float) -> SynthPage:
    top, bottom = part
    trims = (0, (page.height - bottom) * _POINT, 0, top * _POINT)  # left, bottom, right, top
    bitmap = _open(page.file)[page.number].render(scale=scale / _POINT, crop=trims)
    image = bitmap.to_pil().convert("RGB")
    size = page.width, bottom - top

    def box(pixels: Sequence[float]) -> tuple[int, int, int, int]:
        return to_box((pixels[0], pixels[1] - top, pixels[2], pixels[3] - top), *size)

    found, lines, letters = [], [], []
    for label, pixels, text, its in regions:
        found.append(Region(label, box(pixels), text))
        lines += [Region(label, box(line.box), line.text.strip()) for line in its]
        letters += [
            Letters(
                line.text[: len(line.middles)], round(line.size * scale), (line.middles - (0, top)) * scale
            )
            for line in its
        ]
    return SynthPage(image, tuple(found), tuple(lines), (), tuple(letters))
