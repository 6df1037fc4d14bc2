"""What the linked view draws of a row: plain values, ready for JSON."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Sequence
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
from ocr_phases.record import Record
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
_COLUMNS = {
    "ms": "device_ms",
    **{name: name for name in ("step", "cache_len", "region", "probability")},
}
_USUAL = 0.98  # of all steps: what takes longer shares the end of a scale

_TABLE = re.compile(r"(<table\b[^<>]*>(?:(?!<table\b).)*?</table>)", re.DOTALL)
# In escaped text.
_CELL_TAG = re.compile(
    r"&lt;(/?(?:table|thead|tbody|tr|td|th)\b)((?:(?!&[lg]t;).)*)&gt;", re.DOTALL
)
_SPAN = re.compile(r"\b(colspan|rowspan)\s*=\s*[\"']?([0-9]{1,3})\b")


class _Lower(mistune.HTMLRenderer):
    """Headings stand below those of the report or notebook that shows them."""

    def heading(self, text: str, level: int, **attributes: Any) -> str:
        return super().heading(text, min(level + 2, 6), **attributes)


def _reader() -> mistune.Markdown:
    renderer = _Lower(escape=True)
    reader = mistune.create_markdown(renderer=renderer, hard_wrap=True, plugins=["table"])
    # A backslash may begin a formula; what is indented on a page is no code; links and pictures
    # stay text.
    for rules, unwanted in (
        (reader.block.rules, ("raw_html", "indent_code", "ref_link")),
        (reader.inline.rules, ("escape", "link", "auto_link", "auto_email", "inline_html")),
    ):
        rules[:] = [rule for rule in rules if rule not in unwanted]
    return reader


_MARKDOWN = _reader()


def row_data(run: Record, row: int) -> dict[str, Any]:
    """Tokens, regions, boxes and notes of a batch row; ``ms`` is the device clock's median over
    repeats.
    """
    text, grounding = plain(run.results[row].text or ""), grounding_of(run, row)
    tokens, table = tokens_of(run, row), regions_of(run, row)
    times = tokens["device_ms"].dropna()
    uncertain = table.loc[table["uncertain"], "region"].tolist()
    pages = []
    for place, number in enumerate(pages_of_row(run, row)):
        size = run.pages[number].width, run.pages[number].height
        drawn = boxes(grounding.on_page(place).regions, size, table)
        pages.append({"size": size, "boxes": drawn, "href": page_address(run.page_image(number))})
    return {
        "rows": [printable(run.page_name(row), 40) for row in range(len(run.results))],
        "note": _note(run, row, grounding),
        "first": "the first token" if run.waits_for_first_token else "from the prefill",
        "texts": [plain(str(text)) for text in tokens["text"]],
        **{name: _values(tokens[column]) for name, column in _COLUMNS.items()},
        "uncertain": {"regions": uncertain, "legend": UNCERTAIN_TEXT},
        "slowest": tokens["device_ms"].nlargest(_SLOWEST).index.tolist(),
        "top": 1.3 * scale_of(times),
        "scale": [scale_of(times, 1 - _USUAL), scale_of(times)],
        "palette": [
            (each, type_colour(each)) for each in map(time_colour, np.linspace(0, 1, _COLOURS))
        ],
        "regions": _regions(run, row, grounding, table),
        "rendered": str(_rendered(text, parse_grounding(text, run.model.family), uncertain)),
        "pages": pages,
    }


def page_address(image: Image | None) -> str:
    """A page as a JPEG in an address; empty for one that is not in the record."""
    return "" if image is None else data_address(jpeg_file(image, *_PAGE_SIZE)[1], "image/jpeg")


def boxes(
    regions: Sequence[Region], size: tuple[int, int], table: pd.DataFrame = UNTIMED
) -> list[dict[str, Any]]:
    """The first `MOST_BOXES` boxes in pixels of a page of ``size``, the smallest last, on top."""
    drawn = region_boxes(regions, size, table)[:MOST_BOXES]
    tags = [tag and tag._asdict() for tag in place_tags(drawn, size)]
    found = [{**box._asdict(), "tag": tag} for box, tag in zip(drawn, tags, strict=True)]
    return sorted(found, key=lambda each: -math.prod(np.subtract(each["box"][2:], each["box"][:2])))


def _values(column: pd.Series) -> list[Any]:
    """A column for JSON, to a tenth of a microsecond; None for none."""
    return [None if pd.isna(value) else round(value, 4) for value in column.tolist()]


def scale_of(times: Sequence[float] | pd.Series, part: float = _USUAL) -> float:
    """What this part of some times (ms) stays below, the bulk by default; 1 for no times."""
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
    first = tokens_of(run, row).groupby("region")["index"].min().to_dict()
    pages = {region.index: region.page for region in grounding.regions}
    found = []
    for item in table.head(_MOST_REGIONS).to_dict("records"):
        number, label, text = item["region"], printable(str(item["label"])), str(item["text"])
        name = label if number == PREAMBLE else f"{number} {label}"
        tokens, ms = count_text(item["tokens"], "token"), item["decode_ms"]
        facts = [tokens, f"{ms_text(ms)} ({percent_text(item['share'])} of the decode)"]
        facts += [f"{ms_text(item['ms_per_char'])} per character"] if item["characters"] else []
        if math.isfinite(item["probability"]):
            facts.append(f"mean token probability {percent_text(item['probability'])}")
        sure = ["uncertain"] if item["uncertain"] else []
        told = (
            f"{'Preamble' if number == PREAMBLE else f'Region {name}'}: {', '.join(facts + sure)}"
        )
        line = [name, *sure, tokens, ms_text(ms), printable(text, 36)]
        words = {
            "line": " · ".join(filter(None, line)),
            "facts": told,
            "name": told.split(":")[0].lower(),
        }
        place = {"first": int(first.get(number, 0)), "page": pages.get(number), "ms": round(ms, 4)}
        found.append({"region": number, **words, **place})
    return found


def _rendered(text: str, grounding: Grounding, uncertain: Sequence[int]) -> Html:
    """A section of each region in the order of the text, and of what stands before one (-1).

    Of more than `_MOST_REGIONS` sections the first are there.
    """
    starts = [(0, PREAMBLE), *((start, PREAMBLE) for start in grounding.page_starts)]
    parts = sorted([*starts, *((region.start, region.index) for region in grounding.regions)])
    ends = [start for start, _ in parts[1:]] + [len(text)]
    found = []
    doubted = set(uncertain)
    for (start, number), end in islice(zip(parts, ends, strict=True), _MOST_REGIONS):
        before = text[start:end].removeprefix(grounding.page_mark).strip()
        words = before if number == PREAMBLE else grounding.regions[number].text
        if words:
            doubt = "opv-uncertain" if number in doubted else None
            found.append(element("section", markdown_html(words), data_region=number, class_=doubt))
    return fragment(*found)


def markdown_html(text: str) -> Html:
    """Markdown as HTML, with the tables in it that are HTML; other HTML, links and pictures stay
    text.

    Tables come as the models write them (HTML) or as Markdown.
    """
    pieces = enumerate(_TABLE.split(few_blanks(text)))
    return Html(
        "".join(_html_table(each) if at % 2 else str(_MARKDOWN(each)) for at, each in pieces)
    )


def _html_table(table: str) -> str:
    """A table's rows and cells, without attributes but their spans; every other tag in it is
    text.
    """
    return _CELL_TAG.sub(_cell_tag, html.escape(table, quote=False))


def _cell_tag(found: re.Match[str]) -> str:
    spans = [f' {name}="{number}"' for name, number in _SPAN.findall(found[2])]
    return f"<{found[1]}{''.join(spans)}>"


def _note(run: Record, row: int, grounding: Grounding) -> str:
    """What is missing of this row's page; empty for nothing."""
    if run.results[row].text is None:
        return "This record has no text, so its regions are unknown."
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
