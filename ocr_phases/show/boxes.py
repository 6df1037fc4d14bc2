"""Boxes on a page: their colours, their tags, and the drawing of both."""

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
from matplotlib.colors import to_hex
from PIL import Image, ImageColor, ImageDraw, ImageFont

from ocr_phases.analyse.grounding import PREAMBLE, Box, Region, overlaps
from ocr_phases.show.web import printable
from ocr_phases.text import ms_text

LABEL_COLOURS: dict[str, str] = {
    "title": "#bc4078",
    "sub_title": "#aa4499",
    "text": "#0072b2",
    "list": "#4a96d2",
    "table": "#007d5a",
    "table_caption": "#2f9485",
    "table_footnote": "#2f9485",
    "image": "#d55e00",
    "image_caption": "#bd8300",
    "equation": "#6a5acd",
    "header": "#787878",
    "footer": "#787878",
    "page_number": "#787878",
    "footnote": "#8f8f2f",
}
"""Colours after Okabe and Ito and Paul Tol, which any colour vision tells apart.

Tags name the label, too.
"""
_SPARE_COLOURS = ("#cc6677", "#19823c", "#98583c", "#007696", "#8f8f2f")
#: How opaque the ground of a box is, from 0 to 1.
LABEL_OPACITY = 40 / 255
TIME_OPACITY = 105 / 255
_SCALE = matplotlib.colormaps["viridis_r"]  # on white paper the dark end has to stand for much
#: Boxes that are drawn on one page. A real page has some hundreds; a model may write any number.
MOST_BOXES = 2_000
#: How often all coloured grounds together may cover the page; the boxes after that are outlines.
_MOST_COVERED = 50
_MOST_NEIGHBOURS = 500
UNTIMED = pd.DataFrame({"region": [], "decode_ms": []})


def label_colour(label: str) -> str:
    """The colour of a region type.

    A label that nobody foresaw gets a spare colour, the same in every process.
    """
    if label in LABEL_COLOURS:
        return LABEL_COLOURS[label]
    number = zlib.crc32(label.encode("utf-8", "replace"))
    return _SPARE_COLOURS[number % len(_SPARE_COLOURS)]


#: A ground on which black and white have the same contrast: (x + 0.05) ** 2 = 1.05 * 0.05.
_EVEN_LUMINANCE = (1.05 * 0.05) ** 0.5 - 0.05


def time_colour(fraction: float) -> str:
    """The colour of a time from 0 to the longest, 1: the darker, the longer."""
    return to_hex(_SCALE(fraction))


def type_colour(ground: str) -> str:
    """The colour of type on a ground, black or white: the one with the higher contrast.

    It is at least 4.58 to 1, as WCAG 2 counts it (https://www.w3.org/TR/WCAG22/#dfn-contrast-ratio).
    """
    luminance = 0.0
    for value, weight in zip(ImageColor.getrgb(ground)[:3], (0.2126, 0.7152, 0.0722), strict=True):
        luminance += weight * _linear_light(value / 255)
    return "#000000" if luminance > _EVEN_LUMINANCE else "#ffffff"


def _linear_light(level: float) -> float:
    """A level of sRGB as its share of the most light, both from 0 to 1, as WCAG 2 counts it."""
    if level <= 0.04045:
        return level / 12.92
    return ((level + 0.055) / 1.055) ** 2.4


class DrawnBox(NamedTuple):
    """A box in pixels of a page: its colour, the text of its tag, and its region.

    ``uncertain`` says whether it is known which tokens are the region's.
    """

    box: Box
    colour: str
    text: str
    region: int = PREAMBLE
    uncertain: bool = False


class Tag(NamedTuple):
    """The words at a box, in pixels of the page.

    ``ground`` is drawn under them, ``start`` is the left end of their baseline, ``size`` that of
    their type.
    """

    text: str
    ground: Box
    start: tuple[int, int]
    size: int


