"""A verb's ``--json`` output: plain values, exit code and reason."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

    from ocr_phases.record import PhaseRun

_REASONS = {
    ("verify", 1): "a check failed",
    ("compare", 1): "a limit is exceeded",
    ("compare", 3): "a limit is undecided",
    ("sweep", 1): "no cell was measured",
    ("batch", 1): "a page or a report failed",
}


def as_json(arguments: argparse.Namespace, code: int, reason: str) -> str:
    """The verb's result with its exit code and the reason of it; docs/troubleshooting.md has the keys."""
    verb = arguments.verb
    reason = reason or _REASONS.get((verb, code), "done")
    return json.dumps({"verb": verb, "exit_code": code, "exit_reason": reason, **arguments.result})


def rows(table: pd.DataFrame) -> list[dict[str, Any]]:
    """A table's rows as plain JSON values; NaN becomes None."""
    return json.loads(table.to_json(orient="records", double_precision=15))


def run_result(run: PhaseRun) -> dict[str, Any]:
    """A run's headline, figures and verdict."""
    import pandas as pd

    from ocr_phases.analyse.checks import checks_verdict, failed, noisy, run_checks, worst_verdict
    from ocr_phases.analyse.headline import headline

    checks = run_checks(run)
    return {
        "page": run.page["file"],
        "headline": headline(run),
        "metrics": rows(pd.DataFrame([run.summary()]))[0],
        "repeats": run.request["repeats"],
        "checks": {
            "verdict": worst_verdict(checks),
            "sentence": checks_verdict(checks),
            "failed": [check.name for check in failed(checks)],
            "noisy": [check.name for check in noisy(checks)],
        },
    }
