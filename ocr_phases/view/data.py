"""What the linked view draws of a row: plain values, ready for JSON."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from ocr_phases.analyse.grounding import PREAMBLE, Grounding, Region, parse_grounding
from ocr_phases.analyse.regions import regions_of
from ocr_phases.analyse.sentences import UNCERTAIN_TEXT
from ocr_phases.analyse.stages import grounding_of, tokens_of
from ocr_phases.record import NO_PAGE, Record
from ocr_phases.show.boxes import (
    MOST_BOXES,
    UNTIMED,
    place_tags,
    region_boxes,
    time_colour,
    type_colour,
)
from ocr_phases.show.page import page_notes, pages_of_row
from ocr_phases.show.web import data_address, jpeg_file, printable
from ocr_phases.text import count_text, ms_text, percent_text, plain
from ocr_phases.view.curves import USUAL_SHARE, curve_top, time_below
from ocr_phases.view.markdown import text_sections

if TYPE_CHECKING:
    from PIL.Image import Image

_PAGE_SIZE = (2_000, 2_000)  # pixels of the embedded page, which can be magnified
#: The height of type in the longer side of a page that is shown in the usual size.
_SHARE_OF_TYPE = 11 / 400
_COLOURS = 24  # between the fastest and the slowest time
_SLOWEST = 6  # tokens that a list names
_MOST_REGIONS = MOST_BOXES
#: What the view calls the columns of the tokens that it shows.
_COLUMNS = {
    "ms": "device_ms",
    "step": "step",
    "cache_len": "cache_len",
    "region": "region",
    "probability": "probability",
}


def row_data(run: Record, row: int) -> dict[str, Any]:
    """What the linked view draws of a row of a batch, ready for JSON.

    Returns
    -------
    dict
        Lists of the same length for the tokens: ``texts``, ``ms`` (the device clock's median over
        repeats), ``step``, ``cache_len``, ``region`` and ``probability``. ``regions`` has each
        region in words, ``pages`` each page with its boxes, ``rendered`` the text as HTML.
        ``slowest`` are the numbers of the slowest tokens, ``top`` and ``scale`` are in ms,
        ``palette`` has the colours of times with those of words on them.
    """
    grounding = grounding_of(run, row)
    tokens = tokens_of(run, row)
    regions = regions_of(run, row)
    uncertain = regions.loc[regions["uncertain"], "region"].tolist()
    row_names = [printable(run.page_name(number), 40) for number in range(len(run.results))]
    first_token = "from the prefill"
    if run.waits_for_first_token:
        first_token = "the first token"
    slowest = tokens["device_ms"].nlargest(_SLOWEST)
    times = tokens["device_ms"].dropna()
    usual_times = [time_below(times, 1 - USUAL_SHARE), time_below(times, USUAL_SHARE)]
    data = {
        "rows": row_names,
        "note": _note(run, row, grounding),
        "first": first_token,
        "texts": [plain(str(text)) for text in tokens["text"]],
        "uncertain": {"regions": uncertain, "legend": UNCERTAIN_TEXT},
        "slowest": slowest.index.tolist(),
        "top": curve_top(times),
        "scale": usual_times,
        "palette": _palette(),
        "regions": _regions(run, row, grounding, regions),
        "rendered": _rendered(run, row, uncertain),
        "pages": _pages(run, row, grounding, regions),
    }
    for name, column in _COLUMNS.items():
        data[name] = _values(tokens[column])
    return data


def _palette() -> list[tuple[str, str]]:
    """The colours of times from fast to slow, each with that of words on it."""
    colours = [time_colour(share) for share in np.linspace(0, 1, _COLOURS)]
    return [(colour, type_colour(colour)) for colour in colours]


def _rendered(run: Record, row: int, uncertain: Sequence[int]) -> str:
    """The text of a row as HTML, by its regions."""
    text = plain(run.results[row].text or "")
    # Read anew, because `plain` moved what the record's own grounding points at.
    grounding = parse_grounding(text, run.model.family)
    return str(text_sections(text, grounding, uncertain, _MOST_REGIONS))


def _pages(
    run: Record, row: int, grounding: Grounding, table: pd.DataFrame
) -> list[dict[str, Any]]:
    """The pages of a row: size in pixels, boxes, and the address of the picture."""
    pages = []
    for place, number in enumerate(pages_of_row(run, row)):
        size = (run.pages[number].width, run.pages[number].height)
        regions = grounding.on_page(place).regions
        page = {
            "size": size,
            "boxes": boxes(regions, size, table),
            "href": page_address(run.page_image(number)),
        }
        pages.append(page)
    return pages


def page_address(image: Image | None) -> str:
    """A page as a JPEG in an address; empty for one that is not in the record."""
    if image is None:
        return ""
    _, jpeg = jpeg_file(image, *_PAGE_SIZE)
    return data_address(jpeg, "image/jpeg")


def boxes(
    regions: Sequence[Region], size: tuple[int, int], table: pd.DataFrame = UNTIMED
) -> list[dict[str, Any]]:
    """The first `MOST_BOXES` boxes of a page, as the browser draws them.

    Parameters
    ----------
    regions : sequence of Region
        The regions of the page.
    size : (int, int)
        ``(width, height)`` of the page in pixels.
    table : DataFrame, optional
        The regions with their times (`regions_of`). The default has none.

    Returns
    -------
    list of dict
        The fields of a box, in pixels, and its ``tag``, which is None where there is no room for
        one. The smallest box is the last, so that it lies on top.
    """
    marked = region_boxes(regions, size, table)[:MOST_BOXES]
    drawn = []
    tags = place_tags(marked, size, _type_size(size))
    for marked_box, tag in zip(marked, tags, strict=True):
        box = marked_box._asdict()
        box["tag"] = None
        if tag is not None:
            box["tag"] = tag._asdict()
        drawn.append(box)
    return sorted(drawn, key=_area, reverse=True)


def _type_size(size: tuple[int, int]) -> int:
    """The size of the browser's type in pixels of a page of this ``size``, shown as it usually is.

    On a long and narrow page there is room for smaller type alone.
    """
    return max(1, min(round(_SHARE_OF_TYPE * max(size)), min(size) // 8))


def _area(drawn: dict[str, Any]) -> float:
    left, top, right, bottom = drawn["box"]
    return float((right - left) * (bottom - top))


def _values(column: pd.Series) -> list[Any]:
    """A column for JSON, rounded to four decimals; a missing value is None.

    Four decimals of a time in ms are a tenth of a microsecond.
    """
    values: list[Any] = []
    for value in column.tolist():
        if pd.isna(value):
            values.append(None)
        else:
            values.append(round(value, 4))
    return values


def _regions(
    run: Record, row: int, grounding: Grounding, table: pd.DataFrame
) -> list[dict[str, Any]]:
    """The first regions of a row, each with its words, its first token, page and time in ms.

    ``line`` is what a list says of a region, ``facts`` is a sentence about it, and ``name`` is how
    another sentence calls it.
    """
    first_tokens = tokens_of(run, row).groupby("region")["index"].min().to_dict()
    pages = {region.index: region.page for region in grounding.regions}
    listed = []
    for item in table.head(_MOST_REGIONS).to_dict("records"):
        number = item["region"]
        label = printable(str(item["label"]))
        short_name = f"{number} {label}"
        name = f"Region {short_name}"
        if number == PREAMBLE:
            short_name = label
            name = "Preamble"
        region = {
            "region": number,
            "line": _region_line(short_name, item),
            "facts": f"{name}: {', '.join(_region_facts(item))}",
            "name": name.partition(":")[0].lower(),
            "first": int(first_tokens.get(number, 0)),
            "page": pages.get(number),
            "ms": round(item["decode_ms"], 4),
        }
        listed.append(region)
    return listed


def _region_line(name: str, item: dict[Hashable, Any]) -> str:
    """A region in one line: its name, tokens and time, and how its text begins."""
    words = [name]
    if item["uncertain"]:
        words.append("uncertain")
    words.append(count_text(item["tokens"], "token"))
    words.append(ms_text(item["decode_ms"]))
    excerpt = printable(str(item["text"]), 36)
    if excerpt:
        words.append(excerpt)
    return " · ".join(words)


def _region_facts(item: dict[Hashable, Any]) -> list[str]:
    """What a region took, and how sure the model was of it."""
    share = percent_text(item["share"])
    facts = [
        count_text(item["tokens"], "token"),
        f"{ms_text(item['decode_ms'])} ({share} of the time of all tokens)",
    ]
    if item["characters"]:
        facts.append(f"{ms_text(item['ms_per_char'])} per character")
    if math.isfinite(item["probability"]):
        facts.append(f"mean token probability {percent_text(item['probability'])}")
    if item["uncertain"]:
        facts.append("uncertain")
    return facts


def _note(run: Record, row: int, grounding: Grounding) -> str:
    """What is missing of this row's page; empty for nothing."""
    if run.results[row].text is None:
        return "This record has no text, so its regions are unknown."
    if not run.has_page:
        return " ".join([NO_PAGE, *page_notes(run, row)])
    sentences = page_notes(run, row)
    if any(run.pages[number].data is None for number in pages_of_row(run, row)):
        sentences.append("This record has no page image: the boxes are on an empty sheet.")
    if grounding.dropped:
        sentences.append(f"{grounding.dropped} box(es) could not be read.")
    if len(grounding.regions) > _MOST_REGIONS:
        sentences.append(
            f"The lists and the rendered text show the first {_MOST_REGIONS:,} of "
            f"{len(grounding.regions):,} regions."
        )
    if not grounding.regions:
        sentences.append("The output marks no region on the page.")
    return " ".join(sentences)
