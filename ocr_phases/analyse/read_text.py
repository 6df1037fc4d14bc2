"""Markdown and HTML as the characters a reader sees: what texts are compared by."""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import Any

import mistune

_IGNORED = ("image", "thematic_break")
_INLINE = ("link", "emphasis", "strong", "strikethrough")
_INLINE_TAGS = ("b", "i", "u", "s", "em", "strong", "sub", "sup", "span", "font", "small", "mark")
_SPACE = re.compile(r"\s+")
_BULLET = re.compile(r"^[ \t]*[•◦▪‣●■][ \t]+", re.MULTILINE)
#: What Markdown takes for marks and a reader for text: a number before a paragraph, a note's number.
_NUMBER = re.compile(r"^([ \t]*\d{1,9})([.)])(?=\s)", re.MULTILINE)
_NOTE = re.compile(r"^([ \t]*)(?=\[[^\]\n]*\]:)", re.MULTILINE)
#: The marks of formulas. A single $ opens one where no space follows, and closes it where none precedes and
#: no digit follows, so that sums of money keep theirs.
_MATH = re.compile(r"\\[()\[\]]|\$\$")
_INLINE_MATH = re.compile(r"\$(?=\S)([^$\n]*[^\s$])\$(?!\d)")
#: What readers take quadratic time for, and no page has: blanks, and signs among which may be marks.
_BLANKS = re.compile(r"[^\S\n]{101,}")
_SIGNS = re.compile(r"[^\w\s\x00-\x7f]{31,}")
_MOST_MARKS = 30
#: A number of a character that has more digits than any has; Python refuses to read the longest.
_LONG_NUMBER = re.compile(r"&(?=#[0-9]{20})")
_AST = mistune.create_markdown(renderer="ast", plugins=["table", "strikethrough"])


def plain_text(markdown: str) -> str:
    """Markdown and HTML as plain text, in Unicode NFKC, each run of white space one space.

    Marks of headings, bullets, emphasis and formulas go; numbers, a table's cells and a link's text stay.
    """
    pieces: list[str] = []
    for is_table, part in split_tables(few_blanks(markdown)):
        if is_table:
            pieces += [" ", without_tags(part), " "]
            continue
        # To a Markdown reader the marks of formulas are escapes.
        prepared = _INLINE_MATH.sub(r" \1 ", _MATH.sub(" ", _BULLET.sub("", part)))
        prepared = _NOTE.sub(r"\1\\", _NUMBER.sub(r"\1\\\2", prepared))
        _collect(_AST(prepared), pieces)
    return one_line("".join(pieces))


def one_line(text: str) -> str:
    """Text in Unicode NFKC, each run of white space one space.

    More than 30 marks on a character are in Unicode's Stream-Safe format.
    """
    return _SPACE.sub(" ", unicodedata.normalize("NFKC", _SIGNS.sub(_stream_safe, text))).strip()


def few_blanks(text: str) -> str:
    """The text with at most 100 blanks in a row, which mean the same in Markdown."""
    return _BLANKS.sub(lambda run: run[0][:100], text)


def _stream_safe(signs: re.Match[str]) -> str:
    """A joiner after each 30 marks: sorting a run of marks takes quadratic time."""
    pieces, marks = [], 0
    for sign in signs[0]:
        marks = marks + 1 if unicodedata.combining(sign) else 0
        if marks > _MOST_MARKS:
            pieces.append("\N{COMBINING GRAPHEME JOINER}")
            marks = 1
        pieces.append(sign)
    return "".join(pieces)


def split_tables(text: str) -> Iterator[tuple[bool, str]]:
    """The parts of a text, each with whether it is an HTML table; in time linear in its length."""
    lower, done = text.lower(), 0
    while (start := lower.find("<table", done)) >= 0:
        end = lower.find("</table", start)
        end = lower.find(">", end) if end >= 0 else end
        if end < 0:
            break
        yield False, text[done:start]
        yield True, text[start : end + 1]
        done = end + 1
    yield False, text[done:]


def without_tags(markup: str) -> str:
    """The character data of HTML, with a space at each tag that is not of a word's look."""
    reader = _Text()
    feed(reader, markup)
    return "".join(reader.pieces)


def feed(reader: HTMLParser, markup: str) -> None:
    """Give a reader all the markup, in time linear in its length."""
    # A tag that is never closed is text. The reader would look for its end from each one anew.
    head, end, tail = _LONG_NUMBER.sub("&amp;", markup).rpartition(">")
    reader.feed(f"{head}{end}{tail.replace('<', '&lt;')}")
    reader.close()


def _collect(nodes: Any, pieces: list[str]) -> None:
    """The characters of the parsed nodes in their order; blocks and cells apart."""
    waiting = list(reversed(nodes))
    while waiting:
        node = waiting.pop()
        if isinstance(node, str):
            pieces.append(node)
            continue
        kind = node["type"]
        if kind in _IGNORED:
            continue
        if "children" in node:
            waiting += ["" if kind in _INLINE else " ", *reversed(node["children"])]
        elif kind in ("block_html", "inline_html"):
            pieces.append(without_tags(node["raw"]))
        else:
            pieces.append(html.unescape(_LONG_NUMBER.sub("&amp;", node.get("raw", " "))))


class _Text(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.pieces: list[str] = []

    def handle_data(self, data: str) -> None:
        self.pieces.append(data)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        if tag not in _INLINE_TAGS:
            self.pieces.append(" ")

    def handle_endtag(self, tag: str) -> None:
        self.handle_starttag(tag, ())
