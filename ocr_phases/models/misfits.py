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
    "merge it into its base model (merge_and_unload() of peft) and save that with save_pretrained(), "
    "or give the "
    f"merged object to {_FROM_MODEL}"
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
        "save_pretrained(), or "
        f"give the object to {_FROM_MODEL}",
    ),
)

_ADAPTER_FILES = ("adapter_config.json", "adapter_model.safetensors", "adapter_model.bin")
_ADAPTER_TENSOR = re.compile(
    r"(^|\.)(lora_\w+|hada_\w+|lokr_\w+|ia3_\w+|oft_\w+|boft_\w+|vera_\w+|base_layer|modules_to_save)(\.|$)"
)
#: Names of tensors that a wrapper has put its own in front of, or between; who does that, and how
#: to save without it.
_WRAPPERS = {
    r"^(base_model\.model\.)": ("peft", "call merge_and_unload() and save what that returns"),
    r"(?:^|\.)(_orig_mod\.)": ("torch.compile", "save model._orig_mod"),
    r"(?:^|\.)(_fsdp_wrapped_module\.)": ("FSDP", "save the full state without the wrapper"),
    r"(?:^|\.)(_checkpoint_wrapped_module\.)": (
        "activation checkpointing",
        "save the model without the wrapper",
    ),
    r"^(_forward_module\.)": ("Lightning", "save the module inside"),
    r"^(module\.)": ("DataParallel, DDP or DeepSpeed", "save model.module"),
    r"^(model\.model\.)": ("a class around the model", "save the model inside"),
}
_HEAD = "lm_head.weight"
_SHARD = re.compile(r"(?P<name>.+)-(?P<number>\d+)-of-(?P<count>\d+)\.safetensors")

_DEEPEST = 3  # levels of folders: of a hub's cache, its repositories, their snapshots
_MOST_FOLDERS = 2_000
_NAMED = 3


def refuse_file(name: str, path: str) -> NoReturn:
    """Raise `OcrPhasesError` for a file that was given in the place of a checkpoint's folder."""
    file = Path(path)
    found = _format_of([file.name])
    if found is not None:
        raise OcrPhasesError(f"{name} is a file, {found.content}: {found.advice}.")
    if (file.parent / CONFIG).is_file():
        raise OcrPhasesError(f"{name} is a file: name the checkpoint's folder, {file.parent}.")
    raise OcrPhasesError(f"{name} is a file: name the checkpoint's folder.")


def refuse_without_config(folder: Path) -> NoReturn:
    """Raise `OcrPhasesError` for a folder without a config.json, by what else it holds."""
    told = f"{folder} is no checkpoint folder: it has no {CONFIG}"
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
        raise OcrPhasesError(f"{told} itself, but the folder {inside[0]} in it has one: name that.")
    if inside:
        raise OcrPhasesError(
            f"{told} itself, but folders in it have one: name one of them ({_some(inside)})."
        )
    if any(name.startswith("models--") for name in names) or "snapshots" in names:
        raise OcrPhasesError(
            f"{folder} is the hub's cache, with no finished download of a checkpoint in it: pass the "
            "model's hub "
            "id (ORG/NAME) to fetch it."
        )
    found = _format_of(names)
    if found is not None:
        raise OcrPhasesError(f"{told}, but {found.content}: {found.advice}.")
    if any(name.endswith(".safetensors") for name in names):
        raise OcrPhasesError(f"{told}, so put the checkpoint's own beside the weights.")
    if (folder.parent / CONFIG).is_file():
        raise OcrPhasesError(f"{told}, but {folder.parent} has one: name that.")
    raise OcrPhasesError(f"{told}.")


def refuse_without_weights(folder: Path, expected: Iterable[str]) -> NoReturn:
    """Raise `OcrPhasesError` for a folder without safetensors weights, by what else it holds.

    ``expected`` are the files that its index names.
    """
    missing = sorted(set(expected))
    if missing:
        refuse_missing_shards(folder, missing, len(missing))
    told = f"{folder} has no *.safetensors file"
    names = _names(folder)
    found = _format_of(names)
    if found is not None:
        raise OcrPhasesError(f"{told}, but {found.content}: {found.advice}.")
    for name in sorted(names):
        if (folder / name).is_dir() and any((folder / name).glob("*.safetensors")):
            raise OcrPhasesError(
                f"{told}, but its folder {name} has: put them beside {CONFIG}, or name {name}."
            )
    raise OcrPhasesError(
        f"{told}, and only safetensors weights are loaded: download the checkpoint's weights into it."
    )


def refuse_missing_shards(folder: Path, missing: list[str], count: int) -> NoReturn:
    """Raise `OcrPhasesError` for a folder that lacks ``missing`` of the ``count`` files its index
    names.
    """
    raise OcrPhasesError(
        f"{folder} has no {_some(missing)}, which its index of the weights names: download what is missing "
        f"({count_text(len(missing), 'file')} of {count})."
    )


