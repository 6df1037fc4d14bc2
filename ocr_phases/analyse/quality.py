"""What a reading lost: a record's text, tables, boxes and order against the truth of its page.

The truth is a text, this project's page JSON, an OmniDocBench file or another record.
docs/quality.md defines each measure. Lower is better for distances and error rates, higher for the
others.
"""

from __future__ import annotations

import math
import os
import unicodedata
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from operator import itemgetter
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
from msgspec import Meta, Struct
from rapidfuzz.distance import Levenshtein

from ocr_phases.analyse.grounding import Box, Region, grid_box, match_boxes
from ocr_phases.analyse.repetition import repetition_table
from ocr_phases.analyse.stages import cached, grounding_of
from ocr_phases.analyse.text import (
    DIFFERENT,
    EQUAL,
    EXTRA,
    MISSING,
    plain_text,
    similarities,
    tables_of,
    text_measures,
)
from ocr_phases.errors import OcrPhasesError
from ocr_phases.files import conform, parse_json, read_regular, split_page
from ocr_phases.record import Record, RecordType
from ocr_phases.record.schema import TrueRegion, Truth

#: The suffixes of a truth by its page's name, in the order in which they are looked for.
TRUTH_SUFFIXES = (".md", ".mmd", ".txt", ".json")
QUALITY_COLUMNS = ("measure", "label", "value", "count")
DIFFERENCE_COLUMNS = ("region", "label", "box", "outcome", "cer", "written", "true")
#: What measures are called against a reference; the others are then left out.
AGREEMENT = {
    "edit_distance": "agreement",
    "table_similarity": "table_agreement",
    "box_recall": "box_agreement",
}
#: Measures by a truth.
MEASURES = (
    "edit_distance",
    "cer",
    "wer",
    "table_similarity",
    "box_recall",
    "box_iou",
    "order_distance",
)

_MOST_CHARACTERS = 1_000_000
_LARGEST = 100 * 2**20  # bytes; OmniDocBench's own annotations of 1,355 pages have 60 MB
#: OmniDocBench's names of blocks for what DeepSeek-OCR calls otherwise.
_LABELS = {
    "text_block": "text",
    "figure": "image",
    "equation_isolated": "equation",
    "figure_caption": "image_caption",
}
#: Blocks that hold no text of their own, or that are no part of a page's text by OmniDocBench's
#: rules.
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


class _Info(Struct):
    image_path: str
    width: _Size
    height: _Size
    page_attribute: dict[str, Any] | None = None


class _Block(Struct):
    category_type: str
    poly: Annotated[list[_Edge], Meta(min_length=4)]  # x and y in turns, pixels
    ignore: bool | None = False
    order: float | None = None
    html: str | None = None
    latex: str | None = None
    text: str | None = None


class _Annotated(Struct):
    """A page of OmniDocBench's annotations; the blocks are read of the page that is asked for."""

    page_info: _Info
    layout_dets: list[Any]


# -- the truth of a page, by its file --------------------------------------------------------------


def find_truth(page: str | Path, folder: str | Path) -> Path | None:
    """A page's truth in ``folder``, by the page's name and a suffix of `TRUTH_SUFFIXES`; None
    without.

    The truth of ``sub/scan.png`` is ``sub/scan.md`` there, or ``scan.md``.
    """
    file, number = split_page(str(page))
    if not Path(file).name or "\0" in file:  # such as "" or "..", which name no page
        return None
    named = Path(file).with_suffix("")
    stems = [named.name] if named.is_absolute() else [named, named.name]
    endings = [number.replace("#", "-") + suffix for suffix in TRUTH_SUFFIXES]
    paths = [Path(folder, f"{stem}{ending}") for stem in stems for ending in endings]
    # Unlike Path's, this one is False for a name that no file can have.
    return next((path for path in paths if os.path.isfile(path)), None)  # noqa: PTH113


def check_for_pages(path: str | Path, pages: int) -> None:
    """Raise `OcrPhasesError` where ``path`` is the truth of one page and there are several."""
    file = Path(path)
    one = not file.is_dir() and (
        file.suffix.lower() != ".json" or not isinstance(_read(file), list)
    )
    if one and pages > 1:
        raise OcrPhasesError(
            f"The truth {path} is of one page: give a folder with one for each page."
        )


