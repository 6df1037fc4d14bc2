"""``ocr-phases sweep``: one page over presets, strategies, batch sizes and output lengths."""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ocr_phases.cli.measuring import check_pages, server_options
from ocr_phases.cli.options import PRICE, SHARED, shows_saved
from ocr_phases.cli.results import Exit, in_words, rows, show, wrote
from ocr_phases.settings import NEW_TOKENS, Settings

if TYPE_CHECKING:
    from ocr_phases.results.sweep import SweepResult

FOLDER = "ocr_phases_sweep"
_SWEEP_FILES = r"sweep\.(ipynb|html)"
_LOAD_FILES = r"load\.(html|json)"


def run(arguments: argparse.Namespace) -> int:
    """Measure a page with every combination of the settings that are lists, and write an HTML page.

    Each combination (a cell) has a record of its own, and those that exist already are not measured
    again. Exit code 1 means that no cell could be measured. With --server, load-test a server.
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
        show(in_words(table[columns].dropna(axis="columns", how="all")))
    for _, row in sweep.failures.iterrows():
        print(f"{row['cell']} failed: {row['reason']}")
    records = Path(arguments.records or folder)
    parameters = {
        "records": str(records.resolve()),
        "truth": None if arguments.truth is None else str(arguments.truth.resolve()),
        PRICE: arguments.price_per_hour,
    }
    _name_what_is_replaced(arguments, folder, _SWEEP_FILES)
    report = write_report(
        "sweep_report",
        folder,
        "sweep",
        parameters,
        objects=LiveObjects(sweep=sweep),
        title="Sweep – ocr_phases",
        overwrite=arguments.overwrite,
    )
    checks = {cell: worst_verdict(run_checks(run)) for cell, run in sweep.runs.items()}
    print()
    print(sweep.verdict)
    print(_checks_sentence(checks))
    arguments.result = {
        "headline": sweep.verdict,
        "cells": rows(table),
        "checks": checks,
        "failures": rows(sweep.failures),
        "report": wrote(report),
    }
    return Exit.FAILED if table.empty else Exit.DONE


def _checks_sentence(checks: Mapping[str, str]) -> str:
    """The cells whose checks did not all pass, with the worst verdict of each, in a sentence."""
    doubtful = [f"{cell} {verdict}" for cell, verdict in checks.items() if verdict != "pass"]
    if not doubtful:
        return "Checks: all cells pass."
    return f"Checks: {', '.join(doubtful)}."


def _load(arguments: argparse.Namespace) -> int:
    """A server's load, of one page or of a folder's."""
    from ocr_phases import connect
    from ocr_phases.batch.pages import find_pages
    from ocr_phases.engines.load import InterruptedLoad

    named = [page for page in (arguments.page, arguments.pages) if page]
    pages = [page.source for page in find_pages(named, ())]
    session = connect(arguments.server, **server_options(arguments))
    folder = _checked_folder(arguments, _LOAD_FILES)
    try:
        result = session.load_test(
            pages,
            arguments.concurrency,
            rates=arguments.rate,
            requests=arguments.requests,
            slo=arguments.slo,
            progress=print,
            prompt=arguments.prompt,
            max_new_tokens=max(arguments.lengths or [NEW_TOKENS]),
            ignore_eos=arguments.ignore_eos,
            seed=arguments.seed,
            price_per_hour=arguments.price_per_hour,
        )
    except InterruptedLoad as interrupted:
        if interrupted.result is None:
            raise
        arguments.stopped = interrupted.number
        result = interrupted.result
    show(result.table)
    print()
    print(result.verdict)
    _name_what_is_replaced(arguments, folder, _LOAD_FILES)
    arguments.result = {
        "headline": result.verdict,
        "concurrency": arguments.concurrency,
        "rates_per_min": arguments.rate,
        "levels": rows(result.table),
        "report": wrote(result.save(folder, overwrite=arguments.overwrite)),
    }
    all_failed = result.table["errors"].eq(result.table["requests"]).all()
    return Exit.FAILED if all_failed else Exit.DONE


def _checked_folder(arguments: argparse.Namespace, names: str) -> Path:
    """The output's folder, made where it is missing; refused where files of others have its
    ``names``.

    What will be replaced is not named yet, because the measurement may still be refused.
    """
    from ocr_phases.files import check_names, folder_for, output_folder

    # A sweep goes on where it stopped, also in its default folder.
    if arguments.records and arguments.out is None:
        return folder_for(None, FOLDER)
    folder = output_folder(arguments.out or FOLDER)
    others = [arguments.page, arguments.truth]
    check_names(folder, names, overwrite=arguments.overwrite, arguments=others)
    return folder


def _name_what_is_replaced(arguments: argparse.Namespace, folder: Path, names: str) -> None:
    """Name on stderr the files of an earlier output, just before they are replaced."""
    from ocr_phases.files import folder_for

    others = [arguments.page, arguments.truth]
    folder_for(folder, FOLDER, names, overwrite=arguments.overwrite, arguments=others)


def _measure(arguments: argparse.Namespace) -> tuple[SweepResult, Path]:
    """Measure the cells that are missing in the output's folder; the sweep and the folder."""
    from tqdm import tqdm

    # A wrong page, setting or list is refused before anything slow starts.
    load = Settings.among(vars(arguments)).of_model()
    check_pages(arguments)
    from ocr_phases.measure.cells import Cell, CellOutcome
    from ocr_phases.measure.progress import SweepProgress, left_text
    from ocr_phases.session.sweeps import AXES, Sweep, sweep

    if not arguments.lengths:
        ends_at_end_token = arguments.truth is not None or arguments.ignore_eos is False
        arguments.lengths = [1024] if ends_at_end_token else [32, 128]
    axes = {name: getattr(arguments, name) for name in AXES if getattr(arguments, name)}
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
            text = f"{cell.name}: {runs_done} of {runs} runs done"
            left = left_text(progress.left_s)
            if left:
                text = f"{text}, {left}"
            bar.set_postfix_str(text)

        def done(outcome: CellOutcome) -> None:
            was_measured = outcome.state == "measured"
            progress.end_cell(outcome.cell, was_measured, time.perf_counter())
            bar.update()
            line = f"{outcome.state:8} {outcome.cell.name}"
            if outcome.reason:
                line = f"{line}: {outcome.reason}"
            bar.write(line)

        shared = {name: getattr(arguments, name) for name in SHARED}
        result = sweep(
            arguments.page,
            models,
            progress=done,
            on_run=on_run,
            loading=loading,
            load=load,
            folder=folder,
            truth=arguments.truth,
            retry_failed=arguments.retry_failed,
            **axes,
            **shared,
        )
    return result, folder
