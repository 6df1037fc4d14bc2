"""The command line: ``report``, ``profile``, ``verify``, ``artifacts`` and those of `commands` and `batch`.

Heavy imports wait until a verb needs them, so that ``--help`` is immediate.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ocr_phases.batch.command import add_batch_options, run_batch
from ocr_phases.commands import compare, sweep
from ocr_phases.commands.measure_options import add_kernel_options, add_measure_options, measure_parameters
from ocr_phases.commands.results import add_json_option, as_json
from ocr_phases.errors import OcrPhasesError
from ocr_phases.files import split_page
from ocr_phases.plain_text import plain_streams
from ocr_phases.version import __version__

if TYPE_CHECKING:
    from ocr_phases.measure.session import DeepSeekOCRSession
    from ocr_phases.record import PhaseRun


_CUT_OFF = 141  # as a shell names SIGPIPE's end


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; 0 when it did its work, 2 (with one sentence on stderr) when it could not.

    ``verify`` answers 1 where a check failed, ``compare`` where a limit was asked for and passed; 141 is the
    answer where nobody reads the output to its end, and a signal that stops the verb is answered with 128 and
    its number: 130 for Ctrl-C.
    """
    with plain_streams(), _signals_stop():
        return _run(argv)


def _run(argv: Sequence[str] | None) -> int:
    try:
        arguments = _parser().parse_args(argv)
        arguments.stopped, arguments.result = 0, {}
        if not getattr(arguments, "json", False):
            code, _ = _outcome(arguments)
        else:
            with contextlib.redirect_stdout(sys.stderr):
                code, reason = _outcome(arguments)
            print(as_json(arguments, code, reason))
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # whoever reads the output has seen enough, as `head` has
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _CUT_OFF


def _outcome(arguments: argparse.Namespace) -> tuple[int, str]:
    """The verb's exit code, and where it did not come to its own end the reason, told on stderr as well."""
    try:
        code, reason = arguments.verb(arguments) or 0, ""
        if arguments.stopped:
            code, reason = 128 + arguments.stopped, "stopped: this is of the repeats that were finished."
    except OcrPhasesError as error:
        code, reason = 2, _with_options(str(error), arguments)
    except ModuleNotFoundError as error:
        code, reason = 2, f"this needs {error.name}: pip install {error.name}"
    except KeyboardInterrupt as stop:
        code, reason = 128 + (stop.args or (signal.SIGINT,))[0], "stopped."
    if reason:
        with contextlib.suppress(OSError):  # after a hangup there is nobody to tell
            print(f"ocr-phases: {reason}", file=sys.stderr)
    return code, reason


@contextlib.contextmanager
def _signals_stop() -> Iterator[None]:
    """SIGTERM and SIGHUP stop a verb as Ctrl-C does; one that is ignored (nohup) or handled stays so."""

    def stop(number: int, _: object) -> None:
        raise KeyboardInterrupt(number)

    found = [number for number in signal.Signals if number.name in ("SIGTERM", "SIGHUP")]
    main_thread = threading.current_thread() is threading.main_thread()
    taken = [number for number in found if main_thread and signal.getsignal(number) == signal.SIG_DFL]
    for number in taken:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)


def _with_options(message: str, arguments: argparse.Namespace) -> str:
    """A message of the package with settings named as this verb's options: ``--max-new-tokens``."""
    names = [name for name in vars(arguments) if "_" in name]
    words = re.compile(rf"(?<![\w/.-])({'|'.join(names)})(?![\w/=-]|\.\w)")
    return words.sub(lambda found: f"--{found[0].replace('_', '-')}", message) if names else message