def page_truth(path: str | Path, page: str) -> Truth | None:
    """The truth of ``page`` at ``path``: a file as `load_truth` reads it, or a folder as for
    `find_truth`.

    None where the folder, or an annotation file of many pages, lacks the page; else raises as
    `load_truth`.
    """
    found = find_truth(page, path) if Path(path).is_dir() else Path(path)
    if found is None or (truth := _truth_of(found, page)) is None:
        return None
    if (length := len(truth.text)) > _MOST_CHARACTERS:
        raise OcrPhasesError(
            f"The truth {found} has {length:,} characters, more than a page's text."
        )
    if not plain_text(truth.text):
        raise OcrPhasesError(
            f"The truth {found} has no text: give the page's text, or leave it out."
        )
    return truth


def load_truth(path: str | Path, page: str = "") -> Truth:
    """Read the truth of ``page`` from a file, or from a folder that has it by the page's name.

    A file is a text, a page's JSON, a batch's ``truth.json``, an annotation file of OmniDocBench,
    which has the page by its file's name, or a record, whose text becomes a reference. Raises
    `OcrPhasesError` for a file that cannot be read or has another shape, and where the page is not
    there.
    """
    truth = page_truth(path, page)
    if truth is None:
        what = (
            f"no truth of {page}" if Path(path).is_dir() else f"no page {page or 'that was named'}"
        )
        raise OcrPhasesError(
            f"The truth {path} has {what}: give its file, or one of the page's name."
        )
    return truth


def with_truth(record: RecordType, truth: Truth | str | Path, row: int = 0) -> RecordType:
    """The same record with the reference text of a row's page: ``truth``, or a path for
    `load_truth`.

    Raises `OcrPhasesError` for a record without a text, and as `load_truth` does.
    """
    if record.result_of(row).text is None:
        raise OcrPhasesError(
            "This record has no text (return_text=False), so it keeps no truth either."
        )
    reference = truth if isinstance(truth, Truth) else load_truth(truth, record.page_name(row))
    truths = list(record.truths or [None] * len(record.results))
    truths[row] = reference
    return replace(record, truths=truths)


def reference_of(run: Record, row: int = 0, name: str = "") -> Truth:
    """What a row of a run wrote, as a reference for others; `OcrPhasesError` for a record without a
    text.
    """
    text = run.results[row].text
    if text is None:
        raise OcrPhasesError(
            f"The reference {name} has no text (return_text=False): take another record."
        )
    found = grounding_of(run, row)
    regions = tuple(TrueRegion(each.label, each.box, each.text) for each in found.regions)
    return Truth(found.without_marks(text), regions, name, reference=True)


def _truth_of(path: Path, page: str) -> Truth | None:
    name, suffix = path.name, path.suffix.lower()
    content: Any = None if suffix == ".gz" else _read(path)
    if suffix == ".gz" or (isinstance(content, dict) and "schema" in content):
        return reference_of(Record.load(path), name=name)
    if suffix != ".json":
        return Truth(content, file=name)
    try:
        if isinstance(content, list):
            return _of_annotations(conform(content, list[_Annotated]), page, name)
        if isinstance(content, dict) and "ignored" in content:  # as a record and a batch keep it
            return conform(content, Truth)
        own: _Page = conform(content, _Page)
    except OcrPhasesError as error:
        raise OcrPhasesError(
            f"The truth {path} has another shape than a page's, OmniDocBench's or a record's ({error})."
        ) from error
    regions = [(each.label or "", grid_box(each.box), each.text or "") for each in own.regions]
    return _of_regions(regions, file=name, category=own.kind or "")


def _of_annotations(pages: Sequence[_Annotated], page: str, file: str) -> Truth | None:
    """One page of OmniDocBench's annotations; of a single one that, where none is named."""
    alone, name = len(pages) == 1 and not page, _file_name(page)
    named = (each for each in pages if alone or _file_name(each.page_info.image_path) == name)
    if (found := next(named, None)) is None:
        return None
    size, regions = (found.page_info.width, found.page_info.height), []
    blocks: list[_Block] = conform(found.layout_dets, list[_Block], "layout_dets")
    for block in sorted(blocks, key=lambda block: math.inf if block.order is None else block.order):
        label, text = block.category_type, block.html or block.latex or block.text or ""
        if not block.ignore and label not in _NO_TEXT:
            regions.append((_LABELS.get(label, label), grid_box(block.poly, *size), text))
    category = (found.page_info.page_attribute or {}).get("data_source") or ""
    return _of_regions(regions, file=file, category=str(category), ignored=_NO_TEXT)


def _of_regions(regions: Sequence[tuple[str, Box, str]], **others: Any) -> Truth:
    text = "\n\n".join(text for *_, text in regions if text)
    return Truth(text, tuple(TrueRegion(*each) for each in regions), **others)


