"""What a reading lost, as a report shows it: measures, the page by outcome, and each region's
difference.
"""

from __future__ import annotations

from typing import Any

import pandas as pd
from PIL.Image import Image

from ocr_phases.analyse.grounding import pixel_box
from ocr_phases.analyse.quality import quality_table, region_differences
from ocr_phases.analyse.text import (
    DIFFERENT,
    EQUAL,
    OUTCOMES,
    missing_text_libraries,
    plain_text,
    word_edits,
)
from ocr_phases.record import Record
from ocr_phases.record.schema import Truth
from ocr_phases.show.boxes import DrawnBox, draw_marks
from ocr_phases.show.html_table import table_html
from ocr_phases.show.page import pages_of_row, row_heading
from ocr_phases.show.web import Html, element, fragment, note, pictures_html, section_heading
from ocr_phases.text import count_text, percent_text

OUTCOME_COLOURS = dict(zip(OUTCOMES, ("#0072b2", "#d9730d", "#aa0000", "#aa4499"), strict=True))
"""Colours of a region on the page; its tag says the same in words."""
_MOST_REGIONS = 60
_MOST_EDITS = 400  # in a region
_MOST_WORDS = 400  # that differ in one place
_AROUND = 12  # words told before and after a difference
_TYPES = {
    "label": ("type", ""),
    "count": ("regions", ""),
    "value": ("found", "%"),
    "iou": ("mean IoU", ""),
}
#: Measure -> (name, what it was taken over).
_NAMES = {
    "edit_distance": ("normalised edit distance", "characters"),
    "cer": ("character error rate", "characters"),
    "wer": ("word error rate", "words"),
    "table_similarity": ("table similarity (TEDS)", "tables"),
    "box_recall": ("boxes found", "boxes"),
    "box_iou": ("IoU of the boxes found", "boxes"),
    "order_distance": ("distance of the reading order", "boxes"),
    "repetition": ("tokens that repeat a block", "tokens"),
    "agreement": ("agreement of the text", "characters"),
    "table_agreement": ("agreement of the tables (TEDS)", "tables"),
    "box_agreement": ("boxes in common", "boxes"),
}


def quality_html(run: Record) -> Html:
    """A row's measures, page and differences under a heading, each row that has a truth; else
    empty.
    """
    parts = []
    for row in range(len(run.results)):
        if (truth := run.truth_of(row)) is not None:
            parts += [row_heading(run, row), _row_html(run, truth, row)]
    return fragment(section_heading("Quality"), *parts) if parts else fragment()


def draw_outcomes(page: Image, table: pd.DataFrame) -> Image:
    """The page with the boxes of `region_differences`, coloured by outcome.

    A tag says the region's number and its character error rate, or that it is missing or extra.
    """
    boxes = []
    for row in table[table["box"].notna()].to_dict("records"):
        outcome, cer = row["outcome"], row["cer"]
        said = {EQUAL: "", DIFFERENT: "" if pd.isna(cer) else percent_text(cer)}.get(
            outcome, outcome
        )
        tag = f"{'' if row['region'] is pd.NA else row['region']} {said}".strip()
        boxes.append(DrawnBox(pixel_box(row["box"], *page.size), OUTCOME_COLOURS[outcome], tag))
    return draw_marks(page, boxes)


def _row_html(run: Record, truth: Truth, row: int) -> Html:
    if run.results[row].text is None:
        return note("This record has no text (return_text=False), so its quality is not known.")
    if not plain_text(truth.text):
        return note(f"The reference text {truth.file} has no text to compare with.")
    missing = missing_text_libraries()
    if missing:
        return note(f"Quality is n/a: {missing}.")
    differences = region_differences(run, truth, row)
    pages = pages_of_row(run, row)
    page = run.page_image(pages[0]) if len(pages) == 1 else None
    parts = [note(_lead(truth, differences)), _measures(quality_table(run, truth, row))]
    if page is not None and differences["box"].notna().any():
        caption = (
            "Regions by outcome: equal (blue), different (orange), missing (red), extra (purple)"
        )
        parts.append(pictures_html([(draw_outcomes(page, differences), caption)]))
    return fragment(*parts, _differences(differences))


def _lead(truth: Truth, differences: pd.DataFrame) -> str:
    counts = differences["outcome"].value_counts()
    told = ", ".join(
        f"{counts[outcome]:,} {outcome}" for outcome in OUTCOME_COLOURS if outcome in counts
    )
    regions = f" {count_text(len(differences), 'region')}: {told}." if told else ""
    kind, sense = (
        ("run", ": agreement with it, not accuracy") if truth.reference else ("reference text", "")
    )
    return f"Compared with the {kind} {truth.file or 'of this record'}{sense}.{regions}"


def _measures(table: pd.DataFrame) -> Html:
    """The whole page's measures, and the boxes by type of region where the truth has boxes."""
    whole, labels = table[table["label"] == ""], table[table["label"] != ""]
    told = zip(whole["measure"].map(_NAMES), whole["value"], whole["count"], strict=True)
    rows = [(name, percent_text(value), f"{count:,} {of}") for (name, of), value, count in told]
    measures = pd.DataFrame(rows, columns=["measure", "value", "over"])
    shown = table_html(measures, caption="The whole page against the reference text")
    overlap = labels[labels["measure"] == "box_iou"].set_index("label")["value"]
    found = labels[labels["measure"] != "box_iou"].drop(columns="measure")
    found["iou"], caption = found["label"].map(overlap), "Boxes by type of region"
    return shown + table_html(
        found, caption=caption, headings=_TYPES, missing="none was found", empty=""
    )


def _differences(differences: pd.DataFrame) -> Html:
    wrong = differences[differences["outcome"] != EQUAL]
    told, more = wrong.head(_MOST_REGIONS), len(wrong) - _MOST_REGIONS
    edits = [edits_html(*texts) for texts in zip(told["written"], told["true"], strict=True)]
    table = told[["region", "label", "outcome", "cer"]].assign(difference=edits)
    caption = fragment("Words ", element("del", "missing"), " and ", element("ins", "extra"))
    look: Any = {"classes": "op-edits", "missing": "not in both", "empty": "The texts are equal."}
    cut = f"{count_text(more, 'more region')} differ; the record has them." if more > 0 else ""
    return table_html(table, caption=caption, **look) + note(cut)


def edits_html(written: str, true: str) -> Html:
    """Two plain texts as one: words only in the truth as ``<del>``, words only written as
    ``<ins>``.
    """
    edits, parts = word_edits(written, true), list[Html]()
    for kind, mine, theirs in edits[:_MOST_EDITS]:
        sides = (
            {}
            if kind == EQUAL
            else {"del": _ends(theirs, _MOST_WORDS), "ins": _ends(mine, _MOST_WORDS)}
        )
        parts += [element(name, text) for name, text in sides.items() if text]
        parts += [] if sides else [fragment(_ends(mine, 3 * _AROUND))]
    return Html(" ").join([*parts, "…"] if len(edits) > _MOST_EDITS else parts)


def _ends(text: str, longest: int) -> str:
    """The first and last words of a text of more than ``longest``."""
    words = text.split()
    return text if len(words) <= longest else " ".join([*words[:_AROUND], "…", *words[-_AROUND:]])