def report(arguments: argparse.Namespace) -> None:
    """One HTML report a page (or of an existing record), with its record, notebook and artifacts."""
    if bool(arguments.record) == bool(arguments.pages):
        raise OcrPhasesError("Name the pages to measure, or one --record to show: one of the two.")
    from ocr_phases.record import PhaseRun
    from ocr_phases.report.progress import watching
    from ocr_phases.report.render import report_page

    # A wrong page or record is told before anything slow starts.
    for page in arguments.pages:
        _look_at(page, arguments)
    shown = PhaseRun.load(arguments.record) if arguments.record else None
    jobs = _folders(arguments.pages, arguments.out) if arguments.pages else {None: arguments.out}
    for page, folder in jobs.items():
        if page is None:
            parameters = {"record": str(Path(arguments.record).resolve())}
        else:
            name, number = split_page(page)
            parameters = {"page": str(Path(name).resolve()) + number, **measure_parameters(arguments)}
            parameters |= {"kernels": arguments.kernels or arguments.trace, "trace": arguments.trace}
        with watching(arguments.warmup, arguments.max_new_tokens) as watch:
            written = report_page(folder, parameters, show_code=arguments.show_code, watch=watch)
        run = shown or PhaseRun.load(written["run.json"])
        print(f"{_summary(run)}\nWrote {written['report.html']}")
        arguments.stopped = watch.asked
        if arguments.stopped:
            return


def batch(arguments: argparse.Namespace) -> int:
    """Measure many pages: a record and a report each, an index and tables; exit code 1 where a page failed.

    The same command goes on where one was stopped.
    """
    return run_batch(arguments, measure_parameters(arguments))


def profile(arguments: argparse.Namespace) -> None:
    """Measure a page, or repeat a record's measurement, print a summary and save the record."""
    from ocr_phases.analyse.headline import key_figures_text, subject, verdict
    from ocr_phases.analyse.kernels import has_kernels
    from ocr_phases.analyse.summary import shown_stages, stage_table
    from ocr_phases.commands.overwriting import free_name
    from ocr_phases.commands.results import run_result
    from ocr_phases.commands.tables import print_kernels, print_then_and_now
    from ocr_phases.files import TRACE_NAME, output_file, save_or_rescue

    target = output_file(arguments.save or free_name("run.json"))
    then = _recorded(arguments, target)
    _check_overwriting(arguments, target, then)
    kernels: dict[str, Any] = {"kernels": arguments.kernels or arguments.trace}
    if arguments.trace:
        kernels["kernel_trace"] = target.with_name(TRACE_NAME)
    run = _measure(arguments, **kernels) if then is None else _repeat(arguments, then, **kernels)
    save_or_rescue(run.save, target)
    if then is not None:
        print_then_and_now(then, run)
    print(shown_stages(stage_table(run)).to_string(index=False, float_format="{:.3f}".format, na_rep=""))
    if has_kernels(run):
        print_kernels(run)
    arguments.result = {**run_result(run), "record": str(target)}
    print(f"\n{subject(run)}\n{key_figures_text(run)}\n\n{verdict(run)}")
    print(f"{arguments.result['checks']['sentence']}\nWrote {target}")


def verify(arguments: argparse.Namespace) -> int:
    """Run the verification checklist on a page (or an existing record); exit code 1 where a check fails."""
    if bool(arguments.record) == bool(arguments.page):
        raise OcrPhasesError("Name the page to measure, or one --record to check: one of the two.")
    from ocr_phases.analyse.checks import checks_verdict, failed, run_checks
    from ocr_phases.analyse.headline import headline
    from ocr_phases.commands.overwriting import free_name
    from ocr_phases.commands.results import run_result
    from ocr_phases.files import output_file, output_folder, save_or_rescue
    from ocr_phases.record import PhaseRun
    from ocr_phases.report.render import verify_report

    recorded = PhaseRun.load(arguments.record) if arguments.record else None
    if arguments.save:
        _check_overwriting(arguments, output_file(arguments.save), recorded)
    if arguments.out:
        output_folder(arguments.out)
    session = None if recorded is not None else _session(arguments)
    run = recorded if recorded is not None else _measure(arguments, session, verify=True)
    saved = arguments.save
    if arguments.stopped and not saved:  # as much of a measurement as there is
        saved = str(free_name("run.json"))
    if saved:
        save_or_rescue(run.save, saved)
    checks = run_checks(run)
    for check in checks:
        print(f"{check.verdict:5} {check.name.replace('_', ' '):29} {check.measured}")
        if check.verdict in ("fail", "noisy"):
            print(f"{'':6}expected: {check.expected}. {check.why} {check.fix}")
    names = ("name", "verdict", "measured", "expected")
    arguments.result = {
        **run_result(run),
        "rows": [{name: getattr(check, name) for name in names} for check in checks],
        "record": saved or arguments.record,
        "report": None,
    }
    print(f"\n{headline(run)}\n{checks_verdict(checks)}")
    if saved:
        print(f"Wrote {saved}")
    if arguments.out:
        references = None if session is None else session.references()
        arguments.result["report"] = str(verify_report(arguments.out, run, references))
        print(f"Wrote {arguments.result['report']}")
    return 1 if failed(checks) else 0


