"""What the files of a checkpoint hold, read without torch.

Their first bytes say it, and the headers of safetensors files.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple, TypedDict

from ocr_phases.errors import OcrPhasesError
from ocr_phases.files import conform, open_regular, parse_json
from ocr_phases.text import bytes_text

#: The longest header that the safetensors format allows, in bytes.
LONGEST_HEADER = 100_000_000
#: Of a file this many bytes say what it is.
START = 512
_SINGLE = "model.safetensors"

_FETCH_LFS = (
    "is a Git LFS pointer, the note that git keeps in the place of a large file: run "
    "'git lfs install' and 'git lfs pull' in its folder, or fetch the checkpoint with "
    "'hf download'"
)
_FETCH_ANNEX = "is a git-annex pointer, not the file itself: run 'git annex get .' in its folder"
_FETCH_AGAIN = "download that file again"
#: How the text begins that stands in a file when a download went wrong, and what that says.
_NOT_THE_FILE = {
    b"version https://git-lfs": _FETCH_LFS,
    b"version https://hawser": _FETCH_LFS,
    b"/annex/objects/": _FETCH_ANNEX,
    b"<!doctype": f"is a web page, not the file itself: {_FETCH_AGAIN}",
    b"<html": f"is a web page, not the file itself: {_FETCH_AGAIN}",
    b"<?xml": f"is an answer of a web server, not the file itself: {_FETCH_AGAIN}",
}
#: How files of other formats begin.
_OTHER_FORMATS = {
    b"GGUF": "holds GGUF weights",
    b"PK\x03\x04": "holds pickled weights or an archive",
    b"\x80\x02": "holds pickled weights",
    b"\x80\x04": "holds pickled weights",
    b"\x93NUMPY": "holds a NumPy array",
    b"\x89HDF": "holds HDF5 weights",
}


class _Tensor(TypedDict):
    """What a safetensors header says of a tensor, as far as it is read."""

    dtype: str
    data_offsets: tuple[int, int]


class StoredTensors(NamedTuple):
    """The tensors of safetensors files.

    ``dtypes`` are their dtypes by name, as in ``BF16``; ``written_by`` is the program that wrote
    them, where a file says so.
    """

    dtypes: dict[str, str]
    written_by: str | None


def check_start(path: Path, start: bytes) -> None:
    """Raise `OcrPhasesError` where a file that begins with ``start`` is empty or a stand-in."""
    if not start:
        raise OcrPhasesError(f"{path} is empty: {_FETCH_AGAIN}.")
    text = start.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    for beginning, reason in _NOT_THE_FILE.items():
        if text.startswith(beginning):
            raise OcrPhasesError(f"{path} {reason}.")


def check_beginning_of(path: Path) -> None:
    """`check_start` of a file; nothing where there is none, or none that can be read."""
    try:
        with open_regular(path) as file:
            start = file.read(START)
    except OSError:
        return
    check_start(path, start)


def loaded_files(folder: Path, index: dict[str, Any]) -> list[Path]:
    """The safetensors files of a folder that transformers loads; empty where it finds none.

    That is ``model.safetensors``, and only where this is missing those that the ``index`` names.
    """
    if (folder / _SINGLE).exists():
        return [folder / _SINGLE]
    return [folder / name for name in sorted(set(index["weight_map"].values()))]


def read_headers(paths: list[Path]) -> StoredTensors:
    """What the headers of safetensors files say; no weights are read.

    Raises `OcrPhasesError` for a file that is empty, cut, a stand-in for the real one, or of
    another format.
    """
    dtypes: dict[str, str] = {}
    written_by = None
    for path in paths:
        header = _read_header(path)
        metadata = header.pop("__metadata__", None)
        if isinstance(metadata, dict):
            program = metadata.get("format")
            if isinstance(program, str):
                written_by = program
        try:
            tensors = conform(header, dict[str, _Tensor])
        except OcrPhasesError as error:
            raise OcrPhasesError(
                f"{path} is no safetensors file ({error}): {_FETCH_AGAIN}."
            ) from error
        _check_length(path, tensors)
        for name, tensor in tensors.items():
            dtypes[name] = tensor["dtype"]
    return StoredTensors(dtypes, written_by)


def _read_header(path: Path) -> dict[str, Any]:
    """The header of a safetensors file; `OcrPhasesError` where there is no whole one."""
    with open_regular(path) as file:
        start = file.read(START)
        check_start(path, start)
        for beginning, content in _OTHER_FORMATS.items():
            if start.startswith(beginning):
                raise OcrPhasesError(
                    f"{path} {content} under the name of safetensors: only safetensors weights "
                    "are loaded, so take the checkpoint in that format."
                )
        size = int.from_bytes(start[:8], "little")
        if not 0 < size <= LONGEST_HEADER:
            raise OcrPhasesError(
                f"{path} is no safetensors file (it names a header of {size:,} bytes): "
                f"{_FETCH_AGAIN}."
            )
        file.seek(8)
        text = file.read(size)
    if len(text) < size:
        raise OcrPhasesError(
            f"{path} is cut short (its header has {size:,} bytes, the whole file "
            f"{len(text) + 8:,}): {_FETCH_AGAIN}."
        )
    try:
        header = parse_json(text)
    except OcrPhasesError as error:
        raise OcrPhasesError(
            f"{path} is no safetensors file (its header: {error}): {_FETCH_AGAIN}."
        ) from error
    if not isinstance(header, dict):
        raise OcrPhasesError(
            f"{path} is no safetensors file (its header is no object): {_FETCH_AGAIN}."
        )
    return header


def _check_length(path: Path, tensors: dict[str, _Tensor]) -> None:
    """Raise where the file ends before the last of its tensors does."""
    with open_regular(path) as file:
        header_size = int.from_bytes(file.read(8), "little")
    ends = [tensor["data_offsets"][1] for tensor in tensors.values()]
    needed = 8 + header_size + max(ends, default=0)
    size = path.stat().st_size
    if size < needed:
        raise OcrPhasesError(
            f"{path} is cut short (it has {bytes_text(size)} of {bytes_text(needed)}): "
            f"{_FETCH_AGAIN}."
        )
