"""Makes a strategy ready before anything is measured, and says what that took."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from torch import nn

from ocr_phases.inputs.packing import DeviceInputs
from ocr_phases.models.wiring import family_of
from ocr_phases.settings import Request
from ocr_phases.steps import phases
from ocr_phases.steps.captured import StaticStep, kept_step, max_cache_len_for
from ocr_phases.steps.compiled import CompiledVision
from ocr_phases.steps.execution import preparing, told_of_preparing


@dataclass(frozen=True)
class Setup:
    """What the runs of one request use: a decode step of their shapes and compiled vision, or neither."""

    step: StaticStep | None = None
    step_reused: bool = False
    prefill_ms: float | None = None  # of capturing the language model's prefill of this length
    vision: CompiledVision | None = None
    vision_ms: float | None = None  # first calls of the compiled encoders with these shapes

    def vision_execution(self) -> AbstractContextManager[None]:
        """Around a prefill: the encoders as the request wants them."""
        return contextlib.nullcontext() if self.vision is None else self.vision.installed()

    def described(self) -> dict[str, Any]:
        """For the record's ``model``: times in ms, None where there was nothing to set up."""
        step = None
        if self.step is not None:
            made = {"prefill_capture_ms": self.prefill_ms, "reused": self.step_reused}
            step = {**self.step.setup, **made}
        vision = None if self.vision is None else {"compile_ms": self.vision_ms}
        return {"strategy_setup": step, "vision_setup": vision}


class PreparedStrategies:
    """Keeps what strategies made for one model, so that later runs of the same shapes use it again."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self._steps: dict[tuple[str, int, int], StaticStep] = {}
        self._vision: CompiledVision | None = None

    def step(
        self, strategy: str, batch: int, prompt_len: int, max_new_tokens: int
    ) -> tuple[StaticStep, bool]:
        """A decode step with room for these tokens, and whether it was made before."""
        window = family_of(self.model).window(self.model)
        max_cache_len = max_cache_len_for(prompt_len, max_new_tokens, window)
        return kept_step(self._steps, self.model, batch, max_cache_len, strategy)

    def set_up(self, request: Request, inputs: DeviceInputs) -> Setup:
        """Everything that the runs of ``request`` need, made or found; `OcrPhasesError` where it fails.

        `told_of_preparing` is told what is made, numbered.
        """
        with told_of_preparing(self._numbered(request, inputs)):
            return self._set_up(request, inputs)

    def _numbered(self, request: Request, inputs: DeviceInputs) -> Callable[[str], None]:
        tell, numbers = preparing.get(), itertools.count(1)
        known = not self._steps and self._vision is None  # else some of it may be made already
        encoders = len(family_of(self.model).facts.encoders) if request.vision == "compiled" else 0
        views = 1 if inputs.pixel_values_local is None else 2
        captured = request.strategy != "eager" and inputs.input_ids.is_cuda
        total = encoders * views + (request.strategy == "compiled") + captured
        return lambda what: tell(f"{what} ({next(numbers)}{f' of {total}' if known else ''})")

    def _set_up(self, request: Request, inputs: DeviceInputs) -> Setup:
        vision, vision_ms, step, reused = None, None, None, False
        batch, prompt_len = inputs.input_ids.shape
        if request.strategy != "eager":
            step, reused = self.step(request.strategy, batch, prompt_len, request.max_new_tokens)
        if request.vision == "compiled":
            vision = self._vision = self._vision or CompiledVision(self.model)
        captures = inputs.input_ids.is_cuda and inputs.position_ids is None  # padded rows run as they are
        captured = step.prefill if step is not None and captures else None
        if vision is not None or (captured is not None and not captured.made(prompt_len)):
            with contextlib.nullcontext() if vision is None else vision.installed():
                phases.prefill(self.model, inputs, step=step)
        if vision is not None:
            vision_ms = sum(vision.compile_ms[shape] for shape in vision.used)
        prefill_ms = None if captured is None else captured.capture_ms(prompt_len)
        return Setup(step, reused, prefill_ms, vision, vision_ms)
