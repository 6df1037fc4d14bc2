"""Reads the truth of a page: a text, this project's page JSON, an OmniDocBench file, or another record."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, Struct

from ocr_phases.analyse.grounding import GRID, Box, parse_grounding
from ocr_phases.analyse.text import plain_text
from ocr_phases.errors import OcrPhasesError
from ocr_phases.files import read_regular, split_page
from ocr_phases.record import PhaseRun
from ocr_phases.schema import KeptTruth, TrueRegion, Truth, conform, parse_json

TRUTH_SUFFIXES = (".md", ".mmd", ".txt", ".json")
"""The suffixes of a truth by its page's name, in the order in which they are looked for."""

_MOST_CHARACTERS = 1_000_000
_LARGEST = 100 * 2**20  # bytes; OmniDocBench's own annotations of 1,355 pages have 60 MB
#: OmniDocBench's names of blocks for what DeepSeek-OCR calls otherwise.
_LABELS = {
    "text_block": "text",
    "figure": "image",
    "equation_isolated": "equation",
    "figure_caption": "image_caption",
}
#: Blocks that hold no text of their own, or that are no part of a page's text by OmniDocBench's rules.
_NO_TEXT = ("abandon", "mask", "need_mask", "page_number", "header", "footer", "page_footnote")

_Edge = Annotated[float, Meta(ge=-1e9, le=1e9)]
_Size = Annotated[float, Meta(gt=0, le=1e9)]


class _Region(Struct):
    label: str | None
    box: tuple[_Edge, _Edge, _Edge, _Edge]  # on the grid
    text: str | None


class _Page(Struct):
    """A page's JSON of this project."""

    regions: list[_Region]
    kind: str | None = None


class _Attribute(Struct):
    data_source: str | None = None


class _Info(Struct):
    image_path: str
    width: _Size
    height: _Size
    page_attribute: _Attribute | None = None


class _Named(Struct):
    """What tells a page of OmniDocBench's annotations from the others."""

    page_info: _Info


class _Block(Struct):
    category_type: str
    poly: Annotated[list[_Edge], Meta(min_length=4)]  # x and y in turns, pixels
    ignore: bool | None = False
    order: float | None = None
    html: str | None = None
    latex: str | None = None
    text: str | None = None


class _Annotated(_Named):
    """A page of OmniDocBench's annotations."""

    layout_dets: list[_Block]


def find_truth(page: str | Path, folder: str | Path) -> Path | None:
    """A page's truth in ``folder``, by the page's name and a suffix of `TRUTH_SUFFIXES`; None without.

    The truth of ``sub/scan.png`` is ``sub/scan.md`` there, or ``scan.md``.
    """
    file, number = split_page(str(page))
    named = Path(file).with_suffix("")
    stems = [Path(folder) / named.name]
    if not named.is_absolute():
        stems.insert(0, Path(folder) / named)
    number = number.replace("#", "-")
    paths = [stem.with_name(f"{stem.name}{number}{suffix}") for stem in stems for suffix in TRUTH_SUFFIXES]
    return next((path for path in paths if path.is_file()), None)


def check_for_pages(path: str | Path, pages: int) -> None:
    """Raise `OcrPhasesError` where ``path`` is the truth of one page and there are several."""
    if pages > 1 and not Path(path).is_dir():
        file = Path(path)
        if file.suffix.lower() != ".json" or not isinstance(_json(file), list):
            raise OcrPhasesError(f"The truth {path} is of one page: give a folder with one for each page.")


def page_truth(path: str | Path, page: str) -> Truth | None:
    """The truth of ``page`` at ``path``: a file as `load_truth` reads it, or a folder as for `find_truth`.

    None where the folder, or an annotation file of many pages, lacks the page; else raises as `load_truth`.
    """
    found = find_truth(page, path) if Path(path).is_dir() else Path(path)
    truth = None if found is None else _read(found, page)
    if truth is not None and len(truth.text) > _MOST_CHARACTERS:
        raise OcrPhasesError(
            f"The truth {found} has {len(truth.text):,} characters, more than a page's text."
        )
    if truth is not None and not plain_text(truth.text):
        raise OcrPhasesError(f"The truth {found} has no text: give the page's text, or leave it out.")
    return truth


def load_truth(path: str | Path, page: str = "") -> Truth:
    """Read the truth of ``page`` from a file, or from a folder that has it by the page's name.

    A file is a text, a page's JSON, a batch's ``truth.json``, an annotation file of OmniDocBench, which has
    the page by its file's name, or a record, whose text becomes a reference. Raises `OcrPhasesError` for a
    file that cannot be read or has another shape, and where the page is not there.
    """
    truth = page_truth(path, page)
    if truth is None:
        what = f"no truth of {page}" if Path(path).is_dir() else f"no page {page or 'that was named'}"
        raise OcrPhasesError(f"The truth {path} has {what}: give its file, or one of the page's name.")
    return truth


