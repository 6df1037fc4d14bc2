"""Other ways to run a step, a prefill and the encoders, without a GPU: equal to the eager ones, or
refused.

That a static step gives the tokens of ``generate()`` is held with the phases in ``test_phases.py``.
"""

from contextlib import nullcontext
from functools import partial
from types import SimpleNamespace

import msgspec
import pytest
import torch
from conftest import GOLDEN, PAGES, SMALL_DUMMY
from golden_cases import RECORDINGS, assert_same, static_step
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused
from transformers import DynamicCache

from ocr_phases import OCRSession, PhaseRun, decode, prefill
from ocr_phases.analyse.checks import run_checks, with_verdict
from ocr_phases.families import FAMILIES
from ocr_phases.models.wiring import NativeInterface
from ocr_phases.settings import SamplingSettings
from ocr_phases.steps import captured, graphs, strategies
from ocr_phases.steps.capacity import CAPACITY
from ocr_phases.steps.captured import RelativePositions, StaticStep
from ocr_phases.steps.compiled import compile_apart, first_largest, sam_attention
from ocr_phases.steps.phases import generate
from ocr_phases.steps.preparing import announcements_to, timed_preparation
from ocr_phases.steps.sampling import Sampler

pytestmark = pytest.mark.usefixtures("pixels_seen_once")
FIRST = "deepseek-ocr"
RECEIPT = PAGES / "receipt.png"
QUICK = {
    "preset": "tiny",
    "repeats": 1,
    "warmup": 0,
    "ceilings": False,
    "token_probabilities": False,
}


@pytest.fixture
def small(golden_session):
    """The model, the inputs and the static step of one small page."""
    inputs = RECORDINGS[FIRST].inputs("small")
    return golden_session.model, inputs, static_step(golden_session.model, inputs, 40)


INFERS = [{}, {"no_repeat_ngram_size": 2}, {"temperature": 1.5}, {"top_p": 0.8, "do_sample": True}]


