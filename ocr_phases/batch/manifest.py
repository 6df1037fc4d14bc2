"""Which pages a batch has: files, folders, globs, PDFs page by page, and lists with settings of their own."""

from __future__ import annotations

import contextlib
import csv
import functools
import glob
import itertools
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ocr_phases.errors import OcrPhasesError
from ocr_phases.measure.images import PAGE_SUFFIXES, pdf_page_count

LIST_SUFFIXES = (".csv", ".jsonl")

_Identity = tuple[int, int]  # device and inode

_INTEGERS = ("max_new_tokens", "repeats", "warmup", "seed", "eos_check_every")
_SWITCHES = ("embed_page", "ceilings")
_WORDS = {"true": True, "false": False}


@dataclass(frozen=True)
class Page:
    """One page to measure: its name in the batch, where it is, and settings that only it has.

    ``name`` is the path below the folder that was named, or the file's name; a page of a PDF ends in
    ``#3``, also in ``source``, which is absolute.
    """

    name: str
    source: str
    settings: Mapping[str, Any] = field(default_factory=dict)


def find_pages(arguments: Sequence[str], known: Sequence[str], results: Path | None = None) -> Iterator[Page]:
    """The pages that ``arguments`` name, in their order and sorted within folders; made as they are read.

    An argument is a file, a folder (with all below it), a glob, or a list of pages (``.csv`` with a header
    or ``.jsonl``): there ``page`` is the path, from the list's own folder, and every other column one of
    ``known``, the settings. ``results`` is the folder of a batch's own pictures: folders and globs take
    nothing from it. Links to folders are followed as ``find -L`` does, each under its own name, save where
    one leads back to a folder it lies in.

    Raises `OcrPhasesError` for an argument or a list that names no page, and for a folder that was named and
    cannot be read; one below it is a page of its own, whose name ends in ``/``: its measurement says why it
    fails. That goes too for a page of a list that is not there, or a PDF that cannot be opened.
    """
    own = None if results is None else results.resolve()
    for argument in arguments:
        path = Path(argument).expanduser()
        if path.suffix.lower() in LIST_SUFFIXES:
            found = _listed(path, known)
        # Path.is_dir and is_file raise where a folder above cannot be entered.
        elif os.path.isdir(path):  # noqa: PTH112
            found = _below(path, path, own)
        elif os.path.isfile(path) or _pdf_page(argument):  # noqa: PTH113
            found = _pages_of(path.name, path, {})
        else:
            found = _globbed(argument, own)
        first = next(found, None)
        if first is None:
            raise OcrPhasesError(f"{argument} names no page: give files, folders, globs or a list of pages.")
        yield first
        yield from found


def _below(folder: Path, base: Path, own: Path | None, above: tuple[_Identity, ...] = ()) -> Iterator[Page]:
    """The pages below ``folder``, named from ``base``: its own files first, then folder by folder.

    ``above`` are the folders that lead to it: one of them again is a link that goes in a circle.
    """
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: entry.name)
        identity = _identity(folder)
    except OSError as error:
        if not above:
            raise OcrPhasesError(
                f"The folder {folder} cannot be read ({error.strerror}): name its pages without it."
            ) from error
        yield Page(f"{folder.relative_to(base).as_posix()}/", f"{folder.absolute()}/")
        return
    if identity in above or _within(folder, own):
        return
    folders = []
    for entry in entries:
        path = Path(entry.path)
        if entry.name.startswith("."):
            continue
        if _is_folder(entry):
            folders.append(path)
        elif path.suffix.lower() in PAGE_SUFFIXES:
            yield from _pages_of(path.relative_to(base).as_posix(), path, {})
    for path in folders:
        yield from _below(path, base, own, (*above, identity))


def _globbed(pattern: str, own: Path | None) -> Iterator[Page]:
    """The pages that a glob finds, named from its last folder without a wildcard."""
    whole = Path(pattern).expanduser()
    fixed = itertools.takewhile(lambda part: not set(part) & set("*?["), whole.parts)
    base = Path(*fixed)
    for match in sorted(glob.iglob(str(whole), recursive=True)):  # noqa: PTH207 (may be absolute)
        path = Path(match)
        above = _way(path.parent, base)
        if len(set(above)) < len(above):  # ** goes through a link in a circle again and again
            continue
        if os.path.isdir(path):  # noqa: PTH112
            yield from _below(path, base, own, above)
        elif path.suffix.lower() in PAGE_SUFFIXES and not _within(path, own):
            yield from _pages_of(path.relative_to(base).as_posix(), path, {})


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


def _listed(path: Path, known: Sequence[str]) -> Iterator[Page]:
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
            yield from _pages_of(name, path.parent / Path(name).expanduser(), settings)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise OcrPhasesError(f"The list {path} cannot be read ({error}): check the file.") from error


def _csv_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file, restkey="a column without a name")
        for row in reader:
            yield reader.line_num, row


def _jsonl_rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    with path.open(encoding="utf-8") as file:
        for line, text in enumerate(file, 1):
            if not text.strip():
                continue
            try:
                row = json.loads(text)
            except ValueError as error:
                raise OcrPhasesError(f"{path}, line {line} is no JSON ({error}).") from error
            if not isinstance(row, dict):
                raise OcrPhasesError(f'{path}, line {line} is no object: write {{"page": "path", ...}}.')
            yield line, row


def _setting(where: str, name: str, value: Any) -> Any:
    """A value of a list in the setting's own type."""
    text = str(value).strip()
    if name in _INTEGERS:
        try:
            return int(text)
        except ValueError as error:
            raise OcrPhasesError(f"{where}: {name} is {text!r}, it must be a whole number.") from error
    if name in _SWITCHES:
        if text.lower() not in _WORDS:
            raise OcrPhasesError(f"{where}: {name} is {text!r}, it must be true or false.")
        return _WORDS[text.lower()]
    return text


def _pages_of(name: str, path: Path, settings: Mapping[str, Any]) -> Iterator[Page]:
    """One page, or every page of a PDF that names none of its own."""
    source = str(path.absolute())
    if path.suffix.lower() == ".pdf":
        try:
            count = pdf_page_count(path)
        except OcrPhasesError:
            yield Page(name, source, settings)  # its measurement says what is wrong with it
            return
        for number in range(1, count + 1):
            yield Page(f"{name}#{number}", f"{source}#{number}", settings)
        return
    yield Page(name, source, settings)


def _pdf_page(argument: str) -> bool:
    file, mark, _ = argument.rpartition("#")
    return bool(mark) and file.lower().endswith(".pdf")
