"""A loaded checkpoint: a model, its tokenizer and what is known of both; devices and dtypes by name."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from ocr_phases.config import (
    TokenizerLabels,
)
from ocr_phases.errors import OcrPhasesError
from ocr_phases.models.families import family_of
from ocr_phases.models.family import Family
from ocr_phases.models.folders import (
    read_json,
)
from ocr_phases.text import count_text, nearest

SPECIAL_TOKENS = ("<image>", "<|ref|>", "<|/ref|>", "<|det|>", "<|/det|>", "<|grounding|>")
ROUND_TRIP = "Total 12 450,00 € at 20 °C"
_REPLACEMENT = "ï¿½"  # U+FFFD as byte-level tokenizers spell it, a character a byte


@dataclass(frozen=True)
class Checkpoint:
    """A loaded model on its device, with its tokenizer.

    ``default_preset`` suits the weights, None leaves it to the family; ``default_ignore_eos`` is True where
    the text is noise (dummy).
    ``revision`` is a hub commit, ``sha256:`` over config and safetensors headers of a folder, or the seed.
    ``cuda_calls`` is ``ignore`` where a class's own ``.cuda()`` does nothing (`remote`).
    """

    model: Any
    tokenizer: Any
    name: str
    source: str
    revision: str
    config: dict[str, Any]
    image_token_id: int
    device: str
    dtype: torch.dtype
    default_preset: str | None = None
    default_ignore_eos: bool = False
    cuda_calls: str | None = None

    @cached_property
    def family(self) -> Family:
        """The row of the model's class."""
        return family_of(self.model)

    @property
    def eos_id(self) -> int:
        """The id that ends a generation."""
        return self.model.config.get_text_config().eos_token_id

    @property
    def pad_id(self) -> int:
        """The id that fills rows: the tokenizer's pad token, else the end token."""
        pad = self.tokenizer.pad_token_id
        return self.eos_id if pad is None else pad

    def encode(self, text: str) -> list[int]:
        """Text to ids, without special tokens around it."""
        return self.tokenizer.encode(text, add_special_tokens=False)


def resolve_device(device: str) -> str:
    """``auto`` to ``cuda`` where there is one, else ``cpu``; `OcrPhasesError` for one that is not here."""
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu":
        return device
    found = re.fullmatch(r"cuda(?::(\d+))?", device)
    if found is None:
        hint = nearest(device, ("auto", "cpu", "cuda"))
        raise OcrPhasesError(f"Unknown device {device!r}: use auto, cpu, cuda or cuda:N.{hint}")
    if not torch.cuda.is_available():
        raise OcrPhasesError(f"Device {device} was asked for, but torch sees no CUDA here: use device cpu.")
    if int(found[1] or 0) >= torch.cuda.device_count():
        raise OcrPhasesError(
            f"There is no {device}: torch sees {count_text(torch.cuda.device_count(), 'CUDA device')}."
        )
    return device


def resolve_dtype(dtype: str | None, device: str) -> torch.dtype:
    """The dtype that a `ModelSettings` names; None is bfloat16 on CUDA and float32 on the CPU."""
    return getattr(torch, dtype or ("float32" if device == "cpu" else "bfloat16"))


def load_tokenizer(folder: Path) -> Any:
    """The fast tokenizer of ``tokenizer.json``, whatever class the folder's label claims.

    Refused (`OcrPhasesError`) where a special token is not one id, or a sentence with spaces, digits and
    non-ASCII does not survive encoding and decoding.
    """
    from transformers import PreTrainedTokenizerFast

    path = folder / "tokenizer.json"
    if not path.is_file():
        raise OcrPhasesError(f"{folder} has no tokenizer.json: add the checkpoint's tokenizer.")
    labels = read_json(folder / "tokenizer_config.json", TokenizerLabels, missing={})
    names = {key: _token_text(labels.get(key)) for key in ("bos_token", "eos_token", "pad_token")}
    names = {key: text for key, text in names.items() if text}
    try:
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_file=str(path), clean_up_tokenization_spaces=False, **names
        )
    except Exception as error:  # the tokenizers library raises no narrower class for a bad file
        raise OcrPhasesError(f"{path} is no tokenizer file ({error}).") from error
    split = [text for text in SPECIAL_TOKENS if len(tokenizer.encode(text, add_special_tokens=False)) != 1]
    if split:
        raise OcrPhasesError(
            f"The tokenizer in {folder} splits {', '.join(split)}: it is not DeepSeek-OCR's."
        )
    back = tokenizer.decode(tokenizer.encode(ROUND_TRIP, add_special_tokens=False))
    if back != ROUND_TRIP:
        raise OcrPhasesError(
            f"The tokenizer in {folder} turns {ROUND_TRIP!r} into {back!r}: it is damaged or mislabelled."
        )
    return tokenizer


class TokenReader:
    """The text each id adds, one id at a time; joined they are the decoded text, special tokens included.

    A character spread over several tokens belongs to the one that completes it; an id the tokenizer has no
    text for shows as ``<id>``.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._before: list[int] = []  # what decodes into the text in front of the next
        self._waiting: list[int] = []

    def read(self, token: int, *, last: bool = False) -> str:
        """The text ``token`` adds: nothing while a character is incomplete, unless it is the ``last``."""
        known = token < len(self._tokenizer)
        if known:
            self._waiting.append(token)
        before = self._tokenizer.decode(self._before)
        now = self._tokenizer.decode(self._before + self._waiting)
        if not known:
            self._before, self._waiting = [], []
            return f"{now[len(before) :]}<{token}>"
        if now.endswith("\ufffd") and not last and not self._whole():
            return ""
        self._before, self._waiting = self._waiting, []
        return now[len(before) :]

    def _whole(self) -> bool:
        """Whether the U+FFFD at the end is the text's own, not what an incomplete character decodes to."""
        return "".join(self._tokenizer.convert_ids_to_tokens(self._waiting)).endswith(_REPLACEMENT)


def token_texts(tokenizer: Any, ids: list[int]) -> list[str]:
    """The text each of ``ids`` adds, as `TokenReader` tells it."""
    reader = TokenReader(tokenizer)
    return [reader.read(token, last=place == len(ids)) for place, token in enumerate(ids, start=1)]


def image_token(config: dict[str, Any], tokenizer: Any) -> int:
    """The id of ``<image>``; `OcrPhasesError` where config.json says another."""
    found = tokenizer.convert_tokens_to_ids("<image>")
    if config.get("image_token_id", found) != found:
        raise OcrPhasesError(
            f"config.json says image token {config['image_token_id']}, the tokenizer says {found}."
        )
    return found


def _token_text(value: Any) -> str | None:
    return value.get("content") if isinstance(value, dict) else value
