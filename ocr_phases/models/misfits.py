"""Why a folder or file is no checkpoint that can be loaded, and what to do about it; no torch.

Nothing is opened here but the first bytes of a file: neither pickles nor archives.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple, NoReturn

from ocr_phases.errors import OcrPhasesError
from ocr_phases.models.stored import StoredTensors
from ocr_phases.text import count_text

CONFIG = "config.json"
_FROM_MODEL = "OCRSession.from_model(model, tokenizer)"
_TAKE_SAFETENSORS = "only safetensors weights are loaded, so take the checkpoint in that format"
_MERGE = (
    "merge it into its base model (merge_and_unload() of peft) and save that with "
    f"save_pretrained(), or give the merged object to {_FROM_MODEL}"
)


class _Format(NamedTuple):
    """Files of another format: how their names end, what they are, and what to do instead."""

    endings: tuple[str, ...]
    content: str
    advice: str


#: In this order: what stands first says most about a folder that has several.
_FORMATS = (
    _Format(
        (".incomplete", ".crdownload", ".part", ".partial", ".aria2", ".download", ".!qb"),
        "a download that is not finished",
        "finish it, or fetch the checkpoint with 'hf download'",
    ),
    _Format(
        (".gguf", ".ggml", ".llamafile"),
        "GGUF weights, which llama.cpp and Ollama run",
        _TAKE_SAFETENSORS,
    ),
    _Format((".onnx", ".onnx_data", ".ort"), "an ONNX graph", _TAKE_SAFETENSORS),
    _Format((".engine", ".plan"), "a TensorRT engine", _TAKE_SAFETENSORS),
    _Format((".mlpackage", ".mlmodel", ".mlmodelc"), "a Core ML model", _TAKE_SAFETENSORS),
    _Format(
        (".h5", ".keras", ".pb", ".tflite", ".msgpack"),
        "TensorFlow or Flax weights",
        _TAKE_SAFETENSORS,
    ),
    _Format((".npz", ".npy"), "weights as NumPy arrays (an early MLX layout)", _TAKE_SAFETENSORS),
    _Format(
        (".zip", ".tar", ".tar.gz", ".tgz", ".tar.zst", ".tar.xz", ".7z", ".rar"),
        "an archive",
        "unpack it and name the folder that comes out",
    ),
    _Format(
        (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle", ".th", ".mar", ".distcp"),
        "weights as a pickle, which may run code when it is opened and is therefore never opened",
        "take the checkpoint with safetensors weights, or load it yourself and save it with "
        f"save_pretrained(), or give the object to {_FROM_MODEL}",
    ),
)

_ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors", "adapter_model.bin")
_ADAPTER_TENSOR = re.compile(
    r"(^|\.)"
    r"(lora_\w+|hada_\w+|lokr_\w+|ia3_\w+|oft_\w+|boft_\w+|vera_\w+|base_layer|modules_to_save)"
    r"(\.|$)"
)


class _Wrapper(NamedTuple):
    """What writes a part of its own into the names of tensors, and how to save without it.

    ``pattern`` finds that part in a name, as its first group.
    """

    pattern: str
    name: str
    advice: str


_WRAPPERS = (
    _Wrapper(
        r"^(base_model\.model\.)", "peft", "call merge_and_unload() and save what that returns"
    ),
    _Wrapper(r"(?:^|\.)(_orig_mod\.)", "torch.compile", "save model._orig_mod"),
    _Wrapper(
        r"(?:^|\.)(_fsdp_wrapped_module\.)", "FSDP", "save the full state without the wrapper"
    ),
    _Wrapper(
        r"(?:^|\.)(_checkpoint_wrapped_module\.)",
        "activation checkpointing",
        "save the model without the wrapper",
    ),
    _Wrapper(r"^(_forward_module\.)", "Lightning", "save the module inside"),
    _Wrapper(r"^(module\.)", "DataParallel, DDP or DeepSpeed", "save model.module"),
    _Wrapper(r"^(model\.model\.)", "a class around the model", "save the model inside"),
)
_HEAD = "lm_head.weight"
_SHARD = re.compile(r"(?P<name>.+)-(?P<number>\d+)-of-(?P<count>\d+)\.safetensors")

_DEEPEST = 3  # levels of folders: of a hub's cache, its repositories, their snapshots
_MOST_FOLDERS = 2_000
_NAMED = 3


def refuse_file(name: str, path: str) -> NoReturn:
    """Raise `OcrPhasesError` for a file that was given in the place of a checkpoint's folder."""
    file = Path(path)
    other = _other_format([file.name])
    if other is not None:
        raise OcrPhasesError(f"{name} is a file, {other.content}: {other.advice}.")
    if (file.parent / CONFIG).is_file():
        raise OcrPhasesError(f"{name} is a file: name the checkpoint's folder, {file.parent}.")
    raise OcrPhasesError(f"{name} is a file: name the checkpoint's folder.")


