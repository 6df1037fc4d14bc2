"""One table of bad inputs: each is refused in one sentence or read as far as it can be, and nothing else is lost.

A section is a room or a kind of input; each row is one bad input.
"""

from __future__ import annotations

import gzip
import struct
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from example_run import make_run

from ocr_phases.analyse.grounding import parse_grounding
from ocr_phases.analyse.quality import match_boxes
from ocr_phases.analyse.read_text import one_line, plain_text
from ocr_phases.analyse.region_pairs import matched_regions
from ocr_phases.analyse.tables import similarities, tables_of
from ocr_phases.errors import OcrPhasesError
from ocr_phases.measure.inputs.images import load_page, page_count
from ocr_phases.measure.rerun import load_recorded
from ocr_phases.measure.sweep import make_cells
from ocr_phases.record import PhaseRun
from ocr_phases.settings import RunSettings
from ocr_phases.show.explorer.rendered import markdown_nodes
from ocr_phases.show.explorer.view_data import boxes
from ocr_phases.show.overlay import region_boxes

_CPU_SECONDS = 2.0  # for an input of 100,000 characters
_CHARACTERS = 100_000


def read_in_time(read: Callable[[Any], Any], given: Any) -> Any:
    """What ``read`` makes of ``given``, within the CPU time that any input may take."""
    start = time.process_time()
    found = read(given)
    assert time.process_time() - start < _CPU_SECONDS
    return found


# -- text of a model or a truth: read within two seconds of CPU, or refused ---------------------------------

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
    "read", [plain_text, one_line, tables_of, markdown_nodes], ids=lambda it: it.__name__
)
@pytest.mark.parametrize("name", TEXTS)
def test_text_is_read_in_time(name: str, read: Callable[[str], Any]) -> None:
    first, repeated, last = TEXTS[name]
    read_in_time(read, first + repeated * (_CHARACTERS // len(repeated)) + last)


def test_tables_are_compared_in_time() -> None:
    ours, theirs = (tables_of(f"<table>{f'<tr><td>{cell}' * 59}</table>" * 100) for cell in "ab")
    assert read_in_time(lambda theirs: similarities(ours, theirs), theirs)[-1] == pytest.approx(60 / 119)


def test_what_cannot_be_read_stays() -> None:
    digits = f"&#{'1' * 5000};"
    assert plain_text(f"a {digits} <b>{digits}</b> &#65;") == f"a {digits} {digits} A"
    assert [
        cell.text for row in tables_of(f"<table><td>{digits}</table>")[0].children for cell in row.children
    ] == [digits]
    assert plain_text("a <b c &lt; <d") == "a <b c < <d"
    marks = "\u0301\u0323" * 50
    assert one_line(f"q{marks} b").replace("\u034f", "").count("\u0323") == 50
    assert one_line("\u2026" * 200) == "..." * 200


_BOX = "<|ref|>{label}<|/ref|><|det|>[[{x}, 1, {end}, 400]]<|/det|>a\n"
REGIONS = {
    "5,000 regions in one place": [("text", 1)] * 5_000,
    "5,000 regions that overlap": [("text", number % 20) for number in range(5_000)],
    "5,000 labels": [(f"label {number}", number % 500) for number in range(5_000)],
}


@pytest.mark.parametrize("name", REGIONS)
def test_regions_are_matched_and_drawn_in_time(name: str) -> None:
    text = "".join(_BOX.format(label=label, x=x, end=x + 400) for label, x in REGIONS[name])
    found = parse_grounding(text)
    held, labels = [list(region.boxes) for region in found.regions], [label for label, _ in REGIONS[name]]
    assert len(read_in_time(lambda held: match_boxes(held, [box for (box,) in held]), held)) == 5_000
    assert len(read_in_time(lambda found: matched_regions(found, found), found)) == 5_001
    assert len(read_in_time(lambda found: region_boxes(found.regions, (1000, 1400)), found)) == 5_000
    assert len(read_in_time(lambda found: boxes(found.regions, (10, 10), labels), found)) == 5_000


# -- lists of pages: a bad line fails alone -------------------------------------------------------------------


# -- records, settings and names ------------------------------------------------------------------------------

JSON_BOMBS = {
    "33 million objects": b'{"schema": 2, "x": [' + b"{}," * 33_000_000 + b"{}]}",
    "lists": b'{"schema": 2, "x": [' + b"[]," * 12_000_000 + b"[]]}",
    "a text": b'"' + b"a" * 399_999_990 + b'"',
}


@pytest.mark.parametrize("name", JSON_BOMBS)
def test_a_record_that_would_fill_the_memory_is_refused(name: str, tmp_path: Path) -> None:
    path = tmp_path / "run.json.gz"
    path.write_bytes(gzip.compress(JSON_BOMBS[name], 1))
    with pytest.raises(OcrPhasesError, match="2 GB|schema"):
        read_in_time(PhaseRun.load, path)


def test_a_lack_of_memory_is_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def full(*_: Any) -> None:
        raise MemoryError

    monkeypatch.setattr("ocr_phases.record.check_record", full)
    with pytest.raises(OcrPhasesError, match="more memory"):
        PhaseRun.load(make_run().save(tmp_path / "run.json"))


@pytest.mark.parametrize("name", ["repeats", "warmup", "max_new_tokens", "eos_check_every", "kernel_steps"])
def test_a_count_has_a_bound(name: str) -> None:
    with pytest.raises(OcrPhasesError, match=f"{name} is larger than"):
        RunSettings(**{name: 10**15})


def test_rows_and_lengths_of_a_sweep_have_a_bound() -> None:
    for batches, lengths in (([10**15], [1]), ([1], [10**15])):
        with pytest.raises(OcrPhasesError, match="at most"):
            make_cells(["tiny"], ["eager"], batches, lengths)


@pytest.mark.parametrize("model", [{"revision": "a" * 40}, {"revision": "seed:0"}, {"source": "org/name"}])
def test_a_hub_id_is_not_taken_from_a_record(model: dict[str, str]) -> None:
    run = make_run()
    known = run.model | {
        "name": "org/name",
        "implementation": "native",
        "source": "built-in",
        "revision": "sha256:0",
    }
    with pytest.raises(OcrPhasesError, match="--model"):
        load_recorded(replace(run, model=known | model))


def test_frames_of_a_tiff_are_counted_and_found_in_time(tmp_path: Path) -> None:
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
    with pytest.raises(OcrPhasesError, match="1 to 10,000"):
        read_in_time(load_page, f"{path}#20000")


# -- calls in a notebook cell ---------------------------------------------------------------------------------


# -- command lines --------------------------------------------------------------------------------------------


# -- the environment: streams, backends, the current folder ---------------------------------------------------
