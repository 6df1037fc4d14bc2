"""How long the KV cache of a captured or compiled step is; needs no torch."""

from __future__ import annotations

from ocr_phases.families import windowed_length

#: Entries that a cache has room for unless a run needs more: DeepSeek-OCR's longest sequence.
#: Nearly all prompts and limits so share one step, which may take a minute to compile.
CAPACITY = 8192


def power_of_two(least: int, needed: int) -> int:
    """The smallest of ``least`` and its doubles that is not below ``needed``."""
    value = least
    while value < needed:
        value *= 2
    return value


def capacity_for(prompt_len: int, max_new_tokens: int, window: int | None = None) -> int:
    """The length of a static cache with room for a prompt and what is kept of generated tokens."""
    return power_of_two(CAPACITY, windowed_length(prompt_len + max_new_tokens, prompt_len, window))
