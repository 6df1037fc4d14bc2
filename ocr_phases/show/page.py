"""The page: its views, the regions drawn on it by label or by decode time, and what each of them
took.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import NamedTuple

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from PIL import Image, ImageColor, ImageDraw, ImageFont

from ocr_phases.analyse.figures import summary
from ocr_phases.analyse.grounding import PREAMBLE, Box, Region, overlaps
from ocr_phases.analyse.regions import regions_of, type_table
from ocr_phases.analyse.sentences import UNCERTAIN_TEXT
from ocr_phases.analyse.stages import grounding_of
from ocr_phases.errors import OcrPhasesError, check_known
from ocr_phases.record import Record
from ocr_phases.show.figures import (
    REST,
    WIDTH,
    bar_charts,
    blank_figure,
    figure_of,
    sentence_figure,
    style_axes,
)
from ocr_phases.show.web import Html, element, fragment, note, pictures_html, printable, table_html
from ocr_phases.text import count_text, filled, ms_text, percent_text

LABEL_COLOURS: dict[str, str] = {
    "title": "#bc4078",
    "sub_title": "#aa4499",
    "text": "#0072b2",
    "list": "#4a96d2",
    "table": "#007d5a",
    **dict.fromkeys(("table_caption", "table_footnote"), "#2f9485"),
    "image": "#d55e00",
    "image_caption": "#bd8300",
    "equation": "#6a5acd",
    **dict.fromkeys(("header", "footer", "page_number"), "#787878"),
    "footnote": "#8f8f2f",
}
"""Colours after Okabe and Ito and Paul Tol, told apart with any colour vision; tags name the label too."""

_SPARE_COLOURS = ("#cc6677", "#19823c", "#98583c", "#007696", "#8f8f2f")
_LABEL_ALPHA, TIME_ALPHA = "28", "69"  # hexadecimal
_SCALE = matplotlib.colormaps["viridis_r"]  # on white paper the dark end has to stand for much
#: Boxes that are drawn on one page. A real page has some hundreds; a model may write any number.
MOST_BOXES = 2_000
#: How often all coloured grounds together may cover the page; the boxes after that are outlines.
_MOST_COVERED = 50
_MOST_NEIGHBOURS = 500
_LEGIBLE = 8 / 72  # inches of type
UNTIMED = pd.DataFrame({"region": [], "decode_ms": []})

_MOST_ROWS = 4
_MOST_TYPES = 12
_TALLEST = 10.0  # inches of a page on its own
_HEADINGS = {"decode_ms": ("decode time", "ms")}
_MISSING = "no text or no time"
_SUM = (
    "{words} take {sum:ms} together, the sum of their tokens' median times, and each share is a share of "
    "that. The whole decode phase took {decode:ms}."
)
_NO_IMAGE = "The page is not in this record, so there is no picture of it."


# -- colours and words --------------------------------------------------------------------------------


def label_colour(label: str) -> str:
    """The colour of a region type; a label nobody foresaw gets the same spare colour in every
    process.
    """
    spare = _SPARE_COLOURS[zlib.crc32(label.encode("utf-8", "replace")) % len(_SPARE_COLOURS)]
    return LABEL_COLOURS.get(label, spare)


def time_colour(fraction: float) -> str:
    """The colour of a time from 0 to the longest, 1: the darker, the longer."""
    return to_hex(_SCALE(fraction))


def type_colour(ground: str) -> str:
    """The colour of type on a ground: dark on a light one."""
    red, green, blue = ImageColor.getrgb(ground)[:3]
    return "#111111" if 0.299 * red + 0.587 * green + 0.114 * blue > 125 else "#ffffff"


# -- boxes --------------------------------------------------------------------------------------------


class DrawnBox(NamedTuple):
    """A box in pixels of a page, its colour, what its tag says, its region, and whether that is
    uncertain.
    """

    box: Box
    colour: str
    text: str
    region: int = PREAMBLE
    uncertain: bool = False


class Tag(NamedTuple):
    """A box's words in pixels of the page: the ground under them, their baseline's left end, their
    size.
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
    """Every box of the regions on a page of ``size`` pixels, told and coloured by label: `3 title`.

    ``table`` is `regions_of` or `region_table`; a question mark is behind what it calls uncertain.
    ``by_time`` tells and colours boxes by their region's ``decode_ms`` instead: of several boxes
    each shows that one time, with their number.
    """
    times = dict(zip(table["region"], table["decode_ms"], strict=True))
    slowest = max((ms for region, ms in times.items() if region != PREAMBLE), default=0.0) or 1.0
    uncertain = set(table["region"][table["uncertain"]]) if "uncertain" in table else set()
    last = (size[0] - 1, size[1] - 1) * 2
    found = []
    for region in regions:
        colour, text = (
            label_colour(region.label),
            f"{region.index} {printable(region.label)}".strip(),
        )
        if by_time:
            colour = time_colour(times[region.index] / slowest)
            count = f" ({len(region.boxes)} boxes)" if len(region.boxes) > 1 else ""
            text = ms_text(times[region.index]) + count
        doubted = region.index in uncertain
        for ends in region.pixel_boxes(*size):
            # A box may end just behind the last pixel; its outline must still be seen.
            x1, y1, x2, y2 = map(min, ends, last)
            box = DrawnBox((x1, y1, x2, y2), colour, text + "?" * doubted, region.index, doubted)
            found.append(box)
    return found