def _file_name(path: str) -> str:
    """A path's last part in Unicode NFC, as file systems and annotations differ; no name is longer."""
    return unicodedata.normalize("NFC", path.replace("\\", "/").rpartition("/")[2][:1_000])


def _read(path: Path) -> Any:
    """A file's text, or the value of its JSON."""
    try:
        state = path.stat()
        return _content(path, state.st_mtime_ns, state.st_size)
    except OSError as error:
        raise OcrPhasesError(f"The truth {path} cannot be read ({error.strerror}).") from error
    except UnicodeDecodeError as error:
        raise OcrPhasesError(f"The truth {path} is not UTF-8: save it as UTF-8 text.") from error
    except OcrPhasesError as error:
        raise OcrPhasesError(f"The truth {path}: {str(error).rstrip('.')}.") from error


@lru_cache(maxsize=1)  # a benchmark's file holds the pages that are asked for one after another
def _content(path: Path, *_state: int) -> Any:
    text = read_regular(path, _LARGEST).decode("utf-8-sig")
    return parse_json(text.encode()) if path.suffix.lower() == ".json" else text


# -- measures --------------------------------------------------------------------------------------


def quality_table(run: Record, truth: Truth | None, row: int = 0) -> pd.DataFrame:
    """A row's text against the truth, columns `QUALITY_COLUMNS`, one line a measure and label of
    region.

    ``value`` is a ratio, ``count`` what it was taken over: characters, words, regions or tables of
    the truth. ``label`` is empty for the whole page. Measures of regions and tables are there where
    the truth has them; ``repetition``, over the generated tokens, needs none. Against a reference
    (`Truth.reference`) the measures are called agreement. Raises `OcrPhasesError` for a record
    without its text and a truth without any.
    """
    result = run.results[row]
    if result.text is None:
        raise OcrPhasesError(
            "This record has no text (return_text=False): measure the page with it."
        )
    lines = [] if truth is None else _against(truth, run, row)
    repeated, tokens = repetition_table(run).query("row == @row")["repeated"].sum(), len(result.ids)
    lines.append(("repetition", "", repeated / tokens, tokens))
    return pd.DataFrame(lines, columns=list(QUALITY_COLUMNS))


@cached
def quality_of(run: Record, row: int = 0) -> dict[str, float]:
    """The measures of a whole row by the record's own truth, by name; empty where either has no
    text.
    """
    truth = run.truth_of(row)
    if truth is None or run.results[row].text is None or not plain_text(truth.text):
        return {}
    whole = quality_table(run, truth, row).query("label == ''")
    return dict(zip(whole["measure"], whole["value"], strict=True))


_Line = tuple[str, str, float, int]  # `QUALITY_COLUMNS`


def _against(truth: Truth, run: Record, row: int) -> list[_Line]:
    text = run.results[row].text or ""
    grounding = grounding_of(run, row)
    written, true = plain_text(grounding.without_marks(text, truth.ignored)), plain_text(truth.text)
    if not true:
        raise OcrPhasesError(f"The truth {truth.file} has no text: give the page's text.")
    lines = [(name, "", *pair) for name, pair in text_measures(written, true).items()]
    if tables := tables_of(truth.text):
        alike = similarities(tables_of(text), tables)
        lines.append(("table_similarity", "", sum(alike) / len(tables), len(tables)))
    if _has_boxes(truth, run, row):
        lines += _boxes(grounding.on_page(0).regions, truth.regions)
    if not truth.reference:
        return lines
    return [
        (AGREEMENT[measure], label, 1.0 - value if measure == "edit_distance" else value, count)
        for measure, label, value, count in lines
        if measure in AGREEMENT
    ]


def _has_boxes(truth: Truth, run: Record, row: int) -> bool:
    """Whether boxes tell which regions belong together: a truth's are of one page."""
    return sum(page.row == row for page in run.pages) == 1 and any(
        each.box for each in truth.regions
    )


def _boxes(ours: Sequence[Region], theirs: Sequence[TrueRegion]) -> list[_Line]:
    """Box recall and mean IoU of the matched, for all and by label, and the order's distance."""
    placed = pd.DataFrame(
        [(each.label, each.box) for each in theirs if each.box], columns=["label", "box"]
    )
    pairs = match_boxes(
        [[box] for each in ours for box in each.boxes], [[box] for box in placed["box"]]
    )
    placed["iou"] = pd.Series({place: overlap for _, place, overlap in pairs}, dtype="float64")
    lines: list[_Line] = []
    for label, each in [("", placed), *placed[placed["label"] != ""].groupby("label", sort=False)]:
        found = each["iou"].dropna()
        lines.append(("box_recall", str(label), len(found) / len(each), len(each)))
        lines.append(("box_iou", str(label), found.mean(), len(found)))
    order = [place for _, place, _ in sorted(pairs)]
    lines.append(
        ("order_distance", "", Levenshtein.normalized_distance(order, sorted(order)), len(order))
    )
    return [line for line in lines if line[-1]]


