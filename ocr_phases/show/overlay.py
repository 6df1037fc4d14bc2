"""The page with its regions drawn on it: by label, or by the decode time spent writing each region."""

from __future__ import annotations

import math
import zlib
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.ticker import MaxNLocator
from PIL import Image, ImageDraw, ImageFont

from ocr_phases.analyse.grounding import Box, Grounding, Region
from ocr_phases.analyse.sentences import UNCERTAIN_TEXT

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
_MOST_NEIGHBOURS = 500
_INK: Colour = (34, 34, 34)
_PAPER: Colour = (255, 255, 255)


class Tag(NamedTuple):
    """A box's words in pixels of the page: the ground under them, their baseline's left end, their size."""

    text: str
    ground: Box
    start: tuple[int, int]
    size: int


class DrawnBox(NamedTuple):
    """A box of a region as it is drawn on a page; no tag where it would be larger than the page.

    The outline of an ``uncertain`` one is dashed.
    """

    region: int
    box: Box
    colour: Colour
    tag: Tag | None
    uncertain: bool = False


def label_colour(label: str) -> Colour:
    """The RGB colour of a region type; a label nobody foresaw gets the same spare colour in every process."""
    spare = _SPARE_COLOURS[zlib.crc32(label.encode("utf-8", "replace")) % len(_SPARE_COLOURS)]
    return LABEL_COLOURS.get(label, spare)


def hex_colour(colour: Colour) -> str:
    """``#rrggbb``."""
    return "#{:02x}{:02x}{:02x}".format(*colour)


def printable(text: str, longest: int = _LONGEST_LABEL) -> str:
    """Model-made text as one short line that any font can be asked to draw."""
    line = " ".join("".join(char if char.isprintable() else " " for char in text[: 4 * longest]).split())
    return line if len(line) <= longest else line[: longest - 1] + "…"


def region_boxes(
    regions: Sequence[Region],
    size: tuple[int, int],
    decode_ms: Mapping[int, float] | None = None,
    uncertain: Collection[int] = (),
) -> list[DrawnBox]:
    """Every box of the regions on a page of ``size`` pixels, tagged and coloured by label: `3 title`.

    With ``decode_ms`` (a region's time) tags and colours say that instead. A region of several boxes shows
    its one time on each, with the number of boxes. Tags stand at the corner of their box where they hide
    least. ``uncertain`` are the numbers of those regions.
    """
    colours = {} if decode_ms is None else time_colours(regions, decode_ms)
    right, bottom = size[0] - 1, size[1] - 1
    found, boxes, texts = [], [], []
    for region in regions:
        text = f"{region.index} {printable(region.label)}".strip()
        if decode_ms is not None:
            note = f" ({len(region.boxes)} boxes)" if len(region.boxes) > 1 else ""
            text = _milliseconds(decode_ms.get(region.index, 0.0)) + note
        for x1, y1, x2, y2 in region.pixel_boxes(*size):
            # A box may end just behind the last pixel; its outline must still be seen.
            boxes.append((min(x1, right), min(y1, bottom), min(x2, right), min(y2, bottom)))
            texts.append(text)
            found.append((region.index, colours.get(region.index, label_colour(region.label))))
    tags = _place_tags(boxes, texts, size)
    return [
        DrawnBox(region, box, colour, tag, region in uncertain)
        for (region, colour), box, tag in zip(found, boxes, tags, strict=True)
    ]


def time_colours(regions: Sequence[Region], decode_ms: Mapping[int, float]) -> dict[int, Colour]:
    """The colour of each region with a box, from 0 ms to the slowest of them."""
    drawn = {region.index: decode_ms.get(region.index, 0.0) for region in regions if region.boxes}
    slowest = max(drawn.values(), default=0.0) or 1.0
    return {region: time_colour(ms / slowest) for region, ms in drawn.items()}


def uncertain_in(table: pd.DataFrame) -> list[int]:
    """The uncertain regions of a table of regions; none where it does not say."""
    return table.loc[table["uncertain"], "region"].tolist() if "uncertain" in table else []


def draw_boxes(
    page: Image.Image, grounding: Grounding, uncertain: Collection[int] = (), *, labels: bool = True
) -> Image.Image:
    """An RGB copy of the page (upright, as the model saw it) with every box drawn, and tagged by label.

    Boxes of ``uncertain`` regions are dashed, which a line below the page then explains.
    """
    canvas = page.convert("RGB")
    drawn = region_boxes(grounding.regions, canvas.size, uncertain=uncertain)
    _draw_rectangles(canvas, drawn, _FILL_ALPHA)
    if labels:
        _draw_tags(canvas, drawn)
    return _above_legend(canvas, drawn, _text_size(page.size))


