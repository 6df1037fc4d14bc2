"""What a family of model classes is: where its parts hang, how inputs go in, how a step is fed."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from torch import nn

from ocr_phases.errors import OcrPhasesError
from ocr_phases.families import FamilyFacts

if TYPE_CHECKING:
    from torch import Tensor

    from ocr_phases.inputs.packing import DeviceInputs


class StepState(Protocol):
    """What a family reads of `ocr_phases.steps.phases.DecodeState` to feed one decode step."""

    cache: Any
    token: Tensor
    attention_mask: Tensor
    position_ids: Tensor | None
    lengths: list[int]
    window: int | None


@dataclass(frozen=True)
class Family:
    """One row of the table. Module paths are dotted names under the loaded model.

    ``facts`` is the family's row in `ocr_phases.families`. ``parts`` are the modules that hold a stage's
    parameters where they are not those of the stage's own module. Where the language model is no module of
    its own, ``language_model_between`` are the first and the last module of the stage.
    ``published`` is ``config.json`` as published, and ``sizes`` names the numbers of it that a dummy may have
    otherwise, each with the keys that lead to it; a class that transformers does not have has neither.
    ``drives`` says of a model of that class whether it is of this family, where two have one class.
    ``window`` gives how many generated tokens a step sees beside the whole prompt, its own among them: the
    cache holds no more of them; None for all.
    ``image_arguments`` must never carry a value in decode. ``views`` gives the view of each successive vision
    call of a prefill. ``prefill_arguments`` gives the keyword arguments of the prefill's forward,
    ``step_arguments`` those of one decode step's, as they go through ``prepare_step(model, arguments)``.
    ``ready_mask`` is how the class takes an attention mask that needs no work: a 4-D one to be added to the
    scores, or None where nothing is hidden but by causality.
    ``new_cache`` makes the empty KV cache of a prefill; None leaves that to the model.
    ``keeps_logits``: forward takes ``logits_to_keep``; without it logits are made for every position.
    ``prints``: forward writes to standard output, which is dropped.
    """

    facts: FamilyFacts
    implementation: str
    class_name: str
    modules: dict[str, str]
    image_arguments: tuple[str, ...]
    views: Callable[[DeviceInputs], list[str]]
    prefill_arguments: Callable[[DeviceInputs], dict[str, Any]]
    step_arguments: Callable[[StepState], dict[str, Any]]
    prepare_step: Callable[[Any, dict[str, Any]], dict[str, Any]] = lambda model, arguments: arguments
    ready_mask: Callable[[Tensor | None], Any] = lambda mask: mask
    new_cache: Callable[[], Any] = lambda: None
    drives: Callable[[Any], bool] = lambda model: True
    window: Callable[[Any], int | None] = lambda model: None
    parts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    language_model_between: tuple[str, str] | None = None
    keeps_logits: bool = True
    prints: bool = False
    published: Mapping[str, Any] = field(default_factory=dict)
    sizes: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The family's name, as in a record."""
        return self.facts.name

    def model_class(self) -> Any:
        """transformers' class; `OcrPhasesError` where this version has none of that name."""
        import transformers

        found = getattr(transformers, self.class_name, None)
        if found is None:
            raise OcrPhasesError(
                f"transformers {transformers.__version__} has no {self.class_name}, which {self.facts.title} "
                "needs: upgrade transformers."
            )
        return found

    def stages(self, model: nn.Module) -> dict[str, nn.Module]:
        """The submodules that are a stage each, by stage name."""
        return {stage: model.get_submodule(path) for stage, path in self.modules.items()}

    def timed(self, model: nn.Module) -> dict[str, tuple[nn.Module, nn.Module]]:
        """The modules whose start and whose end are those of a stage, by stage name."""
        timed = {stage: (module, module) for stage, module in self.stages(model).items()}
        if self.language_model_between:
            first, last = self.language_model_between
            timed["language_model"] = (model.get_submodule(first), model.get_submodule(last))
        return timed

    def parameters(self, model: nn.Module) -> dict[str, int]:
        """Parameter count of each stage and the total; what belongs to no stage is in the total only."""
        held = {stage: (path,) for stage, path in self.modules.items()} | dict(self.parts)
        counts = {
            stage: sum(_count(model.get_submodule(path)) for path in paths) for stage, paths in held.items()
        }
        return {**counts, "total": _count(model)}

    def forward(self, model: nn.Module, arguments: dict[str, Any], **options: Any) -> Any:
        """One forward of the model; ``options`` go over ``arguments``."""
        if not self.keeps_logits:
            options.pop("logits_to_keep", None)
        with self.silenced():
            return model(**{**arguments, **options})

    def silenced(self) -> AbstractContextManager:
        """Around calls of the model: drops what it prints, where it does."""
        return contextlib.redirect_stdout(io.StringIO()) if self.prints else contextlib.nullcontext()


#: The sizes of a dummy that all families have in the same place of their published config.
DUMMY_SIZES = {
    "layers": ("language_config", "num_hidden_layers"),
    "hidden": ("language_config", "hidden_size"),
    "heads": ("language_config", "num_attention_heads"),
    "experts": ("language_config", "n_routed_experts"),
    "vocab": ("language_config", "vocab_size"),
    "sam_layers": ("vision_config", "width", "sam_vit_b", "layers"),
}


def native_views(inputs: DeviceInputs) -> list[str]:
    """The vision calls of transformers' classes: all pages' global views, then all crops."""
    return ["global"] if inputs.pixel_values_local is None else ["global", "local"]


def _count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())
