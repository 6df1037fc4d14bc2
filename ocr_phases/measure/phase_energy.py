"""The energy of each phase: vision, prefill and decode, each repeated alone for some seconds.

A counter of energy moves ten times a second, and a phase may take a millisecond, so that a single
page cannot be split. Here each phase runs again and again, with the page's own inputs, until the
counter has moved often enough; what it counted is shared out over the calls. That is done after
everything that is timed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any

import torch
from torch import nn

from ocr_phases.collectors.energy import EnergyCounter, joules_between
from ocr_phases.inputs.processed import ModelInputs
from ocr_phases.models.devices import device_of
from ocr_phases.models.interface import TimedPart
from ocr_phases.models.wiring import interface_of
from ocr_phases.record.parts import PhaseEnergyPart
from ocr_phases.stages import VISION_ROLES
from ocr_phases.steps import phases
from ocr_phases.steps.phases import Step

#: How long each phase is repeated, at least. The counter moves every tenth of a second, so that
#: the ends of this window are uncertain by about 3 % of it.
LEAST_SECONDS = 3.0

#: A forward of a vision module as the prefill calls it.
VisionForward = Callable[[], Any]


@dataclass(frozen=True)
class EnergyWindow:
    """What a counter showed while some work was repeated."""

    calls: int
    seconds: float
    joules: float


def energy_while_repeated(
    work: Callable[[], object], counter: EnergyCounter, seconds: float = LEAST_SECONDS
) -> EnergyWindow:
    """Repeat ``work`` for so many seconds or more, from one move of the counter to another.

    Parameters
    ----------
    work : callable
        What is repeated. It returns when the device has done it.
    counter : EnergyCounter
        Counts the joules.
    seconds : float, default `LEAST_SECONDS`
        The least length of the window. ``work`` runs once before it and to its end in it.
    """
    first = counter.read()
    while counter.read() == first:
        work()
    begun = perf_counter()
    first = counter.read()
    last = first
    passed = 0.0
    calls = 0
    counted = 0  # of the calls, until the counter last moved
    while passed < seconds or last == first:
        work()
        calls += 1
        reading = counter.read()
        if reading != last:
            last = reading
            passed = perf_counter() - begun
            counted = calls
    return EnergyWindow(counted, passed, joules_between([first, last], counter.ranges))


@torch.no_grad()
def measure_phase_energy(
    model: nn.Module,
    inputs: ModelInputs,
    decode_steps: int,
    *,
    counter: EnergyCounter,
    step: Step | None = None,
    seconds: float = LEAST_SECONDS,
) -> PhaseEnergyPart:
    """The energy of a page's vision, of its whole prefill and of its decode steps.

    Parameters
    ----------
    model : nn.Module
        The loaded model; its vision encoders run as they are installed at the call.
    inputs : DeviceInputs or ProcessedInputs
        The page's inputs, on the model's device.
    decode_steps : int
        The steps of one decode, from the end of the prompt on: as many as the page had.
    counter : EnergyCounter
        Counts the joules of the device.
    step : Step, optional
        The captured or compiled step; without it the model's own class runs. Tokens are chosen
        greedily.
    seconds : float, default 3.0
        How long each phase is repeated, at least.
    """
    device = next(model.parameters()).device
    vision = vision_forwards(model, inputs, step)
    state = phases.prefill(model, inputs, step=step)

    def run_vision() -> None:
        for call in vision:
            call()
        device_of(device).synchronize()

    def run_prefill() -> None:
        phases.prefill(model, inputs, step=step)

    def run_decode() -> None:
        phases.decode(
            model, state.copied(), decode_steps + 1, eos_check_every=decode_steps, step=step
        )

    works: dict[str, Callable[[], None]] = {}
    if vision:
        works["vision"] = run_vision
    works["prefill"] = run_prefill
    if decode_steps > 0:
        works["decode"] = run_decode
    windows: dict[str, EnergyWindow] = {}
    # A static step has one cache, which a prefill empties: decode goes first, from the state above.
    for name in reversed(works):
        windows[name] = energy_while_repeated(works[name], counter, seconds)
    measured = [windows[name] for name in works]
    return PhaseEnergyPart(
        phase=list(works),
        calls=[window.calls for window in measured],
        seconds=[window.seconds for window in measured],
        joules=[window.joules for window in measured],
        decode_steps=decode_steps,
    )


def vision_forwards(
    model: nn.Module, inputs: ModelInputs, step: Step | None
) -> list[VisionForward]:
    """The forwards of the vision modules that a prefill makes, to be made again without the rest.

    Modules inside of others are left out, as they run with them. A part that reaches from one
    module to another cannot be called by itself: then there are none.
    """
    parts = _vision_parts(model)
    if any(part.first is not part.last for part in parts):
        return []
    calls: list[VisionForward] = []

    def note_call(module: nn.Module, args: Any, options: dict[str, Any]) -> None:
        def again() -> Any:
            return module(*args, **options)

        calls.append(again)

    hooks = [part.first.register_forward_pre_hook(note_call, with_kwargs=True) for part in parts]
    try:
        phases.prefill(model, inputs, step=step)
    finally:
        for hook in hooks:
            hook.remove()
    return calls


def _vision_parts(model: nn.Module) -> list[TimedPart]:
    """The parts of the model that are vision and lie in no other part."""
    parts = interface_of(model).timed_parts(model)
    return [part for part in parts if part.role in VISION_ROLES and part.inside is None]
