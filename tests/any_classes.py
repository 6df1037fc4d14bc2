"""Tiny random models of document VLMs that no family describes, saved as a published folder has
them.

Nothing is downloaded: each has the built-in model's tokenizer with the marks of its own class.
"""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from conftest import PAGES
from transformers import PreTrainedTokenizerFast

TEXT = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}
VISION = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
#: The encoder of Qwen's models, and what version 3 has besides.
QWEN_VISION = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "depth": 2,
    "num_heads": 4,
    "out_hidden_size": 64,
}
QWEN3_VISION = {**QWEN_VISION, "num_position_embeddings": 64}
QWEN3_IMAGES = {
    "image_processor_type": "Qwen2VLImageProcessor",
    "patch_size": 16,
    "size": {"shortest_edge": 64 * 64, "longest_edge": 32 * 32 * 48},
}
#: What stands for a page in a prompt of Qwen's models.
QWEN_MARK = "<|vision_start|><|image_pad|><|vision_end|>"
ROTARY = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}
TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}MARK{% else %}{{ part['text'] }}{% endif %}{% endfor %}\n"
    "{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
)


class Folder:
    """What is written of one model: its class and config, and the entries of its processor's
    files.
    """

    def __init__(
        self,
        model_class: str,
        config: Any,
        tokenizer: PreTrainedTokenizerFast,
        *,
        processor: str,
        image_processor: dict[str, Any],
        settings: dict[str, Any] | None = None,
        mark: str | None = None,
    ) -> None:
        self.model_class = model_class
        self.config = config
        self.tokenizer = tokenizer
        self.processor = processor
        self.image_processor = image_processor
        self.settings = settings or {}
        self.mark = mark

    def build(self) -> Any:
        """The model, with weights wide enough that its tokens vary."""
        torch.manual_seed(0)
        model = getattr(transformers, self.model_class)._from_config(self.config).eval()
        torch.manual_seed(1)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.dim() > 1:
                    parameter.normal_(0, 0.25)
        return model

    def save(self, folder: Path) -> Path:
        """The whole folder."""
        self.build().save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)
        write = {
            "preprocessor_config.json": self.image_processor,
            "processor_config.json": {"processor_class": self.processor, **self.settings},
        }
        for name, entries in write.items():
            (folder / name).write_text(json.dumps(entries), encoding="utf-8")
        if self.mark is not None:
            template = TEMPLATE.replace("MARK", self.mark)
            (folder / "chat_template.jinja").write_text(template, encoding="utf-8")
        return folder


def tokenizer_with(*marks: str, **named: str) -> PreTrainedTokenizerFast:
    """The built-in tokenizer with further marks, some of which a processor looks up by name."""
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_file=str(PAGES.parent / "tiny" / "tokenizer.json"),
        bos_token="<｜begin▁of▁sentence｜>",
        eos_token="<｜end▁of▁sentence｜>",
        pad_token="<｜▁pad▁｜>",
        extra_special_tokens=named,
    )
    tokenizer.add_special_tokens({"additional_special_tokens": list(marks)})
    return tokenizer


def text_config(tokenizer: PreTrainedTokenizerFast, **sizes: Any) -> dict[str, Any]:
    """The entries of a language model that has the tokenizer's tokens."""
    marks = {
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
    }
    return {**TEXT, "vocab_size": len(tokenizer), **marks, **sizes}


def qwen_tokenizer() -> PreTrainedTokenizerFast:
    return tokenizer_with(
        "<|vision_start|>",
        "<|vision_end|>",
        image_token="<|image_pad|>",
        video_token="<|video_pad|>",
    )


def qwen_ids(tokenizer: PreTrainedTokenizerFast) -> dict[str, int]:
    """The tokens around and of a page, as the config of Qwen's models names them."""
    return {
        "image_token_id": tokenizer.convert_tokens_to_ids("<|image_pad|>"),
        "video_token_id": tokenizer.convert_tokens_to_ids("<|video_pad|>"),
        "vision_start_token_id": tokenizer.convert_tokens_to_ids("<|vision_start|>"),
        "vision_end_token_id": tokenizer.convert_tokens_to_ids("<|vision_end|>"),
    }


