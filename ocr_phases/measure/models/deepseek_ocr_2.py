"""DeepSeek-OCR-2 in transformers' own class: config from the published file, module paths, inputs, steps.

SAM's features and learnable queries go through a body of Qwen2 (``encoder``) in place of CLIP.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ocr_phases.catalogue import DEEPSEEK_OCR_2, FAMILIES
from ocr_phases.config_schema import PUBLISHED as PUBLISHED_TYPE
from ocr_phases.config_schema import (
    QWEN2_SIZES,
    Layout,
    PublishedText,
    SavedQwen2,
    SavedSam,
    SavedText,
    known,
)
from ocr_phases.measure.models.deepseek_ocr import PUBLISHED as FIRST
from ocr_phases.measure.models.family import DUMMY_SIZES, Family, StepState, native_views, published_sam

if TYPE_CHECKING:
    from ocr_phases.measure.inputs.packing import DeviceInputs

#: The published DeepSeek-OCR-2 architecture, in the keys of its own ``config.json``; the language model is
#: DeepSeek-OCR's.
PUBLISHED: dict[str, Any] = {
    "model_type": PUBLISHED_TYPE,
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


def _config(raw: dict[str, Any], layout: Layout) -> Any:
    """transformers' config, every number set: the class does not read the published file.

    Whatever it misses there it takes from a model of other sizes, without an error.
    """
    from transformers import DeepseekOcr2Config

    return DeepseekOcr2Config(**(_saved_parts(raw) if layout.saved else _published_parts(raw)))


def _saved_parts(raw: dict[str, Any]) -> dict[str, Any]:
    """Arguments of transformers' config for the layout that it saves."""
    vision = raw["vision_config"]
    return {
        **{name: raw[name] for name in ("image_token_id", "tie_word_embeddings") if name in raw},
        "text_config": known(raw["text_config"], SavedText),
        "vision_config": {
            "sam_config": known(vision["sam_config"], SavedSam),
            "encoder_config": known(vision["encoder_config"], SavedQwen2),
        },
    }


def _published_parts(raw: dict[str, Any]) -> dict[str, Any]:
    """The same for the published layout, which says of the encoder only how wide it is."""
    text = known(raw["language_config"], PublishedText)
    layers, dense = text["num_hidden_layers"], text.pop("first_k_dense_replace", 1)
    text["mlp_layer_types"] = ["dense" if number < dense else "sparse" for number in range(layers)]
    text["rope_parameters"] = {"rope_type": "default", "rope_theta": text.pop("rope_theta", 10_000.0)}
    encoder = {**QWEN2_SIZES, **raw["vision_config"]["width"]["qwen2-0-5b"]}
    encoder_config = {
        "hidden_size": encoder["dim"],
        "intermediate_size": encoder["intermediate_size"],
        "num_hidden_layers": encoder["layers"],
        "num_attention_heads": encoder["heads"],
        "num_key_value_heads": encoder["kv_heads"],
        "rms_norm_eps": 1e-6,
        # The class's own 10,000 gives other tokens.
        "rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000.0},
    }
    return {
        "text_config": text,
        "vision_config": {
            "sam_config": published_sam(raw["vision_config"]),
            "encoder_config": encoder_config,
        },
        "image_token_id": raw.get("image_token_id", PUBLISHED["image_token_id"]),
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
    whole_mask = state.position_ids is not None or state.exact_mask
    return {
        "input_ids": state.token[:, None],
        "attention_mask": state.attention_mask if whole_mask else None,
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
    config=_config,
    published=PUBLISHED,
    sizes={**DUMMY_SIZES, "encoder_layers": ("vision_config", "width", "qwen2-0-5b", "layers")},
)
