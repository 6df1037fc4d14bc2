"""``ocr-phases sweep``: one page over presets, strategies, batch sizes and output lengths."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING

from ocr_phases.cli.measuring import check_pages, server_options
from ocr_phases.cli.options import PRICE, SHARED, shows_saved
from ocr_phases.cli.results import Exit, rows, show, wrote
from ocr_phases.settings import Settings

if TYPE_CHECKING:
    from ocr_phases.results.sweep import SweepResult

FOLDER = "ocr_phases_sweep"
_SWEEP_FILES = r"sweep\.(ipynb|html)"
_LOAD_FILES = r"load\.(html|json)"


def run(arguments: argparse.Namespace) -> int:
    """Measure the missing cells of a sweep, one record each, and show all as one HTML file.

    Exit code 1: no cell could be measured.
    """
    if arguments.server:
        return _load(arguments)
    saved = shows_saved(arguments, "records", arguments.page)
    from ocr_phases.analyse.checks import run_checks, worst_verdict
    from ocr_phases.analyse.figure_rows import Place, names_in
    from ocr_phases.report.live import LiveObjects
    from ocr_phases.report.render import write_report
    from ocr_phases.results.sweep import SweepResult

    if saved:
        sweep = SweepResult.load(arguments.records)
        if arguments.truth:
            sweep = sweep.with_truth(arguments.truth)
        folder = _checked_folder(arguments, _SWEEP_FILES)
    else:
        sweep, folder = _measure(arguments)
    sweep = sweep.with_price(arguments.price_per_hour)
    table = sweep.table
    if len(table):
        print()
        columns = ["cell", *names_in(Place.SWEEP_VERB)]
        show(table[columns].dropna(axis="columns", how="all"))
    for _, row in sweep.failures.iterrows():
        print(f"{row['cell']} failed: {row['reason']}")
    truth = arguments.truth and str(arguments.truth.resolve())
    parameters = {"records": str(Path(arguments.records or folder).resolve()), "truth": truth}
    parameters[PRICE] = arguments.price_per_hour
    title = "Sweep – ocr_phases"
    objects = LiveObjects(sweep=sweep)
    _name_what_is_replaced(arguments, folder, _SWEEP_FILES)
    report = write_report(
        "sweep_report",
        folder,
        "sweep",
        parameters,
        objects=objects,
        title=title,
        overwrite=arguments.overwrite,
    )
    checks = {cell: worst_verdict(run_checks(run)) for cell, run in sweep.runs.items()}
    doubtful = ", ".join(
        f"{cell} {verdict}" for cell, verdict in checks.items() if verdict != "pass"
    )
    print(f"\n{sweep.verdict}\nChecks: {doubtful or 'all cells pass'}.")
    result = {"headline": sweep.verdict, "cells": rows(table), "checks": checks}
    arguments.result = {**result, "failures": rows(sweep.failures), "report": wrote(report)}
    return Exit.FAILED if table.empty else Exit.DONE


def _load(arguments: argparse.Namespace) -> int:
    """A server's load, of one page or of a folder's."""
    from ocr_phases import connect
    from ocr_phases.batch.pages import find_pages

    pages = [
        page.source for page in find_pages([*filter(None, (arguments.page, arguments.pages))], ())
    ]
    settings = {
        name: getattr(arguments, name)
        for name in ("prompt", "ignore_eos", "seed", "requests", "slo")
    }
    settings |= {"max_new_tokens": max(arguments.lengths or [512]), PRICE: arguments.price_per_hour}
    session = connect(arguments.server, **server_options(arguments))
    folder = _checked_folder(arguments, _LOAD_FILES)
    result = session.load_test(
        pages, arguments.concurrency, rates=arguments.rate, progress=print, **settings
    )
    show(result.table)
    print(f"\n{result.verdict}")
    _name_what_is_replaced(arguments, folder, _LOAD_FILES)
    report = wrote(result.save(folder, overwrite=arguments.overwrite))
    arguments.result = {"headline": result.verdict, "levels": rows(result.table), "report": report}
    return Exit.FAILED if result.table["errors"].eq(result.table["requests"]).all() else Exit.DONE


def _checked_folder(arguments: argparse.Namespace, names: str) -> Path:
    """The output's folder, made where it is missing; refused where files of others have its
    ``names``.

    What will be replaced is not named yet, because the measurement may still be refused.
    """
    from ocr_phases.files import check_names, folder_for, output_folder

    # A sweep goes on where it stopped, also in its default folder.
    given = arguments.out or (None if arguments.records else FOLDER)
    if given is None:
        return folder_for(None, FOLDER)
    folder = output_folder(given)
    others = [arguments.page, arguments.truth]
    check_names(folder, names, overwrite=arguments.overwrite, arguments=others)
    return folder


def _name_what_is_replaced(arguments: argparse.Namespace, folder: Path, names: str) -> None:
    """Name on stderr the files of an earlier output, just before they are replaced."""
    from ocr_phases.files import folder_for

    others = [arguments.page, arguments.truth]
    folder_for(folder, FOLDER, names, overwrite=arguments.overwrite, arguments=others)


def _measure(arguments: argparse.Namespace) -> tuple[SweepResult, Path]:
    from tqdm import tqdm

    # A wrong page, setting or list is refused before anything slow starts.
    load = Settings.among(vars(arguments)).of_model()
    check_pages(arguments)
    from ocr_phases.measure.cells import Cell, CellOutcome
    from ocr_phases.measure.progress import SweepProgress, left_text
    from ocr_phases.session.sweeps import AXES, Sweep, sweep

    ends = bool(arguments.truth) or arguments.ignore_eos is False
    arguments.lengths = arguments.lengths or ([1024] if ends else [32, 128])
    axes = {name: values for name in AXES if (values := getattr(arguments, name))}
    models = arguments.models or [arguments.model]
    cells = Sweep(page=arguments.page, **axes).cells * len(models)
    folder = _checked_folder(arguments, _SWEEP_FILES)
    progress = SweepProgress(cells)
    layout = "{desc}{bar}| {n_fmt} of {total_fmt} cells{postfix} [{elapsed}]"
    with tqdm(total=len(cells), disable=None, leave=False, bar_format=layout) as bar:

        def loading(model: str) -> None:
            progress.begin_loading()
            bar.set_description_str(f"{model} |")

        def on_run(cell: Cell, runs_done: int, runs: int) -> None:
            progress.begin_work(time.perf_counter())
            words = [f"{cell.name}: {runs_done} of {runs} runs done", left_text(progress.left_s)]
            bar.set_postfix_str(", ".join(filter(None, words)))

        def done(outcome: CellOutcome) -> None:
            measured = outcome.state == "measured"
            progress.end_cell(outcome.cell, measured, time.perf_counter())
            bar.update()
            bar.write(
                f"{outcome.state:8} {outcome.cell.name}{outcome.reason and ': '}{outcome.reason}"
            )

        options = {name: getattr(arguments, name) for name in (*SHARED, "truth", "retry_failed")}
        options |= {"folder": folder, "load": load, "loading": loading}
        found = sweep(arguments.page, models, progress=done, on_run=on_run, **axes, **options)
    return found, folder
