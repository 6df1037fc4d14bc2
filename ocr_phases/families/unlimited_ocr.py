"""Unlimited-OCR: DeepSeek-OCR's layout with a window of attention, and several pages a prompt."""

from __future__ import annotations

import json
from pathlib import Path

from ocr_phases.families.facts import WINDOWED, FamilyFacts, Preset, Wiring

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

UNLIMITED_OCR_FACTS = FamilyFacts(
    name="unlimited-ocr",
    title="Unlimited-OCR",
    config=json.loads(Path(__file__).with_suffix(".json").read_bytes()),
    saved_type="unlimited_ocr",
    second_encoder="clip",
    encoder_part="clip-l-14-224",
    attention=WINDOWED,
    native=NATIVE,
    presets={
        "small": Preset(
            "small", base_size=640, image_size=640, crops=False, most_tiles=32, squeezes=True
        ),
        "base": Preset("base", base_size=1024, image_size=1024, crops=False, most_tiles=32),
        "gundam": Preset("gundam", base_size=1024, image_size=640, crops=True, most_tiles=32),
    },
    default_preset="gundam",
    stands_for={"tiny": "small", "small768": "small", "base1024": "base", "crop": "gundam"},
    prompts={
        "markdown": "<image>document parsing.",
        "multipage": "<image>Multi page parsing.",
    },
    # The model marks boxes whatever it is asked, so no tag asks for them.
    page_lead="<image>",
    boxes_tag="",
    published={
        "published": {"no_repeat_ngram_size": 35, "no_repeat_ngram_window": 128},
        "published-eval": {},
    },
    published_limit=32_768,
    limit_has_prompt=True,
    page_mark="<PAGE>",
    result_name="result.md",
    multipage_preset="base",
    multipage_infer={"no_repeat_ngram_window": 1024},
)