def artifacts(arguments: argparse.Namespace) -> None:
    """Write what the model read (result.mmd, crops, the page with boxes) from a record."""
    from ocr_phases.files import output_folder
    from ocr_phases.record import PhaseRun
    from ocr_phases.report.artifacts import write_artifacts

    run = PhaseRun.load(arguments.record)
    if run.text is None:
        raise OcrPhasesError(f"{arguments.record} keeps no text: measure again with return_text=True.")
    folder = output_folder(arguments.out)
    for row, result in enumerate(run.results):
        # A batch gets a folder a row, with the row's first page.
        target = folder if len(run.results) == 1 else folder / f"row-{row}"
        number = next(number for number, page in enumerate(run.pages) if page["row"] == row)
        for path in write_artifacts(target, run.page_image(number), result["text"]):
            print(path.relative_to(folder))
    print(f"Wrote {folder}")


def _look_at(page: str, arguments: argparse.Namespace) -> None:
    """A page that cannot be read is an `OcrPhasesError`; one whose type is too small is told on stderr."""
    from ocr_phases.measure.inputs.images import load_page, unnamed_pages
    from ocr_phases.measure.inputs.type_size import type_warning

    image, _, name = load_page(page)
    if others := unnamed_pages(page):
        print(others, file=sys.stderr)
    if warning := type_warning(image, arguments.model, arguments.preset):
        print(f"{name}: {warning}", file=sys.stderr)


def _session(arguments: argparse.Namespace) -> DeepSeekOCRSession:
    # A wrong page or model is told before anything slow starts.
    _look_at(arguments.page, arguments)
    from ocr_phases.measure.session import DeepSeekOCRSession

    return DeepSeekOCRSession.load(arguments.model, device=arguments.device, dtype=arguments.dtype)


def _measure(
    arguments: argparse.Namespace, session: DeepSeekOCRSession | None = None, **options: Any
) -> PhaseRun:
    session = session or _session(arguments)
    parameters = measure_parameters(arguments)
    for name in ("model", "device", "dtype"):  # the session's
        del parameters[name]
    with _watched(arguments, arguments.warmup, arguments.max_new_tokens) as callbacks:
        return session.run_inference(arguments.page, **parameters, **options, **callbacks)


@contextlib.contextmanager
def _watched(arguments: argparse.Namespace, warmup: int, tokens_a_run: int) -> Iterator[dict[str, Any]]:
    """The callbacks of a measurement that is shown and can be stopped."""
    from ocr_phases.report.progress import watching

    with watching(warmup, tokens_a_run) as watch:
        yield {"progress": watch.progress, "on_tokens": watch.on_tokens}
    arguments.stopped = watch.asked


def _summary(run: PhaseRun) -> str:
    """The headline and what the checks say."""
    from ocr_phases.analyse.checks import checks_verdict, run_checks
    from ocr_phases.analyse.headline import headline

    return f"{headline(run)}\n{checks_verdict(run_checks(run))}"


def _check_overwriting(arguments: argparse.Namespace, target: Path, then: PhaseRun | None = None) -> None:
    """A file that is no record of what is to be measured (``then`` again, or as asked) is left alone."""
    from ocr_phases.commands.overwriting import what_is_lost

    if not arguments.overwrite and (lost := what_is_lost(arguments, target, then)):
        raise OcrPhasesError(f"{target} {lost}: name another file (--save), or give --overwrite.")


