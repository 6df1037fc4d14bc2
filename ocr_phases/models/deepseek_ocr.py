"""DeepSeek-OCR in transformers' own class: published sizes, module paths, inputs, steps.

The class is Unlimited-OCR's, which has this layout and its own attention
(`ocr_phases.models.unlimited_ocr`); here every layer has full attention.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ocr_phases.families import DEEPSEEK_OCR, FAMILIES, FULL, WINDOWED
from ocr_phases.models.family import DUMMY_SIZES, Family, StepState, native_views

if TYPE_CHECKING:
    from torch import Tensor

    from ocr_phases.inputs.packing import DeviceInputs

#: The published DeepSeek-OCR architecture, in the keys of its own ``config.json``.
PUBLISHED: dict[str, Any] = {
    "model_type": FAMILIES[DEEPSEEK_OCR].published_type,
    "language_config": {
        "bos_token_id": 0,
        "eos_token_id": 1,
        "first_k_dense_replace": 1,
        "hidden_size": 1280,
        "intermediate_size": 6848,
        "max_position_embeddings": 8192,
        "moe_intermediate_size": 896,
        "n_routed_experts": 64,
        "n_shared_experts": 2,
        "num_attention_heads": 10,
        "num_experts_per_tok": 6,
        "num_hidden_layers": 12,
        "num_key_value_heads": 10,
        "vocab_size": 129280,
    },
    "vision_config": {
        "image_size": 1024,
        "mlp_ratio": 4.0,
        "width": {
            "clip-l-14-224": {"heads": 16, "image_size": 224, "layers": 24, "patch_size": 14, "width": 1024},
            "sam_vit_b": {
                "downsample_channels": [512, 1024],
                "global_attn_indexes": [2, 5, 8, 11],
                "heads": 12,
                "layers": 12,
                "width": 768,
            },
        },
    },
    "image_token_id": 128815,
}


def window_of(model: Any) -> int | None:
    """How many generated tokens a step of a model of this class sees, its own among them; None for all."""
    text = model.config.get_text_config()
    return text.sliding_window if set(text.layer_types) == {WINDOWED} else None


def ready_mask(mask: Tensor | None) -> dict[str, Any]:
    """A mask that the class takes as it is: None hides nothing but what comes later."""
    # Building two masks from the 2-D one, which this class otherwise does at every step, is then skipped.
    return {FULL: mask, WINDOWED: mask}


UNPADDED = ready_mask(None)


def prefill_arguments(inputs: DeviceInputs) -> dict[str, Any]:
    """The keyword arguments of a prefill's forward."""
    arguments: dict[str, Any] = {
        "input_ids": inputs.input_ids,
        "attention_mask": UNPADDED if inputs.position_ids is None else inputs.attention_mask,
        "position_ids": inputs.position_ids,
        "pixel_values": inputs.pixel_values,
    }
    if inputs.pixel_values_local is not None:
        arguments["pixel_values_local"] = inputs.pixel_values_local
        arguments["num_local_patches"] = inputs.num_local_patches
        arguments["patches_grid"] = inputs.patches_grid
    return arguments


def _step(state: StepState) -> dict[str, Any]:
    return {
        "input_ids": state.token[:, None],
        "attention_mask": UNPADDED if state.position_ids is None else state.attention_mask,
        "position_ids": state.position_ids,
        "past_key_values": state.cache,
    }


SIZES = {**DUMMY_SIZES, "clip_layers": ("vision_config", "width", "clip-l-14-224", "layers")}

NATIVE = Family(
    facts=FAMILIES[DEEPSEEK_OCR],
    implementation="native",
    class_name="UnlimitedOcrForConditionalGeneration",
    modules={
        "sam": "model.vision_tower.sam_encoder",
        "clip": "model.vision_tower.vision_encoder",
        "projector": "model.multi_modal_projector",
        "language_model": "model.language_model",
        "lm_head": "lm_head",
    },
    image_arguments=("pixel_values", "pixel_values_local", "num_local_patches", "patches_grid"),
    views=native_views,
    drives=lambda model: window_of(model) is None,
    prefill_arguments=prefill_arguments,
    step_arguments=_step,
    ready_mask=ready_mask,
    published=PUBLISHED,
    sizes=SIZES,
)
