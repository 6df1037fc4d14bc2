"""The canvas of the sample pages: blocks set below each other in units of 1/512 of a square page's side."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import matplotlib
from PIL import Image, ImageDraw, ImageFont

from ocr_phases.synth.page import Pixels, Region, SynthPage, to_box

#: Layout units along one side of a page.
UNITS = 512
#: How far DejaVu's letters reach above and below the baseline, in parts of the type size.
ASCENT, DESCENT = 0.76, 0.24

SANS, BOLD, SERIF, MONO = "DejaVuSans", "DejaVuSans-Bold", "DejaVuSerif", "DejaVuSansMono"
PAPER = (250, 250, 247)
INK = (38, 40, 46)
PANEL = (196, 205, 216)

#: Fills a panel: gets the drawing and the panel's corners in pixels.
Painter = Callable[[ImageDraw.ImageDraw, Pixels], None]


@dataclass(frozen=True)
class Style:
    """How a kind of text is set: font file stem, size in units, leading in sizes, Markdown prefix."""

    face: str
    size: float
    leading: float = 1.3
    prefix: str = ""


#: How each label's text is set; ``table`` is the setting of a cell.
STYLES = {
    "title": Style(BOLD, 26, 1.25, "# "),
    "sub_title": Style(BOLD, 19, 1.25, "## "),
    "text": Style(SANS, 17),
    "table": Style(SANS, 17, 1.6),
    "image_caption": Style(SANS, 16),
    "header": Style(SANS, 16),
    "footer": Style(SANS, 16),
}


@lru_cache(maxsize=64)
def load_font(face: str, pixels: int) -> ImageFont.FreeTypeFont:
    """A DejaVu font from matplotlib's data, with the layout engine that every Pillow has."""
    path = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / f"{face}.ttf"
    return ImageFont.truetype(str(path), pixels, layout_engine=ImageFont.Layout.BASIC)


def wrap(text: str, font: ImageFont.FreeTypeFont, width: float) -> list[str]:
    """Break ``text`` at spaces into lines of at most ``width`` pixels; a newline always breaks."""
    lines: list[str] = []
    for paragraph in text.split("\n"):
        line = ""
        for word in paragraph.split(" "):
            longer = f"{line} {word}" if line else word
            if line and font.getlength(longer) > width:
                lines.append(line)
                line = word
            else:
                line = longer
        lines.append(line)
    return lines


class Canvas:
    """A square page that is filled from top to bottom, a column at a time; lengths are in units.

    Every method that draws leaves ``gap`` free, records one region and moves the cursor ``y`` below it.
    """

    def __init__(self, size: int, *, left: float = 30, top: float = 22, width: float = 452) -> None:
        self.image = Image.new("RGB", (size, size), PAPER)
        self.regions: list[Region] = []
        self.lines: list[Region] = []
        self._draw = ImageDraw.Draw(self.image)
        self._scale = size / UNITS
        self.column(left, top, width)

    def column(self, left: float, top: float, width: float) -> None:
        """Continue at (``left``, ``top``) in a column of ``width``."""
        self._left, self.y, self._width = left, top, width

    def write(
        self, label: str, text: str, *, gap: float = 0, size: float = 0, face: str = "", centre: bool = False
    ) -> None:
        """Set ``text`` in the style of ``label``; ``size`` and ``face`` override the style's."""
        style = STYLES[label]
        pixels = round((size or style.size) * self._scale)
        font = load_font(face or style.face, pixels)
        lines = wrap(text, font, self._width * self._scale)
        inks = [font.getbbox(line, anchor="ls") for line in lines]  # an f may lean out of its own width
        before = min(0, *(math.floor(ink[0]) for ink in inks))
        widest = math.ceil(max(*(font.getlength(line) for line in lines), *(ink[2] for ink in inks)))
        left, top, leading = self._px(self._left), self._px(self.y + gap), round(pixels * style.leading)
        if centre:
            left += round((self._width * self._scale - widest) / 2)
        baseline = top + round(pixels * ASCENT)
        for number, line in enumerate(lines):
            self._line(label, line, left, baseline + number * leading, font)
        bottom = baseline + (len(lines) - 1) * leading + math.ceil(pixels * DESCENT)
        self._record(label, (left + before, top, left + widest, bottom), style.prefix + "\n".join(lines))

    def bullets(self, items: Sequence[str], *, gap: float = 0, size: float = 0) -> None:
        """A list, one item a line; to the model it is text."""
        self.write("text", "\n".join(f"- {item}" for item in items), gap=gap, size=size)

    def table(
        self, rows: Sequence[Sequence[str]], *, gap: float = 0, size: float = 0, grid: bool = True
    ) -> None:
        """Equal cells over the column's width, ruled throughout (``grid``) or only above and below."""
        style = STYLES["table"]
        pixels = round((size or style.size) * self._scale)
        font = load_font(style.face, pixels)
        left, top, high = self._px(self._left), self._px(self.y + gap), round(pixels * style.leading)
        wide = self._px(self._width / len(rows[0]))
        right, bottom = left + wide * len(rows[0]), top + high * len(rows)
        inset, drop = self._px(5), round((high - pixels) / 2 + pixels * 0.88)
        for i, row in enumerate(rows):
            for j, cell in enumerate(row):
                self._line("table", cell, left + j * wide + inset, top + i * high + drop, font)
        thick = max(1, self._px(1 if grid else 2))
        for y in range(top, bottom + 1, high) if grid else (top, bottom):
            self._draw.rectangle((left, y, right + thick - 1, y + thick - 1), fill=INK)
        for x in range(left, right + 1, wide) if grid else ():
            self._draw.rectangle((x, top, x + thick - 1, bottom + thick - 1), fill=INK)
        cells = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
        self._record("table", (left, top, right + thick, bottom + thick), f"<table>{cells}</table>")

    def picture(self, paint: Painter, height: float, *, gap: float = 0, width: float = 0) -> None:
        """A framed panel, as wide as the column or ``width``, that ``paint`` fills."""
        left, top = self._px(self._left), self._px(self.y + gap)
        right, bottom = left + self._px(width or self._width), top + self._px(height)
        self._draw.rectangle((left, top, right, bottom), fill=PANEL, outline=INK)
        paint(self._draw, (left, top, right, bottom))
        self._record("image", (left, top, right + 1, bottom + 1), "")

    def page(self) -> SynthPage:
        """What has been drawn so far."""
        return SynthPage(self.image, tuple(self.regions), tuple(self.lines))

    def _px(self, units: float) -> int:
        return round(units * self._scale)

    def _record(self, label: str, pixels: Pixels, text: str) -> None:
        """Keep the region and move the cursor below it."""
        self.regions.append(Region(label, to_box(pixels, *self.image.size), text))
        self.y = pixels[3] / self._scale

    def _line(self, label: str, text: str, left: int, baseline: int, font: ImageFont.FreeTypeFont) -> None:
        """Draw and keep one line of text."""
        self._draw.text((left, baseline), text, fill=INK, font=font, anchor="ls")
        ink = font.getbbox(text, anchor="ls")
        rise, fall = round(font.size * ASCENT), math.ceil(font.size * DESCENT)
        spot = (left + ink[0], baseline - rise, left + ink[2], baseline + fall)
        self.lines.append(Region(label, to_box(spot, *self.image.size), text))
