"""Draws synthetic pages whose ground truth is known: the sample pages of ``data/pages``.

``python -m ocr_phases.synth OUT_DIR`` writes each sample as ``NAME.png`` and ``NAME.json``. Nothing is random
and nothing is fetched: the type is the DejaVu family that matplotlib carries. Layouts are written in units of
1/512 of the page's side, so the same page can be drawn at any size.
"""

from __future__ import annotations

import argparse
import io
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import matplotlib
import PIL
from PIL import Image, ImageDraw, ImageFont, PngImagePlugin, features

from ocr_phases.errors import OcrPhasesError
from ocr_phases.files import output_folder, write_atomic

#: Layout units along one side of a page.
UNITS = 512
#: Largest coordinate of a box in the model's output.
BOX_MAX = 999
#: How far DejaVu's letters reach above and below the baseline, in parts of the type size.
ASCENT, DESCENT = 0.76, 0.24

SANS, BOLD, SERIF, MONO = "DejaVuSans", "DejaVuSans-Bold", "DejaVuSerif", "DejaVuSansMono"
PAPER = (250, 250, 247)
INK = (38, 40, 46)
PANEL = (196, 205, 216)
SHADES = ((58, 92, 138), (112, 144, 184), (84, 90, 102))

Pixels = tuple[int, int, int, int]
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


@dataclass(frozen=True)
class Region:
    """One block: DeepSeek-OCR's label, box (x1, y1, x2, y2) in 0..999 of the page, text as it is written."""

    label: str
    box: tuple[int, int, int, int]
    text: str

    @property
    def markdown(self) -> str:
        """The block as the model writes it: reference, box, then the text on a line of its own."""
        head = f"<|ref|>{self.label}<|/ref|><|det|>[[{', '.join(map(str, self.box))}]]<|/det|>"
        return f"{head}\n{self.text}" if self.text else head


@dataclass(frozen=True, eq=False)
class SynthPage:
    """A drawn page and what stands on it."""

    image: Image.Image
    regions: tuple[Region, ...]

    @property
    def markdown(self) -> str:
        """The whole page as a perfect reader would write it."""
        return "\n\n".join(region.markdown for region in self.regions)

    def truth(self) -> dict[str, Any]:
        """Size in pixels (width, height), regions and Markdown, as they go into ``NAME.json``."""
        regions = [{"label": r.label, "box": list(r.box), "text": r.text} for r in self.regions]
        return {"size": list(self.image.size), "regions": regions, "markdown": self.markdown}


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
            self._draw.text((left, baseline + number * leading), line, fill=INK, font=font, anchor="ls")
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
                spot = (left + j * wide + inset, top + i * high + drop)
                self._draw.text(spot, cell, fill=INK, font=font, anchor="ls")
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
        return SynthPage(self.image, tuple(self.regions))

    def _px(self, units: float) -> int:
        return round(units * self._scale)

    def _record(self, label: str, pixels: Pixels, text: str) -> None:
        """Keep the region; its box is rounded outwards so that the ink stays inside."""
        side = self.image.width
        low = (math.floor(v * BOX_MAX / side) for v in pixels[:2])
        high = (min(BOX_MAX, math.ceil(v * BOX_MAX / side)) for v in pixels[2:])
        x1, y1, x2, y2 = *low, *high
        self.regions.append(Region(label, (x1, y1, x2, y2), text))
        self.y = pixels[3] / self._scale


def bars(draw: ImageDraw.ImageDraw, box: Pixels) -> None:
    """A bar chart."""
    x1, y1, x2, y2 = box
    heights = (0.35, 0.52, 0.44, 0.68, 0.6, 0.86)
    step = (x2 - x1) / (len(heights) + 0.5)
    for i, height in enumerate(heights):
        left, top = x1 + step * (i + 0.5), y2 - (y2 - y1) * height
        draw.rectangle((left, top, left + step * 0.6, y2 - 2), fill=SHADES[i % 2])


