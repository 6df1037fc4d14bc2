"""The record: exact round trips, atomic saving, and clear refusals."""

import base64
import gzip
import io
import json
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from conftest import RECORD
from example_run import altered, encoded
from PIL import Image
from refusals import refused

from ocr_phases import OcrPhasesError, PhaseRun
from ocr_phases.analyse.stages import TOKEN_COLUMNS
from ocr_phases.images import describe_page
from ocr_phases.record import SCHEMA, SPAN_COLUMNS
from ocr_phases.record.parts import Part, to_plain

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def run() -> PhaseRun:
    return PhaseRun.load(RECORD)


def without_nulls(value: Any) -> Any:
    """JSON without entries that are null: a file may leave them out, or have them."""
    if isinstance(value, dict):
        return {name: without_nulls(entry) for name, entry in value.items() if entry is not None}
    if isinstance(value, list):
        return [without_nulls(entry) for entry in value]
    return value


def test_a_saved_record_stays_itself(run: PhaseRun, tmp_path: Path) -> None:
    again = PhaseRun.load(run.save(tmp_path / "run.json"))

    assert again.to_dict() == run.to_dict()
    pd.testing.assert_frame_equal(again.spans, run.spans, check_exact=True)


def kinds_of_parts(kind: type[Part] = Part) -> Iterator[type[Part]]:
    """Every kind of part that a record can have."""
    for below in kind.__subclasses__():
        yield below
        yield from kinds_of_parts(below)


def test_the_parts_of_a_record_cannot_be_changed() -> None:
    assert [kind.__name__ for kind in kinds_of_parts() if not kind.__struct_config__.frozen] == []


def test_the_entries_of_a_part_are_given_by_name_alone() -> None:
    by_place = []
    for kind in kinds_of_parts():
        parameters = signature(kind).parameters.values()
        if any(parameter.kind is not parameter.KEYWORD_ONLY for parameter in parameters):
            by_place.append(kind.__name__)
    assert by_place == []


def test_a_record_has_all_that_its_file_has(run: PhaseRun) -> None:
    written = json.loads(RECORD.read_text()) | {"schema": SCHEMA}

    assert without_nulls(run.to_dict()) == without_nulls(written)
    assert run.schema == SCHEMA
    assert tuple(run.spans.columns) == SPAN_COLUMNS


def test_a_packed_record_stays_itself_and_a_damaged_one_is_refused(
    run: PhaseRun, tmp_path: Path
) -> None:
    path = run.save(tmp_path / "run.json.gz")
    packed = path.read_bytes()
    assert json.loads(gzip.decompress(packed)) == run.to_dict()
    assert PhaseRun.load(path).to_dict() == run.to_dict()
    assert len(packed) < RECORD.stat().st_size / 2

    cut = packed[:-20]
    overwritten = packed[:30] + bytes(8) + packed[38:]
    mark_alone = b"\x1f\x8b"
    for damaged in (cut, overwritten, mark_alone):
        path.write_bytes(damaged)
        with refused():
            PhaseRun.load(path)


# -- how a part is read ----------------------------------------------------------------------------


def an_entry(run: PhaseRun) -> object:
    return run.model["strategy"]


def an_entry_whose_attribute_has_another_name(run: PhaseRun) -> object:
    return run.model["class"]


def a_misspelt_entry(run: PhaseRun) -> object:
    return run.model["stratgy"]


def an_entry_of_one_of_several(run: PhaseRun) -> object:
    return run.live_checks[0]["verdict"]


def an_entry_of_a_part_in_a_part(run: PhaseRun) -> object:
    return run.device.ceilings["matmul_dtype"]


def a_membership(run: PhaseRun) -> object:
    return "strategy" in run.model


def a_loop(run: PhaseRun) -> object:
    return list(run.request)


def get(run: PhaseRun) -> object:
    return run.model.get("strategy")


def keys(run: PhaseRun) -> object:
    return run.model.keys()


