"""Regular files, read without waiting and written whole or not at all; temporary folders; pages of
a file.

The rule of writing: a default name that is taken gets the next free number (`reserved`,
`folder_for`). A name that the user gave is replaced, but only where the file is proved to be this
package's: in an output's folder by the hashes of a manifest (`check_names`), elsewhere by how a
record or a trace begins (`write_given`).
"""

from __future__ import annotations

import contextlib
import errno
import gzip
import hashlib
import io
import itertools
import json
import os
import platform
import re
import shutil
import stat
import sys
import tempfile
import uuid
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from ocr_phases.errors import CannotWrite, Keyword, OcrPhasesError, stop_signals

#: A record's name where nobody names it.
RECORD = "run.json"

LOCK_NAME = ".ocr_phases.lock"
TRACE_NAME = "trace.json.gz"
MANIFEST_NAME = ".ocr_phases.sha256"  # no .json: folders are searched for records
REPORT_FOLDER = "ocr_phases_report"
VERIFY_FOLDER = "ocr_phases_verify"

#: The first entry of every trace that this package writes.
TRACE_OWNER = {"otherData": {"producer": "ocr_phases"}}

#: Pillow's names of the formats that a page may have. No other one is tried: some start programs
#: (PostScript starts Ghostscript). Through JPEG it reads MPO, the pictures of some phones.
FORMATS = ("PNG", "JPEG", "JPEG2000", "TIFF", "WEBP", "BMP", "GIF", "PPM", "AVIF")

#: The suffixes of files that may have several pages, in small letters.
PAGED_SUFFIXES = (".pdf", ".tif", ".tiff")

_SUFFIXES = "pdf png jpg jpeg jp2 tif tiff webp bmp gif ppm pgm pbm pnm avif"
#: The suffixes of a page's file, in small letters.
PAGE_SUFFIXES = frozenset(f".{name}" for name in _SUFFIXES.split())

#: Most pages that are taken of one file.
MOST_FILE_PAGES = 10_000

#: Largest file that is read whole, in bytes.
LARGEST_FILE = 2**30

_OWN_HEAD = re.compile(
    rb'\{"schema":\s*\d+,\s*"created":\s*"[^"]*",\s*"versions":\s*\{'
    rb'|\{"otherData": \{"producer": "ocr_phases"\}'
)
_MOST_NAMED = 5


class SavedPath(type(Path())):  # type: ignore[misc]
    """The path of a file that was written, which a notebook shows as a link."""

    def _repr_html_(self) -> str:
        from IPython.display import FileLink

        return FileLink(self)._repr_html_()


def split_page(page: str) -> tuple[str, str]:
    """``file.pdf#3`` to ``file.pdf`` and ``#3``, and so for `PAGED_SUFFIXES`; any other name stays
    whole.
    """
    file, mark, number = page.rpartition("#")
    paged = file.lower().endswith(PAGED_SUFFIXES) and not re.search(r"[/\\]", number)
    return (file, mark + number) if paged else (page, "")


def each_page(page: str) -> list[str]:
    """``file.pdf#2-4`` as ``file.pdf#2``, ``#3`` and ``#4``; any other name is one page.

    Raises `OcrPhasesError` for pages in falling order and for more than `MOST_FILE_PAGES`.
    """
    file, numbers = split_page(page)
    found = re.fullmatch(r"#([0-9]{1,9})-([0-9]{1,9})", numbers)
    if found is None or Path(page).exists():
        return [page]
    first, last = map(int, found.groups())
    if not first <= last < first + MOST_FILE_PAGES:
        raise OcrPhasesError(
            f"{page} names no pages: write the lower number first, as in file.pdf#2-4, and at most "
            f"{MOST_FILE_PAGES:,} pages."
        )
    return [f"{file}#{number}" for number in range(first, last + 1)]


def read_regular(path: str | Path, limit: int = LARGEST_FILE) -> bytes:
    """The bytes of a regular file of at most ``limit`` bytes; never waits for a pipe or a device.

    Raises `OcrPhasesError` for a folder, a pipe, a device or a socket, for a larger file (before
    any of it is read) and for one that grows meanwhile; OSError as ``open`` does.
    """
    with open_regular(path) as file:
        found = os.fstat(file.fileno())
        if found.st_size > limit:
            raise OcrPhasesError(
                f"{path} has {_mebibytes(found.st_size)}: give a file of at most "
                f"{_mebibytes(limit)}."
            )
        data = file.read(found.st_size + 1) or b""  # None where it has nothing yet, as in /proc
    if len(data) > found.st_size:
        raise OcrPhasesError(
            f"{path} grows while it is read: wait until it is complete, or copy it first."
        )
    return data


