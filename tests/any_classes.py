"""Tiny random models of document VLMs that no family describes, saved as a published folder has them.

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
ROTARY = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]}
TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}: {% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}MARK{% else %}{{ part['text'] }}{% endif %}{% endfor %}\n"
    "{% endfor %}{% if add_generation_prompt %}assistant: {% endif %}"
)


class Folder:
    """What is written of one model: its class and config, and the entries of its processor's files."""

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
            "image_size": 1024,
            "patch_size": 16,
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
            "size": {"height": 1024, "width": 1024},
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
    tokenizer = tokenizer_with(
        "<|vision_start|>",
        "<|vision_end|>",
        image_token="<|image_pad|>",
        video_token="<|video_pad|>",
    )
    ids = tokenizer.convert_tokens_to_ids
    config = transformers.Qwen2_5_VLConfig(
        vision_config={
            "hidden_size": 64,
            "intermediate_size": 128,
            "depth": 2,
            "num_heads": 4,
            "out_hidden_size": 64,
            "fullatt_block_indexes": [1],
        },
        text_config={
            **TEXT,
            "vocab_size": len(tokenizer),
            "pad_token_id": tokenizer.pad_token_id,
            "rope_parameters": ROTARY,
        },
        image_token_id=ids("<|image_pad|>"),
        video_token_id=ids("<|video_pad|>"),
        vision_start_token_id=ids("<|vision_start|>"),
        vision_end_token_id=ids("<|vision_end|>"),
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
        mark="<|vision_start|><|image_pad|><|vision_end|>",
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


#: The models by their ``model_type``.
FOLDERS: dict[str, Callable[[], Folder]] = {
    "got_ocr2": got_ocr2,
    "paddleocr_vl": paddleocr_vl,
    "qwen2_5_vl": qwen2_5_vl,
    "lighton_ocr": lighton_ocr,
}
