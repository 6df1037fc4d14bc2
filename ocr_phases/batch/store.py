"""What lies in a batch's folder, and how it is read back after any kill.

``jobs.jsonl`` lists the pages of the last command. Each page has a folder with its record, its report and
``status.json``, which the driver alone writes and writes last: a page without it is not finished.

A worker writes into a folder of its attempt's own, and the driver puts in place what the answer it counts has
named. So a worker that nobody waits for any more, because its driver was killed, changes nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import uuid
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Any

from ocr_phases.batch.job import Job
from ocr_phases.errors import OcrPhasesError
from ocr_phases.files import output_folder, write_atomic

LISTING = "jobs.jsonl"
STATUS = "status.json"
RECORD = "run.json"
SCHEMA = 1

_ATTEMPT = ".attempt-"


class Listing:
    """Writes ``jobs.jsonl`` as the jobs come; it takes its place when all of them are there.

    Where the batch stops before that, the last command's stays if it begins as this one does.
    """

    def __init__(self, out: Path) -> None:
        self.path = out / LISTING
        self.scratch = out / f".{LISTING}.part"

    def __enter__(self) -> Listing:
        try:
            # A name that is no UTF-8 is only shown from here: its page is known by its id.
            self.file = self.scratch.open("w", encoding="utf-8", errors="replace")
        except OSError as error:
            raise OcrPhasesError(f"{self.path} cannot be written ({error.strerror or error}).") from error
        return self

    def add(self, job: Job) -> None:
        """One more page."""
        entry = {"id": job.id, "page": job.name, "folder": job.folder}
        try:
            self.file.write(json.dumps(entry, ensure_ascii=False) + "\n")
        except OSError as error:
            raise OcrPhasesError(f"{self.path} cannot be written ({error.strerror or error}).") from error

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.file.close()
            if kind is None or self._says_more():
                self.scratch.replace(self.path)
            else:
                self.scratch.unlink(missing_ok=True)
        except OSError as cause:
            if kind is None:
                raise OcrPhasesError(f"{self.path} cannot be written ({cause.strerror or cause}).") from cause

    def _says_more(self) -> bool:
        return not (self.path.exists() and self.path.read_bytes().startswith(self.scratch.read_bytes()))


def read_listing(out: Path) -> Iterator[dict[str, Any]]:
    """The entries of ``jobs.jsonl``: ``id``, ``page`` and ``folder``."""
    try:
        with (out / LISTING).open(encoding="utf-8") as file:
            for line in file:
                yield json.loads(line)
    except (OSError, ValueError) as error:
        raise OcrPhasesError(f"{out / LISTING} cannot be read ({error}): run the batch again.") from error


def read_status(folder: Path) -> dict[str, Any] | None:
    """What became of a page; None where nothing is known, or only in another version's words."""
    try:
        status = json.loads((folder / STATUS).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return status if isinstance(status, dict) and status.get("schema") == SCHEMA else None


def write_status(folder: Path, status: dict[str, Any]) -> None:
    """Write down what became of a page; `OcrPhasesError` where it cannot be written."""
    text = json.dumps({"schema": SCHEMA, **status}, ensure_ascii=False, separators=(",", ":"))
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OcrPhasesError(f"{folder} cannot be written ({error.strerror or error}).") from error
    write_atomic(folder / STATUS, text.encode("utf-8", "replace") + b"\n")


def finished(folder: Path, job_id: str) -> dict[str, Any] | None:
    """The status of a page that is measured and whose record is there; None for any other."""
    status = read_status(folder)
    if status is None or status.get("id") != job_id or status.get("state") != "done":
        return None
    return status if (folder / RECORD).is_file() else None


@contextlib.contextmanager
def attempt_folder(folder: Path) -> Iterator[Path]:
    """A hidden folder in a page's own, for the files of one attempt; it goes where the attempt fails.

    Raises `OcrPhasesError` where it cannot be written.
    """
    place = output_folder(folder / f"{_ATTEMPT}{uuid.uuid4().hex}")
    try:
        yield place
    except BaseException:
        shutil.rmtree(place, ignore_errors=True)
        raise


def take_attempt(folder: Path, name: str) -> None:
    """Put what the attempt in ``folder / name`` wrote in its place; `OcrPhasesError` where that fails."""
    place = folder / name
    try:
        # A network file system may still remember that the folder was missing: this makes it look again.
        folder.mkdir(parents=True, exist_ok=True)
        for path in sorted(place.iterdir()):
            target = folder / path.name
            if target.is_dir():
                shutil.rmtree(target)
            os.replace(path, target)  # noqa: PTH105
        place.rmdir()
    except OSError as error:
        raise OcrPhasesError(
            f"What a worker wrote into {place} cannot be put in its place ({error.strerror or error}): "
            "driver and workers need one file system, under the same path."
        ) from error


def clear_left_behind(folder: Path) -> None:
    """Remove the hidden files that a kill in the middle of writing leaves, and attempts that failed."""
    for pattern in (".*.part", ".*.ipynb"):
        for path in folder.glob(pattern):
            path.unlink(missing_ok=True)
    for place in folder.glob(f"{_ATTEMPT}*"):
        shutil.rmtree(place, ignore_errors=True)  # a worker may be at it still, and then fails
