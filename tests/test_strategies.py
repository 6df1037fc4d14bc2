"""Decode strategies without a GPU: the static step run as it is, and what is refused."""

from __future__ import annotations

from contextlib import nullcontext
from functools import cache
from types import SimpleNamespace

import pytest
import torch
from conftest import PAGES
from golden_cases import CASES, RECORDINGS
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused
from transformers import DynamicCache

from ocr_phases import decode, decode_step, prefill
from ocr_phases.models.wiring import NATIVES, VENDORS
from ocr_phases.settings import SamplingSettings
from ocr_phases.steps import captured
from ocr_phases.steps import execution as strategies
from ocr_phases.steps.captured import CAPACITY, LEAST_READ, StaticStep, capacity_for, power_of_two
from ocr_phases.steps.compiled import sam_attention
from ocr_phases.steps.phases import generate, redecode
from ocr_phases.steps.sampling import Sampler

FIRST = "deepseek-ocr"
RECEIPT = PAGES / "receipt.png"
TOKENS = 40  # twice around a window of 16


@pytest.fixture(scope="module")
def static(request):
    """The static step of a recorded case, uncompiled: the very step that is captured on a GPU."""

    @cache
    def of(name: str, case: str) -> StaticStep:
        row = RECORDINGS[name]
        session = request.getfixturevalue(row.session)
        rows, length = row.inputs(case).input_ids.shape
        return StaticStep(session.model, rows, CAPACITY, "eager").ready_for(length, TOKENS)

    return of


@pytest.fixture
def base(golden_session, static):
    """The model, the inputs and the static step of one page."""
    return golden_session.model, RECORDINGS[FIRST].inputs("base"), static(FIRST, "base")


def assert_same(mine, eager):
    assert (mine.ids, mine.length, mine.lengths) == (eager.ids, eager.length, eager.lengths)
    assert torch.equal(mine.attention_mask, eager.attention_mask)
    assert (mine.position_ids is None) == (eager.position_ids is None)
    assert mine.position_ids is None or torch.equal(mine.position_ids, eager.position_ids)
    torch.testing.assert_close(mine.logits, eager.logits, atol=5e-4, rtol=0)


@pytest.mark.parametrize(
    ("name", "case"),
    [
        *((FIRST, case) for case in CASES),
        ("deepseek-ocr-2", "mixed"),
        *(("unlimited-ocr", case) for case in ("long", "padded")),
    ],
)
def test_the_static_step_equals_eager(name, case, driven, static):
    session, inputs = driven(name, case)
    model, step, window = session.model, static(name, case), session.family.window(session.model)
    for first_token in ("prefill", "redecode"):  # the second over a cache that holds the first one's entries
        count = TOKENS if window else 8
        eager = generate(model, inputs, count, first_token=first_token)
        mine = generate(model, inputs, count, first_token=first_token, step=step)
        assert_same(mine, eager)
        held = inputs.input_ids.shape[1] + window if window else eager.entries[-1]
        assert mine.entries[-1] == held
        if not window:
            assert int(step.cache.get_seq_length()) == mine.length


INFERS = [{}, {"no_repeat_ngram_size": 2}, {"temperature": 1.5}, {"top_p": 0.8, "do_sample": True}]


