"""``ocr-phases report``: one HTML file a page, or of a record."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ocr_phases.cli.measuring import load_session, measure
from ocr_phases.cli.options import PRICE, SETTINGS, shows_saved
from ocr_phases.cli.results import run_result, wrote
from ocr_phases.families import IMAGE_TAG, MULTIPAGE
from ocr_phases.files import (
    RECORD,
    REPORT_FOLDER,
    TRACE_NAME,
    check_names,
    each_page,
    folder_for,
    folders_of,
    rescued,
)
from ocr_phases.settings import Settings
from ocr_phases.versions import seldom_collected

if TYPE_CHECKING:
    from ocr_phases.results.run import PhaseRun


def run(arguments: argparse.Namespace) -> None:
    """Measure pages and write an HTML report for each, or the report of an existing record.

    The folder also has the record, the executed notebook, the text and the page with boxes.
    """
    arguments.result = {"reports": []}
    if arguments.no_image:
        _measure_prompt(arguments)
    elif shows_saved(arguments, "record", arguments.pages):
        _show(arguments)
    else:
        _measure(arguments)


@seldom_collected()  # not where it measures: a notebook measures the same
def _show(arguments: argparse.Namespace) -> None:
    """The report of a record."""
    from ocr_phases.results.run import PhaseRun

    record = PhaseRun.load(arguments.record)
    (truth,) = _truths(arguments, [record.page_name()])
    folder = folder_for(arguments.out, REPORT_FOLDER)
    parameters = {"record": str(Path(arguments.record).resolve()), "truth": truth}
    _write(arguments, record, folder, parameters)


def _measure(arguments: argparse.Namespace) -> None:
    """Measure the pages; a wrong page, setting or truth is refused before anything slow starts."""
    from ocr_phases.report.result_files import RESULTS

    pages = _one_report_each(arguments.pages, arguments.prompt)
    settings = Settings.among(vars(arguments))
    parameters = {name: getattr(settings, name) for name in SETTINGS["report"]}
    kernels = arguments.kernels or arguments.trace
    truths = _truths(arguments, pages)
    folders = folders_of(pages, arguments.out or Path(REPORT_FOLDER))
    if arguments.out:
        read = [*pages, arguments.truth]
        for folder in folders:
            check_names(folder, RESULTS, overwrite=arguments.overwrite, arguments=read)
    session = load_session(arguments, pages)
    for page in pages:
        session.check_request(page, **(settings.of_run() | {"kernels": kernels}))
    for page, page_folder, truth in zip(pages, folders, truths, strict=True):
        # A default name gets a number where it is taken, one that was given does not.
        given_folder = page_folder if arguments.out else None
        folder = folder_for(given_folder, page_folder)
        trace = folder / TRACE_NAME if arguments.trace else None
        record = measure(arguments, session, page, kernels=kernels, kernel_trace=trace)
        parameters["page"] = str(Path(page).absolute())
        parameters["trace"] = arguments.trace
        parameters["truth"] = truth
        try:
            _write(arguments, record, folder, parameters)
        except KeyboardInterrupt:  # what was measured is not lost with its report
            with rescued(record.save):
                wrote(record.save(folder / RECORD))
            raise
        if arguments.stopped:
            return


def _measure_prompt(arguments: argparse.Namespace) -> None:
    """Measure a prompt without an image.

    The report's notebook shows the record, because it has no parameter for such a measurement.
    """
    from ocr_phases.report.result_files import RESULTS

    settings = Settings.among(vars(arguments))
    kernels = arguments.kernels or arguments.trace
    if arguments.out:
        check_names(arguments.out, RESULTS, overwrite=arguments.overwrite)
    session = load_session(arguments)
    session.check_request(None, **(settings.of_run() | {"kernels": kernels}))
    folder = folder_for(arguments.out, REPORT_FOLDER)
    trace = folder / TRACE_NAME if arguments.trace else None
    run = measure(arguments, session, kernels=kernels, kernel_trace=trace)
    with rescued(run.save):
        record = run.save(folder / RECORD, overwrite=arguments.overwrite)
    _write(arguments, run, folder, {"record": str(record.resolve()), "truth": None})


def _one_report_each(pages: Sequence[str], prompt: str) -> list[str]:
    """The pages of the reports: ``file.pdf#1-3`` are three, unless the prompt reads several pages
    at once.
    """
    if prompt.strip() == MULTIPAGE or prompt.count(IMAGE_TAG) > 1:
        return list(pages)
    return [each for page in pages for each in each_page(page)]


def _write(
    arguments: argparse.Namespace, run: PhaseRun, folder: Path, parameters: dict[str, Any]
) -> None:
    """One report into ``folder``, printed and in the command's result."""
    from ocr_phases.analyse.cost import priced
    from ocr_phases.report.render import page_report

    parameters = {**parameters, PRICE: arguments.price_per_hour}
    if parameters["truth"]:
        run = run.with_truth(parameters["truth"])
    run = priced(run, arguments.price_per_hour)
    report = page_report(
        run,
        folder,
        parameters,
        show_code=arguments.show_code,
        overwrite=arguments.overwrite,
    )
    result = run_result(run)
    print(f"{result['headline']}\n{result['checks']['sentence']}")
    result["record"] = str(folder / RECORD)
    result["report"] = wrote(report)
    arguments.result["reports"].append(result)


def _truths(arguments: argparse.Namespace, pages: Sequence[str]) -> list[str | None]:
    """The file of each page's truth, if any; `OcrPhasesError` where one cannot be used."""
    from ocr_phases.analyse.quality import check_for_pages, find_truth

    path = arguments.truth
    if path is None:
        return [None] * len(pages)
    check_for_pages(path, len(pages))
    files: list[str | None] = []
    for page in pages:
        file = path
        if path.is_dir():
            # Where the folder has none for this page, reading the folder says so.
            file = find_truth(page, path) or path
        files.append(str(file.resolve()))
    return files
