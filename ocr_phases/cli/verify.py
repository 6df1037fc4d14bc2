"""``ocr-phases verify``: the checklist, with the tokens against the model's own ``generate()``."""

from __future__ import annotations

import argparse
from pathlib import Path

from ocr_phases.cli import measuring
from ocr_phases.cli.options import EVERY, add_overwrite, add_page, add_settings, shows_saved
from ocr_phases.cli.results import run_result

SUMMARY = "check that the measurement is sound"
USAGE = "[options] PAGE | --record RUN.json"


def run(arguments: argparse.Namespace) -> int:
    """Run all checks on a page (or an existing record). Exit code 1: a check failed."""
    saved_run = shows_saved(arguments, "record", arguments.page, EVERY)
    from ocr_phases.analyse.checks import checks_verdict, failed, run_checks
    from ocr_phases.analyse.headline import headline
    from ocr_phases.files import folder_for
    from ocr_phases.record import PhaseRun
    from ocr_phases.report.artifacts import VERIFICATION
    from ocr_phases.report.render import verify_report

    recorded = PhaseRun.load(arguments.record) if saved_run else None
    if arguments.save:
        measuring.check_target(arguments, arguments.record)
    if arguments.out:
        options = {"overwrite": arguments.overwrite, "record": arguments.record}
        folder_for(arguments.out, "", VERIFICATION, arguments=[arguments.page], **options)
    session = None if recorded is not None else measuring.load_session(arguments)
    record = recorded if recorded is not None else measuring.measure(arguments, session, verify=True)
    # What was stopped keeps its finished repeats.
    saved = str(measuring.save(arguments, record)) if arguments.save or arguments.stopped else None
    checks = run_checks(record)
    for check in checks:
        print(f"{check.verdict:5} {check.name.replace('_', ' '):29} {check.measured}")
        if check.verdict in ("fail", "noisy"):
            print(f"{'':6}expected: {check.expected}. {check.why} {check.fix}")
    names = ("name", "verdict", "measured", "expected")
    arguments.result = {
        **run_result(record),
        "rows": [{name: getattr(check, name) for name in names} for check in checks],
        "record": saved or arguments.record,
        "report": None,
    }
    print(f"\n{headline(record)}\n{checks_verdict(checks)}")
    if saved:
        print(f"Wrote {saved}")
    if arguments.out:
        references = None if session is None else session.references()
        arguments.result["report"] = str(verify_report(record, arguments.out, references, **options))
        print(f"Wrote {arguments.result['report']}")
    return 1 if failed(checks) else 0


def add_options(command: argparse.ArgumentParser) -> None:
    """The options of ``verify``."""
    add_page(command)
    command.add_argument("--record", help="check this run.json instead of measuring")
    command.add_argument("--save", help="file for the record (default: none)")
    add_overwrite(command)
    command.add_argument("--out", type=Path, help="folder for verify.html (default: none)")
    add_settings(command, [name for name in EVERY if name not in ("generate", "verify")])
