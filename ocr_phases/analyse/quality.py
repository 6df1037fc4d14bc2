"""What a reading lost: a record's text, tables, boxes and order against the truth of its page.

docs/quality.md defines each measure. Lower is better for distances and error rates, higher for the others.
"""

from __future__ import annotations

import html
import re
import unicodedata
from collections.abc import Mapping, Sequence
from html.parser import HTMLParser
from typing import Any

import mistune
import pandas as pd
from apted import APTED, Config
from rapidfuzz.distance import Levenshtein

from ocr_phases.analyse.grounding import Box, Region, intersection_over_union, parse_grounding
from ocr_phases.analyse.steps import repetition_loop
from ocr_phases.errors import OcrPhasesError
from ocr_phases.record import PhaseRun
from ocr_phases.truth import TrueRegion, Truth

QUALITY_COLUMNS = ("measure", "label", "value", "count")
#: What measures are called against a reference; the others are then left out.
AGREEMENT = {
    "edit_distance": "agreement",
    "table_similarity": "table_agreement",
    "box_recall": "box_agreement",
}
#: Measures that are better when they are higher.
QUALITY_HIGHER = ("table_similarity", "box_recall", "box_iou", *AGREEMENT.values())
MATCHED_IOU = 0.5
"""Two boxes are of one region from this intersection over union on."""

#: Nodes of one table; comparing larger ones takes minutes.
MOST_NODES = 1_500

_IGNORED = ("image", "thematic_break")
_INLINE = ("link", "emphasis", "strong", "strikethrough")
_SPACE = re.compile(r"\s+")
_BULLET = re.compile(r"^[ \t]*[•◦▪‣●■][ \t]+", re.MULTILINE)
#: The marks of formulas. A single $ opens one where no space follows, and closes it where none precedes and
#: no digit follows, so that sums of money keep theirs.
_MATH = re.compile(r"\\[()\[\]]|\$\$")
_INLINE_MATH = re.compile(r"\$(?=\S)([^$\n]*[^\s$])\$(?!\d)")
_TABLE = re.compile(r"<table\b.*?</table\s*>", re.IGNORECASE | re.DOTALL)
_AST = mistune.create_markdown(renderer="ast", plugins=["table", "strikethrough"])


def quality_table(run: PhaseRun, truth: Truth | None, row: int = 0) -> pd.DataFrame:
    """A row's text against the truth, columns `QUALITY_COLUMNS`, one line a measure and label of region.

    ``value`` is a ratio, ``count`` what it was taken over: characters, words, regions or tables of the truth.
    ``label`` is empty for the whole page. Measures of regions and tables are there where the truth has them;
    ``repetition``, over the generated tokens, needs none. Against a reference (`Truth.reference`) the
    measures are called agreement. Raises `OcrPhasesError` for a record without its text and a truth without
    any.
    """
    text = run.results[row]["text"]
    if text is None:
        raise OcrPhasesError("This record has no text (return_text=False): measure the page with it.")
    pages = sum(page["row"] == row for page in run.pages)
    lines = [] if truth is None else _against(truth, text, run.model.get("family"), pages)
    lines.append(("", "repetition", *_repetition(run.results[row])))
    table = pd.DataFrame(lines, columns=["label", "measure", "value", "count"])
    return table[list(QUALITY_COLUMNS)]


def quality_of(run: PhaseRun, row: int = 0) -> dict[str, float]:
    """The measures of a whole row by the record's own truth, by name; empty where either has no text."""
    truth = run.truth_of(row)
    if truth is None or run.results[row]["text"] is None or not plain_text(truth.text):
        return {}
    table = quality_table(run, truth, row)
    whole = table[table["label"] == ""]
    return dict(zip(whole["measure"], whole["value"], strict=True))


def _against(truth: Truth, text: str, family: str | None, pages: int) -> list[tuple[str, str, float, int]]:
    grounding = parse_grounding(text, family)
    written, true = plain_text(grounding.without_marks(text, truth.ignored)), plain_text(truth.text)
    if not true:
        raise OcrPhasesError(f"The truth {truth.file} has no text: give the page's text.")
    lines = [("", name, *pair) for name, pair in text_measures(written, true).items()]
    lines += [("", "table_similarity", *pair) for pair in _tables(text, truth.text)]
    if pages == 1 and any(region.box for region in truth.regions):  # a truth's boxes are of one page
        lines += _boxes(grounding.regions, truth.regions)
    if not truth.reference:
        return lines
    return [
        (label, AGREEMENT[measure], 1.0 - value if measure == "edit_distance" else value, count)
        for label, measure, value, count in lines
        if measure in AGREEMENT
    ]


def _repetition(result: Mapping[str, Any]) -> tuple[float, int]:
    """The share of the tokens that repeat those before them in a loop that ends the text."""
    ids = result["ids"][:-1] if result.get("finish_reason") == "eos" else result["ids"]
    period, covered = repetition_loop(ids) or (0, 0)
    return (covered - period) / max(len(ids), 1), len(ids)


def text_measures(written: str, true: str) -> dict[str, tuple[float, int]]:
    """Each measure of a plain text with what it was taken over: characters or words of the truth.

    ``cer`` and ``wer``: Levenshtein distance in characters and words over the truth's length, as jiwer has
    them; may exceed 1. ``edit_distance``: the same distance over the longer text's length, 0 to 1.
    """
    words = true.split()
    return {
        "edit_distance": (Levenshtein.normalized_distance(written, true), len(true)),
        "cer": (Levenshtein.distance(written, true) / max(len(true), 1), len(true)),
        "wer": (Levenshtein.distance(written.split(), words) / max(len(words), 1), len(words)),
    }