def a_misspelt_attribute(run: PhaseRun) -> object:
    return run.model.stratgy


@pytest.mark.parametrize(
    ("read", "sentence"),
    [
        (an_entry, r"write \.strategy"),
        (an_entry_whose_attribute_has_another_name, r"write \.class_name"),
        (a_misspelt_entry, "Did you mean strategy"),
        (an_entry_of_one_of_several, r"write \.verdict"),
        (an_entry_of_a_part_in_a_part, r"write \.matmul_dtype"),
        (a_membership, r"such as \.name"),
        (a_loop, r"such as \.prompt"),
        (get, "has no get"),
        (keys, "has no keys"),
        (a_misspelt_attribute, "Did you mean strategy"),
    ],
)
def test_a_part_that_is_read_as_a_mapping_says_which_attribute_to_write(
    read: Callable[[PhaseRun], object], sentence: str
) -> None:
    run = PhaseRun.load(ROOT / "data" / "runs" / "tiny-receipt.json.gz")

    with pytest.raises((TypeError, AttributeError), match=sentence) as caught:
        read(run)

    assert isinstance(caught.value, OcrPhasesError)
    assert "\n" not in str(caught.value)


def test_a_part_is_no_mapping(run: PhaseRun) -> None:
    with pytest.raises(TypeError):
        run.model | {}
    with pytest.raises(TypeError):
        dict(**run.model)


# -- figures and tables ----------------------------------------------------------------------------


def device_times(run: PhaseRun, stage: str) -> np.ndarray:
    """The times of a stage in milliseconds, one for each span."""
    return run.spans.loc[run.spans["stage"] == stage, "device_ms"].to_numpy()


def test_headline_figures_follow_from_the_spans(run: PhaseRun) -> None:
    prepare = device_times(run, "prepare")
    prefill = device_times(run, "prefill")
    steps = device_times(run, "decode_step")

    assert run["prefill_ms"] == np.median(prefill)
    assert run["ttft_ms"] == pytest.approx(np.median(prepare + prefill))
    assert run["inter_token_ms"] == np.median(steps)
    assert run["inter_token_ms_p99"] == np.quantile(steps, 0.99)
    assert run["tokens"] == len(run.result.ids)
    assert run["tokens"] == run["decode_steps"] + 1
    assert 0.9 < run["stage_coverage"] <= 1.0
    assert run["vision_ms"] >= run["sam_ms"]
    assert set(run.keys()) == set(run)


def test_the_table_of_tokens_has_a_row_for_each_with_the_median_of_its_step(
    run: PhaseRun,
) -> None:
    table = run.token_table

    assert tuple(table.columns) == TOKEN_COLUMNS
    assert table["id"].tolist() == run.result.ids
    assert "".join(table["text"]).startswith(run.text)
    assert table["cache_len"].tolist() == run.cache.lengths
    assert table["region"].max() >= 0

    first = table.iloc[0]
    assert first["source"] == "prefill"
    assert first["step"] is pd.NA
    assert math.isnan(first["device_ms"])

    decoded = table.iloc[1:]
    steps = run.spans[run.spans["stage"] == "decode_step"]
    medians = steps.groupby("step")["device_ms"].median().to_numpy()
    assert decoded["step"].tolist() == list(range(len(decoded)))
    # Rounded to a grid on which sums are exact in any order.
    assert decoded["device_ms"].to_numpy() == pytest.approx(medians, rel=0, abs=2**-21)
    assert (decoded["device_ms"] * 2**20 % 1 == 0).all()
    assert (decoded["device_ms_p10"] <= decoded["device_ms"]).all()
    assert (decoded["device_ms"] <= decoded["device_ms_p90"]).all()


# -- the page --------------------------------------------------------------------------------------


def test_the_page_is_in_the_record(run: PhaseRun) -> None:
    image = run.page_image()
    assert image.size == (run.page.width, run.page.height)
    assert image.mode == "RGB"


