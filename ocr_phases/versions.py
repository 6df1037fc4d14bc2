"""Which code and weights these are, where the package's files are, and a collector of garbage that
waits.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import hashlib
import os
import subprocess
import sysconfig
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from ocr_phases.errors import OcrPhasesError

__version__ = "0.2.0"

_PACKAGE = Path(__file__).resolve().parent
_ROOT = _PACKAGE.parent


@lru_cache(maxsize=1)
def code_hash(package: Path = _PACKAGE) -> str:
    """The first 16 hex digits of a SHA-256 over names and contents of the package's Python and data
    files.

    Families, prompts and settings are data. Read once in a process: what runs is what was imported,
    not what was edited since.
    """
    digest = hashlib.sha256()
    patterns = ("**/*.py", "**/*.toml", "*/*.csv", "*/*.json")
    files: list[Path] = []
    for pattern in patterns:
        files += package.glob(pattern)
    for path in sorted(files):
        content = hashlib.sha256(path.read_bytes()).digest()
        digest.update(path.relative_to(package).as_posix().encode() + b"\0" + content)
    return digest.hexdigest()[:16]


#: The safetensors format's own limit of a header, in bytes.
_MOST_HEADER = 100_000_000


def weight_files(folder: Path) -> list[Path]:
    """The folder's safetensors files, sorted; `OcrPhasesError` for a pipe, device or folder among
    them.
    """
    files = sorted(folder.glob("*.safetensors"))
    for path in files:
        if path.is_symlink() and not path.exists():
            raise OcrPhasesError(
                f"{path} is a link to a file that is not there: download the checkpoint again."
            )
        if not path.is_file():
            raise OcrPhasesError(
                f"{path} is no regular file: put the weights themselves into the folder."
            )
    return files


def folder_hash(folder: Path, *, code: bool = False) -> str:
    """SHA-256 over config.json and the safetensors headers (names, dtypes, shapes, offsets).

    ``code`` takes in the folder's Python files, names and contents.
    """
    digest = hashlib.sha256((folder / "config.json").read_bytes())
    for path in weight_files(folder):
        digest.update(_header(path))
    if code:
        for path in sorted(folder.rglob("*.py")):
            digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def _header(path: Path) -> bytes:
    """A safetensors file's header; `OcrPhasesError` where it is cut or larger than the format
    allows.
    """
    with path.open("rb") as file:
        size = int.from_bytes(file.read(8), "little")
        header = file.read(size) if size <= _MOST_HEADER else b""
    if not header or len(header) != size:
        raise OcrPhasesError(
            f"{path} is no safetensors file: it has no header of the {size:,} bytes it names."
        )
    return header


@functools.cache
def git_state() -> str | None:
    """Commit of the source tree the package runs from, with ``-dirty`` behind it.

    As it was when first asked for: it costs a process. None when the package is installed, or git
    cannot say.
    """
    command = [
        "git",
        "--no-optional-locks",
        # Not a repository that an installed package happens to lie in.
        f"--git-dir={_ROOT / '.git'}",
        f"--work-tree={_ROOT}",
        "describe",
        "--always",
        "--dirty",
        "--abbrev=12",
    ]
    options: dict[str, Any] = {
        "encoding": "utf-8",
        "errors": "surrogateescape",
        "stderr": subprocess.DEVNULL,
    }
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        return subprocess.check_output(command, timeout=10, cwd=_ROOT, **options).strip()
    return None


def asset(*parts: str) -> Path:
    """The path of a shipped file or folder (``asset("data", "tiny")``); `OcrPhasesError` if
    missing.
    """
    installed = _PACKAGE / "_assets"
    folder = installed if installed.is_dir() else _ROOT
    path = folder.joinpath(*parts)
    if not path.exists():
        raise OcrPhasesError(f"{'/'.join(parts)} is missing here: install ocr_phases again.")
    return path


def child_environment() -> dict[str, str]:
    """This process's environment for one it starts; in a source tree the package is found from
    anywhere.
    """
    environment = dict(os.environ)
    is_installed = str(_ROOT) in sysconfig.get_paths().values()
    if not is_installed:
        paths = [str(_ROOT)]
        if environment.get("PYTHONPATH"):
            paths.append(environment["PYTHONPATH"])
        environment["PYTHONPATH"] = os.pathsep.join(paths)
    return environment


#: After so many new objects, some 10 MB, garbage is looked for; Python's own number is 700.
_NEW_OBJECTS = 50_000


@contextlib.contextmanager
def seldom_collected() -> Iterator[None]:
    """Collect garbage less often for the length of a ``with`` block.

    Tables, figures and torch's modules are many objects and little garbage. A report of a record
    takes 3.20 s of CPU time with it and 3.49 s without (medians of 5 alternating pairs of
    processes, 5 of 5 faster, 0.89 times as long).
    """
    before = gc.get_threshold()
    gc.set_threshold(_NEW_OBJECTS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
