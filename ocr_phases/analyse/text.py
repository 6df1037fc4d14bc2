"""Texts as a reader sees them, their tables as trees, and how far two texts are apart."""

from __future__ import annotations

import importlib.util
import re
import unicodedata
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from itertools import groupby
from typing import Any, NamedTuple

import mistune
from mistune.util import unescape

EQUAL = "equal"
DIFFERENT = "different"
MISSING = "missing"
EXTRA = "extra"
#: What two texts may be to each other, region by region.
OUTCOMES = (EQUAL, DIFFERENT, MISSING, EXTRA)

#: Nodes of a table; comparing the trees of two larger ones takes seconds.
MOST_NODES = 120
#: Pairs of nodes of all tables of a text that are compared as trees, which takes 8 µs a pair.
MOST_TREE_PAIRS = 200_000

_INLINE = re.compile(r"a|b|i|u|s|em|strong|del|code|su[bp]|span|font|small|mark|img", re.IGNORECASE)
_EDITS = {"equal": EQUAL, "replace": DIFFERENT, "insert": MISSING, "delete": EXTRA}
_SPACE = re.compile(r"\s+")
_BULLET = re.compile(r"^[ \t]*[•◦▪‣●■][ \t]+", re.MULTILINE)
#: What Markdown takes for marks and a reader for text: a number before a paragraph, a note's
#: number.
_NUMBER = re.compile(r"^([ \t]*\d{1,9})([.)])(?=\s)", re.MULTILINE)
_NOTE = re.compile(r"^([ \t]*)(?=\[[^\]\n]*\]:)", re.MULTILINE)
#: The marks of formulas. A single $ opens one where no space follows, and closes it where none
#: precedes and no digit follows, so that sums of money keep theirs.
_MATH = re.compile(r"\\[()\[\]]|\$\$")
_INLINE_MATH = re.compile(r"\$(?=\S)([^$\n]*[^\s$])\$(?!\d)")
_MARKS_IN_CELLS = re.compile(r"[*_$\\`~]")
#: What readers take quadratic time for, and no page has: blanks, and signs among which may be
#: marks.
_BLANKS = re.compile(r"[^\S\n]{101,}")
_SIGNS = re.compile(r"[^\w\s\x00-\x7f]{31,}")
_THIRTY = re.compile(r".{30}(?=.)", re.DOTALL)
#: A tag with its name, or a comment. None reaches past another's start, so reading is linear.
_TAG = re.compile(r"<(?:/?([a-zA-Z][^\s/<>]*)(?:[\s/][^<>]*)?|[!?][^<>]*)>")
_TABLE = re.compile(r"(<table.*?</table[^<>]*>)", re.IGNORECASE | re.DOTALL)
_TABLE_END = re.compile(r"</table[^<>]*>", re.IGNORECASE)
_CELL = re.compile(r"<(tr|td|th)((?:[\s/][^<>]*)?)>", re.IGNORECASE)
_SPAN = re.compile(r"\b(row|col)span\s*=\s*[\"']?\s*(\d{1,4})\b", re.IGNORECASE)
_MARKDOWN = mistune.create_markdown(escape=False, plugins=["table", "strikethrough"])


def plain_text(markdown: str) -> str:
    """Markdown and HTML as plain text, in Unicode NFKC, each run of white space one space.

    Marks of headings, bullets, emphasis and formulas go; numbers, a table's cells and a link's text
    stay.
    """
    return _words(_html(markdown))


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
    safe = ""
    for are_marks, run in groupby(signs[0], key=lambda sign: unicodedata.combining(sign) > 0):
        piece = "".join(run)
        if are_marks:
            piece = _THIRTY.sub("\\g<0>\N{COMBINING GRAPHEME JOINER}", piece)
        safe += piece
    return safe


@lru_cache(maxsize=4)  # a truth is read as a text, and for its tables
def _html(text: str) -> str:
    """Markdown with HTML as HTML alone, of which the tables stay as they are."""
    parts = _split_tables(few_blanks(text))
    for place in range(0, len(parts), 2):
        part = _BULLET.sub("", parts[place])
        # To a Markdown reader the marks of formulas are escapes.
        part = _MATH.sub(" ", part)
        part = _INLINE_MATH.sub(r" \1 ", part)
        # An escape keeps what a reader takes for text and Markdown for a mark.
        part = _NUMBER.sub(r"\1\\\2", part)
        part = _NOTE.sub(r"\1\\", part)
        parts[place] = str(_MARKDOWN(part))
    return "".join(parts)


