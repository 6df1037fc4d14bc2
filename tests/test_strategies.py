"""Other ways to run a step, a prefill and the encoders, without a GPU: equal to the eager ones, or
refused.

That a static step gives the tokens of ``generate()`` is held with the phases in ``test_phases.py``.
"""

import gc
import math
import sys
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import Mock, call

import msgspec
import pytest
import torch
from conftest import GOLDEN, PAGES, SMALL_DUMMY
from golden_cases import RECORDINGS, Driven, assert_same, recorded_inputs, static_step
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused
from torch import Tensor, nn
from transformers import DynamicCache

from ocr_phases import OCRSession, PhaseRun, decode, prefill
from ocr_phases.analyse.checks import run_checks, with_verdict
from ocr_phases.collectors.energy import POWERCAP
from ocr_phases.families import FAMILIES
from ocr_phases.inputs.packing import DeviceInputs
from ocr_phases.models.caches import device_lengths
from ocr_phases.models.devices import device_of
from ocr_phases.models.wiring import NativeInterface
from ocr_phases.settings import SamplingSettings
from ocr_phases.steps import graphs, preparing, strategies
from ocr_phases.steps.capacity import CAPACITY
from ocr_phases.steps.captured import RelativePositions, StaticStep
from ocr_phases.steps.compiled import (
    compile_apart,
    first_largest,
    prefill_methods,
    sam_attention,
)
from ocr_phases.steps.forwards import methods_of_kinds
from ocr_phases.steps.phases import generate, redecode
from ocr_phases.steps.preparing import EarlierStarts, announcements_to, timed_preparation
from ocr_phases.steps.sampling import Sampler

pytestmark = pytest.mark.usefixtures("one_thread", "pixels_seen_once")
FAMILY = "deepseek-ocr"
RECEIPT = PAGES / "receipt.png"
SLIDE = PAGES / "slide.png"
QUICK = {
    "preset": "tiny",
    "repeats": 1,
    "warmup": 0,
    "ceilings": False,
    "token_probabilities": False,
}


class SmallPage(NamedTuple):
    """A model, the inputs of one small page, and a static step for them."""

    model: nn.Module
    inputs: DeviceInputs
    step: StaticStep

    @property
    def prompt_len(self) -> int:
        """How many tokens the prompt has."""
        return self.inputs.input_ids.shape[1]


@pytest.fixture
def small_page(golden_session: OCRSession) -> SmallPage:
    """The recorded model with the inputs of its smallest case."""
    inputs = recorded_inputs(FAMILY, "small")
    return SmallPage(golden_session.model, inputs, static_step(golden_session.model, inputs, 40))


# -- static steps ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def batch_step(golden_session: OCRSession) -> StaticStep:
    """A static step for the inputs of a recorded batch."""
    return static_step(golden_session.model, recorded_inputs(FAMILY, "batch"), 16)


SAMPLING_OPTIONS = (
    {},
    {"no_repeat_ngram_size": 2},
    {"temperature": 1.5},
    {"top_p": 0.8, "do_sample": True},
)


@settings(deadline=None, max_examples=6)
@given(
    tokens=st.integers(1, 16),
    check_every=st.integers(1, 9),
    end=st.integers(0, 15),
    first_token=st.sampled_from(["prefill", "redecode"]),
    sampling=st.sampled_from(SAMPLING_OPTIONS).map(SamplingSettings.from_infer),
    seed=st.integers(0, 3),
)
def test_a_static_step_makes_the_tokens_of_eager_steps(
    tokens: int,
    check_every: int,
    end: int,
    first_token: str,
    sampling: SamplingSettings,
    seed: int,
    golden_session: OCRSession,
    batch_step: StaticStep,
) -> None:
    inputs = recorded_inputs(FAMILY, "batch")
    reads: list[object] = []

    def generate_tokens(count: int, **options: Any) -> Any:
        sampler = Sampler(sampling, seed)
        return generate(golden_session.model, inputs, count, sampler=sampler, **options)

    # One of the tokens that are made without an end stands for the end token.
    end_token = generate_tokens(16).ids[0][end]
    options = {"first_token": first_token, "eos_ids": [end_token], "pad_id": 2}
    eager = generate_tokens(tokens, **options)
    static = generate_tokens(
        tokens, step=batch_step, eos_check_every=check_every, on_tokens=reads.append, **options
    )

    assert static.ids == eager.ids
    steps = len(static.lengths) - 1
    reads_of_the_prefill = 1 if first_token == "prefill" else 0
    assert len(reads) == math.ceil(steps / check_every) + reads_of_the_prefill


