"""What a reading lost: a record's text, tables, boxes and order against the truth of its page.

The truth is a text, this project's page JSON, an OmniDocBench file or another record.
docs/quality.md defines each measure. Lower is better for distances and error rates, higher for the
others.
"""

from __future__ import annotations

import math
import os
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
from msgspec import Meta, Struct

from ocr_phases.analyse.grounding import Box, Region, grid_box, match_boxes
from ocr_phases.analyse.repetition import repetition_table
from ocr_phases.analyse.stages import cached, grounding_of
from ocr_phases.analyse.text import (
    DIFFERENT,
    EQUAL,
    EXTRA,
    MISSING,
    missing_text_libraries,
    plain_text,
    similarities,
    tables_of,
    text_measures,
)
from ocr_phases.errors import Keyword, OcrPhasesError
from ocr_phases.files import conform, parse_json, read_regular, split_page
from ocr_phases.record import NO_PAGE, Record, RecordType
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
    if pages < 2 or file.is_dir():
        return
    if file.suffix.lower() != ".json" or not isinstance(_read(file), list):
        raise OcrPhasesError(
            f"The reference text {path} is of one page: give a folder with one for each page."
        )


def page_truth(path: str | Path, page: str) -> Truth | None:
    """The truth of ``page`` at ``path``: a file as `load_truth` reads it, or a folder as for
    `find_truth`.

    None where the folder, or an annotation file of many pages, lacks the page; else raises as
    `load_truth`.
    """
    file = find_truth(page, path) if Path(path).is_dir() else Path(path)
    if file is None:
        return None
    truth = _truth_of(file, page)
    if truth is None:
        return None
    characters = len(truth.text)
    if characters > _MOST_CHARACTERS:
        raise OcrPhasesError(
            f"The reference text {file} has {characters:,} characters, more than a page's text."
        )
    if not plain_text(truth.text):
        raise OcrPhasesError(
            f"The reference text {file} has no text: give the page's text, or leave it out."
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
    if truth is not None:
        return truth
    lacking = f"no page {page or 'that was named'}"
    if Path(path).is_dir():
        lacking = f"no reference text of {page}"
    raise OcrPhasesError(
        f"The reference text {path} has {lacking}: give its file, or one of the page's name."
    )


def with_truth(record: RecordType, truth: Truth | str | Path, row: int = 0) -> RecordType:
    """The same record with the reference text of a row's page: ``truth``, or a path for
    `load_truth`.

    Raises `OcrPhasesError` for a record without a text or a page, and as `load_truth` does.
    """
    if record.result_of(row).text is None:
        raise OcrPhasesError(
            "This record has no text ({without_text}), so it keeps no reference text either.",
            without_text=Keyword("return_text", False),
        )
    if not record.has_page:
        raise OcrPhasesError(f"{NO_PAGE} A reference text is what a page says.")
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
            "The reference {name} has no text ({without_text}): take another record.",
            name=name,
            without_text=Keyword("return_text", False),
        )
    grounding = grounding_of(run, row)
    regions = tuple(
        TrueRegion(region.label, region.box, region.text) for region in grounding.regions
    )
    return Truth(grounding.without_marks(text), regions, name, reference=True)


def _truth_of(path: Path, page: str) -> Truth | None:
    """The truth of ``page`` in a file of any known kind; None where the file lacks the page."""
    if path.suffix.lower() == ".gz":
        return reference_of(Record.load(path), name=path.name)
    content: Any = _read(path)
    if path.suffix.lower() != ".json":
        return Truth(content, file=path.name)
    if isinstance(content, dict) and "schema" in content:
        return reference_of(Record.load(path), name=path.name)
    try:
        if isinstance(content, list):
            return _truth_of_annotations(conform(content, list[_Annotated]), page, path.name)
        if isinstance(content, dict) and "ignored" in content:  # as a record and a batch keep it
            return conform(content, Truth)
        return _truth_of_page_json(conform(content, _Page), path.name)
    except OcrPhasesError as error:
        raise OcrPhasesError(
            f"The reference text {path} has another shape than a page's, OmniDocBench's or a "
            f"record's ({error})."
        ) from error


def _truth_of_page_json(page: _Page, file: str) -> Truth:
    """The truth in a page's JSON of this project."""
    regions = [
        TrueRegion(region.label or "", grid_box(region.box), region.text or "")
        for region in page.regions
    ]
    return Truth(_text_of(regions), tuple(regions), file, category=page.kind or "")


