"""prefill and decode of each family's native class and of the vendor's: against what was recorded,

against ``generate()``, also over a static cache, and against broken rules. The vendor's class also
with transformers 4.46.3.
"""

import contextlib

import pytest
import torch
from golden_cases import (
    RECORDINGS,
    VENDOR,
    VENDOR_CASES,
    assert_same,
    captured,
    in_vendors_order,
    static_step,
)
from refusals import refused
from transformers import DynamicCache

from ocr_phases import Timeline, decode, decode_step, prefill
from ocr_phases.families import DEEPSEEK_OCR, DEEPSEEK_OCR_2, UNLIMITED_OCR
from ocr_phases.settings import SamplingSettings
from ocr_phases.steps.phases import generate, prompt_loss
from ocr_phases.steps.sampling import Sampler

FIRST, SECOND, WINDOWED = DEEPSEEK_OCR, DEEPSEEK_OCR_2, UNLIMITED_OCR
#: A case with crops of each class, and cases with several rows, with padding and with neither.
CROPS = [*((name, "gundam") for name in RECORDINGS), (VENDOR, "crops")]
ROWS = [(FIRST, "batch"), (WINDOWED, "padded"), (VENDOR, "small")]
SMALL = [(FIRST, "small"), (VENDOR, "small")]
#: The vision encoders' recorded names, and what was kept of their outputs.
KEPT = {
    "sam": ("sam", lambda out: out.last_hidden_state.mean(dim=(2, 3))),
    "clip": ("clip", lambda out: out.last_hidden_state.mean(-1)),
    "encoder": ("qwen2", lambda out: out.last_hidden_state.chunk(2, dim=1)[1].mean(-1)),
}


def near(mine: torch.Tensor, theirs: torch.Tensor, tolerance: float) -> None:
    torch.testing.assert_close(mine, theirs, atol=tolerance, rtol=0)


def by_generate(session, inputs, count, **options):
    """The tokens that the class's own ``generate()`` gives for ``count`` steps."""
    arguments = {
        **session.interface.prefill_arguments(inputs),
        "attention_mask": inputs.attention_mask,
    }
    arguments |= {"position_ids": None} if "position_ids" in arguments else {}
    options |= {"max_new_tokens": count, "eos_token_id": None, "pad_token_id": 2}
    return session.model.generate(**arguments, **options)[:, inputs.input_ids.shape[1] :].tolist()


@pytest.mark.parametrize(
    ("name", "case"), [(row.name, case) for row in RECORDINGS.values() for case in row.cases]
)
def test_matches_the_recorded_vendor_run(name, case, driven):
    row = RECORDINGS[name]
    session, inputs = driven(name, case)
    model, stages = session.model, session.interface.modules(session.model)
    ours = f"{case}."
    golden = {
        key.removeprefix(ours): value for key, value in row.forward.items() if key.startswith(ours)
    }
    with contextlib.ExitStack() as stack:
        outputs = {
            stage: stack.enter_context(captured(stages[stage], "output"))
            for stage in (*session.family.encoders, "projector")
        }
        embeds = stack.enter_context(captured(stages["language_model"], "inputs_embeds"))
        state = prefill(model, inputs, all_logits=True)
    for stage, calls in outputs.items():
        recorded, kept = KEPT.get(stage, ("projector", lambda out: out[:, :: row.skip]))
        parts = in_vendors_order([kept(out) for out in calls], inputs.num_local_patches)
        assert len(parts) == sum(key.startswith(f"{recorded}.") for key in golden)
        for number, mine in enumerate(parts):
            near(mine, golden[f"{recorded}.{number}"], 1e-4)
    seen, length = inputs.attention_mask.bool(), inputs.input_ids.shape[1]
    places = golden.get("logit_positions", torch.arange(length))
    kept_embeds = places if golden["fused_embeds"].shape[1] < length else torch.arange(length)
    for mine, entry, at, tolerance in (
        (embeds[0], "fused_embeds", kept_embeds, row.embeds),
        (state.prefill_logits, "prefill_logits", places, row.tolerance),
    ):
        near(mine[:, at][seen[:, at]], golden[entry][seen[:, at]], tolerance)
    if "fused_embeds_mean" in golden:
        near(embeds[0].mean(-1)[seen], golden["fused_embeds_mean"][seen], 1e-4)
    assert state.length == int(golden.get("prefill_cache_len", state.length)) == length

    expected = golden["greedy_tokens"]
    for step in range(expected.shape[1] - 1):
        decode_step(model, state)
        near(state.logits, golden["step_logits"][:, step], row.tolerance)
    assert state.ids == expected.tolist()
    assert state.lengths == list(range(length, length + expected.shape[1]))
    window = state.window or state.length
    most = length + window - (state.window is not None)
    assert state.entries == [min(held, most) for held in state.lengths]
    # The vendor keeps the entry that the next step writes over; here it has gone.
    if "cache_len" in golden:
        assert golden["cache_len"].tolist() == [
            min(held, length + window) for held in state.lengths
        ]


