"""Spans, hooks and NVTX ranges: complete, and closed also when a phase raises."""

import nvtx
import pytest
import torch
from conftest import PAGES

from ocr_phases import Timeline
from ocr_phases.collectors.memory import PeakMemory
from ocr_phases.record import SPAN_COLUMNS

STAGES = ["sam", "clip", "projector", "vision_fusion", "language_model", "lm_head", "sampling"]


@pytest.fixture
def ranges(monkeypatch) -> list[str]:
    """The NVTX ranges open at the moment; the second item of a pair would be missing a pop."""
    stack: list[str] = []
    monkeypatch.setattr(nvtx, "push_range", lambda name: stack.append(name))
    monkeypatch.setattr(nvtx, "pop_range", lambda: stack.pop())
    return stack


def hook_count(model: torch.nn.Module) -> int:
    return sum(len(m._forward_hooks) + len(m._forward_pre_hooks) for m in model.modules())


def test_spans_nest_and_carry_phase_step_and_view(ranges):
    timeline = Timeline("cpu")
    with timeline.in_phase("decode"):
        timeline.step = 3
        with timeline.span("decode_step"), timeline.span("language_model", view="global"):
            assert ranges == ["decode", "decode_step", "language_model"]
        timeline.step = None
    names, rows = [*SPAN_COLUMNS], timeline.table().assign(repeat=2)[[*SPAN_COLUMNS]]
    assert rows[names[:5]].astype(object).where(rows.notna(), None).to_numpy().tolist() == [
        [2, "decode", "decode", "", None],
        [2, "decode", "decode_step", "", 3],
        [2, "decode", "language_model", "global", 3],
    ]
    assert rows["host_start_ms"].is_monotonic_increasing and rows["host_ms"].is_monotonic_decreasing
    assert (rows["device_ms"] == rows["host_ms"]).all() and ranges == []


@pytest.mark.parametrize("failing", [None, "sam", "language_model"])
def test_hooks_spans_and_ranges_are_closed_also_after_an_error(failing, ranges, golden_session):
    def fault(module, args, output):
        raise ZeroDivisionError

    model, timeline = golden_session.model, Timeline("cpu")
    before = hook_count(model)
    inputs = golden_session.prepare(PAGES / "slide.png", preset="tiny")
    if failing is None:
        golden_session.run_prefill(inputs, timeline)
        assert timeline.vectors == 64  # of one page of 512 pixels
    else:
        broken = golden_session.interface.modules(model)[failing]
        with broken.register_forward_hook(fault), pytest.raises(ZeroDivisionError):
            golden_session.run_prefill(inputs, timeline)
    reached = ["prefill", *STAGES[: [*STAGES, None].index(failing) + 1]]
    assert [row[2] for row in timeline.rows()] == reached
    assert hook_count(model) == before and ranges == [] and timeline.phase == ""


def test_ranges_of_generate_have_stages_in_its_prefill_and_none_in_decode(
    monkeypatch, golden_session
):
    open_ranges: list[str] = []
    paths: list[str] = []

    def push(name: str) -> None:
        open_ranges.append(name)
        paths.append("/".join(open_ranges))

    monkeypatch.setattr(nvtx, "push_range", push)
    monkeypatch.setattr(nvtx, "pop_range", lambda: open_ranges.pop())
    hooks_before = hook_count(golden_session.model)
    options = {"preset": "tiny", "generate": True, "max_new_tokens": 3, "repeats": 1, "warmup": 0}
    run = golden_session.run_inference(PAGES / "slide.png", ceilings=False, **options)
    within = [path for path in paths if path.startswith("generate")]
    stages = [f"generate/prefill/{stage}" for stage in STAGES if stage != "sampling"]
    assert within == ["generate", "generate/prefill", *stages, "generate/decode"]
    assert open_ranges == [] and hook_count(golden_session.model) == hooks_before
    assert set(run.spans["phase"]) == {"prepare", "generate"}


def test_peak_memory_sees_a_large_block():
    if PeakMemory("cpu").source is None:
        pytest.skip("this system does not let a process reset its high-water mark")
    grown = []
    for _ in range(3):  # a system that takes back idle pages meanwhile hides a part of it
        memory = PeakMemory("cpu")
        with memory.during("small"):
            pass
        with memory.during("large"):
            block = torch.ones(64 * 2**20, dtype=torch.uint8)
        grown.append(memory.peaks["large"] - memory.peaks["small"])
    assert max(grown) >= 0.9 * block.numel()
