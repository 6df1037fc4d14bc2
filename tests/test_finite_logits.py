"""Logits that are NaN, infinite or all equal fail a check, however the model runs, and without a
wait.
"""

import contextlib

import pytest
import torch
from conftest import PAGES

from ocr_phases import OCRSession, decode, prefill
from ocr_phases.analyse.checks import run_checks
from ocr_phases.analyse.sentences import checks_verdict
from ocr_phases.settings import SamplingSettings
from ocr_phases.steps.captured import StaticStep
from ocr_phases.steps.phases import decode_step, generate
from ocr_phases.steps.sampling import Sampler

RECEIPT = PAGES / "receipt.png"
ASKED = {"preset": "tiny", "max_new_tokens": 5, "repeats": 1, "warmup": 0, "ceilings": False}
ASKED["token_probabilities"] = False
HEAD = "lm_head"


@pytest.fixture(scope="module")
def session(quick_tiny_session):
    """The sound model, after a run: SAM's output is known, and no damage reaches that."""
    quick_tiny_session.run_inference(RECEIPT, **ASKED)
    return quick_tiny_session


@contextlib.contextmanager
def damaged(model, change, part=""):
    """The model with ``change`` applied to every weight whose name has ``part``, then as it was."""
    kept = {}
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if part in name and (part or weight.dim() > 0):
                kept[name] = weight.clone()
                change(weight)
    assert kept
    try:
        yield
    finally:
        with torch.no_grad():
            for name, weight in model.named_parameters():
                if name in kept:
                    weight.copy_(kept[name])


def one(value):
    def change(weight):
        weight.view(-1)[0] = value

    return change


def all_of(value):
    return lambda weight: weight.fill_(value)


NAN, INF = float("nan"), float("inf")
DAMAGES = {
    "all NaN": (all_of(NAN), ""),
    "one NaN in the head": (one(NAN), HEAD),
    "one NaN in a layer": (one(NAN), "layers.1.self_attn.q_proj"),
    "a head of infinities": (all_of(INF), HEAD),
    "one infinity in the head": (one(INF), HEAD),
    "one negative infinity in the head": (one(-INF), HEAD),
    "all infinite": (all_of(INF), ""),
    "all zero": (all_of(0.0), ""),
    "a head of zeros": (all_of(0.0), HEAD),
}
WAYS = (
    {},
    {"eos_check_every": 4},
    {"generate": True},
    {"infer": {"repetition_penalty": 1.1}},
    {"infer": {"temperature": 0.7}},
    {"autocast": True},
)


def verdict(run):
    return next(check for check in run_checks(run) if check.name == "finite_logits")


@pytest.mark.parametrize("way", WAYS, ids=lambda way: "-".join(way) or "eager")
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_model_is_not_measured_correctly(session, damage, way):
    with damaged(session.model, *DAMAGES[damage]):
        run = session.run_inference(RECEIPT, **ASKED, **way)
    check = verdict(run)
    assert check.verdict == "fail"
    assert ("all equal" in check.measured) == ("zero" in damage)
    assert not checks_verdict(run_checks(run)).startswith("Measured correctly")


@pytest.mark.parametrize("way", WAYS, ids=lambda way: "-".join(way) or "eager")
def test_a_sound_model_passes(session, way):
    check = verdict(session.run_inference(RECEIPT, **ASKED, **way))
    assert (check.verdict, check.measured) == ("pass", "those of 5 tokens checked")


def test_what_processors_suppress_is_no_fault(session, monkeypatch):
    monkeypatch.setattr(session.model.generation_config, "suppress_tokens", [4, 5], raising=False)
    for way in ({}, {"generate": True}):
        assert verdict(session.run_inference(RECEIPT, **ASKED, **way)).verdict == "pass"


def test_one_row_of_a_padded_batch_is_enough(session):
    def spoil(_module, _args, logits):
        logits = logits.clone()
        logits[1, -1, 7] = -INF
        return logits

    prompts = ["free", "<image>\n<|grounding|>A longer prompt."]
    with session.model.lm_head.register_forward_hook(spoil):
        check = verdict(session.run_inference([RECEIPT, RECEIPT], prompts, **ASKED))
    assert check.measured == "NaN or infinite at 5 of 5 tokens, first at 1"


@pytest.mark.parametrize(
    ("call", "told"), [(0, "5 of 5 tokens, first at 1"), (3, "2 of 5 tokens, first at 4")]
)
def test_the_first_token_that_is_wrong_is_named(session, call, told):
    calls = iter(range(100))

    def spoil(_module, _args, logits):
        return logits * NAN if next(calls) >= call else logits

    with session.model.lm_head.register_forward_hook(spoil):
        check = verdict(session.run_inference(RECEIPT, **ASKED))
    assert check.measured == f"NaN or infinite at {told}"


def test_float16_overflow_is_found():
    session = OCRSession.load("tiny", device="cpu", dtype="float16")
    assert verdict(session.run_inference(RECEIPT, **ASKED)).verdict == "pass"
    with damaged(session.model, lambda weight: weight.mul_(3e4), HEAD):
        assert verdict(session.run_inference(RECEIPT, **ASKED)).verdict == "fail"


@pytest.mark.parametrize("damage", [None, *DAMAGES])
def test_a_static_step_and_the_functions_alone_find_it(session, damage):
    """What captured and compiled strategies run, here as it is; its sums start anew with each
    prefill.
    """
    inputs = session.prepare(RECEIPT, preset="tiny").to("cpu", torch.float32)
    change = (
        contextlib.nullcontext() if damage is None else damaged(session.model, *DAMAGES[damage])
    )
    step = StaticStep(session.model, 1, 128, "eager").ready_for(inputs.input_ids.shape[1], 5)
    with change:
        state = prefill(session.model, inputs)
        assert (state.logits_fault() is None) == (damage is None)
        decode(session.model, state, 5)
        assert (state.logits_fault() is None) == (damage is None)
        state = generate(session.model, inputs, 5, step=step)
        assert (state.logits_fault() is None) == (damage is None)
    assert generate(session.model, inputs, 5, step=step).logits_fault() is None


@pytest.mark.parametrize("wrong", [NAN, INF, -INF])
def test_a_static_step_finds_one_bad_step_among_good_ones(session, wrong):
    inputs = session.prepare(RECEIPT, preset="tiny").to("cpu", torch.float32)
    step = StaticStep(session.model, 1, 128, "eager").ready_for(inputs.input_ids.shape[1], 5)
    sampler = Sampler(SamplingSettings())
    state = prefill(session.model, inputs, sampler=sampler, step=step)
    for number in range(4):
        with damaged(session.model, one(wrong), HEAD) if number == 1 else contextlib.nullcontext():
            decode_step(session.model, state, step=step, read=False)
    assert state.logits_fault() == "NaN or infinite in a decode step"


def test_decode_does_not_read_the_sums(session, monkeypatch):
    """The host waits for the tokens alone: the sums stay on the device until somebody asks."""
    inputs = session.prepare(RECEIPT, preset="tiny").to("cpu", torch.float32)
    read = []
    for name in ("tolist", "item", "__bool__", "cpu"):
        own = getattr(torch.Tensor, name)

        def watched(tensor, *args, own=own, **options):
            read.append(tensor.dtype)
            return own(tensor, *args, **options)

        monkeypatch.setattr(torch.Tensor, name, watched)
    state = generate(session.model, inputs, 5)
    assert torch.float32 not in read
    assert len(state.sums) == 5
