"""Prefill and decode of each family's native class and of the vendor's class.

They are compared with what the vendors' code gave, with ``generate()``, and over a static cache,
and they refuse broken rules. The vendor's class also runs with transformers 4.46.3.
"""

import contextlib
from typing import Any

import pandas as pd
import pytest
import torch
from golden_cases import (
    RECORDINGS,
    VENDOR,
    VENDOR_CASES,
    Driven,
    Recording,
    assert_same,
    captured,
    in_vendors_order,
    static_step,
)
from refusals import refused
from transformers import DynamicCache

from ocr_phases import OCRSession, Timeline, decode, decode_step, prefill
from ocr_phases.families import DEEPSEEK_OCR, DEEPSEEK_OCR_2, UNLIMITED_OCR
from ocr_phases.inputs.packing import DeviceInputs
from ocr_phases.settings import SamplingSettings
from ocr_phases.steps.phases import DecodeState, generate, prompt_loss
from ocr_phases.steps.sampling import Sampler

pytestmark = pytest.mark.usefixtures("one_thread")

#: A case with crops of each class.
CROPS = [*((name, "gundam") for name in RECORDINGS), (VENDOR, "crops")]
#: Cases with several rows, with padding, and with neither.
ROWS = [(DEEPSEEK_OCR, "batch"), (UNLIMITED_OCR, "padded"), (VENDOR, "small")]
SMALL = [(DEEPSEEK_OCR, "small"), (VENDOR, "small")]
#: The names under which a stage was recorded where it has another one here.
RECORDED_NAMES = {"encoder": "qwen2"}


def recorded_part(stage: str, output: Any, row: Recording) -> torch.Tensor:
    """The part of a stage's output that was recorded."""
    if stage == "sam":
        return output.last_hidden_state.mean(dim=(2, 3))
    if stage == "clip":
        return output.last_hidden_state.mean(-1)
    if stage == "encoder":  # its second half, after the image's own tokens
        _, second_half = output.last_hidden_state.chunk(2, dim=1)
        return second_half.mean(-1)
    assert stage == "projector"
    return output[:, :: row.skip]


def assert_near(mine: torch.Tensor, theirs: torch.Tensor, tolerance: float) -> None:
    torch.testing.assert_close(mine, theirs, atol=tolerance, rtol=0)


def model_arguments(session: OCRSession, inputs: DeviceInputs) -> dict[str, Any]:
    """The arguments of the class's forward pass for these rows."""
    arguments = session.interface.prefill_arguments(inputs)
    return {**arguments, "attention_mask": inputs.attention_mask}


def tokens_by_generate(
    session: OCRSession, inputs: DeviceInputs, count: int, **options: Any
) -> list[list[int]]:
    """The tokens that the class's own ``generate()`` gives for ``count`` steps."""
    arguments = model_arguments(session, inputs)
    if "position_ids" in arguments:
        arguments["position_ids"] = None
    options |= {"max_new_tokens": count, "eos_token_id": None, "pad_token_id": 2}
    sequences = session.model.generate(**arguments, **options)
    prompt_len = inputs.input_ids.shape[1]
    return sequences[:, prompt_len:].tolist()


@pytest.mark.parametrize(
    ("name", "case"), [(row.name, case) for row in RECORDINGS.values() for case in row.cases]
)
def test_every_stage_and_step_gives_what_the_vendor_s_code_gave(
    name: str, case: str, driven: Driven
) -> None:
    row = RECORDINGS[name]
    session, inputs = driven(name, case)
    model = session.model
    golden = recorded_tensors(row, case)

    modules = session.interface.modules(model)
    with contextlib.ExitStack() as stack:
        outputs = {
            stage: stack.enter_context(captured(modules[stage], "output"))
            for stage in (*session.family.encoders, "projector")
        }
        embeds = stack.enter_context(captured(modules["language_model"], "inputs_embeds"))
        state = prefill(model, inputs, all_logits=True)
    for stage, calls in outputs.items():
        recorded = RECORDED_NAMES.get(stage, stage)
        parts = [recorded_part(stage, output, row) for output in calls]
        parts = in_vendors_order(parts, inputs.num_local_patches)
        assert len(parts) == sum(key.startswith(f"{recorded}.") for key in golden)
        for number, part in enumerate(parts):
            assert_near(part, golden[f"{recorded}.{number}"], 1e-4)

    length = inputs.input_ids.shape[1]
    assert_language_model_near(embeds[0], state.prefill_logits, golden, row, inputs)
    assert state.length == length
    if "prefill_cache_len" in golden:
        assert int(golden["prefill_cache_len"]) == length

    expected = golden["greedy_tokens"]
    for step in range(expected.shape[1] - 1):
        decode_step(model, state)
        assert_near(state.logits, golden["step_logits"][:, step], row.tolerance)
    assert state.ids == expected.tolist()
    assert state.lengths == list(range(length, length + expected.shape[1]))
    assert_cache_grew(state, length, golden)


