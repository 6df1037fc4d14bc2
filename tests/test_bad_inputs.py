"""One table of bad inputs: each is refused in one sentence or read as far as it can be; nothing
else is lost.

A section is a room or a kind of input; each row is one bad input.
"""

import builtins
import contextlib
import dataclasses
import gzip
import io
import json
import os
import shutil
import struct
import subprocess
import sys
import time
from pathlib import Path

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
from ocr_phases import PhaseRun
from ocr_phases.analyse.grounding import match_boxes, parse_grounding
from ocr_phases.analyse.text import one_line, plain_text, similarities, tables_of
from ocr_phases.cli import main
from ocr_phases.errors import OcrPhasesError
from ocr_phases.images import load_page, page_count
from ocr_phases.record.parts import to_plain
from ocr_phases.report.result_files import write_artifacts
from ocr_phases.session import load_recorded
from ocr_phases.show.boxes import MOST_BOXES, DrawnBox, boxes_sentence, draw_marks
from ocr_phases.show.html_table import MOST_TABLE_ROWS, table_html
from ocr_phases.show.page import picture_parts, plot_page, region_parts
from ocr_phases.show.web import Html
from ocr_phases.view.data import boxes, row_data
from ocr_phases.view.markdown import markdown_html

_CPU_SECONDS = 10.0  # for an input of 100,000 characters: quadratic reading would take minutes
_CHARACTERS = 100_000


def read_in_time(read, given):
    """What ``read`` makes of ``given``, within a bound that only a reading in quadratic time
    exceeds.
    """
    start = time.process_time()
    found = read(given)
    assert time.process_time() - start < _CPU_SECONDS
    return found


