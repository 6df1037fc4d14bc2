"""A profiler for document vision-language models such as DeepSeek-OCR.

It shows how long a page takes in the prefill, with its vision stages, and in each decode step.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from ocr_phases.versions import __version__ as __version__

# Each module's names, imported on first use, so that reading a record never loads torch.
_NAMES = {
    "session.session": "OCRSession DeepSeekOCRSession",
    "session.sweeps": "sweep",
    "images": "sample_page",
    "inputs.packing": "PageInputs",
    "steps.phases": "DecodeState prefill decode_step decode generate",
    "collectors.timeline": "Timeline",
    "results.run": "PhaseRun",
    "results.comparison": "Comparison compare",
    "results.sweep": "SweepResult",
    "engines.session": "connect",
    "settings": "Settings",
    "errors": "OcrPhasesError",
}
_WHERE = {name: module for module, names in _NAMES.items() for name in names.split()}
__all__ = sorted([*_WHERE, "__version__"])

if TYPE_CHECKING:  # for type checkers, which cannot read the table
    from ocr_phases.collectors.timeline import Timeline as Timeline
    from ocr_phases.engines.session import connect as connect
    from ocr_phases.errors import OcrPhasesError as OcrPhasesError
    from ocr_phases.images import sample_page as sample_page
    from ocr_phases.inputs.packing import PageInputs as PageInputs
    from ocr_phases.results.comparison import Comparison as Comparison
    from ocr_phases.results.comparison import compare as compare
    from ocr_phases.results.run import PhaseRun as PhaseRun
    from ocr_phases.results.sweep import SweepResult as SweepResult
    from ocr_phases.session.session import DeepSeekOCRSession as DeepSeekOCRSession
    from ocr_phases.session.session import OCRSession as OCRSession
    from ocr_phases.session.sweeps import sweep as sweep
    from ocr_phases.settings import Settings as Settings
    from ocr_phases.steps.phases import DecodeState as DecodeState
    from ocr_phases.steps.phases import decode as decode
    from ocr_phases.steps.phases import decode_step as decode_step
    from ocr_phases.steps.phases import generate as generate
    from ocr_phases.steps.phases import prefill as prefill


def __getattr__(name: str) -> Any:
    if name not in _WHERE:
        from ocr_phases.errors import UnknownAttribute
        from ocr_phases.text import nearest

        raise UnknownAttribute(f"ocr_phases has no {name}.{nearest(name, __all__)}")
    return getattr(importlib.import_module(f"ocr_phases.{_WHERE[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
