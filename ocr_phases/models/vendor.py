"""Loads the published remote-code class. The only place that runs Python code out of a checkpoint.

It does so when told to twice: ``implementation="vendor"`` and ``trust_remote_code=True``; from the
hub only at a full commit hash, so that the code is the code that was read. Only code in the
checkpoint itself is run.
"""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib
import importlib.util
import io
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

import torch
from torch import nn

from ocr_phases.errors import Keyword, OcrPhasesError, SettingError
from ocr_phases.files import write_atomic
from ocr_phases.models.weights import choose_attention, load_weights, resolve_dtype
from ocr_phases.settings import ModelSettings

PINNED = "transformers==4.46.3 tokenizers==0.20.3"
CONSTRAINED = "pip install -c requirements/constraints-4.46.txt"


def check_request(settings: ModelSettings) -> None:
    """Raise `OcrPhasesError` without ``trust_remote_code``, or for a name without code."""
    if not settings.trust_remote_code:
        raise SettingError(
            "trust_remote_code",
            "{vendor} runs the Python code that comes with the checkpoint: read it and pass "
            "{trust}, or use {native}, which runs none.",
            vendor=Keyword("implementation", "vendor"),
            trust=Keyword("trust_remote_code", True),
            native=Keyword("implementation", "native"),
        )
    if settings.model.partition(":")[0] in ("tiny", "dummy"):
        raise SettingError(
            "model",
            f"{settings.model} has no vendor class: name a checkpoint folder or a hub id "
            "(ORG/NAME).",
        )


def load_vendor(
    folder: Path, config: dict[str, Any], content: str, settings: ModelSettings
) -> nn.Module:
    """The model in ``folder`` with the class in its own Python files.

    ``content`` is the hash of both. ``cuda_calls="ignore"`` makes the class's own ``.cuda()`` do
    nothing in its forwards on a CPU.

    Raises `OcrPhasesError` for code that cannot be imported here, for an attention that cannot be
    had, and on a CPU for code that calls ``.cuda()``, unless that is to be ignored.
    """
    reference = _class_reference(folder, config)
    dtype = resolve_dtype(settings.dtype, settings.device)
    # The imports print too; what the class prints while it runs is dropped by `silenced` of its
    # interface.
    with contextlib.redirect_stdout(io.StringIO()):
        model_class = _import_class(folder, reference, content)
        if settings.device == "cpu" and settings.cuda_calls == "refuse":
            _refuse_cuda_calls(model_class)
        attention = choose_attention(model_class, settings)
        title = model_class.__name__
        model = load_weights(folder, model_class, title, attention, torch_dtype=dtype)
    if settings.device == "cpu" and settings.cuda_calls == "ignore":
        _ignore_cuda_calls(model)
    # Buffers too, as the published usage does: that rounds its rotary frequencies to the dtype.
    return model.to(device=settings.device, dtype=dtype)


def _class_reference(folder: Path, config: dict[str, Any]) -> str:
    """The ``module.Class`` that config.json's auto_map gives for the model."""
    classes = config.get("auto_map", {})
    reference = classes.get("AutoModel") or classes.get("AutoModelForCausalLM")
    if reference is None:
        raise OcrPhasesError(
            f"config.json in {folder} names no model class (auto_map): use native."
        )
    for named in classes.values():
        if "--" in named:
            raise OcrPhasesError(
                f"config.json in {folder} names code of another repository ({named}), which no "
                "revision pins: only code in the checkpoint itself is run."
            )
    for named in classes.values():
        file = f"{named.partition('.')[0]}.py"
        if not (folder / file).is_file():
            raise OcrPhasesError(
                f"{folder} has no {file}: put the checkpoint's *.py files next to its weights, or "
                "use native."
            )
    return reference


