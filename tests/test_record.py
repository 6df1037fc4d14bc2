"""The record: exact round trips, atomic saving, and clear refusals."""

import base64
import functools
import gzip
import io
import json
import math
import operator
import os
from dataclasses import replace
from pathlib import Path

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
from ocr_phases.record.parts import to_plain

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def run():
    return PhaseRun.load(RECORD)


def without_nulls(value):
    """JSON without entries that are null: a file may leave them out, or have them."""
    if isinstance(value, dict):
        return {name: without_nulls(entry) for name, entry in value.items() if entry is not None}
    if isinstance(value, list):
        return [without_nulls(entry) for entry in value]
    return value


def test_a_record_stays_itself_plain_or_packed(run, tmp_path):
    again = PhaseRun.load(run.save(tmp_path / "run.json"))
    assert again.to_dict() == run.to_dict()
    written = json.loads(RECORD.read_text()) | {"schema": SCHEMA}
    assert without_nulls(run.to_dict()) == without_nulls(written)
    pd.testing.assert_frame_equal(again.spans, run.spans, check_exact=True)
    assert (run.schema, tuple(run.spans.columns)) == (SCHEMA, SPAN_COLUMNS)
    packed = run.save(tmp_path / "run.json.gz")
    whole = packed.read_bytes()
    assert json.loads(gzip.decompress(whole)) == PhaseRun.load(packed).to_dict() == run.to_dict()
    assert len(whole) < RECORD.stat().st_size / 2
    for damaged in (whole[:-20], whole[:30] + bytes(8) + whole[38:], b"\x1f\x8b"):
        packed.write_bytes(damaged)
        with refused():
            PhaseRun.load(packed)


#: Ways to read a part as a mapping, each with what its sentence has to name.
BY_KEY = {
    "an entry": (lambda run: run.model["strategy"], r"write \.strategy"),
    "an entry whose attribute is called otherwise": (
        lambda run: run.model["class"],
        r"write \.class_name",
    ),
    "a misspelt entry": (lambda run: run.model["stratgy"], "Did you mean strategy"),
    "an entry of one of several": (lambda run: run.live_checks[0]["verdict"], r"write \.verdict"),
    "an entry of a part in a part": (
        lambda run: run.device.ceilings["matmul_dtype"],
        r"write \.matmul_dtype",
    ),
    "a question": (lambda run: "strategy" in run.model, r"such as \.name"),
    "a loop": (lambda run: list(run.request), r"such as \.prompt"),
    "get": (lambda run: run.model.get("strategy"), "has no get"),
    "keys": (lambda run: run.model.keys(), "has no keys"),
    "a misspelt attribute": (lambda run: run.model.stratgy, "Did you mean strategy"),
}


@pytest.mark.parametrize("way", BY_KEY)
def test_a_part_of_a_record_is_read_by_attribute_alone(way):
    read, told = BY_KEY[way]
    record = PhaseRun.load(ROOT / "data" / "runs" / "tiny-receipt.json.gz")
    with pytest.raises((TypeError, AttributeError), match=told) as caught:
        read(record)
    assert isinstance(caught.value, OcrPhasesError) and "\n" not in str(caught.value)


def test_a_part_is_no_mapping(run):
    with pytest.raises(TypeError):
        run.model | {}
    with pytest.raises(TypeError):
        dict(**run.model)


def test_headline_figures_follow_from_the_spans(run):
    def times(stage):
        return run.spans.loc[run.spans["stage"] == stage, "device_ms"].to_numpy()

    prefill, steps = times("prefill"), times("decode_step")
    assert run["prefill_ms"] == np.median(prefill)
    assert run["tokens"] == len(run.result.ids) == run["decode_steps"] + 1
    assert (run["inter_token_ms"], run["inter_token_ms_p99"]) == (
        np.median(steps),
        np.quantile(steps, 0.99),
    )
    assert run["ttft_ms"] == pytest.approx(np.median(times("prepare") + prefill))
    assert 0.9 < run["stage_coverage"] <= 1.0
    assert run["vision_ms"] >= run["sam_ms"]
    assert set(run.keys()) == set(run)


def test_token_table(run):
    table = run.token_table
    assert tuple(table.columns) == TOKEN_COLUMNS
    assert table["id"].tolist() == run.result.ids
    assert "".join(table["text"]).startswith(run.text)
    first, rest = table.iloc[0], table.iloc[1:]
    assert (
        first["source"] == "prefill" and first["step"] is pd.NA and math.isnan(first["device_ms"])
    )
    assert rest["step"].tolist() == list(range(len(rest)))
    assert table["cache_len"].tolist() == run.cache.lengths
    by_step = run.spans[run.spans["stage"] == "decode_step"].groupby("step")["device_ms"].median()
    # Rounded to a grid on which sums are exact in any order.
    assert rest["device_ms"].to_numpy() == pytest.approx(by_step.to_numpy(), rel=0, abs=2**-21)
    assert (rest["device_ms"] * 2**20 % 1 == 0).all()
    assert (rest["device_ms_p10"] <= rest["device_ms"]).all()
    assert (rest["device_ms"] <= rest["device_ms_p90"]).all()
    assert table["region"].max() >= 0


