"""A model object that the caller loaded: measured as it is, or refused in a sentence."""

from __future__ import annotations

import copy

import pytest
import torch
from conftest import PAGES
from refusals import refused
from torch import nn

from ocr_phases import OCRSession, PhaseRun

RECEIPT = PAGES / "receipt.png"
QUICK = {"preset": "tiny", "max_new_tokens": 6, "repeats": 1, "warmup": 0, "ignore_eos": True}


@pytest.fixture(scope="module")
def plain(tiny_session):
    return tiny_session.run_inference(RECEIPT, **QUICK)


@pytest.fixture
def model(tiny_session):
    return copy.deepcopy(tiny_session.model)


class LowRank(nn.Module):
    """A linear layer with a low-rank addition beside it, as a LoRA leaves it before it is merged."""

    def __init__(self, base):
        super().__init__()
        self.base = base
        self.down = nn.Linear(base.in_features, 2, bias=False)
        self.up = nn.Linear(2, base.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, hidden):
        return self.base(hidden) + self.up(self.down(hidden))


def patched(model):
    model.model.language_model.layers[0].self_attn.register_module("patch", nn.Identity())
    return model


def with_low_rank(model):
    for layer in model.model.language_model.layers:
        layer.self_attn.q_proj = LowRank(layer.self_attn.q_proj)
    return model


def quantised(model):
    layer = model.model.language_model.layers[-1].self_attn
    layer.o_proj = torch.ao.quantization.quantize_dynamic(nn.Sequential(layer.o_proj), {nn.Linear})[0]
    return model


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
@pytest.mark.parametrize("change", [patched, with_low_rank, quantised])
def test_a_model_object_is_measured_as_it_is(change, model, plain, tiny_session):
    changed = change(model)
    session = OCRSession.from_model(changed, tiny_session.tokenizer, name="mine")
    run = session.run_inference(RECEIPT, **QUICK)
    assert session.model is changed
    if change is not quantised:  # which rounds
        assert run.result["ids"] == plain.result["ids"]
    assert (run.model["name"], run.model["family"]) == ("mine", plain.model["family"])
    assert not [check for check in run.live_checks if check["verdict"] == "fail"]
    assert PhaseRun.from_json(run.to_json()).floors.equals(run.floors)


def test_other_weights_are_another_revision(model, tiny_session):
    def revision():
        return OCRSession.from_model(model, tiny_session.tokenizer).checkpoint.revision

    before = revision()
    assert revision() == before
    with torch.no_grad():
        model.lm_head.weight[0, 0] += 1
    assert revision() != before


def headless(model):
    del model.model.multi_modal_projector
    return model


@pytest.mark.parametrize("change", [LowRank, nn.Sequential, headless])
def test_what_cannot_be_measured_is_refused(change, model, tiny_session):
    given = change(model.lm_head if change is LowRank else model)
    with refused() as caught:
        OCRSession.from_model(given, tiny_session.tokenizer)
    assert "\n" not in str(caught.value)


def test_the_same_weights_run_with_another_attention_and_dtype(model, plain, tiny_session):
    assert tiny_session.with_model(attention="sdpa", dtype="float32") is tiny_session
    other = tiny_session.with_model(attention="eager", dtype="bfloat16")
    run = other.run_inference(RECEIPT, **QUICK, ceilings=False)
    assert (run.model["attention"], run.model["dtype"]) == ("eager", "bfloat16")
    assert run.result["ids"] == plain.result["ids"]
    assert tiny_session.model.dtype == torch.float32
    at_hand = OCRSession.from_model(model, tiny_session.tokenizer)
    assert at_hand.with_model(attention="sdpa") is at_hand
    for session, wrong in (
        (tiny_session, {"attention": "fast"}),
        (tiny_session, {"dtype": "int8"}),
        (at_hand, {"attention": "eager"}),
    ):
        with refused():
            session.with_model(**wrong)
