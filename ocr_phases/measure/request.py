"""One measurement as asked for, every default filled in and checked before anything runs."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image

from ocr_phases.errors import OcrPhasesError, OutOfMemory
from ocr_phases.presets import PRESETS, get_preset, resolve_prompt
from ocr_phases.strategies import STRATEGIES, VISIONS
from ocr_phases.words import count_text

if TYPE_CHECKING:
    from ocr_phases.measure.sampling import SamplingSettings

Page = str | Path | bytes | Image.Image

FIRST_TOKENS = ("prefill", "redecode")

_LEAST = {"max_new_tokens": 1, "eos_check_every": 1, "repeats": 1, "warmup": 0}
_NAMES = {"first_token": FIRST_TOKENS, "strategy": STRATEGIES, "vision": VISIONS}


@dataclass(frozen=True)
class Request:
    """What `DeepSeekOCRSession.run_inference` was asked to do; its docstring says what each setting means.

    ``pages`` holds one list of pages a row, ``prompts`` one resolved prompt a row.
    """

    pages: list[list[Page]]
    prompt: str
    prompts: list[str]
    preset: str
    max_new_tokens: int
    infer: SamplingSettings
    grounding: bool
    return_text: bool
    ignore_eos: bool
    eos_check_every: int
    first_token: str
    repeats: int
    warmup: int
    seed: int
    strategy: str
    exact_mask: bool
    autocast: bool
    embed_page: bool
    generate: bool
    verify: bool = False
    vision: str = "eager"

    def __post_init__(self) -> None:
        check_settings(vars(self))
        if self.generate and self.first_token == "redecode":
            raise OcrPhasesError("generate() has no first_token='redecode': drop one of the two.")
        if self.generate and self.strategy != "eager":
            raise OcrPhasesError(
                f"generate() decodes in its own way: drop it, or strategy={self.strategy!r}."
            )

    def described(self) -> dict[str, Any]:
        """The settings as plain JSON values, without the pages."""
        values = {name: value for name, value in vars(self).items() if name != "pages"}
        return {**values, "infer": asdict(self.infer)}


def check_settings(settings: Mapping[str, Any]) -> None:
    """Raise `OcrPhasesError` for the first setting of a request that is wrong whatever page and model it has.

    A setting that is left out is not looked at. Needs no torch, so that a batch's driver can ask too.
    """
    if "prompt" in settings:
        resolve_prompt(settings["prompt"])
    if "preset" in settings:
        get_preset(settings["preset"])
    for name, least in _LEAST.items():
        value = settings.get(name, least)
        if not isinstance(value, int):
            raise OcrPhasesError(f"{name} is {value!r}: give a whole number.")
        if value < least:
            raise OcrPhasesError(f"{name} is {value}: it must be at least {least}.")
    for name, known in _NAMES.items():
        value = settings.get(name, known[0])
        if value not in known:
            raise OcrPhasesError(f"Unknown {name} {value!r}: use {' or '.join(known)}.")


def make_rows(
    page: Page | Sequence[Page], prompt: str | Sequence[str], grounding: bool
) -> tuple[list[list[Page]], list[str]]:
    """One list of pages a row, and one resolved prompt a row.

    A list of pages is a batch of one page a row; with a single prompt that names several ``<image>`` it is
    one row of several pages.
    """
    pages = [page] if isinstance(page, str | Path | bytes | Image.Image) else list(page)
    prompts = [prompt] if isinstance(prompt, str) else list(prompt)
    resolved = [resolve_prompt(text, grounding=grounding) for text in prompts]
    if len(resolved) == 1 and resolved[0].count("<image>") > 1:
        return [pages], resolved
    if len(resolved) == 1:
        resolved = resolved * len(pages)
    return [[one] for one in pages], resolved


def check_length(prompt_len: int, request: Request, limit: int) -> None:
    """Raise `OcrPhasesError` where a prompt and what is to be generated exceed the model's positions."""
    if prompt_len + request.max_new_tokens > limit:
        room = limit - prompt_len
        advice = f"ask for at most {room}" if room > 0 else "choose a smaller preset"
        raise OcrPhasesError(
            f"{prompt_len} prompt tokens and {request.max_new_tokens} new ones exceed the model's {limit} "
            f"positions: {advice}."
        )


@contextlib.contextmanager
def memory_errors_explained(device: str, request: Request) -> Iterator[None]:
    """A device out of memory as one sentence: what was asked for, and what asks for less."""
    import torch

    try:
        yield
    except torch.OutOfMemoryError as error:
        asked = get_preset(request.preset)
        # Crops come on top of the global view, so a preset with them is the largest.
        smaller = [
            preset.name
            for preset in PRESETS.values()
            if (preset.crops, preset.base_size) < (asked.crops, asked.base_size)
        ]
        advice = [f"preset {' or '.join(reversed(smaller))}"] if smaller else []
        if len(request.pages) > 1:
            advice.append(f"fewer than {len(request.pages)} pages at once")
        advice.append(f"fewer than {request.max_new_tokens} new tokens")
        raise OutOfMemory(
            f"{device} is out of memory with {count_text(len(request.pages), 'row')} at preset "
            f"{request.preset} and {request.max_new_tokens} new tokens: ask for less ({'; '.join(advice)})."
        ) from error
