"""The page: its views, the regions drawn on it by label or by decode time, and what each of them took."""

from __future__ import annotations

import io
import math
import zlib
from collections.abc import Collection, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import Normalize, to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from PIL import Image, ImageColor, ImageDraw, ImageFont

from ocr_phases.analyse.grounding import PREAMBLE, Box, Grounding, Region, parse_grounding
from ocr_phases.analyse.regions import regions_of, type_table
from ocr_phases.analyse.sentences import UNCERTAIN_TEXT
from ocr_phases.errors import OcrPhasesError, check_known
from ocr_phases.record import PhaseRun
from ocr_phases.show.figures import (
    INK,
    REST,
    WIDTH,
    Chart,
    bar_charts,
    blank_figure,
    figure_of,
    figure_png,
    legend_below,
    sentence_figure,
    style_axes,
    takes_axes,
    time_axis,
    title_axes,
)
from ocr_phases.show.web import Html, element, fragment, note, pictures_html, printable, table_html
from ocr_phases.text import count_text, ms_text, percent_text

if TYPE_CHECKING:
    from ocr_phases.inputs.packing import PageViews

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
"""Colours after Okabe and Ito and Paul Tol, told apart with any colour vision; tags name the label too."""

_SPARE_COLOURS = ("#cc6677", "#19823c", "#98583c", "#007696", "#8f8f2f")
_DARK, _PAPER = "#111111", "#ffffff"
_LABEL_ALPHA, _TIME_ALPHA = "28", "69"  # hexadecimal
_SCALE = matplotlib.colormaps["viridis_r"]  # on white paper the dark end has to stand for much
_MOST_NEIGHBOURS = 500
_LEGIBLE = 8 / 72  # inches of type
_KEY_WIDTH, _LINE = 30, 1.5  # in the size of the type

_MOST_ROWS = 4
_MOST_TYPES = 12
_TALLEST = 10.0  # inches of a page on its own
_PAGE_COLOURS = ("type", "time")
_USUAL = {"repaired": False, "boxes": 1, "uncertain": False}
_HEADINGS = {"decode_ms": ("decode time", "ms")}
_MISSING = "no text or no time"
_MARKED = "The regions the model marked"
_NO_IMAGE = "The page is not in this record, so there is no picture of it."


# -- colours and words --------------------------------------------------------------------------------


def label_colour(label: str) -> str:
    """The colour of a region type; a label nobody foresaw gets the same spare colour in every process."""
    spare = _SPARE_COLOURS[zlib.crc32(label.encode("utf-8", "replace")) % len(_SPARE_COLOURS)]
    return LABEL_COLOURS.get(label, spare)


def time_colour(fraction: float) -> str:
    """The colour of a time from 0 to the longest, 1: the darker, the longer."""
    return to_hex(_SCALE(fraction))


def type_colour(ground: str) -> str:
    """The colour of type on a ground: dark on a light one."""
    red, green, blue = ImageColor.getrgb(ground)[:3]
    return _DARK if 0.299 * red + 0.587 * green + 0.114 * blue > 125 else _PAPER


# -- boxes --------------------------------------------------------------------------------------------


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
    colour: str
    tag: Tag | None
    uncertain: bool = False