def recorded_tensors(row: Recording, case: str) -> dict[str, torch.Tensor]:
    """What was recorded of a case, by its name without that of the case."""
    prefix = f"{case}."
    return {
        key.removeprefix(prefix): value
        for key, value in row.forward.items()
        if key.startswith(prefix)
    }


def assert_language_model_near(
    embeds: torch.Tensor,
    logits: torch.Tensor,
    golden: dict[str, torch.Tensor],
    row: Recording,
    inputs: DeviceInputs,
) -> None:
    """What goes into the language model and what comes out of it is what was recorded.

    Padding does not count. Of some cases the logits, or both, were recorded at a few positions.
    """
    seen = inputs.attention_mask.bool()
    everywhere = torch.arange(seen.shape[1])
    logit_positions = golden.get("logit_positions", everywhere)
    embed_positions = everywhere
    if golden["fused_embeds"].shape[1] < len(everywhere):
        embed_positions = logit_positions

    counted = seen[:, embed_positions]
    mine = embeds[:, embed_positions]
    assert_near(mine[counted], golden["fused_embeds"][counted], row.embeds)
    if "fused_embeds_mean" in golden:
        assert_near(embeds.mean(-1)[seen], golden["fused_embeds_mean"][seen], 1e-4)

    counted = seen[:, logit_positions]
    mine = logits[:, logit_positions]
    assert_near(mine[counted], golden["prefill_logits"][counted], row.tolerance)


def assert_cache_grew(state: DecodeState, prompt_len: int, golden: dict[str, torch.Tensor]) -> None:
    """The cache has an entry for each token, and no more than the prompt and a window hold."""
    most = state.length + prompt_len
    if state.window is not None:
        # The vendor keeps the entry that the next step writes over; here it has gone.
        most = prompt_len + state.window - 1
    assert state.entries == [min(held, most) for held in state.lengths]
    if "cache_len" in golden:
        window = state.window or state.length
        vendors = [min(held, prompt_len + window) for held in state.lengths]
        assert golden["cache_len"].tolist() == vendors


@pytest.mark.parametrize("name", RECORDINGS)
def test_the_loss_is_the_recorded_one_in_training(name: str, driven: Driven) -> None:
    session, inputs = driven(name, "base")
    row = RECORDINGS[name]
    session.model.train()
    try:
        loss = prompt_loss(session.model, inputs)
    finally:
        session.model.eval()
    assert_near(loss.detach(), row.forward["base.labels_loss"].reshape(()), row.tolerance)
    modules = session.interface.modules(session.model)
    trained = [next(modules[stage].parameters()) for stage in ("lm_head", "projector")]
    for gradient in torch.autograd.grad(loss, trained):
        assert gradient.abs().sum() > 0


@pytest.mark.parametrize(("name", "case"), ROWS)
def test_padding_and_images_never_count_in_the_loss(name: str, case: str, driven: Driven) -> None:
    session, inputs = driven(name, case)
    with torch.no_grad():
        logits = session.model(**model_arguments(session, inputs)).logits
    hidden = inputs.images_seq_mask | ~inputs.attention_mask.bool()
    labels = inputs.input_ids.masked_fill(hidden, -100)
    expected = torch.nn.functional.cross_entropy(
        logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
    )
    text = inputs.input_ids.masked_fill(inputs.images_seq_mask, 7)
    for options in ({}, {"labels": text}):
        loss = prompt_loss(session.model, inputs, **options)
        torch.testing.assert_close(loss.detach(), expected)


@pytest.mark.parametrize(
    ("name", "case"),
    [(row.name, case) for row in RECORDINGS.values() for case in row.generated]
    + [(VENDOR, case) for case in VENDOR_CASES],
)
def test_tokens_equal_generate_also_where_decode_makes_the_first_one(
    name: str, case: str, driven: Driven
) -> None:
    session, inputs = driven(name, case)
    prompt_len = inputs.input_ids.shape[1]
    count = tokens_of_a_run(name)
    state = eager_run(session, inputs, name, case)
    assert state.ids == tokens_by_generate(session, inputs, count, do_sample=False)
    assert state.lengths == list(range(prompt_len, prompt_len + count))
    assert state.attention_mask.shape == (len(inputs.input_ids), state.length)
    redecoded = eager_run(session, inputs, name, case, first_token="redecode")
    assert redecoded.ids == state.ids
    assert redecoded.lengths == [prompt_len, *state.lengths]


