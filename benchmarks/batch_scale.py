"""What the driver of a batch costs, with workers that copy a record: ``python -m benchmarks.batch_scale``.

It prints CPU time per page of the driver, and of index and tables, and its memory: of a first command, and of
the same command again, which keeps every page.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from ocr_phases.batch.child import LocalPool, Outcome, WorkerRequest
from ocr_phases.batch.driver import measure_pages
from ocr_phases.batch.figures import FIGURES, write_figures
from ocr_phases.batch.index import write_index
from ocr_phases.batch.jobs import find_pages, make_jobs
from ocr_phases.batch.store import attempt_folder, list_pages
from ocr_phases.batch.worker import serve
from ocr_phases.files import RECORD
from ocr_phases.record import PhaseRun

SETTINGS = {"model": "tiny", "preset": None, "max_new_tokens": 8}


def work(done: Path) -> None:
    """A worker that gives every page the files of ``done``."""

    def copy(request: WorkerRequest, ready: Callable[[], None]) -> Outcome:
        ready()
        place = attempt_folder(Path(request["folder"]))
        for name in (RECORD, FIGURES):
            shutil.copy(done / name, place)
        return Outcome(place=place.name)

    serve(copy)


def measure(record: Path, pages: int) -> list[dict[str, Any]]:
    """Both commands over ``pages`` pages of this record."""
    with tempfile.TemporaryDirectory() as scratch:
        done, scans, out = (Path(scratch, name) for name in ("done", "in", "out"))
        for folder in (done, scans, out):
            folder.mkdir()
        shutil.copy(record, done / RECORD)
        write_figures(done, PhaseRun.load(record), "", "page.png")
        for number in range(pages):
            (scans / f"page-{number:06}.png").write_text(str(number))
        command = [sys.executable, "-m", "benchmarks.batch_scale", "--worker", str(done)]
        return [_command(scans, out, command, pages, name) for name in ("measured", "kept")]


def _command(scans: Path, out: Path, command: list[str], pages: int, name: str) -> dict[str, Any]:
    before, began = psutil.Process().memory_info().rss, time.process_time()
    pool = LocalPool(command=command)
    try:
        list_pages(make_jobs(find_pages([str(scans)], list(SETTINGS)), SETTINGS), out)
        measure_pages(out, pool)
    finally:
        pool.close()
    driven = time.process_time()
    write_index(out)
    return {
        "pages": pages,
        "command": name,
        "driver_ms_per_page": 1000.0 * (driven - began) / pages,
        "index_ms_per_page": 1000.0 * (time.process_time() - driven) / pages,
        "rss_bytes": [before, psutil.Process().memory_info().rss],
    }


def main() -> None:
    """Print the figures as one JSON list."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", type=Path, default=Path(__file__).parents[1] / "tests/golden/run.json")
    parser.add_argument("--pages", type=int, default=3_000)
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options.worker)
    else:
        print(json.dumps(measure(options.record, options.pages), indent=1))


if __name__ == "__main__":
    main()
