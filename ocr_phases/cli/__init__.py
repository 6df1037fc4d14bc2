"""The command line: a module a verb, each with ``run``; `arguments` has its options.

Heavy imports wait until a verb runs, so that ``--help`` is immediate. `results.Exit` has the exit
codes.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import gc
import os
import signal
import sys
import time
import traceback
from collections.abc import Sequence

from ocr_phases.cli import (
    artifacts,
    batch,
    compare,
    html,
    notebooks,
    profile,
    report,
    sweep,
    verify,
)
from ocr_phases.cli.arguments import VERB_OPTIONS, add_options
from ocr_phases.cli.options import OptionSpelling, Parser
from ocr_phases.cli.refusals import refuse_idle
from ocr_phases.cli.results import Exit, as_json
from ocr_phases.errors import OcrPhasesError, stop_signals
from ocr_phases.text import plain_streams
from ocr_phases.versions import __version__

_AT_ONCE = 1.0  # seconds, in which a signal says nothing new: a closing terminal sends two

_DESCRIPTION = (
    "Measure where DeepSeek-OCR spends its time on a page: prefill, vision stages, decode."
)

VERBS = (report, batch, profile, verify, artifacts, compare, sweep, notebooks, html)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return its exit code, one of `results.Exit`."""
    # A process that ends need not look through all its objects for garbage: a report of a record
    # takes 3.08 s of CPU time, and 3.61 s without this (medians of 5 alternating pairs).
    atexit.register(gc.freeze)
    os.environ["MPLBACKEND"] = "agg"  # matplotlib cannot be imported with a wrong one
    if (
        "_ARGCOMPLETE" in os.environ
    ):  # the shell asks for completions, which argcomplete then prints
        _complete(os.environ.get("COMP_LINE", "").split())
    words = sys.argv[1:] if argv is None else list(argv)
    stopped = -_AT_ONCE

    def stop(number: int, _: object) -> None:
        nonlocal stopped
        before, stopped = stopped, time.monotonic()
        if stopped - before >= _AT_ONCE:
            raise KeyboardInterrupt(number)

    try:
        with plain_streams() as out, stop_signals(stop):
            code = _run(words)
            out.flush()
    except KeyboardInterrupt as again:  # a second signal, or one before a verb runs
        return _stopped_by(again)
    return code or (Exit.OUTPUT_LOST if out.failed else Exit.DONE)


def _stopped_by(stop: KeyboardInterrupt) -> int:
    return Exit.SIGNAL + (stop.args or (signal.SIGINT,))[0]


def _run(words: list[str]) -> int:
    verb = next((word for word in words if not word.startswith("-")), None)
    arguments = argparse.Namespace(verb=verb, stopped=0, result={})
    told = "--json" in words
    with contextlib.redirect_stdout(sys.stderr if told else sys.stdout):
        code, reason = _outcome(words, arguments)
    if told:
        print(as_json(arguments, code, reason))
    return code


def _outcome(words: list[str], arguments: argparse.Namespace) -> tuple[int, str]:
    """The verb's exit code, and the reason for an early end, printed on stderr too."""
    code, reason = int(Exit.DONE), ""
    try:
        _parser(words).parse_args(words, arguments)
        refuse_idle(arguments)
        code = arguments.run(arguments) or code
        if arguments.stopped:
            code = Exit.SIGNAL + arguments.stopped
            reason = "stopped: the result has the finished repeats only."
    except SystemExit:  # --help or --version has been printed
        pass
    except KeyboardInterrupt as stop:
        code, reason = _stopped_by(stop), "stopped."
    except OcrPhasesError as error:
        code, reason = Exit.ERROR, error.sentence(OptionSpelling(vars(arguments)))
    except ModuleNotFoundError as error:
        code, reason = Exit.ERROR, f"this needs {error.name}: pip install ocr_phases {error.name}"
    except Exception as error:  # noqa: BLE001
        code, reason = _unforeseen(error)
    if reason:
        print(f"ocr-phases: {reason}", file=sys.stderr)
    return code, reason


def _unforeseen(error: Exception) -> tuple[int, str]:
    """The exit code and the sentence of any other error; a bug's traceback is printed."""
    if isinstance(error, OSError) and error.filename:  # such as a name of 300 characters
        return Exit.ERROR, f"{error.filename} cannot be used ({error.strerror}): name another one."
    traceback.print_exception(error)
    return (
        Exit.BUG,
        f"this is a bug of ocr_phases, please report it: {type(error).__name__}: {error}",
    )


def _complete(words: Sequence[str]) -> None:
    """Tell the shell what may follow these words, and end; do nothing without argcomplete."""
    try:
        import argcomplete
    except ImportError:
        return
    argcomplete.autocomplete(_parser(words))


def _parser(words: Sequence[str]) -> Parser:
    parser = Parser(prog="ocr-phases", description=_DESCRIPTION, allow_abbrev=False)
    parser.add_argument("--version", action="version", version=__version__)
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    for verb in VERBS:
        name = verb.__name__.rpartition(".")[2]
        command = verbs.add_parser(
            name,
            usage=f"ocr-phases {name} [options] {VERB_OPTIONS[name].usage}",
            help=VERB_OPTIONS[name].help,
            description=verb.run.__doc__,
            allow_abbrev=False,
        )
        command.set_defaults(verb=name, run=verb.run)
        if name in words:  # building the options of every verb would slow --help down
            add_options(command, name)
    return parser
