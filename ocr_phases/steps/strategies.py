"""The strategies that a decode step can be executed by, and where each of them can run.

``eager`` calls the model class step by step; ``cuda_graph`` replays one captured step over a static
cache; ``compiled`` compiles that step, and captures it too on a GPU (`ocr_phases.steps.captured`).
The vision encoders run in one of the same three ways.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys

import torch

from ocr_phases.errors import Keyword, SettingError
from ocr_phases.models.interface import ModelInterface
from ocr_phases.settings import Request


def check_strategy(request: Request, interface: ModelInterface, device: torch.device | str) -> None:
    """Raise `SettingError` where ``strategy`` or ``vision`` cannot run with model and device."""
    keywords: dict[str, Keyword] = {}
    if request.strategy != "eager":
        keywords["strategy"] = Keyword("strategy", request.strategy)
    if request.vision != "eager":
        keywords["vision"] = Keyword("vision", request.vision)
    if not keywords:
        return
    field = next(iter(keywords))
    # The place of one keyword in a sentence, or of both.
    asked = " and ".join(f"{{{name}}}" for name in keywords)
    kind = torch.device(device).type
    if interface.implementation != "native":
        raise SettingError(
            field,
            asked + ": the {implementation} class runs only eagerly, so load {native}.",
            **keywords,
            implementation=interface.implementation,
            native=Keyword("implementation", "native"),
        )
    if not interface.can_be_captured:
        raise SettingError(
            field,
            asked + ": a model of no known family runs only eagerly here, because the positions "
            "and masks of its class are not known well enough to be captured: use 'eager'.",
            **keywords,
        )
    if request.autocast:
        raise SettingError(
            field,
            asked + " runs in the model's own dtype only: drop it, or drop autocast.",
            **keywords,
        )
    if "cuda_graph" in (request.strategy, request.vision) and kind != "cuda":
        raise SettingError(
            field,
            asked
            + " needs a CUDA device, and this is {device}: use 'eager', or 'compiled' if there "
            "is a C++ compiler.",
            **keywords,
            device=device,
        )
    if "compiled" in (request.strategy, request.vision):
        missing = missing_compiler(kind)
        if missing is not None:
            raise SettingError(
                field,
                asked + " needs {missing}: install it, or use 'eager'.",
                **keywords,
                missing=missing,
            )


def missing_compiler(kind: str) -> str | None:
    """What torch.compile would miss on a device of this kind; None where it has all it needs."""
    if kind == "cuda":
        if importlib.util.find_spec("triton"):
            return None
        return "triton (pip install triton)"
    default = "clang++" if sys.platform == "darwin" else "g++"
    compiler = os.environ.get("CXX", default)
    if shutil.which(compiler):
        return None
    return f"a C++ compiler, and {compiler} is not here"
