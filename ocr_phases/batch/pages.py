"""The pages that a command names: files, folders, globs, lists, and each page of a PDF."""

from __future__ import annotations

import contextlib
import csv
import errno
import glob
import io
import itertools
import os
import stat
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ocr_phases.batch.worker_process import WorkerProcess
from ocr_phases.errors import OcrPhasesError
from ocr_phases.files import (
    MOST_FILE_PAGES,
    PAGE_SUFFIXES,
    PAGED_SUFFIXES,
    conform,
    parse_json,
    read_regular,
    split_page,
)
from ocr_phases.record.schema import Plain
from ocr_phases.settings import setting_from_text

LIST_SUFFIXES = (".csv", ".jsonl")

#: Folders in one another: what is beyond is a page that failed, as in a file of too many pages.
DEEPEST = 100

#: How long the pages of one file may take to be counted.
MOST_COUNT_SECONDS = 60.0


@dataclass(frozen=True)
class BatchPage:
    """One page to measure: its name in the batch, where it is, and settings that only it has.

    ``name`` is the path below the folder that was named, or the file's name; a page of a PDF, or of
    a TIFF with several, ends in ``#3``, also in ``source``, which is absolute. ``problem`` is why
    it cannot be measured, where that is known without reading it.
    """

    name: str
    source: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    problem: str = ""

    def at(self, presets: Sequence[str]) -> list[BatchPage]:
        """The page at each of the ``presets``; itself where it has one of its own, or there are
        none.
        """
        if "preset" in self.settings or not presets:
            return [self]
        pages = []
        for preset in presets:
            pages.append(replace(self, settings={**self.settings, "preset": preset}))
        return pages


def find_pages(
    arguments: Sequence[str],
    known: Sequence[str],
    results: Path | None = None,
    left_out: Counter[str] | None = None,
) -> Iterator[BatchPage]:
    """The pages that ``arguments`` name, in their order and sorted within folders; made as they are
    read.

    An argument is a file, a folder (with all below it), a glob, or a list of pages (``.csv`` with a
    header or ``.jsonl``): there ``page`` is the path, from the list's own folder, and every other
    column one of ``known``, the settings. ``results`` is the folder of a batch's own pictures:
    folders and globs take nothing from it. Links to folders are followed as ``find -L`` does, each
    under its own name, save where one leads back to a folder it lies in. ``left_out`` counts the
    files that are no pages, by their suffix.

    Raises `OcrPhasesError` for an argument or a list that names no page, and for a folder that was
    named and cannot be read; one below it is a page of its own, whose name ends in ``/``: its
    measurement says why it fails. That goes too for a page of a list that is not there, or whose
    name no file can have. A file whose pages cannot be counted, or are more than `MOST_FILE_PAGES`,
    and a folder more than `DEEPEST` folders down are pages with a ``problem``.
    """
    # All arguments are looked at before anything is read.
    for argument in arguments:
        if _is_plain_path(argument) and not os.path.lexists(_expanded(argument)):
            raise OcrPhasesError(
                f"{argument} does not exist: name files, folders, globs or a list of pages."
            )
    own = None if results is None else results.resolve()
    with contextlib.closing(WorkerProcess()) as counter:  # pdfium may hang or crash over a file
        for argument in arguments:
            page = None
            for page in _named(argument, known, own, Counter() if left_out is None else left_out):
                yield from _each_page(page, counter)
            if page is None:
                if os.path.isdir(_expanded(argument)):  # noqa: PTH112
                    raise OcrPhasesError(
                        f"{argument} contains no image or PDF: name another folder."
                    )
                raise OcrPhasesError(
                    f"{argument} names no page: give files, folders, globs or a list of pages."
                )


def _is_plain_path(argument: str) -> bool:
    """Whether an argument is no glob, no list and no page of a file, which say themselves what is
    wrong.
    """
    if glob.has_magic(argument) or argument.lower().endswith(LIST_SUFFIXES):
        return False
    return not split_page(argument)[1]


def _named(
    argument: str, known: Sequence[str], own: Path | None, left_out: Counter[str]
) -> Iterator[BatchPage]:
    """What an argument names: a file of several pages is one entry."""
    path = _expanded(argument)
    if path.suffix.lower() in LIST_SUFFIXES:
        yield from _listed(path, known)
    # Path.is_dir and is_file raise where a folder above cannot be entered.
    elif os.path.isdir(path):  # noqa: PTH112
        yield from _below(path, path, (), own, left_out)
    elif os.path.isfile(path) or split_page(argument)[1]:  # noqa: PTH113
        yield BatchPage(path.name, str(path.absolute()))
    else:
        base = Path(*itertools.takewhile(lambda part: not glob.has_magic(part), path.parts))
        try:
            matches = sorted(glob.iglob(str(path), recursive=True))  # noqa: PTH207 (may be absolute)
        except RecursionError as error:
            raise OcrPhasesError(
                f"{path} leads through too many folders: name the folder {base}."
            ) from error
        for match in map(Path, matches):
            way = [os.path.realpath(each) for each in match.parents if each.is_relative_to(base)]
            if len(set(way)) == len(way):
                yield from _below(match, base, way, own, left_out)


