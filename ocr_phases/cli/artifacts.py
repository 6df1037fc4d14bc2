"""``ocr-phases artifacts``: a record's text, crops and boxes as files."""

from __future__ import annotations

import argparse
from pathlib import Path

from ocr_phases.cli.options import add_out
from ocr_phases.errors import OcrPhasesError

SUMMARY = "write text, crops and boxes from a record"
USAGE = "[options] RUN.json"


def run(arguments: argparse.Namespace) -> None:
    """Write what the model read (result.mmd, crops, the page with boxes) from a record, or its trace."""
    from ocr_phases.files import output_folder
    from ocr_phases.record import PhaseRun
    from ocr_phases.report.artifacts import row_images, write_artifacts

    record = PhaseRun.load(arguments.record)
    if arguments.chrome_trace:
        path = record.chrome_trace(output_folder(arguments.out) / "trace.json")
        arguments.result = {"files": [str(path)]}
        print(f"Wrote {path}")
        return
    if record.text is None:
        raise OcrPhasesError(f"{arguments.record} has no text: measure again with return_text=True.")
    folder = output_folder(arguments.out)
    written: list[Path] = []
    for row, result in enumerate(record.results):
        # A batch gets a folder a row.
        target = folder if len(record.results) == 1 else folder / f"row-{row}"
        family = record.model.get("family")
        written += write_artifacts(target, row_images(record, row), result["text"], family)
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
    add_out(command)
