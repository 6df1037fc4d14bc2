"""Regular files, read without waiting and written whole or not at all; temporary folders; pages of a file."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import re
import shutil
import stat
import tempfile
import warnings
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

from ocr_phases.errors import CannotWrite, OcrPhasesError
from ocr_phases.interrupts import uninterrupted

try:
    import fcntl
except ImportError:  # Windows has no such locks
    fcntl = None  # type: ignore[assignment]

LOCK_NAME = ".ocr_phases.lock"
TRACE_NAME = "trace.json.gz"

PAGED_SUFFIXES = (".pdf", ".tif", ".tiff")
"""The suffixes of files that may have several pages, in small letters."""

MOST_FILE_PAGES = 10_000
"""Most pages that are taken of one file."""

LARGEST_FILE = 2**30
"""Largest file that is read whole, in bytes."""

# How opening a folder, a socket or a device without a driver fails.
_NO_FILE = (errno.EISDIR, errno.ENXIO, errno.EOPNOTSUPP, errno.ENODEV)
_PAGE_OF_FILE = re.compile(
    rf"(?P<file>.+({'|'.join(map(re.escape, PAGED_SUFFIXES))}))(?P<page>#[^/\\]*)", re.IGNORECASE | re.DOTALL
)
_RANGE = re.compile(r"#(?P<first>[0-9]{1,9})-(?P<last>[0-9]{1,9})")
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP)


def split_page(page: str) -> tuple[str, str]:
    """``file.pdf#3`` to ``file.pdf`` and ``#3``, and so for `PAGED_SUFFIXES`; any other name stays whole."""
    match = _PAGE_OF_FILE.fullmatch(page)
    return (match["file"], match["page"]) if match else (page, "")


def each_page(page: str) -> list[str]:
    """``file.pdf#2-4`` as ``file.pdf#2``, ``#3`` and ``#4``; any other name is one page.

    Raises `OcrPhasesError` for pages in falling order and for more than `MOST_FILE_PAGES`.
    """
    file, numbers = split_page(page)
    found = _RANGE.fullmatch(numbers)
    if found is None or Path(page).exists():
        return [page]
    first, last = int(found["first"]), int(found["last"])
    if not first <= last < first + MOST_FILE_PAGES:
        raise OcrPhasesError(
            f"{page} names no pages: write the lower number first, as in file.pdf#2-4, and at most "
            f"{MOST_FILE_PAGES:,} pages."
        )
    return [f"{file}#{number}" for number in range(first, last + 1)]


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
            size, most = (f"{count / 2**20:,.1f} MiB" for count in (found.st_size, limit))
            raise OcrPhasesError(f"{path} has {size}: give a file of at most {most}.")
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
    except (OSError, ValueError) as error:
        raise CannotWrite(
            f"The output folder {path} cannot be written ({_reason(error)}): choose another one."
        ) from error
    return path


