"""More tiny document VLMs, one for each way in which a class differs from the others."""

from collections.abc import Callable
from typing import Any

import transformers
from any_classes import (
    QWEN3_IMAGES,
    QWEN3_VISION,
    QWEN_MARK,
    ROTARY,
    VISION,
    Folder,
    qwen_ids,
    qwen_tokenizer,
    text_config,
    tokenizer_with,
)

SQUARE = {"height": 56, "width": 56}
CLIP = {**VISION, "model_type": "clip_vision_model", "image_size": 56, "patch_size": 14}
SIGLIP = {
    **VISION,
    "model_type": "siglip_vision_model",
    "image_size": 56,
    "patch_size": 14,
    "vision_use_head": False,
}
#: Layers with a state of a fixed size, beside one that attends.
HYBRID = {
    "head_dim": 16,
    "layer_types": ["linear_attention", "full_attention"],
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
}


def qwen3_5() -> Folder:
    """Most layers of the language model have no KV cache, but a state of a fixed size."""
    tokenizer = qwen_tokenizer()
    rotary = {**ROTARY, "mrope_section": [2, 1, 1], "partial_rotary_factor": 0.5}
    config = transformers.Qwen3_5Config(
        vision_config=QWEN3_VISION,
        text_config=text_config(tokenizer, rope_parameters=rotary, **HYBRID),
        **qwen_ids(tokenizer),
    )
    return Folder(
        "Qwen3_5ForConditionalGeneration",
        config,
        tokenizer,
        processor="Qwen3VLProcessor",
        image_processor=QWEN3_IMAGES,
        mark=QWEN_MARK,
    )


def minicpmv4_6() -> Folder:
    """Its processor reads settings of a part for video, which pages do not need."""
    tokenizer = tokenizer_with(
        image_token="<|image_pad|>",
        video_token="<|video_pad|>",
        image_start_token="<image>",
        image_end_token="</image>",
        slice_start_token="<slice>",
        slice_end_token="</slice>",
        image_id_start_token="<image_id>",
        image_id_end_token="</image_id>",
    )
    ids = tokenizer.convert_tokens_to_ids
    config = transformers.MiniCPMV4_6Config(
        vision_config={**VISION, "image_size": 112, "patch_size": 14, "insert_layer_id": 1},
        insert_layer_id=1,
        text_config=text_config(tokenizer, model_type="qwen3_5_text", **HYBRID),
        image_token_id=ids("<|image_pad|>"),
        video_token_id=ids("<|video_pad|>"),
    )
    return Folder(
        "MiniCPMV4_6ForConditionalGeneration",
        config,
        tokenizer,
        processor="MiniCPMV4_6Processor",
        image_processor={
            "image_processor_type": "MiniCPMV4_6ImageProcessor",
            "scale_resolution": 112,
            "max_slice_nums": 4,
        },
        mark="<|image_pad|>",
    )


def granite4_vision() -> Folder:
    """It returns no KV cache unless it is given one, and scales its logits."""
    tokenizer = tokenizer_with(image_token="<image>")
    cuts = [[64, 128], [128, 64], [128, 128]]
    config = transformers.Granite4VisionConfig(
        vision_config={**SIGLIP, "image_size": 64, "patch_size": 16},
        text_config=text_config(tokenizer, num_hidden_layers=4, logits_scaling=8.0),
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        image_grid_pinpoints=cuts,
        deepstack_layer_map=[[0, 0]],
        spatial_target_layers=[0, 1, 2, 3],
        downsample_rate="1/2",
        vision_feature_layer=-1,
        vision_feature_select_strategy="full",
    )
    return Folder(
        "Granite4VisionForConditionalGeneration",
        config,
        tokenizer,
        processor="Granite4VisionProcessor",
        image_processor={
            "image_processor_type": "LlavaNextImageProcessor",
            "size": {"height": 64, "width": 64},
            "crop_size": {"height": 64, "width": 64},
            "image_grid_pinpoints": cuts,
        },
        settings={
            "patch_size": 16,
            "vision_feature_select_strategy": "full",
            "downsample_rate": "1/2",
        },
        mark="<image>",
    )


