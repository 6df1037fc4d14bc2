"""``ocr-phases compare``: records against a baseline, on the terminal and as one HTML file."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ocr_phases.cli.results import Exit, rows, show, wrote
from ocr_phases.text import percent_text
from ocr_phases.versions import seldom_collected

if TYPE_CHECKING:
    import pandas as pd

    from ocr_phases.results.comparison import Comparison

FOLDER = "ocr_phases_compare"


@seldom_collected()
def run(arguments: argparse.Namespace) -> int:
    """Compare records with the first one, or one with the newest like it of a folder.

    With --fail-above, exit code 1: a slowdown, 3: undecided.
    """
    from ocr_phases.analyse.comparison import run_labels
    from ocr_phases.files import folder_for
    from ocr_phases.report.live import LiveObjects
    from ocr_phases.report.render import write_report
    from ocr_phases.results.baseline import Baseline
    from ocr_phases.results.comparison import Comparison
    from ocr_phases.results.run import PhaseRun

    limit, overwrite = arguments.fail_above, arguments.overwrite
    paths = [arguments.base, *arguments.records]
    runs = [PhaseRun.load(path) for path in paths]
    baseline = None
    if arguments.baseline is not None:
        new, file = runs[0], Path(arguments.base)
        baseline = Baseline.newest(arguments.baseline, new, last=arguments.last, path=file)
        print(f"{baseline}\n")
        arguments.result = {"baseline": [str(path) for path in baseline.paths]}
        if not baseline.runs:
            return Exit.DONE if limit is None else Exit.UNDECIDED
        paths = [str(baseline.paths[0]), arguments.base]
        runs = [baseline.runs[0], new]
    compared = Comparison(runs, run_labels(runs, paths), margin=arguments.margin)
    table, labels = compared.table, compared.labels
    judged = None
    if limit is not None:
        judged = compared.against_limit(limit, arguments.metric)
        if baseline is not None:
            judged = baseline.against_limit(runs[1], limit, arguments.metric).assign(run=labels[1])
    folder = folder_for(
        arguments.out, FOLDER, r"compare\.(ipynb|html)", overwrite=overwrite, arguments=paths
    )
    print_compared(compared, table)
    if arguments.kernels:
        print_kernels(compared)
    parameters = {
        "records": [str(Path(path).resolve()) for path in paths],
        "margin": arguments.margin,
    }
    title = f"{', '.join(labels[1:])} against {labels[0]} – ocr_phases"
    written = write_report(
        "compare_runs",
        folder,
        "compare",
        parameters,
        objects=LiveObjects(runs=runs),
        title=title,
        overwrite=overwrite,
    )
    print()
    outcomes = None if judged is None else rows(judged[["run", "metric", "outcome"]])
    told = {
        **arguments.result,
        "headline": compared.verdict,
        "rows": rows(table),
        "judged": outcomes,
    }
    arguments.result = {**told, "differs": rows(compared.differs), "report": wrote(written)}
    return Exit.DONE if judged is None else _judged(judged, limit)


def print_compared(compared: Comparison, table: pd.DataFrame) -> None:
    """Print figures of a comparison, its verdict, and what else differs."""
    from ocr_phases.analyse.comparison import in_units
    from ocr_phases.analyse.comparison_words import STATISTICS

    show(in_units(table, compared.labels[0]))
    print(STATISTICS, "", *compared.findings, sep="\n")
    if compared.has_server:
        print("\nWhere the time until the first token goes:")
        show(compared.first_token)
    for _, row in compared.differs.iterrows():
        print(f"Differs: {row['part']} {row['name']}: {' -> '.join(row[2:])}")


def print_kernels(compared: Comparison) -> None:
    """Print the kernel tables side by side, under a number for each record."""
    from ocr_phases.analyse.kernels import compared_kernels

    numbers = []
    print("\nKernels of each stage; of decode, for one step:")
    for number, label in enumerate(compared.labels, start=1):
        print(f"({number}) {label}")
        numbers.append(f"({number})")
    show(compared_kernels(compared.runs, numbers))


def _judged(judged: pd.DataFrame, percent: float) -> int:
    """Print the figures beyond the limit and the undecided ones; returns the exit code."""
    from ocr_phases.analyse.compared_metrics import NOISY
    from ocr_phases.analyse.figure_rows import SHARE

    for _, row in judged[judged["outcome"] != "within"].iterrows():
        span = f"ratio {row['ratio']:.3f} ({row['ratio_low']:.3f} to {row['ratio_high']:.3f})"
        said = f"worse by more than {percent:g} %: {span}"
        if row["unit"] == SHARE and row["outcome"] == "undecided":
            said = "undecided: the texts differ, and how much is n/a"
        elif row["unit"] == SHARE:
            then, now = (percent_text(row[side]) for side in ("baseline", "other"))
            said = f"worse by more than {percent:g} points: {then} -> {now}"
        elif row["verdict"] == NOISY:
            said = (
                f"undecided: {span}, but the runs varied too much; measure again on a quiet machine"
            )
        elif row["outcome"] == "undecided":
            said = f"undecided: the interval of {span} contains the limit of {percent:g} %"
            said += "; measure more repeats on a quiet machine"
        print(f"{row['run']}: {row['metric']} is {said}")
    outcomes = set(judged["outcome"])
    return (
        Exit.FAILED
        if "worse" in outcomes
        else Exit.UNDECIDED
        if "undecided" in outcomes
        else Exit.DONE
    )
