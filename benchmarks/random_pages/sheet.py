"""A page and what stands on it; in the making, a column on which blocks are set one below the
other.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from PIL import Image, ImageDraw

from benchmarks.random_pages.faces import Face, FontFamily, load_face
from benchmarks.random_pages.words import Words

#: Largest coordinate of a box in the model's output.
BOX_MAX = 999

Box = tuple[int, int, int, int]
#: Left, top, right, bottom in pixels; right and bottom are just outside.
Pixels = tuple[int, int, int, int]


@dataclass(frozen=True)
class Region:
    """One block: DeepSeek-OCR's label, box (x1, y1, x2, y2) in 0..999 of the page, text as it is
    written.
    """

    label: str
    box: Box
    text: str


@dataclass(frozen=True, eq=False)
class SynthPage:
    """A drawn page and what stands on it."""

    image: Image.Image
    """RGB."""
    regions: tuple[Region, ...]
    """The blocks in reading order."""


def to_box(pixels: tuple[float, float, float, float], width: int, height: int) -> Box:
    """Pixels of a page of this size as a box in 0..999, rounded outwards so that the ink stays
    inside.
    """
    x1, y1, x2, y2 = pixels
    return (
        max(0, math.floor(x1 * BOX_MAX / width)),
        max(0, math.floor(y1 * BOX_MAX / height)),
        min(BOX_MAX, math.ceil(x2 * BOX_MAX / width)),
        min(BOX_MAX, math.ceil(y2 * BOX_MAX / height)),
    )


Colour = tuple[int, int, int]


@dataclass(frozen=True)
class Look:
    """What the blocks of one page share."""

    body: FontFamily
    display: FontFamily
    size: int
    """Body type, pixels."""
    leading: float
    """Baseline to baseline, in type sizes."""
    gap: float
    """Between blocks, in type sizes."""
    paper: Colour
    ink: Colour
    accent: Colour
    """Of titles and rules."""
    panel: Colour
    """Behind text that is set off, and in pictures."""
    smallest: int
    """No type is smaller, pixels."""
    heading: float = 1.15
    """Section headings, in body sizes."""


@dataclass(frozen=True)
class Setting:
    """How one block of text is set; lengths in pixels."""

    face: Face
    colour: Colour
    leading: int
    align: str = "left"
    """left, centre or right."""


class Sheet:
    """A page that is filled from the top; lengths are pixels.

    Methods that draw return False, and draw nothing, where there is no room left on the page or in
    its ``budget`` of characters. What they draw stays between ``y`` and ``bottom``, and ``y`` moves
    below it.
    """

    def __init__(
        self, rng: random.Random, words: Words, look: Look, size: tuple[int, int], budget: int
    ) -> None:
        self.rng, self.words, self.look, self.budget = rng, words, look, budget
        self.image = Image.new("RGB", size, look.paper)
        self.draw = ImageDraw.Draw(self.image)
        self.regions: list[Region] = []
        self.left, self.right, self.y, self.bottom = 0, size[0], 0, size[1]

    @property
    def width(self) -> int:
        """Of the column."""
        return self.right - self.left

    @property
    def room(self) -> int:
        """Height that is left in the column."""
        return self.bottom - self.y

    def page(self) -> SynthPage:
        """What has been drawn so far."""
        return SynthPage(self.image, tuple(self.regions))

    def face(self, style: str = "regular", scale: float = 1.0, *, display: bool = False) -> Face:
        """The page's type in a style (regular, bold, italic; regular where the family lacks it) and
        size.
        """
        family = self.look.display if display else self.look.body
        path = {"bold": family.bold, "italic": family.italic}.get(style) or family.regular
        return load_face(
            path, max(self.look.smallest, min(round(self.look.size * scale), self.image.width // 9))
        )

    def skip(self, gap: float = 1.0) -> None:
        """Leave ``gap`` times the page's distance between blocks free."""
        self.y += max(4, round(self.look.size * self.look.gap * gap))

    def fill(self, face: Face, lines: int, *, width: float = 0, words: int = 10**6) -> list[str]:
        """At most ``lines`` lines of random text that are no wider than ``width`` (else the
        column).
        """
        room = (width or self.width) - 2
        space, used = face.width(" "), 0
        filled: list[str] = []
        line: list[str] = []
        length = 0.0
        spent = 0
        while used < words and spent < self.budget:
            word = self.words.token(start=not filled and not line)
            wide = face.width(word)
            if line and length + space + wide > room:
                filled.append(" ".join(line))
                if len(filled) >= lines:
                    line = []
                    break
                line, length = [], 0.0
            while wide + length > room and len(word) > 1 and not line:
                word = word[:-1]
                wide = face.width(word)
            if not line and wide + length > room:
                break
            length += wide + (space if line else 0)
            line.append(word)
            spent += len(word) + 1
            used += 1
        if line:
            filled.append(" ".join(line))
        return filled

    def wrap(self, text: str, face: Face, lines: int) -> list[str]:
        """``text`` broken at spaces into at most ``lines`` lines of the column; the rest is left
        out.
        """
        broken: list[str] = []
        line = ""
        for word in text.split(" "):
            longer = f"{line} {word}" if line else word
            if face.width(longer) <= self.width - 2:
                line = longer
                continue
            if line:
                broken.append(line)
            line = word
            while len(line) > 1 and face.width(line) > self.width - 2:
                line = line[:-1]
        return [*broken, line][:lines]

    @staticmethod
    def height(lines: Sequence[str], face: Face) -> int:
        """What the lines' letters need above the first baseline and below the last."""
        above = max(face.rise, -face.ink(lines[0])[1])
        return above + max(face.fall, face.ink(lines[-1])[3])

    def fits(self, rows: int, setting: Setting) -> bool:
        """Whether ``rows`` lines fit into what is left of the column."""
        face = setting.face
        return self.room >= face.rise + face.fall + (rows - 1) * setting.leading + face.size // 2

    def text(self, label: str, lines: Sequence[str], setting: Setting, *, prefix: str = "") -> bool:
        """Set lines of text as one region; those that have no room are left out."""
        while lines and not self.fits(len(lines), setting):
            lines = lines[:-1]
        if not lines:
            return False
        face = setting.face
        above = max(face.rise, -face.ink(lines[0])[1])
        starts = range(self.y + above, self.image.height, setting.leading)
        boxes = [self.line(*line, setting) for line in zip(lines, starts, strict=False)]
        self.record(label, enclose(boxes), prefix + "\n".join(lines))
        return True

    def line(self, text: str, baseline: int, setting: Setting) -> Pixels:
        """Draw one line in the column; its box."""
        ink = setting.face.ink(text)
        left = self.left - min(0, ink[0])
        if setting.align == "centre":
            left += (self.width - (ink[2] - ink[0])) // 2
        elif setting.align == "right":
            left = self.right - ink[2] - 1
        left = max(self.left, min(left, self.right - ink[2]))
        return self.ink(text, left, baseline, setting)

    def ink(self, text: str, x: int, baseline: int, setting: Setting) -> Pixels:
        """Draw ``text`` at a point; its box: the reach of the face's letters, or what reaches
        farther.
        """
        face = setting.face
        x1, y1, x2, y2 = face.ink(text)
        self.draw.text((x, baseline), text, fill=setting.colour, font=face.font, anchor="ls")
        rise, fall = max(face.rise, -y1), max(face.fall, y2)
        return x + x1, baseline - rise, x + x2, baseline + fall

    def record(self, label: str, box: Pixels, text: str) -> None:
        """Keep a region, count its text against the budget and move below it."""
        self.regions.append(Region(label, to_box(box, *self.image.size), text))
        self.budget -= len(text)
        self.y = max(self.y, box[3])


def enclose(boxes: Sequence[Pixels]) -> Pixels:
    """The smallest box around all of them."""
    lefts, tops, rights, bottoms = zip(*boxes, strict=True)
    return min(lefts), min(tops), max(rights), max(bottoms)
