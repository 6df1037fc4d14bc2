"""What a reading lost: a record's text, tables, boxes and order against the truth of its page.

docs/quality.md defines each measure. Lower is better for distances and error rates, higher for the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from rapidfuzz.distance import Levenshtein

from ocr_phases.analyse.checks import repetition_loop
from ocr_phases.analyse.grounding import Region, match_boxes, parse_grounding
from ocr_phases.analyse.stages import cached
from ocr_phases.analyse.text import plain_text, similarities, tables_of, text_measures
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


def _tables(written: str, true: str) -> list[tuple[float, int]]:
    """The mean TEDS over the truth's tables; each is paired with the written one in its place."""
    theirs = tables_of(true)
    if not theirs:
        return []
    return [(sum(similarities(tables_of(written), theirs)) / len(theirs), len(theirs))]


def _boxes(ours: Sequence[Region], theirs: Sequence[TrueRegion]) -> list[tuple[str, str, float, int]]:
    """Box recall and mean IoU of the matched, for all and by label, and the order's distance."""
    placed = [(region.label, region.box) for region in theirs if region.box is not None]
    pairs = match_boxes([[box] for region in ours for box in region.boxes], [[box] for _, box in placed])
    overlaps = {place: overlap for _, place, overlap in pairs}
    groups: dict[str, list[int]] = {"": list(range(len(placed)))}
    for place, (label, _) in enumerate(placed):
        if label:
            groups.setdefault(label, []).append(place)
    lines: list[tuple[str, str, float, int]] = []
    for label, places in groups.items():
        found = [overlaps[place] for place in places if place in overlaps]
        lines.append((label, "box_recall", len(found) / len(places), len(places)))
        if found:
            lines.append((label, "box_iou", sum(found) / len(found), len(found)))
    if pairs:
        order = [place for _, place, _ in sorted(pairs)]
        distance = Levenshtein.normalized_distance(order, sorted(order))
        lines.append(("", "order_distance", distance, len(order)))
    return lines
