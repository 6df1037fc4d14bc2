"""The built-in model's tokenizer: its ids are those the weights were trained with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

transformers = pytest.importorskip("transformers")

TINY = Path(__file__).resolve().parents[1] / "data" / "tiny"
BOS, EOS, PAD, IMAGE = 0, 1, 2, 3
SPECIAL = {
    "<｜begin▁of▁sentence｜>": BOS,
    "<｜end▁of▁sentence｜>": EOS,
    "<｜▁pad▁｜>": PAD,
    "<image>": IMAGE,
    "<|ref|>": 4,
    "<|/ref|>": 5,
    "<|det|>": 6,
    "<|/det|>": 7,
    "<|grounding|>": 8,
}
PIECES = (
    ["[[", ", ", "]]", "\n", "\n\n", "# ", "<table>", "</table>", "<tr>", "</tr>", "<td>", "</td>"]
    + ["title", "text", "table", "image", "Convert", " the", " document", " to", " markdown"]
)  # fmt: skip
FIRST_PIECE, FIRST_NUMBER, FIRST_CHARACTER = 9, 30, 1030
CHARACTERS = "".join(chr(c) for c in range(32, 127) if chr(c) not in "<>[]{}\\^`|~_") + "€£°"
#: What each id prints, in order.
PRINTED = [*SPECIAL, *PIECES, *map(str, range(1000)), *CHARACTERS]


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return transformers.PreTrainedTokenizerFast(tokenizer_file=str(TINY / "tokenizer.json"))


def encode(tokenizer: Any, text: str) -> list[int]:
    return tokenizer.encode(text, add_special_tokens=False)


def test_every_id_prints_what_the_model_was_trained_to_mean(tokenizer: Any) -> None:
    assert len(tokenizer) == len(PRINTED) == 1116
    assert [tokenizer.decode([i]) for i in range(len(PRINTED))] == PRINTED
    assert len(PRINTED) <= json.loads((TINY / "config.json").read_text())["text_config"]["vocab_size"]


def test_the_prompt_has_the_trained_ids(tokenizer: Any) -> None:
    prompt = "\n<|grounding|>Convert the document to markdown."
    assert encode(tokenizer, prompt) == [12, 8, 25, 26, 27, 28, 29, 1044]
    assert encode(tokenizer, "<image>" + prompt)[0] == IMAGE


@pytest.mark.parametrize(("token", "number"), SPECIAL.items())
def test_special_tokens_are_single_ids(tokenizer: Any, token: str, number: int) -> None:
    assert encode(tokenizer, token) == [number]
    assert encode(tokenizer, f"a{token}b")[1:-1] == [number]
    assert tokenizer.decode([number], skip_special_tokens=False) == token
    assert tokenizer.decode([number], skip_special_tokens=True) == ""


@pytest.mark.parametrize("skip", [False, True])
def test_a_sentence_survives_the_round_trip(tokenizer: Any, skip: bool) -> None:
    for text in ("Total 12 450,00 € at 20 °C", "the theory , of\n\nthe document .", CHARACTERS):
        assert tokenizer.decode(encode(tokenizer, text), skip_special_tokens=skip) == text


def test_typed_digits_and_coordinates_are_different_tokens(tokenizer: Any) -> None:
    digit = FIRST_CHARACTER + CHARACTERS.index("0")
    assert encode(tokenizer, "120") == [digit + 1, digit + 2, digit]
    assert tokenizer.decode([FIRST_NUMBER + 120]) == "120"
    assert tokenizer.decode([FIRST_NUMBER + 1, FIRST_NUMBER + 20]) == "120"
    coordinate = tokenizer.convert_ids_to_tokens(FIRST_NUMBER + 12)
    assert all(i >= FIRST_CHARACTER for i in encode(tokenizer, coordinate))


def test_a_generated_page_decodes_to_the_plain_text(tokenizer: Any) -> None:
    piece = {text: FIRST_PIECE + i for i, text in enumerate(PIECES)}
    box = [piece["[["], *(FIRST_NUMBER + 7, piece[", "]) * 3, FIRST_NUMBER + 999, piece["]]"]]
    ids = [BOS, 4, piece["title"], 5, 6, *box, 7, piece["\n"], piece["# "], *encode(tokenizer, "No. 7"), EOS]
    markdown = "<|ref|>title<|/ref|><|det|>[[7, 7, 7, 999]]<|/det|>\n# No. 7"
    assert tokenizer.decode(ids) == f"<｜begin▁of▁sentence｜>{markdown}<｜end▁of▁sentence｜>"
    cell = [piece[t] for t in ("<table>", "<tr>", "<td>")]
    assert tokenizer.decode(cell) == "<table><tr><td>"
    assert encode(tokenizer, "<table><tr><td>") == cell


def test_unknown_characters_become_question_marks(tokenizer: Any) -> None:
    assert tokenizer.decode(encode(tokenizer, "ž{漢}🙂 ok")) == "????? ok"


def test_the_folder_names_its_tokens() -> None:
    loaded = transformers.PreTrainedTokenizerFast.from_pretrained(TINY)
    assert (loaded.bos_token_id, loaded.eos_token_id, loaded.pad_token_id) == (BOS, EOS, PAD)
    assert loaded.decode(encode(loaded, "why? ok ."), skip_special_tokens=True) == "why? ok ."
    config = json.loads((TINY / "config.json").read_text())
    assert config["image_token_id"] == IMAGE
    assert config["text_config"]["eos_token_id"] == EOS