def test_a_static_step_without_its_own_prefill_is_refused(small_page: SmallPage) -> None:
    state = prefill(small_page.model, small_page.inputs)

    with refused():
        decode(small_page.model, state, 4, step=small_page.step)


def test_more_tokens_than_a_static_cache_has_room_for_are_refused(small_page: SmallPage) -> None:
    step = StaticStep(small_page.model, 1, small_page.prompt_len + 3, "eager")
    step.ready_for(small_page.prompt_len, 3)
    state = prefill(small_page.model, small_page.inputs, step=step)

    with refused():
        decode(small_page.model, state, 5, step=step)


def test_layers_of_a_static_cache_that_differ_in_length_are_refused(small_page: SmallPage) -> None:
    state = prefill(small_page.model, small_page.inputs, cache=small_page.step.fresh_cache())
    small_page.step.cache.layers[-1].cumulative_length.sub_(1)

    with refused():
        decode(small_page.model, state, 4, step=small_page.step)


def test_steps_are_counted_once_for_all_layers(small_page: SmallPage) -> None:
    state = prefill(small_page.model, small_page.inputs, step=small_page.step)
    redecode(state)

    decode(small_page.model, state, 4, step=small_page.step)

    assert device_lengths(small_page.step.cache) == [small_page.prompt_len + 3]


