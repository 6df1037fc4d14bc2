"""The page: its views, the regions drawn on it by label or by time, and what each of them took."""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from ocr_phases.analyse.figures import summary
from ocr_phases.analyse.grounding import PREAMBLE
from ocr_phases.analyse.regions import regions_of, type_table
from ocr_phases.analyse.sentences import UNCERTAIN_TEXT
from ocr_phases.analyse.stages import grounding_of
from ocr_phases.errors import OcrPhasesError, check_known
from ocr_phases.record import NO_PAGE, Record
from ocr_phases.show.axes import ChartBar, bar_charts, figure_of, sentence_figure, style_axes
from ocr_phases.show.boxes import (
    LABEL_OPACITY,
    TIME_OPACITY,
    DrawnBox,
    boxes_sentence,
    draw_marks,
    label_colour,
    region_boxes,
    type_size_of,
)
from ocr_phases.show.colours import REST
from ocr_phases.show.html_table import table_html
from ocr_phases.show.shown_figure import WIDTH, blank_figure
from ocr_phases.show.web import Html, element, fragment, note, pictures_html, printable
from ocr_phases.text import count_text, ms_text, percent_text

_LEGIBLE = 8 / 72  # inches of type
_MOST_ROWS = 4
_MOST_TYPES = 12
_TALLEST = 6.6  # inches of a page, so that all of it is on a screen
_HEADINGS = {"decode_ms": ("decode time", "ms")}
_MISSING = "no text or no time"
_NO_IMAGE = "The page is not in this record, so there is no picture of it."


def picture_parts(run: Record) -> list[Html]:
    """The pages of each row by label and by decode time, under headings where there are several.

    Of a large batch the first rows are shown, which `region_parts` says.
    """
    parts: list[Html] = []
    for row in rows_shown(run):
        parts.append(row_heading(run, row))
        pages = pages_of_row(run, row)
        for page, number in enumerate(pages):
            image = run.page_image(number)
            if image is not None:
                parts.append(page_heading(page, len(pages)))
                parts.append(pictures_html(_pictures(image, run, row, page)))
    return parts


def region_parts(run: Record) -> list[Html | Figure]:
    """What the types of region and the regions of each row took, and the sum of it.

    A page or a text that is not in the record, an output without regions and a run without decode
    steps are named in a sentence.
    """
    parts: list[Html | Figure] = []
    for row in rows_shown(run):
        parts.append(row_heading(run, row))
        if not run.has_page:
            parts.append(note(NO_PAGE))
        elif not any(run.page_image(number) for number in pages_of_row(run, row)):
            parts.append(note(_NO_IMAGE))
        for sentence in [*page_notes(run, row), _sum_sentence(run, row)]:
            parts.append(note(sentence))
        if not grounding_of(run, row).regions:
            continue
        table = regions_of(run, row)
        if has_region_times(run, row):
            parts.append(plot_region_types(run, row))
        types = table_html(
            type_table(table),
            caption="Decode time of each type of region",
            headings={**_HEADINGS, "label": ("type", "")},
            missing=_MISSING,
        )
        parts.append(types)
        parts.append(regions_html(table))
    if len(run.results) > _MOST_ROWS:
        rows = f"The first {_MOST_ROWS} of {len(run.results)} rows are shown"
        parts.append(note(f"{rows}; the record has them all."))
    return parts


def rows_shown(run: Record) -> range:
    """The rows of a batch that a report has room for."""
    return range(min(len(run.results), _MOST_ROWS))


def page_notes(run: Record, row: int) -> list[str]:
    """Sentences on regions of a row that are not drawn, or that may be drawn on the wrong page."""
    grounding = grounding_of(run, row)
    pages = len(pages_of_row(run, row))
    notes: list[str] = []
    if not run.has_page:
        if grounding.regions:
            count = count_text(len(grounding.regions), "region")
            notes.append(f"The output marks {count}, and there is no page to draw on.")
        return notes
    if pages > 1 and grounding.regions and not grounding.page_starts:
        notes.append("The output marks no pages: all boxes are on the first.")
    lost = [region for region in grounding.regions if region.page >= pages]
    if lost:
        notes.append(f"{count_text(len(lost), 'region')} on later pages than the prompt has.")
    for page in range(pages):
        boxes = sum(len(region.boxes) for region in grounding.on_page(page).regions)
        sentence = boxes_sentence(boxes)
        if not sentence:  # all of them are drawn
            continue
        if pages > 1:
            sentence = f"Page {page + 1}: {sentence}"
        notes.append(sentence)
    return notes


