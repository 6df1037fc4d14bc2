"""What only a GPU can show: equality with ``generate()`` there, one wait a step, events, and peak
memory.
"""

import gc
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import msgspec
import pytest
import torch
from conftest import GOLDEN, PAGES
from golden_cases import RECORDINGS

from ocr_phases import OcrPhasesError, OCRSession, decode, prefill
from ocr_phases.analyse.checks import run_checks, with_verdict
from ocr_phases.families import FAMILIES
from ocr_phases.inputs.packing import DeviceInputs
from ocr_phases.steps import token_step
from ocr_phases.steps.capacity import CAPACITY
from ocr_phases.steps.captured import StaticStep
from ocr_phases.steps.compiled import norm_methods
from ocr_phases.steps.forwards import methods_of_kinds
from ocr_phases.steps.graphs import capture
from ocr_phases.steps.phases import generate
from ocr_phases.steps.token_step import starts_early

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device here"),
]
needs_grouped_product = pytest.mark.skipif(
    torch.cuda.is_available() and torch.cuda.get_device_capability()[0] < 9,
    reason="experts wait for the device on a GPU before Hopper",
)
PAGE = GOLDEN / "pages" / "a4_1240x1754.png"
RECEIPT = PAGES / "receipt.png"
RECORDED = RECORDINGS["deepseek-ocr"]


@pytest.fixture(scope="module")
def cuda_session() -> OCRSession:
    return OCRSession.load("tiny", device="cuda", dtype="float32")


@pytest.fixture(scope="module")
def golden_cuda(golden_checkpoint: Callable[[Path], Path]) -> OCRSession:
    return OCRSession.from_local(golden_checkpoint(GOLDEN), device="cuda", dtype="float32")


def on_cuda(inputs: DeviceInputs) -> DeviceInputs:
    """The same inputs on the GPU."""
    tensors = {
        name: value.cuda()
        for name, value in vars(inputs).items()
        if isinstance(value, torch.Tensor)
    }
    return replace(inputs, **tensors)


@pytest.mark.parametrize("case", RECORDED.cases)
def test_matches_the_recorded_vendor_run_on_the_gpu(case: str, golden_cuda: OCRSession) -> None:
    recorded_logits = RECORDED.forward[f"{case}.prefill_logits"]
    recorded_tokens = RECORDED.forward[f"{case}.greedy_tokens"]

    # Convolutions use TF32 by default even for a float32 model.
    with torch.backends.cudnn.flags(allow_tf32=False):
        state = golden_cuda.run_prefill(on_cuda(RECORDED.inputs(case)), all_logits=True)
    torch.testing.assert_close(state.prefill_logits.cpu(), recorded_logits, atol=1e-3, rtol=0)

    for _ in range(recorded_tokens.shape[1] - 1):
        golden_cuda.run_decode_step(state)
    assert state.ids == recorded_tokens.tolist()


@pytest.mark.parametrize("preset", ["base", "gundam"])
@pytest.mark.parametrize("model", ["tiny", "dummy"])
def test_float32_tokens_equal_generate(preset: str, model: str) -> None:
    session = OCRSession.load(model, device="cuda", dtype="float32")
    options: dict[str, Any] = {
        "preset": preset,
        "max_new_tokens": 64,
        "repeats": 1,
        "warmup": 0,
    }
    run = session.run_inference(PAGE, **options)
    one_shot = session.run_inference(PAGE, generate=True, **options)
    assert run.result.ids == one_shot.result.ids


def test_device_and_host_clocks_agree_on_a_synchronized_run(cuda_session: OCRSession) -> None:
    run = cuda_session.run_inference(RECEIPT, max_new_tokens=32, repeats=3)

    for phase in ("prefill", "decode"):
        rows = run.spans[run.spans["stage"] == phase]
        assert rows["device_ms"].to_numpy() == pytest.approx(
            rows["host_ms"].to_numpy(), rel=0.1, abs=0.5
        )
    assert run.device.kind == "cuda"
    assert run.versions["driver"]
    assert run.memory.source == "cuda_peak_allocated"
    assert run["prefill_peak_bytes"] > run.memory.weights_bytes
    assert run.model.attention_kernels == ["flash_attention", "efficient_attention", "math"]


def test_out_of_memory_leaves_the_session_usable(cuda_session: OCRSession) -> None:
    pages = [PAGE] * 4
    options: dict[str, Any] = {"max_new_tokens": 4, "repeats": 1, "warmup": 0}
    run = cuda_session.run_inference(pages, **options)
    assert len(run.results) == 4

    total_bytes = torch.cuda.get_device_properties(0).total_memory
    used_share = torch.cuda.memory_allocated() / total_bytes
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(used_share + 0.0005)
    try:
        with pytest.raises(OcrPhasesError, match="out of memory"):
            cuda_session.run_inference(pages, preset="large", **options)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)

    again = cuda_session.run_inference(pages, **options)
    assert again.results == run.results


