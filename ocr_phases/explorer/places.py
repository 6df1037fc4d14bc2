"""Where a person's paths begin: in the project, which need not be the notebook's own folder."""

from __future__ import annotations

import os
from pathlib import Path

import psutil

from ocr_phases.files import split_page

_MARKS = (".git", "pyproject.toml")


def project_folder() -> Path:
    """The nearest folder above the kernel's that holds a project; else where Jupyter was started.

    That is the kernel's own folder if Jupyter was started elsewhere or in the file system's root.
    """
    here = Path.cwd()
    above = (here, *here.parents)
    marked = next((folder for folder in above if any((folder / mark).exists() for mark in _MARKS)), None)
    started = _server_folder()
    return marked or (started if started in above[:-1] else here)


def _server_folder() -> Path | None:
    """The working folder of the process that started this kernel, if it says so."""
    try:
        return Path(psutil.Process(int(os.environ["JPY_PARENT_PID"])).cwd())
    except (KeyError, ValueError, psutil.Error):
        return None


def placed(text: str | Path) -> Path:
    """The absolute path of a file to write: a relative one begins in the project."""
    return project_folder() / Path(str(text).strip()).expanduser()


def found(text: str | Path) -> Path:
    """The absolute path of a file to read: in the project, or beside the notebook where only that exists."""
    path = placed(text)
    file, number = split_page(str(text).strip())
    beside = Path.cwd() / Path(file).expanduser()
    return beside.with_name(beside.name + number) if beside.exists() and not placed(file).exists() else path


def shown_path(path: Path) -> str:
    """A path as a person says it: from the project, if it is below it."""
    project = project_folder()
    return str(path.relative_to(project)) if path.is_relative_to(project) else str(path)
