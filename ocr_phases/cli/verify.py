"""``ocr-phases verify``: the checklist, with the tokens against the model's own ``generate()``."""

from __future__ import annotations

import argparse
from typing import Any

from ocr_phases.cli import measuring
from ocr_phases.cli.options import EVERY, shows_saved
from ocr_phases.cli.results import Exit, run_result, wrote


def run(arguments: argparse.Namespace) -> int:
    """Run all checks on a page (or an existing record). Exit code 1: a check failed."""
    saved_run = shows_saved(arguments, "record", arguments.page, EVERY)
    from ocr_phases.analyse.checks import run_checks, with_verdict
    from ocr_phases.analyse.sentences import checks_verdict, headline
    from ocr_phases.files import folder_for
    from ocr_phases.record import PhaseRun
    from ocr_phases.report.artifacts import VERIFICATION
    from ocr_phases.report.render import verify_report

    recorded = PhaseRun.load(arguments.record) if saved_run else None
    if arguments.save:
        measuring.check_target(arguments, arguments.record)
    options: dict[str, Any] = {"overwrite": arguments.overwrite, "record": arguments.record}
    if arguments.out:
        folder_for(arguments.out, "", VERIFICATION, arguments=[arguments.page], **options)
    session = None if saved_run else measuring.load_session(arguments)
    record = measuring.measure(arguments, session, verify=True) if recorded is None else recorded
    # What was stopped keeps its finished repeats.
    saved = measuring.save(arguments, record) if arguments.save or arguments.stopped else None
    checks = run_checks(record)
    for check in checks:
        print(f"{check.verdict:5} {check.label:29} {check.measured}")
        if check.verdict in ("fail", "noisy"):
            print(f"{'':6}expected: {check.expected}. {check.why} {check.fix}")
    print(f"\n{headline(record)}\n{checks_verdict(checks)}")
    names = ("name", "verdict", "measured", "expected")
    arguments.result = {
        **run_result(record),
        "rows": [{name: getattr(check, name) for name in names} for check in checks],
        "record": wrote(saved) if saved else arguments.record,
        "report": None,
    }
    if arguments.out:
        references = None if session is None else session.references()
        arguments.result["report"] = wrote(verify_report(record, arguments.out, references, **options))
    return Exit.FAILED if with_verdict(checks, "fail") else Exit.DONE
