"""What lies in a batch's folder, and how it is read back after any kill.

``jobs.jsonl`` lists the pages of the last command, ``left_out.json`` has the number of files by
suffix that were none. Each page has a folder with its record, its report and ``status.json``, which
the driver alone writes and writes last: a page without it is not finished.

A page is finished while its record is the one that its status has the hash of; what was cut,
emptied or changed since is measured again, and so is a page with a damaged status. So nothing
writes a record again: what the page says lies beside it in ``truth.json``, and a report that shows
another one is rendered again.

A status has its own SHA-256 in it, and those of the record, of the report and of ``truth.json``; a
line of the listing follows from its job, whose hash is its id; the figures beside a record have
their own SHA-256 and the record's. What does not fit is made anew where it can be, and else its
page failed.

A worker writes into a folder of its attempt's own, and the driver puts in place what the answer it
counts has named. So a worker that nobody waits for any more, because its driver was killed, changes
nothing.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, BinaryIO, Literal, NotRequired, TextIO, TypedDict

import msgspec

from ocr_phases.batch.jobs import PAGES, Job
from ocr_phases.batch.outcome import Outcome
from ocr_phases.errors import OcrPhasesError
from ocr_phases.files import RECORD, make_way, open_regular, output_folder, write_atomic, writing
from ocr_phases.record import store
from ocr_phases.record.store import ATTEMPT, Status

LISTING = "jobs.jsonl"
LEFT_OUT = "left_out.json"
STATUS = "status.json"
TRUTH = "truth.json"
REPORT = "report.html"
NOTEBOOK = "report.ipynb"
#: Longest line of the listing that is read, in bytes: a path has at most some 4 kB.
_LONGEST_LINE = 2**20


class Entry(TypedDict):
    """One line of ``jobs.jsonl``; a line that is damaged is read as one with no id and no folder.

    ``job`` is the `Job` in JSON: as a text of its own it may have file names that are no UTF-8. The
    other entries follow from it, and a line in which they differ is damaged.
    """

    id: str
    page: str
    folder: Annotated[str, msgspec.Meta(pattern=rf"^{PAGES}/[0-9a-f]{{2}}/[\w-]+\Z")]
    job: NotRequired[str]


class Report(TypedDict):
    """What became of a page's report; ``truth`` is the SHA-256 of the ``truth.json`` that it shows.

    ``price_per_hour`` is the one that was asked for, ``sha256`` the report's own (version 0.2 kept
    none).
    """

    state: Literal["done", "failed"]
    reason: str
    truth: NotRequired[str | None]
    price_per_hour: NotRequired[float | None]
    sha256: NotRequired[str | None]


class PageStatus(Status):
    """What is read of ``status.json``: the `Job`, what became of it, and the SHA-256 of its record.

    ``truth`` is the SHA-256 of the ``truth.json`` that the driver put there; unknown where it put
    none.
    """

    settings: dict[str, Any]
    failure: str | None
    attempts: Annotated[list[Outcome], msgspec.Meta(min_length=1)]
    report: Report | None
    truth: NotRequired[str]


@contextlib.contextmanager
def writing_whole(path: Path, what: object) -> Iterator[TextIO]:
    """A text file that takes the place of ``path`` when the block is through, else all stays as it
    was.

    Raises `CannotWrite` of ``what``.
    """
    scratch = path.with_name(f".{path.name}.part")
    try:
        with writing(what):
            scratch.unlink(missing_ok=True)  # of a batch that was killed
            # A name that is no UTF-8 is only shown from here: its page is known by its id.
            with scratch.open("x", encoding="utf-8", errors="replace", newline="") as file:
                yield file
            scratch.replace(path)
    finally:
        with contextlib.suppress(OSError):  # a folder of this name: the error above names it
            scratch.unlink(missing_ok=True)


def list_pages(
    jobs: Iterable[Job], out: Path, left_out: Mapping[str, int] | None = None
) -> dict[str, int]:
    """Write ``jobs.jsonl``, which takes its place when all ``jobs`` are in it.

    ``left_out``, files by suffix, is read after the last job. Returns how many were ``found``, how
    many of them are ``finished``, and how many ``failed`` before or were damaged. Raises
    `OcrPhasesError` where the listing cannot be written.
    """
    standing = Counter({"finished": 0, "failed": 0})
    with writing_whole(out / LISTING, out / LISTING) as file:
        for job in jobs:
            entry = {
                "id": job.id,
                "page": job.name,
                "folder": job.folder,
                "job": json.dumps(vars(job)),
            }
            file.write(json.dumps(entry, ensure_ascii=False) + "\n")
            folder = out / job.folder
            if finished_status(folder, job.id) is not None:
                standing["finished"] += 1
            elif (folder / STATUS).exists():
                standing["failed"] += 1
            else:
                standing["new"] += 1
    # After the listing, by which the command knows this folder as a batch's when it is repeated.
    make_way(out / LEFT_OUT)
    write_atomic(out / LEFT_OUT, json.dumps(left_out or {}).encode())
    return {"found": standing.total(), **standing}


def read_listing(out: Path) -> Iterator[Entry]:
    """The entries of ``jobs.jsonl``; `OcrPhasesError` where there is none to be read."""
    try:
        with open_regular(out / LISTING) as file:
            for number, line in enumerate(_lines(file), 1):
                try:
                    yield _entry(line)
                except (ValueError, RecursionError):
                    yield {"id": "", "page": f"{LISTING}, line {number}", "folder": ""}
    except OSError as error:
        raise OcrPhasesError(
            f"{out / LISTING} cannot be read ({error}): run the batch again."
        ) from error


def _lines(file: BinaryIO) -> Iterator[bytes]:
    """The lines of a file, up to and with the first that is too long for a line of the listing."""
    while line := file.readline(_LONGEST_LINE):
        yield line
        if len(line) == _LONGEST_LINE and not line.endswith(b"\n"):
            return


def _entry(line: bytes) -> Entry:
    """A line of the listing; ValueError where it is damaged."""
    entry = msgspec.json.decode(line, type=Entry)
    if "job" in entry:  # version 0.1 kept none
        job = msgspec.convert(json.loads(entry["job"]), Job)
        name = job.name.encode("utf-8", "replace").decode()
        if (entry["id"], entry["folder"], entry["page"]) != (job.id, job.folder, name):
            raise ValueError("it does not say what its job says")
    return entry


def is_batch(out: Path) -> bool:
    """Whether a batch has been begun in this folder."""
    return (out / LISTING).exists() and any(entry["id"] for entry in read_listing(out))


def page_status(out: Path, entry: Entry) -> PageStatus | None:
    """The status of a listed page, None if unfinished; `OcrPhasesError` for damage."""
    if not entry["id"]:
        raise OcrPhasesError(
            f"This line of {LISTING} is damaged: the batch's command writes it again."
        )
    status = store.read_status(out / entry["folder"] / STATUS, PageStatus)
    if status is None or status["id"] != entry["id"]:
        return None
    return status


def finished_status(folder: Path, job_id: str) -> PageStatus | None:
    """The status of a page that is measured and whose record is whole; None for any other."""
    with contextlib.suppress(OcrPhasesError):
        status = store.read_status(folder / STATUS, PageStatus)
        if store.is_finished(status, folder / RECORD, job_id):
            return status
    return None


def report_is_whole(folder: Path, report: Report | None) -> bool:
    """Whether a page has a report that is as it was rendered."""
    if report is None or report["state"] != "done":
        return False
    digest = report.get("sha256")
    return digest is None or digest == hash_or_none(folder / REPORT)


def finished_pages(out: Path) -> Iterator[tuple[Entry, Path, PageStatus]]:
    """Entry, folder and status of each finished page of the listing (`finished_status`).

    A page that is named twice comes twice.
    """
    for entry in read_listing(out):
        folder = out / entry["folder"]
        status = finished_status(folder, entry["id"])
        if status is not None:
            yield entry, folder, status


def waiting_reports(out: Path, price_per_hour: float | None = None) -> list[Path]:
    """The folder of each finished page that has no whole report, or one of another truth or price.

    Without a price any that is shown is right.
    """
    waiting: dict[Path, None] = {}  # in order, and a page that is named twice once
    for _, folder, status in finished_pages(out):
        if not _report_is_current(folder, status["report"], price_per_hour):
            waiting[folder] = None
    return list(waiting)


def _report_is_current(folder: Path, report: Report | None, price_per_hour: float | None) -> bool:
    """Whether a page has a whole report that shows its truth, and this price where there is one."""
    if report is None or report.get("truth") != truth_hash(folder):
        return False
    if price_per_hour is not None and report.get("price_per_hour") != price_per_hour:
        return False
    return report_is_whole(folder, report)


def truth_hash(folder: Path) -> str | None:
    """SHA-256 of what a page says; None where that is not known."""
    return hash_or_none(folder / TRUTH)


def hash_or_none(path: Path) -> str | None:
    """SHA-256 of a regular file; None where there is none that can be read."""
    with contextlib.suppress(OcrPhasesError):
        return store.file_hash(path)
    return None


def check_truth(folder: Path, status: PageStatus) -> None:
    """Raise `OcrPhasesError` where ``truth.json`` is not what the driver put there."""
    if "truth" in status and status["truth"] != truth_hash(folder):
        raise OcrPhasesError(f"{TRUTH} is damaged: give the page's reference text again (--truth).")


def attempt_folder(folder: Path) -> Path:
    """A new hidden folder for the files of one attempt; `OcrPhasesError` where it cannot be
    written.
    """
    return output_folder(folder / f"{ATTEMPT}{uuid.uuid4().hex}")


def clear_left_behind(folder: Path) -> None:
    """Remove the hidden files that a kill in the middle of writing leaves, and attempts that
    failed.
    """
    for path in folder.glob(".*"):
        if path.name.startswith(ATTEMPT) and path.is_dir():
            shutil.rmtree(path, ignore_errors=True)  # a worker may be at it still, and then fails
        elif path.name.endswith((".part", ".ipynb")) and not path.is_dir():
            path.unlink(missing_ok=True)
