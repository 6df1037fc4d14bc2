"""What the linked view draws of a row: plain values, ready for JSON."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Hashable, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

import mistune
import numpy as np
import pandas as pd

from ocr_phases.analyse.grounding import PREAMBLE, Grounding, Region, parse_grounding
from ocr_phases.analyse.regions import regions_of
from ocr_phases.analyse.sentences import UNCERTAIN_TEXT
from ocr_phases.analyse.stages import grounding_of, tokens_of
from ocr_phases.analyse.text import few_blanks
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
from ocr_phases.show.web import Html, data_address, element, fragment, jpeg_file, printable
from ocr_phases.text import count_text, ms_text, percent_text, plain

if TYPE_CHECKING:
    from PIL.Image import Image

_PAGE_SIZE = (2_000, 2_000)  # pixels of the embedded page, which can be magnified
_COLOURS = 24
_SLOWEST = 6
_MOST_REGIONS = MOST_BOXES
#: What the view calls the columns of the tokens that it shows.
_COLUMNS = {
    "ms": "device_ms",
    "step": "step",
    "cache_len": "cache_len",
    "region": "region",
    "probability": "probability",
}
_USUAL = 0.98  # of all steps: what takes longer shares the end of a scale
_ROOM_ABOVE = 1.3  # the usual step ends at this part of a curve's height

_TABLE = re.compile(r"(<table\b[^<>]*>(?:(?!<table\b).)*?</table>)", re.DOTALL)
# In escaped text.
_CELL_TAG = re.compile(
    r"&lt;(/?(?:table|thead|tbody|tr|td|th)\b)((?:(?!&[lg]t;).)*)&gt;", re.DOTALL
)
_SPAN = re.compile(r"\b(colspan|rowspan)\s*=\s*[\"']?([0-9]{1,3})\b")


class _LoweredHeadings(mistune.HTMLRenderer):
    """Headings stand below those of the report or notebook that shows them."""

    def heading(self, text: str, level: int, **attributes: Any) -> str:
        return super().heading(text, min(level + 2, 6), **attributes)


def _markdown_reader() -> mistune.Markdown:
    renderer = _LoweredHeadings(escape=True)
    reader = mistune.create_markdown(renderer=renderer, hard_wrap=True, plugins=["table"])
    # A backslash may begin a formula; what is indented on a page is no code; links and pictures
    # stay text.
    for rules, unwanted in (
        (reader.block.rules, ("raw_html", "indent_code", "ref_link")),
        (reader.inline.rules, ("escape", "link", "auto_link", "auto_email", "inline_html")),
    ):
        rules[:] = [rule for rule in rules if rule not in unwanted]
    return reader


_MARKDOWN = _markdown_reader()


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
    text = plain(run.results[row].text or "")
    grounding = grounding_of(run, row)
    tokens = tokens_of(run, row)
    table = regions_of(run, row)
    times = tokens["device_ms"].dropna()
    uncertain = table.loc[table["uncertain"], "region"].tolist()
    colours = [time_colour(share) for share in np.linspace(0, 1, _COLOURS)]
    data = {
        "rows": [printable(run.page_name(row), 40) for row in range(len(run.results))],
        "note": _note(run, row, grounding),
        "first": "the first token" if run.waits_for_first_token else "from the prefill",
        "texts": [plain(str(text)) for text in tokens["text"]],
        "uncertain": {"regions": uncertain, "legend": UNCERTAIN_TEXT},
        "slowest": tokens["device_ms"].nlargest(_SLOWEST).index.tolist(),
        "top": curve_top(times),
        "scale": [scale_of(times, 1 - _USUAL), scale_of(times)],
        "palette": [(colour, type_colour(colour)) for colour in colours],
        "regions": _regions(run, row, grounding, table),
        "rendered": str(_rendered(text, parse_grounding(text, run.model.family), uncertain)),
        "pages": _pages(run, row, grounding, table),
    }
    for name, column in _COLUMNS.items():
        data[name] = _values(tokens[column])
    return data


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
    return "" if image is None else data_address(jpeg_file(image, *_PAGE_SIZE)[1], "image/jpeg")


def boxes(
    regions: Sequence[Region], size: tuple[int, int], table: pd.DataFrame = UNTIMED
) -> list[dict[str, Any]]:
    """The first `MOST_BOXES` boxes in pixels of a page of ``size``, the smallest last, on top."""
    marked = region_boxes(regions, size, table)[:MOST_BOXES]
    drawn = []
    for box, tag in zip(marked, place_tags(marked, size), strict=True):
        drawn.append({**box._asdict(), "tag": None if tag is None else tag._asdict()})
    return sorted(drawn, key=_area, reverse=True)


def _area(drawn: dict[str, Any]) -> float:
    left, top, right, bottom = drawn["box"]
    return float((right - left) * (bottom - top))


def _values(column: pd.Series) -> list[Any]:
    """A column for JSON, to a tenth of a microsecond; None for none."""
    return [None if pd.isna(value) else round(value, 4) for value in column.tolist()]


def curve_top(times: Sequence[float] | pd.Series) -> float:
    """Up to how many ms a curve of some times is drawn; what is higher is cut off."""
    return _ROOM_ABOVE * scale_of(times)


def scale_of(times: Sequence[float] | pd.Series, part: float = _USUAL) -> float:
    """The time in ms that this part of some times stays below, by default that of the usual ones; 1
    for no times.
    """
    return float(np.quantile(times, part)) if len(times) else 1.0


def slowest_points(
    times: Sequence[float] | pd.Series, length: int, most: int
) -> list[tuple[int, float]]:
    """``(token, ms)`` of the slowest of each few tokens, so that no slow one goes missing.

    An axis of ``length`` tokens gets ``most`` points at most; missing times give none.
    """
    known = pd.Series(times, dtype=float).dropna()
    together = max(math.ceil(length / most), 1)
    slowest = known[known.groupby(known.index // together).idxmax()].round(4)
    return list(zip(slowest.index.tolist(), slowest.tolist(), strict=True))


def _regions(
    run: Record, row: int, grounding: Grounding, table: pd.DataFrame
) -> list[dict[str, Any]]:
    """The first regions in words: ``line`` in a list, ``facts`` in a sentence."""
    first_tokens = tokens_of(run, row).groupby("region")["index"].min().to_dict()
    pages = {region.index: region.page for region in grounding.regions}
    listed = []
    for item in table.head(_MOST_REGIONS).to_dict("records"):
        number = item["region"]
        label = printable(str(item["label"]))
        short_name = label if number == PREAMBLE else f"{number} {label}"
        name = "Preamble" if number == PREAMBLE else f"Region {short_name}"
        line = [short_name]
        if item["uncertain"]:
            line.append("uncertain")
        line += [count_text(item["tokens"], "token"), ms_text(item["decode_ms"])]
        excerpt = printable(str(item["text"]), 36)
        if excerpt:
            line.append(excerpt)
        region = {
            "region": number,
            "line": " · ".join(line),
            "facts": f"{name}: {', '.join(_region_facts(item))}",
            "name": name.partition(":")[0].lower(),
            "first": int(first_tokens.get(number, 0)),
            "page": pages.get(number),
            "ms": round(item["decode_ms"], 4),
        }
        listed.append(region)
    return listed


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


def _rendered(text: str, grounding: Grounding, uncertain: Sequence[int]) -> Html:
    """A section of each region in the order of the text, and of what stands before one (-1).

    Of more than `_MOST_REGIONS` sections the first are there.
    """
    starts = [(0, PREAMBLE), *((start, PREAMBLE) for start in grounding.page_starts)]
    parts = sorted([*starts, *((region.start, region.index) for region in grounding.regions)])
    ends = [start for start, _ in parts[1:]] + [len(text)]
    sections = []
    is_uncertain = set(uncertain)
    for (start, number), end in islice(zip(parts, ends, strict=True), _MOST_REGIONS):
        words = text[start:end].removeprefix(grounding.page_mark).strip()
        if number != PREAMBLE:
            words = grounding.regions[number].text
        if not words:
            continue
        look = "opv-uncertain" if number in is_uncertain else None
        html = markdown_html(words)
        sections.append(element("section", html, data_region=number, class_=look))
    return fragment(*sections)


def markdown_html(text: str) -> Html:
    """Markdown as HTML, with the tables in it that are HTML; other HTML, links and pictures stay
    text.

    Tables come as the models write them (HTML) or as Markdown.
    """
    html = []
    for place, piece in enumerate(_TABLE.split(few_blanks(text))):
        is_table = place % 2 == 1  # every second piece is what the pattern found
        html.append(_html_table(piece) if is_table else str(_MARKDOWN(piece)))
    return Html("".join(html))


def _html_table(table: str) -> str:
    """A table's rows and cells, without attributes but their spans; every other tag in it is
    text.
    """
    return _CELL_TAG.sub(_cell_tag, html.escape(table, quote=False))


def _cell_tag(match: re.Match[str]) -> str:
    spans = [f' {name}="{number}"' for name, number in _SPAN.findall(match[2])]
    return f"<{match[1]}{''.join(spans)}>"


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
