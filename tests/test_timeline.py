"""Spans, hooks and NVTX ranges: complete, and closed also when a phase raises."""

import mmap

import numpy as np
import nvtx
import pytest
import torch
from conftest import PAGES

from ocr_phases import OCRSession, Timeline
from ocr_phases.collectors.memory import PeakMemory
from ocr_phases.record import SPAN_COLUMNS

STAGES = ["sam", "clip", "projector", "vision_fusion", "language_model", "lm_head", "sampling"]


class Ranges:
    """Stands in for NVTX, and knows which ranges are open."""

    def __init__(self) -> None:
        self.open: list[str] = []
        #: Each range that was opened, behind those that it lies in.
        self.paths: list[str] = []

    def push(self, name: str) -> None:
        self.open.append(name)
        self.paths.append("/".join(self.open))

    def pop(self) -> None:
        self.open.pop()


@pytest.fixture
def ranges(monkeypatch: pytest.MonkeyPatch) -> Ranges:
    stand_in = Ranges()
    monkeypatch.setattr(nvtx, "push_range", stand_in.push)
    monkeypatch.setattr(nvtx, "pop_range", stand_in.pop)
    return stand_in


def hook_count(model: torch.nn.Module) -> int:
    count = 0
    for module in model.modules():
        count += len(module._forward_hooks) + len(module._forward_pre_hooks)
    return count


def test_spans_nest_and_carry_phase_step_and_view(ranges: Ranges) -> None:
    timeline = Timeline("cpu")
    with timeline.in_phase("decode"):
        timeline.step = 3
        with timeline.span("decode_step"), timeline.span("language_model", view="global"):
            assert ranges.open == ["decode", "decode_step", "language_model"]
        timeline.step = None

    table = timeline.table().assign(repeat=2)[[*SPAN_COLUMNS]]
    named = table[["repeat", "phase", "stage", "view", "step"]].astype(object)
    assert named.where(named.notna(), None).to_numpy().tolist() == [
        [2, "decode", "decode", "", None],
        [2, "decode", "decode_step", "", 3],
        [2, "decode", "language_model", "global", 3],
    ]
    assert table["host_start_ms"].is_monotonic_increasing
    assert table["host_ms"].is_monotonic_decreasing
    assert (table["device_ms"] == table["host_ms"]).all()
    assert ranges.open == []


def test_a_prefill_has_all_of_its_stages_and_leaves_nothing_open(
    ranges: Ranges, golden_session: OCRSession
) -> None:
    hooks_before = hook_count(golden_session.model)
    timeline = Timeline("cpu")
    inputs = golden_session.prepare(PAGES / "slide.png", preset="tiny")

    golden_session.run_prefill(inputs, timeline)

    assert timeline.vectors == 64  # of one page of 512 pixels
    assert [row[2] for row in timeline.rows()] == ["prefill", *STAGES]
    assert hook_count(golden_session.model) == hooks_before
    assert ranges.open == []
    assert timeline.phase == ""


@pytest.mark.parametrize(
    ("failing", "reached"),
    [("sam", ["sam"]), ("language_model", STAGES[:5])],
)
def test_hooks_spans_and_ranges_are_closed_after_an_error(
    failing: str, reached: list[str], ranges: Ranges, golden_session: OCRSession
) -> None:
    def fault(_module: torch.nn.Module, _args: object, _output: object) -> None:
        raise ZeroDivisionError

    model = golden_session.model
    hooks_before = hook_count(model)
    timeline = Timeline("cpu")
    inputs = golden_session.prepare(PAGES / "slide.png", preset="tiny")

    broken = golden_session.interface.modules(model)[failing]
    with broken.register_forward_hook(fault), pytest.raises(ZeroDivisionError):
        golden_session.run_prefill(inputs, timeline)

    assert [row[2] for row in timeline.rows()] == ["prefill", *reached]
    assert hook_count(model) == hooks_before
    assert ranges.open == []
    assert timeline.phase == ""


def test_ranges_of_generate_have_stages_in_its_prefill_and_none_in_decode(
    ranges: Ranges, golden_session: OCRSession
) -> None:
    hooks_before = hook_count(golden_session.model)

    run = golden_session.run_inference(
        PAGES / "slide.png",
        preset="tiny",
        generate=True,
        max_new_tokens=3,
        repeats=1,
        warmup=0,
        ceilings=False,
    )

    of_generate = [path for path in ranges.paths if path.startswith("generate")]
    of_prefill = [f"generate/prefill/{stage}" for stage in STAGES if stage != "sampling"]
    assert of_generate == ["generate", "generate/prefill", *of_prefill, "generate/decode"]
    assert ranges.open == []
    assert hook_count(golden_session.model) == hooks_before
    assert set(run.spans["phase"]) == {"prepare", "generate"}


def test_peak_memory_sees_a_large_block() -> None:
    if PeakMemory("cpu").source is None:
        pytest.skip("this system does not let a process reset its high-water mark")
    block_bytes = 64 * 2**20

    growths = []
    for _ in range(3):  # a system that takes back idle pages meanwhile hides a part of it
        memory = PeakMemory("cpu")
        with memory.during("small"):
            pass
        with memory.during("large"):
            # Pages of the system: an allocator may hold as many in memory, freed by other tests.
            block = mmap.mmap(-1, block_bytes)
            np.frombuffer(block, dtype=np.uint8)[:] = 1
        growths.append(memory.peaks["large"] - memory.peaks["small"])
        block.close()

    assert max(growths) >= 0.9 * block_bytes
