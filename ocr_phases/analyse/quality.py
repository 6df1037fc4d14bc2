"""What a reading lost: a record's text, tables, boxes and order against the truth of its page.

docs/quality.md defines each measure. Lower is better for distances and error rates, higher for the others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from rapidfuzz.distance import Levenshtein

from ocr_phases.analyse.checks import repetition_loop
from ocr_phases.analyse.grounding import (
    Box,
    Region,
    box_array,
    intersection_over_union,
    parse_grounding,
)
from ocr_phases.analyse.read_text import plain_text
from ocr_phases.analyse.stages import cached
from ocr_phases.analyse.tables import similarities, tables_of
from ocr_phases.errors import OcrPhasesError
from ocr_phases.record import PhaseRun
from ocr_phases.schema import TrueRegion, Truth

QUALITY_COLUMNS = ("measure", "label", "value", "count")
#: What measures are called against a reference; the others are then left out.
AGREEMENT = {
    "edit_distance": "agreement",
    "table_similarity": "table_agreement",
    "box_recall": "box_agreement",
}
#: Measures that are better when they are higher.
QUALITY_HIGHER = ("table_similarity", "box_recall", "box_iou", *AGREEMENT.values())
#: Measures by a truth.
MEASURES = ("edit_distance", "cer", "wer", "table_similarity", "box_recall", "box_iou", "order_distance")
MATCHED_IOU = 0.5
"""Two boxes are of one region from this intersection over union on."""


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


@cached
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
    words, edits = true.split(), Levenshtein.distance(written, true)
    return {
        "edit_distance": (edits / max(len(written), len(true), 1), len(true)),
        "cer": (edits / max(len(true), 1), len(true)),
        "wer": (Levenshtein.distance(written.split(), words) / max(len(words), 1), len(words)),
    }


def _tables(written: str, true: str) -> list[tuple[float, int]]:
    """The mean TEDS over the truth's tables; each is paired with the written one in its place."""
    theirs = tables_of(true)
    if not theirs:
        return []
    return [(sum(similarities(tables_of(written), theirs)) / len(theirs), len(theirs))]


def _boxes(ours: Sequence[Region], theirs: Sequence[TrueRegion]) -> list[tuple[str, str, float, int]]:
    """Box recall and mean IoU of the matched, for all and by label, and the order's distance."""
    placed = [(region.label, region.box) for region in theirs if region.box is not None]
    pairs = match_boxes([[box] for region in ours for box in region.boxes], [box for _, box in placed])
    lines: list[tuple[str, str, float, int]] = []
    overlaps: dict[str, list[float]] = {}
    for _, place, overlap in pairs:
        overlaps.setdefault(placed[place][0], []).append(overlap)
    every = ("", len(placed), [overlap for *_, overlap in pairs])
    counts = Counter(label for label, _ in placed)
    for label, count, found in [
        every,
        *((label, counts[label], overlaps.get(label, [])) for label in counts),
    ]:
        lines.append((label, "box_recall", len(found) / count, count))
        if found:
            lines.append((label, "box_iou", sum(found) / len(found), len(found)))
    if pairs:
        order = [place for _, place, _ in sorted(pairs)]
        distance = Levenshtein.normalized_distance(order, sorted(order))
        lines.append(("", "order_distance", distance, len(order)))
    return lines


def match_boxes(ours: Sequence[Sequence[Box]], theirs: Sequence[Box]) -> list[tuple[int, int, float]]:
    """Pairs ``(ours, theirs, IoU)`` of at least `MATCHED_IOU`, best first, each region in one at most.

    Of equal overlaps the one of the first region is the best.
    """
    # From a region to the one that it overlaps most, and on from there: where two are each other's best,
    # they are a pair. So no list of all overlaps is needed, which could be of millions.
    sides = ours, [[box] for box in theirs]
    boxes = [box_array(box for held in side for box in held) for side in sides]
    owners = [np.repeat(np.arange(len(side)), [len(held) for held in side]) for side in sides]
    free = [np.ones(len(held), dtype=bool) for held in boxes]
    pairs: dict[int, tuple[int, int, float]] = {}
    for first in range(len(ours) if len(theirs) else 0):
        chain = [] if first in pairs else [(0, first)]
        while chain:
            side, number = chain[-1]
            other = 1 - side
            overlaps = np.zeros(len(boxes[other]))
            for box in sides[side][number]:
                overlaps = np.maximum(overlaps, intersection_over_union(box, boxes[other]))
            best = int((overlaps * free[other]).argmax())
            partner = other, int(owners[other][best])
            if overlaps[best] < MATCHED_IOU or not free[other][best]:  # true of the first of a chain only
                break
            if chain[-2:-1] != [partner]:
                chain.append(partner)
                continue
            for at, taken in (chain.pop(), chain.pop()):
                free[at][owners[at] == taken] = False
            mine, place = (number, partner[1]) if side == 0 else (partner[1], number)
            pairs[mine] = mine, place, float(overlaps[best])
    return sorted(pairs.values(), key=lambda pair: (-pair[2], pair[0]))
