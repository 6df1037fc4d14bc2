"""What a checkpoint folder holds, read as data without torch, and where it comes from."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

from ocr_phases.config import AnyConfig, Generation, WeightsIndex
from ocr_phases.errors import OcrPhasesError
from ocr_phases.files import read_regular
from ocr_phases.record.schema import conform, parse_json
from ocr_phases.text import nearest
from ocr_phases.versions import weight_files

_MOST_JSON = 64 << 20


def local_folder(name: str, *, local_only: bool = False) -> Path | None:
    """The folder of that name, or None for what may be a hub id; `OcrPhasesError` for what is neither."""
    # Unlike Path's, these raise for no name: too long, with a NUL, of a user who is unknown.
    folder = os.path.abspath(os.path.expanduser(name))  # noqa: PTH100, PTH111  (no link followed)
    if os.path.isdir(folder):  # noqa: PTH112
        return Path(folder)
    if os.path.exists(folder):  # noqa: PTH110
        raise OcrPhasesError(f"{name} is a file: name the checkpoint's folder.")
    if local_only or not re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", name):
        raise OcrPhasesError(
            f"There is no model {name!r}: use tiny, dummy, a checkpoint folder or a hub id (ORG/NAME)."
            f"{nearest(name, ('tiny', 'dummy'))}"
        )
    return None


def download(name: str, revision: str | None, *, code: bool = False) -> Path:
    """A hub repository's snapshot at ``revision``: JSON and safetensors files only, and ``code`` if asked.

    A hub that is silent for longer than ``HF_HUB_ETAG_TIMEOUT`` seconds (default: 10) is given up: what is in
    this machine's cache is taken. Raises `OcrPhasesError` where the repository is not there either.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, HTTPError

    if code and not re.fullmatch(r"[0-9a-f]{40}", revision or ""):
        raise OcrPhasesError(
            f"{name} brings its own code, which may change: pass revision= with the 40-digit commit hash "
            "of the version you have read."
        )
    patterns = ["*.json", "*.safetensors", *(["*.py"] if code else [])]
    problem = _hub_problem(name, revision)
    options = {"allow_patterns": patterns, "local_files_only": problem is not None}
    try:
        return Path(snapshot_download(name, revision=revision, **options))
    except (OSError, HTTPError, HFValidationError) as error:
        error = problem or error
        raise OcrPhasesError(
            f"{name} is neither a folder here nor could it be fetched from the hub ({type(error).__name__}): "
            "check the name and the connection, or download it and name its folder."
        ) from error


def _hub_problem(name: str, revision: str | None) -> Exception | None:
    """Why the hub gives no answer on a repository, else None; a download would go on asking for minutes."""
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import HFValidationError, HTTPError

    print(f"Asking {constants.ENDPOINT} for {name}.", file=sys.stderr)
    try:
        HfApi().model_info(name, revision=revision, timeout=constants.HF_HUB_ETAG_TIMEOUT)
    except (OSError, HTTPError, HFValidationError) as error:
        return error
    return None


def hub_commit(name: str) -> str | None:
    """The commit that a hub id's ``main`` stands for in this machine's cache; None where that is unknown.

    No request is made where the cache knows it. Where it does not, ``config.json`` alone is fetched, which
    settles it for the next call too.
    """
    from huggingface_hub import hf_hub_download, try_to_load_from_cache
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        path = try_to_load_from_cache(name, "config.json")
        if not isinstance(path, str):
            path = None if _hub_problem(name, None) else hf_hub_download(name, "config.json")
    except (OSError, HfHubHTTPError, HFValidationError):
        return None  # loading it says what is wrong
    return path and Path(path).parent.name


def read_config(folder: Path) -> dict[str, Any]:
    """The folder's config.json; `OcrPhasesError` where it or the safetensors weights are missing.

    The other JSON files that loading the weights reads are looked through too: nothing but a file of the
    folder itself may be named as weights.
    """
    path = folder / "config.json"
    if not path.is_file():
        raise OcrPhasesError(f"{folder} is no checkpoint folder: it has no config.json.")
    weights = {file.name for file in weight_files(folder)}
    if not weights:
        raise OcrPhasesError(f"{folder} has no *.safetensors file: only safetensors weights are loaded.")
    read_json(folder / "generation_config.json", Generation, missing={})
    index = read_json(folder / "model.safetensors.index.json", WeightsIndex, missing={"weight_map": {}})
    lacking = sorted(set(index["weight_map"].values()) - weights)
    if lacking:
        raise OcrPhasesError(f"{folder} has no {lacking[0]}, which its index of the weights names.")
    return read_json(path, AnyConfig)


def read_json(path: Path, shape: Any, *, missing: dict[str, Any] | None = None) -> dict[str, Any]:
    """The JSON object in a file, of ``shape`` (a `TypedDict`), or ``missing`` where there is no file.

    `OcrPhasesError` for anything else.
    """
    if missing is not None and not path.exists():
        return missing
    try:
        content = parse_json(read_regular(path, _MOST_JSON))
    except (OSError, OcrPhasesError) as error:
        reason = getattr(error, "strerror", error)
        raise OcrPhasesError(f"{path} cannot be read as JSON ({reason}).") from error
    if not isinstance(content, dict):
        raise OcrPhasesError(f"{path} holds no JSON object.")
    try:
        conform(content, shape)
    except OcrPhasesError as error:
        raise OcrPhasesError(f"{path} is damaged ({error}).") from error
    return content


def transformers_version() -> tuple[int, ...]:
    """Major and minor version of the transformers that is here."""
    import transformers

    return tuple(int(part) for part in transformers.__version__.split(".")[:2])
