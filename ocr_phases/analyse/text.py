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

EQUAL, DIFFERENT, MISSING, EXTRA = OUTCOMES = ("equal", "different", "missing", "extra")

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
    runs = groupby(signs[0], key=lambda sign: unicodedata.combining(sign) > 0)
    joined = "\\g<0>\N{COMBINING GRAPHEME JOINER}"
    return "".join(
        _THIRTY.sub(joined, "".join(run)) if marks else "".join(run) for marks, run in runs
    )


@lru_cache(maxsize=4)  # a truth is read as a text, and for its tables
def _html(text: str) -> str:
    """Markdown with HTML as HTML alone, of which the tables stay as they are."""
    parts = _split_tables(few_blanks(text))
    for place in range(0, len(parts), 2):
        # To a Markdown reader the marks of formulas are escapes.
        part = _INLINE_MATH.sub(r" \1 ", _MATH.sub(" ", _BULLET.sub("", parts[place])))
        parts[place] = str(_MARKDOWN(_NOTE.sub(r"\1\\", _NUMBER.sub(r"\1\\\2", part))))
    return "".join(parts)


def _split_tables(text: str) -> list[str]:
    """The parts of a text, every second one an HTML table; in time linear in its length."""
    # Behind the last end there is none to be looked for.
    closed = max((end.end() for end in _TABLE_END.finditer(text)), default=0)
    *parts, last = _TABLE.split(text[:closed])
    return [*parts, last + text[closed:]]


def _words(markup: str) -> str:
    """The character data of HTML as one line, with a space at each tag that is not of a word's
    look.
    """
    text = _TAG.sub(lambda tag: "" if _INLINE.fullmatch(tag[1] or "-") else " ", markup)
    return one_line(unescape(text))


# -- tables ----------------------------------------------------------------------------------------


class Cell(NamedTuple):
    """A node of a table's tree: the table, a row, or a cell with its text and spans (rows,
    columns).
    """

    name: str
    text: str
    spans: tuple[int, int]
    children: list[Cell]

    def nodes(self) -> list[tuple[Any, ...]]:
        """This node and all below it in their order: name, text and spans."""
        return [self[:3], *(node for child in self.children for node in child.nodes())]

    def words(self) -> list[str]:
        """The words of a table behind its name; an empty cell's name stands for them."""
        return [
            word
            for name, text, _ in self.nodes()
            if name != "tr"
            for word in text.split() or [name]
        ]


def tables_of(text: str) -> list[Cell]:
    """The tables of a text in their order, of HTML and of Markdown; cells are plain text."""
    return [_tree(table) for table in _split_tables(_html(text))[1::2]]


def _tree(markup: str) -> Cell:
    """One HTML table; whatever is in it besides rows and cells is text of its cell."""
    rows: list[Cell] = []
    pieces = _CELL.split(markup)
    for name, rest, inside in zip(pieces[1::3], pieces[2::3], pieces[3::3], strict=True):
        if name.lower() == "tr" or not rows:
            rows.append(Cell("tr", "", (1, 1), []))
        if name.lower() != "tr":
            text = _words(inside)
            text = plain_text(text) if _MARKS_IN_CELLS.search(text) else text
            spans = {kind.lower(): int(number) for kind, number in reversed(_SPAN.findall(rest))}
            rows[-1].children.append(
                Cell("cell", text, (spans.get("row", 1), spans.get("col", 1)), [])
            )
    return Cell("table", "", (1, 1), rows)


def similarities(mine: Sequence[Cell], true: Sequence[Cell]) -> list[float]:
    """Tree edit distance similarity (TEDS, Zhong et al. 2020) of the tables that belong together: 1
    is equal.

    As there, but for heads: ``thead``, ``th`` and looks within a cell do not count. Of tables of
    more than `MOST_NODES`, and of those beyond `MOST_TREE_PAIRS`, the nodes in their order are
    compared, not as trees. Tables are paired in their order, those that share most words where all
    of them are aligned.
    """
    from apted import APTED
    from rapidfuzz.distance import Levenshtein

    left, found = MOST_TREE_PAIRS, []
    for ours, theirs in _partners(mine, true):
        nodes = ours.nodes(), theirs.nodes()
        small = ours != theirs and max(map(len, nodes)) <= MOST_NODES
        left -= len(nodes[0]) * len(nodes[1]) if small else 0
        if small and left >= 0:
            distance = float(APTED(ours, theirs, _Costs()).compute_edit_distance())
            found.append(1.0 - distance / max(map(len, nodes)))
        else:
            found.append(float(Levenshtein.normalized_similarity(*nodes)))
    return found


def _partners(mine: Sequence[Cell], true: Sequence[Cell]) -> list[tuple[Cell, Cell]]:
    """The tables that belong together: those that share most where all words are aligned, by fewest
    edits.
    """
    from rapidfuzz.distance import Levenshtein

    sides = [
        [(word, at) for at, table in enumerate(side) for word in table.words()]
        for side in (mine, true)
    ]
    edits: Any = Levenshtein.opcodes(*([word for word, _ in side] for side in sides))
    same = (
        (our + k, their + k) for our, their, size in edits.as_matching_blocks() for k in range(size)
    )
    shared = Counter((sides[0][our][1], sides[1][their][1]) for our, their in same)
    pairs: dict[int, int] = {}
    given = set()
    for (our, their), _ in shared.most_common():
        if our not in pairs and their not in given:
            pairs[our] = their
            given.add(their)
    return [(mine[our], true[their]) for our, their in sorted(pairs.items())]


class _Costs:
    """TEDS: a node's insertion or removal costs 1; two cells differ by their texts' normalised
    distance.

    It has what apted asks of a configuration; a class of its own needs no import of apted.
    """

    valuecls = int

    def delete(self, node: Cell) -> int:
        return 1

    def insert(self, node: Cell) -> int:
        return 1

    def children(self, node: Cell) -> list[Cell]:
        return node.children

    def rename(self, node1: Cell, node2: Cell) -> float:
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

    mine, theirs = written.split(), true.split()
    edits: Any = Levenshtein.opcodes(mine, theirs)
    return [(_EDITS[tag], " ".join(mine[a:b]), " ".join(theirs[c:d])) for tag, a, b, c, d in edits]
