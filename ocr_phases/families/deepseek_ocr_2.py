"""DeepSeek-OCR-2: SAM, then a body of Qwen2 with learnable queries, then DeepSeek-OCR's language
model.
"""

from __future__ import annotations

import json
from pathlib import Path

from ocr_phases.families.facts import CELL_TOKENS, FamilyFacts, Preset, Wiring

#: The second vision encoder (``encoder``) is a body of Qwen2. SAM's features go through it together
#: with queries that were learnt, one set for each size of a view: they are parameters of the stage
#: without being modules of its own.
NATIVE = Wiring(
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
    mask="4-D",
)

DEEPSEEK_OCR_2_FACTS = FamilyFacts(
    name="deepseek-ocr-2",
    title="DeepSeek-OCR-2",
    config=json.loads(Path(__file__).with_suffix(".json").read_bytes()),
    saved_type="deepseek_ocr2",
    second_encoder="encoder",
    encoder_part="qwen2-0-5b",
    # The published file says of this encoder nothing but its width: the rest is that of a
    # Qwen2-0.5B. By default transformers' class has a RoPE base of 10,000: other tokens.
    encoder_defaults={
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "intermediate_size": 4864,
        "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1_000_000.0},
    },
    native=NATIVE,
    presets={
        "small768": Preset(
            "small768",
            base_size=768,
            image_size=768,
            crops=False,
            most_tiles=6,
            squeezes=True,
            row_ends=False,
            small_side=768,
        ),
        "base1024": Preset(
            "base1024",
            base_size=1024,
            image_size=1024,
            crops=False,
            most_tiles=6,
            row_ends=False,
            small_side=768,
        ),
        "crop": Preset(
            "crop",
            base_size=1024,
            image_size=768,
            crops=True,
            most_tiles=6,
            row_ends=False,
            small_side=768,
        ),
    },
    default_preset="crop",
    # Its second encoder has learnt queries for these two, 144 and 256.
    view_sides=(768, 1024),
    stands_for={"tiny": "small768", "small": "small768", "base": "base1024", "gundam": "crop"},
    prompts={
        "markdown": "<image>\n<|grounding|>Convert the document to markdown.",
        "ocr": "<image>\n<|grounding|>OCR this image.",
        "free": "<image>\nFree OCR.",
        "figure": "<image>\nParse the figure.",
        "describe": "<image>\nDescribe this image in detail.",
        "locate": "<image>\nLocate <|ref|>{words}<|/ref|> in the image.",
    },
    # What `infer()` does, without and with its `eval_mode`.
    published={
        "published": {"no_repeat_ngram_size": 20},
        "published-eval": {"no_repeat_ngram_size": 35},
    },
    published_limit=8192,
    # What its scripts for vLLM ask for, with an image and a PDF.
    published_vllm={
        "published-vllm": {
            "no_repeat_ngram_size": 20,
            "no_repeat_ngram_window": 90,
            "whitelist_token_ids": CELL_TOKENS,
        },
        "published-vllm-pdf": {
            "no_repeat_ngram_size": 20,
            "no_repeat_ngram_window": 50,
            "whitelist_token_ids": CELL_TOKENS,
        },
    },
)