def plain_text(markdown: str) -> str:
    """Markdown and HTML as the characters a reader sees, in Unicode NFKC, each run of white space one space.

    Marks of headings, lists, emphasis and formulas go, a table's cells and a link's text stay.
    """
    pieces: list[str] = []
    # To a Markdown reader the marks of formulas are escapes, and tags within a line are text.
    prepared = _INLINE_MATH.sub(r" \1 ", _MATH.sub(" ", _BULLET.sub("", markdown)))
    prepared = _TABLE.sub(lambda table: f"\n\n{_without_tags(table[0])}\n\n", prepared)
    _collect(_AST(prepared), pieces)
    return _SPACE.sub(" ", unicodedata.normalize("NFKC", "".join(pieces))).strip()


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
            pieces.append(html.unescape(node.get("raw", " ")))


class _Text(HTMLParser):
    """The character data of HTML, with a space at each tag."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.pieces: list[str] = []

    def handle_data(self, data: str) -> None:
        self.pieces.append(data)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.pieces.append(" ")

    def handle_endtag(self, tag: str) -> None:
        self.pieces.append(" ")


def _without_tags(text: str) -> str:
    reader = _Text()
    reader.feed(text)
    reader.close()
    return "".join(reader.pieces)


def _tables(written: str, true: str) -> list[tuple[float, int]]:
    """The mean TEDS over the truth's tables; each is paired with the written one in its place."""
    trees = [[_tree(table[0]) for table in _TABLE.finditer(text)] for text in (written, true)]
    ours, theirs = trees
    if not theirs:
        return []
    scores = [table_similarity(mine, table) for mine, table in zip(ours, theirs, strict=False)]
    return [(sum(scores) / len(theirs), len(theirs))]


class Cell:
    """A node of a table's tree: the table, a row, or a cell with its text and spans."""

    def __init__(self, name: str, text: str = "", spans: tuple[int, int] = (1, 1)) -> None:
        self.name, self.text, self.spans = name, text, spans
        self.children: list[Cell] = []

    def count(self) -> int:
        """This node and all below it."""
        return 1 + sum(child.count() for child in self.children)


class _Costs(Config):
    """TEDS: a node's insertion or removal costs 1; two cells differ by their texts' normalised distance."""

    def rename(self, node1: Cell, node2: Cell) -> float:
        if (node1.name, node1.spans) != (node2.name, node2.spans):
            return 1.0
        return Levenshtein.normalized_distance(node1.text, node2.text)


def table_similarity(mine: Cell, true: Cell) -> float:
    """Tree edit distance similarity of two tables (TEDS, Zhong et al. 2020): 1 is equal, 0 nothing alike.

    A table of more than `MOST_NODES` nodes counts as unlike any other that is not equal to it.
    """
    nodes = max(mine.count(), true.count())
    if nodes > MOST_NODES:
        return float(_flat(mine) == _flat(true))
    return 1.0 - float(APTED(mine, true, _Costs()).compute_edit_distance()) / nodes


def _flat(node: Cell) -> list[tuple[Any, ...]]:
    return [(node.name, node.text, node.spans), *(item for child in node.children for item in _flat(child))]


def _tree(markup: str) -> Cell:
    reader = _TableReader()
    reader.feed(markup)
    reader.close()
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
            cell = self.table.children[-1].children[-1]
            cell.text = _SPACE.sub(" ", unicodedata.normalize("NFKC", f"{cell.text}{data}")).strip(" ")


def _span(text: str | None) -> int:
    return int(text) if text is not None and text.isdecimal() and len(text) < 5 else 1


def _boxes(ours: Sequence[Region], theirs: Sequence[TrueRegion]) -> list[tuple[str, str, float, int]]:
    """Box recall and mean IoU of the matched, for all and by label, and the order's distance."""
    placed = [(region.label, region.box) for region in theirs if region.box is not None]
    pairs = match_boxes([region.boxes[:1] for region in ours], [box for _, box in placed])
    lines: list[tuple[str, str, float, int]] = []
    for label in ["", *dict.fromkeys(label for label, _ in placed)]:
        mine = {place for place, (kind, _) in enumerate(placed) if label in ("", kind)}
        found = [overlap for _, place, overlap in pairs if place in mine]
        lines.append((label, "box_recall", len(found) / len(mine), len(mine)))
        if found:
            lines.append((label, "box_iou", sum(found) / len(found), len(found)))
    if pairs:
        order = [place for _, place, _ in sorted(pairs)]
        distance = Levenshtein.normalized_distance(order, sorted(order))
        lines.append(("", "order_distance", distance, len(order)))
    return lines


def match_boxes(ours: Sequence[Sequence[Box]], theirs: Sequence[Box]) -> list[tuple[int, int, float]]:
    """Pairs ``(ours, theirs, IoU)`` of at least `MATCHED_IOU`, best first, each region in one at most."""
    found = [
        (intersection_over_union(box, other), mine, place)
        for mine, boxes in enumerate(ours)
        for box in boxes
        for place, other in enumerate(theirs)
    ]
    pairs: list[tuple[int, int, float]] = []
    taken: set[int] = set()
    used: set[int] = set()
    for overlap, mine, place in sorted(found, reverse=True):
        if overlap >= MATCHED_IOU and mine not in used and place not in taken:
            pairs.append((mine, place, overlap))
            used.add(mine)
            taken.add(place)
    return pairs
