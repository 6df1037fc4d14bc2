"""What a batch read, gathered into files: each PDF as one document, and predictions to evaluate.

Both are made of the records of the archive, so they need neither the model nor the pages.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ocr_phases.batch.archive import Entry, finished_status, read_listing
from ocr_phases.batch.jobs import Job
from ocr_phases.files import (
    PAGED_SUFFIXES,
    RECORD,
    check_names,
    only_writer,
    output_folder,
    split_page,
    write_into,
)
from ocr_phases.record import Record
from ocr_phases.report.document_files import (
    DOCUMENT_FILES,
    PREDICTION_FILES,
    DocumentPage,
    document_files,
    prediction_text,
)


@dataclass(frozen=True)
class _Reading:
    """A page of the listing: its job, and the folder of its record, None where it has none."""

    job: Job
    folder: Path | None

    @property
    def preset(self) -> str:
        """The preset that was asked for; empty for the model's own."""
        return self.job.settings.get("preset") or ""

    def record(self) -> Record | None:
        """The page's record; None for a page that is not finished."""
        return None if self.folder is None else Record.load(self.folder / RECORD)


@dataclass(frozen=True)
class Predictions:
    """How many files were written, and why other pages have none, by their names."""

    written: int
    left_out: dict[str, str] = field(default_factory=dict)


def write_documents(out: Path, folder: Path, *, overwrite: bool = False) -> list[Path]:
    """Write each PDF (or TIFF of several pages) of a batch as one document; their folders.

    A document goes into a folder of its name in ``folder``; where its pages were measured with
    several settings, there is one for each. Pages that failed are empty in it. Raises `CannotWrite`
    for files in the way that are not this package's.
    """
    groups: dict[tuple[str, str], list[_Reading]] = {}
    for reading in _readings(out):
        file, number = split_page(reading.job.source)
        if number and file.lower().endswith(PAGED_SUFFIXES):
            settings = json.dumps(reading.job.settings, sort_keys=True)
            groups.setdefault((file, settings), []).append(reading)
    names = _document_names([readings[0] for readings in groups.values()])
    written = []
    for name, readings in zip(names, groups.values(), strict=True):
        target = folder / name
        _write_document(target, readings, overwrite=overwrite)
        written.append(target)
    return written


def _document_names(documents: list[_Reading]) -> list[str]:
    """A name for each document: that of its file, without the ending.

    If the documents have several presets, the preset follows, and if a name is taken already, a
    number from 2 on.
    """
    has_several_presets = len({document.preset for document in documents}) > 1
    names: list[str] = []
    for document in documents:
        stem = Path(split_page(document.job.source)[0]).stem
        if has_several_presets:
            stem = f"{stem}-{document.preset or 'default'}"
        name = stem
        number = 1
        while name in names:
            number += 1
            name = f"{stem}-{number}"
        names.append(name)
    return names


def _write_document(target: Path, readings: list[_Reading], *, overwrite: bool) -> None:
    """One document into its folder; its files are called like the PDF."""
    numbered: dict[int, _Reading] = {}
    for reading in readings:  # a page may be named twice
        numbered[int(split_page(reading.job.source)[1].removeprefix("#"))] = reading
    ordered = sorted(numbered.items())
    name = Path(split_page(readings[0].job.source)[0]).stem
    files = document_files(name, _pages(ordered))
    output_folder(target)
    with only_writer(target):
        write_into(target, files, overwrite=overwrite, stale=DOCUMENT_FILES)


def _pages(readings: list[tuple[int, _Reading]]) -> Iterator[DocumentPage]:
    """The pages of a document, each read when it is asked for.

    A page that is not finished has no record, and only its number.
    """
    for number, reading in readings:
        record = reading.record()
        if record is None:
            yield DocumentPage(number)
        else:
            family = record.model.family
            yield DocumentPage(number, record.text, record.page_image(), family)


def write_predictions(out: Path, folder: Path, *, overwrite: bool = False) -> Predictions:
    """Write the text of each page of a batch as ``NAME.md`` for OmniDocBench's evaluator.

    ``NAME`` is the page's file without its suffix; page 3 of ``scan.pdf`` is ``scan-3.md``. Where
    pages were measured at several presets, each preset has a folder of its own. Of pages that have
    one name, the first is written. Raises `CannotWrite` for files in the way that are not this
    package's.
    """
    readings = list(_readings(out))
    several = len({reading.preset for reading in readings}) > 1
    files_of: dict[Path, dict[str, bytes]] = {}
    left_out: dict[str, str] = {}
    for reading in readings:
        place = folder / (reading.preset or "default") if several else folder
        files = files_of.setdefault(place, {})
        name = _prediction_name(reading.job.name)
        record = reading.record()
        if record is None:
            left_out[reading.job.name] = "it was not measured"
        elif record.text is None:
            left_out[reading.job.name] = "its record has no text"
        elif name in files:
            left_out[reading.job.name] = f"another page is called {name}, too"
        else:
            text = prediction_text(record.text, record.model.family)
            files[name] = text.encode("utf-8", "replace")
    for place, files in files_of.items():
        output_folder(place)
        with only_writer(place):
            write_into(place, files, overwrite=overwrite, stale=PREDICTION_FILES)
    return Predictions(sum(len(files) for files in files_of.values()), left_out)


def check_export(folder: Path, names: str, *, overwrite: bool) -> None:
    """Raise `CannotWrite` where ``folder`` has files of these ``names`` that are not its own."""
    if folder.exists():
        check_names(output_folder(folder), names, overwrite=overwrite)


def _prediction_name(page: str) -> str:
    """The file of a page's prediction: the evaluator looks for the image's name with .md."""
    file, number = split_page(page)
    return f"{Path(file).stem}{number.replace('#', '-')}.md"


def _readings(out: Path) -> Iterator[_Reading]:
    """The pages of a batch's listing, each once, in its order."""
    seen = set()
    for entry in read_listing(out):
        job = _job(entry)
        if job is None or job.id in seen:
            continue
        seen.add(job.id)
        folder = out / entry["folder"]
        yield _Reading(job, folder if finished_status(folder, job.id) else None)


def _job(entry: Entry) -> Job | None:
    """The job of a line of the listing; None for a damaged line and for one of version 0.1."""
    if "job" not in entry:
        return None
    return Job(**json.loads(entry["job"]))
