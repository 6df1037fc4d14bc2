"""Records that outlive the kernel: a folder of them, those of the package, and where paths begin.

A file's name says what it measured, so a folder is listed without reading its records.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import ipywidgets as widgets
import psutil

from ocr_phases.files import save_new, split_page
from ocr_phases.record import PhaseRun
from ocr_phases.show.page import printable
from ocr_phases.show.web import element
from ocr_phases.text import bytes_text, count_text
from ocr_phases.versions import asset

FOLDER = "ocr_phases_records"
#: What this kernel measured, each with its file if it has one: a panel made anew shows them again.
MEASURED: list[tuple[PhaseRun, Path | None]] = []

_MOST_LISTED = 200  # the newest
_SHIPPED = ("h200-dummy-*.json", "families/h200-[!b]*.json*")  # the others in these folders are benchmarks
_MARKS = (".git", "pyproject.toml")  # of a project


# -- places: in the project, which need not be the notebook's own folder -----------------------------


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


# -- records -----------------------------------------------------------------------------------------


def description(run: PhaseRun) -> list[str]:
    """A record in a few words: when, files, model, preset, strategies, rows, tokens."""
    rows = len(run.results)
    files = ", ".join(dict.fromkeys(str(page["file"]) for page in run.pages))
    return [
        str(run.created)[:19],
        printable(files, 60),
        printable(str(run.model.get("name")), 40),
        str(run.page.get("preset")),
        str(run.model.get("strategy")),
        f"vision {run.request['vision']}",
        *([f"{rows} rows"] if rows > 1 else []),
        count_text(run.token_count, "token"),
    ]


def label(run: PhaseRun) -> str:
    """A record's line in a list."""
    when, *rest = description(run)
    return ", ".join([*rest, when.replace("T", " ")])


def file_stem(run: PhaseRun) -> str:
    """`description` as a file name, in harmless characters."""
    parts = [re.sub(r"[^\w.+-]+|_", "-", part).strip("-.") for part in description(run)]
    return "_".join(part.encode()[:60].decode(errors="ignore") for part in parts)


def file_label(path: Path) -> str:
    """A record's line in a list, from nothing but its file's name."""
    when, *rest = path.stem.split("_")
    return ", ".join([*rest, when]) if rest else path.name.partition(".")[0]


def shipped() -> list[Path]:
    """The records that come with the package."""
    runs = asset("data", "runs")
    return [path for pattern in _SHIPPED for path in sorted(runs.glob(pattern))]


class KeptRecords(widgets.Box):
    """Whether finished records are saved, and where; ``changed`` is called when another folder is chosen."""

    def __init__(self, folder: str | Path | None, changed: Callable[..., None]) -> None:
        self.on = widgets.Checkbox(
            value=folder is not None,
            description="Keep records",
            indent=False,
            tooltip="Save every finished record; turn this off for confidential pages",
        )
        self.on.add_class("opx-keep-on")
        self.folder = widgets.Text(value=str(folder or FOLDER), description="Folder", continuous_update=False)
        self.folder.add_class("opx-keep-folder")
        self._holds = widgets.HTML()
        self._holds.add_class("opx-keep-size")
        super().__init__([self.on, self.folder, self._holds])
        self.add_class("opx-keep")
        self.on.observe(lambda _: changed(), "value")
        self.folder.observe(lambda _: changed(), "value")

    @property
    def path(self) -> Path:
        """The folder, absolute."""
        return placed(self.folder.value.strip() or FOLDER)

    def files(self) -> list[Path]:
        """The folder's records, the newest first, by name."""
        return sorted(self._all(), key=lambda path: path.name, reverse=True)[:_MOST_LISTED]

    def _all(self) -> list[Path]:
        return [path for path in self.path.glob("*.json") if path.is_file()]

    def save(self, run: PhaseRun) -> Path | None:
        """Save a record under a name of its own and return its file, None if records are not kept.

        Raises `CannotWrite` as `save_new` does.
        """
        if not self.on.value:
            return None
        return save_new(run.save, self.path / f"{file_stem(run)}.json")

    def tell(self) -> None:
        """Say how much the folder holds; the folder as an absolute path is the field's tooltip."""
        self.folder.disabled = not self.on.value
        self.folder.tooltip = str(self.path)
        sizes = [path.stat().st_size for path in self._all()]
        said = f"{count_text(len(sizes), 'record')}, {bytes_text(sum(sizes))}" if sizes else "empty"
        if not self.on.value:
            said = "off: new records are lost with the kernel"
        self._holds.value = element("span", said, title=str(self.path))
