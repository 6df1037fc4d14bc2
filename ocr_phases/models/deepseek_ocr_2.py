"""DeepSeek-OCR-2 in transformers' own class: published sizes, module paths, inputs, steps.

SAM's features and learnable queries go through a body of Qwen2 (``encoder``) in place of CLIP.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ocr_phases.families import DEEPSEEK_OCR_2, FAMILIES
from ocr_phases.models.deepseek_ocr import PUBLISHED as FIRST
from ocr_phases.models.family import DUMMY_SIZES, Family, StepState, native_views

if TYPE_CHECKING:
    from ocr_phases.inputs.packing import DeviceInputs

#: The published DeepSeek-OCR-2 architecture, in the keys of its own ``config.json``; the language model is
#: DeepSeek-OCR's.
PUBLISHED: dict[str, Any] = {
    "model_type": FAMILIES[DEEPSEEK_OCR_2].published_type,
    "language_config": FIRST["language_config"],
    "vision_config": {
        "image_size": 1024,
        "mlp_ratio": 4.0,
        "width": {
            "qwen2-0-5b": {"dim": 896},
            "sam_vit_b": {
                "downsample_channels": [512, 896],
                "global_attn_indexes": [2, 5, 8, 11],
                "heads": 12,
                "layers": 12,
                "width": 768,
            },
        },
    },
    "image_token_id": 128815,
}


def _prefill(inputs: DeviceInputs) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "input_ids": inputs.input_ids,
        # Without a mask causality is all that hides, and the class makes none.
        "attention_mask": None if inputs.position_ids is None else inputs.attention_mask,
        "position_ids": inputs.position_ids,
        "pixel_values": inputs.pixel_values,
    }
    if inputs.pixel_values_local is not None:
        arguments["pixel_values_local"] = inputs.pixel_values_local
        arguments["num_local_patches"] = inputs.num_local_patches
    return arguments


def _step(state: StepState) -> dict[str, Any]:
    return {
        "input_ids": state.token[:, None],
        "attention_mask": None if state.position_ids is None else state.attention_mask,
        "position_ids": state.position_ids,
        "past_key_values": state.cache,
    }


NATIVE = Family(
    facts=FAMILIES[DEEPSEEK_OCR_2],
    implementation="native",
    class_name="DeepseekOcr2ForConditionalGeneration",
    modules={
        "sam": "model.vision_tower.sam_encoder",
        "encoder": "model.vision_tower.vision_encoder",
        "projector": "model.multi_modal_projector",
        "language_model": "model.language_model",
        "lm_head": "lm_head",
    },
    parts={
        "encoder": (
            "model.vision_tower.vision_encoder",
            "model.vision_tower.query_768_resolution",
            "model.vision_tower.query_1024_resolution",
        )
    },
    image_arguments=("pixel_values", "pixel_values_local", "num_local_patches"),
    views=native_views,
    prefill_arguments=_prefill,
    step_arguments=_step,
    published=PUBLISHED,
    sizes={**DUMMY_SIZES, "encoder_layers": ("vision_config", "width", "qwen2-0-5b", "layers")},
)
