"""``ocr-phases compare``: records against a base, on the terminal and as one HTML file."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ocr_phases.cli.options import add_out, number
from ocr_phases.cli.results import rows
from ocr_phases.errors import OcrPhasesError
from ocr_phases.text import percent_text
from ocr_phases.versions import seldom_collected

if TYPE_CHECKING:
    import pandas as pd

SUMMARY = "compare records; can fail a CI job"
USAGE = "[options] A.json B.json ..."
#: The exit code if an interval contains the --fail-above limit.
UNDECIDED = 3
FOLDER = "ocr_phases_compare"


@seldom_collected()
def run(arguments: argparse.Namespace) -> int:
    """Compare records with the first one. With --fail-above, exit code 1: a slowdown, 3: undecided."""
    from ocr_phases.analyse.compare import Compared, against_limit, in_units
    from ocr_phases.analyse.environments import run_labels
    from ocr_phases.files import folder_for
    from ocr_phases.record import PhaseRun
    from ocr_phases.report.render import write_report

    if arguments.metric and arguments.fail_above is None:
        raise OcrPhasesError("--metric selects what --fail-above judges: give both.")
    paths = [arguments.base, *arguments.records]
    runs = [PhaseRun.load(path) for path in paths]
    compared = Compared(runs, run_labels(runs, paths), margin=arguments.margin)
    table, labels = compared.table, compared.labels
    judged = None
    if arguments.fail_above is not None:
        judged = against_limit(table, arguments.fail_above, arguments.metric)
    overwrite = arguments.overwrite
    names = r"compare\.(ipynb|html)"
    folder = folder_for(arguments.out, FOLDER, names, overwrite=overwrite, arguments=paths)

    print(in_units(table).to_string(index=False, float_format="{:,.3f}".format, na_rep=""))
    print(f"\n{compared.verdict}")
    for _, row in compared.differs.iterrows():
        print(f"Differs: {row['part']} {row['name']}: {' -> '.join(row[2:])}")
    parameters = {"records": [str(Path(path).resolve()) for path in paths], "margin": arguments.margin}
    title = f"{', '.join(labels[1:])} against {labels[0]} – ocr_phases"
    given = {"runs": runs}
    written = write_report("compare_runs", folder, "compare", parameters, given, title, overwrite)
    print(f"\nWrote {written}")
    arguments.result = {
        "headline": compared.verdict,
        "rows": rows(table.drop(columns="metric").assign(metric=in_units(table)["metric"])),
        "judged": None if judged is None else rows(judged[["run", "metric", "outcome"]]),
        "differs": rows(compared.differs),
        "report": str(written),
    }
    return 0 if judged is None else _judged(judged, arguments.fail_above)


def _judged(judged: pd.DataFrame, percent: float) -> int:
    """Print the figures beyond the limit and the undecided ones; returns the exit code."""
    from ocr_phases.analyse.compare_text import SHARE

    for _, row in judged[judged["outcome"] != "within"].iterrows():
        span = f"{row['ratio']:.3f} ({row['ratio_low']:.3f} to {row['ratio_high']:.3f})"
        if row["unit"] == SHARE:
            then, now = (percent_text(row[side]) for side in ("base", "other"))
            print(f"{row['run']}: {row['metric']} is worse by more than {percent:g} points: {then} -> {now}")
        elif row["outcome"] == "worse":
            print(f"{row['run']}: {row['metric']} is worse by more than {percent:g} %: ratio {span}")
        else:
            print(
                f"{row['run']}: {row['metric']} is undecided: the interval of ratio {span} contains the "
                f"limit of {percent:g} %; measure more repeats on a quiet machine"
            )
    outcomes = set(judged["outcome"])
    return 1 if "worse" in outcomes else UNDECIDED if "undecided" in outcomes else 0


def add_options(command: argparse.ArgumentParser) -> None:
    """The options of ``compare``."""
    command.add_argument("base", metavar="A.json", help="the record to compare with")
    command.add_argument("records", nargs="+", metavar="B.json", help="records compared with it")
    add_out(command, FOLDER)
    command.add_argument(
        "--fail-above",
        type=number(float, 0),
        metavar="PCT",
        help="exit code 1 if the whole 95 %% interval of a slowdown is above this limit, 3 if the interval "
        "contains it; of a measure of the text, points",
    )
    command.add_argument(
        "--margin",
        type=number(float, 0),
        default=2.0,
        metavar="PCT",
        help="equivalent: the whole interval is within this many per cent (default: %(default)s)",
    )
    command.add_argument(
        "--metric",
        action="append",
        default=[],
        metavar="NAME",
        help="figure that --fail-above judges, such as ttft_ms, prefill/sam/global or cer; can be repeated "
        "(default: prefill_ms, inter_token_ms, generate_ms)",
    )
