"""Results that stay whole if the process is killed at any moment.

A status file beside a record says that the record is finished. It is written last, when the record
is in place. It holds the SHA-256 of the record and an id, the hash of everything that was asked: a
record that was cut or changed since is measured again, and so is one with other settings. So
nobody has to load a record to know that it is finished.

A worker writes into a folder of its own attempt, and `take` moves its files into place. An attempt
that nobody waits for any more therefore changes nothing.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict, TypeVar

import msgspec

from ocr_phases.errors import OcrPhasesError
from ocr_phases.files import make_way, output_folder, read_regular, write_atomic

#: The version of a status file's layout; a record has its own.
STATUS_SCHEMA = 1
CELL_STATUS = ".status.json"
#: Largest status file that is read, in bytes: a page's has some 10 kB.
LARGEST_STATUS = 16 * 2**20
#: How the folder of a worker's attempt begins.
ATTEMPT = ".attempt-"
AGAIN = "the same command measures it again."


class Status(TypedDict):
    """What every status file holds; ``record`` is the SHA-256 of a record that is done.

    ``sha256`` is that of everything else in the file. Files that version 0.2 wrote lack it.
    """

    schema: Literal[1]
    id: str
    state: Literal["done", "failed"]
    reason: str
    record: str | None
    sha256: NotRequired[str]


class CellStatus(Status):
    """The status of a cell of a sweep: what was asked of which cell.

    Its file has the name of the record, with `CELL_STATUS` as its ending.
    """

    asked: dict[str, Any]


_Kind = TypeVar("_Kind", bound=Status)


def short_hash(values: Mapping[str, Any]) -> str:
    """A hash of plain values, in 16 hexadecimal digits.

    The hash of everything that a result depends on is the id of that result.
    """
    text = json.dumps(values, sort_keys=True, ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def read_status(path: Path, kind: type[_Kind]) -> _Kind | None:
    """The status in a file; None where the file is missing or of another version.

    Raises `OcrPhasesError` where it is damaged.
    """
    try:
        content = msgspec.json.decode(read_regular(path, LARGEST_STATUS), type=dict[str, Any])
        if content["schema"] != STATUS_SCHEMA:
            return None
        if "sha256" in content and content["sha256"] != _content_hash(content):
            raise ValueError("it is not as it was written")
        return msgspec.convert(content, kind)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, RecursionError, OcrPhasesError) as error:
        raise OcrPhasesError(f"{path.name} is damaged ({error}): {AGAIN}") from error


def write_status(path: Path, status: Mapping[str, Any]) -> None:
    """Write a status; its schema number and its hash are added.

    Raises `OcrPhasesError` where the file cannot be written.
    """
    text = json.dumps({"schema": STATUS_SCHEMA, **status}, ensure_ascii=False, allow_nan=False)
    # A file name that is no UTF-8 loses something here, so the hash is of what can be read back.
    content: dict[str, Any] = msgspec.json.decode(text.encode("utf-8", "replace"))
    content["sha256"] = _content_hash(content)
    output_folder(path.parent)
    make_way(path)
    write_atomic(path, msgspec.json.encode(content) + b"\n")


def _content_hash(status: Mapping[str, Any]) -> str:
    """SHA-256 of all that a status says beside its own hash, whatever the order and spacing."""
    content = {name: value for name, value in status.items() if name != "sha256"}
    return hashlib.sha256(msgspec.json.encode(content, order="sorted")).hexdigest()


def write_failure(path: Path, reason: str, status: Mapping[str, Any]) -> None:
    """Write the status of what could not be measured, with the ``reason``."""
    write_status(path, {**status, "state": "failed", "reason": reason, "record": None})


def is_finished(status: Status | None, record: Path, result_id: str) -> bool:
    """Whether a status says that a result is done, and its record is as it was measured.

    ``result_id`` is the id of what is asked for now.
    """
    if status is None or status["id"] != result_id or status["state"] != "done":
        return False
    try:
        check_record(record, status)
    except OcrPhasesError:
        return False
    return True


def check_record(record: Path, status: Status) -> str:
    """The SHA-256 of a finished record.

    Raises `OcrPhasesError` where the file is missing, or is not as its status says.
    """
    if not record.is_file():
        raise OcrPhasesError(f"{record.name} is missing: {AGAIN}")
    digest = file_hash(record)
    if digest != status["record"]:
        raise OcrPhasesError(f"{record.name} is damaged, it is not as it was measured: {AGAIN}")
    return digest


def file_hash(path: Path) -> str:
    """The SHA-256 of a file, computed once as long as its size and its time stay the same.

    Raises `OcrPhasesError` where the file cannot be read.
    """
    try:
        state = path.stat()
        return _file_hash(str(path), state.st_mtime_ns, state.st_size)
    except OSError as error:
        raise OcrPhasesError(f"{path} cannot be read ({error.strerror}).") from error


@lru_cache(maxsize=200_000)  # 0.3 kB each: a command looks at every result several times
def _file_hash(path: str, changed: int, size: int) -> str:
    return hashlib.sha256(read_regular(path)).hexdigest()


def take(folder: Path, name: str) -> None:
    """Move the files of an attempt from ``folder / name`` into ``folder``.

    Raises `OcrPhasesError` where that fails.
    """
    attempt = folder / name
    try:
        # A network file system may still remember that the folder was missing: this makes it look
        # again.
        folder.mkdir(parents=True, exist_ok=True)
        for path in sorted(attempt.iterdir()):
            target = folder / path.name
            # A folder is removed first. A file, a link or a pipe is replaced as it is.
            if target.is_dir() and not target.is_symlink():
                shutil.rmtree(target, ignore_errors=True)
            path.replace(target)
        attempt.rmdir()
    except OSError as error:
        raise OcrPhasesError(
            f"What a worker wrote into {attempt} cannot be put in its place "
            f"({error.strerror or error}): driver and workers need one file system, under the same "
            f"path."
        ) from error
