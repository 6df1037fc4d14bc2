"""Finds the pages of a batch: files, folders, globs, pages of PDFs and TIFFs, lists."""

from __future__ import annotations

import contextlib
import csv
import functools
import glob
import itertools
import os
import stat
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ocr_phases.batch.child import Child
from ocr_phases.batch.outcome import Outcome
from ocr_phases.errors import OcrPhasesError
from ocr_phases.files import LARGEST_FILE, MOST_FILE_PAGES, PAGE_SUFFIXES, PAGED_SUFFIXES, split_page
from ocr_phases.schema import Plain, conform, parse_json
from ocr_phases.settings import setting_from_text

LIST_SUFFIXES = (".csv", ".jsonl")

#: Folders in one another: what is beyond is a page that failed, as in a file of too many pages.
DEEPEST = 100

_COUNT_SECONDS = 60.0  # for the pages of one file

_Identity = tuple[int, int]  # device and inode


@dataclass(frozen=True)
class Page:
    """One page to measure: its name in the batch, where it is, and settings that only it has.

    ``name`` is the path below the folder that was named, or the file's name; a page of a PDF, or of a
    TIFF with several, ends in ``#3``, also in ``source``, which is absolute. ``problem`` is why it cannot be
    measured, where that is known without reading it.
    """

    name: str
    source: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    problem: str = ""


class Walk:
    """What all walks of a command over its pages share, so that the next one opens no file again.

    ``left_out`` are the files that were found and are no pages: how many of each suffix.
    """

    def __init__(self) -> None:
        self.left_out: Counter[str] = Counter()
        self.counted: dict[str, Outcome] = {}
        self.counter = Child()  # pdfium may hang or crash over a file

    def count(self, source: str) -> Outcome:
        """How many pages a file has."""
        if source not in self.counted:
            self.counted[source] = self.counter.run({"mode": "count", "source": source}, _COUNT_SECONDS)
        return self.counted[source]


def find_pages(
    arguments: Sequence[str], known: Sequence[str], results: Path | None = None, walk: Walk | None = None
) -> Iterator[Page]:
    """The pages that ``arguments`` name, in their order and sorted within folders; made as they are read.

    An argument is a file, a folder (with all below it), a glob, or a list of pages (``.csv`` with a header
    or ``.jsonl``): there ``page`` is the path, from the list's own folder, and every other column one of
    ``known``, the settings. ``results`` is the folder of a batch's own pictures: folders and globs take
    nothing from it. Links to folders are followed as ``find -L`` does, each under its own name, save where
    one leads back to a folder it lies in.

    Raises `OcrPhasesError` for an argument or a list that names no page, and for a folder that was named and
    cannot be read; one below it is a page of its own, whose name ends in ``/``: its measurement says why it
    fails. That goes too for a page of a list that is not there, or whose name no file can have. A file whose
    pages cannot be counted, or are more than `MOST_FILE_PAGES`, and a folder more than `DEEPEST` folders down
    are pages with a ``problem``.
    """
    walk = walk or Walk()
    try:
        yield from _find(arguments, known, results, walk)
    finally:
        walk.counter.stop()


def _find(arguments: Sequence[str], known: Sequence[str], results: Path | None, walk: Walk) -> Iterator[Page]:
    own = None if results is None else results.resolve()
    for argument in arguments:
        path = _expanded(argument)
        lacks = "names no page: give files, folders, globs or a list of pages"
        if path.suffix.lower() in LIST_SUFFIXES:
            found = _listed(path, known, walk)
        # Path.is_dir and is_file raise where a folder above cannot be entered.
        elif os.path.isdir(path):  # noqa: PTH112
            found = _below(path, path, own, walk)
            lacks = "contains no image or PDF: name another folder"
        elif os.path.isfile(path) or split_page(argument)[1]:  # noqa: PTH113
            found = _pages_of(walk, path.name, path, {})
        else:
            found = _globbed(path, own, walk)
            if not glob.has_magic(argument):
                lacks = "does not exist: name files, folders, globs or a list of pages"
        first = next(found, None)
        if first is None:
            raise OcrPhasesError(f"{argument} {lacks}.")
        yield first
        yield from found


