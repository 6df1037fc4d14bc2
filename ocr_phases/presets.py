"""How a page is cut and asked about: DeepSeek-OCR's presets and prompts. Nothing here needs torch.

What other families have in their place is in `ocr_phases.catalogue`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ocr_phases.errors import OcrPhasesError
from ocr_phases.words import nearest

IMAGE_TAG = "<image>"
GROUNDING_TAG = "<|grounding|>"

#: What stands before a prompt of the user's own: the page's place, and the tag that asks for boxes.
LEADS = (f"{IMAGE_TAG}\n", GROUNDING_TAG)

_WORDS = "{words}"


@dataclass(frozen=True)
class Preset:
    """How a page is cut: side of the global view and, with crops, side of one crop, both in pixels.

    ``most_tiles`` is the most crops of a page; up to ``direct_size`` pixels a page without crops is squeezed.
    ``row_ends``: an image token follows each row of a view's vision tokens.
    """

    name: str
    base_size: int
    image_size: int
    crops: bool
    most_tiles: int = 9
    direct_size: int = 640
    row_ends: bool = True

    @property
    def squeezes(self) -> bool:
        """Whether the page is squeezed into the square (no crops, a small view); else it is padded to fit."""
        return not self.crops and self.base_size <= self.direct_size

    def grid(self, width: int, height: int) -> tuple[int, int]:
        """The (columns, rows) of crops of a page of that size in pixels; (1, 1) for none (`crop_grid`)."""
        return crop_grid(width, height, self.image_size, self.most_tiles) if self.crops else (1, 1)


PRESETS: dict[str, Preset] = {
    preset.name: preset
    for preset in (
        Preset("tiny", 512, 512, False),
        Preset("small", 640, 640, False),
        Preset("base", 1024, 1024, False),
        Preset("large", 1280, 1280, False),
        Preset("gundam", 1024, 640, True),
    )
}
"""The published presets by name."""

PROMPTS: dict[str, str] = {
    "markdown": f"{IMAGE_TAG}\n{GROUNDING_TAG}Convert the document to markdown.",
    "ocr": f"{IMAGE_TAG}\n{GROUNDING_TAG}OCR this image.",
    "free": f"{IMAGE_TAG}\nFree OCR.",
    "figure": f"{IMAGE_TAG}\nParse the figure.",
    "describe": f"{IMAGE_TAG}\nDescribe this image in detail.",
    "locate": f"{IMAGE_TAG}\nLocate <|ref|>{_WORDS}<|/ref|> in the image.",
}
"""The prompt presets by name; in ``locate``, ``{words}`` stands for the user's words."""


def crop_grid(width: int, height: int, image_size: int = 640, most_tiles: int = 9) -> tuple[int, int]:
    """Into how many ``(columns, rows)`` of square crops a page of that size in pixels is cut.

    (1, 1) where no side exceeds `image_size`. Else, of all grids of 2 to `most_tiles` tiles, the one nearest
    to the page in aspect ratio (columns / rows against width / height), as measured against the recorded
    vendor preprocessing. Of grids equally near, the larger wins where the page has more than half as many
    pixels as that grid: the published rule.

    Raises OcrPhasesError for a side below 1.
    """
    if min(width, height) < 1:
        raise OcrPhasesError(
            f"A page of {width} x {height} pixels cannot be cut: give one of at least 1 x 1."
        )
    if max(width, height) <= image_size:
        return 1, 1
    sides = range(1, most_tiles + 1)
    grids = [(columns, rows) for columns in sides for rows in sides if 2 <= columns * rows <= most_tiles]
    best, best_distance = (1, 1), math.inf
    for columns, rows in sorted(grids, key=math.prod):
        distance = abs(width / height - columns / rows)
        large_enough = width * height > 0.5 * image_size**2 * columns * rows
        if distance < best_distance or (distance == best_distance and large_enough):
            best, best_distance = (columns, rows), distance
    return best


def resolve_prompt(
    prompt: str,
    *,
    grounding: bool | None = None,
    prompts: Mapping[str, str] = PROMPTS,
    leads: tuple[str, str] = LEADS,
) -> str:
    """The text passed to the model, stripped: a preset of ``prompts``, or the user's own text.

    ``"locate:some words"`` fills the ``locate`` preset. The user's own text is put behind ``leads``,
    ``<image>`` and a line break, then ``<|grounding|>`` unless `grounding` is False, if it carries no
    ``<image>`` itself; a text that does, and a preset, stay as they are.

    Raises OcrPhasesError for an empty prompt, for ``locate`` without words, for a preset that asks for boxes
    where `grounding` is False, and for one word that is nearly a preset's name: write ``<image>`` and that
    word where it is meant.
    """
    prompt = prompt.strip()
    name, _, words = prompt.partition(":")
    if name.rstrip() == "locate":
        if not words.strip():
            raise OcrPhasesError('The locate prompt needs the words to find: write "locate:some words".')
        return prompts["locate"].replace(_WORDS, words.strip())
    if prompt in prompts:
        if grounding is False and GROUNDING_TAG in prompts[prompt]:
            raise OcrPhasesError(
                f"The prompt preset {prompt!r} asks for boxes, which grounding=False forbids: use the preset "
                "'free', which asks for none, or write the prompt yourself."
            )
        return prompts[prompt]
    if not prompt:
        raise OcrPhasesError(f"The prompt is empty: write one, or choose one of {', '.join(prompts)}.")
    if IMAGE_TAG in prompt:
        return prompt
    name = name.rstrip()
    # One word, or what may be a misspelled "locate:some words".
    hint = "" if " " in name else nearest(name.lower(), prompts if name == prompt else ["locate"])
    if hint:
        raise OcrPhasesError(
            f"There is no prompt preset {name!r}: choose one of {', '.join(prompts)}, or write more than one "
            f'word, or "{IMAGE_TAG} {name}" for this one.{hint}'
        )
    return f"{leads[0]}{'' if grounding is False else leads[1]}{prompt}"
