"""``ocr-phases sweep``: one page over presets, strategies, batch sizes and output lengths."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ocr_phases.cli.options import (
    VENDOR,
    add_out,
    add_page,
    add_settings,
    add_truth,
    name_list,
    refuse,
    shows_saved,
)
from ocr_phases.cli.results import rows
from ocr_phases.errors import OcrPhasesError
from ocr_phases.families import PRESET_NAMES
from ocr_phases.settings import Settings

if TYPE_CHECKING:
    from ocr_phases.analyse.sweep import Sweep

SUMMARY = "measure one page over presets, strategies, batch sizes and lengths"
USAGE = "[options] PAGE | --records DIR"
#: A further number of a ``dummy``.
_CHANGE = re.compile(r"[a-z]+=\d+")
FOLDER = "ocr_phases_sweep"
#: Settings that all cells share; the lists give the others.
SHARED = (
    "model",
    "device",
    "dtype",
    "revision",
    *VENDOR,
    "prompt",
    "ignore_eos",
    "repeats",
    "warmup",
    "seed",
)
#: What else only a measurement asks for.
_MEASURED = ("models", "presets", "strategies", "visions", "batch", "max_new_tokens", "retry_failed")
#: Output lengths where the end token is ignored, and where it ends a text.
_LENGTHS, _LIMIT = [32, 128], [1024]


def run(arguments: argparse.Namespace) -> int:
    """Measure the missing cells of a sweep, one record each, and show all as one HTML file.

    Exit code 1: no cell could be measured.
    """
    saved = shows_saved(arguments, "records", arguments.page, (*SHARED, *_MEASURED))
    from ocr_phases.analyse.checks import run_checks, worst_verdict
    from ocr_phases.analyse.sweep import Sweep
    from ocr_phases.report.render import write_report

    if saved:
        found = Sweep.load(arguments.records)
        if arguments.truth:
            found = found.with_truth(arguments.truth)
        folder = _folder(arguments)
    else:
        found, folder = _measure(arguments)
    source, overwrite = Path(arguments.records or folder), arguments.overwrite
    truth = arguments.truth and str(arguments.truth.resolve())
    table = found.table
    columns = ["cell", "prefill_len", "prefill_ms", "vision_share", "inter_token_ms", "tokens_per_s"]
    columns += ["page_ms", "pages_per_min"]
    if len(table):
        print()
        print(table[columns].to_string(index=False, float_format="{:,.3f}".format, na_rep=""))
    for _, row in found.failures.iterrows():
        print(f"{row['cell']} failed: {row['reason']}")
    parameters = {"records": str(source.resolve()), "truth": truth}
    title, given = "Sweep – ocr_phases", {"sweep": found}
    written = write_report("sweep_report", folder, "sweep", parameters, given, title, overwrite)
    headline = found.verdict
    checks = {cell: worst_verdict(run_checks(run)) for cell, run in found.runs.items()}
    doubtful = ", ".join(f"{cell} {verdict}" for cell, verdict in checks.items() if verdict != "pass")
    print(f"\n{headline}\nChecks: {doubtful or 'all cells pass'}.\nWrote {written}")
    arguments.result = {
        "headline": headline,
        "cells": rows(table),
        "checks": checks,
        "failures": rows(found.failures),
        "report": str(written),
    }
    return 1 if table.empty else 0


def _folder(arguments: argparse.Namespace) -> Path:
    from ocr_phases.files import folder_for

    # A sweep goes on where it stopped, also in its default folder.
    given = arguments.out or (None if arguments.records else FOLDER)
    others = [arguments.page, arguments.truth]
    names = r"sweep\.(ipynb|html)"
    return folder_for(given, FOLDER, names, overwrite=arguments.overwrite, arguments=others)


def _measure(arguments: argparse.Namespace) -> tuple[Sweep, Path]:
    from tqdm import tqdm

    from ocr_phases.analyse.truth_files import load_truth
    from ocr_phases.measure.inputs.images import load_page, unnamed_pages

    # A wrong page, setting or list is refused before anything slow starts.
    settings = Settings.among({name: getattr(arguments, name) for name in SHARED})
    if arguments.models:
        refuse(arguments, ("model",), "--models names them")
    name = load_page(arguments.page)[2]
    if arguments.truth and arguments.ignore_eos:
        raise OcrPhasesError("A truth needs texts that end at the end token: drop --ignore-eos, or --truth.")
    if arguments.truth:
        load_truth(arguments.truth, name)
    if others := unnamed_pages(arguments.page):
        print(others, file=sys.stderr)
    from ocr_phases.measure.sweep import Cell, CellOutcome, make_cells
    from ocr_phases.measure.sweep_models import sweep

    ends = bool(arguments.truth) or arguments.ignore_eos is False
    axes = {
        "presets": arguments.presets,
        "strategies": arguments.strategies,
        "batches": arguments.batch,
        "lengths": arguments.max_new_tokens or (_LIMIT if ends else _LENGTHS),
        "visions": arguments.visions,
    }
    count = len(make_cells(**axes)) * max(1, len(arguments.models))
    folder = _folder(arguments)
    with tqdm(total=count, unit="cell", disable=None, leave=False) as bar:

        def on_run(cell: Cell, runs_done: int, runs: int) -> None:
            bar.set_postfix_str(f"{cell.name}: {runs_done} of {runs} runs done")

        def done(outcome: CellOutcome) -> None:
            bar.update()
            bar.write(f"{outcome.state:8} {outcome.cell.name}{outcome.reason and ': '}{outcome.reason}")

        options = {name: getattr(arguments, name) for name in ("prompt", "repeats", "warmup", "seed")}
        options |= {"ignore_eos": arguments.ignore_eos, "truth": arguments.truth}
        options |= {**axes, "folder": folder, "retry_failed": arguments.retry_failed}
        options |= {"progress": done, "on_run": on_run}
        load = settings.of_model()
        models = arguments.models or [load["model"]]
        del load["model"]
        found = sweep(arguments.page, models, load=load, loading=bar.set_description_str, **options)
    return found, folder


def model_list(text: str) -> list[str]:
    """Models from a comma-separated list, of which ``dummy:layers=2,experts=8`` is one."""
    models: list[str] = []
    for part in name_list(text):
        if models and _CHANGE.fullmatch(part):
            models[-1] += f",{part}"
        else:
            models.append(part)
    return models


def number_list(text: str) -> list[int]:
    """Whole numbers from a comma-separated list."""
    try:
        return [int(part) for part in name_list(text)]
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a list of whole numbers, such as 1,4,16"
        ) from error


def add_options(command: argparse.ArgumentParser) -> None:
    """The options of ``sweep``."""
    add_page(command)
    command.add_argument(
        "--records", metavar="DIR", help="show the records of this folder instead of measuring"
    )
    add_out(command, FOLDER, ", which goes on")
    command.add_argument(
        "--models",
        type=model_list,
        default=[],
        metavar="LIST",
        help="several in place of --model",
    )
    lists: list[tuple[str, Any, str, str]] = [
        ("--presets", name_list, "tiny,base", f"of {', '.join(PRESET_NAMES)}"),
        ("--strategies", name_list, "eager", "how the language model runs: eager, cuda_graph, compiled"),
        ("--visions", name_list, "eager", "how the vision encoders run: eager, compiled"),
        ("--batch", number_list, "1,2", "copies of the page side by side"),
    ]
    for option, kind, default, text in lists:
        command.add_argument(
            option, type=kind, default=default, metavar="LIST", help=f"{text} (default: %(default)s)"
        )
    command.add_argument(
        "--max-new-tokens",
        type=number_list,
        metavar="LIST",
        help="output lengths, the end token ignored (default: 32,128); most tokens with --truth or "
        "--no-ignore-eos (default: 1024)",
    )
    add_truth(command)
    command.add_argument("--retry-failed", action="store_true", help="measure failed cells again")
    add_settings(command, SHARED)