@pytest.mark.parametrize("name", RECORDINGS)
def test_the_loss_is_the_recorded_one_in_training(name, driven):
    session, inputs = driven(name, "base")
    stages, row = session.interface.modules(session.model), RECORDINGS[name]
    session.model.train()
    try:
        loss = prompt_loss(session.model, inputs)
    finally:
        session.model.eval()
    near(loss.detach(), row.forward["base.labels_loss"].reshape(()), row.tolerance)
    trained = [next(stages[stage].parameters()) for stage in ("lm_head", "projector")]
    assert all(gradient.abs().sum() > 0 for gradient in torch.autograd.grad(loss, trained))


@pytest.mark.parametrize(("name", "case"), ROWS)
def test_padding_and_images_never_count_in_the_loss(name, case, driven):
    session, inputs = driven(name, case)
    arguments = {
        **session.interface.prefill_arguments(inputs),
        "attention_mask": inputs.attention_mask,
    }
    with torch.no_grad():
        logits = session.model(**arguments).logits
    hidden = inputs.images_seq_mask | ~inputs.attention_mask.bool()
    labels = inputs.input_ids.masked_fill(hidden, -100)
    expected = torch.nn.functional.cross_entropy(
        logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
    )
    text = inputs.input_ids.masked_fill(inputs.images_seq_mask, 7)
    for own in ({}, {"labels": text}):
        torch.testing.assert_close(prompt_loss(session.model, inputs, **own).detach(), expected)


@pytest.mark.parametrize(
    ("name", "case"),
    [(row.name, case) for row in RECORDINGS.values() for case in row.generated]
    + [(VENDOR, case) for case in VENDOR_CASES],
)
def test_equals_generate_by_every_strategy(name, case, driven):
    """Eager, over a static cache, and each with a first token that decode makes."""
    session, inputs = driven(name, case)
    model, prompt = session.model, inputs.input_ids.shape[1]
    count = RECORDINGS[name].steps if name in RECORDINGS else 8
    state = generate(model, inputs, count)
    assert state.ids == by_generate(session, inputs, count, do_sample=False)
    assert state.lengths == list(range(prompt, prompt + count))
    assert state.attention_mask.shape == (len(inputs.input_ids), state.length)
    again = generate(model, inputs, count, first_token="redecode")
    assert (again.ids, again.lengths) == (state.ids, [prompt, *state.lengths])
    if name == VENDOR:
        return
    step, window = static_step(model, inputs, count), session.interface.window(model)
    assert_same(generate(model, inputs, count, step=step), state)
    # Over a cache that holds the first run's entries.
    mine = generate(model, inputs, count, step=step, first_token="redecode")
    assert_same(mine, again)
    assert mine.entries[-1] == (prompt + window if window else again.entries[-1])
    assert window or int(step.cache.get_seq_length()) == mine.length


@pytest.mark.parametrize(
    ("name", "case", "static"),
    [(SECOND, "mixed", True), (WINDOWED, "padded", False), (WINDOWED, "padded", True)],
)
def test_padded_rows_stay_right_also_beyond_a_window(name, case, static, driven):
    """Unlimited-OCR's own second row is wrong from token 3 on: it is held to the row alone."""
    session, inputs = driven(name, case)
    golden = RECORDINGS[name].forward
    expected = golden[f"{case}.greedy_tokens"].tolist()
    expected[1:] = golden.get(f"{case}.row1_alone_tokens", torch.tensor(expected[1:])).tolist()
    step = static_step(session.model, inputs, len(expected[0])) if static else None
    assert generate(session.model, inputs, len(expected[0]), step=step).ids == expected


#: Each of their values changes what is read in 20 tokens, but for the last n-gram.
SAMPLED = [
    {"no_repeat_ngram_size": 2},
    {"temperature": 0.7, "top_k": 3},
    {"do_sample": True, "top_p": 0.8},
    {"temperature": 1.3, "top_p": 0.9, "top_k": 50, "no_repeat_ngram_size": 3},
]