def _import_class(folder: Path, reference: str, content: str) -> Any:
    """The class, out of a package whose name holds the hash ``content``.

    So other code is another package. It is imported from a copy, so that its source stays what was
    imported, whatever becomes of the folder.
    """
    from transformers.dynamic_module_utils import HF_MODULES_CACHE

    package = f"ocr_phases_code_{content}"
    place = Path(HF_MODULES_CACHE) / package
    for path in folder.rglob("*.py"):
        target = place / path.relative_to(folder)
        target.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(target, path.read_bytes())
    importlib.invalidate_caches()
    parent = sys.modules.setdefault(package, ModuleType(package))
    parent.__path__ = [str(place)]
    module, _, name = reference.partition(".")
    try:
        return getattr(importlib.import_module(f"{package}.{module}"), name)
    except Exception as error:  # whatever the checkpoint's code raises while it is imported
        # transformers wraps what a module of its own raises: the cause is in the second line.
        first_lines = " ".join(str(error).split("\n")[:2])
        message = first_lines.replace(f"{package}.", "") or type(error).__name__
        raise OcrPhasesError(
            f"The class in {folder} cannot be imported ({message}): {_import_advice(error)}, or "
            "use native (docs/models.md)."
        ) from error


def _import_advice(error: Exception) -> str:
    """What to do about code that fails while it is imported."""
    from transformers import __version__

    origin = (getattr(error, "name", None) or "").partition(".")[0]
    if isinstance(error, ImportError) and origin in ("transformers", "tokenizers"):
        if f"transformers=={__version__} " in PINNED:
            return f"its code is not made for transformers {__version__}, which is here"
        return f"it is not made for transformers {__version__}, so install {PINNED}"
    if isinstance(error, ModuleNotFoundError) and not origin.startswith("ocr_phases_code_"):
        return (
            f"install the module {origin} (the published code imports four: "
            f"{CONSTRAINED} addict easydict einops torchvision)"
        )
    if "torchvision" in str(error):
        return (
            f"torchvision and torch must be made for each other, so {CONSTRAINED} torch torchvision"
        )
    return "put the checkpoint's own *.py files there, unchanged"


def _refuse_cuda_calls(model_class: type) -> None:
    """Raise `OcrPhasesError` where code that a forward may reach calls ``.cuda()``.

    ``infer()``, which is not used, may do so.
    """
    package = model_class.__module__.partition(".")[0]
    files: list[Path] = []
    for name, module in sys.modules.items():
        if name.startswith(f"{package}.") and module.__file__:
            files.append(Path(module.__file__))
    for file in sorted(files):
        line = _line_of_cuda_call(ast.parse(file.read_bytes()))
        if line is not None:
            raise SettingError(
                "cuda_calls",
                "The vendor's class moves tensors to a GPU by itself (.cuda() in {file}, line "
                "{line}), so it cannot run on a CPU: use device cuda, native, or {ignore} to let "
                "those calls do nothing.",
                file=file.name,
                line=line,
                ignore=Keyword("cuda_calls", "ignore"),
            )


def _line_of_cuda_call(tree: ast.Module) -> int | None:
    """The line of the first call of ``.cuda()`` in a function other than ``infer()``, or None."""
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef) or function.name == "infer":
            continue
        for node in ast.walk(function):
            if isinstance(node, ast.Call) and getattr(node.func, "attr", None) == "cuda":
                return node.lineno
    return None


def _same_tensor(tensor: torch.Tensor, *_args: Any, **_kwargs: Any) -> torch.Tensor:
    """Stands for ``Tensor.cuda()`` on a machine that has no GPU for it."""
    return tensor


_ONE_AT_A_TIME = threading.RLock()


def _ignore_cuda_calls(model: Any) -> None:
    """Let ``Tensor.cuda()`` give the tensor itself while a forward of ``model`` runs."""
    forward = model.forward

    @functools.wraps(forward)
    def on_cpu(*args: Any, **kwargs: Any) -> Any:
        # One forward at a time: the method is every tensor's, so it must be put back before the
        # next one.
        with _ONE_AT_A_TIME, mock.patch.object(torch.Tensor, "cuda", _same_tensor):
            return forward(*args, **kwargs)

    model.forward = on_cpu