def curve(draw: ImageDraw.ImageDraw, box: Pixels) -> None:
    """Two axes and a falling curve with its measured points."""
    x1, y1, x2, y2 = box
    wide, high = x2 - x1, y2 - y1
    origin = (x1 + 0.08 * wide, y2 - 0.14 * high)
    thin = max(1, round(high / 100))
    draw.line((origin[0], y1 + 0.1 * high, *origin), fill=SHADES[2], width=thin)
    draw.line((*origin, x2 - 0.06 * wide, origin[1]), fill=SHADES[2], width=thin)
    points = [
        (origin[0] + wide * 0.8 * t / 12, origin[1] - high * (0.1 + 0.58 * math.exp(-t / 4)))
        for t in range(13)
    ]
    draw.line(points, fill=SHADES[0], width=2 * thin)
    dot = high / 36
    for x, y in points[::2]:
        draw.ellipse((x - dot, y - dot, x + dot, y + dot), fill=SHADES[0])


def barcode(draw: ImageDraw.ImageDraw, box: Pixels) -> None:
    """Upright bars of four widths on a quiet margin."""
    x1, y1, x2, y2 = box
    bars_and_gaps = [((1, 2, 1, 3, 1, 1, 2, 4)[i * 5 % 8], (1, 2, 1)[i % 3]) for i in range(32)]
    module = (x2 - x1) / (sum(map(sum, bars_and_gaps)) + 12)
    x = x1 + 6 * module
    for bar, gap in bars_and_gaps:
        draw.rectangle((x, y1 + 6 * module, x + bar * module, y2 - 6 * module), fill=SHADES[2])
        x += (bar + gap) * module


def signature(draw: ImageDraw.ImageDraw, box: Pixels) -> None:
    """A signature: loops that run out to the right, over a line."""
    x1, y1, x2, y2 = box
    wide, high = x2 - x1, y2 - y1
    points = []
    for step in range(241):
        t = step / 240
        swing = math.sin(34 * t) * (0.3 - 0.2 * t) + 0.08 * math.sin(9 * t)
        points.append((x1 + wide * (0.12 + 0.68 * t + 0.06 * math.cos(34 * t)), y1 + high * (0.48 - swing)))
    thin, rule = max(1, round(high / 80)), y2 - 0.16 * high
    draw.line((x1 + 0.08 * wide, rule, x2 - 0.08 * wide, rule), fill=SHADES[2], width=thin)
    draw.line(points, fill=SHADES[0], width=2 * thin, joint="curve")


PARAGRAPHS = (
    "A reading machine first looks at the whole page. It cuts the picture into small squares, finds the "
    "strokes in each of them, and keeps a short summary of what it saw.",
    "Then it writes. Every new letter depends on that summary and on all the letters before it, so the work "
    "is done one step after another and cannot be spread out.",
    "The first part is heavy, but it happens once. The second part is light, but it happens for every token, "
    "and on a long page it takes most of the time.",
    "To make it faster, first find out which part is slow: the arithmetic, the memory, or the computer that "
    "gives the orders. Each asks for another cure.",
    "So measure first. Then change one thing, and measure again on the same page and the same machine.",
)
METHOD = "Prefill sees the page at once. Decode adds one token at a time, and reads all weights for each."
RESULT = "On a long page most of the time is spent in decode, where the device waits for its orders."
BILL = (
    ("Item", "Qty", "Amount"),
    ("Paper", "40", "€180.00"),
    ("Ink", "6", "€92.40"),
    ("Binding", "12", "€66.00"),
)
ORDER = (("Espresso", "£2.40"), ("Porridge", "£5.80"), ("Juice", "£3.90"), ("TOTAL", "£12.10"))
VISITOR = (("Name", "Moreau"), ("Company", "Lumen"), ("Date", "14/03/26"), ("Badge", "C-118"))
POINTS = ("Revenue up 18% to $4.2 M", "Two new offices opened", "Support time: 3.5 hours")


