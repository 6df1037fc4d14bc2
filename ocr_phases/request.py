"""What is asked for, checked before anything runs; needs no torch."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from PIL import Image

from ocr_phases.errors import OcrPhasesError, OutOfMemory
from ocr_phases.families import DEEPSEEK_OCR, FAMILIES, FamilyFacts
from ocr_phases.files import each_page
from ocr_phases.settings import Request, check_text
from ocr_phases.text import count_text

Page = str | Path | bytes | Image.Image


def make_rows(
    page: Page | Sequence[Page],
    prompt: str | Sequence[str],
    grounding: bool | None,
    family: FamilyFacts = FAMILIES[DEEPSEEK_OCR],
) -> tuple[list[list[Page]], list[str]]:
    """One list of pages a row, and one resolved prompt a row, as the ``family`` has prompts.

    A list of pages, or ``file.pdf#2-4``, is a batch of one page a row; with a single prompt that names
    several ``<image>``, or the family's prompt for many pages, it is one row of several pages.
    """
    given = list(page) if isinstance(page, Iterable) and not isinstance(page, str | bytes) else [page]
    if not given:
        raise OcrPhasesError("There is no page in the list: give at least one.")
    pages: list[Page] = []
    for item in given:
        pages += each_page(str(item)) if isinstance(item, str | Path) else [item]
    prompts = list(prompt) if isinstance(prompt, Sequence) and not isinstance(prompt, str) else [prompt]
    for text in prompts:
        check_text("prompt", text)
    count = len(pages) if len(prompts) == 1 else 1
    resolved = [family.text_of(text, grounding=grounding, pages=count) for text in prompts]
    if len(resolved) == 1 and resolved[0].count("<image>") > 1:
        return [pages], resolved
    if len(resolved) == 1:
        resolved = resolved * len(pages)
    return [[item] for item in pages], resolved


def choose_preset(
    asked: str | None, rows: Sequence[Sequence[Page]], default: str, family: FamilyFacts
) -> dict[str, str]:
    """``preset``, and how it was chosen (``preset_choice``: asked or default).

    Raises `OcrPhasesError` for a preset that the ``family`` has not, and for crops of several pages in one
    prompt.
    """
    named = None if asked is None else family.preset(asked).name
    if any(len(row) > 1 for row in rows) and family.multipage_preset:
        default = family.multipage_preset
        if named and family.preset(named).crops:
            uncut = [preset.name for preset in family.presets.values() if not preset.crops]
            raise OcrPhasesError(
                f"{family.title} reads several pages in one prompt without crops: choose the preset "
                f"{' or '.join(uncut)}."
            )
    return {"preset": named or default, "preset_choice": "asked" if named else "default"}


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
def memory_errors_explained(device: str, request: Request, family: FamilyFacts) -> Iterator[None]:
    """A device out of memory as one sentence: what was asked for, and what asks for less."""
    import torch

    try:
        yield
    except torch.OutOfMemoryError as error:
        asked = family.preset(request.preset)
        # Crops come on top of the global view, so a preset with them is the largest.
        smaller = [
            preset.name
            for preset in family.presets.values()
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
