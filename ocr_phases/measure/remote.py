"""Loads the published remote-code class. The only place that runs Python code out of a checkpoint.

It does so when told to twice: ``implementation="vendor"`` and ``trust_remote_code=True``; from the hub only
at a full commit hash, so that the code is the code that was read. Only code in the checkpoint itself is run.
"""

from __future__ import annotations

import ast
import contextlib
import inspect
import io
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from safetensors import SafetensorError

from ocr_phases.errors import OcrPhasesError
from ocr_phases.measure.checkpoint import Checkpoint, image_token, load_tokenizer
from ocr_phases.measure.folders import (
    check_loaded,
    download,
    folder_hash,
    local_folder,
    progress_bar_in_terminals,
    read_config,
    transformers_version,
)

PINNED = "transformers==4.46.3 tokenizers==0.20.3"


def load_vendor(
    name: str,
    *,
    device: str,
    dtype: torch.dtype,
    revision: str | None = None,
    trust_remote_code: bool = False,
    local_only: bool = False,
) -> Checkpoint:
    """Load a folder or a hub id with the class in its own Python files.

    Raises `OcrPhasesError` without ``trust_remote_code``, for a hub id without a 40-digit ``revision``, for
    code that cannot be imported here, and on a CPU for code that calls ``.cuda()``.
    """
    if not trust_remote_code:
        raise OcrPhasesError(
            'implementation="vendor" runs the Python code that comes with the checkpoint: read it and pass '
            'trust_remote_code=True, or use implementation="native", which runs none.'
        )
    if name == "tiny" or name.split(":")[0] == "dummy":
        raise OcrPhasesError(f"{name} has no vendor class: name a checkpoint folder or a hub id (ORG/NAME).")
    folder = local_folder(name, local_only=local_only)
    if folder is not None:
        return _load(folder, folder.name, device, dtype)
    if not re.fullmatch(r"[0-9a-f]{40}", revision or ""):
        raise OcrPhasesError(
            f"{name} brings its own code, which may change: pass revision= with the 40-digit commit hash of "
            "the version you have read."
        )
    return _load(download(name, revision, code=True), name, device, dtype, revision)


def _load(
    folder: Path, name: str, device: str, dtype: torch.dtype, revision: str | None = None
) -> Checkpoint:
    config = read_config(folder)
    auto, reference = _class_reference(folder, config)
    # The imports print too; what the class prints while it runs is dropped by its row in families.py.
    with contextlib.redirect_stdout(io.StringIO()):
        found = _import_class(folder, reference)
        if torch.device(device).type == "cpu":
            _refuse_cuda_calls(found)
        model = _load_weights(folder, auto, found, dtype)
    tokenizer = load_tokenizer(folder)
    return Checkpoint(
        # Buffers too, as the published usage does: that rounds its rotary frequencies to the dtype.
        model=model.to(device=device, dtype=dtype).eval(),
        tokenizer=tokenizer,
        name=name,
        source=str(folder),
        revision=revision or f"sha256:{folder_hash(folder, code=True)}",
        config=config,
        image_token_id=image_token(config, tokenizer),
    )


def _class_reference(folder: Path, config: dict[str, Any]) -> tuple[str, str]:
    """The Auto class and the ``module.Class`` that config.json's auto_map gives for it."""
    known = config.get("auto_map", {})
    auto = next((key for key in ("AutoModel", "AutoModelForCausalLM") if key in known), None)
    if auto is None:
        raise OcrPhasesError(f"config.json in {folder} names no model class (auto_map): use native.")
    elsewhere = [reference for reference in known.values() if "--" in reference]
    if elsewhere:
        raise OcrPhasesError(
            f"config.json in {folder} names code of another repository ({elsewhere[0]}), which no revision "
            "pins: only code in the checkpoint itself is run."
        )
    missing = [ref for ref in known.values() if not (folder / f"{ref.split('.')[0]}.py").is_file()]
    if missing:
        raise OcrPhasesError(
            f"{folder} has no {missing[0].split('.')[0]}.py: put the checkpoint's *.py files next to its "
            "weights, or use native."
        )
    return auto, known[auto]


def _import_class(folder: Path, reference: str) -> type:
    from transformers import __version__
    from transformers.dynamic_module_utils import get_class_from_dynamic_module

    try:
        return get_class_from_dynamic_module(reference, str(folder), local_files_only=True)
    except (ImportError, AttributeError, SyntaxError) as error:
        first = str(error).strip().splitlines()[0]
        raise OcrPhasesError(
            f"The class in {folder} cannot be imported with transformers {__version__} ({first}): "
            f"install {PINNED} for it (docs/vendor.md), or use native."
        ) from error


def code_modules(found: type) -> list[ModuleType]:
    """The imported modules out of the checkpoint that ``found`` is defined in."""
    package = found.__module__.rpartition(".")[0]
    inside = [name for name in sys.modules if name.rpartition(".")[0] == package]
    return [sys.modules[name] for name in sorted(inside) if getattr(sys.modules[name], "__file__", None)]


def _refuse_cuda_calls(found: type) -> None:
    """Raise where code that a forward may reach calls ``.cuda()``; ``infer()``, which is not used, may."""
    for module in code_modules(found):
        tree = ast.parse(inspect.getsource(module))
        for owner in ast.walk(tree):
            if not isinstance(owner, ast.FunctionDef) or owner.name == "infer":
                continue
            for node in ast.walk(owner):
                if isinstance(node, ast.Call) and getattr(node.func, "attr", None) == "cuda":
                    file = Path(str(module.__file__)).name
                    raise OcrPhasesError(
                        f"The vendor's class moves tensors to a GPU by itself (.cuda() in {file}, line "
                        f"{node.lineno}), so it cannot run on a CPU: use device cuda, or native."
                    )


def _load_weights(folder: Path, auto: str, found: Any, dtype: torch.dtype) -> Any:
    import transformers

    attention = "sdpa" if getattr(found, "_supports_sdpa", False) else "eager"
    try:
        with progress_bar_in_terminals():
            model, report = getattr(transformers, auto).from_pretrained(
                str(folder),
                trust_remote_code=True,
                use_safetensors=True,
                local_files_only=True,
                attn_implementation=attention,
                output_loading_info=True,
                **{"dtype" if transformers_version() >= (4, 56) else "torch_dtype": dtype},
            )
    except (OSError, RuntimeError, ValueError, KeyError, SafetensorError) as error:
        first = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise OcrPhasesError(f"The weights in {folder} do not load with their own class: {first}") from error
    # Buffers that the file lacks are made by the class itself.
    parameters = {key for key, _ in model.named_parameters()}
    missing = [key for key in report["missing_keys"] if key in parameters]
    check_loaded(folder, {**report, "missing_keys": missing})
    return model
