"""What a page really says, as users have it: a text, this project's page JSON, an OmniDocBench file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ocr_phases.errors import OcrPhasesError
from ocr_phases.files import read_regular, split_page

TRUTH_SUFFIXES = (".md", ".mmd", ".txt", ".json")
"""The suffixes of a truth beside its page, in the order in which they are looked for."""

_LARGEST = 100 * 2**20  # bytes; OmniDocBench's own annotations of 1,355 pages have 60 MB
_GRID = 999
#: OmniDocBench's names of blocks for what DeepSeek-OCR calls otherwise.
_LABELS = {
    "text_block": "text",
    "figure": "image",
    "equation_isolated": "equation",
    "figure_caption": "image_caption",
}
#: Blocks that hold no text of their own, or that are no part of a page's text by OmniDocBench's rules.
_NO_TEXT = ("abandon", "mask", "need_mask", "page_number", "header", "footer", "page_footnote")


@dataclass(frozen=True)
class TrueRegion:
    """A region of a truth: its label, its box `(x1, y1, x2, y2)` on the 0..999 grid, and its text."""

    label: str
    box: tuple[int, int, int, int] | None
    text: str


@dataclass(frozen=True)
class Truth:
    """A page's text as Markdown in reading order, and its regions in that order where they are known."""

    text: str
    regions: tuple[TrueRegion, ...] = ()
    file: str = ""


def find_truth(page: str | Path) -> Path | None:
    """The truth beside a page: a file of its name with another suffix (`TRUTH_SUFFIXES`); None without."""
    file, number = split_page(str(page))
    stem = f"{Path(file).with_suffix('')}{number.replace('#', '-')}"
    paths = [Path(f"{stem}{suffix}") for suffix in TRUTH_SUFFIXES]
    return next((path for path in paths if path.is_file()), None)


def load_truth(path: str | Path, page: str = "") -> Truth:
    """Read a truth; of an annotation file of many pages that of ``page``, by its file's name.

    Raises `OcrPhasesError` for a file that cannot be read or has another shape, and for a page it lacks.
    """
    try:
        data = read_regular(path, _LARGEST)
    except OSError as error:
        raise OcrPhasesError(f"The truth {path} cannot be read ({error.strerror}).") from error
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise OcrPhasesError(f"The truth {path} is not UTF-8: save it as UTF-8 text.") from error
    name = Path(path).name
    if not name.lower().endswith(".json"):
        return Truth(text, file=name)
    try:
        content = json.loads(text)
    except ValueError as error:
        raise OcrPhasesError(f"The truth {path} is no JSON ({error}).") from error
    try:
        regions = _annotated(content, page) if isinstance(content, list) else _of_page(content)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise OcrPhasesError(
            f"The truth {path} has another shape than a page's JSON or OmniDocBench's ({error!r})."
        ) from error
    if regions is None:
        raise OcrPhasesError(f"The truth {path} has no page {page or 'that was named'}: name its image file.")
    return Truth("\n\n".join(region.text for region in regions if region.text), tuple(regions), name)


def _of_page(content: Mapping[str, Any]) -> list[TrueRegion]:
    """This project's page JSON: ``regions`` of label, box on the grid and text."""
    regions = []
    for region in content["regions"]:
        x1, y1, x2, y2 = (int(edge) for edge in region["box"])
        regions.append(TrueRegion(str(region["label"]), (x1, y1, x2, y2), str(region["text"])))
    return regions


def _annotated(pages: Sequence[Mapping[str, Any]], page: str) -> list[TrueRegion] | None:
    """One page of OmniDocBench's annotations; of a single one that, whatever it is called."""
    name = Path(page).name
    found = [entry for entry in pages if Path(entry["page_info"]["image_path"]).name == name]
    if not found and len(pages) == 1 and not page:
        found = list(pages)
    if not found:
        return None
    info = found[0]["page_info"]
    blocks = [block for block in found[0]["layout_dets"] if not block.get("ignore")]
    blocks = [block for block in blocks if block["category_type"] not in _NO_TEXT]
    blocks.sort(key=lambda block: (block.get("order") is None, block.get("order") or 0))
    return [
        TrueRegion(
            _LABELS.get(block["category_type"], str(block["category_type"])),
            _on_grid(block["poly"][::2], block["poly"][1::2], info["width"], info["height"]),
            str(block.get("html") or block.get("latex") or block.get("text") or ""),
        )
        for block in blocks
    ]


def _on_grid(
    across: Sequence[float], down: Sequence[float], width: float, height: float
) -> tuple[int, int, int, int]:
    """The box around these corners, from pixels to the grid."""
    x1, x2 = (round(_GRID * float(x) / float(width)) for x in (min(across), max(across)))
    y1, y2 = (round(_GRID * float(y) / float(height)) for y in (min(down), max(down)))
    return x1, y1, x2, y2