def _mebibytes(count: int) -> str:
    return f"{count / 2**20:,.1f} MiB"


@contextlib.contextmanager
def open_regular(path: str | Path) -> Iterator[BinaryIO]:
    """A regular file opened to be read in pieces; never waits for a pipe or a device.

    Raises `OcrPhasesError` for a folder, a pipe, a device or a socket, and OSError as ``open``
    does.
    """
    _check_regular(path, Path(path).stat(), OcrPhasesError)
    with open(path, "rb", opener=_without_waiting) as file:
        # It may be another one by now.
        _check_regular(path, os.fstat(file.fileno()), OcrPhasesError)
        yield file


def make_way(path: Path) -> None:
    """Remove what stands where a file of this package's own is to be written and is no regular
    file.

    That is a link, a pipe, a socket or an empty folder. A folder with something in it stays, and
    writing the file then says so.
    """
    try:
        mode = path.lstat().st_mode
    except OSError:
        return  # nothing is there, or writing says what is wrong
    with contextlib.suppress(OSError):
        if stat.S_ISDIR(mode):
            path.rmdir()
        elif not stat.S_ISREG(mode):
            path.unlink()


def _without_waiting(path: str, flags: int) -> int:
    # Opening a pipe would wait for its writer; a terminal must not become this process's own.
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_NOCTTY", 0))


def _check_regular(path: str | Path, found: os.stat_result, error: type[OcrPhasesError]) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise error(f"{path} is a folder, a pipe, a device or a socket: name a regular file.")


@contextlib.contextmanager
def writing(path: object) -> Iterator[None]:
    """An OSError or ValueError of a ``with`` block is raised as the `CannotWrite` of ``path``."""
    try:
        yield
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise CannotWrite(f"{path} cannot be written ({reason}).") from error


def output_folder(folder: str | Path) -> Path:
    """Create ``folder`` where it is missing and prove that it can be written; else
    `CannotWrite`.
    """
    path = Path(folder)
    with writing(f"The output folder {path}"):
        path.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=path).close()
    return path


def output_file(
    file: str | Path, *, overwrite: bool = False, arguments: Iterable[Any] = ()
) -> Path:
    """``file``, proved to be one that `write_given` can write later, its folder made; else
    `CannotWrite`.

    None of the command's ``arguments`` is ever replaced.
    """
    _replaces(file, overwrite)
    _check_no_argument(Path(file), arguments)
    output_folder(_target(file).parent)
    return Path(file)


@contextlib.contextmanager
def reserved(path: Path) -> Iterator[Path]:
    """The first free one of ``run.json``, ``run-2.json`` and so on, empty; it goes if nothing is
    written.

    Raises `CannotWrite`.
    """
    free = _reserve(path, lambda free: free.touch(exist_ok=False))
    try:
        yield free
    finally:
        with contextlib.suppress(OSError):
            if not free.stat().st_size:
                free.unlink()


def _reserve(path: Path, make: Callable[[Path], None]) -> Path:
    output_folder(path.parent)
    for number in itertools.count(1):
        addition = rf"-{number}\1" if number > 1 else r"\1"
        free = path.with_name(re.sub(r"(\.json(?:\.gz)?)?\Z", addition, path.name, count=1))
        with writing(free), contextlib.suppress(FileExistsError):
            make(free)
            break
    if free != path:
        print(f"{path} exists, so this goes into {free}.", file=sys.stderr)
    return free


def write_given(path: str | Path, data: bytes, *, overwrite: bool = False) -> Path:
    """`write_atomic` of a file that the user named, which says so where it replaces one.

    Raises `CannotWrite` too where that is neither a record nor a trace, unless ``overwrite``.
    """
    replaces = _replaces(path, overwrite)
    write_atomic(path, data)
    if replaces:
        print(f"Replaced {path}.", file=sys.stderr)
    return Path(path)


def _replaces(path: str | Path, overwrite: bool) -> bool:
    """Whether `write_given` would replace what ``path`` holds; `CannotWrite` where it must not."""
    target = _target(path)
    content = target.exists() and target.stat().st_size > 0
    if content and not overwrite and not _is_own(target):
        raise CannotWrite(
            "{path} is neither a record nor a trace of ocr_phases: name another file, or give "
            "{overwrite}.",
            path=path,
            overwrite=Keyword("overwrite", True),
        )
    return content


