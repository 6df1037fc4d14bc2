"""The page of a record and the text that was read from it, as sections of its report."""

from __future__ import annotations

import base64

from ocr_phases.analyse.figures import summary
from ocr_phases.analyse.sentences import uncertain_sentence
from ocr_phases.images import page_image
from ocr_phases.record import Record
from ocr_phases.record.parts import PagePart, to_plain
from ocr_phases.show.page import has_region_times, plot_region_types
from ocr_phases.show.section import Bundle, Section, facts_bundle, facts_text
from ocr_phases.show.text_quality import quality_html
from ocr_phases.show.web import Html, fold, note, preformatted

#: Characters; a longer text starts folded.
_LONG_TEXT = 1_200
_WRITTEN = "The text as the model wrote it"


def region_types_section(run: Record, row: int) -> Section:
    """Decode time by type of region in one row of a batch; nothing where no region has a time."""
    if not has_region_times(run, row):
        return Section()
    return Section(plot_region_types(run, row))


def text_notes_section(run: Record) -> Section:
    """What speaks against relying on the text, and the compression ratio."""
    return Section(note(uncertain_sentence(run)), note(_ratio_text(run)))


def _ratio_text(run: Record) -> str:
    """The compression ratio, also as the vendor counts it; empty where it is unknown."""
    figures = summary(run)
    sentences = []
    ratio = figures["generated_compression_ratio"]
    if ratio is not None:
        sentences.append(
            f"{figures['tokens']:,} generated tokens from {figures['valid_image_tokens']:,} "
            f"image tokens that are not padding: a compression ratio of {ratio:.2f}."
        )
    vendors_ratio = figures["compression_ratio"]
    if vendors_ratio is not None:
        sentences.append(
            f"The vendor's code tokenises the text again and counts those tokens: "
            f"{figures['text_tokens']:,}, a ratio of {vendors_ratio:.2f}."
        )
    return " ".join(sentences)


def text_section(run: Record) -> Section:
    """The generated text of each row; a long one starts folded."""
    texts = []
    for number, result in enumerate(run.results, start=1):
        name = _WRITTEN
        if len(run.results) > 1:
            name = f"Text of row {number}"
        texts.append(text_html(result.text, name))
    return Section(text_notes_section(run), *texts)


def text_html(text: str | None, name: str = _WRITTEN) -> Html:
    """Text of a model in a block that unfolds and scrolls; a short one is unfolded."""
    if text is None:
        return note("This record has no text (return_text=False).")
    title = f"{name} ({len(text):,} characters)"
    return fold(title, preformatted(text), opened=len(text) <= _LONG_TEXT)


def quality_section(run: Record) -> Section:
    """The text against its reference text, under a heading; empty for a record without one."""
    return Section(quality_html(run))


def recorded_page_text(page: PagePart) -> str:
    """What is known of a page of a record, without its picture."""
    return facts_text("Page", to_plain(page))


def recorded_page_bundle(page: PagePart) -> Bundle:
    """A page of a record: its picture, where the record has it, and what is known of it."""
    pictures = []
    if page.data is not None:
        image = page_image(base64.b64decode(page.data))
        if image is not None:
            pictures.append((image, page.file))
    return facts_bundle("Page", to_plain(page), pictures)
