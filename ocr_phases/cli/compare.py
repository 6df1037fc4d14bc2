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
#: What a reader of the table in a terminal needs besides: a report has it above its figures.
_LEGEND = (
    "So a ratio need not be that of the two medians. The smallest resolved change is the smallest "
    "one that so many repeats could show. Only the figures of the next sentence, the KV cache and "
    "the text get a verdict."
)


@seldom_collected()
def run(arguments: argparse.Namespace) -> int:
    """Compare records with a baseline, which is the first one, and write an HTML page.

    With --baseline, compare one new record with earlier ones in a folder. With --fail-above, exit
    code 1 means that a figure is proven to be worse, and 3 that this is undecided.
    """
    from ocr_phases.analyse.comparison import run_labels
    from ocr_phases.files import folder_for
    from ocr_phases.report.live import LiveObjects
    from ocr_phases.report.render import write_report
    from ocr_phases.results.baseline import Baseline
    from ocr_phases.results.comparison import Comparison
    from ocr_phases.results.run import PhaseRun

    limit = arguments.fail_above
    paths = [arguments.base, *arguments.records]
    runs = [PhaseRun.load(path) for path in paths]
    baseline = None
    if arguments.baseline is not None:
        new = runs[0]
        baseline = Baseline.newest(
            arguments.baseline, new, last=arguments.last, path=Path(arguments.base)
        )
        print(f"{baseline}\n")
        arguments.result = {"baseline": [str(path) for path in baseline.paths]}
        if not baseline.runs:
            return Exit.DONE if limit is None else Exit.UNDECIDED
        paths = [str(baseline.paths[0]), arguments.base]
        runs = [baseline.runs[0], new]
    compared = Comparison(runs, run_labels(runs, paths), margin=arguments.margin)
    labels = compared.labels
    judged = None
    if limit is not None and baseline is not None:
        judged = baseline.against_limit(runs[1], limit, arguments.metric).assign(run=labels[1])
    elif limit is not None:
        judged = compared.against_limit(limit, arguments.metric)
    folder = folder_for(
        arguments.out,
        FOLDER,
        r"compare\.(ipynb|html)",
        overwrite=arguments.overwrite,
        arguments=paths,
    )
    print_compared(compared, compared.table)
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
        overwrite=arguments.overwrite,
    )
    print()
    arguments.result["headline"] = compared.verdict
    arguments.result["rows"] = rows(compared.table)
    arguments.result["judged"] = None
    arguments.result["differs"] = rows(compared.differs)
    arguments.result["report"] = wrote(written)
    if judged is None:
        return Exit.DONE
    arguments.result["judged"] = rows(judged[["run", "metric", "outcome"]])
    _print_beyond_limit(judged, limit)
    return _exit_code(judged)


def print_compared(compared: Comparison, table: pd.DataFrame) -> None:
    """Print figures of a comparison, its verdict, and what else differs."""
    from ocr_phases.analyse.comparison import in_units
    from ocr_phases.analyse.comparison_words import STATISTICS

    shown = in_units(table, compared.labels[0])
    shown["detectable"] *= 100
    show(shown.rename(columns={"detectable": "smallest resolved change %"}))
    print(f"{STATISTICS} {_LEGEND}", "", *compared.findings, sep="\n")
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


def _print_beyond_limit(judged: pd.DataFrame, percent: float) -> None:
    """Print the figures that are not within the limit of ``--fail-above``."""
    for _, row in judged[judged["outcome"] != "within"].iterrows():
        print(f"{row['run']}: {row['metric']} is {_judgement(row, percent)}")


def _judgement(row: pd.Series, percent: float) -> str:
    """What is said of a figure that is not within the limit: it is worse, or undecided and why."""
    from ocr_phases.analyse.compared_metrics import NOISY
    from ocr_phases.analyse.figure_rows import SHARE

    is_undecided = row["outcome"] == "undecided"
    if row["unit"] == SHARE:
        if is_undecided:
            return "undecided: the texts differ, and how much is n/a"
        before = percent_text(row["baseline"])
        after = percent_text(row["other"])
        return f"worse by more than {percent:g} points: {before} -> {after}"
    ratio = f"ratio {row['ratio']:.3f} ({row['ratio_low']:.3f} to {row['ratio_high']:.3f})"
    if row["verdict"] == NOISY:
        return f"undecided: {ratio}, but the runs varied too much; measure again on a quiet machine"
    if is_undecided:
        return (
            f"undecided: the interval of {ratio} contains the limit of {percent:g} %; "
            "measure more repeats on a quiet machine"
        )
    return f"worse by more than {percent:g} %: {ratio}"


def _exit_code(judged: pd.DataFrame) -> int:
    """The exit code of what was judged; a figure that is worse counts before one undecided."""
    outcomes = set(judged["outcome"])
    if "worse" in outcomes:
        return Exit.FAILED
    if "undecided" in outcomes:
        return Exit.UNDECIDED
    return Exit.DONE