def _truth_of_annotations(pages: Sequence[_Annotated], page: str, file: str) -> Truth | None:
    """The truth of one page of OmniDocBench's annotations; None where they lack it.

    Annotations of a single page are its truth where no page is named.
    """
    annotated = _annotated_page(pages, page)
    if annotated is None:
        return None
    info = annotated.page_info
    blocks: list[_Block] = conform(annotated.layout_dets, list[_Block], "layout_dets")
    regions = []
    for block in sorted(blocks, key=_place_in_order):
        label = block.category_type
        if block.ignore or label in _NO_TEXT:
            continue
        box = grid_box(block.poly, info.width, info.height)
        text = block.html or block.latex or block.text or ""
        regions.append(TrueRegion(_LABELS.get(label, label), box, text))
    category = (info.page_attribute or {}).get("data_source") or ""
    return Truth(_text_of(regions), tuple(regions), file, category=str(category), ignored=_NO_TEXT)


def _annotated_page(pages: Sequence[_Annotated], page: str) -> _Annotated | None:
    """The annotations of a page by its file's name; the only ones where no page is named."""
    if not page and len(pages) == 1:
        return pages[0]
    name = _file_name(page)
    for annotated in pages:
        if _file_name(annotated.page_info.image_path) == name:
            return annotated
    return None


def _place_in_order(block: _Block) -> float:
    """Where a block is read; blocks without a place come last."""
    return math.inf if block.order is None else block.order


def _text_of(regions: Sequence[TrueRegion]) -> str:
    """The texts of the regions, one below the other."""
    return "\n\n".join(region.text for region in regions if region.text)


def _file_name(path: str) -> str:
    """A path's last part in Unicode NFC, because file systems and annotations differ in that."""
    name = path.replace("\\", "/").rpartition("/")[2]
    return unicodedata.normalize("NFC", name[:1_000])  # no file system has longer names


def _read(path: Path) -> Any:
    """A file's text, or the value of its JSON."""
    try:
        state = path.stat()
        return _content(path, state.st_mtime_ns, state.st_size)
    except OSError as error:
        raise OcrPhasesError(
            f"The reference text {path} cannot be read ({error.strerror})."
        ) from error
    except UnicodeDecodeError as error:
        raise OcrPhasesError(
            f"The reference text {path} is not UTF-8: save it as UTF-8 text."
        ) from error
    except OcrPhasesError as error:
        raise OcrPhasesError(f"The reference text {path}: {str(error).rstrip('.')}.") from error


@lru_cache(maxsize=1)  # a benchmark's file holds the pages that are asked for one after another
def _content(path: Path, *_state: int) -> Any:
    """What `_read` gives, kept as long as the file has the same time of change and size."""
    text = read_regular(path, _LARGEST).decode("utf-8-sig")
    if path.suffix.lower() == ".json":
        return parse_json(text.encode())
    return text


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
            "This record has no text ({without_text}): measure the page with it.",
            without_text=Keyword("return_text", False),
        )
    lines = []
    if truth is not None:
        lines = _measures_against(truth, run, row)
    repetitions = repetition_table(run)
    repeated = repetitions.loc[repetitions["row"] == row, "repeated"].sum()
    tokens = len(result.ids)
    lines.append(MeasureLine("repetition", "", repeated / tokens, tokens))
    return pd.DataFrame([asdict(line) for line in lines], columns=list(QUALITY_COLUMNS))


@cached
def quality_of(run: Record, row: int = 0) -> dict[str, float]:
    """The measures of a whole row by the record's own truth, by name.

    Empty where either has no text, and where the libraries that compare texts are missing.
    """
    truth = run.truth_of(row)
    if missing_text_libraries():
        return {}
    if truth is None or run.results[row].text is None or not plain_text(truth.text):
        return {}
    whole = quality_table(run, truth, row).query("label == ''")
    return dict(zip(whole["measure"], whole["value"], strict=True))


@dataclass(frozen=True)
class MeasureLine:
    """One line of `quality_table`: a measure of the whole page, or of a label of regions."""

    measure: str
    label: str
    value: float
    count: int