def draw_tagged(
    page: Image.Image, boxes: Sequence[Box], texts: Sequence[str], colours: Sequence[Colour]
) -> Image.Image:
    """An RGB copy of the page with boxes in pixels, each with its tag and colour."""
    canvas = page.convert("RGB")
    tags = _place_tags(boxes, texts, canvas.size)
    drawn = [DrawnBox(*given) for given in zip(range(len(boxes)), boxes, colours, tags, strict=True)]
    _draw_rectangles(canvas, drawn, _FILL_ALPHA)
    _draw_tags(canvas, drawn)
    return canvas


def draw_decode_time(page: Image.Image, grounding: Grounding, table: pd.DataFrame) -> Image.Image:
    """The page with every box coloured by its region's `decode_ms`, above a colour bar in milliseconds.

    `table` is `region_table`'s; a region without a row counts as 0 ms. Time spent on text that has no box
    (the preamble, dropped boxes) is named under the bar, so nothing goes missing. Of `regions_of` it also
    says which are uncertain, as in `draw_boxes`.
    """
    canvas = page.convert("RGB")
    cost = dict(zip(table["region"], table["decode_ms"], strict=True))
    drawn = region_boxes(grounding.regions, canvas.size, cost, uncertain_in(table))
    _draw_rectangles(canvas, drawn, _TIME_FILL_ALPHA)
    _draw_tags(canvas, drawn)
    boxed = {region.index for region in grounding.regions if region.boxes}
    slowest = max((cost.get(region, 0.0) for region in boxed), default=0.0) or 1.0
    unboxed = sum(ms for region, ms in cost.items() if region not in boxed)
    timed = _above_colour_bar(canvas, slowest, unboxed)
    return _above_legend(timed, drawn, _text_size(page.size))


def _milliseconds(ms: float) -> str:
    return f"{ms:,.0f} ms" if ms >= 100 else f"{ms:.1f} ms"


def time_colour(fraction: float) -> Colour:
    """Reversed viridis: on white paper the dark end has to be the one that stands for much."""
    red, green, blue, _ = matplotlib.colormaps["viridis_r"](min(max(fraction, 0.0), 1.0), bytes=True)
    return int(red), int(green), int(blue)


@lru_cache(maxsize=32)
def page_font(size: int, bold: bool = False) -> ImageFont.FreeTypeFont:
    """matplotlib's own DejaVu Sans: there on every machine, at any size in pixels."""
    name = "DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf"
    return ImageFont.truetype(Path(matplotlib.get_data_path(), "fonts", "ttf", name), size)


def _text_size(page_size: tuple[int, int]) -> int:
    """Font size in pixels that reads alike on a thumbnail and on a scan, whatever the page's shape."""
    return max(10, round(math.sqrt(page_size[0] * page_size[1]) / 46))


def _draw_rectangles(canvas: Image.Image, drawn: Sequence[DrawnBox], fill_alpha: int) -> None:
    draw = ImageDraw.Draw(canvas, "RGBA")
    width = max(1, round(_text_size(canvas.size) / 8))
    for _, box, colour, _, uncertain in drawn:
        draw.rectangle(
            box, fill=(*colour, fill_alpha), outline=None if uncertain else (*colour, 255), width=width
        )
        if uncertain:
            _draw_dashes(draw, box, colour, 2 * width)


