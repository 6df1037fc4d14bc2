"""Pages that belong together as files: a document of several pages, and a folder of predictions.

The names and the mark between two pages are those of the published scripts, so that what reads
their output reads these files, too. Everything here reads text that a model wrote: it is parsed,
never evaluated.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from ocr_phases.analyse.grounding import parse_grounding
from ocr_phases.families import facts_of
from ocr_phases.images import PDF_DPI
from ocr_phases.report.result_files import (
    PICTURES,
    page_with_boxes,
    picture_files,
    result_markdown,
    without_eos,
)

#: What stands behind each page of a document's text, on a line of its own.
PAGE_SPLIT = "<--- Page Split --->"

DOCUMENT_FILES = r".*\.(mmd|md)|.*_layouts\.pdf|images(/\d+_\d+\.jpg)?"
"""A regular expression of the names of `document_files`."""
PREDICTION_FILES = r"[^/]*\.md"
"""The same of files of `prediction_text`."""

#: Pages whose pictures are held in memory at a time; a page of A4 at 144 dpi takes 6 MB.
_PAGES_AT_ONCE = 16
_JPEG_QUALITY = 90
#: A display formula on one line, and a number behind it.
_FORMULA = re.compile(r"\\\[(.*?)\\\]")
_FORMULA_NUMBER = re.compile(r"\\quad\s*\([^)]*\)")
_CENTRE_TAG = re.compile(r"</?center>")
_EMPTY_LINES = re.compile(r"\n{3,}")


@dataclass(frozen=True)
class DocumentPage:
    """A page of a document: its number in the file, from 1, and what was read on it.

    ``text`` is None for a page that was not measured, or whose text was not kept; ``image`` is the
    upright page, None where the record does not hold it. ``family`` is that of the model that read
    the page.
    """

    number: int
    text: str | None = None
    image: Image.Image | None = None
    family: str | None = None


def document_files(name: str, pages: Iterable[DocumentPage]) -> dict[str, bytes]:
    """The files of a document by their names.

    ``NAME.mmd`` (or .md) has the Markdown of all pages and ``NAME_det.mmd`` their texts with the
    marks, as the model wrote them; behind each page is `PAGE_SPLIT`. ``NAME_layouts.pdf`` has the
    pages with their boxes, and ``images/P_K.jpg`` is picture K of page P, both counted from 0, as
    the Markdown links it. A page without a text leaves its place empty, so that page N is always
    behind N - 1 marks; the layouts leave it out.

    Parameters
    ----------
    name : str
        What the document's files are called.
    pages : iterable of DocumentPage
        The pages in their order. They are taken one by one, so a long document need not be in
        memory.
    """
    family: str | None = None  # one model reads a document: that of the first page that is read
    texts: list[str] = []
    originals: list[str] = []
    pictures: dict[str, bytes] = {}
    layouts = _LayoutsFile()
    try:
        for page in pages:
            family = family or page.family
            text = page.text or ""
            prefix = f"{PICTURES}{page.number - 1}_"
            texts.append(result_markdown(text, family, pictures=prefix))
            originals.append(without_eos(text))
            if page.text is None or page.image is None:
                continue
            grounding = parse_grounding(text, family)
            pictures |= picture_files(page.image, grounding, pictures=prefix)
            layouts.add(page_with_boxes(page.image, grounding))
        suffix = Path(facts_of(family).result_name).suffix
        files = {
            f"{name}{suffix}": _joined(texts),
            f"{name}_det{suffix}": _joined(originals),
        }
        pdf = layouts.content()
        if pdf:
            files[f"{name}_layouts.pdf"] = pdf
    finally:
        layouts.close()
    return files | pictures


def _joined(texts: Sequence[str]) -> bytes:
    """The texts of the pages with `PAGE_SPLIT` behind each."""
    document = "".join(f"{text}\n\n{PAGE_SPLIT}\n" for text in texts)
    return document.encode("utf-8", "replace")


class _LayoutsFile:
    """A PDF that pages are added to, of which a few are in memory at a time."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="ocr-layouts-")
        self._path = Path(self._folder.name) / "layouts.pdf"
        self._waiting: list[Image.Image] = []

    def add(self, page: Image.Image) -> None:
        """Add a page behind the others."""
        self._waiting.append(page)
        if len(self._waiting) == _PAGES_AT_ONCE:
            self._write()

    def content(self) -> bytes:
        """The file; empty where no page was added."""
        if self._waiting:
            self._write()
        return self._path.read_bytes() if self._path.exists() else b""

    def close(self) -> None:
        """Remove the temporary file."""
        self._folder.cleanup()

    def _write(self) -> None:
        first, *others = self._waiting
        first.save(
            self._path,
            "PDF",
            save_all=True,
            append_images=others,
            append=self._path.exists(),
            resolution=PDF_DPI,
            quality=_JPEG_QUALITY,
        )
        self._waiting.clear()


def prediction_text(text: str, family: str | None = None) -> str:
    """A page's text as OmniDocBench's evaluator takes it: Markdown without marks and pictures.

    As in the vendor's script for that benchmark, numbers behind display formulas
    (``\\quad (3)``) and ``<center>`` tags go, and at most one empty line is between paragraphs.
    """
    plain = without_eos(text)
    grounding = parse_grounding(plain, family)
    pieces = []
    position = 0
    for region in grounding.regions:
        pieces.append(plain[position : region.start])
        position = region.content_start
    pieces.append(plain[position:])
    markdown = "".join(pieces)
    if grounding.page_mark:
        markdown = markdown.replace(grounding.page_mark, "")
    markdown = _FORMULA.sub(_without_number, markdown)
    markdown = _CENTRE_TAG.sub("", markdown)
    return _EMPTY_LINES.sub("\n\n", markdown).strip() + "\n"


def _without_number(formula: re.Match[str]) -> str:
    """A display formula without the number behind it."""
    return rf"\[{_FORMULA_NUMBER.sub('', formula[1]).strip()}\]"
