"""One table of bad inputs: each is refused in one sentence or read as far as it can be; nothing
else is lost.

A section is a room or a kind of input; each row is one bad input.
"""

import builtins
import contextlib
import dataclasses
import functools
import gzip
import io
import json
import os
import shutil
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pandas as pd
import pytest
from conftest import PAGES, RECORD
from example_run import altered, make_run, page_image
from IPython.core.interactiveshell import InteractiveShell
from PIL import Image, ImageDraw
from refusals import refused
from traitlets.config import Config

import ocr_phases
from ocr_phases import OCRSession, PhaseRun
from ocr_phases.analyse.grounding import match_boxes, parse_grounding
from ocr_phases.analyse.text import one_line, plain_text, similarities, tables_of
from ocr_phases.cli import main
from ocr_phases.errors import OcrPhasesError
from ocr_phases.images import load_page, page_count
from ocr_phases.record.parts import to_plain
from ocr_phases.report.result_files import write_artifacts
from ocr_phases.session import load_recorded
from ocr_phases.show.boxes import MOST_BOXES, DrawnBox, boxes_sentence, draw_marks, region_boxes
from ocr_phases.show.html_table import MOST_TABLE_ROWS, table_html
from ocr_phases.show.page import picture_parts, plot_page, region_parts
from ocr_phases.show.web import Html
from ocr_phases.view.data import boxes, row_data
from ocr_phases.view.markdown import markdown_html

_CPU_SECONDS = 10.0  # for an input of 100,000 characters: quadratic reading would take minutes
_CHARACTERS = 100_000

Source = TypeVar("Source")
Found = TypeVar("Found")


def read_in_time(read: Callable[[Source], Found], source: Source) -> Found:
    """What ``read`` makes of ``source``, within a bound that only a reading in quadratic time
    exceeds.
    """
    start = time.process_time()
    found = read(source)
    assert time.process_time() - start < _CPU_SECONDS
    return found


# -- text of a model or a truth: read in linear time, or refused ------------------------------

#: How a text begins, what is repeated in it, and how it ends.
TEXTS = {
    "blanks in a heading": ("# a", " ", "b"),
    "tabs in a heading": ("# a", "\t", "b"),
    "marks on a letter": ("a", "\u0301\u0323", ""),
    "ampersands": ("", "&amp;", ""),
    "digits of a character": ("&#", "1", ";"),
    "such digits in a cell": ("<table><tr><td>&#", "1", ";</td></tr></table>"),
    "such digits again and again": ("", f"&#{'1' * 5000};", ""),
    "tags that are not closed": ("", "<a ", ""),
    "tables that are not closed": ("", "<table ", ""),
    "tables in tables": ("", "<table><tr><td>", "</td></tr></table>"),
    "comments that are not closed": ("<table>", "<!--", "</table>"),
    "lists": ("", "- ", "a"),
    "quotes": ("", "> ", "a"),
    "brackets": ("", "[", "a"),
    "stars": ("", "*a **b ", ""),
    "backticks": ("", "`a ", ""),
    "backslashes": ("", "\\", "a"),
    "a wide table": ("|a|\n|-|\n", "|a", "|"),
}


@pytest.mark.parametrize(
    "read", [plain_text, one_line, tables_of, markdown_html], ids=lambda it: it.__name__
)
@pytest.mark.parametrize(("first", "repeated", "last"), TEXTS.values(), ids=TEXTS)
def test_text_is_read_in_time(
    first: str, repeated: str, last: str, read: Callable[[str], object]
) -> None:
    count = _CHARACTERS // len(repeated)
    read_in_time(read, first + repeated * count + last)


def hundred_tables(cell: str) -> list[Any]:
    """A hundred tables of 59 rows with one cell each."""
    rows = f"<tr><td>{cell}" * 59
    return tables_of(f"<table>{rows}</table>" * 100)


def test_tables_are_compared_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    # The trees of five tables are compared, in place of 25.
    monkeypatch.setattr("ocr_phases.analyse.text.MOST_TREE_PAIRS", 50_000)
    written = hundred_tables("a")

    def similarities_to(true: list[Any]) -> list[float]:
        return similarities(written, true)

    found = read_in_time(similarities_to, hundred_tables("b"))
    assert found[-1] == pytest.approx(60 / 119)


