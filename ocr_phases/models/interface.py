"""How a model class is driven: the calls that prefill and decode make of it.

`ocr_phases.models.wiring` has the classes of the three families. Another kind of class is one more
implementation: nothing in ``steps`` or ``measure`` asks which of them it has.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor, nn

from ocr_phases.stages import Role


@dataclass(frozen=True)
class TimedPart:
    """A part of a model that is a stage: from the start of one module to the end of another.

    Attributes
    ----------
    stage
        The stage's name.
    role
        What it does.
    path
        The dotted name of the first module under the model.
    first, last
        The modules whose start and whose end are the stage's; of most stages one and the same.
    inside
        The stage within whose time this one runs, so that no sum takes both; None for none.
    """

    stage: str
    role: Role
    path: str
    first: nn.Module
    last: nn.Module
    inside: str | None = None


def parameter_count(module: nn.Module) -> int:
    """The number of parameters of a module."""
    return sum(parameter.numel() for parameter in module.parameters())


class ModelInterface(Protocol):
    """The calls that ``steps``, ``measure`` and ``collectors`` make of a loaded model.

    An implementation has no state: what a step needs of the one before stands in its arguments. B
    is the number of rows, T the number of tokens of the prompt. ``inputs`` are what the class's own
    way of packing gives: `DeviceInputs` of a family, `ProcessedInputs` of any other class.
    """

    @property
    def implementation(self) -> str:
        """``native`` for a class of transformers, ``vendor`` for a checkpoint's own code."""
        ...

    @property
    def can_be_captured(self) -> bool:
        """Whether a step over a static cache, which is captured or compiled, is known to be
        right.
        """
        ...

    def timed_parts(self, model: nn.Module) -> list[TimedPart]:
        """The parts of the model that are a stage each, in the order that a page goes through."""
        ...

    def modules(self, model: nn.Module) -> dict[str, nn.Module]:
        """The module that is a stage as a whole, by the stage's name."""
        ...

    def parameters(self, model: nn.Module) -> dict[str, int]:
        """The number of parameters of each stage, and of all of the model as ``total``."""
        ...

    def window(self, model: Any) -> int | None:
        """How many generated tokens a step sees, its own among them; None for all.

        The cache holds no more of them, beside the whole prompt.
        """
        ...

    def views(self, inputs: Any) -> list[str]:
        """The view, ``global`` or ``local``, of each successive vision call of a prefill."""
        ...

    def new_cache(self, model: Any) -> Any:
        """The empty KV cache of a prefill; None where the class makes its own."""
        ...

    def prefill_arguments(self, inputs: Any, model: Any = None) -> dict[str, Any]:
        """The keyword arguments of the forward over B whole prompts.

        Raises `OcrPhasesError` for inputs that the class cannot take.
        """
        ...

    def step_arguments(
        self,
        model: Any,
        token: Tensor,
        cache: Any,
        mask: Tensor,
        positions: Tensor | None,
        prompt_len: int,
        carried: Any,
    ) -> dict[str, Any]:
        """The keyword arguments of the forward of one decode step.

        Parameters
        ----------
        model : nn.Module
            The loaded model.
        token : Tensor
            The newest token of each row, int64 [B].
        cache : object
            The KV cache that the prefill has filled.
        mask : Tensor
            1 for each token that may be seen, this one among them, int64 [B, length].
        positions : Tensor or None
            The token's position in each row, int64 [B, 1]; None where no row is padded.
        prompt_len : int
            T.
        carried : object
            What `carried_from_prefill` or the step before gave.
        """
        ...

    def generate_arguments(self, inputs: Any) -> dict[str, Any]:
        """The keyword arguments of ``model.generate()`` over B whole prompts."""
        ...

    def carried_from_prefill(self, model: Any, inputs: Any, out: Any) -> Any:
        """What the first step needs beside the cache, of the prefill's output; None for nothing."""
        ...

    def carried_from_step(self, model: Any, carried: Any, out: Any) -> Any:
        """What the next step needs beside the cache, of this step's output; None for nothing."""
        ...

    def leaked_images(self, arguments: dict[str, Any]) -> list[str]:
        """The names of the image arguments that carry a value, which no decode step may have."""
        ...

    def ready_mask(self, mask: Tensor | None) -> Any:
        """``mask``, a 4-D one or None where nothing but causality hides, as the class takes it
        without work on it.
        """
        ...

    def forward(self, model: nn.Module, arguments: dict[str, Any], **options: Any) -> Any:
        """One forward of the model: an output with ``logits`` and ``past_key_values``.

        ``options`` go over ``arguments``.
        """
        ...

    def silenced(self) -> AbstractContextManager[Any]:
        """Around calls of the model: drops what its class prints."""
        ...