def _expanded(name: str) -> Path:
    """``name`` with the home folder in place of ``~``; of a user who is unknown it stays as it is."""
    try:
        return Path(name).expanduser()
    except (RuntimeError, ValueError):
        return Path(name)


def _below(
    folder: Path, base: Path, own: Path | None, walk: Walk, above: tuple[_Identity, ...] = ()
) -> Iterator[Page]:
    """The pages below ``folder``, named from ``base``: its own files first, then folder by folder.

    ``above`` are the folders that lead to it: one of them again is a link that goes in a circle.
    """
    waiting = [(folder, above)]
    while waiting:
        folder, above = waiting.pop()
        as_page = Page(f"{folder.relative_to(base).as_posix()}/", f"{folder.absolute()}/")
        if len(above) > DEEPEST:
            yield replace(
                as_page, problem=f"{folder} lies more than {DEEPEST} folders deep: name it, or move it up."
            )
            continue
        try:
            entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
            identity = _identity(folder)
        except OSError as error:
            if not above:
                raise OcrPhasesError(
                    f"The folder {folder} cannot be read ({error.strerror}): name its pages without it."
                ) from error
            yield as_page
            continue
        if identity in above or _within(folder, own):
            continue
        folders = []
        for entry in entries:
            path = Path(entry.path)
            if entry.name.startswith("."):
                continue
            if _is_folder(entry):
                folders.append((path, (*above, identity)))
            elif path.suffix.lower() in PAGE_SUFFIXES:
                yield from _pages_of(walk, path.relative_to(base).as_posix(), path, {})
            else:
                walk.left_out[path.suffix.lower()] += 1
        waiting += reversed(folders)


def _globbed(pattern: Path, own: Path | None, walk: Walk) -> Iterator[Page]:
    """The pages that a glob finds, named from its last folder without a wildcard."""
    fixed = itertools.takewhile(lambda part: not glob.has_magic(part), pattern.parts)
    base = Path(*fixed)
    try:
        matches = sorted(glob.iglob(str(pattern), recursive=True))  # noqa: PTH207 (may be absolute)
    except RecursionError as error:
        raise OcrPhasesError(f"{pattern} leads through too many folders: name the folder {base}.") from error
    for match in matches:
        path = Path(match)
        above = _way(path.parent, base)
        if len(set(above)) < len(above):  # ** goes through a link in a circle again and again
            continue
        if os.path.isdir(path):  # noqa: PTH112
            yield from _below(path, base, own, walk, above)
        elif path.suffix.lower() not in PAGE_SUFFIXES:
            walk.left_out[path.suffix.lower()] += 1
        elif not _within(path, own):
            yield from _pages_of(walk, path.relative_to(base).as_posix(), path, {})


def _within(path: Path, own: Path | None) -> bool:
    try:
        return own is not None and path.resolve().is_relative_to(own)
    except (OSError, RuntimeError):  # links in a circle, of which the reader of the page will tell
        return False


@functools.lru_cache(maxsize=64)
def _way(folder: Path, base: Path) -> tuple[_Identity, ...]:
    """The folders from ``base`` to ``folder``, both with it; those that are gone are left out."""
    found = []
    for path in (folder, *folder.parents):
        if path.is_relative_to(base):
            with contextlib.suppress(FileNotFoundError):
                found.append(_identity(path))
    return tuple(found)


def _identity(folder: Path) -> _Identity:
    state = folder.stat()
    return state.st_dev, state.st_ino


def _is_folder(entry: os.DirEntry[str]) -> bool:
    """Also where that cannot be found out: reading it then says why."""
    try:
        return entry.is_dir()
    except OSError:
        return True


