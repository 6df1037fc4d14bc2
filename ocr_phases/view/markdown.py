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
    """A table's rows and cells, without attributes but their spans; every other tag in it is
    text.
    """
    return _CELL_TAG.sub(_cell_tag, html.escape(table, quote=False))


def _cell_tag(match: re.Match[str]) -> str:
    name, attributes = match.groups()
    spans = [f' {span}="{number}"' for span, number in _SPAN.findall(attributes)]
    return f"<{name}{''.join(spans)}>"


def text_sections(text: str, grounding: Grounding, uncertain: Sequence[int], most: int) -> Html:
    """An output's text as a section of each region, in the order of the text, and of what stands
    before one (-1).

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
    is_uncertain = frozenset(uncertain)
    for number, words in islice(_section_texts(text, grounding), most):
        if not words:
            continue
        look = None
        if number in is_uncertain:
            look = "opv-uncertain"
        section = element("section", markdown_html(words), data_region=number, class_=look)
        sections.append(section)
    return fragment(*sections)


def _section_texts(text: str, grounding: Grounding) -> Iterator[tuple[int, str]]:
    """The number of each region with its text, and `PREAMBLE` with what a page begins with."""
    starts = [(0, PREAMBLE)]
    starts += [(start, PREAMBLE) for start in grounding.page_starts]
    starts += [(region.start, region.index) for region in grounding.regions]
    starts.sort()
    for place, (start, number) in enumerate(starts):
        if number != PREAMBLE:
            yield number, grounding.regions[number].text
            continue
        end = len(text)
        if place + 1 < len(starts):
            end = starts[place + 1][0]
        yield PREAMBLE, text[start:end].removeprefix(grounding.page_mark).strip()
