"""Texts as a reader sees them: plain, their tables as trees, and where they differ from a page's truth."""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Iterator, Sequence
from typing import Any

import mistune
import pandas as pd
from apted import APTED, Config
from rapidfuzz.distance import Levenshtein

from ocr_phases.analyse.grounding import Box, match_boxes, parse_grounding
from ocr_phases.record import PhaseRun
from ocr_phases.schema import Truth

DIFFERENCE_COLUMNS = ("region", "label", "box", "outcome", "cer", "written", "true")
EQUAL, DIFFERENT, MISSING, EXTRA = OUTCOMES = ("equal", "different", "missing", "extra")

MOST_NODES = 120
"""Nodes of a table; comparing the trees of two larger ones takes seconds."""
MOST_TREE_PAIRS = 200_000
"""Pairs of nodes of all tables of a text that are compared as trees, which takes 8 µs a pair."""

_IGNORED = ("image", "thematic_break")
_INLINE = ("link", "emphasis", "strong", "strikethrough")
_INLINE_TAGS = ("b", "i", "u", "s", "em", "strong", "sub", "sup", "span", "font", "small", "mark")
_MARKED = ("*", "_", "$", "\\", "`", "~")
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
#: A tag with its name and the rest, or a comment. None reaches past another's start, so reading is linear.
_TAG = re.compile(r"<(?:(/?)([a-zA-Z][^\s/<>]*)((?:[\s/][^<>]*)?)|[!?][^<>]*)>")
_TABLE = re.compile(r"<table|<(/)table[^<>]*>", re.IGNORECASE)
_SPAN = re.compile(r"\b(row|col)span\s*=\s*[\"']?\s*(\d{1,4})\b", re.IGNORECASE)
_AST = mistune.create_markdown(renderer="ast", plugins=["table", "strikethrough"])
_HTML = mistune.create_markdown(plugins=["table"])


def plain_text(markdown: str) -> str:
    """Markdown and HTML as plain text, in Unicode NFKC, each run of white space one space.

    Marks of headings, bullets, emphasis and formulas go; numbers, a table's cells and a link's text stay.
    """
    pieces: list[str] = []
    for is_table, part in _split_tables(few_blanks(markdown)):
        if is_table:
            pieces += [" ", _without_tags(part), " "]
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


def _split_tables(text: str) -> Iterator[tuple[bool, str]]:
    """The parts of a text, each with whether it is an HTML table; in time linear in its length."""
    done, start = 0, -1
    for tag in _TABLE.finditer(text):
        if tag[1] and start >= 0:
            yield False, text[done:start]
            yield True, text[start : tag.end()]
            done, start = tag.end(), -1
        elif not tag[1] and start < 0:
            start = tag.start()
    yield False, text[done:]


def _markup(text: str) -> Iterator[tuple[str, str, str]]:
    """The pieces of HTML in their order: ``(name, rest, "")`` a tag, ``("", "", text)`` what lies between.

    The name is in small letters, an end's begins with a slash; a comment is a tag without a name.
    """
    done = 0
    for tag in _TAG.finditer(text):
        yield "", "", _characters(text[done : tag.start()])
        yield f"{tag[1] or ''}{(tag[2] or '!').lower()}", tag[3] or "", ""
        done = tag.end()
    yield "", "", _characters(text[done:])


def _characters(text: str) -> str:
    return html.unescape(_LONG_NUMBER.sub("&amp;", text))


def _without_tags(text: str) -> str:
    """The character data of HTML, with a space at each tag that is not of a word's look."""
    pieces = (
        " " if name and name.strip("/") not in _INLINE_TAGS else said for name, _, said in _markup(text)
    )
    return "".join(pieces)


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
            pieces.append(_without_tags(node["raw"]))
        else:
            pieces.append(_characters(node.get("raw", " ")))


# -- tables -------------------------------------------------------------------------------------------


class Cell:
    """A node of a table's tree: the table, a row, or a cell with its text and spans (rows, columns)."""

    def __init__(self, name: str, spans: tuple[int, int] = (1, 1)) -> None:
        self.name, self.text, self.spans = name, "", spans
        self.children: list[Cell] = []

    def nodes(self) -> list[tuple[Any, ...]]:
        """This node and all below it in their order: name, text and spans."""
        below = (node for child in self.children for node in child.nodes())
        return [(self.name, self.text, self.spans), *below]