@settings(deadline=None, max_examples=6)
@given(
    tokens=st.integers(1, 16),
    every=st.integers(1, 9),
    end=st.integers(0, 15),
    first_token=st.sampled_from(["prefill", "redecode"]),
    sampling=st.sampled_from(INFERS).map(SamplingSettings.from_infer),
    seed=st.integers(0, 3),
)
def test_every_way_is_eager(
    tokens, every, end, first_token, sampling, seed, golden_session, batch_step
):
    inputs = RECORDINGS[FIRST].inputs("batch")

    def decoded(count, **options):
        return generate(
            golden_session.model, inputs, count, sampler=Sampler(sampling, seed), **options
        )

    options = {"first_token": first_token, "eos_ids": [decoded(16).ids[0][end]], "pad_id": 2}
    reads: list = []
    mine = decoded(
        tokens, step=batch_step, eos_check_every=every, on_tokens=reads.append, **options
    )
    assert mine.ids == decoded(tokens, **options).ids
    assert len(reads) == -(-(len(mine.lengths) - 1) // every) + (first_token == "prefill")


@pytest.fixture(scope="module")
def batch_step(golden_session):
    return static_step(golden_session.model, RECORDINGS[FIRST].inputs("batch"), 16)


@pytest.mark.parametrize("case", ["small", "batch"])
def test_a_captured_prefill_is_made_once_and_gives_the_same(case, golden_session, monkeypatch):
    # A replay does the work on the same tensors.
    monkeypatch.setattr(graphs, "capture", lambda run: run)
    monkeypatch.setattr(graphs, "note_host_syncs", lambda waits: nullcontext())
    model, inputs = golden_session.model, RECORDINGS[FIRST].inputs(case)
    step = static_step(model, inputs, 6)
    step.prefill_execution = step.prefill.installed
    eager = generate(model, inputs, 6)
    took = set()
    for _ in range(2):
        assert_same(generate(model, inputs, 6, step=step), eager)
        took.add(step.prefill.took_ms())
    assert len(took) == 1 and took.pop() > 0
    assert "forward" not in vars(golden_session.interface.modules(model)["language_model"])
    # A cache beside the step's own is not used.
    assert prefill(model, inputs, step=step, cache=DynamicCache()).cache is step.cache


def test_padded_rows_and_forwards_that_wait_are_not_captured(golden_session, monkeypatch):
    monkeypatch.setattr(graphs, "capture", lambda run: pytest.fail("captured"))
    monkeypatch.setattr(
        graphs, "note_host_syncs", lambda waits: nullcontext(waits.append("a wait"))
    )
    prompts = ["free", "<image>\n<|grounding|>A much longer prompt than the other row has."]
    padded = golden_session.prepare([RECEIPT] * 2, preset="tiny", prompt=prompts)
    whole = golden_session.prepare(RECEIPT, preset="tiny")
    for packed, made in ((padded, []), (whole, [None])):
        inputs = packed.to("cpu", torch.float32)
        step = static_step(golden_session.model, inputs, 6)
        step.prefill_execution = step.prefill.installed
        ids = generate(golden_session.model, inputs, 6, step=step).ids
        assert ids == generate(golden_session.model, inputs, 6).ids
        assert [took for _, took in step.prefill.made.values()] == made


def test_broken_rules_of_a_static_cache_are_errors(small):
    model, inputs, step = small
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


def test_every_length_that_is_read_gives_the_same_tokens(small, monkeypatch):
    model, inputs, _ = small
    prompt = inputs.input_ids.shape[1]
    monkeypatch.setattr("ocr_phases.steps.captured.LEAST_READ", prompt // 4)
    step = StaticStep(model, 1, CAPACITY, "eager")
    with refused():
        generate(model, inputs, 120, step=step)
    step.ready_for(prompt, 120)
    read: list[int] = []

    def look(module, args, given):
        masks = [mask for mask in given["attention_mask"].values() if mask is not None]
        read.extend(mask.shape[-1] for mask in masks[:1])  # the prefill has none

    with model.register_forward_pre_hook(look, with_kwargs=True):
        mine = generate(model, inputs, 120, step=step)
    assert_same(mine, generate(model, inputs, 120))
    assert len(set(read)) >= 3 and read == sorted(read)
    assert all(length > prompt + number for number, length in enumerate(read))


@pytest.mark.skipif(
    strategies.missing_compiler("cpu") is not None,
    reason="torch.compile finds no C++ compiler here",
)
def test_compiled_steps_equal_eager_and_are_made_once(tmp_path):
    session = OCRSession.load(SMALL_DUMMY, device="cpu", dtype="float32")  # a layer of each kind
    options = {"max_new_tokens": 20, **QUICK}
    eager = session.run_inference(RECEIPT, **options)
    one_file = {
        "cpp_wrapper": True,
        "cpp.vec_isa_ok": False,
        "cpp_cache_precompile_headers": False,
    }  # of C++
    with torch._inductor.config.patch(one_file):
        run = session.run_inference(RECEIPT, strategy="compiled", verify=True, **options)
    assert run.results == eager.results and run.cache.lengths == eager.cache.lengths
    setup = run.model.strategy_setup
    assert setup.compile_ms > 0
    assert (setup.max_cache_len, setup.capture_ms, setup.reused) == (8192, None, False)
    assert run.cache.allocated_bytes == setup.allocated_bytes == 8192 * run.cache.bytes_per_token
    assert (run.model.decode_experts, run.request.eos_check_every) == ("batched_mm", 16)
    stages, eagerly = (made.spans.groupby("phase")["stage"].unique() for made in (run, eager))
    assert set(stages["decode"]) == {"decode", "decode_step", "sampling"}
    assert set(stages["prefill"]) == set(eagerly["prefill"])

    loaded = PhaseRun.load(run.save(tmp_path / "run.json"))
    checks = {check.name: check for check in run_checks(loaded)}
    assert not with_verdict(checks.values(), "fail")
    for name in ("parity", "cache_growth", "cache_linear", "attention_mask"):
        assert checks[name].verdict == "pass"

    options |= {"infer": {"no_repeat_ngram_size": 3}}
    with torch._dynamo.config.patch(error_on_recompile=True):
        again = session.run_inference(PAGES / "slide.png", strategy="compiled", **options)
    assert again.results == session.run_inference(PAGES / "slide.png", **options).results
    assert again.model.strategy_setup == msgspec.structs.replace(setup, reused=True)


@pytest.fixture
def traced(monkeypatch):
    """torch.compile traces, but leaves the work to torch's own kernels: no minutes in a C++
    compiler.
    """
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))


