"""The vision encoders of the prefill, compiled, and captured on CUDA."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from ocr_phases.models.wiring import family_of
from ocr_phases.steps.capturing import captured_call, tensors_in
from ocr_phases.steps.execution import (
    DECODE_BACKENDS,
    compiled_apart,
    first_call_ms,
    forwards,
    preparing,
)
from ocr_phases.text import stage_name


class CompiledVision:
    """Compiled forwards of a model's vision encoders, made at the first call of each shape and kept.

    On CUDA each is captured too, and its activations stay in the graph's own memory. ``compile_ms`` has the
    wall time of those first calls, by stage and input shape; ``used`` the stages and shapes called since the
    encoders were last `installed`.
    """

    def __init__(self, model: nn.Module) -> None:
        family = family_of(model)
        self._modules = {stage: family.stages(model)[stage] for stage in family.facts.encoders}
        self._made: dict[tuple, Callable[..., Any]] = {}
        self.compile_ms: dict[tuple, float] = {}
        self.used: set[tuple] = set()

    def installed(self) -> AbstractContextManager[None]:
        """Run the encoders compiled within a ``with`` block."""
        self.used.clear()
        modules = self._modules.items()
        return forwards({module: self._forward(stage, module.forward) for stage, module in modules})

    def _forward(self, stage: str, plain: Callable[..., Any]) -> Callable[..., Any]:
        def forward(*args: Any, **options: Any) -> Any:
            tensors = tensors_in(args, options)
            shape = (stage, *tensors[0].shape)
            self.used.add(shape)
            if shape not in self._made:
                inputs = " × ".join(map(str, shape[1:]))
                preparing.get()(f"compiling {stage_name(stage)} for {inputs} inputs")
                self._made[shape], self.compile_ms[shape] = first_call_ms(
                    tensors[0].device, _made, plain, *args, **options
                )
            return self._made[shape](*args, **options)

        return forward


def _made(plain: Callable[..., Any], *args: Any, **options: Any) -> Callable[..., Any]:
    """``plain`` compiled for arguments like these, and captured on CUDA."""
    compiled = compiled_apart(plain)
    if tensors_in(args, options)[0].device.type != "cuda":
        compiled(*args, **options)
        return compiled
    # Views come in few sizes, so cuDNN's attention, the fastest with SAM's position bias, plans only once.
    with sdpa_kernel([SDPBackend.CUDNN_ATTENTION, *DECODE_BACKENDS]):
        compiled(*args, **options)
        return captured_call(compiled, *args, **options)
