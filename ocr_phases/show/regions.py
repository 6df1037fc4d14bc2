"""Time on the page: decode time of each region and type of region."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL.Image import Image

from ocr_phases.analyse.grounding import PREAMBLE, Grounding, parse_grounding
from ocr_phases.analyse.regions import regions_of, type_table
from ocr_phases.errors import OcrPhasesError, check_known
from ocr_phases.record import PhaseRun
from ocr_phases.show.figures import (
    PHASE_COLOURS,
    WIDTH,
    blank_figure,
    figure_of,
    hbars,
    new_figure,
    sentence_figure,
    takes_axes,
    time_axis,
    title_axes,
)
from ocr_phases.show.overlay import (
    draw_boxes,
    draw_decode_time,
    hex_colour,
    label_colour,
    printable,
    uncertain_in,
)
from ocr_phases.show.web import Html, element, fragment, note, pictures_html, table_html
from ocr_phases.text import ms_text, percent_text

_MOST_ROWS = 4
_MOST_TYPES = 12
_TALLEST = 10.0  # inches of a page on its own
_PAGE_COLOURS = ("type", "time")
_SHORT_TEXT = 60
_USUAL = {"repaired": False, "boxes": 1, "uncertain": False}
_HEADINGS = {"decode_ms": ("decode time", "ms")}
_MISSING = "no text or no time"


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
        if not grounding.page_starts:  # without page marks all regions are drawn on the first
            pages = pages[:1]
        for place, number in enumerate(pages):
            if len(pages) > 1:
                parts.append(element("h4", f"Page {place + 1} of {len(pages)}"))
            parts.append(_pictures(run.page_image(number), *_on_page(grounding, table, place)))
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
        types["label"] = [printable(label) for label in types["label"]]
        headings = {**_HEADINGS, "label": ("type", "")}
        caption = "What each type of region cost to write"
        parts.append(_row_heading(run, row))
        parts.append(table_html(types, caption=caption, headings=headings, missing=_MISSING))
        parts.append(regions_html(table))
    return fragment(*parts)


def regions_html(table: pd.DataFrame) -> Html:
    """`ocr_phases.analyse.regions.regions_of` as a table, the costliest region first.

    Texts are shortened. Columns with only usual values (boxes, repaired, uncertain) are left out, and
    probabilities where the record has none.
    """
    table = table.sort_values("decode_ms", ascending=False, kind="stable").assign(
        label=lambda each: [printable(label) for label in each["label"]],
        text=lambda each: [printable(text, _SHORT_TEXT) for text in each["text"]],
    )
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
    figure, axes = new_figure(1.3 + 0.36 * len(types), ax=ax)
    bars = []
    for kind in types.to_dict("records"):
        label, ms = str(kind["label"]), float(kind["decode_ms"])
        colour = PHASE_COLOURS["prepare"] if label == "preamble" else hex_colour(label_colour(label))
        each = f"; {ms_text(kind['ms_per_char'])} a character" if kind["characters"] else ""
        count = f" × {kind['regions']}" if kind["regions"] > 1 else ""
        told = f"{ms_text(ms)}  ({percent_text(kind['share'])}{each})"
        bars.append((printable(label).replace("_", " ") + count, [(0.0, ms, colour)], told))
    hbars(axes, bars)
    time_axis(axes.xaxis, "decode time")
    of_row = f" of row {row}" if len(run.results) > 1 else ""
    title_axes(axes, f"Decode time by type of region{of_row}, {ms_text(total_ms)} in all")
    return figure


@takes_axes
def plot_page(
    run: PhaseRun, color: str = "type", row: int = 0, page: int = 0, *, ax: Axes | None = None
) -> Figure:
    """A page of a batch row under its boxes, coloured by ``type`` of region or by decode ``time``.

    ``page`` counts those of the row's prompt from 0. ``ax`` are axes to draw on. Raises `OcrPhasesError` for
    another ``color``, and for a page that is not there.
    """
    check_known("color", color, _PAGE_COLOURS)
    pages = pages_of_row(run, row)
    if page not in range(len(pages)):
        raise OcrPhasesError(f"Row {row} has no page {page}: it has {len(pages)}, counted from 0.")
    image, (grounding, table) = run.page_image(pages[page]), _on_page(*_regions(run, row), page)
    if image is None:
        return sentence_figure("The page is not in this record, so there is no picture of it.", ax)
    picture, title = image, "The page; the output marks no region on it"
    if table is not None and color == "type":
        picture, title = draw_boxes(image, grounding, uncertain_in(table)), "The regions the model marked"
    elif table is not None and table["decode_ms"].any():
        picture, title = draw_decode_time(image, grounding, table), "Decode time of each region"
    elif table is not None:
        title = "The page; this run has no decode steps, so its regions have no time"
    if ax is None:
        scale = min(WIDTH / picture.width, _TALLEST / picture.height)
        ax = blank_figure(scale * picture.height + 0.4, max(scale * picture.width, WIDTH / 2)).subplots()
    ax.imshow(np.asarray(picture), interpolation="antialiased")
    ax.set_axis_off()
    title_axes(ax, title)
    return figure_of(ax)


def pages_of_row(run: PhaseRun, row: int) -> list[int]:
    """The numbers of the record's pages that are in a batch row's prompt."""
    return [number for number, page in enumerate(run.pages) if page["row"] == row]


def _on_page(
    grounding: Grounding, table: pd.DataFrame | None, page: int
) -> tuple[Grounding, pd.DataFrame | None]:
    """What of a row's regions, and of their times, is on one of its pages; the preamble is on the first."""
    here = grounding.on_page(page)
    known = {region.index for region in here.regions} | ({PREAMBLE} if page == 0 else set())
    if table is not None:
        table = table[table["region"].isin(known)]
    return here, None if table is None or not here.regions else table


def _pictures(page: Image | None, grounding: Grounding, table: pd.DataFrame | None) -> Html:
    if page is None:
        return note("The page is not in this record, so there is no picture of it.")
    if table is None:
        return pictures_html([(page, "The page; the output marks no region on it")])
    pictures = [(draw_boxes(page, grounding, uncertain_in(table)), "The regions the model marked")]
    if table["decode_ms"].any():
        timed = draw_decode_time(page, grounding, table)
        pictures.append((timed, "The same, coloured by decode time"))
    return pictures_html(pictures)


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