def test_every_length_that_is_read_gives_the_same_tokens(
    small_page: SmallPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ocr_phases.steps.captured.LEAST_READ", small_page.prompt_len // 4)
    step = StaticStep(small_page.model, 1, CAPACITY, "eager")
    step.ready_for(small_page.prompt_len, 120)
    lengths_read: list[int] = []

    def note_length(_module: nn.Module, _args: object, keywords: dict[str, Any]) -> None:
        masks = [mask for mask in keywords["attention_mask"].values() if mask is not None]
        if masks:  # the prefill has none
            lengths_read.append(masks[0].shape[-1])

    with small_page.model.register_forward_pre_hook(note_length, with_kwargs=True):
        static = generate(small_page.model, small_page.inputs, 120, step=step)

    assert_same(static, generate(small_page.model, small_page.inputs, 120))
    assert len(set(lengths_read)) >= 3
    assert lengths_read == sorted(lengths_read)
    for number, length in enumerate(lengths_read):
        assert length > small_page.prompt_len + number


def test_a_static_step_that_was_made_for_no_length_is_refused(small_page: SmallPage) -> None:
    step = StaticStep(small_page.model, 1, CAPACITY, "eager")

    with refused():
        generate(small_page.model, small_page.inputs, 120, step=step)


# -- captured prefills -----------------------------------------------------------------------------


@pytest.mark.parametrize("was_enabled", [True, False])
def test_the_garbage_collector_does_not_run_while_a_graph_is_captured(was_enabled: bool) -> None:
    class Graph:
        pass

    garbage = Graph()
    garbage.itself = garbage  # type: ignore[attr-defined]
    alive = weakref.ref(garbage)
    thresholds = gc.get_threshold()
    if not was_enabled:
        gc.disable()
    try:
        with graphs.no_collection():
            gc.set_threshold(1, 1, 1)
            del garbage
            made = [[] for _ in range(1000)]
            assert len(made) == 1000
            assert alive() is not None
        assert gc.isenabled() == was_enabled
    finally:
        gc.set_threshold(*thresholds)
        gc.enable()
    gc.collect()
    assert alive() is None


@pytest.fixture
def captures_run_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of a graph the work runs again, on the same tensors as a replay."""
    monkeypatch.setattr(graphs, "capture", lambda run: run)
    monkeypatch.setattr(graphs, "note_host_syncs", lambda _waits: nullcontext())


def step_with_captured_prefill(model: nn.Module, inputs: DeviceInputs) -> StaticStep:
    """A static step of six tokens that captures its prefill."""
    step = static_step(model, inputs, 6)
    step.prefill_execution = step.prefill.installed
    return step


@pytest.mark.usefixtures("captures_run_again")
@pytest.mark.parametrize("case", ["small", "batch"])
def test_a_captured_prefill_is_made_once_and_gives_the_same(
    case: str, golden_session: OCRSession
) -> None:
    model = golden_session.model
    inputs = recorded_inputs(FAMILY, case)
    step = step_with_captured_prefill(model, inputs)
    eager = generate(model, inputs, 6)

    first = generate(model, inputs, 6, step=step)
    ms_of_capture = step.prefill.took_ms()
    second = generate(model, inputs, 6, step=step)

    assert_same(first, eager)
    assert_same(second, eager)
    assert ms_of_capture > 0
    assert step.prefill.took_ms() == ms_of_capture
    assert "forward" not in vars(golden_session.interface.modules(model)["language_model"])


@pytest.mark.usefixtures("captures_run_again")
def test_a_captured_prefill_uses_no_cache_but_its_steps(golden_session: OCRSession) -> None:
    model = golden_session.model
    inputs = recorded_inputs(FAMILY, "small")
    step = step_with_captured_prefill(model, inputs)

    state = prefill(model, inputs, step=step, cache=DynamicCache())

    assert state.cache is step.cache


@pytest.mark.parametrize(
    ("name", "case"),
    [("deepseek-ocr", "small"), ("deepseek-ocr-2", "page768"), ("unlimited-ocr", "long")],
)
def test_a_prompt_needs_no_mask_while_a_graph_is_captured(
    name: str,
    case: str,
    driven: Driven,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    session, inputs = driven(name, case)
    step = static_step(session.model, inputs, 2)
    first_layer = session.interface.modules(session.model)["language_model"].layers[0]
    masks: list[Tensor | None] = []

    def note_mask(_module: nn.Module, _args: object, keywords: dict[str, Any]) -> None:
        masks.append(keywords["attention_mask"])

    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with first_layer.register_forward_pre_hook(note_mask, with_kwargs=True):
        prefill(session.model, inputs, step=step)

    assert masks == [None]


def note_a_wait(waits: list[str]) -> AbstractContextManager[None]:
    """In place of `note_host_syncs`: the host waited once."""
    waits.append("a wait")
    return nullcontext()


LONG_PROMPT = "<image>\n<|grounding|>A much longer prompt than the other row has."


@pytest.mark.parametrize(
    ("rows", "prompt", "attempts"),
    [
        pytest.param(2, ["free", LONG_PROMPT], [], id="padded rows"),
        pytest.param(1, "markdown", [None], id="a forward that waits for the host"),
    ],
)
def test_a_prefill_that_cannot_be_captured_runs_eagerly(
    rows: int,
    prompt: str | list[str],
    attempts: list[None],
    golden_session: OCRSession,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(graphs, "capture", lambda _run: pytest.fail("captured"))
    monkeypatch.setattr(graphs, "note_host_syncs", note_a_wait)
    packed = golden_session.prepare([RECEIPT] * rows, preset="tiny", prompt=prompt)
    inputs = packed.to("cpu", torch.float32)
    step = step_with_captured_prefill(golden_session.model, inputs)

    ids = generate(golden_session.model, inputs, 6, step=step).ids

    assert ids == generate(golden_session.model, inputs, 6).ids
    assert [took for _, took in step.prefill.made.values()] == attempts


@pytest.mark.parametrize("experts", ["grouped_mm", "batched_mm", "eager"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_experts_with_short_numbers_give_the_same(
    dtype: torch.dtype, experts: str, own_session: OCRSession
) -> None:
    model = own_session.model.to(dtype)
    model.set_experts_implementation(experts)
    language_model = own_session.interface.modules(model)["language_model"]
    layer = next(module for module in language_model.modules() if hasattr(module, "gate_up_proj"))
    chosen = torch.stack([torch.randperm(layer.num_experts)[:2] for _ in range(40)])
    weights = torch.rand(40, 2, dtype=dtype)
    states = torch.randn(40, layer.hidden_dim, dtype=dtype)

    with torch.no_grad():
        expected = layer(states, chosen, weights)
        with methods_of_kinds(prefill_methods(language_model)):
            found = layer(states, chosen, weights)

    torch.testing.assert_close(found, expected, atol=0, rtol=0)


# -- compiled steps --------------------------------------------------------------------------------


class CompiledMeasurement(NamedTuple):
    """A measurement with compiled steps, beside the eager one of the same session."""

    session: OCRSession
    eager: PhaseRun
    compiled: PhaseRun


@pytest.fixture(scope="module")
def compiled_measurement() -> CompiledMeasurement:
    """Of a small model that has a layer of each kind."""
    if strategies.missing_compiler("cpu") is not None:
        pytest.skip("torch.compile finds no C++ compiler here")
    session = OCRSession.load(SMALL_DUMMY, device="cpu", dtype="float32")
    eager = session.run_inference(RECEIPT, max_new_tokens=20, **QUICK)
    one_file_of_cpp = {
        "cpp_wrapper": True,
        "cpp.vec_isa_ok": False,
        "cpp_cache_precompile_headers": False,
    }
    with torch._inductor.config.patch(one_file_of_cpp):
        compiled = session.run_inference(
            RECEIPT, strategy="compiled", verify=True, max_new_tokens=20, **QUICK
        )
    return CompiledMeasurement(session, eager, compiled)


def test_compiled_steps_equal_eager_ones(compiled_measurement: CompiledMeasurement) -> None:
    eager = compiled_measurement.eager
    compiled = compiled_measurement.compiled

    assert compiled.results == eager.results
    assert compiled.cache.lengths == eager.cache.lengths
    stages = compiled.spans.groupby("phase")["stage"].unique()
    eager_stages = eager.spans.groupby("phase")["stage"].unique()
    assert set(stages["decode"]) == {"decode", "decode_step", "sampling"}
    assert set(stages["prefill"]) == set(eager_stages["prefill"])


def test_a_record_says_how_its_compiled_steps_were_made(
    compiled_measurement: CompiledMeasurement,
) -> None:
    run = compiled_measurement.compiled

    setup = run.model.strategy_setup
    assert setup.compile_ms > 0
    assert setup.max_cache_len == 8192
    assert setup.capture_ms is None
    assert setup.reused is False
    assert setup.allocated_bytes == 8192 * run.cache.bytes_per_token
    assert run.cache.allocated_bytes == setup.allocated_bytes
    assert run.model.decode_experts == "batched_mm"
    assert run.request.eos_check_every == 16


def test_the_record_of_compiled_steps_passes_its_checks(
    compiled_measurement: CompiledMeasurement, tmp_path: Path
) -> None:
    loaded = PhaseRun.load(compiled_measurement.compiled.save(tmp_path / "run.json"))

    checks = run_checks(loaded)

    assert not with_verdict(checks, "fail")
    verdicts = {check.name: check.verdict for check in checks}
    for name in ("parity", "cache_growth", "cache_linear", "attention_mask"):
        assert verdicts[name] == "pass"


def test_compiled_steps_are_made_once_for_all_pages_and_samplings(
    compiled_measurement: CompiledMeasurement,
) -> None:
    session = compiled_measurement.session
    options = {"max_new_tokens": 20, "infer": {"no_repeat_ngram_size": 3}, **QUICK}
    eager = session.run_inference(SLIDE, **options)

    with torch._dynamo.config.patch(error_on_recompile=True):
        again = session.run_inference(SLIDE, strategy="compiled", **options)

    assert again.results == eager.results
    first_setup = compiled_measurement.compiled.model.strategy_setup
    assert again.model.strategy_setup == msgspec.structs.replace(first_setup, reused=True)


def test_a_start_says_how_long_the_last_one_compiled(
    golden_session: OCRSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "compile", lambda step, **_: step)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    announcements: list[str] = []

    with announcements_to(announcements.append):
        for _start in range(3):
            StaticStep(golden_session.model, 1, CAPACITY, "compiled").ready_for(8, 2)

    first, second, third = announcements
    assert "took" not in first
    assert "the first time" in second
    assert "the last time" in third


def test_a_step_is_compiled_once_and_only_where_that_is_asked_for(
    golden_session: OCRSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "compile", lambda step, **_: step)
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))

    compiled = StaticStep(golden_session.model, 1, CAPACITY, "compiled").ready_for(8, 2)
    compile_ms = compiled.setup.compile_ms
    compiled.ready_for(8, 2)
    compiled.ready_for(8, CAPACITY - 8)
    eager = StaticStep(golden_session.model, 1, CAPACITY, "eager").ready_for(8, 2)

    assert compile_ms > 0
    assert compiled.setup.compile_ms == compile_ms
    assert eager.setup.compile_ms is None


def test_a_cut_off_note_of_earlier_starts_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    first = EarlierStarts("a step")
    first.add(62_000)
    (note,) = tmp_path.glob("*.ms")

    note.write_text("")

    assert EarlierStarts("a step").text() == ""


def test_what_cannot_be_compiled_is_one_sentence() -> None:
    def break_the_graph(value: Tensor) -> Tensor:
        torch._dynamo.graph_break()
        return value + 1

    compiled = compile_apart(break_the_graph)

    with refused(), timed_preparation("cpu"):
        compiled(torch.ones(1))


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        pytest.param(None, nullcontext(), id="measured"),
        pytest.param(OSError("no counter"), nullcontext(), id="no counter"),
        pytest.param(ValueError("wrong"), pytest.raises(ValueError), id="a fault"),
    ],
)
def test_idle_watts_are_measured_while_the_compiler_is_imported(
    error: Exception | None,
    outcome: AbstractContextManager[Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gpu = torch.device("cuda")
    measure = Mock(side_effect=error)
    monkeypatch.setattr(preparing, "device_of", lambda _device: device_of("cpu"))
    monkeypatch.setattr(preparing, "counter_and_idle_watts", measure)

    preparing.measure_idle_gpu(torch.device("cpu"))
    assert measure.mock_calls == []
    with outcome:
        preparing.measure_idle_gpu(gpu)

    assert measure.mock_calls == [call(gpu, POWERCAP)]
    assert "torch._inductor.compile_fx" in sys.modules


# -- compiled encoders -----------------------------------------------------------------------------


@pytest.fixture
def traced(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.compile traces, but leaves the work to torch's own kernels: no minutes in a C++
    compiler.
    """
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))