# -- region by region ------------------------------------------------------------------------------

_Side = tuple[int | None, str, Box | None, str]  # the region's number, label, box and plain text
_Row = tuple[
    int | None, str, Box | None, str | None, str | None
]  # as written, as it is; None in neither


def region_differences(run: Record, truth: Truth, row: int = 0) -> pd.DataFrame:
    """A row's regions against the truth, columns `DIFFERENCE_COLUMNS`, in the order of the text.

    ``region`` is the number in the row's text, missing where only the truth has it; ``box`` is on
    the 0..999 grid; ``outcome`` is one of `ocr_phases.analyse.text.OUTCOMES`; ``written`` and
    ``true`` are plain texts; ``cer`` is over the true one, missing where there is none. Regions are
    paired by their boxes (`ocr_phases.analyse.grounding.match_boxes`). Where the text has none, its
    words go to the truth's regions; where the truth has none, or the row has several pages, the
    truth's words go to the text's: to those that they meet in the alignment with the fewest edits.
    """
    text, regions = run.results[row].text or "", grounding_of(run, row).regions
    told = [region for region in regions if region.label not in truth.ignored]
    written: list[_Side] = [
        (each.index, each.label, each.box, plain_text(each.text)) for each in told
    ]
    before = plain_text(text[: regions[0].start] if regions else text)
    if before or not written:
        written.insert(0, (None, "preamble", None, before))
    true: list[_Side] = [
        (None, each.label, each.box, plain_text(each.text)) for each in truth.regions
    ]
    if not _has_boxes(truth, run, row):
        rows: list[_Row] = [
            (*side, own) for side, own in _by_words(written, plain_text(truth.text))
        ]
    elif any(side[2] for side in written):
        rows = _by_boxes(written, true)
    else:
        given = _by_words(true, " ".join(side[3] for side in written))
        rows = [(*side[:3], own or (None if side[3] else ""), side[3]) for side, own in given]
    table = pd.DataFrame(rows, columns=["region", "label", "box", "written", "true"], dtype=object)
    lacking, extra = (table[name].isna() for name in ("written", "true"))
    table[["written", "true"]] = table[["written", "true"]].where(table.notna(), "")
    extra |= (table["written"] != "") & (table["true"] == "")
    equal = table["written"] == table["true"]
    table["outcome"] = np.select([lacking, extra, equal], [MISSING, EXTRA, EQUAL], DIFFERENT)
    texts = zip(table["written"], table["true"], strict=True)
    table["cer"] = [
        text_measures(mine, theirs)["cer"][0] if theirs else None for mine, theirs in texts
    ]
    return table[list(DIFFERENCE_COLUMNS)].astype({"region": "Int64", "cer": "float64"})


def _by_boxes(written: Sequence[_Side], true: Sequence[_Side]) -> list[_Row]:
    """The regions that share a box, and those of either side alone; missing ones behind the one
    before.
    """
    boxes = [[[side[2]] if side[2] else [] for side in sides] for sides in (written, true)]
    partner = {place: mine for mine, place, _ in match_boxes(*boxes)}
    said = {mine: true[place][3] for place, mine in partner.items()}
    rows: list[tuple[int, _Row]] = [
        (place, (*side, said.get(place))) for place, side in enumerate(written)
    ]
    last = -1
    for place, side in enumerate(true):
        last = partner.get(place, last)
        if place not in partner and (side[2] or side[3]):
            rows.append((last, (*side[:3], None, side[3])))
    return [row for _, row in sorted(rows, key=itemgetter(0))]


def _by_words(sides: Sequence[_Side], other: str) -> list[tuple[_Side, str]]:
    """Each region with the words of the other text that the alignment gives it."""
    mine = [(word, number) for number, side in enumerate(sides) for word in side[3].split()]
    theirs, given = other.split(), [list[str]() for _ in sides]
    for op in Levenshtein.opcodes([word for word, _ in mine], theirs):
        for offset, word in enumerate(theirs[op.dest_start : op.dest_end]):
            # What is inserted goes to the region of the word before.
            place = max(op.src_start - 1, 0) if op.tag == "insert" else op.src_start + offset
            given[mine[place][1] if mine else 0].append(word)
    return [(side, " ".join(own)) for side, own in zip(sides, given, strict=True)]