def _draw_dashes(draw: ImageDraw.ImageDraw, box: Box, colour: Colour, width: int) -> None:
    """The outline of a box in dashes on white, which any ground leaves legible, with closed corners."""
    x1, y1, x2, y2 = box
    width = max(1, min(width, (x2 - x1) // 2, (y2 - y1) // 2))
    inner = width - 1
    draw.rectangle(box, outline=_PAPER, width=width)
    for left, right in _dashes(x1, x2, width):
        draw.rectangle((left, y1, right, y1 + inner), fill=colour)
        draw.rectangle((left, y2 - inner, right, y2), fill=colour)
    for top, bottom in _dashes(y1, y2, width):
        draw.rectangle((x1, top, x1 + inner, bottom), fill=colour)
        draw.rectangle((x2 - inner, top, x2, bottom), fill=colour)


def _dashes(start: int, end: int, width: int) -> list[tuple[int, int]]:
    """Where a line's dashes begin and end: the first and the last at its ends."""
    parts = 2 * max(1, round((end - start) / (6 * width))) + 1
    edges = np.linspace(start, end, parts + 1).round().astype(int).tolist()
    return list(zip(edges[::2], edges[1::2], strict=True))


def _draw_tags(canvas: Image.Image, drawn: Sequence[DrawnBox]) -> None:
    draw = ImageDraw.Draw(canvas)
    for _, _, colour, tag, _ in drawn:
        if tag is not None:
            left, top, right, bottom = tag.ground
            draw.rectangle((left, top, right - 1, bottom - 1), fill=colour)
            font = page_font(tag.size, bold=True)
            draw.text(tag.start, tag.text, font=font, fill=_readable_on(colour), anchor="ls")


def _place_tags(boxes: Sequence[Box], texts: Sequence[str], page_size: tuple[int, int]) -> list[Tag | None]:
    """Each text at the corner of its box where it hides least of the first boxes and of the last tags."""
    size = min(_text_size(page_size), max(6, min(page_size) // 3))
    font, pad = page_font(size, bold=True), max(1, size // 5)
    ascent, descent = font.getmetrics()
    height = ascent + descent + pad
    others = np.array(boxes[:_MOST_NEIGHBOURS], dtype=np.int64).reshape(-1, 4)
    placed = np.zeros((len(boxes), 4), dtype=np.int64)
    tags: list[Tag | None] = [None] * len(boxes)
    for index, (box, text) in enumerate(zip(boxes, texts, strict=True)):
        width = math.ceil(font.getlength(text)) + 2 * pad
        if width > page_size[0] or height > page_size[1]:
            continue
        spots = _corner_spots(box, width, height, page_size)
        # Another tag is far worse to hide than a box; a later spot has to hide clearly less to be taken.
        before = placed[max(index - _MOST_NEIGHBOURS, 0) : index]
        dislike = np.arange(len(spots)) * (width * height) // 16
        costs = _overlap(spots, others) + 20 * _overlap(spots, before) + dislike
        placed[index] = best = spots[int(costs.argmin())]
        tags[index] = Tag(text, best, (best[0] + pad, best[1] + pad // 2 + ascent), size)
    return tags


def _corner_spots(box: Box, width: int, height: int, page_size: tuple[int, int]) -> list[Box]:
    """Places for a tag at a box, the best liked first: over, under, then inside it; all within the page."""
    x1, y1, x2, y2 = box
    corners = [(x, y) for y in (y1 - height, y2, y1, y2 - height) for x in (x1, x2 - width)]
    inside = [
        (min(max(x, 0), page_size[0] - width), min(max(y, 0), page_size[1] - height)) for x, y in corners
    ]
    return [(x, y, x + width, y + height) for x, y in inside]


def _overlap(spots: Sequence[Box], others: np.ndarray) -> np.ndarray:
    """Pixels of each spot that other rectangles cover, counted once for each of them."""
    left, top, right, bottom = np.array(spots).T[..., None]
    across = np.minimum(right, others[:, 2]) - np.maximum(left, others[:, 0])
    down = np.minimum(bottom, others[:, 3]) - np.maximum(top, others[:, 1])
    return (np.maximum(across, 0) * np.maximum(down, 0)).sum(axis=1)


def _readable_on(colour: Colour) -> Colour:
    red, green, blue = colour
    return _INK if 0.299 * red + 0.587 * green + 0.114 * blue > 125 else _PAPER


def _above_legend(picture: Image.Image, drawn: Sequence[DrawnBox], size: int) -> Image.Image:
    """The picture, above a line in type of ``size`` that says what dashes mean where there are any."""
    if not any(box.uncertain for box in drawn):
        return picture
    font, sample = page_font(size), 3 * size
    width = max(picture.width, math.ceil(font.getlength(UNCERTAIN_TEXT)) + sample + 3 * size)
    canvas = Image.new("RGB", (width, picture.height + 2 * size), _PAPER)
    canvas.paste(picture, (0, 0))
    draw = ImageDraw.Draw(canvas)
    top = picture.height + size // 2
    _draw_dashes(draw, (size, top, size + sample, top + size), _INK, 2 * max(1, round(size / 8)))
    draw.text((2 * size + sample, top + size // 2), UNCERTAIN_TEXT, font=font, fill=_INK, anchor="lm")
    return canvas


def _above_colour_bar(page: Image.Image, slowest_ms: float, unboxed_ms: float) -> Image.Image:
    """The page on white, with a bar from 0 to `slowest_ms` under it and a word on the time without a box."""
    size = _text_size(page.size)
    font, bold = page_font(size), page_font(size, bold=True)
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
