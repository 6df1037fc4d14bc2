"""The families that can be driven: a row a model class."""

from __future__ import annotations

from typing import Any

from torch import nn

from ocr_phases.config import read_model_config
from ocr_phases.errors import OcrPhasesError
from ocr_phases.models import deepseek_ocr, deepseek_ocr_2, unlimited_ocr
from ocr_phases.models.family import Family
from ocr_phases.models.vendor import VENDOR

NATIVE, NATIVE_2 = deepseek_ocr.NATIVE, deepseek_ocr_2.NATIVE
NATIVES = {family.name: family for family in (NATIVE, NATIVE_2, unlimited_ocr.NATIVE)}
"""Those that transformers has a class for, by name."""

FAMILIES = (*NATIVES.values(), VENDOR)


def family_of(model: nn.Module) -> Family:
    """The family of a loaded model, by its class name; `OcrPhasesError` for a class without a row."""
    names = {base.__name__ for base in type(model).__mro__}
    for family in FAMILIES:
        if family.class_name in names and family.drives(model):
            return family
    known = ", ".join(family.class_name for family in FAMILIES)
    raise OcrPhasesError(f"{type(model).__name__} is no model this version can drive; it knows {known}.")


def native_config(raw: dict[str, Any]) -> Any:
    """transformers' config for a checkpoint's ``config.json``; raises as `read_model_config` does."""
    model = read_model_config(raw)
    return NATIVES[model.family.name].model_class().config_class(**model.saved)
