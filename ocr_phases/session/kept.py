"""The session that a process keeps between two calls, so that a model is loaded once."""

from __future__ import annotations

from typing import Any

from ocr_phases.measure.loaded_model import forget_kept_model, kept_model
from ocr_phases.session.session import OCRSession
from ocr_phases.settings import ModelSettings, is_address

_connected: dict[ModelSettings, OCRSession] = {}


def kept_session(**settings: Any) -> OCRSession:
    """A session of the model last loaded with these very ``settings``, else of a new one.

    ``settings`` are those of `ModelSettings`. One model is kept (`kept_model`), so that a device
    never holds two. A server, whose address may be the model's name, stays connected until another
    one is asked for. Raises as `OCRSession.load` does.
    """
    wanted = ModelSettings(**settings)
    if is_address(wanted.model):
        return _connected_session(wanted)
    return OCRSession(kept_model(wanted), wanted)


def _connected_session(settings: ModelSettings) -> OCRSession:
    """The session on a server; the kept model is let go, as for another model."""
    forget_kept_model()
    if settings not in _connected:
        _connected.clear()
        _connected[settings] = OCRSession.load(
            settings.model,
            family=settings.family,
            engine=settings.engine,
            extra_body=settings.extra_body,
        )
    return _connected[settings]
