"""Regular files, read without waiting and written whole or not at all; temporary folders; a PDF's pages."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

from ocr_phases.errors import CannotWrite, OcrPhasesError

try:
    import fcntl
except ImportError:  # Windows has no such locks
    fcntl = None  # type: ignore[assignment]

LOCK_NAME = ".ocr_phases.lock"
TRACE_NAME = "trace.json.gz"

LARGEST_FILE = 2**30
"""Largest file that is read whole, in bytes."""

# How opening a folder, a socket or a device without a driver fails.
_NO_FILE = (errno.EISDIR, errno.ENXIO, errno.EOPNOTSUPP, errno.ENODEV)
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)


def split_pdf(page: str) -> tuple[str, str]:
    """``file.pdf#3`` to ``file.pdf`` and ``#3``; any other name stays whole."""
    name, mark, number = page.rpartition("#")
    if mark and name.lower().endswith(".pdf") and number.isdigit():
        return name, mark + number
    return page, ""


def read_regular(path: str | Path, limit: int = LARGEST_FILE) -> bytes:
    """The bytes of a regular file of at most ``limit`` bytes; never waits for a pipe or a device.

    Raises `OcrPhasesError` for a folder, a pipe, a device or a socket, for a larger file (before any of it is
    read) and for one that grows meanwhile; OSError as ``open`` does.
    """
    try:
        file = open(path, "rb", opener=_without_waiting)  # noqa: SIM115  (Path.open has no opener)
    except OSError as error:
        if error.errno in _NO_FILE:
            raise _not_regular(path) from error
        raise
    with file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise _not_regular(path)
        if found.st_size > limit:
            raise OcrPhasesError(
                f"{path} has {found.st_size / 2**20:,.1f} MiB: give a file of at most {limit / 2**20:,.1f} MiB."
            )
        data = file.read(found.st_size + 1)
    if len(data) > found.st_size:
        raise OcrPhasesError(f"{path} grows while it is read: wait until it is complete, or copy it first.")
    return data


def _without_waiting(path: str, flags: int) -> int:
    # Opening a pipe would wait for its writer; a terminal must not become this process's own.
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0))


def _not_regular(path: str | Path) -> OcrPhasesError:
    return OcrPhasesError(f"{path} is a folder, a pipe, a device or a socket: name a regular file.")


def output_folder(folder: str | Path) -> Path:
    """Create ``folder`` where it is missing and prove that it can be written; else `CannotWrite`."""
    path = Path(folder)
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise CannotWrite(
            f"The output folder {path} cannot be written ({error.strerror or error}): choose another one."
        ) from error
    return path


def output_file(file: str | Path) -> Path:
    """A file to be written later, its folder made by `output_folder`; `CannotWrite` where it is a folder."""
    path = Path(file)
    if path.is_dir():
        raise CannotWrite(f"{path} is a folder: name a file in it.")
    output_folder(path.parent)
    return path


@contextlib.contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Hold ``folder`` for one writer of several files; `OcrPhasesError` while another process holds it.

    The lock goes with the process, so one that was killed leaves the folder free. A file system that knows
    no locks gives a warning instead: then one writer is for the user to see to.
    """
    if fcntl is None:
        yield
        return
    path = folder / LOCK_NAME
    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise CannotWrite(f"{path} cannot be written ({error.strerror or error}).") from error
    try:
        if not _locked(handle, path):
            raise OcrPhasesError(
                f"Another report is being written into {folder}: wait for it, or choose another folder."
            )
        try:
            yield
        finally:
            path.unlink(missing_ok=True)
    finally:
        os.close(handle)


def _locked(handle: int, path: Path) -> bool:
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        # A file that its last holder removed between the opening and the locking locks nothing.
        return os.fstat(handle).st_ino == path.stat().st_ino
    except (BlockingIOError, FileNotFoundError):
        return False
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise OcrPhasesError(f"{path} cannot be locked ({error.strerror or error}).") from error
        warnings.warn(
            f"{path.parent} is on a file system without locks: write there once at a time.", stacklevel=2
        )
        return True


def write_atomic(path: str | Path, data: bytes) -> Path:
    """Write ``data`` beside ``path`` and rename it into place; `CannotWrite` when that fails."""
    target = Path(path)
    scratch = None
    try:
        handle, scratch = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".part")
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(scratch, 0o666 & ~_umask())  # noqa: PTH101  (mkstemp makes private files)
        os.replace(scratch, target)  # noqa: PTH105
    except OSError as error:
        if scratch is not None:
            with contextlib.suppress(OSError):
                Path(scratch).unlink(missing_ok=True)
        raise CannotWrite(f"{target} cannot be written ({error.strerror or error}).") from error
    return target


def _umask() -> int:
    value = os.umask(0)
    os.umask(value)
    return value
