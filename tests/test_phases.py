"""prefill and decode against the recorded vendor run, against ``generate()``, and against broken rules."""

from __future__ import annotations

import pytest
import torch
from conftest import PAGES
from faulty import faulty
from golden_cases import captured, golden_inputs

from ocr_phases import OcrPhasesError, OCRSession, Timeline, decode, decode_step, prefill
from ocr_phases.settings import SamplingSettings
from ocr_phases.steps.phases import generate, prompt_loss
from ocr_phases.steps.sampling import Sampler

TOLERANCE = 1e-4


def test_last_position_logits_only_unless_asked(golden_session, golden_forward):
    inputs = golden_inputs(golden_forward, "small")
    with captured(golden_session.model.lm_head, "output") as heads:
        state = prefill(golden_session.model, inputs)
    assert heads[0].shape[1] == 1
    assert state.prefill_logits is None
    full = prefill(golden_session.model, inputs, all_logits=True)
    torch.testing.assert_close(full.prefill_logits[:, -1], state.logits, atol=1e-5, rtol=0)


def test_loss_equals_the_recorded_one_in_both_modes(golden_session, golden_forward):
    model, inputs = golden_session.model, golden_inputs(golden_forward, "base")
    recorded = golden_forward["base.labels_loss"].reshape(())
    torch.testing.assert_close(prompt_loss(model, inputs), recorded, atol=1e-4, rtol=0)
    model.train()
    try:
        loss = prompt_loss(model, inputs)
        torch.testing.assert_close(loss.detach(), recorded, atol=1e-4, rtol=0)
        loss.backward()
        assert model.lm_head.weight.grad.abs().sum() > 0
    finally:
        model.zero_grad()
        model.eval()


def test_padding_and_images_never_count_in_the_loss(golden_session, golden_forward):
    inputs = golden_inputs(golden_forward, "base")
    text = inputs.input_ids.masked_fill(inputs.images_seq_mask, 7)
    same = prompt_loss(golden_session.model, inputs, labels=text)
    torch.testing.assert_close(same, prompt_loss(golden_session.model, inputs))


def test_redecode_gives_the_same_tokens(golden_session, golden_forward):
    inputs = golden_inputs(golden_forward, "base")
    straight = generate(golden_session.model, inputs, 12)
    again = generate(golden_session.model, inputs, 12, first_token="redecode")
    assert again.ids == straight.ids
    prompt = inputs.input_ids.shape[1]
    assert straight.lengths == list(range(prompt, prompt + 12))
    assert again.lengths == [prompt, *range(prompt, prompt + 12)]


@pytest.mark.parametrize("check_every", [1, 3, 7, 100])
def test_stops_at_the_end_token_and_cuts_the_surplus(check_every, golden_session, golden_forward):
    inputs = golden_inputs(golden_forward, "base")
    free = generate(golden_session.model, inputs, 20).ids[0]
    end = free[7]
    wanted = free[: free.index(end) + 1]
    seen: list[int] = []
    state = generate(
        golden_session.model,
        inputs,
        20,
        eos_ids=[end],
        eos_check_every=check_every,
        on_tokens=lambda new: seen.extend(new[0]),
    )
    assert state.ids == [wanted]
    assert [free[0], *seen][: len(wanted)] == wanted
    assert len(seen) - len(wanted) + 1 < check_every


def test_rows_that_end_early_are_padded_and_leave_the_others_alone(golden_session, golden_forward):
    inputs = golden_inputs(golden_forward, "batch")
    free = generate(golden_session.model, inputs, 16).ids
    end = next(token for token in free[0] if token not in free[1])
    cut = free[0].index(end) + 1
    for check_every in (1, 4):
        state = generate(
            golden_session.model, inputs, 16, eos_ids=[end], pad_id=2, eos_check_every=check_every
        )
        assert state.ids == [free[0][:cut] + [2] * (16 - cut), free[1]]


@pytest.mark.parametrize(
    "infer",
    [
        {"no_repeat_ngram_size": 2},
        {"temperature": 0.7, "top_k": 20},
        {"do_sample": True, "top_p": 0.8},
        {"temperature": 1.3, "top_p": 0.9, "top_k": 50, "no_repeat_ngram_size": 3},
    ],
)
@pytest.mark.parametrize("first_token", ["prefill", "redecode"])
def test_sampling_equals_generate(infer, first_token, golden_session, golden_forward):
    inputs = golden_inputs(golden_forward, "small")
    settings = SamplingSettings.from_infer(infer)
    state = generate(
        golden_session.model, inputs, 20, sampler=Sampler(settings, seed=5), first_token=first_token
    )
    torch.manual_seed(5)
    whole = golden_session.model.generate(
        **{**state.family.prefill_arguments(inputs), "attention_mask": inputs.attention_mask},
        max_new_tokens=20,
        eos_token_id=None,
        pad_token_id=2,
        **settings.as_generate(),
    )
    assert state.ids == whole[:, inputs.input_ids.shape[1] :].tolist()


def test_broken_rules_are_errors(golden_session, golden_forward):
    model = golden_session.model
    inputs = golden_inputs(golden_forward, "small")
    model.train()
    try:
        with pytest.raises(OcrPhasesError, match="training mode"):
            prefill(model, inputs)
    finally:
        model.eval()

    model.hf_device_map = {"model": 0, "lm_head": 1}
    try:
        with pytest.raises(OcrPhasesError, match="spread over several devices"):
            prefill(model, inputs)
    finally:
        del model.hf_device_map

    state = prefill(model, inputs)
    state.cache.crop(-1)
    with pytest.raises(OcrPhasesError, match="grow by one"):
        decode_step(model, state)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (lambda a: {**a, "pixel_values": torch.zeros(1)}, r"Image arguments reached decode \(pixel_values\)"),
        (lambda a: {**a, "input_ids": a["input_ids"].repeat(1, 2)}, "one token a row, got 2"),
        (lambda a: {**a, "past_key_values": None}, "grow by one"),
    ],
)
def test_faulty_step_arguments_are_errors(fault, message, golden_session, golden_forward):
    state = prefill(golden_session.model, golden_inputs(golden_forward, "small"))
    state.family = faulty(state.family, fault)
    with pytest.raises(OcrPhasesError, match=message):
        decode_step(golden_session.model, state)


def test_vision_runs_in_prefill_only(golden_session, golden_forward):
    timeline = Timeline("cpu")
    inputs = golden_inputs(golden_forward, "gundam")
    decode(golden_session.model, prefill(golden_session.model, inputs, timeline), 6, timeline)
    spans = [(phase, stage, view) for _, phase, stage, view, *_ in timeline.rows()]
    for stage in ("sam", "clip", "projector"):
        assert [view for phase, name, view in spans if name == stage] == ["global", "local"]
        assert ("decode", stage, "") not in spans
    assert sum(stage == "decode_step" for _, stage, _ in spans) == 5


def test_a_loaded_model_needs_no_session():
    from transformers import UnlimitedOcrForConditionalGeneration

    session = OCRSession.load("tiny", device="cpu")
    inputs = session.prepare(PAGES / "receipt.png").to("cpu", torch.float32)
    assert isinstance(session.model, UnlimitedOcrForConditionalGeneration)
    state = decode(session.model, prefill(session.model, inputs), 10)
    assert len(state.ids[0]) == 10
