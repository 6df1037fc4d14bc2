"""Puts what the pages of a batch really say beside their records, so that the index tells what was lost."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from ocr_phases.analyse.truths import page_truth
from ocr_phases.batch.store import TRUTH, finished, read_listing
from ocr_phases.errors import OcrPhasesError
from ocr_phases.files import write_atomic


@dataclass
class Truths:
    """How many pages have a truth, how many lack one, and why one could not be read, by page."""

    found: int = 0
    lacking: int = 0
    problems: dict[str, str] = field(default_factory=dict)


def add_truths(out: Path, path: Path) -> Truths:
    """Put the truth at ``path`` beside the record of every finished page, unless it is there.

    ``path`` is as for `page_truth`; a page that got another truth than its report shows is rendered again. A
    truth that cannot be read leaves its page without, and is named. Raises `OcrPhasesError` where a truth
    cannot be written.
    """
    truths = Truths()
    for entry in read_listing(out):
        folder = out / entry["folder"]
        status = finished(folder, entry["id"])
        if status is None:
            continue
        try:
            truth = page_truth(path, entry["page"])
        except OcrPhasesError as error:
            truths.problems[entry["page"]] = str(error)
            continue
        if truth is None or not status["settings"].get("return_text", True):
            truths.lacking += 1
            continue
        truths.found += 1
        kept = json.dumps(msgspec.to_builtins(truth), ensure_ascii=False, indent=1).encode("utf-8", "replace")
        file = folder / TRUTH
        if not file.exists() or file.read_bytes() != kept:
            write_atomic(file, kept)
    return truths