@pytest.fixture
def own_session(golden_checkpoint: Callable[[Path], Path]) -> OCRSession:
    """The recorded model, loaded for one test, whose encoders nothing else has compiled."""
    return OCRSession.from_local(golden_checkpoint(GOLDEN), device="cpu", dtype="float32")


@pytest.mark.usefixtures("traced")
def test_compiled_vision_is_made_once_a_shape_and_gives_the_same(own_session: OCRSession) -> None:
    options = {"max_new_tokens": 2, **QUICK}
    plain = own_session.run_inference(RECEIPT, **options)
    announcements: list[str] = []

    with announcements_to(announcements.append):
        first = own_session.run_inference(RECEIPT, vision="compiled", **options)
        second = own_session.run_inference(RECEIPT, vision="compiled", **options)

    of_sam, of_clip = announcements
    assert of_sam.split()[1] == "SAM"
    assert "(1 of 2)" in of_sam
    assert of_clip.split()[1] == "CLIP"
    assert "(2 of 2)" in of_clip
    assert plain.model.vision_setup is None
    assert second.model.vision_setup.compile_ms == first.model.vision_setup.compile_ms
    # The stages are timed around the compiled encoders, and the encoders are themselves again
    # afterwards.
    modules = own_session.interface.modules(own_session.model)
    for stage in ("sam", "clip"):
        assert first.stage_ms(stage).tolist()
        assert "forward" not in vars(modules[stage])
    inputs = own_session.prepare(RECEIPT, preset="tiny").to("cpu", torch.float32)
    with own_session.loaded_model.vision["compiled"].installed():
        compiled_logits = own_session.run_prefill(inputs).logits
    plain_logits = own_session.run_prefill(inputs).logits
    torch.testing.assert_close(compiled_logits, plain_logits, atol=1e-4, rtol=0)