def test_a_page_that_is_cut_is_refused(run: PhaseRun) -> None:
    page = to_plain(run.page)
    page["data"] = run.page.data[:101]
    with refused():
        altered(run, pages=[page]).page_image()


@pytest.fixture(scope="module")
def large_page() -> Image.Image:
    """A page of noise, whose file has more than 2 MB."""
    noise = np.random.default_rng(0).integers(0, 255, (300, 2600, 3), dtype=np.uint8)
    return Image.fromarray(noise)


def test_a_large_page_is_embedded_as_a_smaller_jpeg(large_page: Image.Image) -> None:
    part = describe_page(large_page, encoded(large_page), "noise.png")

    embedded = Image.open(io.BytesIO(base64.b64decode(part["data"])))
    assert embedded.format == "JPEG"
    assert embedded.size == (2000, 231)
    assert part["width"] == 2600
    assert part["height"] == 300


def test_a_page_is_left_out_where_that_is_asked(large_page: Image.Image) -> None:
    part = describe_page(large_page, encoded(large_page), "noise.png", embed=False)
    assert part["data"] is None


def test_a_small_page_is_embedded_as_its_file() -> None:
    page = Image.new("RGB", (10, 20))
    part = describe_page(page, encoded(page), "s.png")
    assert base64.b64decode(part["data"]) == encoded(page)


def test_of_a_pdf_one_page_is_embedded_and_not_the_file() -> None:
    page = Image.new("RGB", (10, 20))
    part = describe_page(page, b"%PDF-1.7 all its pages", "s.pdf#1")
    assert base64.b64decode(part["data"]).startswith(b"\xff\xd8")


# -- what is no record -----------------------------------------------------------------------------

CONTENT = json.loads(RECORD.read_text())
STAGES = CONTENT["spans"]["stage"]
TOKENS = len(CONTENT["results"][0]["ids"])
FIRST_STEP = STAGES.index("decode_step")
MARGINS = [1.0] * TOKENS
#: Stands for an entry that is deleted.
GONE = object()


@dataclass(frozen=True)
class WrongEntry:
    """A value in a record, by its place from the top (``results.0.text``), that no record has."""

    place: str
    value: object = GONE


WRONG_ENTRIES = {
    "no-schema": WrongEntry("schema"),
    "unknown-schema": WrongEntry("schema", 99),
    "schema-is-a-text": WrongEntry("schema", "1"),
    "no-stages": WrongEntry("spans.stage"),
    "no-spans": WrongEntry("spans", {name: [] for name in SPAN_COLUMNS}),
    "columns-of-unequal-length": WrongEntry("spans.stage", ["prefill"]),
    "unknown-stages": WrongEntry("spans.stage", ["x"] * len(STAGES)),
    "unknown-phase": WrongEntry("spans.phase.0", "x"),
    "no-time": WrongEntry("spans.device_ms.3", None),
    "negative-time": WrongEntry("spans.device_ms.3", -5.0),
    "time-beyond-floats": WrongEntry("spans.host_ms.3", 10**400),
    "wrong-step": WrongEntry(f"spans.step.{FIRST_STEP}", 7),
    "one-token-less": WrongEntry("results.0.ids.0"),
    "another-text": WrongEntry("results.0.text", "another"),
    "page-without-grid": WrongEntry("pages.0.grid"),
    "page-of-another-row": WrongEntry("pages.0.row", 1),
    "no-pages": WrongEntry("pages", []),
    "no-truths": WrongEntry("truths", []),
    "empty-request": WrongEntry("request", {}),
    "no-prompts": WrongEntry("request.prompts", []),
    "wrong-temperature": WrongEntry("request.infer.temperature", 0),
    "no-peaks": WrongEntry("memory.peak_bytes.prefill", []),
    "model-is-a-text": WrongEntry("model", "tiny"),
    "checks-are-a-number": WrongEntry("live_checks", 5),
    "one-probability": WrongEntry("probabilities", [{"logprobs": [-0.5], "margins": MARGINS}]),
    "probability-above-one": WrongEntry(
        "probabilities", [{"logprobs": [0.5] * TOKENS, "margins": MARGINS}]
    ),
    "margins-are-texts": WrongEntry(
        "probabilities", [{"logprobs": [None] * TOKENS, "margins": ["high"] * TOKENS}]
    ),
    "deeply-nested": WrongEntry("versions.deep", json.loads("[" * 50 + "]" * 50)),
    "long-integer": WrongEntry("versions.new", 2**64),
}