def test_compiled_vision_is_made_once_a_shape_and_gives_the_same(traced, golden_checkpoint):
    session = OCRSession.from_local(golden_checkpoint(GOLDEN), device="cpu", dtype="float32")
    options = {"max_new_tokens": 2, **QUICK}
    plain = session.run_inference(RECEIPT, **options)
    told: list[str] = []
    with announcements_to(told.append):
        runs = [session.run_inference(RECEIPT, vision="compiled", **options) for _ in range(2)]
    made = [" ".join((text.split()[1], text.split(" (")[1])) for text in told]
    assert made == ["SAM 1 of 2)", "CLIP 2 of 2)"]
    took = {run.model.vision_setup.compile_ms for run in runs}
    assert len(took) == 1 and plain.model.vision_setup is None
    # The stages are timed around the compiled encoders, and the encoders are themselves again
    # afterwards.
    stages = session.interface.modules(session.model)
    for stage in ("sam", "clip"):
        assert runs[0].stage_ms(stage).tolist()
        assert "forward" not in vars(stages[stage])
    inputs = session.prepare(RECEIPT, preset="tiny").to("cpu", torch.float32)
    with session.loaded_model.vision["compiled"].installed():
        compiled = session.run_prefill(inputs).logits
    torch.testing.assert_close(compiled, session.run_prefill(inputs).logits, atol=1e-4, rtol=0)


def test_the_compilers_cache_says_how_long_it_takes(golden_session, tmp_path, monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda step, **_: step)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    told: list[str] = []
    with announcements_to(told.append):
        for _ in range(2):
            StaticStep(golden_session.model, 1, CAPACITY, "compiled").ready_for(8, 2)
    assert ["about 10 s" in text for text in told] == [False, True]


def test_what_cannot_be_compiled_is_one_sentence():
    def breaks(value):
        torch._dynamo.graph_break()
        return value + 1

    compiled = compile_apart(breaks)
    with refused(), timed_preparation("cpu"):
        compiled(torch.ones(1))


def test_many_shapes_do_not_crowd_each_other_out(traced):
    for size in range(1, 2 * torch._dynamo.config.recompile_limit):
        assert compile_apart(lambda value: value * 2)(torch.ones(size)).sum() == 2 * size


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


@given(
    rows=st.integers(1, 3),
    width=st.integers(1, 700),
    kinds=st.integers(1, 5),
    seed=st.integers(0, 99),
)
@settings(deadline=None)
def test_the_first_largest_is_argmax_also_where_values_are_equal(rows, width, kinds, seed):
    scores = torch.randint(
        kinds, (rows, width), generator=torch.Generator().manual_seed(seed)
    ).float()
    torch.testing.assert_close(first_largest(scores), scores.argmax(dim=-1, keepdim=True))


def test_relative_positions_are_those_of_the_class_and_looked_up_once_a_size(golden_session):
    modules = golden_session.model.modules()
    attention = next(module for module in modules if getattr(module, "use_rel_pos", False))
    sizes_asked = []

    def look_up(query_size, key_size, weight):
        sizes_asked.append((query_size, key_size))
        return attention.get_rel_pos(query_size, key_size, weight)

    positions = RelativePositions(look_up)
    for size in (4, 6, 4):
        for weight in (attention.rel_pos_h, attention.rel_pos_w):
            expected = attention.get_rel_pos(size, size, weight)
            torch.testing.assert_close(positions(size, size, weight), expected, rtol=0, atol=0)
    assert sizes_asked == [(4, 4), (4, 4), (6, 6), (6, 6)]


CANNOT = (
    {"strategy": "cuda_graph"},
    {"vision": "magic"},
    {"vision": "cuda_graph"},
    {"strategy": "compiled", "generate": True},
)
CANNOT += ({"strategy": "compiled", "autocast": True}, {"vision": "compiled", "autocast": True})


@pytest.mark.parametrize("options", CANNOT)
def test_what_cannot_run_is_refused_in_one_sentence(options, golden_session):
    with refused():
        golden_session.run_inference(RECEIPT, **options)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_missing_compiler_is_named(device, monkeypatch):
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    request = SimpleNamespace(strategy="compiled", vision="eager", autocast=False)
    with refused():
        strategies.check_strategy(request, NativeInterface(FAMILIES[FIRST].native), device)
