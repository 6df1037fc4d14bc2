"""Exit codes, what a verb prints, and its ``--json`` output: plain values, exit code and reason."""

from __future__ import annotations

import argparse
import json
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

    from ocr_phases.results.run import PhaseRun


class Exit(IntEnum):
    """All exit codes but those of signals; docs/troubleshooting.md has them for users."""

    DONE = 0
    #: By a verb's own rule: `REASONS`.
    FAILED = 1
    #: Told in one sentence.
    ERROR = 2
    UNDECIDED = 3
    #: EX_SOFTWARE of sysexits.h; the traceback is on stderr.
    BUG = 70
    #: And the signal's number: 130 for Ctrl-C, 143 for SIGTERM.
    SIGNAL = 128
    #: Done, but nobody could read all that was printed: as a shell names the end by SIGPIPE.
    OUTPUT_LOST = 141


#: Why a verb that came to its end has another exit code than 0.
REASONS: dict[tuple[str, int], str] = {
    ("verify", Exit.FAILED): "a check failed",
    ("profile", Exit.FAILED): "it does not fit",
    ("compare", Exit.FAILED): "a limit is exceeded",
    ("compare", Exit.UNDECIDED): "a limit is undecided",
    ("sweep", Exit.FAILED): "no cell was measured",
    ("batch", Exit.FAILED): "a page or a report failed",
}


def as_json(arguments: argparse.Namespace, code: int, reason: str) -> str:
    """The verb's result with its exit code and the reason of it; docs/troubleshooting.md has the
    keys.
    """
    reason = reason or REASONS.get((arguments.verb, code), "done")
    return json.dumps(
        {"verb": arguments.verb, "exit_code": code, "exit_reason": reason, **arguments.result}
    )


def show(table: pd.DataFrame) -> None:
    """Print a table; what is missing stays empty."""
    from ocr_phases.show.terminal_table import table_text

    print(table_text(table))


def in_words(table: pd.DataFrame) -> pd.DataFrame:
    """A table with the headings and units that it has in a report, and stages by their titles."""
    from ocr_phases.show.html_table import column_heading
    from ocr_phases.stages import stage_title

    table = table.copy()
    if "stage" in table:
        table["stage"] = table["stage"].map(stage_title)
    headings = {}
    for name in table.columns:
        heading, unit = column_heading(str(name))
        if unit == "%":
            table[name] *= 100
        headings[name] = f"{heading} {unit}".strip()
    return table.rename(columns=headings)


def wrote(path: Path | str) -> str:
    """Say where a result is; the path as plain value."""
    print(f"Wrote {path}")
    return str(path)


def rows(table: pd.DataFrame) -> list[dict[str, Any]]:
    """A table's rows as plain JSON values; NaN becomes None."""
    return json.loads(table.to_json(orient="records", double_precision=15))


def show_quality(run: PhaseRun) -> None:
    """Print what the text lost, where the record has its truth."""
    if run.truths is not None:
        print()
        show(run.quality())


def run_result(run: PhaseRun) -> dict[str, Any]:
    """A run's headline, figures and verdict; ``quality`` where its page's truth is known.

    ``page`` is None where the prompt had no image.
    """
    from ocr_phases.analyse.checks import run_checks, with_verdict, worst_verdict
    from ocr_phases.analyse.quality import quality_of
    from ocr_phases.analyse.sentences import checks_verdict, headline

    checks = run_checks(run)
    result: dict[str, Any] = {
        "page": run.page.file if run.has_page else None,
        "headline": headline(run),
        "metrics": run.summary(),
    }
    if run.truths is not None:
        result["quality"] = quality_of(run)
    result["repeats"] = run.request.repeats
    result["checks"] = {
        "verdict": worst_verdict(checks),
        "sentence": checks_verdict(checks),
        "failed": [check.name for check in with_verdict(checks, "fail")],
        "noisy": [check.name for check in with_verdict(checks, "noisy")],
    }
    return result