def _expanded(name: str) -> Path:
    """``name`` with the home folder in place of ``~``; of a user who is unknown it stays as
    it is.
    """
    # Unlike Path's, this one raises only for a NUL, which no file's name has.
    return Path(name if "\0" in name else os.path.expanduser(name))  # noqa: PTH111


def _below(
    path: Path, base: Path, way: Sequence[str], own: Path | None, left_out: Counter[str]
) -> Iterator[BatchPage]:
    """The page at a path, or all below a folder, its own files first: named from ``base``.

    ``way`` are the folders from ``base`` to here, without links.
    """
    name = path.relative_to(base).as_posix()
    source = str(path.absolute())
    real = os.path.realpath(path)
    if real in way or own in (Path(real), *Path(real).parents):
        return
    if not _is_folder(path):
        if path.suffix.lower() in PAGE_SUFFIXES:
            yield BatchPage(name, source)
        else:
            left_out[path.suffix.lower() or "no suffix"] += 1
    elif len(way) > DEEPEST:
        problem = f"{path} lies more than {DEEPEST} folders deep: name it, or move it up."
        yield BatchPage(f"{name}/", f"{source}/", problem=problem)
    else:
        try:
            inside = [each for each in path.iterdir() if not each.name.startswith(".")]
        except OSError as error:
            if path == base:
                raise OcrPhasesError(
                    f"The folder {base} cannot be read ({error.strerror}): name its pages without "
                    "it."
                ) from error
            yield BatchPage(f"{name}/", f"{source}/")  # reading it as a page says why
            return
        for each in sorted(inside, key=lambda each: (_is_folder(each), each.name)):
            yield from _below(each, base, (*way, real), own, left_out)


def _is_folder(path: Path) -> bool:
    """Whether this is a folder, or a link to what may be one that cannot be entered."""
    try:
        return stat.S_ISDIR(path.stat().st_mode)
    except OSError as error:
        return error.errno != errno.ENOENT and path.suffix.lower() not in PAGE_SUFFIXES


def _listed(path: Path, known: Sequence[str]) -> Iterator[BatchPage]:
    """The pages of a list; `OcrPhasesError` with the line for one that is wrong."""
    try:
        lines = io.StringIO(read_regular(path).decode("utf-8-sig"), newline="")
        if path.suffix.lower() == ".csv":
            reader = csv.DictReader(lines, restkey="a column without a name")
            rows: Iterable[tuple[int, Any]] = ((reader.line_num, row) for row in reader)
        else:
            rows = ((number, line) for number, line in enumerate(lines, 1) if line.strip())
        for number, row in rows:
            try:
                yield _of_row(row, path.parent, known)
            except OcrPhasesError as error:
                raise OcrPhasesError(f"{path}, line {number}: {str(error).rstrip('.')}.") from error
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise OcrPhasesError(
            f"The list {path} cannot be read ({error}): check the file."
        ) from error


def _of_row(row: str | dict[str, Any], folder: Path, known: Sequence[str]) -> BatchPage:
    """The page of a list's row: of JSON, or the columns of a table."""
    columns = parse_json(row.encode()) if isinstance(row, str) else row
    if not isinstance(columns, dict):
        raise OcrPhasesError('it is no object: write {"page": "path", ...}')
    name = columns.pop("page", None)
    if not isinstance(name, str) or not name.strip():
        raise OcrPhasesError("it names no page: give its path under 'page'")
    unknown = sorted(set(map(str, columns)) - set(known))
    if unknown:
        raise OcrPhasesError(f"unknown setting {', '.join(unknown)}: use page, {', '.join(known)}")
    settings = {}
    for setting, value in columns.items():
        if isinstance(value, dict):  # infer, in JSON
            settings[setting] = conform({"value": value}, Plain, setting)["value"]
        elif value not in (None, ""):
            settings[setting] = setting_from_text(setting, str(value).strip())
    return BatchPage(name.strip(), str((folder / _expanded(name.strip())).absolute()), settings)


def _each_page(page: BatchPage, counter: WorkerProcess) -> Iterator[BatchPage]:
    """The page, or every one of a file with several that names none of its own."""
    suffix = Path(page.source).suffix.lower()
    if suffix not in PAGED_SUFFIXES or page.problem:
        yield page
        return
    file = Path(page.source).name
    outcome = counter.run({"mode": "count", "source": page.source}, MOST_COUNT_SECONDS)
    if outcome.failure == "page":
        yield replace(page, problem=outcome.reason)
    elif outcome.failure is not None:
        problem = f"The pages of {file} cannot be counted: {outcome.reason}"
        yield replace(page, problem=problem)
    elif outcome.pages > MOST_FILE_PAGES:
        problem = (
            f"{file} has more than {MOST_FILE_PAGES:,} pages: name those you want ({file}#3), or "
            "split it."
        )
        yield replace(page, problem=problem)
    elif outcome.pages <= 1 and suffix != ".pdf":
        yield page  # the one page of a usual image has no number
    else:
        for number in range(1, outcome.pages + 1):
            yield replace(page, name=f"{page.name}#{number}", source=f"{page.source}#{number}")