@pytest.mark.parametrize("strategy", ["cuda_graph", "compiled"])
def test_strategies_equal_eager_and_are_reused(strategy: str, cuda_session: OCRSession) -> None:
    options: dict[str, Any] = {"max_new_tokens": 60, "repeats": 2, "warmup": 1}
    eager = cuda_session.run_inference(RECEIPT, **options)

    run = cuda_session.run_inference(RECEIPT, strategy=strategy, verify=True, **options)

    assert run.results == eager.results
    assert not with_verdict(run_checks(run), "fail")
    setup = run.model.strategy_setup
    assert setup.capture_ms > 0
    assert setup.prefill_capture_ms is None  # experts in float32 wait for the device
    assert (setup.compile_ms is None) == (strategy == "cuda_graph")
    assert not setup.reused
    assert set(run.spans.loc[run.spans["phase"] == "decode", "stage"]) == {
        "decode",
        "decode_step",
        "sampling",
    }

    again = cuda_session.run_inference(PAGES / "slide.png", strategy=strategy, **options)
    assert again.model.strategy_setup == msgspec.structs.replace(setup, reused=True)
    assert again.results == cuda_session.run_inference(PAGES / "slide.png", **options).results


@needs_grouped_product
@pytest.mark.parametrize("preset", ["base", "gundam"])
def test_a_captured_prefill_equals_one_that_is_not(preset: str) -> None:
    session = OCRSession.load("tiny", device="cuda", dtype="bfloat16")
    run = session.run_inference(
        PAGE, preset=preset, max_new_tokens=40, strategy="cuda_graph", repeats=2, warmup=0
    )
    assert run.model.strategy_setup.prefill_capture_ms > 0
    assert not with_verdict(run_checks(run), "fail")

    inputs = session.prepare(PAGE, preset=preset)
    (step,) = session.loaded_model.steps.values()
    language_model = session.interface.modules(session.model)["language_model"]
    with methods_of_kinds(norm_methods(language_model)):
        plain = session.run_prefill(inputs, cache=step.fresh_cache())
    keys_before = [layer.keys.clone() for layer in step.cache.layers]
    captured = session.run_prefill(inputs, step=step)
    torch.testing.assert_close(captured.logits, plain.logits, atol=0, rtol=0)
    for before, layer in zip(keys_before, step.cache.layers, strict=True):
        torch.testing.assert_close(layer.keys, before, atol=0, rtol=0)


@needs_grouped_product
@pytest.mark.parametrize("strategy", ["cuda_graph", "compiled"])
@pytest.mark.parametrize("family", FAMILIES)
def test_the_prefill_of_every_family_is_captured(family: str, strategy: str) -> None:
    encoder = "encoder_layers" if family == "deepseek-ocr-2" else "clip_layers"
    sizes = f"layers=2,hidden=128,heads=2,experts=8,vocab=2304,sam_layers=1,{encoder}=1"
    session = OCRSession.load(f"dummy:{family},{sizes}", device="cuda", dtype="bfloat16")
    run = session.run_inference(
        PAGE, max_new_tokens=8, strategy=strategy, repeats=1, warmup=0, ceilings=False
    )
    assert run.model.strategy_setup.prefill_capture_ms > 0
    (step,) = session.loaded_model.steps.values()
    assert all(forward.took_ms is not None for forward in step.prefill.made.values())


@pytest.mark.parametrize("infer", [{"temperature": 1.4}, {"no_repeat_ngram_size": 2}])
@pytest.mark.parametrize("first_token", ["prefill", "redecode"])
def test_a_graph_samples_as_eager_does(
    infer: dict[str, Any], first_token: str, cuda_session: OCRSession
) -> None:
    options: dict[str, Any] = {
        "max_new_tokens": 40,
        "repeats": 1,
        "warmup": 0,
        "infer": infer,
        "first_token": first_token,
        "seed": 3,
    }
    eager = cuda_session.run_inference(RECEIPT, **options)
    run = cuda_session.run_inference(RECEIPT, strategy="cuda_graph", **options)
    assert run.results == eager.results


@pytest.fixture(scope="module")
def recorded_on_cuda(golden_checkpoint: Callable[[Path], Path]) -> Callable[[str], OCRSession]:
    """A function that gives the model of a recorded family, in float32 on the GPU."""

    @cache
    def session(family: str) -> OCRSession:
        folder = golden_checkpoint(RECORDINGS[family].folder)
        return OCRSession.from_local(folder, device="cuda", dtype="float32")

    return session


GOLDEN_CASES = [
    *(("deepseek-ocr", case) for case in ("base", "gundam", "batch")),
    ("deepseek-ocr-2", "page768"),
    *(("unlimited-ocr", case) for case in ("long", "multi", "gundam")),
]


@pytest.mark.parametrize(("family", "case"), GOLDEN_CASES)
@pytest.mark.parametrize("strategy", ["cuda_graph", "compiled"])
def test_golden_tokens_by_every_strategy(
    strategy: str, family: str, case: str, recorded_on_cuda: Callable[[str], OCRSession]
) -> None:
    model = recorded_on_cuda(family).model
    inputs = on_cuda(RECORDINGS[family].inputs(case))
    rows, length = inputs.input_ids.shape
    expected = RECORDINGS[family].forward[f"{case}.greedy_tokens"]
    count = expected.shape[1]
    step = StaticStep(model, rows, CAPACITY, strategy).ready_for(length, count)

    has_kernels = strategy == "compiled" and rows == 1 and starts_early(step.device)
    assert (step.token_step is not None) == has_kernels
    for every in (1, 8):
        state = generate(model, inputs, count, step=step, eos_check_every=every)
        assert state.ids == expected.tolist()