def _measures_against(truth: Truth, run: Record, row: int) -> list[MeasureLine]:
    """The measures of a row's text, tables, boxes and order against the truth."""
    missing = missing_text_libraries()
    if missing:
        raise OcrPhasesError(f"A text cannot be compared with its reference text here: {missing}.")
    text = run.results[row].text or ""
    grounding = grounding_of(run, row)
    true = plain_text(truth.text)
    if not true:
        raise OcrPhasesError(f"The reference text {truth.file} has no text: give the page's text.")
    written = plain_text(grounding.without_marks(text, truth.ignored))
    lines = []
    for name, (value, count) in text_measures(written, true).items():
        lines.append(MeasureLine(name, "", value, count))
    tables = tables_of(truth.text)
    if tables:
        similarity = sum(similarities(tables_of(text), tables)) / len(tables)
        lines.append(MeasureLine("table_similarity", "", similarity, len(tables)))
    if _has_boxes(truth, run, row):
        lines += _box_measures(grounding.on_page(0).regions, truth.regions)
    if truth.reference:
        return _as_agreement(lines)
    return lines


def _as_agreement(lines: Sequence[MeasureLine]) -> list[MeasureLine]:
    """The measures that have a name against a reference, under that name: 1 is agreement."""
    agreements = []
    for line in lines:
        if line.measure not in AGREEMENT:
            continue
        value = 1.0 - line.value if line.measure == "edit_distance" else line.value
        agreements.append(replace(line, measure=AGREEMENT[line.measure], value=value))
    return agreements


def _has_boxes(truth: Truth, run: Record, row: int) -> bool:
    """Whether boxes tell which regions belong together: a truth's are of one page."""
    pages = [page for page in run.pages if page.row == row]
    return len(pages) == 1 and any(region.box for region in truth.regions)


def _box_measures(ours: Sequence[Region], theirs: Sequence[TrueRegion]) -> list[MeasureLine]:
    """Box recall and mean IoU of the matched, for all and by label, and the order's distance."""
    placed = [region for region in theirs if region.box]
    true_boxes = [[region.box] for region in placed if region.box]
    pairs = match_boxes([[box] for region in ours for box in region.boxes], true_boxes)
    overlaps = {place: overlap for _, place, overlap in pairs}
    lines = _box_lines("", range(len(placed)), overlaps)
    places_of_label: dict[str, list[int]] = {}
    for place, region in enumerate(placed):
        if region.label:
            places_of_label.setdefault(region.label, []).append(place)
    for label, places in places_of_label.items():
        lines += _box_lines(label, places, overlaps)
    order = [place for _, place, _ in sorted(pairs)]
    if order:
        from rapidfuzz.distance import Levenshtein

        distance = Levenshtein.normalized_distance(order, sorted(order))
        lines.append(MeasureLine("order_distance", "", distance, len(order)))
    return lines


def _box_lines(
    label: str, places: Sequence[int], overlaps: Mapping[int, float]
) -> list[MeasureLine]:
    """Box recall and mean IoU of the true regions at these places; no IoU where none was found."""
    matched = [overlaps[place] for place in places if place in overlaps]
    lines = [MeasureLine("box_recall", label, len(matched) / len(places), len(places))]
    if matched:
        mean = float(pd.Series(matched).mean())
        lines.append(MeasureLine("box_iou", label, mean, len(matched)))
    return lines


# -- region by region ------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Side:
    """A region of the text or of the truth: its number in the text, label, box and plain text."""

    region: int | None
    label: str
    box: Box | None
    text: str


@dataclass(frozen=True)
class _Pair:
    """A region as it was written and as it is true; None where one side does not have it."""

    side: _Side
    written: str | None
    true: str | None


def region_differences(run: Record, truth: Truth, row: int = 0) -> pd.DataFrame:
    """A row's regions against the truth, columns `DIFFERENCE_COLUMNS`, in the order of the text.

    ``region`` is the number in the row's text, missing where only the truth has it; ``box`` is on
    the 0..999 grid; ``outcome`` is one of `ocr_phases.analyse.text.OUTCOMES`; ``written`` and
    ``true`` are plain texts; ``cer`` is over the true one, missing where there is none. Regions are
    paired by their boxes (`ocr_phases.analyse.grounding.match_boxes`). Where the text has none, its
    words go to the truth's regions; where the truth has none, or the row has several pages, the
    truth's words go to the text's: to those that they meet in the alignment with the fewest edits.
    """
    pairs = _paired_regions(run, truth, row)
    table = pd.DataFrame(
        {
            "region": pd.Series([pair.side.region for pair in pairs], dtype="Int64"),
            "label": pd.Series([pair.side.label for pair in pairs], dtype=object),
            "box": pd.Series([pair.side.box for pair in pairs], dtype=object),
            "outcome": pd.Series([_outcome(pair) for pair in pairs], dtype="str"),
            "cer": pd.Series([_error_rate(pair) for pair in pairs], dtype="float64"),
            "written": pd.Series([pair.written or "" for pair in pairs], dtype=object),
            "true": pd.Series([pair.true or "" for pair in pairs], dtype=object),
        }
    )
    return table[list(DIFFERENCE_COLUMNS)]


