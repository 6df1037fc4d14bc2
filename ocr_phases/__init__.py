"""Where DeepSeek-OCR spends its time on your page: prefill, vision stages and every decoded token."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ocr_phases.versions import __version__ as __version__

# Imported on first use, so that reading a record never loads torch.
_WHERE = {
    "OCRSession": "ocr_phases.session",
    "DeepSeekOCRSession": "ocr_phases.session",
    "PageInputs": "ocr_phases.inputs.packing",
    "DecodeState": "ocr_phases.steps.phases",
    "prefill": "ocr_phases.steps.phases",
    "decode_step": "ocr_phases.steps.phases",
    "decode": "ocr_phases.steps.phases",
    "generate": "ocr_phases.steps.phases",
    "Timeline": "ocr_phases.steps.timeline",
    "PhaseRun": "ocr_phases.record",
    "compare": "ocr_phases.analyse.comparison",
    "sweep": "ocr_phases.sweep_models",
    "SweepResult": "ocr_phases.analyse.scaling",
    "Settings": "ocr_phases.settings",
    "OcrPhasesError": "ocr_phases.errors",
}
__all__ = sorted([*_WHERE, "__version__"])

if TYPE_CHECKING:  # for type checkers, which cannot read the table
    from ocr_phases.analyse.comparison import compare as compare
    from ocr_phases.analyse.scaling import SweepResult as SweepResult
    from ocr_phases.errors import OcrPhasesError as OcrPhasesError
    from ocr_phases.inputs.packing import PageInputs as PageInputs
    from ocr_phases.record import PhaseRun as PhaseRun
    from ocr_phases.session import DeepSeekOCRSession as DeepSeekOCRSession
    from ocr_phases.session import OCRSession as OCRSession
    from ocr_phases.settings import Settings as Settings
    from ocr_phases.steps.phases import DecodeState as DecodeState
    from ocr_phases.steps.phases import decode as decode
    from ocr_phases.steps.phases import decode_step as decode_step
    from ocr_phases.steps.phases import generate as generate
    from ocr_phases.steps.phases import prefill as prefill
    from ocr_phases.steps.timeline import Timeline as Timeline
    from ocr_phases.sweep_models import sweep as sweep


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        from ocr_phases.errors import UnknownAttribute
        from ocr_phases.text import nearest

        raise UnknownAttribute(f"ocr_phases has no {name}.{nearest(name, __all__)}")
    return getattr(importlib.import_module(_WHERE[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
