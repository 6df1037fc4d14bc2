"""What a drawn page is: its image, and the regions and lines that stand on it."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image

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


def to_box(pixels: tuple[float, float, float, float], width: int, height: int) -> Box:
    """Pixels of a page of this size as a box in 0..999, rounded outwards so that the ink stays inside."""
    x1, y1, x2, y2 = pixels
    return (
        max(0, math.floor(x1 * BOX_MAX / width)),
        max(0, math.floor(y1 * BOX_MAX / height)),
        min(BOX_MAX, math.ceil(x2 * BOX_MAX / width)),
        min(BOX_MAX, math.ceil(y2 * BOX_MAX / height)),
    )