def _outcome(pair: _Pair) -> str:
    if pair.written is None:
        return MISSING
    if pair.true is None or (pair.written and not pair.true):
        return EXTRA
    return EQUAL if pair.written == pair.true else DIFFERENT


def _error_rate(pair: _Pair) -> float | None:
    """The character error rate over the true text; None where there is none."""
    if not pair.true:
        return None
    return text_measures(pair.written or "", pair.true)["cer"][0]


def _paired_regions(run: Record, truth: Truth, row: int) -> list[_Pair]:
    """The regions of a row's text and of the truth, as `region_differences` pairs them."""
    written = _written_sides(run, truth, row)
    true = [
        _Side(None, region.label, region.box, plain_text(region.text)) for region in truth.regions
    ]
    if not _has_boxes(truth, run, row):
        words = _words_of_sides(written, plain_text(truth.text))
        return [_Pair(side, side.text, own) for side, own in zip(written, words, strict=True)]
    if any(side.box for side in written):
        return _pairs_by_boxes(written, true)
    words = _words_of_sides(true, " ".join(side.text for side in written))
    pairs = []
    for side, own in zip(true, words, strict=True):
        is_missing = not own and bool(side.text)
        pairs.append(_Pair(side, None if is_missing else own, side.text))
    return pairs


def _written_sides(run: Record, truth: Truth, row: int) -> list[_Side]:
    """The regions of a row's text that the truth does not ignore, the text before them first."""
    text = run.results[row].text or ""
    regions = grounding_of(run, row).regions
    sides = [
        _Side(region.index, region.label, region.box, plain_text(region.text))
        for region in regions
        if region.label not in truth.ignored
    ]
    before = plain_text(text[: regions[0].start] if regions else text)
    if before or not sides:
        sides.insert(0, _Side(None, "preamble", None, before))
    return sides


def _pairs_by_boxes(written: Sequence[_Side], true: Sequence[_Side]) -> list[_Pair]:
    """The regions that share a box, and those of either side alone; missing ones behind the one
    before.
    """
    matches = match_boxes(_boxes_of(written), _boxes_of(true))
    partner = {place: mine for mine, place, _ in matches}
    true_text = {mine: true[place].text for place, mine in partner.items()}
    behind: dict[int, list[_Pair]] = {}  # by the number of the written region before
    last = -1
    for place, side in enumerate(true):
        last = partner.get(place, last)
        if place not in partner and (side.box or side.text):
            behind.setdefault(last, []).append(_Pair(side, None, side.text))
    pairs = behind.get(-1, [])
    for number, side in enumerate(written):
        pairs.append(_Pair(side, side.text, true_text.get(number)))
        pairs += behind.get(number, [])
    return pairs


def _boxes_of(sides: Sequence[_Side]) -> list[list[Box]]:
    return [[side.box] if side.box else [] for side in sides]


def _words_of_sides(sides: Sequence[_Side], other: str) -> list[str]:
    """The words of the other text that the alignment gives to each region."""
    from rapidfuzz.distance import Levenshtein

    mine = [(word, number) for number, side in enumerate(sides) for word in side.text.split()]
    theirs = other.split()
    words: list[list[str]] = [[] for _ in sides]
    for edit in Levenshtein.opcodes([word for word, _ in mine], theirs):
        for offset, word in enumerate(theirs[edit.dest_start : edit.dest_end]):
            place = edit.src_start + offset
            if edit.tag == "insert":  # it goes to the region of the word before
                place = max(edit.src_start - 1, 0)
            number = mine[place][1] if mine else 0
            words[number].append(word)
    return [" ".join(own) for own in words]
