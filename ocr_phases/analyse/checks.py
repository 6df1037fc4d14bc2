"""The verification checklist: may the times of a record be believed, and is anything odd about
them?

What needs the live model was judged while measuring and is in the record; the rest follows from it
here. ``fail`` means that the measurement is broken; ``noisy`` that it is sound, but that the
machine was too busy for its figures to be trusted; ``note`` that something is worth knowing;
``n/a`` that this record cannot say. The checks themselves are in `ocr_phases.analyse.check_rules`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import pandas as pd

from ocr_phases.analyse.check_rules import NO_STEPS, RARE_RULES, RULES, Rule
from ocr_phases.analyse.expectations import EXPECTATIONS, Expectation, expectation_verdicts
from ocr_phases.analyse.figures import summary
from ocr_phases.analyse.noise import NOISE, Verdict
from ocr_phases.analyse.stages import cached
from ocr_phases.record import Record
from ocr_phases.record.parts import CheckPart

CHECK_COLUMNS = ("name", "verdict", "expected", "measured", "why", "fix")
_OF_STEPS = ("single_token_steps", "cache_reused", "mask_handed_over")


@cached
def run_checks(run: Record) -> list[Verdict]:
    """Run every check on a record of any kind and age: the rules, then the published expectations.

    The expectations are for a model of the published size on a GPU: other records have none.
    """
    return run_rules(run) + expectation_verdicts(run)


def run_rules(run: Record) -> list[Verdict]:
    """The checks that say whether a record may be believed, without the expectations."""
    live = {check.name: check for check in run.live_checks}
    checks = [_judge(run, rule, live.get(rule.name)) for rule in RULES.values()]
    for name, part in live.items():
        if name in RULES:
            continue
        rule = RARE_RULES.get(name)
        if rule is None:
            checks.append(_unknown_check(name, part))
        else:
            checks.append(_judge(run, rule, part))
    return checks


def _judge(run: Record, rule: Rule, live: CheckPart | None) -> Verdict:
    """What one rule says of a record, in which ``live`` is what was judged while measuring."""
    if rule.judge is not None:
        verdict = rule.judge(run)
    elif live is not None:
        verdict = _recorded(live)
    else:
        verdict = Verdict("n/a", _why_missing(run, rule.name))
    return _worded(run, rule, verdict)


def _recorded(part: CheckPart) -> Verdict:
    """A check as the record keeps it, without the texts of its rule."""
    return Verdict(part.verdict or "n/a", part.measured or "", expected=part.expected or "")


def _unknown_check(name: str, part: CheckPart) -> Verdict:
    """A check that another version of this package judged."""
    fix = "Measure again with this version of ocr_phases."
    return _recorded(part)._replace(name=name, fix=fix)


def _worded(run: Record, rule: Rule, verdict: Verdict) -> Verdict:
    """The verdict with the texts of its rule."""
    expected = verdict.expected
    if not expected:
        expected = rule.expected if isinstance(rule.expected, str) else rule.expected(run)
    return verdict._replace(
        name=rule.name, title=rule.title, expected=expected, why=rule.why, fix=rule.fix
    )


def noisy_checks(run: Record) -> list[Verdict]:
    """The checks that found the machine too busy to trust the figures."""
    checks = [_worded(run, RULES[name], judge(run)) for name, judge in NOISE.items()]
    return with_verdict(checks, "noisy")


def checks_table(run: Record) -> pd.DataFrame:
    """`run_checks` as a table, columns `CHECK_COLUMNS`."""
    return pd.DataFrame(run_checks(run))[list(CHECK_COLUMNS)]


def check_title(name: str) -> str:
    """The title of the check of this name; empty where this version has no such check."""
    tables: tuple[Mapping[str, Rule | Expectation], ...] = (RULES, RARE_RULES, EXPECTATIONS)
    for table in tables:
        if name in table:
            return table[name].title
    return ""


def with_verdict(checks: Iterable[Verdict], verdict: str) -> list[Verdict]:
    """The checks of one verdict: ``fail`` for what broke the measurement."""
    return [check for check in checks if check.verdict == verdict]


def worst_verdict(checks: Sequence[Verdict]) -> str:
    """The overall verdict: fail, noisy or pass."""
    for verdict in ("fail", "noisy"):
        if with_verdict(checks, verdict):
            return verdict
    return "pass"


def _why_missing(run: Record, name: str) -> str:
    """Why a record has no verdict of a check that is judged while measuring."""
    if name == "finite_logits" and run.model.implementation != "server":
        return "this record does not have it"  # any way of running has it
    if run.request.generate:
        return "a one-shot generate() run has no phases"
    if name == "parity":
        return "not requested: ocr-phases verify makes the comparison with generate()"
    if run.is_server:
        return "a server does not show it"
    if name in _OF_STEPS and not summary(run)["decode_steps"]:
        return NO_STEPS.measured
    if run.model.strategy != "eager":
        return f"{run.model.strategy} steps do not call the model's forward"
    return "this record does not have it"