def region_boxes(
    regions: Sequence[Region],
    size: tuple[int, int],
    table: pd.DataFrame = UNTIMED,
    *,
    by_time: bool = False,
) -> list[DrawnBox]:
    """Every box of the regions on a page of ``size`` pixels, named and coloured by its label.

    The text of a tag is ``3 title``, with the region's number.
    ``table`` is `regions_of` or `region_table`; a question mark is behind what it calls uncertain.
    ``by_time`` names and colours boxes by their region's ``decode_ms`` instead: of several boxes
    each shows that one time, with their number.
    """
    times = dict(zip(table["region"], table["decode_ms"], strict=True))
    region_times = [ms for region, ms in times.items() if region != PREAMBLE]
    slowest = max(region_times, default=0.0)
    if slowest == 0.0:
        slowest = 1.0  # of no times all are short
    uncertain_regions: set[int] = set()
    if "uncertain" in table:
        uncertain_regions = set(table["region"][table["uncertain"]])
    # A box may end just behind the last pixel; its outline must still be seen.
    right = size[0] - 1
    bottom = size[1] - 1
    boxes: list[DrawnBox] = []
    for region in regions:
        if by_time:
            colour = time_colour(times[region.index] / slowest)
            text = ms_text(times[region.index])
            if len(region.boxes) > 1:
                text += f" ({len(region.boxes)} boxes)"
        else:
            colour = label_colour(region.label)
            text = f"{region.index} {printable(region.label)}".strip()
        uncertain = region.index in uncertain_regions
        if uncertain:
            text += "?"
        for x1, y1, x2, y2 in region.pixel_boxes(*size):
            box = (min(x1, right), min(y1, bottom), min(x2, right), min(y2, bottom))
            boxes.append(DrawnBox(box, colour, text, region.index, uncertain))
    return boxes


