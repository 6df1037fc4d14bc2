"""Tables of a text as trees, and how alike two of them are."""

from __future__ import annotations

from collections.abc import Sequence
from html.parser import HTMLParser
from typing import Any

import mistune
from apted import APTED, Config
from rapidfuzz.distance import Levenshtein

from ocr_phases.analyse.read_text import feed, few_blanks, one_line, plain_text, split_tables

#: Nodes of a table; comparing the trees of two larger ones takes seconds.
MOST_NODES = 120
#: Pairs of nodes of all tables of a text that are compared as trees, which takes 8 µs a pair.
MOST_TREE_PAIRS = 200_000

_MARKED = ("*", "_", "$", "\\", "`", "~")
_HTML = mistune.create_markdown(plugins=["table"])


class Cell:
    """A node of a table's tree: the table, a row, or a cell with its text and spans."""

    def __init__(self, name: str, text: str = "", spans: tuple[int, int] = (1, 1)) -> None:
        self.name, self.text, self.spans = name, text, spans
        self.children: list[Cell] = []

    def count(self) -> int:
        """This node and all below it."""
        return 1 + sum(child.count() for child in self.children)


def tables_of(text: str) -> list[Cell]:
    """The tables of a text in their order, of HTML and of Markdown; cells are plain text."""
    found = []
    for is_table, part in split_tables(few_blanks(text)):
        if is_table:
            found.append(_tree(part))
        elif "|" in part:
            found += [_tree(table) for is_one, table in split_tables(str(_HTML(part))) if is_one]
    return found


def similarities(mine: Sequence[Cell], true: Sequence[Cell]) -> list[float]:
    """`table_similarity` of each table with the one in its place, those within `MOST_TREE_PAIRS` as trees."""
    left, found = MOST_TREE_PAIRS, []
    for ours, theirs in zip(mine, true, strict=False):
        counts = ours.count(), theirs.count()
        left -= counts[0] * counts[1] if max(counts) <= MOST_NODES else 0
        found.append(table_similarity(ours, theirs, MOST_NODES if left >= 0 else 0))
    return found


def table_similarity(mine: Cell, true: Cell, most: int = MOST_NODES) -> float:
    """Tree edit distance similarity of two tables (TEDS, Zhong et al. 2020): 1 is equal, 0 nothing alike.

    As there, but for heads: ``thead``, ``th`` and looks within a cell do not count. Of a table of more than
    ``most`` nodes the nodes in their order are compared, not as a tree.
    """
    ours, theirs = _flat(mine), _flat(true)
    if ours == theirs:
        return 1.0
    nodes = max(len(ours), len(theirs))
    if nodes > most:
        return float(Levenshtein.normalized_similarity(ours, theirs))
    return 1.0 - float(APTED(mine, true, _Costs()).compute_edit_distance()) / nodes


class _Costs(Config):
    """TEDS: a node's insertion or removal costs 1; two cells differ by their texts' normalised distance."""

    def rename(self, node1: Cell, node2: Cell) -> float:
        if (node1.name, node1.spans) != (node2.name, node2.spans):
            return 1.0
        return Levenshtein.normalized_distance(node1.text, node2.text)


def _flat(node: Cell) -> list[tuple[Any, ...]]:
    return [(node.name, node.text, node.spans), *(item for child in node.children for item in _flat(child))]


def _tree(markup: str) -> Cell:
    reader = _TableReader()
    feed(reader, markup)
    for row in reader.table.children:
        for cell in row.children:
            marked = any(mark in cell.text for mark in _MARKED)
            cell.text = plain_text(cell.text) if marked else one_line(cell.text)
    return reader.table


class _TableReader(HTMLParser):
    """Rows and cells of one HTML table; whatever else is in it is text or left out."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.table = Cell("table")

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        if tag == "tr":
            self.table.children.append(Cell("tr"))
        elif tag in ("td", "th"):
            if not self.table.children:
                self.table.children.append(Cell("tr"))
            asked = dict(attrs)
            spans = tuple(_span(asked.get(name)) for name in ("rowspan", "colspan"))
            self.table.children[-1].children.append(Cell("cell", spans=(spans[0], spans[1])))

    def handle_data(self, data: str) -> None:
        if self.table.children and self.table.children[-1].children:
            self.table.children[-1].children[-1].text += data


def _span(text: str | None) -> int:
    return int(text) if text is not None and text.isdecimal() and len(text) < 5 else 1
