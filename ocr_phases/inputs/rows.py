"""Which pages and which prompts the rows of a batch have; no torch is needed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from PIL import Image

from ocr_phases.errors import OcrPhasesError
from ocr_phases.families import IMAGE_TAG, FamilyFacts
from ocr_phases.files import each_page
from ocr_phases.settings import RunSettings

#: A page as a user names it: a file, the bytes of one, or a picture.
Page = str | Path | bytes | Image.Image
Pages = Page | Sequence[Page]


def make_rows(
    pages: Pages, settings: RunSettings, family: FamilyFacts
) -> tuple[list[Page], list[str]]:
    """All pages in their order, and one resolved prompt a row.

    A list of pages, or ``file.pdf#2-4``, is a batch of one page a row. With a single prompt that
    names several ``<image>``, or with the family's prompt for many pages, it is one row of several
    pages.

    Parameters
    ----------
    pages : str, Path, bytes, PIL.Image.Image, or a sequence of them
        One page or several.
    settings : RunSettings
        Its ``prompt`` and its ``grounding`` are read.
    family : FamilyFacts
        The model's family, which has the texts of named prompts.

    Returns
    -------
    list of pages
        Every page, each of several in a file by its own name (``file.pdf#2``).
    list of str
        The text of each row's prompt.

    Raises
    ------
    OcrPhasesError
        For a list without a page, a range of pages in falling order, and a prompt that the family
        does not have.

    Examples
    --------
    >>> from ocr_phases.families import FAMILIES
    >>> make_rows("scan.pdf#2-3", RunSettings(prompt="free"), FAMILIES["deepseek-ocr"])
    (['scan.pdf#2', 'scan.pdf#3'], ['<image>\\nFree OCR.', '<image>\\nFree OCR.'])
    """
    all_pages = _separate_pages(pages)
    prompts = settings.prompt
    if isinstance(prompts, str):
        prompts = [prompts]
    # A single prompt may be for all pages at once; of several, each is for the page of its row.
    pages_per_prompt = 1
    if len(prompts) == 1:
        pages_per_prompt = len(all_pages)
    texts = []
    for prompt in prompts:
        text = family.text_of(prompt, grounding=settings.grounding, pages=pages_per_prompt)
        texts.append(text)
    if len(texts) == 1 and _is_for_one_page(texts[0], family):
        texts = texts * len(all_pages)
    return all_pages, texts


def _separate_pages(pages: Pages) -> list[Page]:
    """Every page by itself: ``file.pdf#2-4`` becomes three."""
    if isinstance(pages, str | bytes) or not isinstance(pages, Iterable):
        pages = [pages]
    separate: list[Page] = []
    for page in pages:
        if isinstance(page, str | Path):
            separate += each_page(str(page))
        else:
            separate.append(page)
    if not separate:
        raise OcrPhasesError("There is no page in the list: give at least one.")
    return separate


def _is_for_one_page(text: str, family: FamilyFacts) -> bool:
    """Whether a prompt's text is repeated for each page. One for a model of no known family has no
    mark for the page, because the model's own processor puts it there.
    """
    return family.is_unknown or text.count(IMAGE_TAG) == 1