def content_with(wrong: WrongEntry) -> dict[str, Any]:
    """The content of the record's file, with this entry."""
    content = json.loads(RECORD.read_text())
    *keys, last = [int(key) if key.isdigit() else key for key in wrong.place.split(".")]
    holder = content
    for key in keys:
        holder = holder[key]
    if wrong.value is GONE:
        del holder[last]
    else:
        holder[last] = wrong.value
    return content


@pytest.mark.parametrize("name", WRONG_ENTRIES)
def test_a_record_with_a_wrong_entry_is_refused(name: str, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text(json.dumps(content_with(WRONG_ENTRIES[name])))

    with refused() as caught:
        PhaseRun.load(path)

    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    "content",
    [
        pytest.param("", id="empty"),
        pytest.param("{", id="cut"),
        pytest.param("[1]", id="a-list"),
        pytest.param('"x"', id="a-text"),
        pytest.param("\x00", id="a-zero"),
        pytest.param("[" * 200_000, id="deeply-nested"),
        pytest.param(r'{"x": "\ud800"}', id="half-a-character"),
        pytest.param('{"schema": NaN}', id="not-a-number"),
        pytest.param('{"schema": 1e999}', id="infinite"),
    ],
)
def test_a_file_that_is_no_record_is_refused(content: str, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    path.write_text(content)
    with refused():
        PhaseRun.load(path)


def test_a_device_a_pipe_and_a_missing_file_are_refused_and_not_waited_for(
    tmp_path: Path,
) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in ("/dev/zero", tmp_path / "pipe", tmp_path / "none.json"):
        with refused():
            PhaseRun.load(path)


def test_a_file_that_is_too_large_or_becomes_so_when_it_is_unpacked_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    packed = tmp_path / "run.json.gz"
    packed.write_bytes(gzip.compress(b'{"schema": ' + b" " * 10**6))
    monkeypatch.setattr("ocr_phases.record.record.MOST_BYTES", 10**5)

    for path in (RECORD, packed):
        with refused():
            PhaseRun.load(path)


def test_a_decode_step_may_take_a_microsecond() -> None:
    content = content_with(WrongEntry(f"spans.device_ms.{FIRST_STEP}", 0.001))
    assert PhaseRun.from_dict(content).spans["device_ms"][FIRST_STEP] == 0.001


def test_what_a_later_version_adds_is_kept() -> None:
    content = json.loads(RECORD.read_text())
    content["pages"][0]["new"] = {"deep": [1, {"deeper": None}]}
    content["pages"][0]["bounds"] = [-(2**63), 2**63 - 1]
    content["model"]["strategy_setup"] = {"new_ms": "text"}

    again = PhaseRun.from_dict(content).to_dict()

    assert without_nulls(again["pages"]) == without_nulls(content["pages"])
    assert without_nulls(again["model"]) == without_nulls(content["model"])


def test_a_time_that_is_no_number_is_not_saved(run: PhaseRun, tmp_path: Path) -> None:
    times = run.spans["device_ms"].copy()
    times[3] = math.nan
    wrong = replace(run, spans=run.spans.assign(device_ms=times))

    with refused(ValueError):
        wrong.save(tmp_path / "run.json")

    assert list(tmp_path.iterdir()) == []