def test_a_capture_outlives_graphs_that_nobody_needs() -> None:
    number = torch.ones(1, device="cuda")

    def make_garbage() -> None:
        holder: list[Any] = [capture(lambda: number + 1)]
        holder.append(holder)  # a cycle, so that only the garbage collector ends the graph

    def run() -> torch.Tensor:
        make_collector_run()
        return number + 2

    def make_collector_run() -> None:
        assert len([[] for _ in range(1000)]) == 1000

    make_garbage()
    thresholds = gc.get_threshold()
    gc.set_threshold(1, 1, 1)
    try:
        replay = capture(run)
    finally:
        gc.set_threshold(*thresholds)

    assert replay().item() == 3


def test_equal_runs_of_the_steps_own_kernels_give_equal_logits(
    recorded_on_cuda: Callable[[str], OCRSession],
) -> None:
    # Kernels start early, so a wait that is missing would show in some of many runs.
    model = recorded_on_cuda("deepseek-ocr").model
    inputs = on_cuda(RECORDED.inputs("base"))
    step = StaticStep(model, 1, CAPACITY, "compiled").ready_for(inputs.input_ids.shape[1], 64)

    logits = set()
    for _ in range(50):
        state = generate(model, inputs, 64, step=step, eos_check_every=64)
        logits.add(tuple(state.logits[0].tolist()))

    assert len(logits) == 1


def test_the_steps_own_kernels_read_many_entries_block_by_block(
    recorded_on_cuda: Callable[[str], OCRSession],
) -> None:
    model = recorded_on_cuda("deepseek-ocr").model
    inputs = on_cuda(RECORDED.inputs("base"))
    expected = RECORDED.forward["base.greedy_tokens"]
    count = expected.shape[1]

    with patch.object(token_step, "MOST_PARTS", 2):
        step = StaticStep(model, 1, CAPACITY, "compiled")
        step.ready_for(inputs.input_ids.shape[1], count)
    state = generate(model, inputs, count, step=step, eos_check_every=8)

    assert state.ids == expected.tolist()


def test_a_nan_in_the_steps_own_kernels_ends_no_process(
    recorded_on_cuda: Callable[[str], OCRSession],
) -> None:
    # An expert behind the last one would be read at an address of nobody.
    model = recorded_on_cuda("deepseek-ocr").model
    inputs = on_cuda(RECORDED.inputs("base"))
    step = StaticStep(model, 1, CAPACITY, "compiled").ready_for(inputs.input_ids.shape[1], 3)
    state = prefill(model, inputs, step=step)
    for layer in step.cache.layers:
        layer.values.fill_(torch.nan)

    decode(model, state, 3, step=step)

    assert step.sums.isnan().all()


def test_compiled_vision_gives_the_same(cuda_session: OCRSession) -> None:
    options: dict[str, Any] = {
        "preset": "gundam",
        "max_new_tokens": 24,
        "repeats": 1,
        "warmup": 0,
    }
    eager = cuda_session.run_inference(PAGE, **options)
    run = cuda_session.run_inference(PAGE, vision="compiled", **options)
    assert run.model.vision_setup.compile_ms > 0
    assert run.results == eager.results


@pytest.mark.parametrize("preset", ["base", "gundam"])
def test_captured_vision_gives_the_same_tokens_as_the_class(
    preset: str, cuda_session: OCRSession
) -> None:
    options: dict[str, Any] = {
        "preset": preset,
        "max_new_tokens": 24,
        "repeats": 1,
        "warmup": 0,
    }
    eager = cuda_session.run_inference(PAGE, **options)
    run = cuda_session.run_inference(PAGE, vision="cuda_graph", **options)
    assert run.model.vision_setup.capture_ms > 0
    assert run.results == eager.results
    for captured in cuda_session.loaded_model.vision["cuda_graph"].made.values():
        assert captured.took_ms is not None, "one of them ran eagerly"


@pytest.mark.parametrize("infer", [None, {"no_repeat_ngram_size": 2}, {"temperature": 1.4}])
@pytest.mark.parametrize("pages", [1, 3])
def test_a_run_waits_for_the_end_token_alone(
    infer: dict[str, Any] | None, pages: int, cuda_session: OCRSession
) -> None:
    names = ["receipt.png", "slide.png", "invoice.png"][:pages]
    for every, strategy in ((1, "eager"), (4, "eager"), (4, "cuda_graph")):
        run = cuda_session.run_inference(
            [PAGES / name for name in names],
            infer=infer,
            eos_check_every=every,
            strategy=strategy,
            max_new_tokens=300,
            repeats=1,
            kernels=pages == 1,
        )
        (check,) = (check for check in run.live_checks if check.name == "host_syncs")
        assert check.verdict == "pass", check
    assert torch.cuda.get_sync_debug_mode() == 0