def tables_of(text: str) -> list[Cell]:
    """The tables of a text in their order, of HTML and of Markdown; cells are plain text."""
    tables = []
    for is_table, part in _split_tables(few_blanks(text)):
        if is_table:
            tables.append(_tree(part))
        elif "|" in part:
            tables += [_tree(table) for is_one, table in _split_tables(str(_HTML(part))) if is_one]
    return tables


def _tree(markup: str) -> Cell:
    """One HTML table; whatever is in it besides rows and cells is text of its cell."""
    table = Cell("table")
    for name, rest, said in _markup(markup):
        if name == "tr" or (name in ("td", "th") and not table.children):
            table.children.append(Cell("tr"))
        if name in ("td", "th"):
            spans = {kind.lower(): int(number) for kind, number in reversed(_SPAN.findall(rest))}
            table.children[-1].children.append(Cell("cell", (spans.get("row", 1), spans.get("col", 1))))
        elif said and table.children and table.children[-1].children:
            table.children[-1].children[-1].text += said
    for cell in (cell for row in table.children for cell in row.children):
        cell.text = (plain_text if any(mark in cell.text for mark in _MARKED) else one_line)(cell.text)
    return table


def similarities(mine: Sequence[Cell], true: Sequence[Cell]) -> list[float]:
    """`table_similarity` of each table with the one in its place, those within `MOST_TREE_PAIRS` as trees."""
    left, found = MOST_TREE_PAIRS, []
    for ours, theirs in zip(mine, true, strict=False):
        counts = len(ours.nodes()), len(theirs.nodes())
        left -= counts[0] * counts[1] if max(counts) <= MOST_NODES else 0
        found.append(table_similarity(ours, theirs, MOST_NODES if left >= 0 else 0))
    return found


def table_similarity(mine: Cell, true: Cell, most: int = MOST_NODES) -> float:
    """Tree edit distance similarity of two tables (TEDS, Zhong et al. 2020): 1 is equal, 0 nothing alike.

    As there, but for heads: ``thead``, ``th`` and looks within a cell do not count. Of a table of more than
    ``most`` nodes the nodes in their order are compared, not as a tree.
    """
    ours, theirs = mine.nodes(), true.nodes()
    if ours == theirs:
        return 1.0
    count = max(len(ours), len(theirs))
    if count > most:
        return float(Levenshtein.normalized_similarity(ours, theirs))
    return 1.0 - float(APTED(mine, true, _Costs()).compute_edit_distance()) / count


class _Costs(Config):
    """TEDS: a node's insertion or removal costs 1; two cells differ by their texts' normalised distance."""

    def rename(self, node1: Cell, node2: Cell) -> float:
        if (node1.name, node1.spans) != (node2.name, node2.spans):
            return 1.0
        return Levenshtein.normalized_distance(node1.text, node2.text)


# -- differences --------------------------------------------------------------------------------------

_Side = tuple[int | None, str, Box | None, str]  # the region's number, label, box and plain text


def text_measures(written: str, true: str) -> dict[str, tuple[float, int]]:
    """Each measure of a plain text with what it was taken over: characters or words of the truth.

    ``cer`` and ``wer``: Levenshtein distance in characters and words over the truth's length, as jiwer has
    them; may exceed 1. ``edit_distance``: the same distance over the longer text's length, 0 to 1.
    """
    words, edits = true.split(), Levenshtein.distance(written, true)
    return {
        "edit_distance": (edits / max(len(written), len(true), 1), len(true)),
        "cer": (edits / max(len(true), 1), len(true)),
        "wer": (Levenshtein.distance(written.split(), words) / max(len(words), 1), len(words)),
    }


def word_edits(written: str, true: str) -> list[tuple[str, str, str]]:
    """Two plain texts side by side: ``(kind, words written, words of the truth)``.

    ``kind`` is `EQUAL`, `DIFFERENT`, `MISSING` (only in the truth) or `EXTRA` (only written), with the fewest
    edits of words.
    """
    mine, theirs = written.split(), true.split()
    kinds = {"equal": EQUAL, "replace": DIFFERENT, "insert": MISSING, "delete": EXTRA}
    edits = []
    for op in Levenshtein.opcodes(mine, theirs):
        here, there = mine[op.src_start : op.src_end], theirs[op.dest_start : op.dest_end]
        edits.append((kinds[op.tag], " ".join(here), " ".join(there)))
    return edits


