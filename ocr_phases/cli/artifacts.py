"""``ocr-phases artifacts``: a record's text, crops and boxes as files."""

from __future__ import annotations

import argparse
from pathlib import Path

from ocr_phases.cli.results import wrote
from ocr_phases.errors import OcrPhasesError


def run(arguments: argparse.Namespace) -> None:
    """Write what the model read from a record: the text (result.mmd), pictures, and the page with
    boxes.
    """
    from ocr_phases.files import folder_for, only_writer, output_file
    from ocr_phases.report.result_files import (
        ARTIFACTS,
        row_folder,
        row_images,
        write_artifacts,
    )
    from ocr_phases.results.run import PhaseRun

    record = PhaseRun.load(arguments.record)
    if record.text is None and not arguments.chrome_trace:
        raise OcrPhasesError(
            f"{arguments.record} has no text: measure again with return_text=True."
        )
    folder = folder_for(arguments.out, "ocr_phases_artifacts")
    overwrite = arguments.overwrite
    inputs = [arguments.record]  # never replaced
    if arguments.chrome_trace:
        target = output_file(folder / "trace.json", overwrite=overwrite, arguments=inputs)
        record.chrome_trace(target, overwrite=overwrite)
        arguments.result = {"files": [wrote(target)]}
        return
    targets = []
    for row in range(len(record.results)):
        place = row_folder(folder, record, row)
        targets.append(folder_for(place, "", ARTIFACTS, overwrite=overwrite, arguments=inputs))
    written: list[Path] = []
    with only_writer(folder):
        for row, target in enumerate(targets):
            written += write_artifacts(
                target,
                row_images(record, row),
                record.results[row].text or "",
                record.model.family,
                overwrite=overwrite,
            )
    for path in written:
        print(path.relative_to(folder))
    arguments.result = {"files": [str(path) for path in written]}
    wrote(folder)