def double(value: Tensor) -> Tensor:
    """What is compiled again for each size."""
    return value * 2


@pytest.mark.usefixtures("traced")
def test_many_shapes_do_not_crowd_each_other_out() -> None:
    for size in range(1, 2 * torch._dynamo.config.recompile_limit):
        compiled = compile_apart(double)
        assert compiled(torch.ones(size)).sum() == 2 * size


@pytest.mark.parametrize("family", RECORDINGS)
def test_the_position_bias_as_channels_gives_the_same(
    family: str, request: pytest.FixtureRequest
) -> None:
    model = request.getfixturevalue(RECORDINGS[family].session).model
    layers = [module for module in model.modules() if hasattr(module, "rel_pos_h")]
    assert len(layers) > 1

    for layer in layers:
        places = torch.randn(2, 6, 10, layer.qkv.in_features)
        with torch.no_grad():
            output, _ = sam_attention(layer, places)
            expected, _ = layer(places)
        torch.testing.assert_close(output, expected, atol=1e-5, rtol=1e-4)


@given(
    rows=st.integers(1, 3),
    width=st.integers(1, 700),
    kinds=st.integers(1, 5),
    seed=st.integers(0, 99),
)
@settings(deadline=None)
def test_the_first_largest_is_argmax_also_where_values_are_equal(
    rows: int, width: int, kinds: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randint(kinds, (rows, width), generator=generator).float()

    torch.testing.assert_close(first_largest(scores), scores.argmax(dim=-1, keepdim=True))


def test_relative_positions_are_those_of_the_class_and_looked_up_once_a_size(
    golden_session: OCRSession,
) -> None:
    modules = golden_session.model.modules()
    attention = next(module for module in modules if getattr(module, "use_rel_pos", False))
    sizes: list[tuple[int, int]] = []

    def look_up(query_size: int, key_size: int, weight: Tensor) -> Tensor:
        sizes.append((query_size, key_size))
        return attention.get_rel_pos(query_size, key_size, weight)

    positions = RelativePositions(look_up)

    for size in (4, 6, 4):
        for weight in (attention.rel_pos_h, attention.rel_pos_w):
            expected = attention.get_rel_pos(size, size, weight)
            torch.testing.assert_close(positions(size, size, weight), expected, rtol=0, atol=0)
    assert sizes == [(4, 4), (4, 4), (6, 6), (6, 6)]


# -- refusals --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"strategy": "cuda_graph"}, id="a graph on a CPU"),
        pytest.param({"vision": "magic"}, id="no such way to run the encoders"),
        pytest.param({"vision": "cuda_graph"}, id="a graph of the encoders on a CPU"),
        pytest.param({"strategy": "compiled", "generate": True}, id="compiled steps in generate"),
        pytest.param({"strategy": "compiled", "autocast": True}, id="compiled steps in autocast"),
        pytest.param({"vision": "compiled", "autocast": True}, id="compiled vision in autocast"),
    ],
)
def test_what_cannot_run_is_refused_in_one_sentence(
    options: dict[str, Any], golden_session: OCRSession
) -> None:
    with refused():
        golden_session.run_inference(RECEIPT, **options)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_missing_compiler_is_named(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    request = SimpleNamespace(strategy="compiled", vision="eager", autocast=False)

    with refused():
        strategies.check_strategy(request, NativeInterface(FAMILIES[FAMILY].native), device)