def place_tags(
    boxes: Sequence[DrawnBox], page_size: tuple[int, int], type_size: int | None = None
) -> list[Tag | None]:
    """Each box's tag at the corner where it hides least of the first boxes and of the last tags.

    In type of ``type_size`` pixels; None for no words, and where it would be larger than the page.
    """
    size = type_size or _type_size(page_size)
    font, pad = _font(size), max(1, size // 5)
    ascent, descent = font.getmetrics()
    height = ascent + descent + pad
    others = np.array([box.box for box in boxes[:_MOST_NEIGHBOURS]], dtype=np.int64).reshape(-1, 4)
    placed = np.zeros((len(boxes), 4), dtype=np.int64)
    tags: list[Tag | None] = []
    for index, ((x1, y1, x2, y2), _, text, *_) in enumerate(boxes):
        width = math.ceil(font.getlength(text)) + 2 * pad
        if not text or width > page_size[0] or height > page_size[1]:
            tags.append(None)
            continue
        # The best liked first: over the box, under it, then inside it; all within the page.
        lefts = np.clip([x1, x2 - width] * 4, 0, page_size[0] - width)
        tops = np.clip(np.repeat([y1 - height, y2, y1, y2 - height], 2), 0, page_size[1] - height)
        spots = np.stack([lefts, tops, lefts + width, tops + height], axis=1)
        # Another tag is far worse to hide than a box; a later spot has to hide clearly less to be
        # taken.
        hidden = (
            overlaps(spots, others).sum(axis=1) + np.arange(len(spots)) * (width * height) // 16
        )
        hidden += 20 * overlaps(spots, placed[max(index - _MOST_NEIGHBOURS, 0) : index]).sum(axis=1)
        placed[index] = spots[hidden.argmin()]
        left, top, right, bottom = placed[index].tolist()
        tags.append(
            Tag(text, (left, top, right, bottom), (left + pad, top + pad // 2 + ascent), size)
        )
    return tags


def draw_marks(
    page: Image.Image,
    boxes: Sequence[DrawnBox],
    alpha: str = _LABEL_ALPHA,
    type_size: int | None = None,
) -> Image.Image:
    """An RGB copy of the page with boxes, below all their tags; ``alpha`` is their ground's,
    hexadecimal.

    Of more than `MOST_BOXES` the first are drawn, and a sentence at the foot of the picture says
    so.
    """
    canvas = page.convert("RGB")
    draw = ImageDraw.Draw(canvas, "RGBA")
    width = max(1, round(_type_size(page.size) / 8))
    drawn = boxes[:MOST_BOXES]
    uncovered = _MOST_COVERED * math.prod(page.size)
    for box in drawn:
        x1, y1, x2, y2 = box.box
        uncovered -= (x2 - x1) * (y2 - y1)
        ground = box.colour + alpha if uncovered >= 0 else None
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
    size = _type_size(page_size)
    size = min(size, int(size * width / (_font(size).getlength(sentence) + size)))
    if size < 1:
        return
    draw.rectangle((0, height - 2 * size, width, height), "#ffffff")
    draw.text((size // 2, height - size // 2), sentence, "#111111", _font(size), "ls")


@lru_cache(maxsize=32)
def _font(size: int) -> ImageFont.FreeTypeFont:
    """matplotlib's own DejaVu Sans: there on every machine, at any size in pixels."""
    return ImageFont.truetype(
        Path(matplotlib.get_data_path(), "fonts", "ttf", "DejaVuSans-Bold.ttf"), size
    )


def _type_size(page_size: tuple[int, int]) -> int:
    """Font size in pixels that reads alike on a thumbnail and on a scan, whatever the page's shape."""
    return min(max(10, round(math.sqrt(math.prod(page_size)) / 46)), max(6, min(page_size) // 3))


# -- the page's views ---------------------------------------------------------------------------------


def draw_crops(crops: np.ndarray, grid: tuple[int, int]) -> Image.Image:
    """Crops uint8 [columns x rows, C, C, 3] put together again, with their cuts and numbers drawn."""
    (columns, rows), side = grid, crops.shape[1]
    drawn = []
    for number, crop in enumerate(crops, start=1):
        box = DrawnBox((0, 0, side, side), LABEL_COLOURS["image"], str(number))
        drawn.append(np.asarray(draw_marks(Image.fromarray(crop), [box], "00", side // 14)))
    joined = np.reshape(drawn, (rows, columns, side, side, 3)).swapaxes(1, 2)
    return Image.fromarray(joined.reshape(rows * side, columns * side, 3))


# -- time on the page ---------------------------------------------------------------------------------


def page_parts(run: Record) -> list[Html | Figure]:
    """Each row's page by label and by decode time, the sum of it, and what types and regions took.

    A page or a text that is not in the record, an output without regions and a run without decode
    steps are named in a sentence. Of a large batch the first rows are shown, which the last
    sentence says.
    """
    parts: list[Html | Figure] = []
    for row in range(min(len(run.results), _MOST_ROWS)):
        parts.append(row_heading(run, row))
        pages, table = pages_of_row(run, row), regions_of(run, row)
        images = [run.page_image(number) for number in pages]
        for page, image in enumerate(images):
            if image is not None:
                parts += (
                    [element("h4", f"Page {page + 1} of {len(pages)}")] if len(pages) > 1 else []
                )
                parts.append(pictures_html(_pictures(image, run, row, page)))
        sentences = [*page_notes(run, row), _sum_sentence(run, row)]
        parts += map(note, sentences if any(images) else [_NO_IMAGE, *sentences])
        if grounding_of(run, row).regions:
            parts += [plot_region_types(run, row)] if has_region_times(run, row) else []
            caption, headings = (
                "What each type of region cost to write",
                {**_HEADINGS, "label": ("type", "")},
            )
            parts.append(
                table_html(type_table(table), caption=caption, headings=headings, missing=_MISSING)
            )
            parts.append(regions_html(table))
    more = f"The first {_MOST_ROWS} of {len(run.results)} rows are shown; the record has them all."
    return [*parts, note(more if len(run.results) > _MOST_ROWS else "")]


def page_notes(run: Record, row: int) -> list[str]:
    """Sentences on regions of a row that are not drawn, or on another page than the model may have
    meant.
    """
    grounding, pages = grounding_of(run, row), len(pages_of_row(run, row))
    notes, lost = [], sum(region.page >= pages for region in grounding.regions)
    if pages > 1 and grounding.regions and not grounding.page_starts:
        notes.append("The output marks no pages: all boxes are on the first.")
    if lost:
        notes.append(f"{count_text(lost, 'region')} on later pages than the prompt has.")
    for page in range(pages):
        sentence = boxes_sentence(
            sum(len(region.boxes) for region in grounding.on_page(page).regions)
        )
        if sentence:
            notes.append(f"Page {page + 1}: {sentence}" if pages > 1 else sentence)
    return notes


def regions_html(table: pd.DataFrame) -> Html:
    """`ocr_phases.analyse.regions.regions_of` as a table, the costliest region first."""
    table = table.drop(columns="boxes").dropna(axis="columns", how="all")
    table = table.sort_values("decode_ms", ascending=False, kind="stable")
    return table_html(
        table, caption="Decode time of each region", headings=_HEADINGS, missing=_MISSING
    )


def has_region_times(run: Record, row: int = 0) -> bool:
    """Whether a row's output marks regions and decode steps were timed, so that there is a chart to
    draw.
    """
    return bool(grounding_of(run, row).regions) and bool(regions_of(run, row)["decode_ms"].any())


def plot_region_types(run: Record, row: int = 0, *, ax: Axes | None = None) -> Figure:
    """Decode time by type of region as bars in ms, the costliest on top, with share and time per
    character.

    The colours are those of the boxes on the page. Types beyond the first dozen are left to the
    table. ``ax`` are axes to draw on.
    """
    if not has_region_times(run, row):
        return sentence_figure("There are no regions with a decode time to draw.", ax)
    types, rows = type_table(regions_of(run, row)), []
    for kind in types.head(_MOST_TYPES).to_dict("records"):
        label, ms = str(kind["label"]), float(kind["decode_ms"])
        colour = REST if label == "preamble" else label_colour(label)
        each = f"; {ms_text(kind['ms_per_char'])} a character" if kind["characters"] else ""
        count = f" × {kind['regions']}" if kind["regions"] > 1 else ""
        told = f"{ms_text(ms)}  ({percent_text(kind['share'])}{each})"
        rows.append((printable(label).replace("_", " ") + count, [(0.0, ms, colour)], told))
    of_row = f" of row {row + 1}" if len(run.results) > 1 else ""
    title = f"Decode time by type of region{of_row}, {ms_text(types['decode_ms'].sum())} in all"
    return bar_charts([(title, rows, "decode time (ms)")], ax)[0]


def plot_page(
    run: Record, page: int = 0, color: str = "type", row: int = 0, *, ax: Axes | None = None
) -> Figure:
    """A page of a batch row under its boxes, coloured by ``type`` of region or by decode ``time``.

    ``page`` counts those of the row's prompt from 0. ``ax`` are axes to draw on. Raises
    `OcrPhasesError` for another ``color``, and for a page that is not there.
    """
    check_known("color", color, ("type", "time"))
    pages = pages_of_row(run, row)
    if page not in range(len(pages)):
        raise OcrPhasesError(f"Row {row} has no page {page}: it has {len(pages)}, counted from 0.")
    image = run.page_image(pages[page])
    if image is None:
        return sentence_figure(_NO_IMAGE, ax)
    if ax is None:
        scale = min(WIDTH / image.width, _TALLEST / image.height)
        ax = blank_figure(
            scale * image.height + 0.4, max(scale * image.width, WIDTH / 2)
        ).subplots()
    shown = ax.get_window_extent()  # where a page is shown small, its type is larger on it
    scale = max(image.width / shown.width, image.height / shown.height)
    size = max(_type_size(image.size), math.ceil(_LEGIBLE * scale * figure_of(ax).dpi))
    picture, title = _pictures(image, run, row, page, size)[-1 if color == "time" else 0]
    ax.imshow(np.asarray(picture), interpolation="antialiased")
    place = f", page {page + 1} of {len(pages)}" if len(pages) > 1 else ""
    style_axes(
        ax, " ".join([title + place, *(f"({sentence[:-1]})" for sentence in page_notes(run, row))])
    )
    ax.set_anchor("NW")  # so that the title has all of the width
    ax.set_axis_off()
    return figure_of(ax)


def pages_of_row(run: Record, row: int) -> list[int]:
    """The numbers of the record's pages that are in a batch row's prompt."""
    return [number for number, page in enumerate(run.pages) if page.row == row]


def _pictures(
    image: Image.Image, run: Record, row: int, page: int, type_size: int | None = None
) -> list[tuple[Image.Image, str]]:
    """A page by label and, where there are times, by decode time, with captions.

    The preamble's time is on the first page.
    """
    grounding, table = grounding_of(run, row).on_page(page), regions_of(run, row)
    if not grounding.regions:
        return [(image, "The page; the output marks no region on it")]
    known = {region.index for region in grounding.regions} | ({PREAMBLE} if page == 0 else set())
    table = table[table["region"].isin(known)]
    told = f"; ? is {UNCERTAIN_TEXT}" if table["uncertain"].any() else ""
    boxes = partial(region_boxes, grounding.regions, image.size, table)
    by_label = draw_marks(image, boxes(), type_size=type_size)
    if not table["decode_ms"].any():
        untimed = "The regions the model marked; this run has no decode steps, so they have no time"
        return [(by_label, untimed + told)]
    by_time = draw_marks(image, boxes(by_time=True), TIME_ALPHA, type_size)
    unboxed = table["decode_ms"][table["boxes"] == 0].sum()
    more = f"; {ms_text(unboxed)} more went to text without a box" if unboxed else ""
    return [
        (by_label, f"The regions the model marked{told}"),
        (by_time, f"Decode time of each region{more}"),
    ]


def _sum_sentence(run: Record, row: int) -> str:
    table = regions_of(run, row)
    if not has_region_times(run, row):
        return ""
    words = "Regions and preamble" if (table["region"] == PREAMBLE).any() else "Regions"
    return filled(_SUM, words=words, sum=table["decode_ms"].sum(), decode=summary(run)["decode_ms"])


def row_heading(run: Record, row: int) -> Html:
    """The heading of a row of a batch, counted from 1; nothing for a single one."""
    return element("h3", f"Row {row + 1}") if len(run.results) > 1 else fragment()