@settings(deadline=None, max_examples=10)
@given(
    case=st.sampled_from(["base", "batch"]),
    tokens=st.integers(1, 16),
    every=st.integers(1, 9),
    end=st.integers(0, 15),
    first_token=st.sampled_from(["prefill", "redecode"]),
    sampling=st.sampled_from(INFERS).map(SamplingSettings.from_infer),
    seed=st.integers(0, 3),
)
def test_every_way_to_decode_equals_eager(
    case, tokens, every, end, first_token, sampling, seed, golden_session, static
):
    def decoded(count, **options):
        inputs, sampler = RECORDINGS[FIRST].inputs(case), Sampler(sampling, seed)
        return generate(golden_session.model, inputs, count, sampler=sampler, **options)

    options = {"first_token": first_token, "eos_ids": [decoded(16).ids[0][end]], "pad_id": 2}
    reads: list = []
    mine = decoded(tokens, step=static(FIRST, case), eos_check_every=every, on_tokens=reads.append, **options)
    assert mine.ids == decoded(tokens, **options).ids
    assert len(reads) == -(-(len(mine.lengths) - 1) // every) + (first_token == "prefill")


@pytest.mark.parametrize("case", ["gundam", "small", "batch"])
def test_a_captured_prefill_is_made_once_and_gives_the_same(case, golden_session, static, monkeypatch):
    monkeypatch.setattr(strategies, "captured", lambda run: run)  # a replay does the work on the same tensors
    monkeypatch.setattr(captured, "syncs_counted", lambda found: nullcontext())
    model, inputs, step = golden_session.model, RECORDINGS[FIRST].inputs(case), static(FIRST, case)
    monkeypatch.setattr(step, "prefill_execution", step.prefill.installed)
    eager = generate(model, inputs, 6)
    took = set()
    for _ in range(2):
        mine = generate(model, inputs, 6, step=step)
        assert_same(mine, eager)
        took.add(step.prefill.took_ms())
    assert len(took) == 1 and took.pop() > 0
    assert "forward" not in vars(golden_session.family.stages(model)["language_model"])
    # A cache beside the step's own is not used.
    assert prefill(model, inputs, step=step, cache=DynamicCache()).cache is step.cache


def test_padded_rows_and_forwards_that_wait_are_not_captured(golden_session, monkeypatch):
    monkeypatch.setattr(strategies, "captured", lambda run: pytest.fail("captured"))
    monkeypatch.setattr(captured, "syncs_counted", lambda found: nullcontext(found.append("a wait")))
    prompts = ["free", "<image>\n<|grounding|>A much longer prompt than the other row has."]
    padded = golden_session.prepare([RECEIPT] * 2, preset="tiny", prompt=prompts)
    whole = golden_session.prepare(RECEIPT, preset="tiny")
    for packed, made in ((padded, []), (whole, [None])):
        inputs = packed.to("cpu", torch.float32)
        rows, length = inputs.input_ids.shape
        step = StaticStep(golden_session.model, rows, CAPACITY, "eager").ready_for(length, 8)
        monkeypatch.setattr(step, "prefill_execution", step.prefill.installed)
        ids = generate(golden_session.model, inputs, 6, step=step).ids
        assert ids == generate(golden_session.model, inputs, 6).ids
        assert [took for _, took in step.prefill.made.values()] == made


@pytest.mark.parametrize("name", RECORDINGS)
def test_the_position_bias_as_channels_gives_the_same(name, request):
    model = request.getfixturevalue(RECORDINGS[name].session).model
    layers = [module for module in model.modules() if hasattr(module, "rel_pos_h")]
    for layer in layers:
        places = torch.randn(2, 6, 10, layer.qkv.in_features)
        with torch.no_grad():
            torch.testing.assert_close(
                sam_attention(layer, places)[0], layer(places)[0], atol=1e-5, rtol=1e-4
            )
    assert len(layers) > 1


def test_a_state_may_be_changed_between_steps(base):
    model, inputs, step = base
    states = [prefill(model, inputs), prefill(model, inputs, cache=step.fresh_cache())]
    for state, runner in zip(states, (None, step), strict=True):
        decode_step(model, state, step=runner)
        state.token = torch.tensor([123])
        decode_step(model, state, step=runner)
        decode_step(model, state, step=runner)
    assert states[0].ids == states[1].ids
    redecode(states[1])
    decode(model, states[1], 3, step=step)
    assert states[1].length == states[0].length + 2


def test_broken_rules_of_a_static_cache_are_errors(base):
    model, inputs, step = base
    with refused():
        decode(model, prefill(model, inputs), 4, step=step)

    length = inputs.input_ids.shape[1]
    short = StaticStep(model, 1, length + 3, "eager").ready_for(length, 3)
    with refused():
        decode(model, prefill(model, inputs, step=short), 5, step=short)

    state = prefill(model, inputs, cache=step.fresh_cache())
    step.cache.layers[-1].cumulative_length.sub_(1)
    with refused():
        decode(model, state, 4, step=step)


@given(st.integers(1, 40_000), st.integers(1, 40_000))
def test_most_prompts_and_limits_share_a_cache_and_a_step_reads_little_more_than_it_must(prompt_len, new):
    room = capacity_for(prompt_len, new)
    assert prompt_len + new <= room < max(2 * (prompt_len + new), CAPACITY + 1)
    assert room in (8192, 16384, 32768, 65536, 131072)
    assert capacity_for(prompt_len, new, window=128) == capacity_for(prompt_len, min(new, 128))
    assert new <= power_of_two(LEAST_READ, new) < max(2 * new, LEAST_READ + 1)


def test_every_length_that_is_read_gives_the_same_tokens(golden_session, monkeypatch):
    model, inputs = golden_session.model, RECORDINGS[FIRST].inputs("small")
    rows, prompt = inputs.input_ids.shape
    monkeypatch.setattr("ocr_phases.steps.captured.LEAST_READ", prompt // 4)
    step = StaticStep(model, rows, CAPACITY, "eager")
    with refused():
        generate(model, inputs, 200, step=step)
    step.ready_for(prompt, 200)
    read: list[int] = []

    def look(module, args, given):
        masks = [mask for mask in given["attention_mask"].values() if mask is not None]
        read.extend(mask.shape[-1] for mask in masks[:1])  # the prefill has none

    hook = model.register_forward_pre_hook(look, with_kwargs=True)
    mine = generate(model, inputs, 200, step=step)
    hook.remove()
    assert_same(mine, generate(model, inputs, 200))
    assert len(set(read)) >= 3 and read == sorted(read)
    assert all(length > prompt + number for number, length in enumerate(read))


# -- refusals -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        {"strategy": "cuda_graph"},
        {"strategy": "compiled", "autocast": True},
        {"vision": "compiled", "autocast": True},
        {"vision": "magic"},
        {"strategy": "compiled", "generate": True},
    ],
)
def test_what_cannot_run_is_refused_in_one_sentence(options, tiny_session):
    with refused() as caught:
        tiny_session.run_inference(RECEIPT, **options)
    assert "\n" not in str(caught.value)


def test_the_vendor_class_and_missing_compilers_are_refused(monkeypatch):
    def check(strategy, vision="eager", family=NATIVES[FIRST], device="cpu"):
        request = SimpleNamespace(strategy=strategy, vision=vision, autocast=False)
        strategies.check_strategy(request, family, device)

    check("eager")
    for ways in (("compiled",), ("eager", "compiled")):
        with refused():
            check(*ways, family=VENDORS[FIRST])
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    for device in ("cpu", "cuda"):
        with refused():
            check("compiled", device=device)