def mllama() -> Folder:
    """Layers of its language model attend to the page, which has one token in the prompt."""
    tokenizer = tokenizer_with("<|python_tag|>", image_token="<|image|>")
    config = transformers.MllamaConfig(
        vision_config={
            "hidden_size": 64,
            "intermediate_size": 128,
            "num_hidden_layers": 2,
            "attention_heads": 4,
            "image_size": 56,
            "patch_size": 14,
            "num_global_layers": 1,
            "intermediate_layers_indices": [0, 1],
            "vision_output_dim": 192,
            "max_num_tiles": 2,
            "supported_aspect_ratios": [[1, 1], [1, 2], [2, 1]],
        },
        text_config=text_config(
            tokenizer,
            num_hidden_layers=4,
            cross_attention_layers=[1, 3],
            rope_parameters={"rope_type": "default", "rope_theta": 1e4},
            vocab_size=len(tokenizer) - 1,
        ),
        image_token_index=tokenizer.convert_tokens_to_ids("<|image|>"),
    )
    return Folder(
        "MllamaForConditionalGeneration",
        config,
        tokenizer,
        processor="MllamaProcessor",
        image_processor={
            "image_processor_type": "MllamaImageProcessor",
            "size": SQUARE,
            "max_image_tiles": 2,
        },
        mark="<|image|>",
    )


def aya_vision() -> Folder:
    """Windows in some layers, and logits that are scaled."""
    tokenizer = tokenizer_with(
        "<|IMG_LINE_BREAK|>",
        "TILE",
        "TILE_GLOBAL",
        image_token="<image>",
        start_of_img_token="<|START_OF_IMG|>",
        end_of_img_token="<|END_OF_IMG|>",
        img_patch_token="<|IMG_PATCH|>",
    )
    config = transformers.AyaVisionConfig(
        vision_config=SIGLIP,
        text_config=text_config(
            tokenizer,
            model_type="cohere2",
            head_dim=16,
            sliding_window=16,
            layer_types=["sliding_attention", "full_attention"],
            logit_scale=0.25,
        ),
        image_token_index=tokenizer.convert_tokens_to_ids("<|IMG_PATCH|>"),
        downsample_factor=2,
        adapter_layer_norm_eps=1e-6,
    )
    return Folder(
        "AyaVisionForConditionalGeneration",
        config,
        tokenizer,
        processor="AyaVisionProcessor",
        image_processor={
            "image_processor_type": "GotOcr2ImageProcessor",
            "size": SQUARE,
            "crop_to_patches": True,
            "max_patches": 4,
        },
        settings={
            "patch_size": 14,
            "img_size": 56,
            "downsample_factor": 2,
            "image_token": "<image>",
        },
        mark="<image>",
    )


def gemma4() -> Folder:
    """Layers share the KV cache of others, and the processor has parts for sound and video."""
    tokenizer = tokenizer_with(
        "<|video|>",
        image_token="<image_soft_token>",
        boi_token="<start_of_image>",
        eoi_token="<end_of_image>",
        audio_token="<audio_soft_token>",
        boa_token="<start_of_audio>",
        eoa_token="<end_of_audio>",
    )
    ids = tokenizer.convert_tokens_to_ids
    config = transformers.Gemma4Config(
        text_config=text_config(
            tokenizer,
            num_hidden_layers=3,
            layer_types=["sliding_attention", "full_attention", "full_attention"],
            vocab_size_per_layer_input=len(tokenizer),
            hidden_size_per_layer_input=8,
            sliding_window=8,
            head_dim=16,
            num_kv_shared_layers=1,
            final_logit_softcapping=5.0,
        ),
        vision_config={**VISION, "num_key_value_heads": 4, "head_dim": 16},
        image_token_id=ids("<image_soft_token>"),
        boi_token_id=ids("<start_of_image>"),
        eoi_token_id=ids("<end_of_image>"),
        audio_token_id=ids("<audio_soft_token>"),
        video_token_id=ids("<|video|>"),
    )
    return Folder(
        "Gemma4ForConditionalGeneration",
        config,
        tokenizer,
        processor="Gemma4Processor",
        image_processor={
            "image_processor_type": "Gemma4ImageProcessor",
            "max_soft_tokens": 70,
        },
        settings={"image_seq_length": 70},
        mark="<image_soft_token>",
    )


