"""What differs between model classes, one row a family: where the parts hang and how inputs go in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import nn

from ocr_phases.errors import OcrPhasesError

if TYPE_CHECKING:
    from ocr_phases.measure.page import DeviceInputs
    from ocr_phases.measure.phases import DecodeState


@dataclass(frozen=True)
class Family:
    """One row of the table. Module paths are dotted names under the loaded model.

    ``image_arguments`` must never carry a value in decode. ``view_order`` is the order of the vision calls
    when a page has crops. ``prefill_arguments`` gives the keyword arguments of the prefill's forward,
    ``step_arguments`` those of one decode step's.
    """

    name: str
    implementation: str
    class_name: str
    modules: dict[str, str]
    image_arguments: tuple[str, ...]
    view_order: tuple[str, ...]
    prefill_arguments: Callable[[DeviceInputs], dict[str, Any]]
    step_arguments: Callable[[DecodeState], dict[str, Any]]

    def stages(self, model: nn.Module) -> dict[str, nn.Module]:
        """The timed submodules by stage name."""
        return {stage: model.get_submodule(path) for stage, path in self.modules.items()}

    def views(self, crops: bool) -> list[str]:
        """The view of each successive vision call of one prefill."""
        return list(self.view_order) if crops else ["global"]

    def parameters(self, model: nn.Module) -> dict[str, int]:
        """Parameter count of each stage and the total; what belongs to no stage is in the total only."""
        counts = {stage: _count(module) for stage, module in self.stages(model).items()}
        return {**counts, "total": _count(model)}


def _count(module: nn.Module) -> int:
    return sum(parameter.numel() for parameter in module.parameters())


# The ready masks of an unpadded sequence: attention is causal and nothing is hidden, so building two masks
# from the 2-D one, which this class otherwise does at every step, can be skipped.
_UNPADDED = {"full_attention": None, "reference_sliding_attention": None}


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
    view_order=("global", "local"),
    prefill_arguments=_native_prefill,
    step_arguments=_native_step,
)
FAMILIES = (NATIVE,)


def family_of(model: nn.Module) -> Family:
    """The family of a loaded model, by its class name; `OcrPhasesError` for a class without a row."""
    names = {base.__name__ for base in type(model).__mro__}
    for family in FAMILIES:
        if family.class_name in names:
            return family
    known = ", ".join(family.class_name for family in FAMILIES)
    raise OcrPhasesError(f"{type(model).__name__} is no model this version can drive; it knows {known}.")
