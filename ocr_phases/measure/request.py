"""One measurement as asked for, every default filled in and checked before anything runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from PIL import Image

from ocr_phases.errors import OcrPhasesError
from ocr_phases.measure.page import get_preset, resolve_prompt
from ocr_phases.measure.sampling import SamplingSettings
from ocr_phases.strategies import STRATEGIES, VISIONS

Page = str | Path | bytes | Image.Image

FIRST_TOKENS = ("prefill", "redecode")


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
        get_preset(self.preset)
        for name, least in (("max_new_tokens", 1), ("eos_check_every", 1), ("repeats", 1), ("warmup", 0)):
            value = getattr(self, name)
            if value < least:
                raise OcrPhasesError(f"{name} is {value}: it must be at least {least}.")
        for name, known in (
            ("first_token", FIRST_TOKENS),
            ("strategy", STRATEGIES),
            ("vision", VISIONS),
        ):
            value = getattr(self, name)
            if value not in known:
                raise OcrPhasesError(f"Unknown {name} {value!r}: use {' or '.join(known)}.")
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