@pytest.mark.parametrize(
    ("name", "infer"),
    [*((FIRST, infer) for infer in SAMPLED), (VENDOR, SAMPLED[1]), (VENDOR, SAMPLED[3])],
)
def test_sampling_equals_generate(name, infer, driven):
    session, inputs = driven(name, "small")
    settings = SamplingSettings.from_infer(infer)
    torch.manual_seed(5)
    expected = by_generate(session, inputs, 20, **settings.as_generate())
    for first_token in ("prefill", "redecode"):
        sampler = Sampler(settings, seed=5)
        assert (
            generate(session.model, inputs, 20, sampler=sampler, first_token=first_token).ids
            == expected
        )


def test_stops_at_the_end_token_and_cuts_the_surplus(driven):
    session, inputs = driven(FIRST, "batch")
    one = driven(FIRST, "base")[1]
    free = generate(session.model, inputs, 16).ids
    end = next(token for token in free[0] if token not in free[1])
    cut = free[0].index(end) + 1
    alone = generate(session.model, one, 12).ids[0]
    wanted = alone[: alone.index(alone[7]) + 1]
    for check_every in (1, 3, 100):
        state = generate(
            session.model, inputs, 16, eos_ids=[end], pad_id=2, eos_check_every=check_every
        )
        # A row that ends early is padded, and leaves the others alone.
        assert state.ids == [free[0][:cut] + [2] * (16 - cut), free[1]]
        seen: list[int] = []
        options = {
            "eos_check_every": check_every,
            "on_tokens": lambda new, seen=seen: seen.extend(new[0]),
        }
        assert generate(session.model, one, 12, eos_ids=[alone[7]], **options).ids == [wanted]
        assert seen[: len(wanted)] == wanted
        assert len(seen) - len(wanted) < check_every


@pytest.mark.parametrize(("name", "case"), CROPS)
def test_spans_are_complete_and_in_the_class_s_order(name, case, driven):
    session, inputs = driven(name, case)
    timeline = Timeline("cpu")
    decode(session.model, prefill(session.model, inputs, timeline), 4, timeline)
    rows = timeline.rows()
    views = ("local", "global") if name == VENDOR else ("global", "local")
    vision = [(stage, view) for view in views for stage in (*session.family.encoders, "projector")]
    after = [(stage, "") for stage in ("vision_fusion", "language_model", "lm_head", "sampling")]
    prefilled = [row for row in rows if row[1] == "prefill"]
    assert [(row[2], row[3]) for row in prefilled] == [("prefill", ""), *vision, *after]
    in_step = ("decode_step", "language_model", "lm_head", "sampling")
    steps = [(stage, step) for step in range(3) for stage in in_step]
    assert [(row[2], row[4]) for row in rows if row[1] == "decode"] == [("decode", None), *steps]
    starts, ends = [row[7] for row in prefilled], [row[7] + row[8] for row in prefilled]
    assert all(end <= start for end, start in zip(ends[1:], starts[2:], strict=False))
    assert max(ends[1:]) <= ends[0]


@pytest.mark.parametrize(("name", "case"), SMALL)
def test_broken_rules_are_errors(name, case, driven, monkeypatch):
    """Among them image arguments that leak into a step, two tokens a row, another cache."""
    session, inputs = driven(name, case)
    model = session.model
    for attribute, value in (("training", True), ("hf_device_map", {"model": 0, "lm_head": 1})):
        with monkeypatch.context() as patch, refused():
            patch.setattr(model, attribute, value, raising=False)
            prefill(model, inputs)
    state = prefill(model, inputs)
    state.length += 1
    with refused():
        decode_step(model, state)

    given = session.interface.prefill_arguments(inputs)
    images = [key for key in given if ("image" in key or "pixel" in key) and given[key] is not None]
    faults, honest = [{key: given[key]} for key in images], type(session.interface).step_arguments
    assert len(faults) == (3 if name == VENDOR else 1)
    for fault in (*faults, {"input_ids": inputs.input_ids[:, :2]}, {"past_key_values": None}):
        state = prefill(model, inputs)
        with monkeypatch.context() as patch, refused():
            patch.setattr(
                type(session.interface),
                "step_arguments",
                lambda *given, fault=fault: honest(*given) | fault,
            )
            decode_step(model, state)


def test_a_cache_with_another_window_is_refused(unlimited_session, golden_session):
    model, inputs = unlimited_session.model, RECORDINGS[WINDOWED].inputs("long")
    windowed = DynamicCache(config=model.config.get_text_config())
    for other, cache in ((model, DynamicCache()), (golden_session.model, windowed)):
        with refused():
            prefill(other, inputs, cache=cache)
    state = prefill(model, inputs, cache=windowed)
    for layer in state.cache.layers:  # so is one that grows beyond it
        layer.sliding_window = 3
    with refused():
        decode(model, state, 16)
