"""How sure the model was of its tokens: equal to the logits of ``generate()``, kept, and told by region."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import test_deepseek_ocr_2
import test_unlimited_ocr
import torch
from conftest import GOLDEN_2, GOLDEN_UNLIMITED, PAGES
from example_run import EOS, make_run
from golden_cases import golden_inputs
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from test_phases import captured
from torch import Tensor
from vendor_standin import RULES

from ocr_phases import OcrPhasesError, OCRSession, PhaseRun, decode_step, prefill
from ocr_phases.analyse.probabilities import probability_table, region_probabilities
from ocr_phases.measure.collectors import probabilities
from ocr_phases.measure.collectors.probabilities import Sureness, token_probabilities, windowed_mask
from ocr_phases.measure.inputs.packing import DeviceInputs
from ocr_phases.measure.models.families import family_of
from ocr_phases.measure.steps.phases import generate

TOLERANCE = 1e-3  # of logits that reach 20, kept to three decimals
NEW = 24
QUICK: dict[str, Any] = {"preset": "tiny", "max_new_tokens": 12, "repeats": 1, "warmup": 0, "ceilings": False}
ASKED = {**QUICK, "token_probabilities": True}


def expected(logits: list[Tensor], ids: list[list[int]]) -> list[Sureness]:
    """The same from logits [B, vocab] of each step."""
    rows = []
    for row, tokens in enumerate(ids):
        logprobs, margins = [], []
        for step, token in zip(logits, tokens, strict=False):
            logprobs.append(float(step[row].log_softmax(-1)[token]))
            others = torch.cat([step[row, :token], step[row, token + 1 :]])
            margins.append(float(step[row, token] - others.max()))
        rows.append(Sureness(logprobs, margins))
    return rows


def assert_equal(found: list[Sureness], wanted: list[Sureness]) -> None:
    for mine, theirs in zip(found, wanted, strict=True):
        assert mine.logprobs == pytest.approx(theirs.logprobs, abs=TOLERANCE)
        assert mine.margins == pytest.approx(theirs.margins, abs=TOLERANCE)


def replayed(model: Any, inputs: DeviceInputs, ids: list[list[int]]) -> list[Tensor]:
    """The logits of decode steps over given tokens."""
    state = prefill(model, inputs)
    logits = [state.logits]
    for tokens in zip(*(row[:-1] for row in ids), strict=True):
        state.token = torch.tensor(tokens)
        decode_step(model, state)
        logits.append(state.logits)
    return logits


def case_of(name: str, request: pytest.FixtureRequest) -> tuple[Any, DeviceInputs]:
    """The model and the recorded inputs of ``family:case``."""
    family, case = name.split(":")
    session = request.getfixturevalue(f"{family}_session")
    if family == "golden":
        return session.model, golden_inputs(request.getfixturevalue("golden_forward"), case)
    folder, module = {
        "ocr2": (GOLDEN_2, test_deepseek_ocr_2),
        "unlimited": (GOLDEN_UNLIMITED, test_unlimited_ocr),
    }[family]
    return session.model, module.inputs_of(load_file(folder / "forward.safetensors"), case)


@pytest.mark.parametrize(
    "name", ["golden:small", "golden:batch", "ocr2:mixed", "unlimited:base", "unlimited:multi"]
)
def test_equal_to_the_logits_of_generate(name: str, request: pytest.FixtureRequest) -> None:
    model, inputs = case_of(name, request)
    arguments = family_of(model).prefill_arguments(inputs)
    arguments |= {"attention_mask": inputs.attention_mask, "position_ids": None}
    whole = model.generate(
        **arguments,
        max_new_tokens=NEW,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=2,
        no_repeat_ngram_size=1,
        output_logits=True,
        return_dict_in_generate=True,
    )
    ids = whole.sequences[:, inputs.input_ids.shape[1] :].tolist()
    found = token_probabilities(model, inputs, ids)
    assert_equal(found, expected(whole.logits, ids))
    assert min(value for row in found for value in row.margins) < 0  # where the rule took another token


def test_padded_rows_beyond_a_window_equal_decode_steps(request: pytest.FixtureRequest) -> None:
    """generate() mistakes their padding; any tokens will do."""
    model, inputs = case_of("unlimited:padded", request)
    ids = torch.randint(3, 250, (2, NEW), generator=torch.Generator().manual_seed(0)).tolist()
    assert_equal(token_probabilities(model, inputs, ids), expected(replayed(model, inputs, ids), ids))


@pytest.mark.usefixtures("remote_code")
def test_the_vendors_class_gives_them_too(standin: Path) -> None:
    session = OCRSession.load(str(standin), device="cpu", **RULES)
    inputs = session.prepare([PAGES / "receipt.png", PAGES / "slide.png"], preset="gundam").to(
        "cpu", torch.float32
    )
    state = generate(session.model, inputs, NEW)
    found = token_probabilities(session.model, inputs, state.ids)
    assert_equal(found, expected(replayed(session.model, inputs, state.ids), state.ids))


def test_logits_are_made_a_few_at_a_time(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    model, inputs = case_of("golden:batch", request)
    ids = [list(range(3, 30)), list(range(40, 53))]
    at_once = token_probabilities(model, inputs, ids)
    vocabulary = model.lm_head.weight.shape[0]
    monkeypatch.setattr(probabilities, "_MOST_LOGITS", 2 * 5 * vocabulary)
    with captured(model.lm_head, "output") as heads:
        in_parts = token_probabilities(model, inputs, ids)
    assert [tuple(part.shape) for part in heads[1:]] == [
        (2, width, vocabulary) for width in (5, 5, 5, 5, 5, 2)
    ]
    assert_equal(in_parts, at_once)
    assert [len(row.margins) for row in at_once] == [27, 13]
    assert not model.lm_head._forward_pre_hooks


def test_nothing_is_known_behind_an_image_token(request: pytest.FixtureRequest) -> None:
    model, inputs = case_of("golden:small", request)
    image = int(inputs.input_ids[inputs.images_seq_mask][0])
    (whole,) = token_probabilities(model, inputs, [[5, 6, 7, 8]])
    (cut,) = token_probabilities(model, inputs, [[5, 6, image, 8]])
    assert cut.logprobs[:2] == pytest.approx(whole.logprobs[:2], abs=TOLERANCE)
    assert [value is None for value in cut.margins] == [False, False, False, True]


def test_what_is_no_number_is_unknown(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    model, inputs = case_of("golden:small", request)
    with model.lm_head.register_forward_hook(lambda head, given, out: out.fill_(math.nan)):
        assert token_probabilities(model, inputs, [[5, 6]]) == [Sureness([None] * 2, [None] * 2)]


@given(prompt=st.integers(1, 6), new=st.integers(0, 9), window=st.integers(1, 9), padding=st.integers(0, 5))
def test_the_mask_of_a_window(prompt: int, new: int, window: int, padding: int) -> None:
    padding = min(padding, prompt - 1)
    mask = torch.tensor([[0] * padding + [1] * (prompt - padding)])
    found = windowed_mask(mask, new, window)[0, 0].tolist()
    for query, row in enumerate(found):
        for key, sees in enumerate(row):
            near = key < prompt or query - key < window
            assert sees == (query == key or (padding <= key <= query and near))


# -- in a measurement --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(tiny_session: OCRSession) -> PhaseRun:
    return tiny_session.run_inference(PAGES / "receipt.png", **ASKED)


def test_a_record_keeps_them(tiny_session: OCRSession, run: PhaseRun) -> None:
    (row,) = run.probabilities
    assert len(row["logprobs"]) == len(row["margins"]) == len(run.result["ids"])
    assert max(row["logprobs"]) <= 0 and min(row["margins"]) >= 0  # greedy, without a rule
    assert PhaseRun.from_dict(run.to_dict()).probabilities == run.probabilities
    assert "token_probabilities" not in run.request  # older records are of the same request
    inputs = tiny_session.prepare(PAGES / "receipt.png", preset="tiny").to("cpu", torch.float32)
    wanted = token_probabilities(tiny_session.model, inputs, [run.result["ids"]])
    assert_equal([Sureness(**row)], wanted)


@pytest.mark.parametrize("extra", [{"generate": True}, {"infer": {"temperature": 2.0}, "return_text": False}])
def test_they_need_no_phases_and_no_text(extra: dict[str, Any], tiny_session: OCRSession) -> None:
    made = tiny_session.run_inference(PAGES / "receipt.png", **ASKED, **extra)
    (row,) = made.probabilities
    assert len(row["logprobs"]) == len(made.result["ids"])
    assert ("infer" in extra) == (min(row["margins"]) < 0)


def test_without_them_nothing_more_runs(tiny_session: OCRSession, run: PhaseRun) -> None:
    with captured(tiny_session.model.lm_head, "output") as heads:
        plain = tiny_session.run_inference(PAGES / "receipt.png", **QUICK)
    assert len(heads) == len(plain.result["ids"])
    assert set(run.to_dict()) - set(plain.to_dict()) == {"probabilities"}


def test_a_forward_that_fails_costs_no_measurement(
    tiny_session: OCRSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    def exhausted(*_: Any) -> None:
        raise torch.OutOfMemoryError("no room\nfor this")

    monkeypatch.setattr(probabilities, "token_probabilities", exhausted)
    with pytest.warns(UserWarning, match="no token probabilities: no room$"):
        made = tiny_session.run_inference(PAGES / "receipt.png", **ASKED)
    assert len(made.result["ids"]) == 12 and made.probabilities is None


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([], "probabilities: results has another number of rows"),
        ([{"logprobs": [-0.5], "margins": [1.0] * 12}], r"probabilities\[0\]: the row has another number"),
        ([{"logprobs": [0.5] * 12, "margins": [1.0] * 12}], "logprobs"),
        ([{"logprobs": [None] * 12, "margins": ["high"] * 12}], "margins"),
    ],
)
def test_damaged_ones_are_refused(rows: list[Any], said: str, run: PhaseRun) -> None:
    with pytest.raises(OcrPhasesError, match=said):
        PhaseRun.from_dict({**run.to_dict(), "probabilities": rows})


# -- by token and by region --------------------------------------------------------------------------


def test_a_region_has_the_figures_of_its_text_alone() -> None:
    made = make_run(text="<|ref|>text<|/ref|><|det|>[[1, 2, 3, 4]]<|/det|>ab")
    texts = ["<|ref|>text<|/ref|>", "<|det|>[[1, 2, 3, 4]]<|/det|>", "a", "b", EOS]
    result = {**made.result, "ids": [1, 2, 3, 4, 5], "token_texts": texts}
    kept = {
        "logprobs": [-9.0, -9.0, math.log(0.5), math.log(0.125), -9.0],
        "margins": [1.0, 1.0, 0.5, -2.0, 1.0],
    }
    known = replace(made, results=[result], probabilities=[kept])
    tokens = probability_table(known)
    assert tokens["probability"].tolist()[2:4] == pytest.approx([0.5, 0.125])
    (region,) = region_probabilities(known).to_dict("records")
    assert (region["label"], region["tokens"]) == ("text", 2)
    assert region["probability"] == pytest.approx(0.25)
    assert (region["least_probability"], region["least_margin"]) == (pytest.approx(0.125), -2.0)
    assert probability_table(made).empty and math.isnan(region_probabilities(made)["probability"][0])