def test_the_page_is_in_the_record(run):
    image = run.page_image()
    assert (image.size, image.mode) == ((run.page.width, run.page.height), "RGB")
    with refused():
        altered(run, pages=[to_plain(run.page) | {"data": run.page.data[:101]}]).page_image()


def test_pages_are_embedded_small_or_left_out():
    noise = np.random.default_rng(0).integers(0, 255, (300, 2600, 3), dtype=np.uint8)
    page, small = Image.fromarray(noise), Image.new("RGB", (10, 20))
    described = describe_page(page, encoded(page), "noise.png")
    embedded = Image.open(io.BytesIO(base64.b64decode(described["data"])))
    assert (embedded.format, embedded.size) == ("JPEG", (2000, 231))
    assert (described["width"], described["height"]) == (2600, 300)
    assert describe_page(page, encoded(page), "noise.png", embed=False)["data"] is None
    assert base64.b64decode(describe_page(small, encoded(small), "s.png")["data"]) == encoded(small)
    pdf = describe_page(small, b"%PDF-1.7 all its pages", "s.pdf#1")
    assert base64.b64decode(pdf["data"]).startswith(b"\xff\xd8")


CONTENT = json.loads(RECORD.read_text())
STAGES, TOKENS = CONTENT["spans"]["stage"], len(CONTENT["results"][0]["ids"])
FIRST_STEP = STAGES.index("decode_step")
GONE = object()


@pytest.mark.parametrize(
    ("entry", "value"),
    [
        *((entry, GONE) for entry in ("schema", "spans.stage", "results.0.ids.0", "pages.0.grid")),
        *(
            (entry, [])
            for entry in ("truths", "pages", "request.prompts", "memory.peak_bytes.prefill")
        ),
        *(("schema", 99), ("schema", "1")),
        ("spans", {name: [] for name in SPAN_COLUMNS}),
        *(
            ("spans.stage", ["prefill"]),
            ("spans.stage", ["x"] * len(STAGES)),
            ("spans.phase.0", "x"),
        ),
        *(("spans.device_ms.3", None), ("spans.device_ms.3", -5.0), ("spans.host_ms.3", 10**400)),
        *((f"spans.step.{FIRST_STEP}", 7), ("request", {}), ("request.infer.temperature", 0)),
        *(("results.0.text", "another"), ("pages.0.row", 1), ("model", "tiny"), ("live_checks", 5)),
        ("probabilities", [{"logprobs": [-0.5], "margins": [1.0] * TOKENS}]),
        ("probabilities", [{"logprobs": [0.5] * TOKENS, "margins": [1.0] * TOKENS}]),
        ("probabilities", [{"logprobs": [None] * TOKENS, "margins": ["high"] * TOKENS}]),
        *(("versions.deep", json.loads("[" * 50 + "]" * 50)), ("versions.new", 2**64)),
    ],
)
def test_other_records_are_refused(entry, value, tmp_path):
    content = json.loads(RECORD.read_text())
    *places, last = [int(part) if part.isdigit() else part for part in entry.split(".")]
    holder = functools.reduce(operator.getitem, places, content)
    if value is GONE:
        del holder[last]
    else:
        holder[last] = value
    path = tmp_path / "run.json"
    path.write_text(json.dumps(content))
    with refused() as caught:
        PhaseRun.load(path)
    assert str(path) in str(caught.value)


NO_RECORDS = ("", "{", "[1]", '"x"', "\x00", "[" * 200_000, r'{"x": "\ud800"}')
NO_RECORDS += ('{"schema": NaN}', '{"schema": 1e999}')


@pytest.mark.parametrize("content", NO_RECORDS, ids=str.__len__)
def test_files_that_are_no_record(content, tmp_path):
    path = tmp_path / "run.json"
    path.write_text(content)
    with refused():
        PhaseRun.load(path)


def test_files_that_are_never_read_to_their_end(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe")
    for path in ("/dev/zero", tmp_path / "pipe", tmp_path / "none.json"):
        with refused():
            PhaseRun.load(path)
    packed = tmp_path / "run.json.gz"
    packed.write_bytes(gzip.compress(b'{"schema": ' + b" " * 10**6))
    monkeypatch.setattr("ocr_phases.record.record.MOST_BYTES", 10**5)
    for path in (RECORD, packed):
        with refused():
            PhaseRun.load(path)


def test_what_a_later_version_adds_is_kept():
    content = json.loads(RECORD.read_text())
    content["pages"][0]["new"] = {"deep": [1, {"deeper": None}]}
    content["model"]["strategy_setup"] = {"new_ms": "text"}
    again = PhaseRun.from_dict(content).to_dict()
    assert without_nulls(again["pages"]) == without_nulls(content["pages"])
    assert without_nulls(again["model"]) == without_nulls(content["model"])


def test_a_time_that_is_no_number_is_not_saved(run, tmp_path):
    times = run.spans["device_ms"].copy()
    times[3] = math.nan
    with refused(ValueError):
        replace(run, spans=run.spans.assign(device_ms=times)).save(tmp_path / "run.json")
    assert list(tmp_path.iterdir()) == []