def _target(path: str | Path) -> Path:
    """The regular file, there or to come, that ``path`` leads to through its links; else
    `CannotWrite`.
    """
    with writing(path):
        target = Path(os.path.realpath(path))
        with contextlib.suppress(FileNotFoundError):
            _check_regular(path, target.stat(), CannotWrite)
    return target


def _is_own(path: Path) -> bool:
    """Whether a file begins as this package's records and traces do."""
    for opened in (open, gzip.open):
        with contextlib.suppress(OSError, EOFError, zlib.error), opened(path, "rb") as file:
            if _OWN_HEAD.match(file.read(4096)):
                return True
    return False


def folder_for(
    given: str | Path | None,
    default: str | Path,
    names: str = "",
    *,
    overwrite: bool = False,
    arguments: Iterable[Any] = (),
    record: Any = None,
) -> Path:
    """An output's folder, created: ``given``, or the first free one of ``default``, ``default-2``
    and so on.

    ``names`` is a regular expression of the files that the output may have. Those of an earlier
    output in ``given`` are named on stderr, as they will be replaced. Raises `CannotWrite` where
    the folder cannot be written, and as `check_names` does, which has the keywords.
    """
    if given is None:
        return _reserve(Path(default), Path.mkdir)
    folder = output_folder(given)
    own = check_names(folder, names, overwrite=overwrite, arguments=arguments, record=record)
    if own:
        more = f" and {len(own) - _MOST_NAMED} more" if len(own) > _MOST_NAMED else ""
        print(f"Replacing in {folder}: {', '.join(own[:_MOST_NAMED])}{more}.", file=sys.stderr)
    return folder


def folders_of(pages: Sequence[str], out: Path) -> list[Path]:
    """A folder for each page, named like it; a number is added where two pages share a name."""
    folders: list[Path] = []
    for page in pages:
        file, number = split_page(page)
        stem = Path(file).stem + number.replace("#", "-")
        folder = out / stem
        for count in itertools.count(2):
            if folder not in folders:
                break
            folder = out / f"{stem}-{count}"
        folders.append(folder)
    return folders


def check_names(
    folder: Path,
    names: str,
    *,
    overwrite: bool = False,
    arguments: Iterable[Any] = (),
    record: Any = None,
) -> list[str]:
    """The files below ``folder`` that ``names`` matches, all of them this package's; else
    `CannotWrite`.

    With ``overwrite`` others may be among them, but no link and none of the ``arguments``. A
    ``record`` stays where it is, and is not among them.
    """
    own = _unchanged(folder)
    matching = []
    for path in sorted([*folder.glob("*"), *folder.glob("*/*")]):
        name = path.relative_to(folder).as_posix()
        if not re.fullmatch(names, name) or same_file(path, record):
            continue
        _check_no_argument(path, arguments)
        if _is_behind_link(folder, name):
            raise CannotWrite(
                f"{path} is or lies behind a link: remove the link, or choose another folder."
            )
        if path.is_dir() and not path.suffix:  # images
            continue
        _check_regular(path, path.stat(), CannotWrite)
        if not overwrite and name not in own:
            raise CannotWrite(
                "{path} was not written by ocr_phases, or was changed since: choose another "
                "folder, or give {overwrite}.",
                path=path,
                overwrite=Keyword("overwrite", True),
            )
        matching.append(name)
    return matching


def write_into(
    folder: Path, files: Mapping[str, bytes], *, overwrite: bool = False, stale: str = ""
) -> list[Path]:
    """Write an output's ``files``, by their names in ``folder``; the paths.

    The manifest beside them gets their hashes first, so that what a kill leaves is known too. Files
    of an earlier output whose names match ``stale`` go. Raises `CannotWrite` as `check_names` does.
    """
    parents = {Path(name).parent for name in files}
    names = "|".join(re.escape(str(name)) for name in (*files, *parents))
    check_names(folder, names, overwrite=overwrite)
    for parent in parents:
        output_folder(folder / parent)
    old_hashes = _unchanged(folder)
    # A file has its old and its new hash until it is written: a kill may leave either of them.
    hashes = {name: [digest] for name, digest in old_hashes.items()}
    for name, data in files.items():
        hashes.setdefault(name, []).append(hashlib.sha256(data).hexdigest())
    write_atomic(folder / MANIFEST_NAME, json.dumps(hashes, sort_keys=True).encode())
    written = [write_atomic(folder / name, data) for name, data in files.items()]
    for name in old_hashes:
        if name not in files and re.fullmatch(stale, name):
            (folder / name).unlink(missing_ok=True)
    return written