def regions_html(table: pd.DataFrame) -> Html:
    """`ocr_phases.analyse.regions.regions_of` as a table, the costliest region first."""
    table = table.drop(columns="boxes").dropna(axis="columns", how="all")
    table = table.sort_values("decode_ms", ascending=False, kind="stable")
    return table_html(
        table, caption="Decode time of each region", headings=_HEADINGS, missing=_MISSING
    )


def has_region_times(run: Record, row: int = 0) -> bool:
    """Whether a row's output marks regions and decode steps were timed, for a chart of them."""
    if not grounding_of(run, row).regions:
        return False
    return bool(regions_of(run, row)["decode_ms"].any())


def plot_region_types(run: Record, row: int = 0, *, ax: Axes | None = None) -> Figure:
    """Decode time by type of region as bars in ms, the costliest on top.

    Beside each stand its share and its time per character. The colours are those of the boxes on
    the page. Types beyond the first dozen are left to the table. ``ax`` are axes to draw on.
    """
    if not has_region_times(run, row):
        return sentence_figure("There are no regions with a decode time to draw.", ax)
    types = type_table(regions_of(run, row))
    bars = [_type_bar(kind) for kind in types.head(_MOST_TYPES).to_dict("records")]
    of_row = f" of row {row + 1}" if len(run.results) > 1 else ""
    title = f"Decode time by type of region{of_row}, {ms_text(types['decode_ms'].sum())} in all"
    figure, _ = bar_charts([(title, bars, "decode time (ms)")], ax)
    return figure


def _type_bar(kind: dict[Hashable, Any]) -> ChartBar:
    """The bar of a row of `type_table`."""
    label = str(kind["label"])
    name = printable(label).replace("_", " ")
    if kind["regions"] > 1:
        name += f" × {kind['regions']}"
    colour = REST if label == "preamble" else label_colour(label)
    ms = float(kind["decode_ms"])
    share = percent_text(kind["share"])
    if kind["characters"]:
        share += f"; {ms_text(kind['ms_per_char'])} per character"
    return name, [(0.0, ms, colour)], f"{ms_text(ms)}  ({share})"


def plot_page(
    run: Record, page: int = 0, color: str = "type", row: int = 0, *, ax: Axes | None = None
) -> Figure:
    """A page of a batch row under its boxes, coloured by ``type`` of region or by decode ``time``.

    ``page`` counts those of the row's prompt from 0. ``ax`` are axes to draw on. Raises
    `OcrPhasesError` for another ``color``, for a page that is not there, and where the prompt had
    no image.
    """
    check_known("color", color, ("type", "time"))
    if not run.has_page:
        raise OcrPhasesError(NO_PAGE)
    pages = pages_of_row(run, row)
    if page not in range(len(pages)):
        raise OcrPhasesError(f"Row {row} has no page {page}: it has {len(pages)}, counted from 0.")
    image = run.page_image(pages[page])
    if image is None:
        return sentence_figure(_NO_IMAGE, ax)
    if ax is None:
        ax = _axes_for(image)
    pictures = _pictures(image, run, row, page, _legible_type_size(image, ax))
    picture, title = pictures[0]  # by label
    if color == "time":
        picture, title = pictures[-1]  # the same one where there are no times
    ax.imshow(np.asarray(picture), interpolation="antialiased")
    if len(pages) > 1:
        title += f", page {page + 1} of {len(pages)}"
    for sentence in page_notes(run, row):
        title += f" ({sentence.removesuffix('.')})"
    style_axes(ax, title)
    ax.set_anchor("NW")  # so that the title has all of the width
    ax.set_axis_off()
    return figure_of(ax)


