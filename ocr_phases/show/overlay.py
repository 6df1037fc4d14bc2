"""The page with its regions drawn on it: by label, or by the decode time spent writing each region."""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.ticker import MaxNLocator
from PIL import Image, ImageDraw, ImageFont

from ocr_phases.analyse.grounding import Box, Grounding

Colour = tuple[int, int, int]

LABEL_COLOURS: dict[str, Colour] = {
    "title": (136, 34, 85),
    "sub_title": (170, 68, 153),
    "text": (0, 114, 178),
    "list": (86, 180, 233),
    "table": (0, 125, 90),
    "table_caption": (68, 170, 153),
    "table_footnote": (68, 170, 153),
    "image": (213, 94, 0),
    "image_caption": (230, 159, 0),
    "equation": (51, 34, 136),
    "header": (120, 120, 120),
    "footer": (120, 120, 120),
    "page_number": (120, 120, 120),
    "footnote": (153, 153, 51),
}
"""Colours after Okabe and Ito and Paul Tol, told apart with any colour vision; tags name the label too."""

_SPARE_COLOURS: tuple[Colour, ...] = (
    (204, 102, 119),
    (17, 119, 51),
    (102, 37, 6),
    (0, 90, 130),
    (153, 153, 51),
)
_FILL_ALPHA = 40
_TIME_FILL_ALPHA = 105
_LONGEST_LABEL = 24
_INK: Colour = (34, 34, 34)
_PAPER: Colour = (255, 255, 255)


class _Tag(NamedTuple):
    box: Box
    text: str
    colour: Colour


def label_colour(label: str) -> Colour:
    """The RGB colour of a region type; a label nobody foresaw gets the same spare colour in every process."""
    spare = _SPARE_COLOURS[zlib.crc32(label.encode("utf-8", "replace")) % len(_SPARE_COLOURS)]
    return LABEL_COLOURS.get(label, spare)


def printable(text: str, longest: int = _LONGEST_LABEL) -> str:
    """Model-made text as one short line that any font can be asked to draw."""
    line = " ".join("".join(char if char.isprintable() else " " for char in text[: 4 * longest]).split())
    return line if len(line) <= longest else line[: longest - 1] + "…"


def draw_boxes(page: Image.Image, grounding: Grounding, *, labels: bool = True) -> Image.Image:
    """An RGB copy of the page (upright, as the model saw it) with every box drawn and tagged: `3 title`."""
    canvas = page.convert("RGB")
    tags = [
        _Tag(box, f"{region.index} {printable(region.label)}".strip(), label_colour(region.label))
        for region in grounding.regions
        for box in region.pixel_boxes(*canvas.size)
    ]
    _draw_rectangles(canvas, tags, _FILL_ALPHA)
    if labels:
        _draw_tags(canvas, tags)
    return canvas


def draw_decode_time(page: Image.Image, grounding: Grounding, table: pd.DataFrame) -> Image.Image:
    """The page with every box coloured by its region's `decode_ms`, above a colour bar in milliseconds.

    `table` is `region_table`'s; a region without a row counts as 0 ms. The colours run from 0 to the slowest
    drawn region. A region of several boxes shows its one time on each, with the number of boxes. Time spent
    on text that has no box (the preamble, dropped boxes) is named under the bar, so nothing goes missing.
    """
    canvas = page.convert("RGB")
    cost = dict(zip(table["region"].astype(int), table["decode_ms"].astype(float), strict=True))
    drawn = {region.index: cost.get(region.index, 0.0) for region in grounding.regions if region.boxes}
    slowest = max(drawn.values(), default=0.0) or 1.0
    tags = []
    for region in grounding.regions:
        for box in region.pixel_boxes(*canvas.size):
            note = f" ({len(region.boxes)} boxes)" if len(region.boxes) > 1 else ""
            ms = drawn[region.index]
            tags.append(_Tag(box, _milliseconds(ms) + note, time_colour(ms / slowest)))
    _draw_rectangles(canvas, tags, _TIME_FILL_ALPHA)
    _draw_tags(canvas, tags)
    unboxed = sum(ms for region, ms in cost.items() if region not in drawn)
    return _above_colour_bar(canvas, slowest, unboxed)


def _milliseconds(ms: float) -> str:
    return f"{ms:,.0f} ms" if ms >= 100 else f"{ms:.1f} ms"


def time_colour(fraction: float) -> Colour:
    """Reversed viridis: on white paper the dark end has to be the one that stands for much."""
    red, green, blue, _ = matplotlib.colormaps["viridis_r"](min(max(fraction, 0.0), 1.0), bytes=True)
    return int(red), int(green), int(blue)


@lru_cache(maxsize=32)
def _font(size: int, bold: bool = False) -> ImageFont.FreeTypeFont:
    """matplotlib's own DejaVu Sans: there on every machine, at any size in pixels."""
    name = "DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf"
    return ImageFont.truetype(Path(matplotlib.get_data_path(), "fonts", "ttf", name), size)


def _text_size(page_size: tuple[int, int]) -> int:
    """Font size in pixels that reads alike on a thumbnail and on a scan, whatever the page's shape."""
    return max(10, round(math.sqrt(page_size[0] * page_size[1]) / 46))


