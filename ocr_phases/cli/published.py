"""``ocr-phases verify --published``: every check on the published weights, as one file to share."""

from __future__ import annotations

import argparse
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from ocr_phases.cli import measuring
from ocr_phases.cli.results import Exit, wrote
from ocr_phases.errors import OcrPhasesError
from ocr_phases.families import FAMILIES
from ocr_phases.settings import is_address

if TYPE_CHECKING:
    from ocr_phases.analyse.published import PageOutcome, Setup
    from ocr_phases.results.run import PhaseRun
    from ocr_phases.session.session import OCRSession

#: Maximum number of new tokens of a page: several times what the sample pages need.
_TOKENS = 1024

_FOLDER = "ocr_phases_published"
_JSON = "published_weights.json"
_MARKDOWN = "published_weights.md"
#: A regular expression of the files that are written.
_FILES = r"published_weights\.(json|md)|records(/[a-z]+\.json)?"


def run(arguments: argparse.Namespace) -> int:
    """Measure the sample pages with the weights that ``--published`` names, and write the file.

    It is written again after each page, and the page's record beside it, so that a page that fails,
    or a stop, loses nothing that was measured before. The exit code is 1 where a check failed or a
    page could not be measured.
    """
    from ocr_phases.analyse.published import (
        SAMPLE_PAGES,
        failed_page,
        measured_page,
        page_line,
    )
    from ocr_phases.files import check_names, folder_for
    from ocr_phases.versions import asset

    arguments.model = arguments.published
    if arguments.max_new_tokens is None:
        arguments.max_new_tokens = _TOKENS
    pages = [asset("data", "pages", name) for name in SAMPLE_PAGES]
    if arguments.out:
        check_names(arguments.out, _FILES, overwrite=arguments.overwrite)
    session = _load(arguments, pages)
    folder = folder_for(arguments.out, _FOLDER, _FILES, overwrite=arguments.overwrite)
    setup = _setup_of_session(session)
    outcomes: list[PageOutcome] = []
    for page in pages:
        record: PhaseRun | None = None
        try:
            measured = measuring.measure(arguments, session, str(page), verify=True)
            record = measured.with_truth(page.with_suffix(".json"))
        except Exception as error:  # noqa: BLE001  (whatever it is, the other pages are measured)
            outcome = failed_page(page.name, _reason(error))
            print(f"{page.name}: not measured: {outcome.error}")
        else:
            if all(each.error for each in outcomes):  # it is the first page with a record
                setup = _setup_of_record(record)
            outcome = measured_page(record, page.name, stopped=bool(arguments.stopped))
            print(page_line(record, page.name))
        outcomes.append(outcome)
        _write(folder, setup, record, outcomes, overwrite=arguments.overwrite)
        arguments.result = _result(folder, outcomes)
        if arguments.stopped:
            break
    if any(outcome.error for outcome in outcomes) and not arguments.stopped:
        # Instead of the verb's own reason, which is that a check failed.
        arguments.result["exit_reason"] = "a page could not be measured"
    wrote(folder / _JSON)
    wrote(folder / _MARKDOWN)
    print(
        f'Please attach {_JSON} to an issue of the kind "Published weights" in the repository of '
        "ocr_phases. It has no paths and no names of users or hosts; the records in records/ have "
        "the model's folder and stay with you."
    )
    return Exit.FAILED if _has_failed(outcomes) else Exit.DONE


def _load(arguments: argparse.Namespace, pages: list[Path]) -> OCRSession:
    """The session on the weights; `OcrPhasesError` for a model of no family that is known."""
    if is_address(arguments.published):
        raise OcrPhasesError(
            "--published loads weights here, and a server has its own: verify its tokens with "
            "--server."
        )
    session = cast("OCRSession", measuring.load_session(arguments, [str(page) for page in pages]))
    if session.family.name not in FAMILIES:
        known = ", ".join(facts.title for facts in FAMILIES.values())
        raise OcrPhasesError(
            f"--published is for the weights of {known}: verify another model with "
            f"ocr-phases verify PAGE --model {arguments.published}."
        )
    return session


def _reason(error: Exception) -> str:
    """Why a page could not be measured, in one sentence; what nobody foresaw is printed, too."""
    from ocr_phases.measure.verdicts import one_sentence

    if not isinstance(error, OcrPhasesError):
        traceback.print_exception(error, file=sys.stderr)
    return one_sentence(error)


def _setup_of_session(session: OCRSession) -> Setup:
    """When, with which model and versions and where the pages are measured.

    It is known before the first page, so that a report can be written whenever it stops.
    """
    # Imported here, because the command line loads torch only for verbs that measure.
    from ocr_phases.analyse.published import Setup
    from ocr_phases.collectors.machine import describe_device, now, versions
    from ocr_phases.measure.loaded_model import describe_model
    from ocr_phases.record.parts import DevicePart, make_part

    return Setup(
        created=now(),
        model=describe_model(session.checkpoint),
        versions=versions(),
        device=make_part(DevicePart, describe_device(session.device)),
    )


def _setup_of_record(record: PhaseRun) -> Setup:
    """The same as a record has it: with the strategies that ran and the rates of the device."""
    from ocr_phases.analyse.published import Setup

    return Setup(record.created, record.model, record.versions, record.device)


def _write(
    folder: Path,
    setup: Setup,
    record: PhaseRun | None,
    outcomes: list[PageOutcome],
    *,
    overwrite: bool,
) -> None:
    """Write what is known so far: the file, the same for a reader, and the last page's record.

    The records of the pages before it are written already and stay. After the first page, the
    records that an earlier output left in the folder are removed.
    """
    from ocr_phases.analyse.published import report_json, report_markdown, weights_report
    from ocr_phases.files import only_writer, write_into

    report = weights_report(setup, outcomes)
    files = {_JSON: report_json(report), _MARKDOWN: report_markdown(report).encode()}
    if record is not None:
        files[f"records/{Path(record.page.file).stem}.json"] = record.to_json()
    is_first_page = len(outcomes) == 1
    stale = _FILES if is_first_page else ""
    with only_writer(folder):
        write_into(folder, files, overwrite=overwrite, stale=stale)


def _has_failed(outcomes: list[PageOutcome]) -> bool:
    """Whether a page could not be measured, or a check of one failed."""
    for outcome in outcomes:
        if outcome.error or any(check.verdict == "fail" for check in outcome.checks):
            return True
    return False


def _result(folder: Path, outcomes: list[PageOutcome]) -> dict[str, Any]:
    """What ``--json`` prints: the file, and what came of each page."""
    import msgspec

    return {
        "published": str(folder / _JSON),
        "pages": [msgspec.to_builtins(outcome) for outcome in outcomes],
    }
