"""``ocr-phases verify``: the checklist, with the tokens against the model's own ``generate()``."""

from __future__ import annotations

import argparse

from ocr_phases.cli import measuring, published
from ocr_phases.cli.options import shows_saved
from ocr_phases.cli.results import Exit, rows, run_result, show_quality, wrote


def run(arguments: argparse.Namespace) -> int:
    """Measure a page and run all checks, or run them on an existing record or on published weights.

    Exit code 1 means that a check failed.
    """
    if arguments.published is not None:
        return published.run(arguments)
    is_saved = shows_saved(arguments, "record", arguments.page)
    from ocr_phases.analyse.checks import run_checks, with_verdict
    from ocr_phases.analyse.sentences import checks_verdict, headline
    from ocr_phases.files import check_names, output_folder
    from ocr_phases.report.render import verify_report
    from ocr_phases.report.result_files import VERIFICATION
    from ocr_phases.results.run import PhaseRun

    if arguments.save:
        measuring.check_target(arguments, arguments.record)
    if arguments.out:
        # What is replaced is named when it is written: the measurement may still be refused.
        check_names(
            output_folder(arguments.out),
            VERIFICATION,
            overwrite=arguments.overwrite,
            arguments=[arguments.page],
            record=arguments.record,
        )
    session = None
    if is_saved:
        record = PhaseRun.load(arguments.record)
    else:
        session = measuring.load_session(arguments)
        record = measuring.measure(arguments, session, verify=True)
    record = measuring.with_truth_and_price(arguments, record)
    target = None
    if arguments.save or arguments.stopped:  # what was stopped keeps its finished repeats
        target = measuring.save(arguments, record)
    checks = run_checks(record)
    for check in checks:
        print(f"{check.verdict:5} {check.label:29} {check.measured}")
        if check.verdict in ("fail", "noisy"):
            print(f"{'':6}expected: {check.expected}. {check.why} {check.fix}")
    show_quality(record)
    print()
    print(headline(record))
    print(checks_verdict(checks))
    result = run_result(record)
    result["rows"] = rows(record.checks[["name", "verdict", "measured", "expected"]])
    result["record"] = arguments.record if target is None else wrote(target)
    result["report"] = None
    arguments.result = result
    if arguments.out:
        report = verify_report(
            record,
            arguments.out,
            None if session is None else session.references(),
            overwrite=arguments.overwrite,
            record=arguments.record,
        )
        result["report"] = wrote(report)
    return Exit.FAILED if with_verdict(checks, "fail") else Exit.DONE
