"""All spans and tokens of a batch as one table each, written page by page, in CSV."""

from __future__ import annotations

import contextlib
import csv
import hashlib
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypedDict

import msgspec

from ocr_phases.batch.figures import TOKENS
from ocr_phases.batch.store import read_listing
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


def write_tables(out: Path, digests: Mapping[str, str]) -> list[Path]:
    """Write ``spans`` and ``tokens`` of a batch, unless they hold these pages already; their paths.

    ``digests`` has the SHA-256 of each measured page's record by its id. A file takes its place when all rows
    are there. Raises `OcrPhasesError` where that fails.
    """
    paths = {name: out / f"{name}.csv" for name in COLUMNS}
    told = "".join(f"{name} {digest}\n" for name, digest in digests.items())
    held = hashlib.sha256(told.encode()).hexdigest()
    mark = out / _HELD
    with contextlib.suppress(OSError):
        if mark.read_text() == held and all(path.is_file() for path in paths.values()):
            return list(paths.values())
    mark.unlink(missing_ok=True)
    scratch = {name: path.with_name(f".{path.name}.part") for name, path in paths.items()}
    missing = dict(digests)
    try:
        with contextlib.ExitStack() as stack:
            files = {}
            for name, path in scratch.items():
                file = path.open("w", encoding="utf-8", errors="replace", newline="")
                files[name] = stack.enter_context(file)
                csv.writer(file, lineterminator="\n").writerow((*KEY_COLUMNS, *COLUMNS[name]))
            for entry in read_listing(out):
                digest = missing.pop(entry["id"], None)
                if digest is None:
                    continue
                key = io.StringIO()
                csv.writer(key, lineterminator="").writerow((entry["id"], entry["page"]))
                rows = read_rows(out / entry["folder"], digest)
                for name, file in files.items():
                    file.write(rows["tables"][name].replace(_KEY, key.getvalue()))
        for name, path in scratch.items():
            path.replace(paths[name])
    except OSError as error:
        raise OcrPhasesError(f"The tables in {out} cannot be written ({error.strerror or error}).") from error
    write_atomic(mark, held.encode())
    return list(paths.values())


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
