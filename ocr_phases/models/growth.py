"""How much longer a tokenizer can make a text, read from ``tokenizer.json`` before any of it runs.

Each step of a normalizer may replace a character by several, and the steps multiply: eight that
write 16 characters for each turn a word into gigabytes.
"""

from __future__ import annotations

import base64
import binascii
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from ocr_phases.errors import OcrPhasesError
from ocr_phases.models.folders import read_json

#: Published tokenizers stay below 1,300 in this count: ALBERT's, with NFKD, a table like that of
#: NFKC, and a pattern.
MOST_GROWTH = 10_000
#: No count grows beyond this: a float has an end, and what is more is refused anyway.
_LARGEST_COUNT = 1e300

#: Characters for one, at most, of the steps whose second run in a row changes nothing.
_UNICODE_FORMS = {"NFC": 4, "NFD": 4, "NFKC": 18, "NFKD": 18, "Lowercase": 2, "BertNormalizer": 12}
#: Steps that rewrite a text so that a form may be missing after them.
_REWRITING = ("Replace", "Precompiled", "ByteLevel", "Prepend")
_BYTES_OF_A_CHARACTER = 4


class TokenizerSteps(TypedDict):
    """The parts of ``tokenizer.json`` that rewrite a text.

    The rest is left to the tokenizers library.
    """

    normalizer: NotRequired[Any]
    pre_tokenizer: NotRequired[Any]
    decoder: NotRequired[Any]


def check_growth(path: Path) -> None:
    """Raise `OcrPhasesError` where a part of this ``tokenizer.json`` can fill the memory."""
    content = read_json(path, TokenizerSteps)
    normalizer = _growth(content.get("normalizer"))
    _refuse_large_growth(path, "normalizer", normalizer)
    # The two rewrite the same text one after the other, so their counts multiply.
    pre_tokenizer = normalizer * _growth(content.get("pre_tokenizer"))
    _refuse_large_growth(path, "pre-tokenizer", pre_tokenizer)
    _refuse_large_growth(path, "decoder", _growth(content.get("decoder")))


def _refuse_large_growth(path: Path, part: str, growth: float) -> None:
    """Raise `OcrPhasesError` where a part makes a text longer than any published tokenizer does."""
    if growth > MOST_GROWTH:
        raise OcrPhasesError(
            f"The {part} of {path} can make a text more than {MOST_GROWTH:,} times as long, which "
            "would fill the memory: use the published tokenizer.json of the model."
        )


def _growth(part: Any) -> float:
    """How many times as long a text can become in all steps of a part, at most."""
    growth = 1.0
    settled: set[str] = set()  # forms that the text has since it was last rewritten
    for step in _steps(part):
        kind = str(step.get("type"))
        if kind in _UNICODE_FORMS:
            if kind not in settled:
                growth *= _UNICODE_FORMS[kind]
            settled.add(kind)
            continue
        growth = min(growth * _growth_of_step(kind, step), _LARGEST_COUNT)
        if kind in _REWRITING:
            settled.clear()
    return growth


def _steps(part: Any) -> list[dict[str, Any]]:
    """The steps of a part in their order, out of sequences in sequences."""
    if not isinstance(part, dict):
        return []
    for name in ("normalizers", "pretokenizers", "decoders"):
        sequence = part.get(name)
        if isinstance(sequence, list):
            steps: list[dict[str, Any]] = []
            for inner in sequence:
                steps += _steps(inner)
            return steps
    return [part]


def _growth_of_step(kind: str, step: dict[str, Any]) -> float:
    """Characters that a step can write for one; 1 for one that adds none."""
    if kind == "Replace":
        return _growth_of_replacing(step.get("pattern"), _length(step.get("content")))
    if kind == "Prepend":
        return 1 + _length(step.get("prepend"))
    if kind == "Precompiled":
        return _longest_entry(step.get("precompiled_charsmap"))
    if kind == "ByteLevel":
        return _BYTES_OF_A_CHARACTER
    return 1


def _growth_of_replacing(pattern: Any, written: int) -> float:
    """Characters for one, where ``written`` characters are put in for each match of ``pattern``.

    A text matches its own length. A regular expression may match nothing, before every character.
    """
    if isinstance(pattern, dict):
        literal = pattern.get("String")
        if isinstance(literal, str) and literal:
            return max(1.0, written / len(literal))
    return 1 + written


def _length(text: Any) -> int:
    """The length of a text, and 0 for what is none."""
    return len(text) if isinstance(text, str) else 0


def _longest_entry(charsmap: Any) -> float:
    """The characters of the longest text in a precompiled table, and at least 1.

    The table is the size of a trie in four bytes, the trie, and then the texts, each with a NUL
    behind it.
    """
    try:
        table = base64.b64decode(charsmap, validate=True)
    except (TypeError, ValueError, binascii.Error):
        return 1  # the tokenizers library refuses it
    trie_size = int.from_bytes(table[:4], "little")
    longest = 1
    for text in table[4 + trie_size :].split(b"\0"):
        longest = max(longest, len(text.decode("utf-8", "replace")))
    return longest
