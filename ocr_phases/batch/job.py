"""A job: one page with all its settings, identified by everything its result depends on."""

from __future__ import annotations

import hashlib
import json
import platform
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ocr_phases.batch.manifest import Page, file_problem
from ocr_phases.errors import OcrPhasesError
from ocr_phases.files import split_page
from ocr_phases.models.folders import hub_commit, local_folder
from ocr_phases.versions import __version__, asset, code_hash, folder_hash

#: The folder of all pages' folders, below the batch's.
PAGES = "pages"

_PACKAGES = ("torch", "transformers", "tokenizers")
_ID_DIGITS = 16
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
        text = json.dumps(known, sort_keys=True, ensure_ascii=True)
        object.__setattr__(self, "id", hashlib.sha256(text.encode()).hexdigest()[:_ID_DIGITS])

    @property
    def folder(self) -> str:
        """Its folder below the batch's, 256 ways apart, because a million entries slow a folder down."""
        file, _, number = Path(self.name).name.partition("#")
        stem = re.sub(r"[^\w-]+", "-", f"{Path(file).stem}-{number}")[:_STEM].strip("-") or "page"
        return f"{PAGES}/{self.id[:2]}/{stem}-{self.id}"

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values; `from_dict` is the inverse."""
        return dict(vars(self))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Job:
        """The job that `as_dict` wrote."""
        return cls(**values)


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
        sha256 = None if problem else _page_hash(file)
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


def _page_hash(path: Path) -> str | None:
    try:
        state = path.stat()
        return _file_hash(str(path), state.st_mtime_ns, state.st_size)
    except OSError:
        return None


@lru_cache(maxsize=4)  # the pages of a PDF come one after another
def _file_hash(path: str, changed: int, size: int) -> str:
    digest = hashlib.sha256()
    with Path(path).open("rb") as file:
        # No more than its size: a file of /proc, or one that grows, may never end.
        while size > 0 and (block := file.read(min(size, 1 << 20))):
            digest.update(block)
            size -= len(block)
    return digest.hexdigest()


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
