"""``ocr-phases report``: one HTML file a page, or of a record."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ocr_phases.cli.measuring import load_session, measure
from ocr_phases.cli.options import (
    EVERY,
    KERNELS,
    asks_kernels,
    check_truth,
    settings_of,
    shows_saved,
)
from ocr_phases.cli.results import run_result, wrote
from ocr_phases.files import NOTHING, RECORD, REPORT_FOLDER, split_page
from ocr_phases.versions import seldom_collected


def run(arguments: argparse.Namespace) -> None:
    """Write one HTML report per page (or of an existing record), with record, notebook and artifacts."""
    saved = shows_saved(arguments, "record", arguments.pages, (*EVERY, *KERNELS, "trace"))
    # What measures is not changed: a notebook measures the same.
    with seldom_collected() if saved else contextlib.nullcontext():
        _write_reports(arguments)


def _write_reports(arguments: argparse.Namespace) -> None:
    from ocr_phases.analyse.truths import load_truth
    from ocr_phases.files import TRACE_NAME, check_names, folder_for, save_or_rescue
    from ocr_phases.record import PhaseRun
    from ocr_phases.report.artifacts import RESULTS
    from ocr_phases.report.render import page_report

    # A wrong page, setting or record is refused before anything slow starts.
    asked, kernels = settings_of(arguments), asks_kernels(arguments)
    settings = {name: getattr(asked, name) for name in (*EVERY, *KERNELS)}
    shown = PhaseRun.load(arguments.record) if arguments.record else None
    names = dict(zip(arguments.pages, arguments.pages, strict=True))
    truths = _truths(arguments, names if shown is None else {None: shown.page_name()})
    out, overwrite = arguments.out, arguments.overwrite
    wanted = out or Path(REPORT_FOLDER)
    jobs = folders(arguments.pages, wanted) if shown is None else {None: wanted}
    others = [*arguments.pages, arguments.truth]
    for folder in jobs.values() if out else ():
        check_names(folder, RESULTS, overwrite=overwrite, arguments=others, record=arguments.record)
    if shown is None:
        session = load_session(arguments, arguments.pages)
        for page in arguments.pages:
            session.check_request(page, **(asked.of_run() | {"kernels": kernels}))
    arguments.result = {"reports": []}
    for page, wanted in jobs.items():
        folder = folder_for(out and wanted, wanted, NOTHING)
        parameters: dict[str, Any] = {"truth": truths.get(page)}
        if shown is not None:
            record = shown
            parameters["record"] = str(Path(arguments.record).resolve())
        else:
            trace = {"kernel_trace": folder / TRACE_NAME} if arguments.trace else {}
            record = measure(arguments, session, page, kernels=kernels, **trace)
            name, number = split_page(str(page))
            parameters |= {**settings, "page": str(Path(name).resolve()) + number, "trace": arguments.trace}
        if page in truths:
            record = record.with_truth(load_truth(truths[page], page or record.page_name()))
        try:
            report = page_report(
                record, folder, parameters, show_code=arguments.show_code, overwrite=overwrite
            )
        except KeyboardInterrupt:
            if shown is None:  # what was measured is not lost with its report
                wrote(save_or_rescue(record.save, folder / RECORD))
            raise
        told = run_result(record)
        print(f"{told['headline']}\n{told['checks']['sentence']}")
        told |= {"record": str(folder / RECORD), "report": wrote(report)}
        arguments.result["reports"].append(told)
        if arguments.stopped:
            return


def _truths(arguments: argparse.Namespace, names: Mapping[str | None, str]) -> dict[str | None, str]:
    """The file of each page's truth, by the page's name; `OcrPhasesError` where one cannot be used."""
    from ocr_phases.analyse.truths import check_for_pages, find_truth, load_truth

    path = arguments.truth
    if path is None:
        return {}
    check_truth(arguments)
    check_for_pages(path, len(names))
    for name in names.values():
        load_truth(path, name)
    files = {page: path.is_dir() and find_truth(name, path) for page, name in names.items()}
    return {page: str((file or path).resolve()) for page, file in files.items()}


def folders(pages: Sequence[str], out: Path) -> dict[str | None, Path]:
    """A folder for each page, named like it; a number is added where two pages share a name."""
    found: dict[str | None, Path] = {}
    for page in pages:
        name, number = split_page(page)
        stem = Path(name).stem + number.replace("#", "-")
        folder, count = out / stem, 2
        while folder in found.values():
            folder, count = out / f"{stem}-{count}", count + 1
        found[page] = folder
    return found