def refuse_unloaded_weights(folder: Path, files: list[Path]) -> NoReturn:
    """Raise `OcrPhasesError` for a folder without ``model.safetensors`` and without an index of its
    files.
    """
    shards = [found for file in files if (found := _SHARD.fullmatch(file.name))]
    if shards:
        count = int(shards[0]["count"])
        numbers = {int(shard["number"]) for shard in shards}
        missing = count - len(numbers)
        lacking = f" and {count_text(missing, 'file')} of its {count}" if missing > 0 else ""
        raise OcrPhasesError(
            f"{folder} has its weights in parts, but lacks model.safetensors.index.json, which says "
            "what is in "
            f"which{lacking}: download what is missing."
        )
    if len(files) == 1:
        raise OcrPhasesError(
            f"{folder} has its weights in {files[0].name}: name that file model.safetensors, as "
            "transformers does."
        )
    raise OcrPhasesError(
        f"{folder} has {_some([file.name for file in files])}, but neither model.safetensors nor "
        "model.safetensors.index.json, which would say what is in which: name the file with the whole model "
        "model.safetensors."
    )


def refuse_adapter(folder: Path) -> None:
    """Raise `OcrPhasesError` where a folder holds an adapter (LoRA), alone or beside whole weights."""
    present = [name for name in _ADAPTER_FILES if (folder / name).exists()]
    if not present:
        return
    if (folder / CONFIG).is_file() and any(
        file.name not in _ADAPTER_FILES for file in folder.glob("*.safetensors")
    ):
        raise OcrPhasesError(
            f"{folder} has an adapter ({present[0]}) beside whole weights, and nothing says whether "
            "those contain "
            f"it: if they do, remove {_all(present)}; if not, {_MERGE}."
        )
    raise OcrPhasesError(
        f"{folder} holds an adapter (LoRA, {present[0]}), which is no whole model: {_MERGE}."
    )


def refuse_wrapped_names(folder: Path, stored: StoredTensors) -> None:
    """Raise `OcrPhasesError` where tensors are an adapter's, or named behind what a wrapper put in
    front.
    """
    names = sorted(stored.dtypes)
    for name in names:
        if _ADAPTER_TENSOR.search(name):
            raise OcrPhasesError(
                f"The weights in {folder} hold an adapter that is not merged ({name}): {_MERGE}."
            )
    for pattern, (who, advice) in _WRAPPERS.items():
        wrapped = next((found for name in names if (found := re.search(pattern, name))), None)
        if wrapped is not None:
            raise OcrPhasesError(
                f"The tensors in {folder} have {wrapped[1]} in their names ({wrapped.string}), which "
                f"{who} puts "
                f"there: {advice} with save_pretrained(), or give that object to {_FROM_MODEL}."
            )
    heads = [name for name in names if name.endswith(f".{_HEAD}")]
    if len(heads) == 1 and all(name.startswith(heads[0].removesuffix(_HEAD)) for name in names):
        raise OcrPhasesError(
            f"All tensors in {folder} have {heads[0].removesuffix(_HEAD)} in front of their names: "
            "save the model "
            f"inside with save_pretrained(), or give it to {_FROM_MODEL}."
        )
    if stored.written_by == "mlx":
        raise OcrPhasesError(
            f"The weights in {folder} were written by MLX, which lays them out in another way: name "
            "the checkpoint "
            "that they were made from."
        )


def _names(folder: Path) -> list[str]:
    """What a folder holds, without hidden files; `OcrPhasesError` where it cannot be read."""
    try:
        return sorted(entry.name for entry in os.scandir(folder) if not entry.name.startswith("."))
    except OSError as error:
        raise OcrPhasesError(
            f"{folder} cannot be read ({error.strerror}): name another folder."
        ) from error


def _format_of(names: list[str]) -> _Format | None:
    """The first of `_FORMATS` that one of the files is of, its content with that file's name."""
    for each in _FORMATS:
        for name in names:
            if name.lower().endswith(each.endings):
                return each._replace(content=f"{each.content} ({name})")
    return None


def _checkpoints_inside(folder: Path) -> list[str]:
    """The folders below with a config.json, of those nearest to ``folder``, by their paths from
    there.
    """
    for depth in range(1, _DEEPEST + 1):
        found = [path for path in _folders_at(folder, depth) if (path / CONFIG).is_file()]
        whole = [path for path in found if any(path.glob("*.safetensors"))]
        if found:
            return sorted(path.relative_to(folder).as_posix() for path in whole or found)
    return []


def _folders_at(folder: Path, depth: int) -> Iterator[Path]:
    """The folders so many levels below, without hidden ones and without links to folders."""
    above = [folder]
    for _ in range(depth):
        below: list[Path] = []
        for path in above:
            try:
                entries = [entry for entry in os.scandir(path) if not entry.name.startswith(".")]
                below += [
                    Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)
                ]
            except OSError:
                continue  # what cannot be read is not advised either
            if len(below) > _MOST_FOLDERS:
                break
        above = below
    yield from above


def _all(names: list[str]) -> str:
    return " and ".join(names)


def _some(names: list[str]) -> str:
    more = len(names) - _NAMED
    listed = ", ".join(names[:_NAMED])
    return f"{listed} and {more} more" if more > 0 else listed
