"""What a text lost against a reference text, as a report shows it.

A row of a batch has its measures, its page with the regions coloured by outcome, and the words that
differ in each region.
"""

from __future__ import annotations

import pandas as pd
from PIL.Image import Image

from ocr_phases.analyse.grounding import pixel_box
from ocr_phases.analyse.quality import quality_table, region_differences
from ocr_phases.analyse.text import (
    DIFFERENT,
    EQUAL,
    EXTRA,
    MISSING,
    missing_text_libraries,
    plain_text,
    word_edits,
)
from ocr_phases.record import Record
from ocr_phases.record.schema import Truth
from ocr_phases.show.boxes import DrawnBox, draw_marks
from ocr_phases.show.html_table import Heading, table_html
from ocr_phases.show.page import pages_of_row, row_heading
from ocr_phases.show.web import Html, element, fragment, note, pictures_html, section_heading
from ocr_phases.text import count_text, percent_text

#: The colour of a region on the page; its tag says the same in words.
OUTCOME_COLOURS = {
    EQUAL: "#0072b2",
    DIFFERENT: "#d9730d",
    MISSING: "#aa0000",
    EXTRA: "#aa4499",
}
_COLOURS_IN_WORDS = (
    "Regions by outcome: equal (blue), different (orange), missing (red), extra (purple)"
)
#: Regions whose differences are shown; the record has them all.
_MOST_REGIONS = 60
#: Differences that are shown of one region.
_MOST_EDITS = 400
#: Words that are shown of one difference, and of the equal text between two.
_MOST_DIFFERING_WORDS = 400
_MOST_EQUAL_WORDS = 36
#: Words that are shown at each end of a text that is cut.
_WORDS_AT_AN_END = 12
_LABEL_HEADINGS: dict[str, Heading] = {
    "label": ("type", ""),
    "count": ("regions", ""),
    "value": ("found", "%"),
    "iou": ("mean IoU", ""),
}
#: Measure -> (what it is called, what it was taken over).
_MEASURES = {
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
    """The quality of each row that has a reference text, under a heading; empty where none has."""
    parts: list[Html] = []
    for row in range(len(run.results)):
        truth = run.truth_of(row)
        if truth is not None:
            parts.append(row_heading(run, row))
            parts.append(_row_html(run, truth, row))
    if not parts:
        return fragment()
    return fragment(section_heading("Quality"), *parts)


def _row_html(run: Record, truth: Truth, row: int) -> Html:
    """A row's measures, page and differences, or the sentence that says why there are none."""
    if run.results[row].text is None:
        return note("This record has no text (return_text=False), so its quality is not known.")
    if not plain_text(truth.text):
        return note(f"The reference text {truth.file} has no text to compare with.")
    missing = missing_text_libraries()
    if missing:
        return note(f"Quality is n/a: {missing}.")
    differences = region_differences(run, truth, row)
    measures = quality_table(run, truth, row)
    return fragment(
        note(_comparison_sentence(truth, differences)),
        _page_measures(measures),
        _label_measures(measures),
        _outcomes_picture(run, row, differences),
        _differences(differences),
    )


def _comparison_sentence(truth: Truth, differences: pd.DataFrame) -> str:
    """What the text was compared with, and how many regions had each outcome."""
    source = truth.file or "of this record"
    sentence = f"Compared with the reference text {source}."
    if truth.reference:
        sentence = f"Compared with the run {source}: agreement with it, not accuracy."
    if differences.empty:
        return sentence
    counts = differences["outcome"].value_counts()
    outcomes = [f"{counts[name]:,} {name}" for name in OUTCOME_COLOURS if name in counts]
    return f"{sentence} {count_text(len(differences), 'region')}: {', '.join(outcomes)}."


def _page_measures(measures: pd.DataFrame) -> Html:
    """The measures of the whole page; ``measures`` is `quality_table`."""
    of_page = measures[measures["label"] == ""]
    rows = []
    for measure, value, count in of_page[["measure", "value", "count"]].itertuples(index=False):
        name, counted = _MEASURES[measure]
        rows.append((name, percent_text(value), f"{count:,} {counted}"))
    table = pd.DataFrame(rows, columns=["measure", "value", "over"])
    return table_html(table, caption="The whole page against the reference text")


def _label_measures(measures: pd.DataFrame) -> Html:
    """How well the boxes of each type of region were found; empty for a text without boxes.

    A type has one row with its counts and shares; the overlap of its boxes, a measure of its own in
    ``measures``, stands in the row as the column ``iou``.
    """
    of_labels = measures[measures["label"] != ""]
    is_overlap = of_labels["measure"] == "box_iou"
    overlaps = of_labels[is_overlap].set_index("label")["value"]
    table = of_labels[~is_overlap].drop(columns="measure")
    table["iou"] = table["label"].map(overlaps)
    return table_html(
        table,
        caption="Boxes by type of region",
        headings=_LABEL_HEADINGS,
        missing="none was found",
        empty="",
    )


def _outcomes_picture(run: Record, row: int, differences: pd.DataFrame) -> Html:
    """The page of a row under its regions; empty where it has no single page or no boxes."""
    pages = pages_of_row(run, row)
    if len(pages) != 1 or differences["box"].isna().all():
        return fragment()
    page = run.page_image(pages[0])
    if page is None:
        return fragment()
    return pictures_html([(draw_outcomes(page, differences), _COLOURS_IN_WORDS)])


def draw_outcomes(page: Image, differences: pd.DataFrame) -> Image:
    """The page under its `outcome_boxes`."""
    return draw_marks(page, outcome_boxes(differences, page.size))


def outcome_boxes(differences: pd.DataFrame, page_size: tuple[int, int]) -> list[DrawnBox]:
    """The boxes of `region_differences` on a page of so many pixels, coloured by outcome.

    A tag says the region's number and its character error rate, or that it is missing or extra.
    """
    boxes = []
    with_box = differences[differences["box"].notna()]
    for region in with_box.to_dict("records"):
        outcome = region["outcome"]
        words = []
        if pd.notna(region["region"]):
            words.append(str(region["region"]))
        if outcome in (MISSING, EXTRA):
            words.append(outcome)
        elif outcome == DIFFERENT and pd.notna(region["cer"]):
            words.append(percent_text(region["cer"]))
        box = pixel_box(region["box"], *page_size)
        boxes.append(DrawnBox(box, OUTCOME_COLOURS[outcome], " ".join(words)))
    return boxes


def _differences(differences: pd.DataFrame) -> Html:
    """The regions that are not equal, each with the words that differ."""
    differing = differences[differences["outcome"] != EQUAL]
    shown = differing.head(_MOST_REGIONS)
    edits = []
    for written, true in zip(shown["written"], shown["true"], strict=True):
        edits.append(edits_html(written, true))
    table = shown[["region", "label", "outcome", "cer"]].assign(difference=edits)
    html = table_html(
        table,
        caption=fragment("Words ", element("del", "missing"), " and ", element("ins", "extra")),
        missing="not in both",
        empty="The texts are equal.",
        classes="op-edits",
    )
    more = len(differing) - len(shown)
    if more == 0:
        return html
    return html + note(f"{count_text(more, 'more region')} differ; the record has them.")


def edits_html(written: str, true: str) -> Html:
    """Two plain texts as one, with the words that differ marked.

    Words that only the true text has are in ``<del>``, words that only the written one has in
    ``<ins>``. Long texts are cut.
    """
    edits = word_edits(written, true)
    parts: list[Html | str] = []
    for kind, words_written, true_words in edits[:_MOST_EDITS]:
        if kind == EQUAL:
            parts.append(fragment(_ends(words_written, _MOST_EQUAL_WORDS)))
            continue
        if true_words:
            parts.append(element("del", _ends(true_words, _MOST_DIFFERING_WORDS)))
        if words_written:
            parts.append(element("ins", _ends(words_written, _MOST_DIFFERING_WORDS)))
    if len(edits) > _MOST_EDITS:
        parts.append("…")
    return Html(" ").join(parts)


def _ends(text: str, most_words: int) -> str:
    """The text, or the words at its ends where it has more than ``most_words``."""
    words = text.split()
    if len(words) <= most_words:
        return text
    return " ".join([*words[:_WORDS_AT_AN_END], "…", *words[-_WORDS_AT_AN_END:]])
