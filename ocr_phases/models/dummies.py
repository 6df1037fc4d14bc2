"""The models that come with the package, by their names: ``tiny``, and ``dummy`` of any sizes.

Needs no torch: what a model costs follows from its config alone.
"""

from __future__ import annotations

import copy
import re
from typing import Any

from ocr_phases.errors import OcrPhasesError
from ocr_phases.families import DEEPSEEK_OCR, FAMILIES, WINDOWED, FamilyFacts
from ocr_phases.text import nearest

#: The preset that suits the built-in weights.
BUILT_IN_PRESET = "small"
_VOCAB = 2048  # of tiny's tokenizer
_UNSAID_LAYERS = 24  # of a vision encoder


def dummy_sizes(facts: FamilyFacts) -> dict[str, tuple[str, ...]]:
    """The keys that lead to each number of a published config that a dummy may have otherwise."""
    sizes: dict[str, tuple[str, ...]] = {
        "layers": ("language_config", "num_hidden_layers"),
        "hidden": ("language_config", "hidden_size"),
        "heads": ("language_config", "num_attention_heads"),
        "experts": ("language_config", "n_routed_experts"),
        "vocab": ("language_config", "vocab_size"),
    }
    for stage, part in facts.encoder_parts.items():
        sizes[f"{stage}_layers"] = ("vision_config", "width", part, "layers")
    if facts.attention == WINDOWED:
        sizes["window"] = ("sliding_window_size",)
    return sizes


def dummy_family(name: str) -> FamilyFacts:
    """The family of ``dummy:FAMILY`` or ``dummy:FAMILY,layers=2,...``, by default DeepSeek-OCR."""
    first = name.partition(":")[2].partition(",")[0]
    return FAMILIES.get(first, FAMILIES[DEEPSEEK_OCR])


def dummy_config(name: str) -> dict[str, Any]:
    """A family's published config with the sizes in ``dummy:layers=2,vocab=2048,...`` put in place.

    ``dummy:FAMILY`` or ``dummy:FAMILY,layers=2,...`` is of another family than DeepSeek-OCR. Raises
    `OcrPhasesError` for a size that there is not, that is too large, or that does not fit the
    others.
    """
    family = dummy_family(name)
    config = copy.deepcopy(dict(family.config))
    sizes = dummy_sizes(family)
    parts = name.partition(":")[2].split(",")
    if parts[0] == family.name:
        parts = parts[1:]
    for part in parts:
        if part:
            _set_size(config, part, sizes)
    text = config["language_config"]
    text["num_key_value_heads"] = text["num_attention_heads"]
    if text["hidden_size"] % text["num_attention_heads"]:
        raise OcrPhasesError("dummy's hidden must be a multiple of its heads: give both.")
    if text["n_routed_experts"] < text["num_experts_per_tok"]:
        raise OcrPhasesError(f"dummy needs at least {text['num_experts_per_tok']} experts.")
    if text["vocab_size"] < _VOCAB:
        raise OcrPhasesError(
            f"dummy needs a vocab of at least {_VOCAB}: its prompts use tiny's tokenizer."
        )
    config["image_token_id"] = min(config["image_token_id"], text["vocab_size"] - 1)
    return config


def _set_size(config: dict[str, Any], part: str, known: dict[str, tuple[str, ...]]) -> None:
    """Put one ``KEY=NUMBER`` of a dummy's name into its config."""
    key, _, value = part.partition("=")
    if key not in known or not re.fullmatch(r"[1-9]\d{0,8}", value):
        raise OcrPhasesError(
            f"{part!r} is no size of dummy: write dummy:KEY=NUMBER,... with {', '.join(known)}, "
            f"or in front of them a family ({', '.join(FAMILIES)})."
            f"{nearest(key, (*known, *FAMILIES))}"
        )
    *sections, entry = known[key]
    sizes = config
    for section in sections:
        sizes = sizes[section]
    # DeepSeek-OCR-2's published file does not say how many layers its second encoder has.
    most = 8 * sizes.get(entry, _UNSAID_LAYERS)
    if int(value) > most:
        raise OcrPhasesError(f"dummy's {key} is {value}: it must be at most {most}.")
    sizes[entry] = int(value)