def output_file(file: str | Path) -> Path:
    """``file``, proved to be one that `write_atomic` can write later, its folder made; else `CannotWrite`."""
    target = _written_to(file)
    output_folder(target.parent)
    try:
        os.close(os.open(target, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        target.unlink()
    except FileExistsError:
        pass
    except OSError as error:
        raise _cannot_write(file, error) from error
    return Path(file)


def free_path(path: Path) -> Path:
    """``path``, or where that is taken the first free one of ``run-2.json``, ``run-3.json`` and so on."""
    names = itertools.chain([path.name], (f"{path.stem}-{n}{path.suffix}" for n in itertools.count(2)))
    return next(found for name in names if not os.path.lexists(found := path.with_name(name)))


def _written_to(path: str | Path) -> Path:
    """The regular file, there or to come, that ``path`` leads to through its links; else `CannotWrite`."""
    try:
        target = Path(os.path.realpath(path))
        mode = target.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return target
    except (OSError, ValueError) as error:
        raise _cannot_write(path, error) from error
    if stat.S_ISDIR(mode):
        raise CannotWrite(f"{path} is a folder: name a file in it.")
    if not stat.S_ISREG(mode):
        raise CannotWrite(f"{path} is a device, a pipe or a socket: name a regular file.")
    return target


def _cannot_write(path: str | Path, error: OSError | ValueError) -> CannotWrite:
    return CannotWrite(f"{path} cannot be written ({_reason(error)}).")


def _reason(error: OSError | ValueError) -> str:
    return getattr(error, "strerror", None) or str(error)


@contextlib.contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Hold ``folder`` for one writer of several files; `OcrPhasesError` while another process holds it.

    The lock goes with the process, so one that was killed leaves the folder free. A file system that knows
    no locks gives a warning instead: then one writer is for the user to see to.
    """
    import filelock

    lock = filelock.FileLock(folder / LOCK_NAME, blocking=False)
    try:
        lock.acquire()
    except filelock.Timeout as error:
        raise OcrPhasesError(
            f"Another report is being written into {folder}: wait for it, or choose another folder."
        ) from error
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise CannotWrite(f"{lock.lock_file} cannot be locked ({_reason(error)}).") from error
        warnings.warn(
            f"{folder} is on a file system without locks: write there once at a time.", stacklevel=2
        )
    try:
        yield
    finally:
        Path(lock.lock_file).unlink(missing_ok=True)
        lock.release()


def unpacked(data: bytes, limit: int) -> bytes:
    """``data``, or what gzip packed into it; `OcrPhasesError` where that is damaged or too large."""
    if not data.startswith(b"\x1f\x8b"):
        return data
    reader = zlib.decompressobj(wbits=31)
    try:
        content = reader.decompress(data, limit + 1)
    except zlib.error as error:
        raise OcrPhasesError(f"The gzip data is damaged ({error}): get the file again.") from error
    if len(content) > limit:
        raise OcrPhasesError(f"The gzip data holds more than {limit:,} bytes: give a smaller file.")
    if not reader.eof:
        raise OcrPhasesError("The gzip data ends too early: get the file again.")
    return content


def write_atomic(path: str | Path, data: bytes) -> Path:
    """Write ``data`` beside ``path`` and rename it into place; links are followed and kept.

    Raises `CannotWrite` where that fails, and where ``path`` is there and no regular file.
    """
    target = _written_to(path)
    scratch = None
    try:
        # The name is short whatever the target's is: both have to fit the file system.
        handle, scratch = tempfile.mkstemp(dir=target.parent, prefix=".ocr-", suffix=".part")
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
        raise _cannot_write(path, error) from error
    return Path(path)


def save_or_rescue(save: Callable[[str | Path], Path], path: str | Path) -> Path:
    """Call ``save(path)``; if that fails, save the result elsewhere and raise `CannotWrite`.

    A signal to stop waits until the result is saved.
    The message names the copy: a file below the temporary folder, or else in the user's home folder.
    """
    with uninterrupted():
        try:
            return save(path)
        except CannotWrite as error:
            copy = _saved_in(_rescue_folder, save) or _saved_in(Path.home, save)
            if copy is None:
                raise
            raise CannotWrite(f"The record is saved as {copy}: {error}") from error


def _rescue_folder() -> Path:
    return _own_folder() or Path(tempfile.mkdtemp(prefix="ocr-"))


def _saved_in(folder: Callable[[], Path], save: Callable[[str | Path], Path]) -> Path | None:
    try:
        handle, copy = tempfile.mkstemp(dir=folder(), prefix="ocr-unsaved-", suffix=".json")
    except (OSError, RuntimeError):  # RuntimeError: a user without a home
        return None
    os.close(handle)
    try:
        return save(copy)
    except CannotWrite:
        Path(copy).unlink()
        return None


class TemporaryFolder(tempfile.TemporaryDirectory[str]):
    """A private folder removed with this process, or after a kill by the next one.

    All of a user's lie below one folder. Each is locked by the process that made it, so one without a lock
    has been left behind. A file beside them is never removed. ``parent`` names a folder that is removed by
    other means. Raises `CannotWrite` where no folder can be made.
    """

    def __init__(self, parent: str | None = None) -> None:
        try:
            root = _own_folder() if parent is None else None
            with contextlib.ExitStack() as making:
                if root is not None:
                    making.enter_context(_locked_folder(root, wait=True))
                    _sweep(root)
                super().__init__(
                    prefix="" if root else "ocr-", dir=root or parent, ignore_cleanup_errors=True
                )
                self._lock = contextlib.ExitStack()
                if root is not None:
                    self._lock.enter_context(_locked_folder(self.name, wait=False))
        except OSError as error:
            raise CannotWrite(
                f"No temporary folder can be made ({error.strerror or error}): set TMPDIR to one with room."
            ) from error

    def cleanup(self) -> None:
        """Remove the folder."""
        super().cleanup()
        self._lock.close()


def _own_folder() -> Path | None:
    """This user's folder for what is temporary, for nobody else to read; None where it cannot be had."""
    if fcntl is None:
        return None
    # A short name: a UNIX socket's path, of at most 107 characters, goes on from here.
    path = Path(tempfile.gettempdir(), f"ocr-{os.geteuid()}")
    try:
        path.mkdir(mode=0o700, exist_ok=True)
        found = path.lstat()
        # Where all may write, another user may have taken the name.
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
            return None
        with _locked_folder(path, wait=True):  # some file systems know no locks
            return path
    except OSError:
        return None


def _sweep(root: Path) -> None:
    """Remove the folders below ``root`` whose processes are gone."""
    with os.scandir(root) as entries:
        folders = [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
    for folder in folders:
        with contextlib.suppress(OSError), _locked_folder(folder, wait=False):
            shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _locked_folder(folder: str | Path, *, wait: bool) -> Iterator[None]:
    """Hold a lock on ``folder``; OSError where another holds it and this is not to ``wait``."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield
    finally:
        os.close(handle)


def _umask() -> int:
    value = os.umask(0)
    os.umask(value)
    return value