def _split_tables(text: str) -> list[str]:
    """The parts of a text, every second one an HTML table; in time linear in its length."""
    # Behind the last end there is none to be looked for.
    closed = max((end.end() for end in _TABLE_END.finditer(text)), default=0)
    *parts, last = _TABLE.split(text[:closed])
    return [*parts, last + text[closed:]]


def _words(markup: str) -> str:
    """The character data of HTML as one line, with a space at each tag that ends a word."""
    return one_line(unescape(_TAG.sub(_space_of_tag, markup)))


def _space_of_tag(tag: re.Match[str]) -> str:
    """What stands for a tag: nothing for the look of a word, such as bold; a space for others."""
    name = tag[1]  # None for a comment
    is_look_of_word = name is not None and _INLINE.fullmatch(name) is not None
    return "" if is_look_of_word else " "


# -- tables ----------------------------------------------------------------------------------------


class TableNode(NamedTuple):
    """A node of a table's tree: the table, a row, or a cell with its text and spans (rows,
    columns).
    """

    name: str
    text: str
    spans: tuple[int, int]
    children: list[TableNode]

    def nodes(self) -> list[tuple[Any, ...]]:
        """This node and all below it in their order: name, text and spans."""
        nodes: list[tuple[Any, ...]] = [(self.name, self.text, self.spans)]
        for child in self.children:
            nodes += child.nodes()
        return nodes

    def words(self) -> list[str]:
        """The words of a table behind its name; an empty cell's name stands for them."""
        words: list[str] = []
        for name, text, _ in self.nodes():
            if name != "tr":
                words += text.split() or [name]
        return words


def tables_of(text: str) -> list[TableNode]:
    """The tables of a text in their order, of HTML and of Markdown; cells are plain text."""
    return [_tree(table) for table in _split_tables(_html(text))[1::2]]


def _tree(markup: str) -> TableNode:
    """One HTML table; whatever is in it besides rows and cells is text of its cell."""
    rows: list[TableNode] = []
    pieces = _CELL.split(markup)
    for name, attributes, inside in zip(pieces[1::3], pieces[2::3], pieces[3::3], strict=True):
        is_row = name.lower() == "tr"
        if is_row or not rows:
            rows.append(TableNode("tr", "", (1, 1), []))
        if not is_row:
            text = _words(inside)
            if _MARKS_IN_CELLS.search(text):
                text = plain_text(text)
            rows[-1].children.append(TableNode("cell", text, _spans(attributes), []))
    return TableNode("table", "", (1, 1), rows)


def _spans(attributes: str) -> tuple[int, int]:
    """How many rows and columns a cell spans; of an attribute that is there twice, the first."""
    spans = {"row": 1, "col": 1}
    for kind, number in reversed(_SPAN.findall(attributes)):
        spans[kind.lower()] = int(number)
    return spans["row"], spans["col"]


def similarities(mine: Sequence[TableNode], true: Sequence[TableNode]) -> list[float]:
    """How alike the tables are that belong together: 1 is equal.

    It is the tree edit distance similarity (TEDS, Zhong et al. 2020), in which the heads of tables
    do not count: ``thead``, ``th`` and the looks of a cell are ignored. Tables of more than
    `MOST_NODES` nodes are compared node by node in their order instead of as trees, and so are all
    that come after `MOST_TREE_PAIRS` pairs of nodes. The tables are paired in their order, those
    that share most words where all of them are aligned.
    """
    from rapidfuzz.distance import Levenshtein

    tree_pairs = 0
    likeness = []
    for ours, theirs in _partners(mine, true):
        our_nodes = ours.nodes()
        their_nodes = theirs.nodes()
        as_trees = ours != theirs and max(len(our_nodes), len(their_nodes)) <= MOST_NODES
        if as_trees:
            tree_pairs += len(our_nodes) * len(their_nodes)
        if as_trees and tree_pairs <= MOST_TREE_PAIRS:
            likeness.append(_tree_similarity(ours, theirs))
        else:
            likeness.append(float(Levenshtein.normalized_similarity(our_nodes, their_nodes)))
    return likeness


