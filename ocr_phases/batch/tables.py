"""All spans and tokens of a batch as one table each, written page by page, in CSV."""

from __future__ import annotations

import contextlib
import csv
import hashlib
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypedDict

import msgspec

from ocr_phases.batch.figures import TOKENS
from ocr_phases.batch.store import Entry, read_listing
from ocr_phases.errors import OcrPhasesError
from ocr_phases.files import RECORD, write_atomic
from ocr_phases.record import SPAN_COLUMNS, PhaseRun
from ocr_phases.store import file_hash

#: What identifies the page in front of every row: its job and its name in the batch.
KEY_COLUMNS = ("id", "page")
#: The token's id is ``token_id`` here, the job's is ``id``.
COLUMNS = {
    "spans": SPAN_COLUMNS,
    "tokens": tuple("token_id" if name == "id" else name for name in TOKENS),
}

ROWS = "rows.json"

_HELD = "tables.sha256"
_KEY = "\0"  # no text of a CSV file has it


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
                rows = read_rows(self.out / entry["folder"], digest)
                for name, writer in zip(COLUMNS, writers, strict=True):
                    writer.add(entry, rows["tables"][name])
        for writer in writers:
            writer.close()
        write_atomic(mark, held.encode())
        return paths


class Rows(TypedDict):
    """``rows.json``: a page's rows of each table as CSV, of the record with this SHA-256.

    A row begins with `_KEY` where the page's key columns go. So the worker turns numbers into text, which
    takes longer than all else that the driver does for a page.
    """

    record: str
    tables: dict[str, str]


def write_rows(folder: Path, run: PhaseRun) -> Rows:
    """Write the rows of the record in ``folder``, which is ``run``; `OcrPhasesError` if that fails."""
    tokens = run.token_table[list(TOKENS)]
    tokens = tokens.astype(object).where(tokens.notna(), None)
    columns = {
        "spans": [run.to_dict()["spans"][name] for name in SPAN_COLUMNS],
        "tokens": [tokens[name].tolist() for name in tokens],
    }
    tables = {}
    for name, values in columns.items():
        text = io.StringIO()
        writer = csv.writer(text, lineterminator="\n")
        for row in zip(*values, strict=True):
            writer.writerow([_KEY, *(_plain(value) for value in row)])
        tables[name] = text.getvalue()
    rows: Rows = {"record": file_hash(folder / RECORD), "tables": tables}
    write_atomic(folder / ROWS, msgspec.json.encode(rows))
    return rows


def read_rows(folder: Path, digest: str) -> Rows:
    """The rows of the record in ``folder`` with this SHA-256, made anew where they are missing or damaged."""
    with contextlib.suppress(OSError, msgspec.DecodeError, UnicodeDecodeError):
        rows = msgspec.json.decode((folder / ROWS).read_bytes(), type=Rows)
        if rows["record"] == digest and rows["tables"].keys() == COLUMNS.keys():
            return rows
    return write_rows(folder, PhaseRun.load(folder / RECORD))


def _plain(value: Any) -> Any:
    """A text without `_KEY`, and of valid Unicode; any other value as it is."""
    return value.replace(_KEY, "").encode("utf-8", "replace").decode() if isinstance(value, str) else value


class TableWriter:
    """Appends rows to one file, which takes its place when all are there."""

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        self.path = path
        self.scratch = path.with_name(f".{path.name}.part")
        with _explained(path):
            self.file = self.scratch.open("w", encoding="utf-8", errors="replace", newline="")
        self.rows = csv.writer(self.file, lineterminator="\n")
        self.rows.writerow((*KEY_COLUMNS, *columns))

    def add(self, entry: Entry, rows: str) -> None:
        """The `Rows` of a page."""
        key = io.StringIO()
        csv.writer(key, lineterminator="").writerow((entry["id"], entry["page"]))
        with _explained(self.path):
            self.file.write(rows.replace(_KEY, key.getvalue()))

    def close(self) -> None:
        """Put the file in its place."""
        with _explained(self.path):
            self.file.close()
            self.scratch.replace(self.path)


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OcrPhasesError(f"{path} cannot be written ({error.strerror or error}).") from error