def ernie4_5_vl_moe() -> Folder:
    """Tokens of a page and of text have experts of their own."""
    tokenizer = tokenizer_with(
        image_token="<|IMAGE_PLACEHOLDER|>",
        image_start_token="<|IMAGE_START|>",
        image_end_token="<|IMAGE_END|>",
        video_token="<|VIDEO_PLACEHOLDER|>",
        video_start_token="<|VIDEO_START|>",
        video_end_token="<|VIDEO_END|>",
    )
    ids = tokenizer.convert_tokens_to_ids
    config = transformers.Ernie4_5_VLMoeConfig(
        vision_config={"hidden_size": 64, "intermediate_size": 128, "depth": 2, "num_heads": 4},
        text_config=text_config(
            tokenizer,
            moe_intermediate_size=[32, 32],
            moe_num_experts=4,
            moe_k=2,
            rope_parameters={**ROTARY, "mrope_section": [3, 3, 2]},
        ),
        image_token_id=ids("<|IMAGE_PLACEHOLDER|>"),
        image_start_token_id=ids("<|IMAGE_START|>"),
        image_end_token_id=ids("<|IMAGE_END|>"),
        video_token_id=ids("<|VIDEO_PLACEHOLDER|>"),
        video_start_token_id=ids("<|VIDEO_START|>"),
        video_end_token_id=ids("<|VIDEO_END|>"),
    )
    return Folder(
        "Ernie4_5_VLMoeForConditionalGeneration",
        config,
        tokenizer,
        processor="Ernie4_5_VLMoeProcessor",
        image_processor={
            "image_processor_type": "Ernie4_5_VLMoeImageProcessor",
            "size": {"shortest_edge": 56 * 56, "longest_edge": 28 * 28 * 64},
        },
        mark="<|IMAGE_START|><|IMAGE_PLACEHOLDER|><|IMAGE_END|>",
    )


def idefics2() -> Folder:
    """A resampler makes the same number of features of every page."""
    tokenizer = tokenizer_with("<fake_token_around_image>", "<end_of_utterance>", "<image>")
    config = transformers.Idefics2Config(
        vision_config={**VISION, "image_size": 112, "patch_size": 14},
        perceiver_config={
            "resampler_n_latents": 4,
            "resampler_depth": 1,
            "resampler_n_heads": 4,
            "resampler_head_dim": 16,
            "num_key_value_heads": 2,
            "hidden_size": 64,
        },
        text_config=text_config(tokenizer, model_type="mistral", head_dim=16),
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
    )
    return Folder(
        "Idefics2ForConditionalGeneration",
        config,
        tokenizer,
        processor="Idefics2Processor",
        image_processor={
            "image_processor_type": "Idefics2ImageProcessor",
            "size": {"longest_edge": 112, "shortest_edge": 56},
            "do_image_splitting": False,
        },
        settings={"image_seq_len": 4},
        mark="<image>",
    )


def video_llava() -> Folder:
    """One processor for pages and for video, and a tower for each."""
    tokenizer = tokenizer_with(image_token="<image>", video_token="<video>")
    ids = tokenizer.convert_tokens_to_ids
    config = transformers.VideoLlavaConfig(
        vision_config=CLIP,
        text_config=text_config(tokenizer, model_type="llama"),
        image_token_index=ids("<image>"),
        video_token_index=ids("<video>"),
    )
    return Folder(
        "VideoLlavaForConditionalGeneration",
        config,
        tokenizer,
        processor="VideoLlavaProcessor",
        image_processor={
            "image_processor_type": "VideoLlavaImageProcessor",
            "size": {"shortest_edge": 56},
            "crop_size": SQUARE,
        },
        settings={
            "patch_size": 14,
            "vision_feature_select_strategy": "default",
            "num_additional_image_tokens": 1,
        },
        mark="<image>",
    )


def kosmos2_5() -> Folder:
    """Its config names no image token, and its processor has no chat template."""
    tokenizer = tokenizer_with(image_token="<s>", boi_token="<image>", eoi_token="</image>")
    sizes: dict[str, Any] = {"embed_dim": 64, "layers": 2, "ffn_dim": 128, "attention_heads": 4}
    marks = text_config(tokenizer)
    named = ("vocab_size", "pad_token_id", "bos_token_id", "eos_token_id")
    config = transformers.Kosmos2_5Config(
        vision_config={
            "hidden_size": 64,
            "patch_embed_hidden_size": 768,
            "d_ff": 128,
            "d_kv": 16,
            "head_dim": 16,
            "intermediate_size": 128,
            # Its processor always makes 4,096 patches, so attention has to be small.
            "num_hidden_layers": 1,
            "num_attention_heads": 1,
        },
        text_config={**sizes, **{name: marks[name] for name in named}},
        latent_query_num=16,
    )
    return Folder(
        "Kosmos2_5ForConditionalGeneration",
        config,
        tokenizer,
        processor="Kosmos2_5Processor",
        image_processor={"image_processor_type": "Kosmos2_5ImageProcessor"},
        settings={"num_image_tokens": 16},
    )


#: The models by their ``model_type``.
MORE_FOLDERS: dict[str, Callable[[], Folder]] = {
    "qwen3_5": qwen3_5,
    "minicpmv4_6": minicpmv4_6,
    "granite4_vision": granite4_vision,
    "mllama": mllama,
    "aya_vision": aya_vision,
    "gemma4": gemma4,
    "ernie4_5_vl_moe": ernie4_5_vl_moe,
    "idefics2": idefics2,
    "video_llava": video_llava,
    "kosmos-2.5": kosmos2_5,
}