def region_differences(run: PhaseRun, truth: Truth, row: int = 0) -> pd.DataFrame:
    """A row's regions against the truth, columns `DIFFERENCE_COLUMNS`, in the order of the text.

    ``region`` is the number in the row's text, missing where only the truth has it; ``box`` is on the 0..999
    grid; ``outcome`` is one of `OUTCOMES`; ``written`` and ``true`` are plain texts; ``cer`` is over the true
    one, missing where there is none. Regions are paired by their boxes
    (`ocr_phases.analyse.grounding.match_boxes`). Where the text has none, its words go to the truth's
    regions; where the truth has none, or the row has several pages, the truth's words go to the text's: to
    those that they meet in the alignment with the fewest edits.
    """
    text = run.results[row]["text"] or ""
    regions = parse_grounding(text, run.model.get("family")).regions
    before = plain_text(text[: regions[0].start] if regions else text)
    written: list[_Side] = [(None, "preamble", None, before)] if before else []
    for region in (region for region in regions if region.label not in truth.ignored):
        box = region.boxes[0] if region.boxes else None
        written.append((region.index, region.label, box, plain_text(region.text)))
    true: list[_Side] = [
        (None, region.label, region.box, plain_text(region.text)) for region in truth.regions
    ]
    one_page = sum(page["row"] == row for page in run.pages) == 1
    if not (one_page and any(side[2] for side in true)):
        rows = [_line(side, own) for side, own in _by_words(written, plain_text(truth.text))]
    elif any(side[2] for side in written):
        rows = list(_by_boxes(written, true))
    else:
        given = _by_words(true, " ".join(side[3] for side in written))
        rows = [_line((*side[:3], own), side[3], lacks=bool(side[3]) and not own) for side, own in given]
    table = pd.DataFrame(rows, columns=list(DIFFERENCE_COLUMNS))
    return table.astype({"region": "Int64", "cer": "float64"})


def _by_boxes(written: Sequence[_Side], true: Sequence[_Side]) -> Iterator[tuple[object, ...]]:
    """The regions that share a box, and those of either side alone; missing ones behind the one before."""
    sides = [[[] if side[2] is None else [side[2]] for side in each] for each in (written, true)]
    mine_of = {place: mine for mine, place, _ in match_boxes(*sides)}
    true_of = {mine: true[place][3] for place, mine in mine_of.items()}
    # A missing region is told where the truth has it: behind the region before it.
    after: dict[int, list[_Side]] = {}
    last = -1
    for place, side in enumerate(true):
        last = mine_of.get(place, last)
        if place not in mine_of and (side[2] or side[3]):
            after.setdefault(last, []).append(side)
    for number in range(-1, len(written)):
        if number >= 0:
            yield _line(written[number], true_of.get(number))
        for side in after.get(number, ()):
            yield _line((*side[:3], ""), side[3], lacks=True)


def _by_words(sides: Sequence[_Side], other: str) -> list[tuple[_Side, str]]:
    """Each region with the words of the other text that the alignment gives it."""
    sides = sides or [(None, "preamble", None, "")]
    words = [(word, number) for number, side in enumerate(sides) for word in side[3].split()]
    owners, theirs = [number for _, number in words] or [0], other.split()
    given: list[list[str]] = [[] for _ in sides]
    for op in Levenshtein.opcodes([word for word, _ in words], theirs):
        if op.tag == "insert":  # to the region of the word before
            given[owners[max(op.src_start - 1, 0)]] += theirs[op.dest_start : op.dest_end]
            continue
        words_of = theirs[op.dest_start : op.dest_end]
        for place, word in zip(range(op.src_start, op.src_end), words_of, strict=False):
            given[owners[place]].append(word)
    return [(side, " ".join(own)) for side, own in zip(sides, given, strict=True)]


def _line(side: _Side, true: str | None, *, lacks: bool = False) -> tuple[object, ...]:
    region, label, box, written = side
    outcome = EQUAL if written == true else DIFFERENT
    if lacks:
        outcome = MISSING
    elif true is None or (written and not true):
        outcome = EXTRA
    cer = text_measures(written, true)["cer"][0] if true else None
    return region, label, box, outcome, cer, written, true or ""