# -- text of a model or a truth: read in linear time, or refused ------------------------------

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
@pytest.mark.parametrize("name", TEXTS)
def test_text_is_read_in_time(name, read):
    first, repeated, last = TEXTS[name]
    read_in_time(read, first + repeated * (_CHARACTERS // len(repeated)) + last)


def test_tables_are_compared_in_time(monkeypatch):
    monkeypatch.setattr(
        "ocr_phases.analyse.text.MOST_TREE_PAIRS", 50_000
    )  # of five tables, in place of 25
    ours, theirs = (tables_of(f"<table>{f'<tr><td>{cell}' * 59}</table>" * 100) for cell in "ab")
    assert read_in_time(lambda theirs: similarities(ours, theirs), theirs)[-1] == pytest.approx(
        60 / 119
    )


_BOX = "<|ref|>{}<|/ref|><|det|>[[{}, {}, 600, 400]]<|/det|>a\n"
REGIONS = {
    "5,000 regions that overlap": [("text", number % 20, 1) for number in range(5_000)],
    "5,000 regions almost in one place": [
        ("text", number % 70, number // 70) for number in range(5_000)
    ],
    "5,000 labels": [(f"label {number}", number % 500, 1) for number in range(5_000)],
}


@pytest.mark.parametrize("name", REGIONS)
def test_regions_are_matched_and_drawn_in_time(name):
    found = parse_grounding("".join(_BOX.format(*region) for region in REGIONS[name]))
    held = [list(region.boxes) for region in found.regions]
    assert len(read_in_time(lambda held: match_boxes(held, held), held)) == 5_000
    assert len(read_in_time(lambda found: boxes(found.regions, (10, 10)), found)) == MOST_BOXES


_COUNT = 3 * MOST_BOXES
_ONE_REGION = ", ".join(["[1, 2, 300, 400]"] * _COUNT)
MANY = {
    "regions": "".join(_BOX.format("text", n % 500, n // 100) for n in range(_COUNT)),
    "regions as large as the page": "<|ref|>text<|/ref|><|det|>[[0, 0, 999, 999]]<|/det|>a"
    * _COUNT,
    "boxes of one region": f"<|ref|>text<|/ref|><|det|>[{_ONE_REGION}]<|/det|>a",
    "labels": "".join(_BOX.format(f"label {n}", n % 500, 1) for n in range(_COUNT)),
    "regions without text": "<|ref|>a<|/ref|><|det|>[[1, 2, 3, 4]]<|/det|>" * _COUNT,
}
_ALL_BOXES = f"The first {MOST_BOXES:,} of {_COUNT:,} boxes are drawn."


def run_of(text):
    """A record of some tokens that together have this text."""
    run = make_run(text="a word or two of a page, and some more")
    count = len(run.results[0].ids)
    length = -(-len(text) // count)
    pieces = [text[start : start + length] for start in range(0, count * length, length)]
    result = msgspec.structs.replace(run.results[0], text=text, token_texts=pieces)
    return dataclasses.replace(run, results=[result])


def page_and_regions(run):
    return [*picture_parts(run), *region_parts(run)]


@pytest.mark.parametrize("name", MANY)
def test_more_boxes_than_a_page_has_are_not_drawn_and_a_sentence_says_so(name, monkeypatch):
    run, drawn = run_of(MANY[name]), []
    rectangle = ImageDraw.ImageDraw.rectangle
    grounds = 0

    def counted(draw, box, fill=None, outline=None, width=1):
        nonlocal grounds
        if outline is not None:
            drawn.append(box)
            grounds += 0 if fill is None else (box[2] - box[0]) * (box[3] - box[1])
        rectangle(draw, box, fill, outline, width)

    monkeypatch.setattr(ImageDraw.ImageDraw, "rectangle", counted)
    shown = "".join(map(str, read_in_time(page_and_regions, run)))
    assert len(drawn) == 2 * MOST_BOXES  # by label and by time
    assert grounds <= 2 * 50 * run.page_image(0).width * run.page_image(0).height
    assert shown.count(_ALL_BOXES) == 1
    assert _ALL_BOXES[:-1] in plot_page(run).axes[0].get_title(loc="left").replace("\n", " ")
    if name != "boxes of one region":
        assert shown.count("<tr") <= 2 * MOST_TABLE_ROWS + 4
        assert "rows are shown." in shown
    told = read_in_time(lambda run: row_data(run, 0), run)
    assert len(told["pages"][0]["boxes"]) == MOST_BOXES
    assert _ALL_BOXES in told["note"]
    assert len(told["regions"]) <= MOST_BOXES
    assert told["rendered"].count("<section") <= MOST_BOXES
    some_regions = f"show the first {MOST_BOXES:,} of {_COUNT:,} regions"
    assert (some_regions in told["note"]) == (name != "boxes of one region")


@pytest.mark.parametrize("name", MANY)
def test_the_picture_of_a_file_says_that_boxes_are_missing(name, tmp_path, monkeypatch):
    written = []
    text = ImageDraw.ImageDraw.text

    def noted(draw, place, words, *rest):
        written.append(words)
        text(draw, place, words, *rest)

    monkeypatch.setattr(ImageDraw.ImageDraw, "text", noted)
    write_artifacts(tmp_path, page_image(), MANY[name])
    assert written.count(_ALL_BOXES) == 1
    assert len(written) <= MOST_BOXES + 1


@pytest.mark.parametrize("size", [(1, 1), (9, 4_000), (4_000, 9), (620, 877)])
@pytest.mark.parametrize(("count", "said"), [(0, 0), (1, 0), (MOST_BOXES, 0), (MOST_BOXES + 1, 1)])
def test_pages_of_any_shape_say_how_many_boxes_are_drawn(size, count, said):
    boxes_of_it = [DrawnBox((0, 0, 1, 1), "#0072b2", "")] * count
    drawn = draw_marks(Image.new("RGB", size, "black"), boxes_of_it)
    foot = drawn.crop((0, size[1] - 1, size[0], size[1]))
    assert drawn.size == size
    assert bool(boxes_sentence(count)) == bool(said)
    if min(size) > 9:
        assert (foot.getpixel((size[0] - 1, 0)) == (255, 255, 255)) == bool(said)


@pytest.mark.parametrize("count", [0, 1, MOST_TABLE_ROWS, MOST_TABLE_ROWS + 1, 50_000])
def test_a_long_table_shows_its_first_rows_and_says_so(count):
    caption = Html("<b>Words</b>")
    shown = str(table_html(pd.DataFrame({"a": range(count)}), caption=caption))
    assert shown.count("<tr") == 1 + min(count, MOST_TABLE_ROWS)
    assert (f"The first 2,000 of {count:,} rows are shown." in shown) == (count > MOST_TABLE_ROWS)
    assert "<b>Words</b>" in shown


# -- records, settings and names -------------------------------------------------------------------


def test_a_record_that_would_fill_the_memory_is_refused(tmp_path):
    path = tmp_path / "run.json.gz"
    path.write_bytes(gzip.compress(b'{"schema": 2, "x": [' + b"{}," * 33_000_000 + b"{}]}", 1))
    with refused():
        read_in_time(PhaseRun.load, path)


@pytest.mark.parametrize("place", ["", "device", "model", "request", "cache", "pages", "kernels"])
@pytest.mark.parametrize("count", [3, 2_000])
def test_entries_that_are_not_known_are_kept_up_to_a_number(place, count, tmp_path):
    record = json.loads(make_run().to_json())
    record.setdefault("kernels", {"error": "no profiler"})
    part = record[place] if place else record
    part = part[0] if isinstance(part, list) else part
    part |= {f"entry {number}": [1] for number in range(count)}
    path = tmp_path / "run.json"
    path.write_text(json.dumps(record))
    if count == 3:
        PhaseRun.load(path)
        return
    with pytest.raises(OcrPhasesError, match=r"entries in one part, where 1,000 are the most"):
        PhaseRun.load(path)


@pytest.mark.parametrize(
    "model", [{"revision": "a" * 40}, {"revision": "seed:0"}, {"source": "org/name"}]
)
def test_a_hub_id_is_not_taken_from_a_record(model):
    run, native = make_run(), {"name": "org/name", "implementation": "native"}
    known = {**native, "source": "built-in", "revision": "sha256:0"}
    with refused():
        load_recorded(altered(run, model=known | model))


def test_frames_of_a_tiff_are_counted_and_found_in_time(tmp_path):
    path, frames = tmp_path / "many.tif", 50_000
    entries = [(256, 2), (257, 1), (258, 8), (259, 1), (262, 1), (278, 1), (279, 2)]
    data = bytearray(struct.pack("<2sHI", b"II", 42, 8))
    for frame in range(frames):
        at = len(data) + 2 + 12 * (len(entries) + 1) + 4
        fields = sorted([*entries, (273, at)])
        data += struct.pack("<H", len(fields)) + b"".join(
            struct.pack("<HHII", tag, 4, 1, to) for tag, to in fields
        )
        data += struct.pack("<I2s", at + 2 if frame < frames - 1 else 0, bytes([frame % 250] * 2))
    path.write_bytes(data)
    assert read_in_time(page_count, path) == 10_001
    assert read_in_time(load_page, f"{path}#9000")[0].getpixel((0, 0)) == (249, 249, 249)
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


@pytest.fixture(scope="module")
def cell(golden_session):
    """Runs a cell in IPython: its error, and all that it printed."""
    shell = InteractiveShell(config=Config(HistoryManager={"enabled": False}), colors="NoColor")
    public = {name: getattr(ocr_phases, name) for name in ocr_phases.__all__}
    shell.push({**public, "ocr_phases": ocr_phases, "session": golden_session, "run": make_run()})

    def run(code):
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            result = shell.run_cell(code)
        return result.error_in_exec, printed.getvalue().strip()

    return run


@pytest.mark.parametrize(("code", "kind", "said"), CALLS, ids=[call[0] for call in CALLS])
def test_a_wrong_call_is_one_line_in_a_cell(cell, code, kind, said):
    error, printed = cell(code)
    assert isinstance(error, ocr_phases.OcrPhasesError)
    assert isinstance(error, getattr(builtins, kind))
    assert said in str(error)
    assert printed == f"{type(error).__name__}: {error}"


def test_the_traceback_is_a_second_look_or_a_switch(cell, monkeypatch):
    cell("PhaseRun.load(123)")
    assert "Traceback" in cell("%tb")[1]
    monkeypatch.setenv("OCR_PHASES_TRACEBACK", "1")
    assert "Traceback" in cell("PhaseRun.load(123)")[1]


def test_an_error_of_the_caller_s_own_function_stays(golden_session):
    def progress(done, total):
        raise TypeError("mine")

    with refused(TypeError):
        golden_session.run_inference("data/pages/receipt.png", preset="tiny", progress=progress)


# -- command lines ---------------------------------------------------------------------------------

PAGE, RUN, LONG = str(PAGES / "slide.png"), str(RECORD), "x" * 300
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
        "PAGE --published tiny",
        "--published tiny --prompt free --no-embed-page",
        "--published http://127.0.0.1:9/v1",
        "--published BAD",
    ],
    "sweep": [
        "--records .",
        "--records . --repeats 3 --batch 1",
        "PAGE --records .",
        "--records LONG",
    ],
    "sweep PAGE": [
        "--batch 1,x",
        "--models ,",
        "--models tiny --model tiny",
        "--strategies eagr",
        "--out LONG",
        "--models dummy:layers=2,vocab=9,tiny,dummy:layers=2,vocab=9",
    ],
    "compare RUN RUN": [
        "--fail-above -5",
        "--margin inf",
        "--metric prefill_ms",
        "--fail-above 5 --metric prefil_ms",
        "--out LONG",
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
def bad(tmp_path_factory):
    """Pages and records that cannot be used; what else is none has a table beside what reads it."""
    folder, whole, run = (
        tmp_path_factory.mktemp("bad"),
        Path(PAGE).read_bytes(),
        PhaseRun.load(RECORD),
    )
    for name, content in {
        "file": b"",
        "cut.json": RECORD.read_bytes()[:1000],
        "other.json": json.dumps({**json.loads(RECORD.read_bytes()), "schema": 9}).encode(),
        "text.png": b"no image",
        "no_pixels.png": whole[:16] + bytes(8) + whole[24:],
        "broken.pdf": b"%PDF-1.7 broken",
    }.items():
        (folder / name).write_bytes(content)
    altered(run, pages=[{**to_plain(run.page), "data": None}]).save(folder / "bare.json")
    altered(run, pages=[{**to_plain(run.page), "sha256": "1" * 64}]).save(folder / "smaller.json")
    altered(run, model={"revision": "sha256:" + "0" * 64}).save(folder / "retrained.json")
    return folder


@pytest.mark.parametrize("command", WRONG_COMMANDS)
def test_a_wrong_command_is_one_sentence_and_one_json_object(
    command, bad, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("ocr_phases.batch.local_workers.cores", lambda: 2)
    known = {"PAGE": PAGE, "RUN": RUN, "LONG": LONG}
    words = [known.get(word, word).replace("BAD", str(bad)) for word in command.split()]
    assert main([*words, "--json"]) == 2
    said = capsys.readouterr()
    told = json.loads(said.out)
    assert (told["exit_code"], said.err) == (2, f"ocr-phases: {told['exit_reason']}\n")
    with refused():
        raise OcrPhasesError(told["exit_reason"])
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_help_and_a_bug_are_one_json_object(monkeypatch, capsys):
    assert main(["--help", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["exit_code"] == 0
    monkeypatch.setattr(PhaseRun, "load", lambda path: 1 / 0)
    assert main(["artifacts", RUN, "--json"]) == 70
    said = capsys.readouterr()
    assert "bug" in json.loads(said.out)["exit_reason"] and "Traceback" in said.err


# -- the environment: streams, backends, the current folder ----------------------------------------

ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PYTHONIOENCODING": "ascii"}
CAFE = os.fsdecode(b"caf\xe9")
ENVIRONMENTS = {  # a redirection, a code, and what must be there afterwards
    "verify --record RUN >&- 2>&- <&-": 0,
    "notebooks . --json | head -c 0": 0,
    "notebooks . --json >/dev/full 2>/dev/full": 141,
    "profil 2>/dev/full": 2,
    "report --record RUN --out é >/dev/full": 141,
}


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
@pytest.mark.parametrize("command", ENVIRONMENTS)
def test_a_lost_stream_or_a_strange_environment_ends_no_work(command, tmp_path):
    record = str(shutil.copy(RECORD, tmp_path / f"{CAFE}.json"))
    environment = {**os.environ, **ASCII, "MPLBACKEND": "bogus", "RUN": record}
    line = f"{sys.executable} -m ocr_phases.cli {command.replace('RUN', '$RUN')}"
    done = subprocess.run(
        ["sh", "-c", line], cwd=tmp_path, env=environment, capture_output=True, timeout=120
    )
    assert done.returncode == ENVIRONMENTS[command]
    assert b"Traceback" not in done.stderr and b"Exception" not in done.stderr
    assert "--out" not in command or (tmp_path / "é" / "report.html").is_file()