def draw_paper(page: Canvas) -> None:
    """The first page of an article: title, summary, a wide figure, then two columns."""
    page.write("title", "Where the Time Goes", size=30, centre=True)
    summary = "A page is read once and written one token after another. We time both."
    page.write("text", summary, gap=16, size=19, face=SERIF)
    page.picture(curve, 142, gap=18)
    page.write("image_caption", "Fig. 1: time per token over the page", gap=10)
    top = page.y + 24
    for left, heading, text in ((30, "1. Method", METHOD), (266, "2. Result", RESULT)):
        page.column(left, top, 216)
        page.write("sub_title", heading)
        page.write("text", text, gap=8, face=SERIF)


def draw_invoice(page: Canvas) -> None:
    """An invoice with a ruled table of items."""
    page.write("title", "Invoice 2047", size=34)
    page.write("text", "Harbour Press Ltd.\n12 Quay Street, Bergen\nDate: 14/03/2026", gap=18, size=21)
    page.table(BILL, gap=26, size=23)
    page.write("text", "Total due: €338.40", gap=26, size=25, face=BOLD)
    page.write("text", "Please pay within 30 days. Thank you for your order.", gap=24, size=21)


def draw_receipt(page: Canvas) -> None:
    """A till receipt in fixed-width type."""
    page.column(50, 24, 412)
    page.write("title", "CORNER CAFE", size=34)
    page.write("text", "Table 7, receipt 3142\n14/03/2026 at 09:26", gap=18, size=22, face=MONO)
    page.table(ORDER, gap=24, size=23, grid=False)
    page.write("text", "Paid by card\nThank you, come again!", gap=22, size=22, face=MONO)
    page.picture(barcode, 76, gap=20, width=280)


def draw_slide(page: Canvas) -> None:
    """A slide: a headline, three points, a chart."""
    page.write("title", "Quarter in review", size=38)
    page.bullets(POINTS, gap=24, size=26)
    page.picture(bars, 176, gap=28)
    page.write("text", "Source: annual report, page 12", gap=20, size=20)


def draw_form(page: Canvas) -> None:
    """A filled-in form with a signature."""
    page.write("title", "Visitor form", size=34)
    page.write("text", "Please fill in every line and hand this page to the front desk.", gap=18, size=21)
    page.table(VISITOR, gap=24, size=23)
    page.write("text", "Host: Dr. A. Lind, room 3.07\nCar on site: (x) yes ( ) no", gap=24, size=21)
    page.picture(signature, 92, gap=22, width=270)


def draw_dense(page: Canvas) -> None:
    """A page full of text, with a page number."""
    page.write("title", "On reading machines", size=26)
    for paragraph in PARAGRAPHS:
        page.write("text", paragraph, gap=20, size=16, face=SERIF)
    page.column(30, 480, 452)
    page.write("footer", "12", centre=True)


LAYOUTS: dict[str, Callable[[Canvas], None]] = {
    "paper": draw_paper,
    "invoice": draw_invoice,
    "receipt": draw_receipt,
    "slide": draw_slide,
    "form": draw_form,
    "dense": draw_dense,
}
#: Names of the sample pages.
SAMPLES = tuple(LAYOUTS)


def draw_page(kind: str, size: int = 1024) -> SynthPage:
    """Draw the sample page ``kind`` (one of `SAMPLES`), ``size`` pixels square."""
    if kind not in LAYOUTS:
        raise OcrPhasesError(f"There is no sample page {kind!r}: choose one of {', '.join(SAMPLES)}.")
    canvas = Canvas(size)
    LAYOUTS[kind](canvas)
    return canvas.page()


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


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the sample pages into a folder."""
    parser = argparse.ArgumentParser(prog="python -m ocr_phases.synth", description=main.__doc__)
    parser.add_argument("folder", metavar="OUT_DIR", help="created where it is missing")
    folder = output_folder(parser.parse_args(arguments).folder)
    for name in SAMPLES:
        write_page(draw_page(name), folder, name)


if __name__ == "__main__":
    main()
