"""Where a text differs from the truth of its page: region by region, word by word."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pandas as pd
from rapidfuzz.distance import Levenshtein

from ocr_phases.analyse.grounding import Box, parse_grounding
from ocr_phases.analyse.quality import match_boxes, text_measures
from ocr_phases.analyse.read_text import plain_text
from ocr_phases.record import PhaseRun
from ocr_phases.schema import Truth

DIFFERENCE_COLUMNS = ("region", "label", "box", "outcome", "cer", "written", "true")
EQUAL, DIFFERENT, MISSING, EXTRA = OUTCOMES = ("equal", "different", "missing", "extra")

_Side = tuple[int | None, str, Box | None, str]  # the region's number, label, box and plain text
_PREAMBLE: _Side = (None, "preamble", None, "")


def region_differences(run: PhaseRun, truth: Truth, row: int = 0) -> pd.DataFrame:
    """A row's regions against the truth, columns `DIFFERENCE_COLUMNS`, in the order of the text.

    ``region`` is the number in the row's text, missing where only the truth has it; ``box`` is on the 0..999
    grid; ``outcome`` is one of `OUTCOMES`; ``written`` and ``true`` are plain texts; ``cer`` is over the true
    one, missing where there is none. Regions are paired by their boxes
    (`ocr_phases.analyse.quality.match_boxes`). Where the text has none, its words go to the truth's regions;
    where the truth has none, or the row has several pages, the truth's words go to the text's: to those that
    they meet in the alignment with the fewest edits.
    """
    text = run.results[row]["text"] or ""
    grounding = parse_grounding(text, run.model.get("family"))
    before = plain_text(text[: grounding.regions[0].start] if grounding.regions else text)
    written: list[_Side] = [(*_PREAMBLE[:3], before)] if before else []
    for region in (region for region in grounding.regions if region.label not in truth.ignored):
        box = region.boxes[0] if region.boxes else None
        written.append((region.index, region.label, box, plain_text(region.text)))
    true = [(None, region.label, region.box, plain_text(region.text)) for region in truth.regions]
    one_page = sum(page["row"] == row for page in run.pages) == 1
    if one_page and any(side[2] for side in true) and any(side[2] for side in written):
        rows = list(_by_boxes(written, true))
    elif one_page and any(side[2] for side in true):
        rows = list(_true_regions(true, " ".join(side[3] for side in written)))
    else:
        rows = list(_by_words(written, plain_text(truth.text)))
    table = pd.DataFrame(rows, columns=list(DIFFERENCE_COLUMNS))
    return table.astype({"region": "Int64", "cer": "float64"})


def word_edits(written: str, true: str) -> list[tuple[str, str, str]]:
    """Two plain texts side by side: ``(kind, words written, words of the truth)``.

    ``kind`` is `EQUAL`, `DIFFERENT`, `MISSING` (only in the truth) or `EXTRA` (only written), with the fewest
    edits of words.
    """
    mine, theirs = written.split(), true.split()
    kinds = {"equal": EQUAL, "replace": DIFFERENT, "insert": MISSING, "delete": EXTRA}
    return [
        (
            kinds[op.tag],
            " ".join(mine[op.src_start : op.src_end]),
            " ".join(theirs[op.dest_start : op.dest_end]),
        )
        for op in Levenshtein.opcodes(mine, theirs)
    ]


def _by_boxes(written: Sequence[_Side], true: Sequence[_Side]) -> Iterator[tuple[object, ...]]:
    """The regions that share a box, and those of either side alone; missing ones behind the one before."""
    placed = [place for place, side in enumerate(true) if side[2] is not None]
    boxes = [[] if side[2] is None else [side[2]] for side in written]
    pairs = match_boxes(boxes, [box for *_, box, _ in true if box is not None])
    mine_of = {placed[place]: mine for mine, place, _ in pairs}
    # A missing region is told where the truth has it: behind the region before it.
    after: dict[int, list[_Side]] = {}
    last = -1
    for place, side in enumerate(true):
        last = mine_of.get(place, last)
        if place not in mine_of and (side[2] or side[3]):
            after.setdefault(last, []).append(side)
    true_of = {mine: true[place] for place, mine in mine_of.items()}
    for number in range(-1, len(written)):
        if number >= 0:
            yield _row(written[number], true_of[number][3] if number in true_of else None)
        for side in after.get(number, ()):
            yield _row(side, side[3], missing=True)


def _by_words(written: Sequence[_Side], true: str) -> Iterator[tuple[object, ...]]:
    """Each written region with the words of the truth that the alignment gives it."""
    words = [(word, number) for number, side in enumerate(written) for word in side[3].split()]
    owners = [number for _, number in words]
    given: list[list[str]] = [[] for _ in written] or [[]]
    theirs = true.split()
    for op in Levenshtein.opcodes([word for word, _ in words], theirs):
        found = theirs[op.dest_start : op.dest_end]
        if op.tag == "insert":  # to the region of the word before
            given[owners[max(op.src_start - 1, 0)] if owners else 0] += found
            continue
        for place, word in zip(range(op.src_start, op.src_end), found, strict=False):
            given[owners[place]].append(word)
    for side, own in zip(written or [_PREAMBLE], given, strict=True):
        yield _row(side, " ".join(own))


def _true_regions(true: Sequence[_Side], written: str) -> Iterator[tuple[object, ...]]:
    """Each region of the truth with the words that the alignment gives it."""
    for region, label, box, outcome, _, own, given in _by_words(true, written):
        cer = text_measures(str(given), str(own))["cer"][0] if own else None
        outcome = MISSING if outcome == EXTRA else outcome
        yield region, label, box, outcome, cer, given, own


def _row(side: _Side, true: str | None, *, missing: bool = False) -> tuple[object, ...]:
    region, label, box, text = side
    written = "" if missing else text
    if missing:
        outcome = MISSING
    elif true is None or (written and not true):
        outcome = EXTRA
    else:
        outcome = EQUAL if written == true else DIFFERENT
    cer = text_measures(written, true)["cer"][0] if true else None
    return region, label, box, outcome, cer, written, true or ""