@pytest.mark.parametrize(
    ("name", "case"), [(row.name, case) for row in RECORDINGS.values() for case in row.generated]
)
def test_a_step_over_a_static_cache_equals_the_eager_one(
    name: str, case: str, driven: Driven
) -> None:
    session, inputs = driven(name, case)
    model = session.model
    count = tokens_of_a_run(name)
    state = eager_run(session, inputs, name, case)
    redecoded = eager_run(session, inputs, name, case, first_token="redecode")

    step = static_step(model, inputs, count)
    assert_same(generate(model, inputs, count, step=step), state)
    # The second run goes over a cache that holds the first one's entries.
    again = generate(model, inputs, count, step=step, first_token="redecode")
    assert_same(again, redecoded)

    window = session.interface.window(model)
    if window:
        assert again.entries[-1] == inputs.input_ids.shape[1] + window
    else:
        assert again.entries[-1] == redecoded.entries[-1]
        assert int(step.cache.get_seq_length()) == again.length


def tokens_of_a_run(name: str) -> int:
    """How many tokens are compared with ``generate()``."""
    if name in RECORDINGS:
        return RECORDINGS[name].steps
    return 8


EAGER_RUNS: dict[tuple[str, str, str], DecodeState] = {}


def eager_run(
    session: OCRSession, inputs: DeviceInputs, name: str, case: str, first_token: str = "prefill"
) -> DecodeState:
    """The eager run of a case, which is made once for all tests of this file."""
    key = (name, case, first_token)
    if key not in EAGER_RUNS:
        count = tokens_of_a_run(name)
        EAGER_RUNS[key] = generate(session.model, inputs, count, first_token=first_token)
    return EAGER_RUNS[key]


@pytest.mark.parametrize(
    ("name", "case", "static"),
    [
        (DEEPSEEK_OCR_2, "mixed", True),
        (UNLIMITED_OCR, "padded", False),
        (UNLIMITED_OCR, "padded", True),
    ],
)
def test_padded_rows_stay_right_also_beyond_a_window(
    name: str, case: str, static: bool, driven: Driven
) -> None:
    session, inputs = driven(name, case)
    golden = RECORDINGS[name].forward
    expected = golden[f"{case}.greedy_tokens"].tolist()
    # In Unlimited-OCR's own batch the second row is wrong from token 3 on: it is compared with
    # that page read alone.
    if f"{case}.row1_alone_tokens" in golden:
        expected[1:] = golden[f"{case}.row1_alone_tokens"].tolist()
    count = len(expected[0])
    step = static_step(session.model, inputs, count) if static else None
    assert generate(session.model, inputs, count, step=step).ids == expected


#: Each of their values changes what is read in 20 tokens, but for the last n-gram.
SAMPLED = [
    {"no_repeat_ngram_size": 2},
    {"temperature": 0.7, "top_k": 3},
    {"do_sample": True, "top_p": 0.8},
    {"temperature": 1.3, "top_p": 0.9, "top_k": 50, "no_repeat_ngram_size": 3},
]


@pytest.mark.parametrize(
    ("name", "infer"),
    [*((DEEPSEEK_OCR, infer) for infer in SAMPLED), (VENDOR, SAMPLED[1]), (VENDOR, SAMPLED[3])],
)
def test_sampled_tokens_equal_generate_s(name: str, infer: dict[str, Any], driven: Driven) -> None:
    session, inputs = driven(name, "small")
    settings = SamplingSettings.from_infer(infer)
    torch.manual_seed(5)
    expected = tokens_by_generate(session, inputs, 20, **settings.as_generate())
    for first_token in ("prefill", "redecode"):
        sampler = Sampler(settings, seed=5)
        state = generate(session.model, inputs, 20, sampler=sampler, first_token=first_token)
        assert state.ids == expected


@pytest.mark.parametrize("check_every", [1, 3, 100])
def test_a_row_that_ends_is_padded_and_leaves_the_others_alone(
    check_every: int, driven: Driven
) -> None:
    session, inputs = driven(DEEPSEEK_OCR, "batch")
    first, second = eager_run(session, inputs, DEEPSEEK_OCR, "batch").ids
    count = len(first)
    end = next(token for token in first if token not in second)
    kept = first[: first.index(end) + 1]
    assert len(kept) < count
    state = generate(
        session.model, inputs, count, eos_ids=[end], pad_id=2, eos_check_every=check_every
    )
    assert state.ids == [kept + [2] * (count - len(kept)), second]


