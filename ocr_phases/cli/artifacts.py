"""``ocr-phases artifacts``: a record's text, crops and boxes as files."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from ocr_phases.cli.options import add_out
from ocr_phases.errors import OcrPhasesError

SUMMARY = "write text, crops and boxes from a record"
USAGE = "[options] RUN.json"
FOLDER = "ocr_phases_artifacts"


def run(arguments: argparse.Namespace) -> None:
    """Write what the model read (result.mmd, crops, the page with boxes) from a record, or its trace."""
    from ocr_phases.files import NOTHING, folder_for, only_writer, output_file
    from ocr_phases.record import PhaseRun
    from ocr_phases.report.artifacts import ARTIFACTS, row_images, write_artifacts

    record = PhaseRun.load(arguments.record)
    if record.text is None and not arguments.chrome_trace:
        raise OcrPhasesError(f"{arguments.record} has no text: measure again with return_text=True.")
    folder = folder_for(arguments.out, FOLDER, NOTHING)
    overwrite = arguments.overwrite
    options: dict[str, Any] = {"overwrite": overwrite, "arguments": [arguments.record]}
    if arguments.chrome_trace:
        target = record.chrome_trace(output_file(folder / "trace.json", **options), overwrite=overwrite)
        arguments.result = {"files": [str(target)]}
        print(f"Wrote {target}")
        return
    rows = range(len(record.results))
    # A batch gets a folder a row.
    targets = [
        folder_for(folder / f"row-{row}" if len(rows) > 1 else folder, "", ARTIFACTS, **options)
        for row in rows
    ]
    family = record.model.get("family")
    written: list[Path] = []
    with only_writer(folder):
        for row, (target, result) in enumerate(zip(targets, record.results, strict=True)):
            images = row_images(record, row)
            written += write_artifacts(target, images, result["text"], family, overwrite=overwrite)
    for path in written:
        print(path.relative_to(folder))
    arguments.result = {"files": [str(path) for path in written]}
    print(f"Wrote {folder}")


def add_options(command: argparse.ArgumentParser) -> None:
    """The options of ``artifacts``."""
    command.add_argument("record", metavar="RUN.json")
    command.add_argument(
        "--chrome-trace",
        action="store_true",
        help="write trace.json instead: all spans for ui.perfetto.dev or chrome://tracing",
    )
    add_out(command, FOLDER)
