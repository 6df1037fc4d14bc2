"""The families that can be driven: a row a model class."""

from __future__ import annotations

from torch import nn

from ocr_phases.errors import OcrPhasesError
from ocr_phases.measure.models.deepseek_ocr import NATIVE
from ocr_phases.measure.models.family import Family
from ocr_phases.measure.models.vendor import VENDOR

FAMILIES = (NATIVE, VENDOR)


def family_of(model: nn.Module) -> Family:
    """The family of a loaded model, by its class name; `OcrPhasesError` for a class without a row."""
    names = {base.__name__ for base in type(model).__mro__}
    for family in FAMILIES:
        if family.class_name in names:
            return family
    known = ", ".join(family.class_name for family in FAMILIES)
    raise OcrPhasesError(f"{type(model).__name__} is no model this version can drive; it knows {known}.")