def got_ocr2() -> Folder:
    tokenizer = tokenizer_with(
        "<img>", "</img>", "<|im_start|>", "<|im_end|>", image_token="<imgpad>"
    )
    config = transformers.GotOcr2Config(
        vision_config={
            "hidden_size": 64,
            "output_channels": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "mlp_dim": 128,
            "image_size": 256,
            "patch_size": 4,
            "global_attn_indexes": [],  # attention over all patches takes seconds on a CPU
            "window_size": 8,
        },
        text_config={"model_type": "qwen2", "vocab_size": len(tokenizer), **TEXT},
        image_token_id=tokenizer.convert_tokens_to_ids("<imgpad>"),
    )
    return Folder(
        "GotOcr2ForConditionalGeneration",
        config,
        tokenizer,
        processor="GotOcr2Processor",
        image_processor={
            "image_processor_type": "GotOcr2ImageProcessor",
            "size": {"height": 256, "width": 256},
        },
    )


def paddleocr_vl() -> Folder:
    mark = "<|IMAGE_PLACEHOLDER|>"
    tokenizer = tokenizer_with(image_token=mark)
    config = transformers.PaddleOCRVLConfig(
        vision_config={**VISION, "image_size": 384},
        text_config={
            **TEXT,
            "vocab_size": len(tokenizer),
            "head_dim": 16,
            "pad_token_id": tokenizer.pad_token_id,
            "rope_parameters": ROTARY,
        },
        image_token_id=tokenizer.convert_tokens_to_ids(mark),
        vision_start_token_id=1,
        vision_end_token_id=1,
        video_token_id=2,
    )
    return Folder(
        "PaddleOCRVLForConditionalGeneration",
        config,
        tokenizer,
        processor="PaddleOCRVLProcessor",
        image_processor={
            "image_processor_type": "PaddleOCRVLImageProcessor",
            "min_pixels": 28 * 28,
            "max_pixels": 28 * 28 * 32,
        },
        mark=mark,
    )


def qwen2_5_vl() -> Folder:
    tokenizer = qwen_tokenizer()
    config = transformers.Qwen2_5_VLConfig(
        vision_config={
            **QWEN_VISION,
            "fullatt_block_indexes": [1],
        },
        text_config={
            **TEXT,
            "vocab_size": len(tokenizer),
            "pad_token_id": tokenizer.pad_token_id,
            "rope_parameters": ROTARY,
        },
        **qwen_ids(tokenizer),
    )
    return Folder(
        "Qwen2_5_VLForConditionalGeneration",
        config,
        tokenizer,
        processor="Qwen2_5_VLProcessor",
        image_processor={
            "image_processor_type": "Qwen2VLImageProcessor",
            "min_pixels": 56 * 56,
            "max_pixels": 28 * 28 * 64,
        },
        mark=QWEN_MARK,
    )


def lighton_ocr() -> Folder:
    mark = "<|image_pad|>"
    tokenizer = tokenizer_with(
        image_token=mark, image_break_token="<|vision_pad|>", image_end_token="<|vision_end|>"
    )
    config = transformers.LightOnOcrConfig(
        vision_config={
            **VISION,
            "model_type": "pixtral",
            "head_dim": 16,
            "image_size": 280,
            "patch_size": 14,
        },
        text_config={
            **TEXT,
            "model_type": "qwen3",
            "vocab_size": len(tokenizer),
            "head_dim": 16,
        },
        image_token_id=tokenizer.convert_tokens_to_ids(mark),
        spatial_merge_size=2,
        tie_word_embeddings=False,
    )
    return Folder(
        "LightOnOcrForConditionalGeneration",
        config,
        tokenizer,
        processor="LightOnOcrProcessor",
        image_processor={
            "image_processor_type": "PixtralImageProcessor",
            "size": {"longest_edge": 280},
            "patch_size": {"height": 28, "width": 28},
        },
        settings={"patch_size": 14, "spatial_merge_size": 2},
        mark=mark,
    )


