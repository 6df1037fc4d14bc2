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

    The text of a tag is ``3 title``, with the region's number. A question mark stands behind it
    where ``table``, which is `regions_of` or `region_table`, calls the region uncertain.

    ``by_time`` names and colours boxes by their region's ``decode_ms`` instead. A region of several
    boxes has one time, so each of them shows it, with the number of boxes.
    """
    times = dict(zip(table["region"], table["decode_ms"], strict=True))
    longest_ms = _longest_time(times)
    uncertain_regions: set[int] = set()
    if "uncertain" in table:
        uncertain_regions = set(table["region"][table["uncertain"]])
    # A box may end just behind the last pixel; its outline must still be seen.
    right = size[0] - 1
    bottom = size[1] - 1
    boxes: list[DrawnBox] = []
    for region in regions:
        if by_time:
            ms = times[region.index]
            colour = time_colour(ms / longest_ms)
            text = ms_text(ms)
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


def _longest_time(times: dict[int, float]) -> float:
    """The longest time of a region in ms; 1 where no region took any, so that it can divide."""
    of_regions = [ms for region, ms in times.items() if region != PREAMBLE]
    longest_ms = max(of_regions, default=0.0)
    if longest_ms == 0.0:
        return 1.0
    return longest_ms


def place_tags(
    boxes: Sequence[DrawnBox], page_size: tuple[int, int], type_size: int | None = None
) -> list[Tag | None]:
    """The tag of each box, at the corner of the box where it hides least of others.

    Others are the first boxes and the tags placed last, `_MOST_NEIGHBOURS` of each. The type is
    ``type_size`` pixels high. A box has no tag (None) if it has no words, or if its tag would be
    larger than the page.
    """
    size = type_size or type_size_of(page_size)
    font = _font(size)
    pad = max(1, size // 5)
    ascent, descent = font.getmetrics()
    height = ascent + descent + pad
    widths = [math.ceil(font.getlength(box.text)) + 2 * pad for box in boxes]
    corners = np.array([box.box for box in boxes], dtype=np.int64).reshape(-1, 4)
    spots_of_boxes = _spots(corners, np.array(widths, dtype=np.int64), height, page_size)
    first_boxes = corners[:_MOST_NEIGHBOURS]
    grounds = np.zeros((len(boxes), 4), dtype=np.int64)
    tags: list[Tag | None] = []
    for index, (box, width) in enumerate(zip(boxes, widths, strict=True)):
        if not box.text or width > page_size[0] or height > page_size[1]:
            tags.append(None)
            continue
        last_tags = grounds[max(index - _MOST_NEIGHBOURS, 0) : index]
        grounds[index] = _best_spot(spots_of_boxes[index], first_boxes, last_tags)
        left, top, right, bottom = grounds[index].tolist()
        start = (left + pad, top + pad // 2 + ascent)
        tags.append(Tag(box.text, (left, top, right, bottom), start, size))
    return tags


def _best_spot(spots: np.ndarray, boxes: np.ndarray, tags: np.ndarray) -> np.ndarray:
    """The spot at which a tag hides least of these boxes and tags; all are int64 [n, 4]."""
    left, top, right, bottom = spots[0]
    tag_area = (right - left) * (bottom - top)
    cost = overlaps(spots, boxes).sum(axis=1)
    # Another tag is far worse to hide than a box.
    cost = cost + 20 * overlaps(spots, tags).sum(axis=1)
    # The spots are in the order in which they are liked: each costs a sixteenth of the tag's area
    # more than the one before, so that it is taken only if it hides clearly less.
    cost += np.arange(len(spots)) * tag_area // 16
    return spots[cost.argmin()]


def _spots(
    boxes: np.ndarray, widths: np.ndarray, height: int, page_size: tuple[int, int]
) -> np.ndarray:
    """The eight spots on the page at which the tag of each box may stand, the best liked first.

    Parameters
    ----------
    boxes : ndarray
        int64 [n, 4], in pixels of the page.
    widths : ndarray
        int64 [n], the width of the tag of each box.
    height : int
        The height of every tag.
    page_size : (int, int)
        Width and height of the page.

    Returns
    -------
    ndarray
        int64 [n, 8, 4].
    """
    x1, y1, x2, y2 = boxes.T
    at_left = x1
    at_right = x2 - widths
    above = y1 - height
    below = y2
    inside_at_top = y1
    inside_at_bottom = y2 - height
    lefts = []
    tops = []
    for top in (above, below, inside_at_top, inside_at_bottom):
        lefts += [at_left, at_right]
        tops += [top, top]
    # Where it would leave the page, a tag is moved onto it.
    left = np.clip(np.stack(lefts, axis=1), 0, page_size[0] - widths[:, None])
    top = np.clip(np.stack(tops, axis=1), 0, page_size[1] - height)
    right = left + widths[:, None]
    bottom = top + height
    return np.stack([left, top, right, bottom], axis=2)


def draw_marks(
    page: Image.Image,
    boxes: Sequence[DrawnBox],
    opacity: float = LABEL_OPACITY,
    type_size: int | None = None,
) -> Image.Image:
    """An RGB copy of the page with boxes, and above all of them their tags.

    ``opacity`` is that of the boxes' ground, from 0 to 1. Of more than `MOST_BOXES` the first are
    drawn, and a sentence at the foot of the picture says so.
    """
    canvas = page.convert("RGB")
    draw = ImageDraw.Draw(canvas, "RGBA")
    outline_width = max(1, round(type_size_of(page.size) / 8))
    drawn = boxes[:MOST_BOXES]
    # Drawing has a bound: an output may have many boxes as large as the page.
    pixels_left = _MOST_COVERED * math.prod(page.size)
    for box in drawn:
        x1, y1, x2, y2 = box.box
        pixels_left -= (x2 - x1) * (y2 - y1)
        ground = None
        if pixels_left >= 0:
            ground = f"{box.colour}{round(255 * opacity):02x}"
        draw.rectangle(box.box, ground, box.colour, outline_width)
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
    joined = Image.new("RGB", (columns * side, rows * side))
    for place, crop in enumerate(crops):
        outline = DrawnBox((0, 0, side, side), LABEL_COLOURS["image"], str(place + 1))
        marked = draw_marks(Image.fromarray(crop), [outline], 0.0, side // 14)
        row, column = divmod(place, columns)
        joined.paste(marked, (column * side, row * side))
    return joined
