"""A loaded model and what to call on it; sweeps over models; a record's measurement once more."""

from ocr_phases.session.kept import kept_session
from ocr_phases.session.repeating import load_recorded, recorded_pages, repeat_run
from ocr_phases.session.session import DeepSeekOCRSession, OCRSession
from ocr_phases.session.sweeps import sweep

__all__ = [
    "DeepSeekOCRSession",
    "OCRSession",
    "kept_session",
    "load_recorded",
    "recorded_pages",
    "repeat_run",
    "sweep",
]
