"""All spans and tokens of a batch as one table each, written page by page: Parquet or CSV."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from ocr_phases.errors import OcrPhasesError
from ocr_phases.record import SPAN_COLUMNS, TOKEN_COLUMNS, PhaseRun

#: What identifies the page in front of every row: its job and its name in the batch.
KEY_COLUMNS = ("id", "page")
FORMATS = ("parquet", "csv")

_TEXT = ("id", "page", "phase", "stage", "view", "text", "source")
_ROWS_A_GROUP = 100_000


def table_format() -> str:
    """``parquet`` where pyarrow is installed, else ``csv``."""
    try:
        import pyarrow.parquet  # noqa: F401
    except ImportError:
        return "csv"
    return "parquet"


def page_spans(run: PhaseRun, job_id: str, page: str) -> pd.DataFrame:
    """A record's spans with `KEY_COLUMNS` in front."""
    return _keyed(run.spans, job_id, page)


def page_tokens(run: PhaseRun, job_id: str, page: str) -> pd.DataFrame:
    """A record's token table with `KEY_COLUMNS` in front; ``id`` is the job's, ``token_id`` the token's."""
    return _keyed(run.token_table.rename(columns={"id": "token_id"}), job_id, page)


class TableWriter:
    """Appends tables of the same columns to one file, which takes its place when all are there."""

    def __init__(self, out: Path, name: str, columns: tuple[str, ...], file_format: str) -> None:
        self.path = out / f"{name}.{file_format}"
        self.scratch = out / f".{self.path.name}.part"
        self.columns = columns
        self.file_format = file_format
        self.waiting: list[pd.DataFrame] = []
        self.file: Any = None

    def add(self, table: pd.DataFrame) -> None:
        """More rows, kept until there are enough for a group."""
        self.waiting.append(table)
        if sum(map(len, self.waiting)) >= _ROWS_A_GROUP:
            self._write()

    def close(self) -> Path:
        """Write the rest and put the file in its place; one of the other format goes."""
        self._write()
        with _explained(self.path):
            self.file.close()
            self.scratch.replace(self.path)
            for other in FORMATS:
                if other != self.file_format:
                    self.path.with_suffix(f".{other}").unlink(missing_ok=True)
        return self.path

    def _write(self) -> None:
        with _explained(self.path):
            table = pd.concat(self.waiting) if self.waiting else pd.DataFrame(columns=list(self.columns))
            if self.file_format == "csv":
                self._write_csv(table)
            else:
                self._write_parquet(table)
        self.waiting = []

    def _write_csv(self, table: pd.DataFrame) -> None:
        first = self.file is None
        if first:
            self.file = self.scratch.open("w", encoding="utf-8", errors="replace", newline="")
        table.to_csv(self.file, index=False, header=first)

    def _write_parquet(self, table: pd.DataFrame) -> None:
        import pyarrow
        import pyarrow.parquet

        schema = pyarrow.schema([(name, _arrow_type(name)) for name in self.columns])
        if self.file is None:
            self.file = pyarrow.parquet.ParquetWriter(self.scratch, schema, compression="zstd")
        self.file.write_table(pyarrow.Table.from_pandas(table, schema=schema, preserve_index=False))


def table_writers(out: Path) -> tuple[TableWriter, TableWriter]:
    """Writers of ``spans`` and ``tokens`` below ``out``, in `table_format`."""
    file_format = table_format()
    tokens = tuple("token_id" if name == "id" else name for name in TOKEN_COLUMNS)
    return (
        TableWriter(out, "spans", (*KEY_COLUMNS, *SPAN_COLUMNS), file_format),
        TableWriter(out, "tokens", (*KEY_COLUMNS, *tokens), file_format),
    )


def _keyed(table: pd.DataFrame, job_id: str, page: str) -> pd.DataFrame:
    keyed = table.copy()
    keyed.insert(0, "id", job_id)
    keyed.insert(1, "page", page)
    return keyed


def _arrow_type(column: str) -> Any:
    import pyarrow

    if column in _TEXT:
        return pyarrow.string()
    return pyarrow.float64() if "_ms" in column else pyarrow.int64()


@contextlib.contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise OcrPhasesError(f"{path} cannot be written ({error.strerror or error}).") from error