def _tree_similarity(ours: TableNode, theirs: TableNode) -> float:
    """The similarity of two tables as trees, 0 to 1."""
    from apted import APTED

    distance = float(APTED(ours, theirs, _Costs()).compute_edit_distance())
    return 1.0 - distance / max(len(ours.nodes()), len(theirs.nodes()))


def _partners(
    mine: Sequence[TableNode], true: Sequence[TableNode]
) -> list[tuple[TableNode, TableNode]]:
    """The tables that belong together, because they share most words.

    All words of either side are aligned with the fewest edits. The pair of tables that shares most
    of the aligned words comes first, and a table is in one pair at most.
    """
    from rapidfuzz.distance import Levenshtein

    our_words = _words_with_table(mine)
    their_words = _words_with_table(true)
    edits: Any = Levenshtein.opcodes(
        [word for word, _ in our_words], [word for word, _ in their_words]
    )
    shared: Counter[tuple[int, int]] = Counter()
    for block in edits.as_matching_blocks():
        for offset in range(block.size):
            our_table = our_words[block.a + offset][1]
            their_table = their_words[block.b + offset][1]
            shared[our_table, their_table] += 1
    partner_of: dict[int, int] = {}
    taken: set[int] = set()
    for (our_table, their_table), _ in shared.most_common():
        if our_table not in partner_of and their_table not in taken:
            partner_of[our_table] = their_table
            taken.add(their_table)
    return [(mine[ours], true[theirs]) for ours, theirs in sorted(partner_of.items())]


def _words_with_table(tables: Sequence[TableNode]) -> list[tuple[str, int]]:
    """The words of all tables, each with the number of its table."""
    return [(word, number) for number, table in enumerate(tables) for word in table.words()]


class _Costs:
    """TEDS: a node's insertion or removal costs 1; two cells differ by their texts' normalised
    distance.

    It has what apted asks of a configuration; a class of its own needs no import of apted.
    """

    valuecls = int

    def delete(self, node: TableNode) -> int:
        return 1

    def insert(self, node: TableNode) -> int:
        return 1

    def children(self, node: TableNode) -> list[TableNode]:
        return node.children

    def rename(self, node1: TableNode, node2: TableNode) -> float:
        from rapidfuzz.distance import Levenshtein

        if (node1.name, node1.spans) != (node2.name, node2.spans):
            return 1.0
        return Levenshtein.normalized_distance(node1.text, node2.text)


# -- distances -------------------------------------------------------------------------------------


def missing_text_libraries() -> str:
    """Why texts that differ cannot be measured here; empty where they can."""
    for library in ("rapidfuzz", "apted"):
        if importlib.util.find_spec(library) is None:
            return f"{library} is not installed (pip install rapidfuzz apted)"
    return ""


def text_measures(written: str, true: str) -> dict[str, tuple[float, int]]:
    """Each measure of a plain text with what it was taken over: characters or words of the truth.

    ``cer`` and ``wer``: Levenshtein distance in characters and words over the truth's length, as
    jiwer has them; may exceed 1. ``edit_distance``: the same distance over the longer text's
    length, 0 to 1. Equal texts are measured without rapidfuzz.
    """
    words = true.split()
    if written == true:
        return {
            "edit_distance": (0.0, len(true)),
            "cer": (0.0, len(true)),
            "wer": (0.0, len(words)),
        }

    from rapidfuzz.distance import Levenshtein

    edits = Levenshtein.distance(written, true)
    word_distance = Levenshtein.distance(written.split(), words)
    return {
        "edit_distance": (edits / max(len(written), len(true), 1), len(true)),
        "cer": (edits / max(len(true), 1), len(true)),
        "wer": (word_distance / max(len(words), 1), len(words)),
    }


def word_edits(written: str, true: str) -> list[tuple[str, str, str]]:
    """Two plain texts side by side: ``(kind, words written, words of the truth)``.

    ``kind`` is `EQUAL`, `DIFFERENT`, `MISSING` (only in the truth) or `EXTRA` (only written), with
    the fewest edits of words.
    """
    from rapidfuzz.distance import Levenshtein

    mine = written.split()
    theirs = true.split()
    return [
        (
            _EDITS[edit.tag],
            " ".join(mine[edit.src_start : edit.src_end]),
            " ".join(theirs[edit.dest_start : edit.dest_end]),
        )
        for edit in Levenshtein.opcodes(mine, theirs)
    ]