def place_tags(
    boxes: Sequence[DrawnBox], page_size: tuple[int, int], type_size: int | None = None
) -> list[Tag | None]:
    """Each box's tag at the corner where it hides least of the first boxes and of the last tags.

    In type of ``type_size`` pixels; None for no words, and where it would be larger than the page.
    """
    size = type_size or type_size_of(page_size)
    font = _font(size)
    pad = max(1, size // 5)
    ascent, descent = font.getmetrics()
    height = ascent + descent + pad
    first_boxes = [box.box for box in boxes[:_MOST_NEIGHBOURS]]
    others = np.array(first_boxes, dtype=np.int64).reshape(-1, 4)
    widths = [math.ceil(font.getlength(box.text)) + 2 * pad for box in boxes]
    spots_of_boxes = _spots([box.box for box in boxes], widths, height, page_size)
    placed = np.zeros((len(boxes), 4), dtype=np.int64)
    tags: list[Tag | None] = []
    for index, (box, width) in enumerate(zip(boxes, widths, strict=True)):
        if not box.text or width > page_size[0] or height > page_size[1]:
            tags.append(None)
            continue
        spots = spots_of_boxes[index]
        last_tags = placed[max(index - _MOST_NEIGHBOURS, 0) : index]
        hidden = overlaps(spots, others).sum(axis=1)
        # A later spot has to hide clearly less to be taken: a sixteenth of the tag for each place.
        tag_area = width * height
        hidden = hidden + np.arange(len(spots)) * tag_area // 16
        # Another tag is far worse to hide than a box.
        hidden += 20 * overlaps(spots, last_tags).sum(axis=1)
        placed[index] = spots[hidden.argmin()]
        left, top, right, bottom = placed[index].tolist()
        start = (left + pad, top + pad // 2 + ascent)
        tags.append(Tag(box.text, (left, top, right, bottom), start, size))
    return tags


def _spots(
    boxes: Sequence[Box], widths: Sequence[int], height: int, page_size: tuple[int, int]
) -> np.ndarray:
    """Where each tag may stand at its box, int64 [n, 8, 4], the best liked first; all within the
    page.

    That is over the box, under it, and inside it at its top and at its bottom, each on the left and
    on the right. ``widths`` are those of the n tags, ``height`` is that of all.
    """
    x1, y1, x2, y2 = np.array(boxes, dtype=np.int64).reshape(-1, 4).T
    width = np.array(widths, dtype=np.int64)
    lefts = np.stack([x1, x2 - width] * 4, axis=1)
    lefts = np.clip(lefts, 0, page_size[0] - width[:, None])
    tops = np.repeat(np.stack([y1 - height, y2, y1, y2 - height], axis=1), 2, axis=1)
    tops = np.clip(tops, 0, page_size[1] - height)
    return np.stack([lefts, tops, lefts + width[:, None], tops + height], axis=2)


def draw_marks(
    page: Image.Image,
    boxes: Sequence[DrawnBox],
    opacity: float = LABEL_OPACITY,
    type_size: int | None = None,
) -> Image.Image:
    """An RGB copy of the page with boxes, below all their tags.

    ``opacity`` is that of their ground, from 0 to 1. Of more than `MOST_BOXES` the first are drawn,
    and a sentence at the foot of the picture says so.
    """
    canvas = page.convert("RGB")
    draw = ImageDraw.Draw(canvas, "RGBA")
    width = max(1, round(type_size_of(page.size) / 8))
    drawn = boxes[:MOST_BOXES]
    uncovered = _MOST_COVERED * math.prod(page.size)
    for box in drawn:
        x1, y1, x2, y2 = box.box
        uncovered -= (x2 - x1) * (y2 - y1)
        ground = None
        if uncovered >= 0:
            ground = f"{box.colour}{round(255 * opacity):02x}"
        draw.rectangle(box.box, ground, box.colour, width)
    for box, tag in zip(drawn, place_tags(drawn, page.size, type_size), strict=True):
        if tag is not None:
            left, top, right, bottom = tag.ground
            draw.rectangle((left, top, right - 1, bottom - 1), box.colour)
            draw.text(tag.start, tag.text, type_colour(box.colour), _font(tag.size), "ls")
    _draw_sentence(draw, boxes_sentence(len(boxes)), page.size)
    return canvas


def boxes_sentence(count: int) -> str:
    """What is said of a page with more boxes than are drawn; empty where all are drawn."""
    if count <= MOST_BOXES:
        return ""
    return f"The first {MOST_BOXES:,} of {count:,} boxes are drawn."


def _draw_sentence(draw: ImageDraw.ImageDraw, sentence: str, page_size: tuple[int, int]) -> None:
    """A sentence at the foot of a page, in type that is as small as the page's width asks for."""
    if not sentence:
        return
    width, height = page_size
    usual = type_size_of(page_size)
    needed = _font(usual).getlength(sentence) + usual
    size = min(usual, int(usual * width / needed))
    if size < 1:
        return
    draw.rectangle((0, height - 2 * size, width, height), "#ffffff")
    draw.text((size // 2, height - size // 2), sentence, "#111111", _font(size), "ls")


@lru_cache(maxsize=32)
def _font(size: int) -> ImageFont.FreeTypeFont:
    """matplotlib's own DejaVu Sans: there on every machine, at any size in pixels."""
    file = Path(matplotlib.get_data_path(), "fonts", "ttf", "DejaVuSans-Bold.ttf")
    return ImageFont.truetype(file, size)


def type_size_of(page_size: tuple[int, int]) -> int:
    """Font size in pixels that reads alike on a thumbnail and on a scan of any shape."""
    by_area = max(10, round(math.sqrt(math.prod(page_size)) / 46))
    by_shorter_side = max(6, min(page_size) // 3)
    return min(by_area, by_shorter_side)


def draw_crops(crops: np.ndarray, grid: tuple[int, int]) -> Image.Image:
    """Crops uint8 [columns x rows, C, C, 3] put together again, with cuts and numbers drawn."""
    columns, rows = grid
    side = crops.shape[1]
    drawn: list[np.ndarray] = []
    for number, crop in enumerate(crops, start=1):
        box = DrawnBox((0, 0, side, side), LABEL_COLOURS["image"], str(number))
        marked = draw_marks(Image.fromarray(crop), [box], 0.0, side // 14)
        drawn.append(np.asarray(marked))
    joined = np.reshape(drawn, (rows, columns, side, side, 3)).swapaxes(1, 2)
    return Image.fromarray(joined.reshape(rows * side, columns * side, 3))
