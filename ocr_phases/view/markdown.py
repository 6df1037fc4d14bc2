"""A model's text as HTML that no text can break out of: Markdown, and tables that are HTML."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

import mistune

from ocr_phases.analyse.grounding import PREAMBLE, Grounding
from ocr_phases.analyse.text import few_blanks
from ocr_phases.show.web import Html, element, fragment

_TABLE = re.compile(r"(<table\b[^<>]*>(?:(?!<table\b).)*?</table>)", re.DOTALL)
#: A tag of a table, in escaped text.
_CELL_TAG = re.compile(
    r"&lt;(/?(?:table|thead|tbody|tr|td|th)\b)((?:(?!&[lg]t;).)*)&gt;", re.DOTALL
)
_SPAN = re.compile(r"\b(colspan|rowspan)\s*=\s*[\"']?([0-9]{1,3})\b")
#: Rules of Markdown that a page's text does not follow: what is indented on a page is no code, and
#: a backslash may begin a formula. Links and pictures stay text, and so does HTML.
_NO_BLOCKS = ("raw_html", "indent_code", "ref_link")
_NOT_INLINE = ("escape", "link", "auto_link", "auto_email", "inline_html")


class _LoweredHeadings(mistune.HTMLRenderer):
    """Headings stand below those of the report or notebook that shows them."""

    def heading(self, text: str, level: int, **attributes: Any) -> str:
        return super().heading(text, min(level + 2, 6), **attributes)


def _markdown_reader() -> mistune.Markdown:
    renderer = _LoweredHeadings(escape=True)
    reader = mistune.create_markdown(renderer=renderer, hard_wrap=True, plugins=["table"])
    reader.block.rules = [rule for rule in reader.block.rules if rule not in _NO_BLOCKS]
    reader.inline.rules = [rule for rule in reader.inline.rules if rule not in _NOT_INLINE]
    return reader


_MARKDOWN = _markdown_reader()


def markdown_html(text: str) -> Html:
    """Markdown as HTML, with the tables in it that are HTML; other HTML, links and pictures stay
    text.

    Tables come as the models write them (HTML) or as Markdown.

    Examples
    --------
    >>> markdown_html("# Invoice")
    Markup('<h3>Invoice</h3>\\n')
    """
    pieces = []
    for place, piece in enumerate(_TABLE.split(few_blanks(text))):
        is_table = place % 2 == 1  # every second piece is what the pattern found
        if is_table:
            pieces.append(_html_table(piece))
        else:
            pieces.append(str(_MARKDOWN(piece)))
    return Html("".join(pieces))


def _html_table(table: str) -> str:
    """The rows and cells of a table that is HTML; every other tag in it becomes text."""
    escaped = html.escape(table, quote=False)
    return _CELL_TAG.sub(_cell_tag, escaped)


def _cell_tag(escaped_tag: re.Match[str]) -> str:
    """A tag of a table as a tag again. Of its attributes only the spans of a cell stay."""
    name, attributes = escaped_tag.groups()
    tag = f"<{name}"
    for span, number in _SPAN.findall(attributes):
        tag += f' {span}="{number}"'
    return f"{tag}>"


def text_sections(text: str, grounding: Grounding, uncertain: Sequence[int], most: int) -> Html:
    """An output's text as sections: one for each region, and one for what stands before the first.

    They are in the order of the text. Each has the number of its region, or that of `PREAMBLE`.

    Parameters
    ----------
    text : str
        The output, with the marks of its regions.
    grounding : Grounding
        Its regions.
    uncertain : sequence of int
        The numbers of the regions that the model was not sure of.
    most : int
        Of more places that begin a section the first so many are shown.
    """
    sections = []
    uncertain_regions = frozenset(uncertain)
    for number, words in islice(_section_texts(text, grounding), most):
        if not words:
            continue
        look = None
        if number in uncertain_regions:
            look = "opv-uncertain"
        section = element("section", markdown_html(words), data_region=number, class_=look)
        sections.append(section)
    return fragment(*sections)


def _section_texts(text: str, grounding: Grounding) -> Iterator[tuple[int, str]]:
    """The number of each region with its text, and `PREAMBLE` with what a page begins with."""
    starts = [(0, PREAMBLE)]
    for start in grounding.page_starts:
        starts.append((start, PREAMBLE))
    for region in grounding.regions:
        starts.append((region.start, region.index))
    starts.sort()
    ends = [start for start, _ in starts[1:]]
    ends.append(len(text))
    for (start, number), end in zip(starts, ends, strict=True):
        if number == PREAMBLE:
            yield PREAMBLE, text[start:end].removeprefix(grounding.page_mark).strip()
        else:
            yield number, grounding.regions[number].text