def granite_docling() -> Folder:
    marks = ["<fake_token_around_image>", "<global-img>"]
    for row in range(1, 9):
        marks += [f"<row_{row}_col_{column}>" for column in range(1, 9)]
    tokenizer = tokenizer_with(*marks, image_token="<image>")
    config = transformers.GraniteDoclingConfig(
        vision_config={**VISION, "image_size": 512, "patch_size": 64, "out_hidden_size": 64},
        text_config=text_config(tokenizer),
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        pad_token_id=tokenizer.pad_token_id,
        tie_word_embeddings=False,
    )
    return Folder(
        "GraniteDoclingForConditionalGeneration",
        config,
        tokenizer,
        processor="GraniteDoclingProcessor",
        image_processor={"image_processor_type": "GraniteDoclingImageProcessor"},
        settings={"image_seq_len": 4},
        mark="<image>",
    )


def idefics3() -> Folder:
    """Pages are cut into tiles, and a mask says which pixels of a tile are padding."""
    return _tiled("Idefics3")


def smolvlm() -> Folder:
    """Its own processor needs the package num2words, for videos; Idefics3's does the same to
    pages.
    """
    return _tiled("SmolVLM")


def _tiled(title: str) -> Folder:
    """Idefics3 and SmolVLM, whose classes differ by their names alone."""
    marks = ["<fake_token_around_image>", "<end_of_utterance>", "<global-img>"]
    for row in range(1, 5):
        marks += [f"<row_{row}_col_{column}>" for column in range(1, 5)]
    tokenizer = tokenizer_with(*marks, image_token="<image>")
    config = getattr(transformers, f"{title}Config")(
        vision_config={**VISION, "image_size": 64, "patch_size": 16},
        text_config=text_config(tokenizer, model_type="llama"),
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        scale_factor=2,
    )
    return Folder(
        f"{title}ForConditionalGeneration",
        config,
        tokenizer,
        processor="Idefics3Processor",
        image_processor={
            "image_processor_type": f"{title}ImageProcessor",
            "size": {"longest_edge": 128},
            "max_image_size": {"longest_edge": 64},
            "do_image_splitting": True,
        },
        settings={"image_seq_len": 4},
        mark="<image>",
    )


def glm_ocr() -> Folder:
    marks = ["<|begin_of_video|>", "<|end_of_video|>", "<|begin_of_image|>", "<|end_of_image|>"]
    tokenizer = tokenizer_with(*marks, image_token="<|image|>", video_token="<|video|>")
    ids = tokenizer.convert_tokens_to_ids
    config = transformers.GlmOcrConfig(
        vision_config={
            "hidden_size": 64,
            "intermediate_size": 128,
            "depth": 2,
            "num_heads": 4,
            "out_hidden_size": 64,
        },
        text_config=text_config(tokenizer, head_dim=16, rope_parameters=ROTARY),
        image_token_id=ids("<|image|>"),
        video_token_id=ids("<|video|>"),
        image_start_token_id=ids("<|begin_of_image|>"),
        image_end_token_id=ids("<|end_of_image|>"),
        video_start_token_id=ids("<|begin_of_video|>"),
        video_end_token_id=ids("<|end_of_video|>"),
    )
    return Folder(
        "GlmOcrForConditionalGeneration",
        config,
        tokenizer,
        processor="Glm46VProcessor",
        image_processor={
            "image_processor_type": "Glm46VImageProcessor",
            "size": {"shortest_edge": 112 * 112, "longest_edge": 2 * 28 * 28 * 32},
        },
        mark="<|begin_of_image|><|image|><|end_of_image|>",
    )


def qwen3_vl() -> Folder:
    """Features of several layers of the encoder go into the language model's layers."""
    tokenizer = qwen_tokenizer()
    config = transformers.Qwen3VLConfig(
        vision_config={
            **QWEN3_VISION,
            "deepstack_visual_indexes": [0, 1],
        },
        text_config=text_config(tokenizer, head_dim=16, rope_parameters=ROTARY),
        **qwen_ids(tokenizer),
    )
    return Folder(
        "Qwen3VLForConditionalGeneration",
        config,
        tokenizer,
        processor="Qwen3VLProcessor",
        image_processor=QWEN3_IMAGES,
        mark=QWEN_MARK,
    )