def refuse_without_config(folder: Path) -> NoReturn:
    """Raise `OcrPhasesError` for a folder without a config.json, by what else it holds."""
    finding = f"{folder} is no checkpoint folder: it has no {CONFIG}"
    path = folder / CONFIG
    if path.is_symlink() and not path.exists():
        raise OcrPhasesError(
            f"{path} is a link to a file that is not there: download the checkpoint again."
        )
    if os.path.lexists(path):
        raise OcrPhasesError(f"{path} is no regular file: put the checkpoint's own {CONFIG} there.")
    names = _names(folder)
    if not names:
        raise OcrPhasesError(
            f"{folder} is empty: name the folder that holds the checkpoint's files."
        )
    refuse_adapter(folder)
    inside = _checkpoints_inside(folder)
    if len(inside) == 1:
        raise OcrPhasesError(
            f"{finding} itself, but the folder {inside[0]} in it has one: name that."
        )
    if inside:
        raise OcrPhasesError(
            f"{finding} itself, but folders in it have one: name one of them "
            f"({_first_names(inside)})."
        )
    if "snapshots" in names or any(name.startswith("models--") for name in names):
        raise OcrPhasesError(
            f"{folder} is the hub's cache, with no finished download of a checkpoint in it: pass "
            "the model's hub id (ORG/NAME) to fetch it."
        )
    other = _other_format(names)
    if other is not None:
        raise OcrPhasesError(f"{finding}, but {other.content}: {other.advice}.")
    if any(name.endswith(".safetensors") for name in names):
        raise OcrPhasesError(f"{finding}, so put the checkpoint's own beside the weights.")
    if (folder.parent / CONFIG).is_file():
        raise OcrPhasesError(f"{finding}, but {folder.parent} has one: name that.")
    raise OcrPhasesError(f"{finding}.")


def refuse_without_weights(folder: Path, expected: Iterable[str]) -> NoReturn:
    """Raise `OcrPhasesError` for a folder without safetensors weights, by what else it holds.

    ``expected`` are the files that its index names.
    """
    missing = sorted(set(expected))
    if missing:
        refuse_missing_shards(folder, missing, len(missing))
    finding = f"{folder} has no *.safetensors file"
    names = _names(folder)
    other = _other_format(names)
    if other is not None:
        raise OcrPhasesError(f"{finding}, but {other.content}: {other.advice}.")
    for name in names:
        inside = folder / name
        if inside.is_dir() and any(inside.glob("*.safetensors")):
            raise OcrPhasesError(
                f"{finding}, but its folder {name} has: put them beside {CONFIG}, or name {name}."
            )
    raise OcrPhasesError(
        f"{finding}, and only safetensors weights are loaded: download the checkpoint's weights "
        "into it."
    )


def refuse_missing_shards(folder: Path, missing: list[str], count: int) -> NoReturn:
    """Raise `OcrPhasesError` for a folder that lacks ``missing`` files of its index.

    ``count`` is the number of all files that the index names.
    """
    raise OcrPhasesError(
        f"{folder} has no {_first_names(missing)}, which its index of the weights names: download "
        f"what is missing ({count_text(len(missing), 'file')} of {count})."
    )


def refuse_unloaded_weights(folder: Path, files: list[Path]) -> NoReturn:
    """Raise `OcrPhasesError` for ``files`` of which nothing says what is in which.

    The folder has neither ``model.safetensors`` nor an index.
    """
    names = [file.name for file in files]
    shards = [_SHARD.fullmatch(name) for name in names]
    _refuse_shards_without_index(folder, [shard for shard in shards if shard is not None])
    if len(names) == 1:
        raise OcrPhasesError(
            f"{folder} has its weights in {names[0]}: name that file model.safetensors, as "
            "transformers does."
        )
    raise OcrPhasesError(
        f"{folder} has {_first_names(names)}, but neither model.safetensors nor "
        "model.safetensors.index.json, which would say what is in which: name the file with the "
        "whole model model.safetensors."
    )


def _refuse_shards_without_index(folder: Path, shards: list[re.Match[str]]) -> None:
    """Raise `OcrPhasesError` where there are shards; say how many of them are missing, too."""
    if not shards:
        return
    count = int(shards[0]["count"])
    numbers = {int(shard["number"]) for shard in shards}
    missing = count - len(numbers)
    also_missing = ""
    if missing > 0:
        also_missing = f" and {count_text(missing, 'file')} of its {count}"
    raise OcrPhasesError(
        f"{folder} has its weights in parts, but lacks model.safetensors.index.json, which says "
        f"what is in which{also_missing}: download what is missing."
    )


