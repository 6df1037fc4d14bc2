"""Spans, hooks and NVTX ranges: complete, and closed also when a phase raises."""

from __future__ import annotations

from types import SimpleNamespace

import nvtx
import pytest
import torch
from conftest import PAGES

from ocr_phases import Timeline
from ocr_phases.collectors.machine import PeakMemory
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
    rows = [dict(zip(SPAN_COLUMNS, row, strict=True)) for row in timeline.rows(repeat=2)]
    assert [(r["repeat"], r["phase"], r["stage"], r["view"], r["step"]) for r in rows] == [
        (2, "decode", "decode", "", None),
        (2, "decode", "decode_step", "", 3),
        (2, "decode", "language_model", "global", 3),
    ]
    for outer, inner in zip(rows, rows[1:], strict=False):
        assert outer["host_start_ms"] <= inner["host_start_ms"]
        assert outer["host_ms"] >= inner["host_ms"]
    assert all(row["device_ms"] == row["host_ms"] for row in rows)
    # No digit beyond what a clock tells.
    assert all(row[name] == round(row[name], 6) for row in rows for name in SPAN_COLUMNS if "_ms" in name)
    assert ranges == []


def test_everything_is_closed_when_a_phase_raises(ranges):
    timeline = Timeline("cpu")
    with pytest.raises(ZeroDivisionError), timeline.in_phase("prefill"), timeline.span("outer"):
        timeline.begin("left open")
        raise ZeroDivisionError
    assert ranges == []
    assert [row[2] for row in timeline.rows()] == ["prefill", "outer", "left open"]
    assert timeline.phase == ""


@pytest.mark.parametrize("failing", [None, "sam", "clip", "projector", "language_model", "lm_head"])
def test_hooks_and_ranges_go_away_also_after_an_error(failing, ranges, tiny_session):
    def fault(module, args):
        raise ZeroDivisionError

    model, timeline = tiny_session.model, Timeline("cpu")
    before = hook_count(model)
    inputs = tiny_session.prepare(PAGES / "slide.png", preset="small")
    if failing is None:
        tiny_session.run_prefill(inputs, timeline)
        assert timeline.vectors == 100  # of one page of 640 pixels
        assert [row[2] for row in timeline.rows()] == ["prefill", *STAGES]
    else:
        broken = tiny_session.family.stages(model)[failing]
        with broken.register_forward_pre_hook(fault), pytest.raises(ZeroDivisionError):
            tiny_session.run_prefill(inputs, timeline)
        assert timeline.rows()[0][2] == "prefill"
    assert hook_count(model) == before and ranges == []


def test_peak_memory_sees_a_large_block():
    if PeakMemory("cpu").source is None:
        pytest.skip("this system does not let a process reset its high-water mark")
    grown = []
    for _ in range(3):  # a system that takes back idle pages meanwhile hides a part of it
        memory = PeakMemory("cpu")
        with memory.of("small"):
            pass
        with memory.of("large"):
            block = torch.ones(64 * 2**20, dtype=torch.uint8)
        grown.append(memory.peaks["large"] - memory.peaks["small"])
    assert max(grown) >= 0.9 * block.numel()


def test_a_second_gpu_is_timed_on_its_own_stream(monkeypatch):
    asked = []
    event = SimpleNamespace(record=asked.append, elapsed_time=lambda other: 1.0)
    fakes = {"is_available": lambda: True, "device_count": lambda: 2, "synchronize": asked.append}
    fakes |= {"Event": lambda enable_timing: event, "current_stream": lambda device: f"stream of {device}"}
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    timeline = Timeline("cuda:1")
    with timeline.span("sam"):
        pass
    timeline.rows()
    assert asked == ["stream of cuda:1"] * 3 + [torch.device("cuda:1")]