def internvl() -> Folder:
    tokenizer = tokenizer_with(
        context_image_token="<IMG_CONTEXT>",
        start_image_token="<img>",
        end_image_token="</img>",
        video_token="<video>",
    )
    config = transformers.InternVLConfig(
        vision_config={**VISION, "image_size": [56, 56]},
        text_config=text_config(tokenizer, model_type="qwen2"),
        image_token_id=tokenizer.convert_tokens_to_ids("<IMG_CONTEXT>"),
        image_seq_length=4,
    )
    return Folder(
        "InternVLForConditionalGeneration",
        config,
        tokenizer,
        processor="InternVLProcessor",
        image_processor={
            "image_processor_type": "GotOcr2ImageProcessor",
            "size": {"height": 56, "width": 56},
            "crop_to_patches": True,
            "max_patches": 4,
        },
        settings={"image_seq_length": 4},
        mark="<IMG_CONTEXT>",
    )


def gemma3() -> Folder:
    """One layer of two sees a window of the last tokens: the KV cache is of two kinds."""
    tokenizer = tokenizer_with(
        image_token="<image_soft_token>", boi_token="<start_of_image>", eoi_token="<end_of_image>"
    )
    ids = tokenizer.convert_tokens_to_ids
    config = transformers.Gemma3Config(
        vision_config={**VISION, "image_size": 56, "patch_size": 14},
        text_config=text_config(
            tokenizer,
            head_dim=16,
            sliding_window=8,
            layer_types=["sliding_attention", "full_attention"],
        ),
        mm_tokens_per_image=4,
        image_token_index=ids("<image_soft_token>"),
        boi_token_index=ids("<start_of_image>"),
        eoi_token_index=ids("<end_of_image>"),
        tie_word_embeddings=False,
    )
    return Folder(
        "Gemma3ForConditionalGeneration",
        config,
        tokenizer,
        processor="Gemma3Processor",
        image_processor={
            "image_processor_type": "Gemma3ImageProcessor",
            "size": {"height": 56, "width": 56},
        },
        settings={"image_seq_length": 4},
        mark="<start_of_image>",
    )


def llava_onevision() -> Folder:
    tokenizer = tokenizer_with(image_token="<image>", video_token="<video>")
    ids = tokenizer.convert_tokens_to_ids
    cuts = [[28, 28], [28, 56], [56, 28], [56, 56]]
    config = transformers.LlavaOnevisionConfig(
        vision_config={
            **VISION,
            "model_type": "siglip_vision_model",
            "image_size": 28,
            "patch_size": 7,
            "vision_use_head": False,
        },
        text_config=text_config(tokenizer, model_type="qwen2"),
        image_token_index=ids("<image>"),
        video_token_index=ids("<video>"),
        image_grid_pinpoints=cuts,
    )
    return Folder(
        "LlavaOnevisionForConditionalGeneration",
        config,
        tokenizer,
        processor="LlavaOnevisionProcessor",
        image_processor={
            "image_processor_type": "LlavaOnevisionImageProcessor",
            "size": {"height": 28, "width": 28},
            "image_grid_pinpoints": cuts,
        },
        settings={"num_image_tokens": 16, "vision_feature_select_strategy": "full"},
        mark="<image>",
    )


#: The models by their ``model_type``.
FOLDERS: dict[str, Callable[[], Folder]] = {
    "got_ocr2": got_ocr2,
    "paddleocr_vl": paddleocr_vl,
    "qwen2_5_vl": qwen2_5_vl,
    "lighton_ocr": lighton_ocr,
    "granite_docling": granite_docling,
    "idefics3": idefics3,
    "smolvlm": smolvlm,
    "glm_ocr": glm_ocr,
    "qwen3_vl": qwen3_vl,
    "internvl": internvl,
    "gemma3": gemma3,
    "llava_onevision": llava_onevision,
}