def region_boxes(
    regions: Sequence[Region],
    size: tuple[int, int],
    decode_ms: Mapping[int, float] | None = None,
    uncertain: Collection[int] = (),
    type_size: int | None = None,
) -> list[DrawnBox]:
    """Every box of the regions on a page of ``size`` pixels, tagged and coloured by label: `3 title`.

    With ``decode_ms`` (a region's time) tags and colours say that instead. A region of several boxes shows
    its one time on each, with the number of boxes. Tags stand at the corner of their box where they hide
    least, in type of ``type_size`` pixels. ``uncertain`` are the numbers of those regions.
    """
    times = {region.index: (decode_ms or {}).get(region.index, 0.0) for region in regions if region.boxes}
    slowest = max(times.values(), default=0.0) or 1.0
    right, bottom = size[0] - 1, size[1] - 1
    found = []
    for region in regions:
        colour, text = label_colour(region.label), f"{region.index} {printable(region.label)}".strip()
        if decode_ms is not None and region.boxes:
            colour = time_colour(times[region.index] / slowest)
            count = f" ({len(region.boxes)} boxes)" if len(region.boxes) > 1 else ""
            text = ms_text(times[region.index]) + count
        for x1, y1, x2, y2 in region.pixel_boxes(*size):
            # A box may end just behind the last pixel; its outline must still be seen.
            box = (min(x1, right), min(y1, bottom), min(x2, right), min(y2, bottom))
            found.append((region.index, box, colour, text))
    tags = _place_tags([(box, text) for _, box, _, text in found], size, type_size)
    return [
        DrawnBox(region, box, colour, tag, region in uncertain)
        for (region, box, colour, _), tag in zip(found, tags, strict=True)
    ]


def draw_boxes(
    page: Image.Image,
    grounding: Grounding,
    table: pd.DataFrame | None = None,
    *,
    by_time: bool = False,
    labels: bool = True,
    type_size: int | None = None,
) -> Image.Image:
    """An RGB copy of the page (upright, as the model saw it) with every box drawn, and tagged by label.

    ``table`` is `regions_of` or `region_table`. Boxes that it calls uncertain are dashed, which a line below
    the page then explains. ``by_time`` colours and tags boxes by their region's ``decode_ms`` (0 without a
    row) above a colour bar. Time spent on text that has no box (the preamble, dropped boxes) is named under
    the bar, so nothing goes missing. ``type_size`` is in pixels.
    """
    table = pd.DataFrame({"region": [], "decode_ms": []}) if table is None else table
    cost = dict(zip(table["region"], table["decode_ms"], strict=True))
    uncertain = set(table.loc[table["uncertain"], "region"]) if "uncertain" in table else ()
    boxes = region_boxes(grounding.regions, page.size, cost if by_time else None, uncertain, type_size)
    if not labels:
        boxes = [box._replace(tag=None) for box in boxes]
    slowest, told = None, ""
    if by_time:
        times = {region: cost.pop(region, 0.0) for region in {box.region for box in boxes}}
        slowest, unboxed = max(times.values(), default=0.0) or 1.0, sum(cost.values())
        told = f"\n{ms_text(unboxed)} more went to text without a box" if unboxed > 0 else ""
    drawn = _drawn(page, boxes, _TIME_ALPHA if by_time else _LABEL_ALPHA)
    return _above_key(drawn, any(box.uncertain for box in boxes), slowest, told, type_size)


def draw_tagged(
    page: Image.Image, boxes: Sequence[Box], texts: Sequence[str], colours: Sequence[str]
) -> Image.Image:
    """An RGB copy of the page with boxes in pixels, each with its tag and colour."""
    tags = _place_tags(list(zip(boxes, texts, strict=True)), page.size)
    given = zip(range(len(boxes)), boxes, colours, tags, strict=True)
    return _drawn(page, [DrawnBox(*each) for each in given])


@lru_cache(maxsize=32)
def _font(size: int) -> ImageFont.FreeTypeFont:
    """matplotlib's own DejaVu Sans: there on every machine, at any size in pixels."""
    return ImageFont.truetype(Path(matplotlib.get_data_path(), "fonts", "ttf", "DejaVuSans-Bold.ttf"), size)


def _type_size(page_size: tuple[int, int]) -> int:
    """Font size in pixels that reads alike on a thumbnail and on a scan, whatever the page's shape."""
    return max(10, round(math.sqrt(page_size[0] * page_size[1]) / 46))