@pytest.mark.parametrize("check_every", [1, 3, 100])
def test_what_was_decoded_beyond_the_end_token_is_cut(check_every: int, driven: Driven) -> None:
    session, inputs = driven(DEEPSEEK_OCR, "base")
    (free,) = eager_run(session, inputs, DEEPSEEK_OCR, "base").ids
    end = free[7]
    expected = free[: free.index(end) + 1]
    heard: list[int] = []

    def listen(tokens_of_rows: list[list[int]]) -> None:
        heard.extend(tokens_of_rows[0])

    state = generate(
        session.model,
        inputs,
        12,
        eos_ids=[end],
        eos_check_every=check_every,
        on_tokens=listen,
    )

    assert state.ids == [expected]
    # Whoever listens hears of tokens before anybody looks whether one was the end.
    assert heard[: len(expected)] == expected
    assert len(heard) - len(expected) < check_every


@pytest.mark.parametrize(("name", "case"), CROPS)
def test_spans_are_complete_and_in_the_class_s_order(name: str, case: str, driven: Driven) -> None:
    session, inputs = driven(name, case)
    timeline = Timeline("cpu")
    state = prefill(session.model, inputs, timeline)
    decode(session.model, state, 4, timeline)
    spans = timeline.table()
    in_prefill = spans[spans["phase"] == "prefill"]
    in_decode = spans[spans["phase"] == "decode"]

    views = ["local", "global"] if name == VENDOR else ["global", "local"]
    stages = [*session.family.encoders, "projector"]
    vision = [(stage, view) for view in views for stage in stages]
    after = [(stage, "") for stage in ("vision_fusion", "language_model", "lm_head", "sampling")]
    found = list(zip(in_prefill["stage"], in_prefill["view"], strict=True))
    assert found == [("prefill", ""), *vision, *after]

    stages = ["decode_step", "language_model", "lm_head", "sampling"]
    assert in_decode["stage"].tolist() == ["decode", *(stages * 3)]
    assert in_decode["step"].iloc[1:].tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert pd.isna(in_decode["step"].iloc[0])

    starts = in_prefill["host_start_ms"].tolist()
    ends = (in_prefill["host_start_ms"] + in_prefill["host_ms"]).tolist()
    for end, next_start in zip(ends[1:], starts[2:], strict=False):
        assert end <= next_start
    assert max(ends[1:]) <= ends[0]


@pytest.mark.parametrize(("name", "case"), SMALL)
def test_broken_rules_are_errors(
    name: str, case: str, driven: Driven, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Among them image arguments that leak into a step, two tokens a row, another cache."""
    session, inputs = driven(name, case)
    model = session.model
    spread = {"model": 0, "lm_head": 1}
    for attribute, value in (("training", True), ("hf_device_map", spread)):
        with monkeypatch.context() as patch, refused():
            patch.setattr(model, attribute, value, raising=False)
            prefill(model, inputs)
    state = prefill(model, inputs)
    state.length += 1
    with refused():
        decode_step(model, state)

    leaks = image_arguments(session, inputs)
    assert len(leaks) == (3 if name == VENDOR else 1)
    two_tokens = {"input_ids": inputs.input_ids[:, :2]}
    other_cache = {"past_key_values": None}
    interface = type(session.interface)
    right_arguments = interface.step_arguments
    for wrong in (*leaks, two_tokens, other_cache):

        def wrong_arguments(*given, wrong=wrong):
            return right_arguments(*given) | wrong

        state = prefill(model, inputs)
        with monkeypatch.context() as patch, refused():
            patch.setattr(interface, "step_arguments", wrong_arguments)
            decode_step(model, state)


def image_arguments(session: OCRSession, inputs: DeviceInputs) -> list[dict[str, Any]]:
    """Each argument of the forward pass that brings an image, alone."""
    found = []
    for name, value in session.interface.prefill_arguments(inputs).items():
        if value is not None and ("image" in name or "pixel" in name):
            found.append({name: value})
    return found


def test_a_cache_with_another_window_is_refused(
    unlimited_session: OCRSession, golden_session: OCRSession
) -> None:
    windowed_model = unlimited_session.model
    inputs = RECORDINGS[UNLIMITED_OCR].inputs("long")
    windowed_cache = DynamicCache(config=windowed_model.config.get_text_config())
    with refused():
        prefill(windowed_model, inputs, cache=DynamicCache())
    with refused():
        prefill(golden_session.model, inputs, cache=windowed_cache)

    state = prefill(windowed_model, inputs, cache=windowed_cache)
    for layer in state.cache.layers:  # so is one that grows beyond it
        layer.sliding_window = 3
    with refused():
        decode(windowed_model, state, 16)
