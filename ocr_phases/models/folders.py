"""What a checkpoint folder holds, read as data without torch, and where it comes from."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

from ocr_phases.errors import OcrPhasesError, SettingError
from ocr_phases.families.config import AnyConfig, Generation, WeightsIndex
from ocr_phases.files import conform, parse_json, read_regular
from ocr_phases.models.misfits import (
    CONFIG,
    refuse_adapter,
    refuse_file,
    refuse_missing_shards,
    refuse_unloaded_weights,
    refuse_without_config,
    refuse_without_weights,
    refuse_wrapped_names,
)
from ocr_phases.models.quantised import refuse_quantised
from ocr_phases.models.stored import check_beginning_of, loaded_files, read_headers
from ocr_phases.text import nearest
from ocr_phases.versions import weight_files

_MOST_JSON = 64 << 20


def local_folder(name: str, *, local_only: bool = False) -> Path | None:
    """The folder of that name, or None for what may be a hub id.

    Raises `OcrPhasesError` for what is neither.
    """
    # Unlike Path's, these raise for no name: too long, with a NUL, of a user who is unknown.
    folder = os.path.abspath(os.path.expanduser(name))  # noqa: PTH100, PTH111  (no link followed)
    if os.path.isdir(folder):  # noqa: PTH112
        return Path(folder)
    if os.path.exists(folder):  # noqa: PTH110
        refuse_file(name, folder)
    if local_only and name in ("tiny", "dummy"):
        raise OcrPhasesError(
            f"{name!r} is no folder, and only a folder is taken here: load it with OCRSession.load."
        )
    if local_only or not re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", name):
        raise OcrPhasesError(
            f"There is no model {name!r}: use tiny, dummy, a checkpoint folder or a hub id "
            f"(ORG/NAME).{nearest(name, ('tiny', 'dummy'))}"
        )
    return None


def download(name: str, revision: str | None, *, code: bool = False) -> Path:
    """A hub repository's snapshot at ``revision``: its JSON and safetensors files.

    With ``code`` its Python files, too, and then only at a full commit hash.

    A hub that is silent for longer than ``HF_HUB_ETAG_TIMEOUT`` seconds (default: 10) is given up:
    what is in this machine's cache is taken. Raises `OcrPhasesError` where the repository is not
    there either.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, HTTPError

    if code and not re.fullmatch(r"[0-9a-f]{40}", revision or ""):
        raise SettingError(
            "revision",
            f"{name} brings its own code, which may change: pass revision= with the 40-digit "
            "commit hash of the version you have read.",
        )
    patterns = ["*.json", "*.safetensors"]
    if code:
        patterns.append("*.py")
    problem = _hub_problem(name, revision)
    try:
        folder = snapshot_download(
            name,
            revision=revision,
            allow_patterns=patterns,
            local_files_only=problem is not None,
        )
    except (OSError, HTTPError, HFValidationError) as error:
        # What the hub said tells more than that the cache does not have it.
        reason = problem or error
        raise OcrPhasesError(
            f"{name} is neither a folder here nor could it be fetched from the hub "
            f"({type(reason).__name__}): check the name and the connection, or download it and "
            "name its folder."
        ) from reason
    return Path(folder)


def _hub_problem(name: str, revision: str | None) -> Exception | None:
    """Why the hub gives no answer on a repository, else None.

    It is asked first, as a download would go on asking for minutes.
    """
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import HFValidationError, HTTPError

    print(f"Asking {constants.ENDPOINT} for {name}.", file=sys.stderr)
    try:
        HfApi().model_info(name, revision=revision, timeout=constants.HF_HUB_ETAG_TIMEOUT)
    except (OSError, HTTPError, HFValidationError) as error:
        return error
    return None


def hub_commit(name: str) -> str | None:
    """The commit that a hub id's ``main`` stands for in this machine's cache, or None.

    No request is made where the cache knows it. Where it does not, ``config.json`` alone is
    fetched, which settles it for the next call too.
    """
    from huggingface_hub import hf_hub_download, try_to_load_from_cache
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError

    try:
        path = try_to_load_from_cache(name, "config.json")
        if not isinstance(path, str):
            if _hub_problem(name, None) is not None:
                return None
            path = hf_hub_download(name, "config.json")
    except (OSError, HfHubHTTPError, HFValidationError):
        return None  # loading it says what is wrong
    return Path(path).parent.name


def read_config(folder: Path) -> dict[str, Any]:
    """The folder's config.json; `OcrPhasesError` where it or the safetensors weights are missing.

    So it is for weights that are quantised, an adapter's, cut or in another format, each in a
    sentence that says what to do. The other JSON files that loading the weights reads are looked
    through too: nothing but a file of the folder itself may be named as weights.
    """
    if not (folder / CONFIG).is_file():
        refuse_without_config(folder)
    refuse_adapter(folder)
    config = read_json(folder / CONFIG, AnyConfig)
    read_json(folder / "generation_config.json", Generation, missing={})
    index = read_json(
        folder / "model.safetensors.index.json", WeightsIndex, missing={"weight_map": {}}
    )
    _check_weights(folder, config, index)
    return config


def _check_weights(folder: Path, config: dict[str, Any], index: dict[str, Any]) -> None:
    """Raise `OcrPhasesError` where safetensors files are cut or missing, or not to be loaded."""
    files = weight_files(folder)
    indexed = set(index["weight_map"].values())
    if not files:
        refuse_without_weights(folder, indexed)
    present = {file.name for file in files}
    missing = sorted(indexed - present)
    if missing:
        refuse_missing_shards(folder, missing, len(indexed))
    loaded = loaded_files(folder, index)
    if not loaded:
        refuse_unloaded_weights(folder, files)
    # The folder's hash reads the other files, too, so they have to be whole.
    read_headers([file for file in files if file not in loaded])
    stored = read_headers(loaded)
    refuse_quantised(folder, config, stored)
    refuse_wrapped_names(folder, stored)


def read_json(path: Path, shape: Any, *, missing: dict[str, Any] | None = None) -> dict[str, Any]:
    """The JSON object in a file, of ``shape`` (a `TypedDict`).

    Where there is no file, it is ``missing``, if that is given. Raises `OcrPhasesError` for
    anything else.
    """
    if missing is not None and not path.exists():
        return missing
    check_beginning_of(path)
    try:
        content = parse_json(read_regular(path, _MOST_JSON))
    except (OSError, OcrPhasesError) as error:
        reason = getattr(error, "strerror", error)
        raise OcrPhasesError(
            f"{path} cannot be read as JSON ({reason}): take that file from the published "
            "checkpoint again."
        ) from error
    if not isinstance(content, dict):
        raise OcrPhasesError(
            f"{path} holds no JSON object: take that file from the published checkpoint again."
        )
    try:
        conform(content, shape)
    except OcrPhasesError as error:
        raise OcrPhasesError(f"{path} is damaged ({error}).") from error
    return content


def transformers_version() -> tuple[int, ...]:
    """Major and minor version of the transformers that is here."""
    import transformers

    return tuple(int(part) for part in transformers.__version__.split(".")[:2])
