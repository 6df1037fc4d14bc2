"""All spans and tokens of a batch as one table each, written page by page, in CSV."""

from __future__ import annotations

import contextlib
import csv
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ocr_phases.batch.figures import TOKENS, read_figures
from ocr_phases.batch.store import Entry, read_listing
from ocr_phases.errors import OcrPhasesError
from ocr_phases.files import RECORD, write_atomic
from ocr_phases.record import SPAN_COLUMNS, PhaseRun

#: What identifies the page in front of every row: its job and its name in the batch.
KEY_COLUMNS = ("id", "page")
#: The token's id is ``token_id`` here, the job's is ``id``.
COLUMNS = {
    "spans": SPAN_COLUMNS,
    "tokens": tuple("token_id" if name == "id" else name for name in TOKENS),
}

_HELD = "tables.sha256"


class Measured:
    """The measured pages of a batch, in their order, and its span and token tables."""

    def __init__(self, out: Path) -> None:
        self.out = out
        self.digests: dict[str, str] = {}

    def add(self, entry: Entry, record: str) -> None:
        """The next page, by its record's SHA-256."""
        self.digests[entry["id"]] = record

    def write_tables(self) -> list[Path]:
        """Write ``spans`` and ``tokens``, unless they hold these pages already; their paths.

        Raises `OcrPhasesError` where that fails.
        """
        paths = [self.out / f"{name}.csv" for name in COLUMNS]
        told = "".join(f"{name} {digest}\n" for name, digest in self.digests.items())
        held = hashlib.sha256(told.encode()).hexdigest()
        mark = self.out / _HELD
        with contextlib.suppress(OSError):
            if mark.read_text() == held and all(path.is_file() for path in paths):
                return paths
        mark.unlink(missing_ok=True)
        writers = [TableWriter(path, COLUMNS[name]) for name, path in zip(COLUMNS, paths, strict=True)]
        for entry in read_listing(self.out):
            digest = self.digests.pop(entry["id"], None)
            if digest is not None:
                folder = self.out / entry["folder"]
                tokens = read_figures(folder, digest)["tokens"]
                for writer, columns in zip(writers, (record_spans(folder / RECORD), tokens), strict=True):
                    writer.add(entry, list(columns.values()))
        for writer in writers:
            writer.close()
        write_atomic(mark, held.encode())
        return paths


class _Spans(msgspec.Struct):
    schema: int
    spans: dict[str, list[Any]]


def record_spans(path: Path) -> dict[str, list[Any]]:
    """The columns of a record's spans, in the order of `SPAN_COLUMNS`; `OcrPhasesError` for another file."""
    try:
        record = msgspec.json.decode(path.read_bytes(), type=_Spans)
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return _from_table(PhaseRun.load(path))  # says what is wrong
    if record.schema != 2:
        return _from_table(PhaseRun.load(path))
    return {name: record.spans[name] for name in SPAN_COLUMNS}


class TableWriter:
    """Appends rows to one file, which takes its place when all are there."""

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        self.path = path
        self.scratch = path.with_name(f".{path.name}.part")
        with _explained(path):
            self.file = self.scratch.open("w", encoding="utf-8", errors="replace", newline="")
        self.rows = csv.writer(self.file, lineterminator="\n")
        self.rows.writerow((*KEY_COLUMNS, *columns))

    def add(self, entry: Entry, columns: Sequence[list[Any]]) -> None:
        """The rows of a page, one list a column."""
        with _explained(self.path):
            keys = (entry["id"], entry["page"])
            self.rows.writerows((*keys, *row) for row in zip(*columns, strict=True))

    def close(self) -> None:
        """Put the file in its place."""
        with _explained(self.path):
            self.file.close()
            self.scratch.replace(self.path)


def _from_table(run: PhaseRun) -> dict[str, list[Any]]:
    spans: Mapping[str, list[Any]] = run.to_dict()["spans"]
    return {name: spans[name] for name in SPAN_COLUMNS}


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OcrPhasesError(f"{path} cannot be written ({error.strerror or error}).") from error