def _recorded(arguments: argparse.Namespace, target: Path) -> PhaseRun | None:
    """The record to repeat, and that nothing asked for contradicts it; None where there is none."""
    from ocr_phases.record import PhaseRun

    if arguments.repeated is None:
        if arguments.page is None:
            raise OcrPhasesError("Name the page to measure, or a record to repeat (--from).")
        return None
    own = [f"--{name.replace('_', '-')}" for name in arguments.asked if name not in ("model", "device")]
    if own:
        raise OcrPhasesError(f"The record says how to measure: drop {', '.join(own)}, or drop --from.")
    if target.exists() and target.samefile(arguments.repeated):
        raise OcrPhasesError(f"{target} is the record to repeat: name another file for the new one (--save).")
    return PhaseRun.load(arguments.repeated)


def _repeat(arguments: argparse.Namespace, then: PhaseRun, **options: Any) -> PhaseRun:
    from ocr_phases.measure.rerun import recorded_pages, repeat_run

    recorded_pages(then, arguments.page)
    model = arguments.model if "model" in arguments.asked else None
    with _watched(arguments, then.request["warmup"], then.request["max_new_tokens"]) as callbacks:
        options |= {"ceilings": arguments.ceilings, **callbacks}
        return repeat_run(then, page=arguments.page, model=model, device=arguments.device, **options)


def _folders(pages: Sequence[str], out: Path) -> dict[str | None, Path]:
    """A folder for each page, named like it; a number is added where two pages share a name."""
    folders: dict[str | None, Path] = {}
    for page in pages:
        name, number = split_page(page)
        stem = Path(name).stem + number.replace("#", "-")
        folder, count = out / stem, 2
        while folder in folders.values():
            folder, count = out / f"{stem}-{count}", count + 1
        folders[page] = folder
    return folders


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ocr-phases",
        description="Measure where DeepSeek-OCR spends its time on a page: prefill, vision stages, decode.",
    )
    parser.add_argument("--version", action="version", version=__version__)
    verbs = parser.add_subparsers(required=True, metavar="VERB")

    command = _verb(verbs, "report", report, "one self-contained HTML report a page")
    command.add_argument("pages", nargs="*", metavar="PAGE", help="image, file.pdf#3 or file.tif#3")
    command.add_argument("--record", help="show this run.json instead of measuring")
    command.add_argument(
        "--out", type=Path, default=Path("ocr_phases_out"), help="output folder (default: %(default)s)"
    )
    command.add_argument("--show-code", action="store_true", help="keep the notebook's code in the report")
    add_measure_options(command)
    add_kernel_options(command)

    command = _verb(verbs, "batch", batch, "many pages, several devices, one index; goes on after a stop")
    add_batch_options(command)
    add_json_option(command)
    add_measure_options(command)

    command = _verb(verbs, "profile", profile, "measure a page, print a summary, save its record")
    command.add_argument("page", nargs="?", metavar="PAGE", help="image, file.pdf#3 or file.tif#3")
    command.add_argument("--save", help="where the record goes (default: run.json, or run-2.json and so on)")
    _add_record_options(command)
    command.add_argument(
        "--from", dest="repeated", metavar="RUN.json", help="repeat this record's measurement and compare"
    )
    add_measure_options(command)
    add_kernel_options(command)

    command = _verb(verbs, "verify", verify, "check that what is timed is what the model does")
    command.add_argument("page", nargs="?", metavar="PAGE", help="image, file.pdf#3 or file.tif#3")
    command.add_argument("--record", help="check this run.json instead of measuring")
    command.add_argument("--save", help="where the record goes (default: nowhere)")
    _add_record_options(command)
    command.add_argument("--out", type=Path, help="folder for verify.html as well (default: none)")
    add_measure_options(command)

    command = _verb(verbs, "artifacts", artifacts, "write text, crops and boxes from a record")
    command.add_argument("record", metavar="RUN.json")
    command.add_argument(
        "--out", type=Path, default=Path("ocr_phases_out"), help="output folder (default: %(default)s)"
    )
    for module in (compare, sweep):
        module.add_verb(verbs)
    return parser


def _verb(
    verbs: Any, name: str, action: Callable[[argparse.Namespace], int | None], summary: str
) -> argparse.ArgumentParser:
    command = verbs.add_parser(name, help=summary, description=(action.__doc__ or "").strip())
    command.set_defaults(verb=action)
    return command


def _add_record_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("--overwrite", action="store_true", help="also a record of something else")
    add_json_option(command)


if __name__ == "__main__":
    sys.exit(main())
