"""The built-in model's tokenizer: coordinates are single tokens, and any text survives."""

from __future__ import annotations

import json
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from ocr_phases.models.load import load_tokenizer

TINY = Path(__file__).resolve().parents[1] / "data" / "tiny"
PUBLISHED = ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>", "<image>")
MARKS = ("<|ref|>", "<|/ref|>", "<|det|>", "<|/det|>", "<|grounding|>")
SPECIAL = {token: number for number, token in enumerate((*PUBLISHED, *MARKS))}
TOKENIZER = load_tokenizer(TINY)


def encode(text: str) -> list[int]:
    return TOKENIZER.encode(text, add_special_tokens=False)


def test_special_tokens_are_single_ids() -> None:
    config = json.loads((TINY / "config.json").read_text())
    assert len(TOKENIZER) == config["text_config"]["vocab_size"] == 2048
    assert config["image_token_id"] == SPECIAL["<image>"]
    for token, number in SPECIAL.items():
        assert encode(token) == encode(f"a{token}b")[1:-1] == [number]
        assert TOKENIZER.decode([number]) == token


def test_each_coordinate_is_one_token_apart_from_typed_digits() -> None:
    printed: dict[str, list[int]] = {}
    for number in range(len(TOKENIZER)):
        printed.setdefault(TOKENIZER.decode([number]), []).append(number)
    assert set(map(str, range(1000))) <= set(printed)
    for digit in "0123456789":
        assert (len(printed[digit]), len(encode(digit))) == (2, 1)
    assert len(encode("987")) == 3


@given(st.text(max_size=40))
def test_any_text_survives(text: str) -> None:
    assert TOKENIZER.decode(encode(text)) == text