def refuse_adapter(folder: Path) -> None:
    """Raise `OcrPhasesError` where a folder holds an adapter (LoRA).

    It may stand alone or beside whole weights, which differ in what to do about it.
    """
    present = [name for name in _ADAPTER_FILES if (folder / name).exists()]
    if not present:
        return
    weights = [file.name for file in folder.glob("*.safetensors")]
    has_own_weights = any(name not in _ADAPTER_FILES for name in weights)
    if has_own_weights and (folder / CONFIG).is_file():
        raise OcrPhasesError(
            f"{folder} has an adapter ({present[0]}) beside whole weights, and nothing says "
            f"whether those contain it: if they do, remove {' and '.join(present)}; if not, "
            f"{_MERGE}."
        )
    raise OcrPhasesError(
        f"{folder} holds an adapter (LoRA, {present[0]}), which is no whole model: {_MERGE}."
    )


def refuse_wrapped_names(folder: Path, stored: StoredTensors) -> None:
    """Raise `OcrPhasesError` where tensors are an adapter's, or named as a wrapper names them."""
    names = sorted(stored.dtypes)
    for name in names:
        if _ADAPTER_TENSOR.search(name):
            raise OcrPhasesError(
                f"The weights in {folder} hold an adapter that is not merged ({name}): {_MERGE}."
            )
    for wrapper in _WRAPPERS:
        _refuse_wrapper(folder, names, wrapper)
    heads = [name for name in names if name.endswith(f".{_HEAD}")]
    if len(heads) == 1:
        prefix = heads[0].removesuffix(_HEAD)
        if all(name.startswith(prefix) for name in names):
            raise OcrPhasesError(
                f"All tensors in {folder} have {prefix} in front of their names: save the model "
                f"inside with save_pretrained(), or give it to {_FROM_MODEL}."
            )
    if stored.written_by == "mlx":
        raise OcrPhasesError(
            f"The weights in {folder} were written by MLX, which lays them out in another way: "
            "name the checkpoint that they were made from."
        )


def _refuse_wrapper(folder: Path, names: list[str], wrapper: _Wrapper) -> None:
    """Raise `OcrPhasesError` for the first tensor whose name holds the wrapper's part."""
    for name in names:
        match = re.search(wrapper.pattern, name)
        if match is not None:
            raise OcrPhasesError(
                f"The tensors in {folder} have {match[1]} in their names ({name}), which "
                f"{wrapper.name} puts there: {wrapper.advice} with save_pretrained(), or give that "
                f"object to {_FROM_MODEL}."
            )


def _names(folder: Path) -> list[str]:
    """The names in a folder, sorted, without hidden ones.

    Raises `OcrPhasesError` where it cannot be read.
    """
    try:
        return sorted(entry.name for entry in os.scandir(folder) if not entry.name.startswith("."))
    except OSError as error:
        raise OcrPhasesError(
            f"{folder} cannot be read ({error.strerror}): name another folder."
        ) from error


def _other_format(names: list[str]) -> _Format | None:
    """The first of `_FORMATS` that one of the files is of, its content with that file's name."""
    for kind in _FORMATS:
        for name in names:
            if name.lower().endswith(kind.endings):
                return kind._replace(content=f"{kind.content} ({name})")
    return None


def _checkpoints_inside(folder: Path) -> list[str]:
    """The folders with a config.json on the first level below ``folder`` that has any.

    They are named by their paths from ``folder``. Where some hold weights, too, only those count.
    """
    for depth in range(1, _DEEPEST + 1):
        with_config = [path for path in _folders_at(folder, depth) if (path / CONFIG).is_file()]
        with_weights = [path for path in with_config if any(path.glob("*.safetensors"))]
        checkpoints = with_weights or with_config
        if checkpoints:
            return sorted(path.relative_to(folder).as_posix() for path in checkpoints)
    return []


def _folders_at(folder: Path, depth: int) -> Iterator[Path]:
    """The folders so many levels below, without hidden ones and without links to folders."""
    above = [folder]
    for _ in range(depth):
        below: list[Path] = []
        for path in above:
            below += _folders_in(path)
            if len(below) > _MOST_FOLDERS:
                break
        above = below
    yield from above


def _folders_in(folder: Path) -> list[Path]:
    """The folders in a folder; none where it cannot be read, as that is not advised either."""
    folders: list[Path] = []
    try:
        for entry in os.scandir(folder):
            if not entry.name.startswith(".") and entry.is_dir(follow_symlinks=False):
                folders.append(Path(entry.path))
    except OSError:
        return []
    return folders


def _first_names(names: list[str]) -> str:
    """The first few of the names, and how many more there are."""
    listed = ", ".join(names[:_NAMED])
    more = len(names) - _NAMED
    if more > 0:
        return f"{listed} and {more} more"
    return listed
