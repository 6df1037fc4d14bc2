"""What a model tells of its language model, whatever its class calls it.

Not every class has every entry in its config: where one is missing, the model's own parts tell it.
"""

from __future__ import annotations

from typing import Any

from ocr_phases.text import count_text


def vocabulary_size(model: Any) -> int:
    """The number of logits of a token: ids from there on are those of no token."""
    rows = getattr(model.get_output_embeddings(), "out_features", None)
    if isinstance(rows, int):
        return rows
    return model.config.get_text_config().vocab_size


def position_limit(model: Any) -> int | None:
    """The longest sequence that the config allows, in tokens; None where it sets no limit."""
    limit = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    return limit if isinstance(limit, int) else None


def end_token_of_config(model: Any) -> int | list[int] | None:
    """The end token, or the end tokens, of the language model's config; None for none."""
    return getattr(model.config.get_text_config(), "eos_token_id", None)


def final_softcap(model: Any) -> float | None:
    """The number below which the class bends its logits; None where its config has none."""
    return getattr(model.config.get_text_config(), "final_logit_softcapping", None)


def language_model_text(model: Any) -> str:
    """The number of layers and the hidden size, in words, as far as the config names them."""
    text = model.config.get_text_config()
    words = []
    if getattr(text, "num_hidden_layers", None) is not None:
        words.append(count_text(text.num_hidden_layers, "layer"))
    if getattr(text, "hidden_size", None) is not None:
        words.append(f"hidden size {text.hidden_size:,}")
    return ", ".join(words) or "its sizes are not named"
