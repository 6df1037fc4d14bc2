"""DeepSeek-OCR: SAM, then CLIP, then a language model with 64 experts a layer."""

from __future__ import annotations

import json
from pathlib import Path

from ocr_phases.families.facts import CELL_TOKENS, FULL, FamilyFacts, Preset, Wiring

#: Unlimited-OCR's class of transformers has this layout and an attention of its own, which full
#: attention in every layer switches off.
NATIVE = Wiring(
    class_name="UnlimitedOcrForConditionalGeneration",
    modules={
        "sam": "model.vision_tower.sam_encoder",
        "clip": "model.vision_tower.vision_encoder",
        "projector": "model.multi_modal_projector",
        "language_model": "model.language_model",
        "lm_head": "lm_head",
    },
    image_arguments=("pixel_values", "pixel_values_local", "num_local_patches", "patches_grid"),
    mask="by attention",
)

#: The class's ``model`` is the language model itself, with the vision parts inside, and calls its
#: text layers through ``super()``: so ``language_model`` runs from the first layer to the last
#: norm. Embedding, fusion and the causal mask come before the first layer: in prefill they are in
#: ``vision_fusion``.
VENDOR = Wiring(
    class_name="DeepseekOCRForCausalLM",
    modules={
        "sam": "model.sam_model",
        "clip": "model.vision_model",
        "projector": "model.projector",
        "lm_head": "lm_head",
    },
    between={"language_model": ("model.layers.0", "model.norm")},
    parts={"language_model": ("model.embed_tokens", "model.layers", "model.norm")},
    image_arguments=("images", "images_seq_mask", "images_spatial_crop"),
    mask="2-D",
)

DEEPSEEK_OCR_FACTS = FamilyFacts(
    name="deepseek-ocr",
    title="DeepSeek-OCR",
    config=json.loads(Path(__file__).with_suffix(".json").read_bytes()),
    saved_type="unlimited_ocr",
    second_encoder="clip",
    encoder_part="clip-l-14-224",
    attention=FULL,
    native=NATIVE,
    vendor=VENDOR,
    presets={
        "tiny": Preset("tiny", base_size=512, image_size=512, crops=False, squeezes=True),
        "small": Preset("small", base_size=640, image_size=640, crops=False, squeezes=True),
        "base": Preset("base", base_size=1024, image_size=1024, crops=False),
        "large": Preset("large", base_size=1280, image_size=1280, crops=False),
        "gundam": Preset("gundam", base_size=1024, image_size=640, crops=True),
    },
    default_preset="gundam",
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
    # What its scripts for vLLM ask for, with an image, a PDF and OmniDocBench.
    published_vllm={
        "published-vllm": {
            "no_repeat_ngram_size": 30,
            "no_repeat_ngram_window": 90,
            "whitelist_token_ids": CELL_TOKENS,
        },
        "published-vllm-pdf": {
            "no_repeat_ngram_size": 20,
            "no_repeat_ngram_window": 50,
            "whitelist_token_ids": CELL_TOKENS,
        },
        "published-vllm-eval": {
            "no_repeat_ngram_size": 40,
            "no_repeat_ngram_window": 90,
            "whitelist_token_ids": CELL_TOKENS,
        },
    },
)