_BOX = "<|ref|>{}<|/ref|><|det|>[[{}, {}, 600, 400]]<|/det|>a\n"
#: Regions by their label and the left and the upper side of their box.
REGIONS = {
    "5,000 regions that overlap": [("text", number % 20, 1) for number in range(5_000)],
    "5,000 regions almost in one place": [
        ("text", number % 70, number // 70) for number in range(5_000)
    ],
    "5,000 labels": [(f"label {number}", number % 500, 1) for number in range(5_000)],
}


@pytest.mark.parametrize("regions", REGIONS.values(), ids=REGIONS)
def test_regions_are_matched_and_drawn_in_time(regions: list[tuple[str, int, int]]) -> None:
    text = "".join(_BOX.format(*region) for region in regions)
    grounding = parse_grounding(text)
    boxes_of_regions = [list(region.boxes) for region in grounding.regions]

    def match_with_themselves(boxes_to_match: list[Any]) -> list[Any]:
        return match_boxes(boxes_to_match, boxes_to_match)

    def boxes_to_draw(found: Any) -> list[Any]:
        return boxes(found.regions, (10, 10))

    def draw(found: Any) -> Image.Image:
        page = page_image()
        return draw_marks(page, region_boxes(found.regions, page.size))

    assert len(read_in_time(match_with_themselves, boxes_of_regions)) == 5_000
    assert len(read_in_time(boxes_to_draw, grounding)) == MOST_BOXES
    assert read_in_time(draw, grounding).size == page_image().size


_COUNT = 3_000  # more than a page has of boxes, and a table of rows
_ONE_REGION = ", ".join(["[1, 2, 300, 400]"] * _COUNT)
#: Texts with more boxes than a page has.
MANY = {
    "regions": "".join(_BOX.format("text", n % 500, n // 100) for n in range(_COUNT)),
    "regions as large as the page": "<|ref|>text<|/ref|><|det|>[[0, 0, 999, 999]]<|/det|>a"
    * _COUNT,
    "boxes of one region": f"<|ref|>text<|/ref|><|det|>[{_ONE_REGION}]<|/det|>a",
    "labels": "".join(_BOX.format(f"label {n}", n % 500, 1) for n in range(_COUNT)),
    "regions without text": "<|ref|>a<|/ref|><|det|>[[1, 2, 3, 4]]<|/det|>" * _COUNT,
}
_ALL_BOXES = f"The first {MOST_BOXES:,} of {_COUNT:,} boxes are drawn."
#: A limit that is quicker to reach: a picture with all the boxes of a page takes half a second.
_FEW_BOXES = 100
_ALL_OF_FEW = f"The first {_FEW_BOXES} of {_COUNT:,} boxes are drawn."


@pytest.fixture
def few_boxes(monkeypatch: pytest.MonkeyPatch) -> None:
    """No picture of a page has more than `_FEW_BOXES` boxes."""
    monkeypatch.setattr("ocr_phases.show.boxes.MOST_BOXES", _FEW_BOXES)


@functools.cache
def run_of(text: str) -> PhaseRun:
    """A record of some tokens that together have this text."""
    run = make_run(text="a word or two of a page, and some more")
    count = len(run.results[0].ids)
    length = -(-len(text) // count)  # rounded up
    pieces = [text[start : start + length] for start in range(0, count * length, length)]
    result = msgspec.structs.replace(run.results[0], text=text, token_texts=pieces)
    return dataclasses.replace(run, results=[result])


def page_and_regions(run: PhaseRun) -> str:
    """The pictures of a page and what each region took."""
    parts = [*picture_parts(run), *region_parts(run)]
    return "".join(str(part) for part in parts)


def data_of_first_row(run: PhaseRun) -> dict[str, Any]:
    return row_data(run, 0)


class DrawnRectangles:
    """Counts the rectangles with an outline that Pillow draws, and the pixels of their grounds."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        self.ground_pixels = 0
        draw_rectangle = ImageDraw.ImageDraw.rectangle

        def rectangle(
            draw: ImageDraw.ImageDraw,
            box: Any,
            fill: Any = None,
            outline: Any = None,
            width: int = 1,
        ) -> None:
            if outline is not None:
                self.count += 1
                if fill is not None:
                    self.ground_pixels += (box[2] - box[0]) * (box[3] - box[1])
            draw_rectangle(draw, box, fill, outline, width)

        monkeypatch.setattr(ImageDraw.ImageDraw, "rectangle", rectangle)


every_long_text = pytest.mark.parametrize("name", MANY)


@every_long_text
@pytest.mark.usefixtures("few_boxes")
def test_more_boxes_than_a_page_has_are_not_drawn_and_a_sentence_says_so(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = run_of(MANY[name])
    page = run.page_image(0)
    drawn = DrawnRectangles(monkeypatch)

    html = read_in_time(page_and_regions, run)

    assert drawn.count == 2 * _FEW_BOXES  # by label and by time
    assert drawn.ground_pixels <= 2 * 50 * page.width * page.height
    assert html.count(_ALL_OF_FEW) == 1
    title = plot_page(run).axes[0].get_title(loc="left").replace("\n", " ")
    assert _ALL_OF_FEW[:-1] in title
    if name != "boxes of one region":
        assert html.count("<tr") <= 2 * MOST_TABLE_ROWS + 4
        assert "rows are shown." in html


@every_long_text
def test_the_linked_view_has_no_more_boxes_than_a_page_and_says_so(name: str) -> None:
    data = read_in_time(data_of_first_row, run_of(MANY[name]))

    assert len(data["pages"][0]["boxes"]) == MOST_BOXES
    assert _ALL_BOXES in data["note"]
    assert len(data["regions"]) <= MOST_BOXES
    assert data["rendered"].count("<section") <= MOST_BOXES
    some_regions = f"show the first {MOST_BOXES:,} of {_COUNT:,} regions"
    assert (some_regions in data["note"]) == (name != "boxes of one region")


@every_long_text
@pytest.mark.usefixtures("few_boxes")
def test_the_picture_of_a_file_says_that_boxes_are_missing(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = []
    draw_text = ImageDraw.ImageDraw.text

    def text(draw: ImageDraw.ImageDraw, place: Any, words: str, *rest: Any) -> None:
        written.append(words)
        draw_text(draw, place, words, *rest)

    monkeypatch.setattr(ImageDraw.ImageDraw, "text", text)

    write_artifacts(tmp_path, page_image(), MANY[name])

    assert written.count(_ALL_OF_FEW) == 1
    assert len(written) <= _FEW_BOXES + 1


@pytest.mark.parametrize("size", [(1, 1), (9, 4_000), (4_000, 9), (620, 877)])
@pytest.mark.parametrize(
    ("count", "is_said"),
    [(0, False), (1, False), (MOST_BOXES, False), (MOST_BOXES + 1, True)],
)
def test_pages_of_any_shape_say_how_many_boxes_are_drawn(
    size: tuple[int, int], count: int, is_said: bool
) -> None:
    width, height = size
    drawn_boxes = [DrawnBox((0, 0, 1, 1), "#0072b2", "")] * count

    drawn = draw_marks(Image.new("RGB", size, "black"), drawn_boxes)

    assert drawn.size == size
    assert bool(boxes_sentence(count)) == is_said
    if min(size) > 9:  # there is room for a line on a white ground
        last_pixel = drawn.getpixel((width - 1, height - 1))
        assert (last_pixel == (255, 255, 255)) == is_said


@pytest.mark.parametrize("count", [0, 1, MOST_TABLE_ROWS, MOST_TABLE_ROWS + 1, 50_000])
def test_a_long_table_shows_its_first_rows_and_says_so(count: int) -> None:
    caption = Html("<b>Words</b>")
    html = str(table_html(pd.DataFrame({"a": range(count)}), caption=caption))
    assert html.count("<tr") == 1 + min(count, MOST_TABLE_ROWS)
    assert (f"The first 2,000 of {count:,} rows are shown." in html) == (count > MOST_TABLE_ROWS)
    assert "<b>Words</b>" in html


# -- records, settings and names -------------------------------------------------------------------


def test_a_record_that_would_fill_the_memory_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.json.gz"
    content = b'{"schema": 2, "x": [' + b"{}," * 33_000_000 + b"{}]}"
    path.write_bytes(gzip.compress(content, 1))
    with refused():
        read_in_time(PhaseRun.load, path)


def save_with_unknown_entries(path: Path, place: str, count: int) -> None:
    """Save a record with so many entries that nobody knows, in one of its parts or at its top."""
    record = json.loads(make_run().to_json())
    record.setdefault("kernels", {"error": "no profiler"})
    part = record[place] if place else record
    if isinstance(part, list):
        part = part[0]
    for number in range(count):
        part[f"entry {number}"] = [1]
    path.write_text(json.dumps(record))


every_place = pytest.mark.parametrize(
    "place", ["", "device", "model", "request", "cache", "pages", "kernels"]
)


@every_place
def test_a_few_entries_that_are_not_known_are_kept(place: str, tmp_path: Path) -> None:
    save_with_unknown_entries(tmp_path / "run.json", place, 3)
    PhaseRun.load(tmp_path / "run.json")


@every_place
def test_too_many_entries_that_are_not_known_are_refused(place: str, tmp_path: Path) -> None:
    save_with_unknown_entries(tmp_path / "run.json", place, 2_000)
    with pytest.raises(OcrPhasesError, match=r"entries in one part, where 1,000 are the most"):
        PhaseRun.load(tmp_path / "run.json")


@pytest.mark.parametrize(
    "model", [{"revision": "a" * 40}, {"revision": "seed:0"}, {"source": "org/name"}]
)
def test_a_hub_id_is_not_taken_from_a_record(model: dict[str, str]) -> None:
    built_in = {
        "name": "org/name",
        "implementation": "native",
        "source": "built-in",
        "revision": "sha256:0",
    }
    with refused():
        load_recorded(altered(make_run(), model=built_in | model))


def tiff_of_frames(count: int) -> bytes:
    """A TIFF file of frames with one pixel; the grey of each is its number, modulo 250."""
    entries = [(256, 2), (257, 1), (258, 8), (259, 1), (262, 1), (278, 1), (279, 2)]
    content = bytearray(struct.pack("<2sHI", b"II", 42, 8))
    for frame in range(count):
        pixels_at = len(content) + 2 + 12 * (len(entries) + 1) + 4
        next_frame_at = pixels_at + 2 if frame < count - 1 else 0
        fields = sorted([*entries, (273, pixels_at)])
        content += struct.pack("<H", len(fields))
        for tag, value in fields:
            content += struct.pack("<HHII", tag, 4, 1, value)
        content += struct.pack("<I2s", next_frame_at, bytes([frame % 250] * 2))
    return bytes(content)


def test_frames_of_a_tiff_are_counted_and_found_in_time(tmp_path: Path) -> None:
    path = tmp_path / "many.tif"
    path.write_bytes(tiff_of_frames(50_000))

    assert read_in_time(page_count, path) == 10_001
    page, *_ = read_in_time(load_page, f"{path}#9000")
    assert page.getpixel((0, 0)) == (249, 249, 249)
    with refused():
        read_in_time(load_page, f"{path}#20000")


# -- calls in a notebook cell ----------------------------------------------------------------------

#: A call, what its error is besides an `OcrPhasesError`, and what its one line says.
CALLS = (
    (
        'session.run_inference("page.png", max_tokens=64)',
        "TypeError",
        "Did you mean max_new_tokens?",
    ),
    ('session.run_inference("page.png", base_sizes=1024)', "TypeError", "base_size"),
    ('session.run_inference("page.png", past_key_values=None)', "TypeError", "DecodeState"),
    ("session.run_inference()", "TypeError", "page"),
    ('session.run_inference(__import__("numpy").zeros((3, 3)))', "Exception", "ndarray"),
    ('session.run_inference("data/pages/receipt.png", progress=5)', "TypeError", "progress is 5"),
    ('session.sweep("page.png", max_new_tokens=4)', "TypeError", "lengths"),
    ('session.run_prefill("page.png")', "TypeError", "PageInputs or DeviceInputs"),
    ('session.run_decode_step("page.png")', "TypeError", "DecodeState"),
    ("session.modle", "AttributeError", "Did you mean model?"),
    ('OCRSession.load("tiny", torch_dtype="float16")', "TypeError", "dtype"),
    ('OCRSession.load("tiny", repeats=3)', "TypeError", "run_inference"),
    ("OCRSession.load(session.model)", "Exception", "model is of type"),
    ('sweep("page.png", model=["tiny"])', "TypeError", "Did you mean models?"),
    ('Timeline("gpu")', "Exception", "'gpu'"),
    ("Settings(max_tokens=3)", "TypeError", "Did you mean max_new_tokens?"),
    ("decode(session.model, None, 1.5)", "TypeError", "state is None"),
    ('run["prefil_ms"]', "KeyError", "Did you mean prefill_ms?"),
    ("run.plot.latncy()", "AttributeError", "Did you mean latency?"),
    ("run.tokens_of(9)", "KeyError", "row 9"),
    ("PhaseRun.load(123)", "TypeError", "path is 123"),
    ('compare(run, "nofile.json")', "Exception", "nofile.json"),
    ("compare([run, run])", "TypeError", "PhaseRun, str or Path"),
    ("ocr_phases.OCRSesion", "AttributeError", "Did you mean OCRSession?"),
)


@dataclass(frozen=True)
class CellOutcome:
    """What became of a notebook's cell: its error, and all that it printed."""

    error: BaseException | None
    printed: str


RunCell = Callable[[str], CellOutcome]


@pytest.fixture(scope="module")
def run_cell(golden_session: OCRSession) -> RunCell:
    """A function that runs a cell in IPython."""
    shell = InteractiveShell(config=Config(HistoryManager={"enabled": False}), colors="NoColor")
    public = {name: getattr(ocr_phases, name) for name in ocr_phases.__all__}
    shell.push({**public, "ocr_phases": ocr_phases, "session": golden_session, "run": make_run()})

    def run(code: str) -> CellOutcome:
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            result = shell.run_cell(code)
        return CellOutcome(result.error_in_exec, printed.getvalue().strip())

    return run


@pytest.mark.parametrize(("code", "kind", "hint"), CALLS, ids=[call[0] for call in CALLS])
def test_a_wrong_call_is_one_line_in_a_cell(
    run_cell: RunCell, code: str, kind: str, hint: str
) -> None:
    outcome = run_cell(code)
    error = outcome.error
    assert isinstance(error, OcrPhasesError)
    assert isinstance(error, getattr(builtins, kind))
    assert hint in str(error)
    assert outcome.printed == f"{type(error).__name__}: {error}"


def test_the_traceback_is_a_second_look_or_a_switch(
    run_cell: RunCell, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_cell("PhaseRun.load(123)")
    assert "Traceback" in run_cell("%tb").printed
    monkeypatch.setenv("OCR_PHASES_TRACEBACK", "1")
    assert "Traceback" in run_cell("PhaseRun.load(123)").printed


def test_an_error_of_the_caller_s_own_function_stays(golden_session: OCRSession) -> None:
    def progress(done: int, total: int) -> None:
        raise TypeError("mine")

    with refused(TypeError):
        golden_session.run_inference("data/pages/receipt.png", preset="tiny", progress=progress)


# -- command lines ---------------------------------------------------------------------------------

PAGE = str(PAGES / "slide.png")
RUN = str(RECORD)
LONG = "x" * 300
#: Wrong commands: how they begin, and how each of them ends. What each is told is an approved
#: sentence.
WRONG = {
    "": [
        "",
        "profil PAGE",
        "report",
        "verify",
        "sweep",
        "profile",
        "compare RUN",
    ],
    "report": [
        "--prest tiny",
        "PAGE --record RUN",
    ],
    "report PAGE": [
        "--model tny",
        "--model dumy",
        "--dtype fp16",
        "--device abacus",
        "--revision main",
        "--kernel-steps 5",
        "--trust-remote-code",
        "--generate --verify",
        "--out LONG",
        "--out BAD/file",
    ],
    "report PAGE --device cpu": [
        "--kernels",
        "--trace",
        "--strategy cuda_graph",
        "--preset crop",
        "--max-new-tokens 9999",
    ],
    "report --record": [
        "RUN --preset tiny --no-ceilings",
        "RUN --trace",
        "RUN --out LONG",
        "LONG",
        "RUN --truth LONG",
        "BAD/other.json",
    ],
    "profile": [
        "--from RUN --preset=tiny",
        "--from none.json",
        "LONG",
        "BAD",
        "BAD/text.png",
        "BAD/no_pixels.png",
        "BAD/broken.pdf",
        "BAD/text.png --save BAD/text.png --overwrite",
    ],
    "profile --from": [
        "BAD/bare.json",
        "BAD/bare.json PAGE",
        "BAD/smaller.json",
        "BAD/retrained.json",
        "RUN --max-new-tokens 5",
        "RUN --repeats 3 --prompt markdown",
        "BAD/bare.json --save BAD/bare.json",
    ],
    "profile PAGE": [
        "--max-new-token 8",
        "--json=1",
        "--preset tinny",
        "--strategy cudagraph",
        "--vision compild",
        "--device cdua",
        "--dtype bflaot16",
        "--implementation vender",
        "--infer pubished",
        "--infer temprature=1",
        "--model dummy:layer=2",
        "--prompt markdwon",
        "--prompt loacte:words",
        "--save LONG",
        "--model LONG",
        "--device cuda:0,cuda:1",
        "--max-new-tokens 0",
        "--repeats 0",
        "--prompt <image><image>What?",
        "--prompt locate",
        "--save BAD/file/x",
        "--save BAD",
        "--save EMPTY",
        "--truth=",
        "--server EMPTY",
        "--server tiny",
        "--server 127.0.0.1:8000/v1",
        "--model http://127.0.0.1:9/v1 --device cpu --dtype float32",
        "--dry-run --batch 1000000000",
        "--dry-run --answer-timeout 5",
        "--dry-run --model http://127.0.0.1:9/v1",
        "--from RUN --server http://127.0.0.1:9/v1",
        "--from RUN --model http://127.0.0.1:9/v1",
        "--from RUN --answer-timeout 5",
    ],
    "profile PAGE --model": [
        "BAD",
    ],
    "verify": [
        "BAD/text.png --save BAD/text.png --overwrite",
        "--record RUN --price-per-hour 0",
        "--record RUN --price-per-hour -1",
        "--record RUN --price-per-hour cheap",
        "--record RUN --model tiny",
        "--record RUN --out LONG",
        "PAGE --save BAD",
        "PAGE --record RUN",
        "PAGE --record EMPTY",
        "PAGE --model http://127.0.0.1:9/v1",
        "PAGE --server EMPTY",
        "PAGE --server 127.0.0.1:8000/v1",
        "--record RUN --first-token-timeout 5",
        "PAGE --published tiny",
        "--published tiny --prompt free --no-embed-page",
        "--published http://127.0.0.1:9/v1",
        "--published BAD",
    ],
    "sweep": [
        "--records .",
        "--records . --repeats 3 --batch 1",
        "PAGE --records .",
        "PAGE --records EMPTY",
        "PAGE --first-token-timeout 5",
        "--records LONG",
    ],
    "sweep PAGE": [
        "--batch 1,x",
        "--models ,",
        "--models tiny --model tiny",
        "--strategies eagr",
        "--dtypes float33",
        "--attentions fast",
        "--batch 1001",
        "--max-new-tokens 1000001",
        "--out LONG",
        "--models dummy:layers=2,vocab=9,tiny,dummy:layers=2,vocab=9",
        "--models tiny,http://127.0.0.1:9/v1",
        "--model http://127.0.0.1:9/v1",
    ],
    "compare RUN RUN": [
        "--fail-above -5",
        "--margin inf",
        "--metric prefill_ms",
        "--fail-above 5 --metric prefil_ms",
        "--out LONG",
    ],
    "html": [
        "EMPTY",
        ".",
        "/",
    ],
    "artifacts": [
        "RUN --out LONG",
        "none.json",
        "BAD/cut.json",
    ],
    "batch": [
        "none.png",
        "--render only --workers 2",
    ],
    "batch PAGE": [
        "--render non",
        "--presets tiny --preset base",
        "--render none --render-workers 1",
        "--wait-workers 5",
        "--out LONG",
        "--truth LONG",
        "--out BAD/file",
        "--retries -1",
        "--timeout 0",
        "--timeout nan",
        "--timeout inf",
        "--timeout 1e300",
        "--render only",
        "--wait-workers 0",
        "--render-workers 99999",
        "--workers 0",
        "--workers 99999",
        "--workers 2 --scheduler tcp://127.0.0.1:1",
        "--preset huge",
        "--prompt locate:",
        "--strategy fast",
        "--vision sharp",
        "--max-new-tokens 0",
        "--eos-check-every 0",
        "--repeats 0",
        "--warmup -1",
    ],
}
WRONG_COMMANDS = [f"{start} {end}".strip() for start, ends in WRONG.items() for end in ends]


@pytest.fixture(scope="module")
def bad_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pages and records that cannot be used; what else is none has a table beside what reads it."""
    folder = tmp_path_factory.mktemp("bad")
    page = Path(PAGE).read_bytes()
    record = RECORD.read_bytes()
    (folder / "file").write_bytes(b"")
    (folder / "cut.json").write_bytes(record[:1000])
    (folder / "other.json").write_text(json.dumps({**json.loads(record), "schema": 9}))
    (folder / "text.png").write_bytes(b"no image")
    (folder / "no_pixels.png").write_bytes(page[:16] + bytes(8) + page[24:])
    (folder / "broken.pdf").write_bytes(b"%PDF-1.7 broken")

    run = PhaseRun.load(RECORD)
    page_part = to_plain(run.page)
    altered(run, pages=[page_part | {"data": None}]).save(folder / "bare.json")
    altered(run, pages=[page_part | {"sha256": "1" * 64}]).save(folder / "smaller.json")
    altered(run, model={"revision": "sha256:" + "0" * 64}).save(folder / "retrained.json")
    return folder


@pytest.mark.parametrize("command", WRONG_COMMANDS)
def test_a_wrong_command_is_one_sentence_and_one_json_object(
    command: str,
    bad_folder: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("ocr_phases.batch.local_workers.cores", lambda: 2)
    known = {"PAGE": PAGE, "RUN": RUN, "LONG": LONG, "EMPTY": ""}
    words = [known.get(word, word).replace("BAD", str(bad_folder)) for word in command.split()]

    assert main([*words, "--json"]) == 2

    printed = capsys.readouterr()
    result = json.loads(printed.out)
    assert result["exit_code"] == 2
    assert printed.err == f"ocr-phases: {result['exit_reason']}\n"
    with refused():
        raise OcrPhasesError(result["exit_reason"])
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_help_is_one_json_object(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["exit_code"] == 0


def test_a_bug_is_one_json_object(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def divide_by_zero(path: str) -> float:
        return 1 / 0

    monkeypatch.setattr(PhaseRun, "load", divide_by_zero)
    assert main(["artifacts", RUN, "--json"]) == 70
    printed = capsys.readouterr()
    assert "bug" in json.loads(printed.out)["exit_reason"]
    assert "Traceback" in printed.err


# -- the environment: streams, backends, the current folder ----------------------------------------

ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"}
CAFE = os.fsdecode(b"caf\xe9")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
@pytest.mark.parametrize(
    ("command", "code"),
    [
        ("verify --record RUN >&- 2>&- <&-", 0),
        ("notebooks . --json | head -c 0", 0),
        ("notebooks . --json >/dev/full 2>/dev/full", 141),
        ("profil 2>/dev/full", 2),
        ("report --record RUN --out é >/dev/full", 141),
    ],
)
def test_a_lost_stream_or_a_strange_environment_ends_no_work(
    command: str, code: int, tmp_path: Path
) -> None:
    record = str(shutil.copy(RECORD, tmp_path / f"{CAFE}.json"))
    environment = {**os.environ, **ASCII, "MPLBACKEND": "bogus", "RUN": record}
    line = f"{sys.executable} -m ocr_phases.cli {command.replace('RUN', '$RUN')}"

    done = subprocess.run(
        ["sh", "-c", line], cwd=tmp_path, env=environment, capture_output=True, timeout=120
    )

    assert done.returncode == code
    assert b"Traceback" not in done.stderr
    assert b"Exception" not in done.stderr
    if "--out" in command:
        assert (tmp_path / "é" / "report.html").is_file()
