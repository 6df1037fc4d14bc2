"""The checks of a record as sections of its report, and the code that they looked at."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

from ocr_phases.analyse.checks import run_checks
from ocr_phases.analyse.expectations import EXPECTATIONS
from ocr_phases.analyse.noise import Verdict
from ocr_phases.analyse.sentences import checks_verdict
from ocr_phases.record import Record
from ocr_phases.show.html_table import table_html
from ocr_phases.show.run_overview import head_html
from ocr_phases.show.section import Section
from ocr_phases.show.web import Html, badge, breakable_path, element, fold, fragment, note

_CHECKS = ["check", "verdict", "expected", "measured"]
_REFERENCES = ["what", "file", "line", "version", "symbol"]


def checks_section(run: Record) -> Section:
    """The verification checklist."""
    return Section(checks_html(run_checks(run)))


def checks_html(checks: Iterable[Verdict]) -> Html:
    """Checks as a table, each with its verdict, reason and remedy.

    Reason and remedy unfold; those of a failed or noisy check are unfolded from the start. The
    rules of thumb, which never fail, are folded below.
    """
    rules = []
    expectations = []
    for check in checks:
        if check.name in EXPECTATIONS:
            expectations.append(_check_row(check))
        else:
            rules.append(_check_row(check))
    shown = _check_table(rules, "Expected and measured value of each check")
    if not expectations:
        return shown
    usual = _check_table(expectations, "Usual and measured value")
    return shown + fold("Rules of thumb for the full model on a GPU", usual)


def _check_row(check: Verdict) -> tuple[str, Html, str, Html]:
    """The cells of a check: its name, verdict, and what was expected and measured."""
    advice: str | Html = ""
    if check.why:
        advice = fold(
            "reason and remedy",
            element("p", check.why),
            element("p", check.fix),
            opened=check.verdict in ("fail", "noisy"),
            classes="op-why",
        )
    label = check.label.removeprefix("expected ")
    measured = fragment(check.measured or "–", advice)
    return label, badge(check.verdict), check.expected or "–", measured


def _check_table(rows: Sequence[tuple[str, Html, str, Html]], caption: str) -> Html:
    table = pd.DataFrame(rows, columns=_CHECKS, dtype=object)
    return table_html(table, caption=caption, classes="op-checks")


def verification_section(run: Record) -> Section:
    """The head of a report on the checks alone."""
    title = f"Verification: {run.page_file}"
    return Section(head_html(run, title, [checks_verdict(run_checks(run))]))


def references_section(rows: Sequence[Mapping[str, Any]] | None) -> Section:
    """Where the measured code stands: a row for each function, with its file and line.

    ``rows`` are None for a loaded record, which does not hold them.
    """
    if rows is None:
        sentence = "Records do not contain source lines; verify shows them when it measures."
        return Section(note(sentence))
    table = pd.DataFrame(rows, columns=_REFERENCES).astype({"line": "Int64"})
    for column in ("file", "symbol"):
        table[column] = [breakable_path(str(path)) for path in table[column]]
    caption = "Source lines of the measured code"
    return Section(table_html(table, caption=caption, classes="op-paths"))
