"""A job for each page of a batch: one page with all that its result depends on."""

from __future__ import annotations

import contextlib
import platform
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from ocr_phases.batch.pages import BatchPage
from ocr_phases.errors import OcrPhasesError
from ocr_phases.files import split_page
from ocr_phases.models.folders import hub_commit, local_folder
from ocr_phases.record.store import file_hash, short_hash
from ocr_phases.versions import __version__, asset, code_hash, weight_files

#: The folder of all pages' folders, below the batch's.
PAGES = "pages"

#: Up to so many bytes a model's file is known by its content.
_READ_WHOLE = 64 * 2**20
#: Most characters of a page's name in the name of its folder.
_STEM = 48


@dataclass(frozen=True)
class Job:
    """One page to measure. ``id`` is equal exactly where page, settings, versions and model are
    equal.

    ``sha256`` is the page file's (None where it cannot be read), ``model_hash`` a checkpoint
    folder's or the built-in model's (None for a hub id: its commit is the setting ``revision``),
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
        left_out = {"id"}
        if self.sha256 is not None:
            left_out.add("source")
        known = {name: value for name, value in vars(self).items() if name not in left_out}
        object.__setattr__(self, "id", short_hash(known))

    @property
    def folder(self) -> str:
        """Its folder below the batch's, 256 ways apart, because a million entries slow a folder
        down.
        """
        file, _, number = Path(self.name).name.partition("#")
        stem = re.sub(r"[^\w-]+", "-", f"{Path(file).stem}-{number}")[:_STEM].strip("-") or "page"
        return f"{PAGES}/{self.id[:2]}/{stem}-{self.id}"


def make_jobs(
    pages: Iterable[BatchPage],
    settings: Mapping[str, Any],
    auto_device: Callable[[], str] | None = None,
) -> Iterator[Job]:
    """A job for each page, in order: ``settings`` with the page's own in their place; reads each
    file.

    What a name leaves open is settled here: ``auto_device()`` is the device that ``auto`` stands
    for, and the ``revision`` of a hub id is the commit in this machine's cache.
    """
    models = cache(known_model)
    for page in pages:
        merged = {**settings, **page.settings}
        if merged.get("device") == "auto" and auto_device is not None:
            merged["device"] = auto_device()
        commit, model_hash = models(merged["model"])
        if commit is not None:
            merged["revision"] = commit
        sha256 = None
        with contextlib.suppress(ValueError, OcrPhasesError):  # measuring it says what is wrong
            sha256 = file_hash(Path(split_page(page.source)[0]))
        yield Job(page.name, page.source, sha256, merged, code_versions(), model_hash, page.problem)


@cache
def code_versions() -> dict[str, Any]:
    """The versions that a measurement depends on, read without imports."""
    installed = {package: version(package) for package in ("torch", "transformers", "tokenizers")}
    return {
        "python": platform.python_version(),
        **installed,
        "ocr_phases": __version__,
        "code": code_hash(),
    }


def known_model(model: str) -> tuple[str | None, str | None]:
    """What a model is known by: the commit of a hub id, or the hash of a checkpoint folder.

    A hash is of the JSON and safetensors files' contents, and of size and time of those that are
    too large to read for it. A built-in model's folder is ``data/tiny``: dummy, too, has its
    tokenizer. None for what cannot be read: loading it says what is wrong.
    """
    built_in = model.partition(":")[0] in ("tiny", "dummy")
    with contextlib.suppress(OSError, OcrPhasesError):
        folder = asset("data", "tiny") if built_in else local_folder(model)
        if folder is None:
            return hub_commit(model), None
        return None, _files_hash([*folder.glob("*.json"), *weight_files(folder)])
    return None, None


def _files_hash(files: Sequence[Path]) -> str:
    """A hash of files by their contents; by size and time of those too large to be read for it."""
    known: dict[str, Any] = {}
    for path in files:
        facts = path.stat()
        if facts.st_size <= _READ_WHOLE:
            known[path.name] = file_hash(path)
        else:
            known[path.name] = [facts.st_size, facts.st_mtime_ns]
    return short_hash(known)
