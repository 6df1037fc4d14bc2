"""Where the paths that a person types begin: in the project, which need not be the notebook's own
folder.
"""

from __future__ import annotations

from pathlib import Path

from ocr_phases.files import split_page

_MARKS = (".git", "pyproject.toml")  # of a project


def project_folder() -> Path:
    """The nearest folder above the kernel's that holds a project; else the kernel's own."""
    for folder in (Path.cwd(), *Path.cwd().parents):
        if any((folder / mark).exists() for mark in _MARKS):
            return folder
    return Path.cwd()


def project_path(text: str | Path) -> Path:
    """The absolute path of a file to write: a relative one begins in the project."""
    return project_folder() / Path(str(text).strip()).expanduser()


def existing_path(text: str | Path) -> Path:
    """The absolute path of a file to read: in the project, else below a folder above the notebook.

    JupyterLab's file browser counts from its own root, which is one of those.
    """
    file, number = split_page(str(text).strip())
    candidates = [project_path(file)]
    for folder in (Path.cwd(), *Path.cwd().parents):
        candidates.append(folder / Path(file).expanduser())
    for candidate in candidates:
        if candidate.exists():
            return Path(f"{candidate}{number}")
    return Path(f"{candidates[0]}{number}")