def _unchanged(folder: Path) -> dict[str, str]:
    """The SHA-256 of each file that this package wrote into ``folder`` and nobody changed since, by
    name.
    """
    path = folder / MANIFEST_NAME
    try:
        if path.is_symlink():
            raise OcrPhasesError("it is a link")
        data = read_regular(path) if path.exists() else b"{}"
        known = msgspec.json.decode(data, type=dict[str, list[str]])
    except (OSError, OcrPhasesError, ValueError) as error:
        raise CannotWrite(f"{path} cannot be read ({error}): choose another folder.") from error
    unchanged = {}
    for name, digests in known.items():
        with contextlib.suppress(OSError, ValueError, OcrPhasesError):
            digest = hashlib.sha256(read_regular(folder / name)).hexdigest()
            if digest in digests and not _is_behind_link(folder, name):
                unchanged[name] = digest
    return unchanged


def _is_behind_link(folder: Path, name: str) -> bool:
    return os.path.realpath(folder / name) != str(Path(os.path.realpath(folder), name))


def _check_no_argument(path: Path, arguments: Iterable[Any]) -> None:
    if any(same_file(path, argument) for argument in arguments):
        raise CannotWrite(
            f"{path} is an argument of this command: choose another place for its output."
        )


def same_file(path: Path, argument: Any) -> bool:
    """Whether ``argument`` names the file ``path``, or a page of it."""
    with contextlib.suppress(OSError, ValueError):
        return argument is not None and path.samefile(split_page(str(argument))[0])
    return False


