"""DeepSeek-OCR in transformers' own class: its row, its masks, and how inputs and steps go into it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ocr_phases.measure.models.family import Family, StepState

if TYPE_CHECKING:
    from ocr_phases.measure.inputs.packing import DeviceInputs

# The ready masks of an unpadded sequence: attention is causal and nothing is hidden, so building two masks
# from the 2-D one, which this class otherwise does at every step, can be skipped.
_UNPADDED = {"full_attention": None, "reference_sliding_attention": None}


def _views(inputs: DeviceInputs) -> list[str]:
    return ["global"] if inputs.pixel_values_local is None else ["global", "local"]


def _prefill(inputs: DeviceInputs) -> dict[str, Any]:
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


def _step(state: StepState) -> dict[str, Any]:
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
    views=_views,
    prefill_arguments=_prefill,
    step_arguments=_step,
)
