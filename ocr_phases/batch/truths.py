"""Gives the measured pages of a batch what they really say, so that their records tell what was lost."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path

from ocr_phases.analyse.truth_files import page_truth
from ocr_phases.batch.figures import write_figures
from ocr_phases.batch.store import RECORD, finished, read_listing, record_hash, write_status
from ocr_phases.errors import OcrPhasesError
from ocr_phases.files import write_atomic
from ocr_phases.record import PhaseRun


@dataclass
class Truths:
    """How many pages have a truth, how many lack one, and why one could not be read, by page."""

    found: int = 0
    lacking: int = 0
    problems: dict[str, str] = field(default_factory=dict)


def add_truths(out: Path, path: Path) -> Truths:
    """Add the truth at ``path`` to the record of every finished page, unless it has it.

    ``path`` is as for `page_truth`; a page that got another truth than its report shows is rendered again. A
    truth that cannot be read leaves its page without, and is named. Raises `OcrPhasesError` where a record
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
        kept = json.dumps(truth.as_dict(), sort_keys=True).encode()
        digest = hashlib.sha256(kept).hexdigest()
        if status.get("truth") != digest:
            run = PhaseRun.load(folder / RECORD).with_truth(truth)
            write_atomic(folder / RECORD, run.to_json())
            write_figures(folder, run)
            write_status(folder, {**status, "truth": digest, "record": record_hash(folder), "report": None})
    return truths