def _draw_rectangles(canvas: Image.Image, tags: Sequence[_Tag], fill_alpha: int) -> None:
    draw = ImageDraw.Draw(canvas, "RGBA")
    width = max(1, round(_text_size(canvas.size) / 8))
    right, bottom = canvas.width - 1, canvas.height - 1
    for (x1, y1, x2, y2), _, colour in tags:
        # A box may end just behind the last pixel; its outline must still be seen.
        inside = (min(x1, right), min(y1, bottom), min(x2, right), min(y2, bottom))
        draw.rectangle(inside, fill=(*colour, fill_alpha), outline=(*colour, 255), width=width)


def _draw_tags(canvas: Image.Image, tags: Sequence[_Tag]) -> None:
    """Put each tag at the corner of its box where it hides least; one larger than the page is left out."""
    size = min(_text_size(canvas.size), max(6, min(canvas.size) // 3))
    font, pad = _font(size, bold=True), max(1, size // 5)
    ascent, descent = font.getmetrics()
    height = ascent + descent + pad
    draw = ImageDraw.Draw(canvas)
    boxes = np.array([tag.box for tag in tags], dtype=np.int64).reshape(-1, 4)
    placed = np.zeros((len(tags), 4), dtype=np.int64)
    for index, (box, text, colour) in enumerate(tags):
        width = math.ceil(font.getlength(text)) + 2 * pad
        if width > canvas.width or height > canvas.height:
            continue
        spots = _corner_spots(box, width, height, canvas.size)
        # Another tag is far worse to hide than a box; a later spot has to hide clearly less to be taken.
        costs = [
            _overlap(spot, boxes) + 20 * _overlap(spot, placed[:index]) + rank * width * height // 16
            for rank, spot in enumerate(spots)
        ]
        left, top, right, bottom = spots[costs.index(min(costs))]
        placed[index] = (left, top, right, bottom)
        draw.rectangle((left, top, right - 1, bottom - 1), fill=colour)
        draw.text(
            (left + pad, top + pad // 2 + ascent), text, font=font, fill=_readable_on(colour), anchor="ls"
        )


def _corner_spots(box: Box, width: int, height: int, page_size: tuple[int, int]) -> list[Box]:
    """Places for a tag at a box, the best liked first: over, under, then inside it; all within the page."""
    x1, y1, x2, y2 = box
    corners = [(x, y) for y in (y1 - height, y2, y1, y2 - height) for x in (x1, x2 - width)]
    inside = [
        (min(max(x, 0), page_size[0] - width), min(max(y, 0), page_size[1] - height)) for x, y in corners
    ]
    return [(x, y, x + width, y + height) for x, y in inside]


def _overlap(spot: Box, others: np.ndarray) -> int:
    """Pixels of the spot that other rectangles cover, counted once for each of them."""
    left, top, right, bottom = spot
    across = np.minimum(right, others[:, 2]) - np.maximum(left, others[:, 0])
    down = np.minimum(bottom, others[:, 3]) - np.maximum(top, others[:, 1])
    return int((np.maximum(across, 0) * np.maximum(down, 0)).sum())


def _readable_on(colour: Colour) -> Colour:
    red, green, blue = colour
    return _INK if 0.299 * red + 0.587 * green + 0.114 * blue > 125 else _PAPER


def _above_colour_bar(page: Image.Image, slowest_ms: float, unboxed_ms: float) -> Image.Image:
    """The page on white, with a bar from 0 to `slowest_ms` under it and a word on the time without a box."""
    size = _text_size(page.size)
    font, bold = _font(size), _font(size, bold=True)
    margin, bar_height, line = size, round(size * 1.1), round(size * 1.4)
    note = f"{_milliseconds(unboxed_ms)} more went to text without a box" if unboxed_ms > 0 else ""
    title = "decode time per region (ms)"
    end = _milliseconds(slowest_ms)
    end_width = math.ceil(font.getlength(end)) + margin // 2
    widest = math.ceil(max(bold.getlength(title), font.getlength(note), 12 * size + end_width))
    width = max(page.width, widest + 2 * margin)
    bar_width = min(width - 2 * margin, max(widest, 36 * size)) - end_width
    bar_top = page.height + margin + line
    lines_under = 2 if note else 1
    height = bar_top + bar_height + size // 2 + lines_under * line + margin // 2
    canvas = Image.new("RGB", (width, height), _PAPER)
    canvas.paste(page, (0, 0))
    draw = ImageDraw.Draw(canvas)
    draw.line((0, page.height, width, page.height), fill=(200, 200, 200))
    draw.text((margin, page.height + margin // 2), title, font=bold, fill=_INK)
    for column in range(bar_width):
        x = margin + column
        draw.line((x, bar_top, x, bar_top + bar_height), fill=time_colour(column / max(bar_width - 1, 1)))
    end_spot = (margin + bar_width + margin // 2, bar_top + bar_height // 2)
    draw.text(end_spot, end, font=font, fill=_INK, anchor="lm")
    for tick in MaxNLocator(nbins=5, steps=[1, 2, 5, 10]).tick_values(0.0, slowest_ms):
        if not 0 <= tick <= slowest_ms:
            continue
        x = margin + round(tick / slowest_ms * (bar_width - 1))
        draw.line(
            (x, bar_top + bar_height, x, bar_top + bar_height + size // 3),
            fill=_INK,
            width=max(1, size // 12),
        )
        anchor = "la" if tick == 0 else "ma"
        draw.text((x, bar_top + bar_height + size // 2), f"{tick:,.6g}", font=font, fill=_INK, anchor=anchor)
    draw.text((margin, bar_top + bar_height + size // 2 + line), note, font=font, fill=_INK)
    return canvas