@contextlib.contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Hold ``folder`` for one writer of several files; `OcrPhasesError` while another process holds
    it.

    The lock goes with the process, so one that was killed leaves the folder free. A file system
    that knows no locks gives a warning instead: then one writer is for the user to see to.
    """
    import filelock

    path = folder / LOCK_NAME
    lock = filelock.FileLock(path, blocking=False)
    with writing(path):
        try:
            lock.acquire()
        except filelock.Timeout as error:
            raise OcrPhasesError(
                f"Another report is being written into {folder}: wait for it, or choose another "
                f"folder."
            ) from error
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP):
                raise
            warnings.warn(
                f"{folder} is on a file system without locks: write there once at a time.",
                stacklevel=2,
            )
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        lock.release()


def unpacked(data: bytes, limit: int) -> bytes:
    """``data``, or what gzip packed into it; `OcrPhasesError` where that is damaged or too
    large.
    """
    if not data.startswith(b"\x1f\x8b"):
        return data
    try:
        content = gzip.GzipFile(fileobj=io.BytesIO(data)).read(limit + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise OcrPhasesError(f"The gzip data is damaged ({error}): get the file again.") from error
    if len(content) > limit:
        raise OcrPhasesError(f"The gzip data holds more than {limit:,} bytes: give a smaller file.")
    return content


def write_atomic(path: str | Path, data: bytes) -> Path:
    """Write ``data`` beside ``path`` and rename it into place; links are followed and kept.

    Raises `CannotWrite` where that fails, and where ``path`` is there and no regular file.
    """
    target = _target(path)
    # The name is short whatever the target's is: both have to fit the file system.
    scratch = target.with_name(f".ocr-{uuid.uuid4().hex}.part")
    with writing(path):
        try:
            with scratch.open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            scratch.replace(target)
        finally:
            scratch.unlink(missing_ok=True)
    return Path(path)


@contextlib.contextmanager
def rescued(save: Callable[[str | Path], Path]) -> Iterator[None]:
    """A ``with`` block that saves a result: where it raises `CannotWrite`, ``save(copy)`` does
    elsewhere.

    That is a private folder below the temporary one, or else in the user's home; the error then
    names the copy. A signal to stop waits until the result is saved.
    """
    with stop_signals():
        try:
            yield
        except CannotWrite as error:
            copy = _save_elsewhere(save)
            if copy is None:
                raise
            raise CannotWrite(f"The record is saved as {copy}: {error}") from error


def _save_elsewhere(save: Callable[[str | Path], Path]) -> Path | None:
    """The copy that `rescued` saves; None where neither of its places can be written."""
    with contextlib.suppress(OSError, CannotWrite):
        return save(Path(tempfile.mkdtemp(prefix="ocr-unsaved-"), RECORD))
    with contextlib.suppress(OSError, CannotWrite, RuntimeError):  # a user may have no home
        home = Path("~").expanduser()
        return save(Path(tempfile.mkdtemp(prefix="ocr-unsaved-", dir=home), RECORD))
    return None


def save_new(save: Callable[[str | Path], Path], path: str | Path) -> Path:
    """`rescued` under a name that is `reserved`, which is returned."""
    with rescued(save), reserved(Path(path)) as free:
        return save(free)


class TemporaryFolder(tempfile.TemporaryDirectory[str]):
    """A private folder removed with this process, or after a kill by the next one on the same
    machine.

    Its name says which process it belongs to, and in which host's or container's numbers. Raises
    `CannotWrite` where no folder can be made.
    """

    def __init__(self) -> None:
        import psutil

        running = {str(number) for number in psutil.pids()}
        # Containers may share host name and temporary folder; the link leads to a name of their
        # own.
        host = f"{platform.node()} {Path('/proc/self/ns/pid').resolve().name}"
        place = hashlib.sha256(host.encode()).hexdigest()[:8]
        try:
            for left in Path(tempfile.gettempdir()).glob(f"ocr-*-{place}-*"):
                if left.name.split("-")[1] not in running:
                    shutil.rmtree(left, ignore_errors=True)
            super().__init__(prefix=f"ocr-{os.getpid()}-{place}-", ignore_cleanup_errors=True)
        except OSError as error:
            raise CannotWrite(
                f"No temporary folder can be made ({error.strerror}): set TMPDIR to one with room."
            ) from error


# -- JSON -----------------------------------------------------------------------------------------

#: Bytes of memory that a JSON text may take together with what is decoded from it.
_MOST_MEMORY = 2_000_000_000
#: At most so many bytes of memory for each byte of the text,
_MEMORY_OF_BYTE = 5
#: and so many more for each of these signs.
_MEMORY_OF_SIGN = {b"{": 600, b"[": 150, b":": 200, b",": 40}


def parse_json(data: bytes) -> Any:
    """The value of a JSON text; `OcrPhasesError`, in words that follow a file's name, for anything
    else.
    """
    memory = len(data) * _MEMORY_OF_BYTE
    for sign, size in _MEMORY_OF_SIGN.items():
        memory += data.count(sign) * size
    if memory > _MOST_MEMORY:
        raise OcrPhasesError("it would take more than 2 GB of memory")
    try:
        return msgspec.json.decode(data)
    except MemoryError as error:
        raise OcrPhasesError("it takes more memory than there is") from error
    except RecursionError as error:
        raise OcrPhasesError("its JSON is nested too deeply") from error
    except ValueError as error:  # msgspec's own, and text that is no UTF-8
        raise OcrPhasesError(f"it is not valid JSON ({_sentence(error)})") from error


def conform(value: Any, shape: Any, name: str = "") -> Any:
    """``value`` as the msgspec type ``shape``; entries that this does not name pass.

    Raises `OcrPhasesError` with the entry, below ``name``, and what is wrong with it, as in
    ``pages[0].row: expected int, got str``.
    """
    try:
        return msgspec.convert(value, shape)
    except ValueError as error:  # msgspec's own, and a name that is no Unicode
        raise OcrPhasesError(_sentence(error, name)) from error
    except RecursionError as error:
        raise OcrPhasesError(f"{name}: it is nested too deeply".lstrip(": ")) from error


_MISSING = "Object missing required field "


def _sentence(error: Exception, name: str = "") -> str:
    """msgspec's message with the entry in front: ``Expected `int`, got `str` - at
    `$.pages[0].row```.
    """
    problem, _, path = str(error).replace("`", "").partition(" - at ")
    problem = (
        problem.removeprefix("JSON is malformed: ")
        .replace(" (byte ", " at byte ")
        .removesuffix(")")
    )
    place = name + path.removeprefix("key in ").lstrip("$")
    if problem.startswith(_MISSING):
        place = f"{place}.{problem.removeprefix(_MISSING)}"
        problem = "it is missing"
    return f"{place.strip('.')}: {problem[:1].lower()}{problem[1:]}".lstrip(": ")