def _axes_for(image: Image.Image) -> Axes:
    """Axes of a figure that is as large as a page of this shape is shown on its own."""
    scale = min(WIDTH / image.width, _TALLEST / image.height)  # inches a pixel
    height = scale * image.height + 0.4
    width = max(scale * image.width, WIDTH / 2)
    return blank_figure(height, width).subplots()


def _legible_type_size(image: Image.Image, ax: Axes) -> int:
    """Font size in pixels of the page: larger where the axes show it small."""
    extent = ax.get_window_extent()
    scale = max(image.width / extent.width, image.height / extent.height)
    legible = math.ceil(_LEGIBLE * scale * figure_of(ax).dpi)
    return max(type_size_of(image.size), legible)


def pages_of_row(run: Record, row: int) -> list[int]:
    """The numbers of the record's pages that are in a batch row's prompt."""
    return [number for number, page in enumerate(run.pages) if page.row == row]


class MarkedPage(NamedTuple):
    """What is drawn on a page: caption, boxes, and the opacity of their ground from 0 to 1."""

    caption: str
    boxes: list[DrawnBox]
    opacity: float


def marked_pages(run: Record, row: int, page: int, size: tuple[int, int]) -> list[MarkedPage]:
    """A page of ``size`` pixels with its boxes by label and, where there are times, by decode time.

    Of a page without a region it is the page alone. Text without a box has its time in a caption;
    that of the preamble, which stands before any region, counts on the first page.
    """
    grounding = grounding_of(run, row).on_page(page)
    if not grounding.regions:
        return [MarkedPage("The page; the output marks no region on it", [], 0.0)]
    numbers = {region.index for region in grounding.regions}
    if page == 0:
        numbers.add(PREAMBLE)
    table = regions_of(run, row)
    table = table[table["region"].isin(numbers)]

    by_label = region_boxes(grounding.regions, size, table)
    caption = "The regions the model marked"
    has_times = bool(table["decode_ms"].any())
    if not has_times:
        caption += "; this run has no decode steps, so they have no time"
    if table["uncertain"].any():
        caption += f"; ? is {UNCERTAIN_TEXT}"
    marked = [MarkedPage(caption, by_label, LABEL_OPACITY)]
    if not has_times:
        return marked

    by_time = region_boxes(grounding.regions, size, table, by_time=True)
    caption = "Decode time of each region"
    unboxed_ms = table["decode_ms"][table["boxes"] == 0].sum()
    if unboxed_ms > 0:
        caption += f"; {ms_text(unboxed_ms)} more went to text without a box"
    marked.append(MarkedPage(caption, by_time, TIME_OPACITY))
    return marked


def _pictures(
    image: Image.Image, run: Record, row: int, page: int, type_size: int | None = None
) -> list[tuple[Image.Image, str]]:
    """The `marked_pages` as pictures, each with its caption."""
    pictures = []
    for marked in marked_pages(run, row, page, image.size):
        drawn = image
        if marked.boxes:
            drawn = draw_marks(image, marked.boxes, marked.opacity, type_size)
        pictures.append((drawn, marked.caption))
    return pictures


def _sum_sentence(run: Record, row: int) -> str:
    """What the regions of a row take together; empty where they have no times."""
    if not has_region_times(run, row):
        return ""
    table = regions_of(run, row)
    parts = "Regions"
    if (table["region"] == PREAMBLE).any():
        parts = "Regions and preamble"
    return (
        f"{parts} take {ms_text(table['decode_ms'].sum())} together, the sum of their tokens' "
        "median times, and each share is a share of that. The whole decode phase took "
        f"{ms_text(summary(run)['decode_ms'])}."
    )


def page_heading(page: int, pages: int) -> Html:
    """The heading of a page of a prompt, counted from 1; nothing for a single one."""
    if pages == 1:
        return fragment()
    return element("h4", f"Page {page + 1} of {pages}")


def row_heading(run: Record, row: int) -> Html:
    """The heading of a row of a batch, counted from 1; nothing for a single one."""
    if len(run.results) == 1:
        return fragment()
    return element("h3", f"Row {row + 1}")
