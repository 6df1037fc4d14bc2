"""A checkpoint's tokenizer, out of ``tokenizer.json`` alone, and the text that each token adds.

The file is read by the tokenizers library. No class that a folder names, and no code in it, runs.
"""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Any

from ocr_phases.errors import OcrPhasesError, first_line
from ocr_phases.families.config import TokenizerLabels
from ocr_phases.models.folders import read_json
from ocr_phases.models.growth import check_growth
from ocr_phases.models.stored import check_beginning_of

#: The tags of DeepSeek-OCR's prompts and answers, each of which has to be one token.
SPECIAL_TOKENS = ("<image>", "<|ref|>", "<|/ref|>", "<|det|>", "<|/det|>", "<|grounding|>")
#: A sentence with spaces, digits and characters beyond ASCII, which has to come back unchanged.
ROUND_TRIP = "Total 12 450,00 € at 20 °C"
#: What the library says of a part of a file that is valid JSON, but that its version does not know.
_UNKNOWN_PART = ("untagged enum", "unknown variant", "unknown field", "missing field")
_REPLACEMENT = "ï¿½"  # U+FFFD as byte-level tokenizers spell it, a character a byte


def load_tokenizer(folder: Path) -> Any:
    """The fast tokenizer of ``tokenizer.json``, whatever class the folder's label claims.

    Raises `OcrPhasesError` for a file that is missing or none, and as `check_growth` and
    `check_tokenizer` do.
    """
    from transformers import PreTrainedTokenizerFast

    path = _tokenizer_file(folder)
    labels = read_json(folder / "tokenizer_config.json", TokenizerLabels, missing={})
    special_tokens = {}
    for role in ("bos_token", "eos_token", "pad_token"):
        label = labels.get(role)
        if label:
            special_tokens[role] = label["content"] if isinstance(label, dict) else label
    try:
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_file=str(path), clean_up_tokenization_spaces=False, **special_tokens
        )
    except Exception as error:  # the tokenizers library raises no narrower class for a bad file
        raise OcrPhasesError(f"{path} {_tokenizer_problem(error)}.") from error
    check_tokenizer(tokenizer, f"in {folder}")
    return tokenizer


def _tokenizer_file(folder: Path) -> Path:
    """The path of a folder's ``tokenizer.json``.

    Raises `OcrPhasesError` where the file is missing or cut, and as `check_growth` does.
    """
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise OcrPhasesError(
            f"{folder} has no tokenizer.json: put the one of the published checkpoint there "
            "(tokenizer.model, or vocab.json and merges.txt, are not read)."
        )
    check_beginning_of(path)
    check_growth(path)
    return path


def load_any_tokenizer(folder: Path) -> Any:
    """The fast tokenizer of a checkpoint of any class, with the special tokens that it names.

    Raises `OcrPhasesError` for a file that is missing or none.
    """
    from transformers import PreTrainedTokenizerFast

    path = _tokenizer_file(folder)
    try:
        # The very class: a label in the folder, or its code, is not looked at.
        return PreTrainedTokenizerFast.from_pretrained(folder, local_files_only=True)
    except Exception as error:  # the tokenizers library raises no narrower class for a bad file
        raise OcrPhasesError(f"{path} {_tokenizer_problem(error)}.") from error


def _tokenizer_problem(error: Exception) -> str:
    """What is wrong with a tokenizer.json that ``error`` came of, and what to do about it."""
    reason = first_line(error)
    if any(sign in reason for sign in _UNKNOWN_PART):
        return (
            f"has a part that tokenizers {version('tokenizers')}, which is here, does not know "
            f"({reason}), as files of a newer version have: run 'pip install -U tokenizers "
            "transformers', or take the tokenizer.json of the published checkpoint"
        )
    return (
        f"is no tokenizer file ({reason}): take the tokenizer.json of the published checkpoint "
        "again"
    )


def check_tokenizer(tokenizer: Any, place: str) -> None:
    """Raise `OcrPhasesError` for a tokenizer that is not the published one of DeepSeek-OCR.

    Each of `SPECIAL_TOKENS` has to be one id, and `ROUND_TRIP` has to survive encoding and
    decoding. ``place`` says in the error where the tokenizer was found.
    """
    split = []
    for text in SPECIAL_TOKENS:
        if len(tokenizer.encode(text, add_special_tokens=False)) != 1:
            split.append(text)
    if split:
        raise OcrPhasesError(
            f"The tokenizer {place} splits {', '.join(split)}: it is not DeepSeek-OCR's."
        )
    back = tokenizer.decode(tokenizer.encode(ROUND_TRIP, add_special_tokens=False))
    if back != ROUND_TRIP:
        raise OcrPhasesError(
            f"The tokenizer {place} turns {ROUND_TRIP!r} into {back!r}: it is damaged or "
            "mislabelled."
        )


class TokenReader:
    """Gives the text that each id of an answer adds, one id at a time.

    Joined, these texts are the decoded answer with its special tokens. A character that is spread
    over several tokens belongs to the one that completes it. An id that the tokenizer has no text
    for is written as ``<id>``.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._waiting: list[int] = []

    def read(self, token: int, *, last: bool = False) -> str:
        """The text that ``token`` adds.

        It is empty while a character is incomplete, unless the token is the ``last``.
        """
        is_known = token < len(self._tokenizer)
        if is_known:
            self._waiting.append(token)
        text = self._tokenizer.decode(self._waiting)
        if is_known and not last and self._is_incomplete(text):
            return ""
        self._waiting = []
        if is_known:
            return text
        return f"{text}<{token}>"

    def _is_incomplete(self, text: str) -> bool:
        """Whether ``text``, decoded from the tokens that wait, ends in the midst of a character.

        A U+FFFD at its end may be the text's own, or what an incomplete character decodes to.
        """
        if not text.endswith("\ufffd"):
            return False
        spelled = "".join(self._tokenizer.convert_ids_to_tokens(self._waiting))
        return not spelled.endswith(_REPLACEMENT)


def image_token_of(config: dict[str, Any], tokenizer: Any) -> int:
    """The id of ``<image>``; `OcrPhasesError` where config.json says another."""
    token_id = tokenizer.convert_tokens_to_ids("<image>")
    id_in_config = config.get("image_token_id", token_id)
    if id_in_config != token_id:
        raise OcrPhasesError(
            f"config.json says image token {id_in_config}, the tokenizer says {token_id}."
        )
    return token_id
