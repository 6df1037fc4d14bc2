"""A session that stays loaded between pages, for notebooks and batches."""

from __future__ import annotations

import gc
from typing import Any

from ocr_phases.session import OCRSession
from ocr_phases.settings import ModelSettings

_kept: dict[ModelSettings, OCRSession] = {}


def kept_session(**settings: Any) -> OCRSession:
    """The session last loaded with these very ``settings`` (`ModelSettings`), else a new one.

    One is kept, so that a device never holds two models. Raises as `OCRSession.load` does.
    """
    key = ModelSettings(**settings)
    if key not in _kept:
        _kept.clear()
        gc.collect()  # a model has cycles, and the next one may need its memory
        _kept[key] = OCRSession.load(**vars(key))
    return _kept[key]
