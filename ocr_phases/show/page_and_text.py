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

_LONG_TEXT = 1_200
_WRITTEN = "The text as the model wrote it"


def region_types_section(run: Record, row: int) -> Section:
    """Decode time by type of region in one row of a batch; nothing where no region has a time."""
    return Section(plot_region_types(run, row)) if has_region_times(run, row) else Section()


def text_notes_section(run: Record) -> Section:
    """What speaks against relying on the text, and the compression ratio."""
    return Section(note(uncertain_sentence(run)), note(_ratio_text(run)))


def _ratio_text(run: Record) -> str:
    """The compression ratio, also as the vendor counts it; empty where it is unknown."""
    figures = summary(run)
    text = ""
    ratio = figures["generated_compression_ratio"]
    if ratio is not None:
        text += (
            f"{figures['tokens']:,} generated tokens from {figures['valid_image_tokens']:,} "
            f"valid image tokens: a compression ratio of {ratio:.2f}."
        )
    vendors_ratio = figures["compression_ratio"]
    if vendors_ratio is not None:
        text += (
            f" The vendor counts the text tokenised again: {figures['text_tokens']:,} tokens, "
            f"a ratio of {vendors_ratio:.2f}."
        )
    return text


def text_section(run: Record) -> Section:
    """The generated text of each row; a long one starts folded."""
    texts = [result.text for result in run.results]
    names = (
        [f"Text of row {row}" for row in range(1, len(texts) + 1)] if len(texts) > 1 else [_WRITTEN]
    )
    return Section(text_notes_section(run), *map(text_html, texts, names))


def text_html(text: str | None, name: str = _WRITTEN) -> Html:
    """Model text in a block that scrolls."""
    if text is None:
        return note("This record has no text (return_text=False).")
    return fold(
        f"{name} ({len(text):,} characters)", preformatted(text), opened=len(text) <= _LONG_TEXT
    )


def quality_section(run: Record) -> Section:
    """The text against its truth, under a heading of its own; empty for a record without one."""
    return Section(quality_html(run))


def recorded_page_text(page: PagePart) -> str:
    """What is known of a page of a record, without its picture."""
    return facts_text("Page", to_plain(page))


def recorded_page_bundle(page: PagePart) -> Bundle:
    """A page of a record: its picture, where the record has it, and what is known of it."""
    image = None if page.data is None else page_image(base64.b64decode(page.data))
    pictures = [] if image is None else [(image, page.file)]
    return facts_bundle("Page", to_plain(page), pictures)
