"""A session that stays loaded between pages, for notebooks and batches."""

from __future__ import annotations

import gc
from typing import Any

from ocr_phases.measure.session import DeepSeekOCRSession

_kept: dict[tuple[Any, ...], DeepSeekOCRSession] = {}


def kept_session(
    model: str = "tiny", *, device: str = "auto", dtype: str | None = None, revision: str | None = None
) -> DeepSeekOCRSession:
    """The session that was last loaded with these very options, else a new one in its place.

    One is kept, so that a device never holds two models. Raises as `DeepSeekOCRSession.load` does.
    """
    key = (model, device, dtype, revision)
    if key not in _kept:
        _kept.clear()
        gc.collect()  # a model has cycles, and the next one may need its memory
        _kept[key] = DeepSeekOCRSession.load(model, device=device, dtype=dtype, revision=revision)
    return _kept[key]