def reference_of(run: PhaseRun, row: int = 0, name: str = "") -> Truth:
    """What a row of a run wrote, as a reference for others; `OcrPhasesError` for a record without a text."""
    text = run.results[row]["text"]
    if text is None:
        raise OcrPhasesError(f"The reference {name} has no text (return_text=False): take another record.")
    found = parse_grounding(text, run.model.get("family"))
    regions = tuple(
        TrueRegion(region.label, region.boxes[0] if region.boxes else None, region.text)
        for region in found.regions
    )
    return Truth(found.without_marks(text), regions, name, reference=True)


def _read(path: Path, page: str) -> Truth | None:
    name = path.name
    if name.lower().endswith(".json.gz"):
        return reference_of(PhaseRun.load(path), name=name)
    if not name.lower().endswith(".json"):
        return Truth(_text(path), file=name)
    content = _json(path)
    if isinstance(content, dict) and "schema" in content:
        return reference_of(PhaseRun.load(path), name=name)
    try:
        if isinstance(content, list):
            return _annotated(content, page, name)
        if isinstance(content, dict) and "ignored" in content:  # as a record and a batch keep it
            conform(content, KeptTruth)
            return conform(content, Truth)
        own: _Page = conform(content, _Page)
    except OcrPhasesError as error:
        raise OcrPhasesError(
            f"The truth {path} has another shape than a page's, OmniDocBench's or a record's ({error})."
        ) from error
    regions = tuple(TrueRegion(item.label or "", _box(*item.box), item.text or "") for item in own.regions)
    return Truth(_joined(regions), regions, name, category=own.kind or "")


def _text(path: Path) -> str:
    try:
        return read_regular(path, _LARGEST).decode("utf-8-sig")
    except OSError as error:
        raise OcrPhasesError(f"The truth {path} cannot be read ({error.strerror}).") from error
    except UnicodeDecodeError as error:
        raise OcrPhasesError(f"The truth {path} is not UTF-8: save it as UTF-8 text.") from error


def _json(path: Path) -> Any:
    try:
        state = path.stat()
        return _parsed(path, state.st_mtime_ns, state.st_size)
    except OSError as error:
        raise OcrPhasesError(f"The truth {path} cannot be read ({error.strerror}).") from error


@lru_cache(maxsize=1)  # a benchmark's file holds the pages that are asked for one after another
def _parsed(path: Path, *_state: int) -> Any:
    try:
        return parse_json(_text(path).encode())
    except OcrPhasesError as error:
        raise OcrPhasesError(f"The truth {path}: {error}.") from error


def _joined(regions: Sequence[TrueRegion]) -> str:
    return "\n\n".join(region.text for region in regions if region.text)


def _annotated(pages: Sequence[Any], page: str, file: str) -> Truth | None:
    """One page of OmniDocBench's annotations; of a single one that, whatever it is called."""
    named: list[_Named] = conform(pages, list[_Named])
    name = _file_name(page)
    places = [place for place, each in enumerate(named) if _file_name(each.page_info.image_path) == name]
    if not places and len(pages) == 1 and not page:
        places = [0]
    if not places:
        return None
    found: _Annotated = conform(pages[places[0]], _Annotated)
    blocks = [
        block for block in found.layout_dets if not block.ignore and block.category_type not in _NO_TEXT
    ]
    blocks.sort(key=lambda block: (block.order is None, block.order or 0))
    info = found.page_info
    across, down = GRID / info.width, GRID / info.height
    regions = tuple(
        TrueRegion(
            _LABELS.get(block.category_type, block.category_type),
            _around([at * across for at in block.poly[::2]], [at * down for at in block.poly[1::2]]),
            block.html or block.latex or block.text or "",
        )
        for block in blocks
    )
    category = (info.page_attribute and info.page_attribute.data_source) or ""
    return Truth(_joined(regions), regions, file, category=category, ignored=_NO_TEXT)


def _file_name(path: str) -> str:
    """A path's last part in Unicode NFC, as file systems and annotations differ; no name is longer."""
    return unicodedata.normalize("NFC", path.replace("\\", "/").rpartition("/")[2][:1_000])


def _box(x1: float, y1: float, x2: float, y2: float) -> Box:
    return _around((x1, x2), (y1, y2))


def _around(across: Sequence[float], down: Sequence[float]) -> Box:
    """The box around these corners, within the grid."""
    left, right, top, bottom = (
        min(max(round(edge), 0), GRID) for edge in (min(across), max(across), min(down), max(down))
    )
    return left, top, right, bottom
