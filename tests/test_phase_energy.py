"""Energy by phase: what is repeated, how joules are shared out, and what a record says of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from time import perf_counter

import msgspec
import pytest
import torch
from conftest import PAGES
from example_run import make_run
from torch import nn

from ocr_phases import OcrPhasesError, OCRSession, PhaseRun
from ocr_phases.measure.phase_energy import (
    energy_while_repeated,
    measure_phase_energy,
    vision_forwards,
)
from ocr_phases.record.parts import PhaseEnergyPart
from ocr_phases.show.energy_section import energy_section
from ocr_phases.steps import phases
from ocr_phases.steps.capacity import capacity_for
from ocr_phases.steps.captured import StaticStep

PAGE = PAGES / "receipt.png"


class StepwiseCounter:
    """Counts 50 J per second of work, and shows them in steps of so many seconds."""

    ranges = [float("inf")]

    def __init__(self, step: float, clock: Callable[[], float] = perf_counter) -> None:
        self.step = step
        self.clock = clock

    def read(self) -> list[float]:
        return [50.0 * self.step * int(self.clock() / self.step)]


def test_joules_are_those_of_the_calls_between_two_moves_of_the_counter(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from ocr_phases.measure import phase_energy

    now = 0.0

    def clock() -> float:
        return now

    def work() -> None:
        nonlocal now
        now += 0.04

    monkeypatch.setattr(phase_energy, "perf_counter", clock)

    window = energy_while_repeated(work, StepwiseCounter(0.1, clock), seconds=2.0)

    assert window.seconds >= 2.0
    assert window.seconds == pytest.approx(0.04 * window.calls)
    assert window.joules / window.seconds == pytest.approx(50.0, rel=0.04)


@pytest.mark.parametrize("strategy", [None, "eager"], ids=["own class", "static step"])
def test_each_phase_is_repeated_and_the_tokens_stay_the_same(
    strategy: str | None, golden_session: OCRSession
) -> None:
    model = golden_session.model
    prepared = golden_session.prepare(PAGE, preset="tiny")
    inputs = prepared.to("cpu", torch.float32)
    step = None
    if strategy is not None:
        prompt_tokens = inputs.input_ids.shape[1]
        step = StaticStep(model, 1, capacity_for(prompt_tokens, 8), strategy)
        step.ready_for(prompt_tokens, 8)
    before = phases.generate(model, inputs, 8, step=step).ids

    energy = measure_phase_energy(
        model, inputs, 7, counter=StepwiseCounter(0.04), step=step, seconds=0.1
    )

    assert energy.phase == ["vision", "prefill", "decode"]
    assert min(energy.calls) >= 1
    for seconds, joules in zip(energy.seconds, energy.joules, strict=True):
        assert joules / seconds == pytest.approx(50.0, rel=0.5)  # steps of 0.04 s in 0.1 s
    assert phases.generate(model, inputs, 8, step=step).ids == before


def test_vision_alone_makes_the_calls_of_a_prefill(golden_session: OCRSession) -> None:
    """The projector's output is the last thing that vision makes."""
    prepared = golden_session.prepare(PAGE, preset="tiny")
    inputs = prepared.to("cpu", torch.float32)
    projector = golden_session.checkpoint.interface.modules(golden_session.model)["projector"]
    outputs: list[torch.Tensor] = []

    def keep_output(_module: nn.Module, _args: object, output: torch.Tensor) -> None:
        outputs.append(output)

    with torch.no_grad(), projector.register_forward_hook(keep_output):
        calls = vision_forwards(golden_session.model, inputs, None)
        for call in calls:
            call()

    in_prefill, alone = outputs
    assert torch.equal(in_prefill, alone)


def with_energy(**changes: object) -> PhaseRun:
    """A record whose phases took 2, 5 and 40 J a page."""
    energy = PhaseEnergyPart(
        phase=["vision", "prefill", "decode"],
        calls=[100, 50, 10],
        seconds=[4.0, 4.0, 5.0],
        joules=[200.0, 250.0, 400.0],
        decode_steps=200,
        idle_w=20.0,
    )
    return replace(make_run(), phase_energy=msgspec.structs.replace(energy, **changes))


def test_a_page_is_prefill_and_decode_and_vision_is_a_part_of_the_prefill() -> None:
    table = with_energy().energy.set_index("phase")
    assert table["joules"].to_dict() == {
        "vision": 2.0,
        "prefill": 5.0,
        "decode": 40.0,
        "page": 45.0,
    }
    assert table.loc["decode", "thousand_tokens_j"] == pytest.approx(200.0)
    assert table["call_ms"].to_dict() == {
        "vision": 40.0,
        "prefill": 80.0,
        "decode": 500.0,
        "page": 580.0,
    }
    assert table.loc["decode", "idle_joules"] == pytest.approx(10.0)
    assert table.loc["page", "idle_joules"] == pytest.approx(11.6)
    assert table.loc["prefill", "of_page"] == pytest.approx(5 / 45)


def test_energy_by_phase_is_saved_and_read() -> None:
    run = with_energy()
    again = PhaseRun.from_dict(run.to_dict())
    assert again.phase_energy == run.phase_energy


def test_a_record_with_half_of_the_energy_by_phase_is_refused() -> None:
    damaged = with_energy().to_dict()
    damaged["phase_energy"]["calls"] = [1]
    with pytest.raises(OcrPhasesError, match="phase_energy"):
        PhaseRun.from_dict(damaged)


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        pytest.param(make_run(), "phase_energy=True", id="not asked for"),
        pytest.param(with_energy(missing="NVML: no card"), "NVML: no card", id="no counter"),
    ],
)
def test_a_record_without_energy_by_phase_says_why(run: PhaseRun, reason: str) -> None:
    with pytest.raises(OcrPhasesError, match=reason):
        _ = run.energy
    figure = run.plot.energy()
    assert figure.texts or figure.axes


def test_the_section_stands_in_a_report_only_where_it_was_asked_for() -> None:
    assert energy_section(make_run()).html() == ""
    missing = energy_section(with_energy(missing="NVML: no card")).html()
    assert "NVML: no card" in missing
    assert "<table" not in missing
    assert "<table" in energy_section(with_energy()).html()


def test_a_host_without_a_counter_keeps_its_record(golden_session: OCRSession) -> None:
    run = golden_session.run_inference(
        PAGE,
        preset="tiny",
        max_new_tokens=3,
        repeats=1,
        warmup=0,
        ceilings=False,
        phase_energy=True,
    )
    assert run.phase_energy is not None
    assert run.phase_energy.missing or run.phase_energy.phase
