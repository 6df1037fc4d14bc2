"""What a drawn page is: its image, and the regions and lines that stand on it."""

from __future__ import annotations

import io
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import PIL
from numpy.typing import NDArray
from PIL import Image, PngImagePlugin, features

from ocr_phases.files import write_atomic

#: Largest coordinate of a box in the model's output.
BOX_MAX = 999

Box = tuple[int, int, int, int]
#: Left, top, right, bottom in pixels; right and bottom are just outside.
Pixels = tuple[int, int, int, int]


@dataclass(frozen=True)
class Region:
    """One block: DeepSeek-OCR's label, box (x1, y1, x2, y2) in 0..999 of the page, text as it is written."""

    label: str
    box: Box
    text: str

    @property
    def markdown(self) -> str:
        """The block as the model writes it: reference, box, then the text on a line of its own."""
        head = f"<|ref|>{self.label}<|/ref|><|det|>[[{', '.join(map(str, self.box))}]]<|/det|>"
        return f"{head}\n{self.text}" if self.text else head


@dataclass(frozen=True, eq=False)
class Letters:
    """A piece of text that was drawn in one go.

    size: of its type as it was set, pixels. middles: [n, 2], x and y of each character's middle, pixels.
    """

    text: str
    size: int
    middles: NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class SynthPage:
    """A drawn page and what stands on it."""

    image: Image.Image
    """RGB."""
    regions: tuple[Region, ...]
    """The blocks in reading order."""
    lines: tuple[Region, ...] = ()
    """One region a drawn line of text, a table's cells one by one; in reading order. Words in a picture are
    part of the picture."""
    decoration: tuple[Box, ...] = ()
    """Boxes, in 0..999, of what is drawn and belongs to no region: rules, bands, panels behind text."""
    letters: tuple[Letters, ...] = ()
    """Where the letters of the regions' text stand; of random pages only."""

    @property
    def markdown(self) -> str:
        """The whole page as a perfect reader would write it."""
        return "\n\n".join(region.markdown for region in self.regions)

    @property
    def free(self) -> str:
        """The page's text without boxes, blocks apart by a blank line."""
        return "\n\n".join(region.text for region in self.regions if region.text)

    def truth(self) -> dict[str, Any]:
        """Size in pixels (width, height), regions and Markdown, as they go into ``NAME.json``."""
        regions = [{"label": r.label, "box": list(r.box), "text": r.text} for r in self.regions]
        return {"size": list(self.image.size), "regions": regions, "markdown": self.markdown}


def to_box(pixels: tuple[float, float, float, float], width: int, height: int) -> Box:
    """Pixels of a page of this size as a box in 0..999, rounded outwards so that the ink stays inside."""
    x1, y1, x2, y2 = pixels
    return (
        max(0, math.floor(x1 * BOX_MAX / width)),
        max(0, math.floor(y1 * BOX_MAX / height)),
        min(BOX_MAX, math.ceil(x2 * BOX_MAX / width)),
        min(BOX_MAX, math.ceil(y2 * BOX_MAX / height)),
    )


def renderer() -> str:
    """What turns letters into pixels here; the same words draw the same pixels."""
    return f"Pillow {PIL.__version__}, FreeType {features.version('freetype2')}"


def write_page(page: SynthPage, folder: Path, name: str) -> None:
    """Write ``name``.png, which names its `renderer`, and ``name``.json, the truth, into ``folder``."""
    info = PngImagePlugin.PngInfo()
    info.add_text("Software", renderer())
    png = io.BytesIO()
    page.image.save(png, format="PNG", optimize=True, pnginfo=info)
    write_atomic(folder / f"{name}.png", png.getvalue())
    write_atomic(folder / f"{name}.json", truth_bytes(page))


def truth_bytes(page: SynthPage) -> bytes:
    """The contents of a page's truth file: UTF-8 JSON."""
    return (json.dumps(page.truth(), ensure_ascii=False, indent=1) + "\n").encode()
