"""What stands above the tabs: the record's headline, its phases and the verdict of its checks."""

from __future__ import annotations

from ocr_phases.analyse.checks import run_checks, worst_verdict
from ocr_phases.analyse.sentences import account, checks_verdict, headline, subject
from ocr_phases.record import PhaseRun
from ocr_phases.show import html
from ocr_phases.show.blocks import Html, element, fold, fragment, status_line, title_block


def head_html(run: PhaseRun) -> Html:
    """As a report begins, with the findings folded and no picture, which the tab Page has."""
    checks = run_checks(run)
    status = status_line(worst_verdict(checks), checks_verdict(checks))
    found = fold("Findings", element("p", account(run)), classes="op op-why")
    below = fragment(Html(html.phase_bar(run)), status, found)
    return title_block(html.run_title(run), [subject(run)], headline=headline(run), below=below)
