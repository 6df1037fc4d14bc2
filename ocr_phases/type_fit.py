"""Whether a page's type is large enough for a model in a preset's views, for both halves: no torch.

Type sizes are ems in pixels, as `ocr_phases.measure.inputs.type_size` estimates them on the page.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ocr_phases.catalogue import get_preset
from ocr_phases.presets import Preset

LEAST_TYPE_PX: dict[str, float] = {"tiny": 20.0}
"""The smallest type that a model reads, in pixels of the view, where that was measured."""

#: What may be chosen, cheapest first: DeepSeek-OCR's, the only family with a model in `LEAST_TYPE_PX`. The
#: preset ``tiny`` is not: it reads full pages worse for little gain.
_CHOICE = ("small", "base", "large", "gundam")

Size = tuple[int, int]
Type = float | None  # None where a page has no type that could be told


def view_scale(preset: Preset, size: Size) -> float:
    """Pixels of the views that show the page's letters (its crops, if it has any) for one of the page.

    ``size`` is the page's (width, height) in pixels. Where a page is stretched, it is the mean of both
    directions.
    """
    width, height = size
    columns, rows = preset.grid(width, height)
    if columns * rows > 1:
        return preset.image_size * math.sqrt(columns * rows / (width * height))
    side = math.sqrt(width * height) if preset.squeezes else max(width, height)
    return preset.base_size / side


def type_shown(preset: str, sizes: Sequence[Size], types: Sequence[Type]) -> Type:
    """The type of the pages in the preset's views, pixels: the smallest of several pages'.

    ``sizes`` and ``types`` are each page's size and type in its own pixels. None where no page has type.
    """
    known = zip(sizes, types, strict=True)
    shown = [kind * view_scale(get_preset(preset), size) for size, kind in known if kind is not None]
    return min(shown, default=None)


def fitting_preset(sizes: Sequence[Size], types: Sequence[Type], least: float) -> str | None:
    """The cheapest preset, from ``small`` up, that shows the pages' type at ``least`` pixels or more.

    The one that shows it largest where none does (the cheapest of equals); None where no page has type.
    """
    shown = {name: type_shown(name, sizes, types) or 0.0 for name in _CHOICE}
    largest = max(shown, key=lambda name: shown[name])
    return next((name for name, kind in shown.items() if kind >= least), largest) if shown[largest] else None


def small_type(preset: str, sizes: Sequence[Size], types: Sequence[Type], least: float) -> str:
    """A sentence where type is smaller than ``least`` in the preset's views, and what to do; else empty."""
    shown, best = type_shown(preset, sizes, types), fitting_preset(sizes, types, least)
    if shown is None or best is None or shown >= least:
        return ""
    reach = type_shown(best, sizes, types)
    advice = f"use {best}" if best != preset else "no preset shows it larger, so cut the page into parts"
    if best != preset and reach is not None and reach < least:
        advice += f", which shows it largest (about {reach:.0f} px), or cut the page into parts"
    return (
        f"Type is about {shown:.0f} px high in the view of {preset}; "
        f"the model reads {least:.0f} px and more: {advice}."
    )
