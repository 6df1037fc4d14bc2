"""What only a GPU can show: equality with ``generate()`` there, one wait a step, events, and peak memory."""

from __future__ import annotations

import warnings
from dataclasses import replace

import pytest
import torch
from conftest import GOLDEN, PAGES, SMALL_DUMMY
from test_phases import golden_inputs

from ocr_phases import DeepSeekOCRSession, OcrPhasesError, decode_step
from ocr_phases.measure.strategies import decode_execution

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device here"),
]
PAGE = GOLDEN / "pages" / "a4_1240x1754.png"


@pytest.fixture(scope="module")
def cuda_session() -> DeepSeekOCRSession:
    return DeepSeekOCRSession.load("tiny", device="cuda", dtype="float32")


def on_cuda(inputs):
    tensors = {name: value.cuda() for name, value in vars(inputs).items() if isinstance(value, torch.Tensor)}
    return replace(inputs, **tensors)


@pytest.mark.parametrize("case", ["base", "gundam", "small", "batch"])
def test_matches_the_recorded_vendor_run_on_the_gpu(case, golden_forward):
    session = DeepSeekOCRSession.from_local(GOLDEN / "checkpoint", device="cuda", dtype="float32")
    # Convolutions use TF32 by default even for a float32 model.
    with torch.backends.cudnn.flags(allow_tf32=False):
        state = session.run_prefill(on_cuda(golden_inputs(golden_forward, case)), all_logits=True)
    torch.testing.assert_close(
        state.prefill_logits.cpu(), golden_forward[f"{case}.prefill_logits"], atol=1e-3, rtol=0
    )
    expected = golden_forward[f"{case}.greedy_tokens"]
    for _ in range(expected.shape[1] - 1):
        session.run_decode_step(state)
    assert state.ids == expected.tolist()


@pytest.mark.parametrize("preset", ["base", "gundam"])
@pytest.mark.parametrize("model", ["tiny", "dummy"])
def test_float32_tokens_equal_generate(preset, model):
    session = DeepSeekOCRSession.load(model, device="cuda", dtype="float32")
    options = {"preset": preset, "max_new_tokens": 64, "repeats": 1, "warmup": 0}
    run = session.run_inference(PAGE, **options)
    once = session.run_inference(PAGE, generate=True, **options)
    assert run.result["ids"] == once.result["ids"]


def test_a_step_waits_for_the_device_once(cuda_session):
    state = cuda_session.run_prefill(cuda_session.prepare(PAGES / "receipt.png"))
    cuda_session.run_decode_step(state)
    torch.cuda.synchronize()
    counts = {}
    for read in (True, False):
        torch.cuda.set_sync_debug_mode("warn")
        try:
            with warnings.catch_warnings(record=True) as caught, decode_execution(cuda_session.model):
                warnings.simplefilter("always")
                decode_step(cuda_session.model, state, read=read)
        finally:
            torch.cuda.set_sync_debug_mode("default")
        counts[read] = len([w for w in caught if "synchronizing" in str(w.message)])
    assert counts == {True: 1, False: 0}


def test_device_and_host_clocks_agree_on_a_synchronized_run(cuda_session):
    run = cuda_session.run_inference(PAGES / "receipt.png", max_new_tokens=32, repeats=3)
    for phase in ("prefill", "decode"):
        rows = run.spans[run.spans["stage"] == phase]
        assert rows["device_ms"].to_numpy() == pytest.approx(rows["host_ms"].to_numpy(), rel=0.1, abs=0.5)
    assert run.device["kind"] == "cuda"
    assert run.versions["driver"]
    assert run.memory["source"] == "cuda_peak_allocated"
    assert run["prefill_peak_bytes"] > run.memory["weights_bytes"]
    assert run.model["attention_kernels"] == ["flash_attention", "efficient_attention", "math"]


def test_out_of_memory_leaves_the_session_usable(cuda_session):
    pages = [PAGE] * 4
    run = cuda_session.run_inference(pages, max_new_tokens=4, repeats=1, warmup=0)
    assert len(run.results) == 4
    limit = torch.cuda.memory_allocated() / torch.cuda.get_device_properties(0).total_memory + 0.0005
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(limit)
    try:
        with pytest.raises(OcrPhasesError, match="out of memory"):
            cuda_session.run_inference(pages, preset="large", max_new_tokens=4, repeats=1, warmup=0)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    again = cuda_session.run_inference(pages, max_new_tokens=4, repeats=1, warmup=0)
    assert again.results == run.results


def test_dummy_is_made_on_the_device():
    session = DeepSeekOCRSession.load(SMALL_DUMMY, device="cuda")
    assert {parameter.device.type for parameter in session.model.parameters()} == {"cuda"}
    assert {parameter.dtype for parameter in session.model.parameters()} == {torch.bfloat16}
