"""What the model wrote as Markdown, read into a tree of plain values that a browser builds elements from.

No HTML string is made: a node is ``[name, attributes, *children]``, text is a string, and names come from
this module alone. Links and pictures stay text, so nothing is fetched. Tables come as the models write them
(HTML) or as Markdown.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import mistune

from ocr_phases.analyse.grounding import PREAMBLE, Grounding
from ocr_phases.analyse.text import few_blanks

Node = str | list[Any]

_TABLE = re.compile(r"(<table\b[^<>]*>(?:(?!<table\b).)*?</table>)", re.DOTALL)
_CELL_TAG = re.compile(r"(</?(?:table|thead|tbody|tr|td|th)\b[^<>]*>)")
_SPAN = re.compile(r"\b(colspan|rowspan)\s*=\s*[\"']?([0-9]{1,3})\b")
_PLAIN = {
    "paragraph": "p",
    "block_quote": "blockquote",
    "list_item": "li",
    "strong": "strong",
    "emphasis": "em",
    "block_text": "span",
    "table": "table",
    "table_head": "tr",
    "table_body": "tbody",
    "table_row": "tr",
}


def _reader() -> mistune.Markdown:
    reader = mistune.create_markdown(renderer="ast", plugins=["table"])
    # A backslash may begin a formula; what is indented on a page is no code.
    for rules, unwanted in (
        (reader.block.rules, ("raw_html", "indent_code", "ref_link")),
        (reader.inline.rules, ("escape", "link", "auto_link", "auto_email", "inline_html")),
    ):
        rules[:] = [rule for rule in rules if rule not in unwanted]
    return reader


_MARKDOWN = _reader()


def rendered(text: str, grounding: Grounding) -> list[list[Any]]:
    """``[region, *nodes]`` of each region in the order of the text, and of what stands before one (-1)."""
    starts = [(0, PREAMBLE), *((start, PREAMBLE) for start in grounding.page_starts)]
    parts = sorted([*starts, *((region.start, region.index) for region in grounding.regions)])
    ends = [start for start, _ in parts[1:]] + [len(text)]
    found = []
    for (start, number), end in zip(parts, ends, strict=True):
        if number == PREAMBLE:
            words = text[start:end].removeprefix(grounding.page_mark).strip()
        else:
            words = grounding.regions[number].text
        if words:
            found.append([number, *markdown_nodes(words)])
    return found


def markdown_nodes(text: str) -> list[Node]:
    """Markdown, with the tables in it that are HTML, as nodes."""
    nodes: list[Node] = []
    for place, piece in enumerate(_TABLE.split(few_blanks(text))):
        nodes += [_html_table(piece)] if place % 2 else _nodes(_MARKDOWN(piece))
    return nodes


def _nodes(tokens: Any) -> list[Node]:
    return [node for token in tokens for node in _node(token)]


def _node(token: dict[str, Any]) -> Iterator[Node]:
    kind, given = token["type"], token.get("attrs", {})
    inside = _nodes(token.get("children", ()))
    if kind == "heading":
        yield [f"h{given['level']}", {}, *inside]
    elif kind == "list":
        yield ["ol" if given.get("ordered") else "ul", {}, *inside]
    elif kind == "table_cell":
        yield ["th" if given.get("head") else "td", {}, *inside]
    elif kind in _PLAIN:
        yield [_PLAIN[kind], {}, *inside]
    elif kind == "block_code":
        yield ["pre", {}, token["raw"]]
    elif kind == "codespan":
        yield ["code", {}, token["raw"]]
    elif kind == "thematic_break":
        yield ["hr", {}]
    elif kind in ("linebreak", "softbreak"):
        yield ["br", {}]
    elif "raw" in token:
        yield token["raw"]


def _html_table(table: str) -> Node:
    """A table's rows and cells; every other tag in it is text."""
    rows: list[Node] = []
    cell: list[Any] | None = None
    for place, piece in enumerate(_CELL_TAG.split(table)):
        if place % 2 == 0:
            if cell is not None and piece:
                cell.append(piece)
        elif piece.startswith("<tr"):
            rows.append(["tr", {}])
            cell = None
        elif piece.startswith(("<td", "<th")) and not piece.startswith("<thead"):
            cell = [piece[1:3], dict(_SPAN.findall(piece))]
            if not rows:
                rows.append(["tr", {}])
            rows[-1].append(cell)  # type: ignore[union-attr]
        else:
            cell = None
    return ["table", {}, *rows]
