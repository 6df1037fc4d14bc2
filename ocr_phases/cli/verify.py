"""``ocr-phases verify``: the checklist, with the tokens against the model's own ``generate()``."""

from __future__ import annotations

import argparse
from typing import Any

from ocr_phases.cli import measuring
from ocr_phases.cli.options import shows_saved
from ocr_phases.cli.results import Exit, rows, run_result, show_quality, wrote


def run(arguments: argparse.Namespace) -> int:
    """Run all checks on a page (or an existing record). Exit code 1: a check failed."""
    saved = shows_saved(arguments, "record", arguments.page)
    from ocr_phases.analyse.checks import run_checks, with_verdict
    from ocr_phases.analyse.sentences import checks_verdict, headline
    from ocr_phases.files import check_names, output_folder
    from ocr_phases.report.render import verify_report
    from ocr_phases.report.result_files import VERIFICATION
    from ocr_phases.results.run import PhaseRun

    if arguments.save:
        measuring.check_target(arguments, arguments.record)
    options: dict[str, Any] = {"overwrite": arguments.overwrite, "record": arguments.record}
    if arguments.out:
        # What is replaced is named when it is written: the measurement may still be refused.
        check_names(
            output_folder(arguments.out), VERIFICATION, arguments=[arguments.page], **options
        )
    session = None if saved else measuring.load_session(arguments)
    record = (
        PhaseRun.load(arguments.record)
        if saved
        else measuring.measure(arguments, session, verify=True)
    )
    record = measuring.judged(arguments, record)
    # What was stopped keeps its finished repeats.
    target = measuring.save(arguments, record) if arguments.save or arguments.stopped else None
    checks = run_checks(record)
    for check in checks:
        print(f"{check.verdict:5} {check.label:29} {check.measured}")
        if check.verdict in ("fail", "noisy"):
            print(f"{'':6}expected: {check.expected}. {check.why} {check.fix}")
    show_quality(record)
    print(f"\n{headline(record)}\n{checks_verdict(checks)}")
    told = rows(record.checks[["name", "verdict", "measured", "expected"]])
    path = wrote(target) if target else arguments.record
    arguments.result = {**run_result(record), "rows": told, "record": path, "report": None}
    if arguments.out:
        references = None if session is None else session.references()
        arguments.result["report"] = wrote(
            verify_report(record, arguments.out, references, **options)
        )
    return Exit.FAILED if with_verdict(checks, "fail") else Exit.DONE
