"""What differs between model classes, one row a family: where the parts hang and how inputs go in."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import nn

from ocr_phases.errors import OcrPhasesError
from ocr_phases.measure import vendor

if TYPE_CHECKING:
    from ocr_phases.measure.page import DeviceInputs
    from ocr_phases.measure.phases import DecodeState


@dataclass(frozen=True)
class Family:
    """One row of the table. Module paths are dotted names under the loaded model.

    Where the language model is no module of its own, ``decoder_parts`` are its modules in the order they run,
    and ``decoder_between`` the first and the last module of the ``decoder`` stage.
    ``image_arguments`` must never carry a value in decode. ``views`` gives the view of each successive vision
    call of a prefill. ``prefill_arguments`` gives the keyword arguments of the prefill's forward,
    ``step_arguments`` those of one decode step's, as they go through ``prepare_step(model, arguments)``.
    ``new_cache`` makes the empty KV cache of a prefill; None leaves that to the model.
    ``keeps_logits``: forward takes ``logits_to_keep``; without it logits are made for every position.
    ``prints``: forward writes to standard output, which is dropped.
    """

    name: str
    implementation: str
    class_name: str
    modules: dict[str, str]
    image_arguments: tuple[str, ...]
    views: Callable[[DeviceInputs], list[str]]
    prefill_arguments: Callable[[DeviceInputs], dict[str, Any]]
    step_arguments: Callable[[DecodeState], dict[str, Any]]
    prepare_step: Callable[[Any, dict[str, Any]], dict[str, Any]] = lambda model, arguments: arguments
    new_cache: Callable[[], Any] = lambda: None
    decoder_parts: tuple[str, ...] = ()
    decoder_between: tuple[str, str] | None = None
    keeps_logits: bool = True
    prints: bool = False

    def stages(self, model: nn.Module) -> dict[str, nn.Module]:
        """The submodules that are a stage each, by stage name."""
        return {stage: model.get_submodule(path) for stage, path in self.modules.items()}

    def timed(self, model: nn.Module) -> dict[str, tuple[nn.Module, nn.Module]]:
        """The modules whose start and whose end are those of a stage, by stage name."""
        timed = {stage: (module, module) for stage, module in self.stages(model).items()}
        if self.decoder_between:
            first, last = self.decoder_between
            timed["decoder"] = (model.get_submodule(first), model.get_submodule(last))
        return timed

    def parameters(self, model: nn.Module) -> dict[str, int]:
        """Parameter count of each stage and the total; what belongs to no stage is in the total only."""
        counts = {stage: _count(module) for stage, module in self.stages(model).items()}
        if self.decoder_parts:
            counts["decoder"] = sum(_count(model.get_submodule(path)) for path in self.decoder_parts)
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


def _count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


# The ready masks of an unpadded sequence: attention is causal and nothing is hidden, so building two masks
# from the 2-D one, which this class otherwise does at every step, can be skipped.
_UNPADDED = {"full_attention": None, "reference_sliding_attention": None}


def _native_views(inputs: DeviceInputs) -> list[str]:
    return ["global"] if inputs.pixel_values_local is None else ["global", "local"]


def _native_prefill(inputs: DeviceInputs) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "input_ids": inputs.input_ids,
        "attention_mask": _UNPADDED if inputs.position_ids is None else inputs.attention_mask,
        "position_ids": inputs.position_ids,
        "pixel_values": inputs.pixel_values,
    }
    if inputs.pixel_values_local is not None:
        arguments["pixel_values_local"] = inputs.pixel_values_local
        arguments["num_local_patches"] = inputs.num_local_patches
        arguments["patches_grid"] = inputs.patches_grid
    return arguments


def _native_step(state: DecodeState) -> dict[str, Any]:
    whole_mask = state.position_ids is not None or state.exact_mask
    return {
        "input_ids": state.token[:, None],
        "attention_mask": state.attention_mask if whole_mask else _UNPADDED,
        "position_ids": state.position_ids,
        "past_key_values": state.cache,
    }


NATIVE = Family(
    name="deepseek-ocr",
    implementation="native",
    class_name="UnlimitedOcrForConditionalGeneration",
    modules={
        "sam": "model.vision_tower.sam_encoder",
        "clip": "model.vision_tower.vision_encoder",
        "projector": "model.multi_modal_projector",
        "decoder": "model.language_model",
        "lm_head": "lm_head",
    },
    image_arguments=("pixel_values", "pixel_values_local", "num_local_patches", "patches_grid"),
    views=_native_views,
    prefill_arguments=_native_prefill,
    step_arguments=_native_step,
)
VENDOR = Family(
    name="deepseek-ocr",
    implementation="vendor",
    class_name="DeepseekOCRForCausalLM",
    modules={
        "sam": "model.sam_model",
        "clip": "model.vision_model",
        "projector": "model.projector",
        "lm_head": "lm_head",
    },
    # The class's `model` is the language model itself, with the vision parts inside, and calls its text
    # layers through super(): so `decoder` runs from the first layer to the last norm. Embedding, fusion and
    # the causal mask come before the first layer: in prefill they are in `vision_fusion`.
    decoder_parts=("model.embed_tokens", "model.layers", "model.norm"),
    decoder_between=("model.layers.0", "model.norm"),
    image_arguments=("images", "images_seq_mask", "images_spatial_crop"),
    views=vendor.views,
    prefill_arguments=vendor.prefill_arguments,
    step_arguments=vendor.step_arguments,
    prepare_step=vendor.prepare_step,
    new_cache=vendor.new_cache,
    keeps_logits=False,
    prints=True,
)
FAMILIES = (NATIVE, VENDOR)


def family_of(model: nn.Module) -> Family:
    """The family of a loaded model, by its class name; `OcrPhasesError` for a class without a row."""
    names = {base.__name__ for base in type(model).__mro__}
    for family in FAMILIES:
        if family.class_name in names:
            return family
    known = ", ".join(family.class_name for family in FAMILIES)
    raise OcrPhasesError(f"{type(model).__name__} is no model this version can drive; it knows {known}.")
