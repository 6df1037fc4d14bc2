"""Which pages a batch has, and a job for each: one page with all that its result depends on."""

from __future__ import annotations

import contextlib
import csv
import glob
import hashlib
import itertools
import os
import platform
import re
import stat
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ocr_phases.batch.child import Child, Outcome
from ocr_phases.errors import OcrPhasesError
from ocr_phases.files import LARGEST_FILE, MOST_FILE_PAGES, PAGE_SUFFIXES, PAGED_SUFFIXES, split_page
from ocr_phases.models.folders import hub_commit, local_folder
from ocr_phases.schema import Plain, conform, parse_json
from ocr_phases.settings import setting_from_text
from ocr_phases.store import asked_id, file_hash
from ocr_phases.versions import __version__, asset, code_hash, folder_hash

LIST_SUFFIXES = (".csv", ".jsonl")

#: Folders in one another: what is beyond is a page that failed, as in a file of too many pages.
DEEPEST = 100

_COUNT_SECONDS = 60.0  # for the pages of one file


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


def _below(folder: Path, base: Path, own: Path | None, walk: Walk) -> Iterator[Page]:
    """The pages below ``folder``, named from ``base``: a folder's own files, then folder by folder."""
    problems: dict[Path, str] = {}

    def unreadable(error: OSError) -> None:
        if Path(error.filename) == base:
            raise OcrPhasesError(
                f"The folder {base} cannot be read ({error.strerror}): name its pages without it."
            ) from error
        problems[Path(error.filename)] = ""  # reading it as a page says why

    for root, folders, files in os.walk(folder, onerror=unreadable, followlinks=True):
        place = Path(root)
        if len(place.relative_to(base).parts) > DEEPEST:
            problems[place] = f"{place} lies more than {DEEPEST} folders deep: name it, or move it up."
            folders.clear()
            continue
        if _is_left_out(place, base, own):
            folders.clear()
            continue
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        for name in sorted(name for name in files if not name.startswith(".")):
            path = place / name
            if path.suffix.lower() in PAGE_SUFFIXES:
                yield from _pages_of(walk, path.relative_to(base).as_posix(), path, {})
            elif _is_closed_link(path):
                problems[path] = ""
            else:
                walk.left_out[path.suffix.lower()] += 1
    for path, problem in problems.items():
        yield Page(f"{path.relative_to(base).as_posix()}/", f"{path.absolute()}/", problem=problem)


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
        if _is_left_out(path.parent, base, own):
            continue
        if os.path.isdir(path):  # noqa: PTH112
            yield from _below(path, base, own, walk)
        elif path.suffix.lower() in PAGE_SUFFIXES:
            yield from _pages_of(walk, path.relative_to(base).as_posix(), path, {})
        else:
            walk.left_out[path.suffix.lower()] += 1


@lru_cache(maxsize=64)
def _is_left_out(folder: Path, base: Path, own: Path | None) -> bool:
    """Whether a folder lies in ``own``, or a link on the way from ``base`` leads back to where it lies."""
    way = [os.path.realpath(each) for each in (folder, *folder.parents) if each.is_relative_to(base)]
    return len(set(way)) < len(way) or (own is not None and Path(way[0]).is_relative_to(own))


def _is_closed_link(path: Path) -> bool:
    """Whether what a link leads to may be a folder that cannot be entered."""
    try:
        path.stat()
    except OSError as error:
        return not isinstance(error, FileNotFoundError)
    return False


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


#: The folder of all pages' folders, below the batch's.
PAGES = "pages"

_PACKAGES = ("torch", "transformers", "tokenizers")
_STEM = 48


@dataclass(frozen=True)
class Job:
    """One page to measure. ``id`` is equal exactly where page, settings, versions and model are equal.

    ``sha256`` is the page file's (None where it cannot be read), ``model_hash`` a checkpoint folder's or
    the built-in model's (None for a hub id: its commit is the setting ``revision``),
    ``problem`` why the page fails without being measured (empty for most).
    """

    name: str
    source: str
    sha256: str | None
    settings: dict[str, Any]
    versions: dict[str, Any]
    model_hash: str | None
    problem: str = ""
    id: str = ""

    def __post_init__(self) -> None:
        # Where the page lies is no part of it: a folder that moved keeps its results.
        known = {name: value for name, value in vars(self).items() if name not in ("id", "source")}
        if self.sha256 is None:
            known["source"] = self.source
        object.__setattr__(self, "id", asked_id(known))

    @property
    def folder(self) -> str:
        """Its folder below the batch's, 256 ways apart, because a million entries slow a folder down."""
        file, _, number = Path(self.name).name.partition("#")
        stem = re.sub(r"[^\w-]+", "-", f"{Path(file).stem}-{number}")[:_STEM].strip("-") or "page"
        return f"{PAGES}/{self.id[:2]}/{stem}-{self.id}"


def make_jobs(
    pages: Iterable[Page], settings: Mapping[str, Any], auto_device: Callable[[], str] | None = None
) -> Iterator[Job]:
    """A job for each page, in order: ``settings`` with the page's own in their place; reads each file.

    What a name leaves open is settled here: ``auto_device()`` is the device that ``auto`` stands for, and the
    ``revision`` of a hub id is the commit in this machine's cache.
    """
    found = code_versions()
    for page in pages:
        merged = {**settings, **page.settings}
        if merged.get("device") == "auto" and auto_device is not None:
            merged["device"] = auto_device()
        if commit := _hub_commit(merged["model"]):
            merged["revision"] = commit
        file = Path(split_page(page.source)[0])
        problem = page.problem or file_problem(file)
        sha256 = None
        if not problem:
            with contextlib.suppress(OcrPhasesError):  # measuring it says why it cannot be read
                sha256 = file_hash(file)
        model_hash = _model_hash(merged["model"])
        yield Job(page.name, page.source, sha256, merged, found, model_hash, problem)


@lru_cache(maxsize=1)
def code_versions() -> dict[str, Any]:
    """The versions that a measurement depends on, read without imports; None if not installed."""
    installed: dict[str, Any] = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            installed[package] = version(package)
        except PackageNotFoundError:
            installed[package] = None
    return {**installed, "ocr_phases": __version__, "code": code_hash()}


@lru_cache(maxsize=64)
def _hub_commit(model: str) -> str | None:
    """A hub id's commit; None for every other model."""
    if _built_in(model):
        return None
    try:
        return None if local_folder(model) is not None else hub_commit(model)
    except OcrPhasesError:
        return None  # no model at all: loading it says so


def _built_in(model: str) -> bool:
    return model == "tiny" or model.partition(":")[0] == "dummy"


@lru_cache(maxsize=64)
def _model_hash(model: str) -> str | None:
    """Config, safetensors headers, and size and time of the files, whose bytes are too many to read.

    Of a built-in model the files of ``data/tiny``: dummy, too, has its tokenizer.
    """
    if _built_in(model):
        digest = hashlib.sha256()
        for path in sorted(asset("data", "tiny").glob("*.*")):
            if path.suffix in (".json", ".safetensors"):
                digest.update(path.name.encode() + b"\0" + hashlib.sha256(path.read_bytes()).digest())
        return digest.hexdigest()
    try:
        folder = local_folder(model)
        if folder is None:
            return None
        digest = hashlib.sha256(folder_hash(folder).encode())
        for path in sorted(folder.glob("*.safetensors")):
            state = path.stat()
            digest.update(f"{path.name} {state.st_size} {state.st_mtime_ns}".encode())
    except (OSError, OcrPhasesError):
        return None  # loading it says what is wrong with it
    return digest.hexdigest()