def _drawn(page: Image.Image, boxes: Sequence[DrawnBox], alpha: str = _LABEL_ALPHA) -> Image.Image:
    """An RGB copy of the page with boxes, below all their tags."""
    canvas = page.convert("RGB")
    draw = ImageDraw.Draw(canvas, "RGBA")
    width = max(1, round(_type_size(page.size) / 8))
    for _, box, colour, _, uncertain in boxes:
        draw.rectangle(box, colour + alpha, None if uncertain else colour, width)
        if uncertain:
            _draw_dashes(draw, box, colour, 2 * width)
    for _, _, colour, tag, _ in boxes:
        if tag is not None:
            left, top, right, bottom = tag.ground
            draw.rectangle((left, top, right - 1, bottom - 1), colour)
            draw.text(tag.start, tag.text, type_colour(colour), _font(tag.size), "ls")
    return canvas


def _draw_dashes(draw: ImageDraw.ImageDraw, box: Box, colour: str, width: int) -> None:
    """The outline of a box in dashes on white, which any ground leaves legible, with closed corners."""
    x1, y1, x2, y2 = box
    width = max(1, min(width, (x2 - x1) // 2, (y2 - y1) // 2))
    inner = width - 1
    draw.rectangle(box, outline=_PAPER, width=width)
    for start, end, across in ((x1, x2, True), (y1, y2, False)):
        parts = 2 * max(1, round((end - start) / (6 * width))) + 1
        edges = np.linspace(start, end, parts + 1).round().astype(int).tolist()
        for low, high in zip(edges[::2], edges[1::2], strict=True):
            for edge in (y1, y2 - inner) if across else (x1, x2 - inner):
                dash = (low, edge, high, edge + inner) if across else (edge, low, edge + inner, high)
                draw.rectangle(dash, fill=colour)


def _place_tags(
    boxes: Sequence[tuple[Box, str]], page_size: tuple[int, int], type_size: int | None = None
) -> list[Tag | None]:
    """Each text at the corner of its box where it hides least of the first boxes and of the last tags."""
    size = type_size or min(_type_size(page_size), max(6, min(page_size) // 3))
    others = np.array([box for box, _ in boxes[:_MOST_NEIGHBOURS]], dtype=np.int64).reshape(-1, 4)
    placed = np.zeros((len(boxes), 4), dtype=np.int64)
    tags: list[Tag | None] = [None] * len(boxes)
    for index, (box, text) in enumerate(boxes):
        _, _, width, height = _tag(text, 0, 0, size).ground
        if width > page_size[0] or height > page_size[1]:
            continue
        x1, y1, x2, y2 = box
        # The best liked first: over the box, under it, then inside it; all within the page.
        spots = [
            (min(max(x, 0), page_size[0] - width), min(max(y, 0), page_size[1] - height))
            for y in (y1 - height, y2, y1, y2 - height)
            for x in (x1, x2 - width)
        ]
        # Another tag is far worse to hide than a box; a later spot has to hide clearly less to be taken.
        grounds = np.array([(x, y, x + width, y + height) for x, y in spots])
        before = placed[max(index - _MOST_NEIGHBOURS, 0) : index]
        dislike = np.arange(len(spots)) * (width * height) // 16
        best = int((_overlap(grounds, others) + 20 * _overlap(grounds, before) + dislike).argmin())
        placed[index], tags[index] = grounds[best], _tag(text, *spots[best], size)
    return tags


def _tag(text: str, left: int, top: int, size: int) -> Tag:
    font, pad = _font(size), max(1, size // 5)
    ascent, descent = font.getmetrics()
    ground = (left, top, left + math.ceil(font.getlength(text)) + 2 * pad, top + ascent + descent + pad)
    return Tag(text, ground, (left + pad, top + pad // 2 + ascent), size)


def _overlap(spots: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Pixels of each spot that other rectangles cover, counted once for each of them."""
    left, top, right, bottom = spots.T[..., None]
    across = np.minimum(right, others[:, 2]) - np.maximum(left, others[:, 0])
    down = np.minimum(bottom, others[:, 3]) - np.maximum(top, others[:, 1])
    return (np.maximum(across, 0) * np.maximum(down, 0)).sum(axis=1)


def _above_key(
    picture: Image.Image, dashed: bool, slowest_ms: float | None, told: str, type_size: int | None
) -> Image.Image:
    """The picture above its key: a bar of its colours from 0 to ``slowest_ms``, and what dashes mean."""
    size = type_size or _type_size(picture.size)
    lines = (0 if slowest_ms is None else 4) + bool(told) + 2 * dashed
    if not lines:
        return picture
    width = max(picture.width, _KEY_WIDTH * size)
    dpi = 7.2 * size  # so that 10 points are the size
    figure = blank_figure(_LINE * lines * size / dpi, width / dpi)
    if slowest_ms is not None:
        scale, axes = ScalarMappable(Normalize(0, slowest_ms), _SCALE), figure.subplots()
        style_axes(axes)
        figure.colorbar(scale, cax=axes, orientation="horizontal").outline.set_visible(False)
        time_axis(axes.xaxis, "decode time per region", told)
    if dashed:
        legend_below(figure, [Patch(fill=False, edgecolor=INK, linestyle="--", label=UNCERTAIN_TEXT)], 1)
    key = Image.open(io.BytesIO(figure_png(figure, dpi))).convert("RGB")
    canvas = Image.new("RGB", (key.width, picture.height + key.height), _PAPER)
    canvas.paste(picture, (0, 0))
    canvas.paste(key, (0, picture.height))
    return canvas


# -- the page's views ---------------------------------------------------------------------------------


def draw_crops(crops: np.ndarray, grid: tuple[int, int]) -> Image.Image:
    """Crops uint8 [columns x rows, C, C, 3] put together again, with their cuts and numbers drawn."""
    (columns, rows), side = grid, crops.shape[1]
    joined = crops.reshape(rows, columns, side, side, 3).swapaxes(1, 2)
    boxes = []
    for number in range(columns * rows):
        left, top = number % columns * side, number // columns * side
        tag = _tag(str(number + 1), left, top, side // 14)
        boxes.append(DrawnBox(number, (left, top, left + side, top + side), LABEL_COLOURS["image"], tag))
    return _drawn(Image.fromarray(joined.reshape(rows * side, columns * side, 3)), boxes, alpha="00")


def view_pictures(views: PageViews) -> list[tuple[Image.Image, str]]:
    """A page's global view, and its crops joined with their cuts drawn, each with its caption."""
    from ocr_phases.inputs.packing import image_token_count  # of the measuring half: only now

    preset, (columns, rows) = views.preset, views.grid
    tokens = image_token_count(preset, (1, 1))
    page, side = f"{views.size[0]} x {views.size[1]} px", preset.base_size
    whole = f"{preset.name}: page of {page}, global view {side} x {side} px, {count_text(tokens, 'token')}"
    pictures = [(Image.fromarray(views.global_view), whole)]
    if len(views.crops):
        side, tokens = preset.image_size, image_token_count(preset, views.grid) - tokens
        cut = f"{columns} x {rows} crops of {side} x {side} px, {count_text(tokens, 'token')}"
        pictures.append((draw_crops(views.crops, views.grid), cut))
    return pictures


# -- time on the page ---------------------------------------------------------------------------------


def page_html(run: PhaseRun) -> Html:
    """The page with its regions and the page coloured by decode time, and the sum of it; each row of a batch.

    A page or a text that is not in the record, an output without regions and a run without decode steps are
    named in a sentence. Of a large batch the first rows are shown, which the last sentence says.
    """
    parts = []
    for row in shown_rows(run):
        grounding, table = _regions(run, row)
        parts.append(_row_heading(run, row))
        pages = pages_of_row(run, row)
        for page in range(len(pages)):
            image = run.page_image(pages[page])
            if page and image is None and not grounding.on_page(page).regions:
                continue
            if len(pages) > 1:
                parts.append(element("h4", f"Page {page + 1} of {len(pages)}"))
            parts.append(
                note(_NO_IMAGE) if image is None else pictures_html(_pictures(image, run, row, page))
            )
        if len(pages) > 1 and grounding.regions and not grounding.page_starts:
            parts.append(note("The output marks no pages: all boxes are on the first."))
        lost = sum(region.page >= len(pages) for region in grounding.regions)
        if lost:
            there = count_text(len(pages), "page")
            parts.append(note(f"{count_text(lost, 'region')} on later pages than the prompt's {there}."))
        if table is not None:
            parts.append(note(_sum_sentence(run, table)))
    rows = len(run.results)
    if rows > _MOST_ROWS:
        parts.append(note(f"The first {_MOST_ROWS} of {rows} rows are shown; the record has them all."))
    return fragment(*parts)


def region_tables_html(run: PhaseRun) -> Html:
    """What each type of region and each region cost, as two tables; nothing without regions."""
    parts = []
    for row in shown_rows(run):
        _, table = _regions(run, row)
        if table is None:
            continue
        types = type_table(table)
        headings = {**_HEADINGS, "label": ("type", "")}
        caption = "What each type of region cost to write"
        parts.append(_row_heading(run, row))
        parts.append(table_html(types, caption=caption, headings=headings, missing=_MISSING))
        parts.append(regions_html(table))
    return fragment(*parts)


def regions_html(table: pd.DataFrame) -> Html:
    """`ocr_phases.analyse.regions.regions_of` as a table, the costliest region first.

    Columns with only usual values (boxes, repaired, uncertain) are left out, and
    probabilities where the record has none.
    """
    table = table.sort_values("decode_ms", ascending=False, kind="stable")
    marked = table[table["region"] != PREAMBLE]
    usual = [name for name, value in _USUAL.items() if name in table and (marked[name] == value).all()]
    table = table.drop(columns=usual).dropna(axis="columns", how="all")
    caption = "Decode time of each region"
    return table_html(table, caption=caption, headings=_HEADINGS, missing=_MISSING)


def shown_rows(run: PhaseRun) -> range:
    """The rows of a batch that a report shows: the first few."""
    return range(min(len(run.results), _MOST_ROWS))


def has_region_times(run: PhaseRun, row: int = 0) -> bool:
    """Whether a row's output marks regions and decode steps were timed, so that there is a chart to draw."""
    _, table = _regions(run, row)
    return table is not None and bool(table["decode_ms"].any())


@takes_axes
def plot_region_types(run: PhaseRun, row: int = 0, *, ax: Axes | None = None) -> Figure:
    """Decode time by type of region as bars in ms, the costliest on top, with share and time per character.

    The colours are those of the boxes on the page. Types beyond the first dozen are left to the table.
    ``ax`` are axes to draw on.
    """
    _, table = _regions(run, row)
    if table is None or not table["decode_ms"].any():
        return sentence_figure("There are no regions with a decode time to draw.", ax)
    types = type_table(table)
    total_ms = float(types["decode_ms"].sum())
    types = types.head(_MOST_TYPES)
    rows = []
    for kind in types.to_dict("records"):
        label, ms = str(kind["label"]), float(kind["decode_ms"])
        colour = REST if label == "preamble" else label_colour(label)
        each = f"; {ms_text(kind['ms_per_char'])} a character" if kind["characters"] else ""
        count = f" × {kind['regions']}" if kind["regions"] > 1 else ""
        told = f"{ms_text(ms)}  ({percent_text(kind['share'])}{each})"
        rows.append((printable(label).replace("_", " ") + count, [(0.0, ms, colour)], told))
    of_row = f" of row {row}" if len(run.results) > 1 else ""
    title = f"Decode time by type of region{of_row}, {ms_text(total_ms)} in all"
    return bar_charts([Chart(title, rows, "decode time")], ax)[0]


@takes_axes
def plot_page(
    run: PhaseRun, page: int = 0, color: str = "type", row: int = 0, *, ax: Axes | None = None
) -> Figure:
    """A page of a batch row under its boxes, coloured by ``type`` of region or by decode ``time``.

    ``page`` counts those of the row's prompt from 0. ``ax`` are axes to draw on. Raises `OcrPhasesError` for
    another ``color``, and for a page that is not there.
    """
    check_known("color", color, _PAGE_COLOURS)
    pages = pages_of_row(run, row)
    if page not in range(len(pages)):
        raise OcrPhasesError(f"Row {row} has no page {page}: it has {len(pages)}, counted from 0.")
    image = run.page_image(pages[page])
    if image is None:
        return sentence_figure(_NO_IMAGE, ax)
    size = _type_size(image.size)
    if ax is not None:  # where a page is shown small, its type is larger on it
        shown = ax.get_window_extent()
        scale = max(image.width / shown.width, image.height / shown.height)
        size = max(size, math.ceil(_LEGIBLE * scale * figure_of(ax).dpi))
    pictures = _pictures(image, run, row, page, size)
    picture, title = pictures[-1] if color == "time" else pictures[0]
    if color == "time" and title == _MARKED:
        title = "The page; this run has no decode steps, so its regions have no time"
    if ax is None:
        scale = min(WIDTH / picture.width, _TALLEST / picture.height)
        ax = blank_figure(scale * picture.height + 0.4, max(scale * picture.width, WIDTH / 2)).subplots()
    ax.imshow(np.asarray(picture), interpolation="antialiased")
    ax.set_axis_off()
    title_axes(ax, title + (f", page {page + 1} of {len(pages)}" if len(pages) > 1 else ""))
    return figure_of(ax)


def pages_of_row(run: PhaseRun, row: int) -> list[int]:
    """The numbers of the record's pages that are in a batch row's prompt."""
    return [number for number, page in enumerate(run.pages) if page["row"] == row]


def _pictures(
    image: Image.Image, run: PhaseRun, row: int, page: int, type_size: int | None = None
) -> list[tuple[Image.Image, str]]:
    """A page by label and, where there are times, by decode time, with captions.

    The preamble's time is on the first page.
    """
    whole, table = _regions(run, row)
    grounding = whole.on_page(page)
    if table is None or not grounding.regions:
        return [(image, "The page; the output marks no region on it")]
    known = {region.index for region in grounding.regions} | ({PREAMBLE} if page == 0 else set())
    table = table[table["region"].isin(known)]
    drawn = draw_boxes(image, grounding, table, type_size=type_size)
    pictures = [(drawn, _MARKED)]
    if table["decode_ms"].any():
        timed = draw_boxes(image, grounding, table, by_time=True, type_size=type_size)
        pictures.append((timed, "Decode time of each region"))
    return pictures


def _sum_sentence(run: PhaseRun, table: pd.DataFrame) -> str:
    if not table["decode_ms"].any():
        return "This run has no decode steps, so its regions have no time."
    return (
        f"Regions{' and preamble' if (table['region'] == PREAMBLE).any() else ''} add up to "
        f"{ms_text(table['decode_ms'].sum())}, the sum of their tokens' medians, which shares are of; "
        f"the whole decode phase took {ms_text(run['decode_ms'])}."
    )


def _row_heading(run: PhaseRun, row: int) -> Html:
    return element("h3", f"Row {row}") if len(run.results) > 1 else fragment()


def _regions(run: PhaseRun, row: int) -> tuple[Grounding, pd.DataFrame | None]:
    """The regions of a row's text and what they cost; None where there are none."""
    grounding = parse_grounding(run.results[row]["text"] or "", run.model.get("family"))
    return grounding, regions_of(run, row) if grounding.regions else None
