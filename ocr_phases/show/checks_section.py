"""The checks of a record as sections of its report, and the code that they looked at."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from ocr_phases.analyse.checks import EXPECTATIONS, Verdict, run_checks
from ocr_phases.analyse.sentences import checks_verdict
from ocr_phases.record import Record
from ocr_phases.show.html_table import table_html
from ocr_phases.show.run_overview import head_html
from ocr_phases.show.section import Section
from ocr_phases.show.web import Html, badge, element, fold, fragment, note

_CHECKS = ["check", "verdict", "expected", "measured"]
_CHECK_CAPTIONS = "Expected and measured value of each check", "Usual and measured value"
_REFERENCES = ["what", "file", "line", "version", "symbol"]


def checks_section(run: Record) -> Section:
    """The verification checklist."""
    return Section(checks_html(run_checks(run)))


def checks_html(checks: Iterable[Verdict]) -> Html:
    """Checks as a table, verdicts in words and colour, with foldable reason and remedy.

    Reason and remedy of a failed or noisy check are unfolded. The expectations, which never fail,
    are folded below.
    """
    rows: dict[bool, list[object]] = {False: [], True: []}
    for check in checks:
        reasons, usual = (
            (element("p", check.why), element("p", check.fix)),
            check.name in EXPECTATIONS,
        )
        urgent = check.verdict in ("fail", "noisy")
        advice = (
            fold("reason and remedy", *reasons, opened=urgent, classes="op-why")
            if check.why
            else ""
        )
        label, measured = (
            check.label.removeprefix("expected "),
            fragment(check.measured or "–", advice),
        )
        rows[usual].append((label, badge(check.verdict), check.expected or "–", measured))
    rules, expected = (
        table_html(
            pd.DataFrame(some, columns=_CHECKS, dtype=object), caption=caption, classes="op-checks"
        )
        for some, caption in zip(rows.values(), _CHECK_CAPTIONS, strict=True)
    )
    return (
        rules + fold("Rules of thumb for the full model on a GPU", expected)
        if rows[True]
        else rules
    )


def verification_section(run: Record) -> Section:
    """The head of a report on the checks alone."""
    return Section(
        head_html(run, f"Verification: {run.page.file}", [checks_verdict(run_checks(run))])
    )


def references_section(rows: Sequence[Mapping[str, Any]] | None) -> Section:
    """Source lines of the measured code; None if unknown, as for a loaded record."""
    if rows is None:
        return Section(
            note("Records do not contain source lines; verify shows them when it measures.")
        )
    table = pd.DataFrame(rows, columns=_REFERENCES).astype({"line": "Int64"})
    return Section(
        table_html(table, caption="Source lines of the measured code", classes="op-paths")
    )