def _listed(path: Path, known: Sequence[str], walk: Walk) -> Iterator[Page]:
    if problem := file_problem(path):
        raise OcrPhasesError(problem)
    rows = _csv_rows(path) if path.suffix.lower() == ".csv" else _jsonl_rows(path)
    try:
        for line, row in rows:
            where = f"{path}, line {line}"
            page = row.pop("page", None)
            if not isinstance(page, str) or not page.strip():
                raise OcrPhasesError(f"{where} names no page: give its path under 'page'.")
            if unknown := sorted(set(map(str, row)) - set(known)):
                raise OcrPhasesError(
                    f"{where} has an unknown setting {', '.join(unknown)}: use page, {', '.join(known)}."
                )
            settings = {
                name: _setting(where, name, value) for name, value in row.items() if value not in (None, "")
            }
            name = page.strip()
            yield from _pages_of(walk, name, path.parent / _expanded(name), settings)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise OcrPhasesError(f"The list {path} cannot be read ({error}): check the file.") from error


def _csv_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file, restkey="a column without a name")
        for row in reader:
            yield reader.line_num, row


def _jsonl_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    with path.open(encoding="utf-8-sig") as file:
        for line, text in enumerate(file, 1):
            if not text.strip():
                continue
            try:
                row = parse_json(text.encode())
            except OcrPhasesError as error:
                raise OcrPhasesError(f"{path}, line {line}: {error}.") from error
            if not isinstance(row, dict):
                raise OcrPhasesError(f'{path}, line {line} is no object: write {{"page": "path", ...}}.')
            yield line, row


def _setting(where: str, name: str, value: Any) -> Any:
    """A value of a list in the setting's own type."""
    try:
        if isinstance(value, dict):  # infer, in JSON
            conform({"value": value}, Plain, name)
            return value
        return setting_from_text(name, str(value).strip())
    except OcrPhasesError as error:
        raise OcrPhasesError(f"{where}: {error}") from error


def _pages_of(walk: Walk, name: str, path: Path, settings: Mapping[str, Any]) -> Iterator[Page]:
    """One page, or every page of a file with several that names none of its own."""
    source = str(path.absolute())
    if path.suffix.lower() not in PAGED_SUFFIXES or file_problem(path):
        yield Page(name, source, settings)
        return
    outcome = walk.count(source)
    if outcome.failure is not None:
        why = "" if outcome.failure == "page" else f"The pages of {path.name} cannot be counted: "
        yield Page(name, source, settings, why + outcome.reason)
    elif outcome.pages > MOST_FILE_PAGES:
        many = f"{path.name} has more than {MOST_FILE_PAGES:,} pages"
        yield Page(name, source, settings, f"{many}: name those you want ({path.name}#3), or split it.")
    elif outcome.pages == 1 and path.suffix.lower() != ".pdf":  # the usual image: no page has a number
        yield Page(name, source, settings)
    else:
        for number in range(1, outcome.pages + 1):
            yield Page(f"{name}#{number}", f"{source}#{number}", settings)


def file_problem(path: Path) -> str:
    """Why a file is not to be opened, in a sentence: reading a pipe or a device may never end.

    Empty for any other; what cannot be found or entered says so when it is opened.
    """
    try:
        state = path.stat()
    except OSError:
        return ""
    except ValueError as error:  # a NUL, or half of a surrogate pair
        return f"{str(path)!r} can be no file's name ({error}): correct it."
    if not stat.S_ISREG(state.st_mode) and not stat.S_ISDIR(state.st_mode):
        return f"{path} is a pipe, a socket or a device: give a regular file."
    if state.st_size > LARGEST_FILE:
        size, most = state.st_size / 2**30, LARGEST_FILE / 2**30
        return f"{path} has {size:,.1f} GiB, more than {most:g}: give a smaller file."
    return ""
