"""Unlimited-OCR in transformers' own class: DeepSeek-OCR's layout with reference sliding-window attention.

A generated token sees the whole prompt and the last ``window`` generated tokens, so the KV cache stops
growing. A cache that does not know of the window gives full attention without a word.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ocr_phases.families import FAMILIES, UNLIMITED_OCR
from ocr_phases.models.deepseek_ocr import NATIVE as FIRST
from ocr_phases.models.deepseek_ocr import (
    UNPADDED,
    prefill_arguments,
    ready_mask,
    window_of,
)
from ocr_phases.models.family import Family, StepState, native_views

#: The published Unlimited-OCR architecture: DeepSeek-OCR's sizes, more positions and a window.
PUBLISHED: dict[str, Any] = {
    **FIRST.published,
    "model_type": FAMILIES[UNLIMITED_OCR].published_type,
    "language_config": {**FIRST.published["language_config"], "max_position_embeddings": 32768},
    "sliding_window_size": 128,
}


def slot_mask(mask: Tensor, prompt_len: int, window: int) -> Tensor:
    """Bool [B, 1, 1, entries] over the cache's slots, of a mask [B, length] over all tokens so far.

    The slots are those of the prompt, then of the last ``window`` generated tokens.
    """
    return torch.cat([mask[:, :prompt_len], mask[:, prompt_len:][:, -window:]], dim=1).bool()[:, None, None]


def _step(state: StepState) -> dict[str, Any]:
    mask: Any = UNPADDED
    if state.position_ids is not None and state.window is not None:
        # From a 2-D mask the class takes, once the window is full, the padding of other slots.
        mask = ready_mask(slot_mask(state.attention_mask, state.lengths[0], state.window))
    return {
        "input_ids": state.token[:, None],
        "attention_mask": mask,
        "position_ids": state.position_ids,
        "past_key_values": state.cache,
    }


NATIVE = Family(
    facts=FAMILIES[UNLIMITED_OCR],
    implementation="native",
    class_name=FIRST.class_name,
    modules=FIRST.modules,
    image_arguments=FIRST.image_arguments,
    views=native_views,
    drives=lambda model: window_of(model) is not None,
    window=window_of,
    prefill_arguments=prefill_arguments,
    step_arguments=_step,
    ready_mask=ready_mask,
    published=PUBLISHED,
    sizes={**FIRST.sizes, "window": ("sliding_window_size",)},
)
