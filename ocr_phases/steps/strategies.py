"""The strategies that a decode step can be executed by, and where each of them can run.

``eager`` calls the model class step by step; ``cuda_graph`` replays one captured step over a static
cache; ``compiled`` compiles that step, and captures it too on a GPU (`ocr_phases.steps.captured`).
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys

import torch

from ocr_phases.errors import OcrPhasesError
from ocr_phases.models.interface import ModelInterface
from ocr_phases.settings import Request


def check_strategy(request: Request, interface: ModelInterface, device: torch.device | str) -> None:
    """Raise `OcrPhasesError` where ``strategy`` or ``vision`` cannot run with model and device."""
    ways = []
    if request.strategy != "eager":
        ways.append(f"strategy={request.strategy!r}")
    if request.vision != "eager":
        ways.append(f"vision={request.vision!r}")
    if not ways:
        return
    asked = " and ".join(ways)
    kind = torch.device(device).type
    if interface.implementation != "native":
        raise OcrPhasesError(
            f"{asked}: the {interface.implementation} class runs only eagerly, "
            "so load implementation='native'."
        )
    if not interface.can_be_captured:
        raise OcrPhasesError(
            f"{asked}: a model of no known family runs only eagerly here, because the positions and "
            "masks of its class are not known well enough to be captured: use 'eager'."
        )
    if request.autocast:
        raise OcrPhasesError(f"{asked} has the model's own dtype only: drop it, or drop autocast.")
    if request.strategy == "cuda_graph" and kind != "cuda":
        raise OcrPhasesError(
            f"{asked} needs a CUDA device, this is {device}: use 'eager', "
            "or 'compiled' where there is a C++ compiler."
        )
    if "compiled" in (request.strategy, request.vision):
        missing = missing_compiler(kind)
        if missing is not None:
            raise OcrPhasesError(f"{asked} needs {missing}: install it, or use 'eager'.")


def missing_compiler(kind: str) -> str | None:
    """What torch.compile would miss on a device of this kind; None where it has all it needs."""
    if kind == "cuda":
        return None if importlib.util.find_spec("triton") else "triton (pip install triton)"
    default = "clang++" if sys.platform == "darwin" else "g++"
    compiler = os.environ.get("CXX", default)
    return None if shutil.which(compiler) else f"a C++ compiler, and {compiler} is not here"
