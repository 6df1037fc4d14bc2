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
import sys
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import NamedTuple

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
from ocr_phases.cli.options import OptionSpelling, Parser, given_options
from ocr_phases.cli.refusals import refuse_idle
from ocr_phases.cli.results import Exit, as_json
from ocr_phases.errors import Interrupted, OcrPhasesError, signal_of, stop_signals
from ocr_phases.text import plain_streams
from ocr_phases.versions import __version__

#: Seconds within which a second signal says nothing new: a closing terminal sends two.
_ONE_SIGNAL_SECONDS = 1.0
#: Seconds after which it is looked again whether an import has ended.
_IMPORT_PAUSE_SECONDS = 0.01

_DESCRIPTION = (
    "Measure how long a document vision-language model such as DeepSeek-OCR takes to read a page: "
    "the prefill with the vision encoders, and each decode step."
)
_EPILOG = (
    "A first try, which needs no GPU and no download: ocr-phases report page.png. Without --model "
    "a small built-in model is measured. 'ocr-phases VERB --help' has the options of a verb, and "
    "the folder docs of the repository has the documentation."
)

VERBS = (report, batch, profile, verify, artifacts, compare, sweep, notebooks, html)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return its exit code, one of `results.Exit`."""
    # A process that ends need not look through all its objects for garbage: a report of a record
    # takes 3.08 s of CPU time, and 3.61 s without this (medians of 5 alternating pairs).
    atexit.register(gc.freeze)
    os.environ["MPLBACKEND"] = "agg"  # matplotlib cannot be imported with a wrong one
    if "_ARGCOMPLETE" in os.environ:  # the shell asks what may follow
        _complete(os.environ.get("COMP_LINE", "").split())
    words = sys.argv[1:] if argv is None else list(argv)
    stop = _StopSignals()
    try:
        with plain_streams() as out, stop_signals(stop):
            try:
                code = _run(words)
            finally:
                stop.ended = True
            out.flush()
    except KeyboardInterrupt as signal_received:  # a second one, or one before a verb runs
        return _code_of_signal(signal_received)
    if code == Exit.DONE and out.failed:
        return Exit.OUTPUT_LOST
    return code


class _StopSignals:
    """What a command does with the signals that end it: it raises `KeyboardInterrupt`.

    A module that is imported meanwhile is imported first. An exception in the middle of an import
    is lost where the import has another way out, and some modules of C make an ImportError of it,
    or end the process. A second signal does not wait.
    """

    def __init__(self) -> None:
        #: Whether there is no command any more that a signal could end.
        self.ended = False
        self._last = -_ONE_SIGNAL_SECONDS
        self._waits_for_import = False

    def __call__(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        is_new = now - self._last >= _ONE_SIGNAL_SECONDS
        self._last = now
        if not is_new:
            return
        if self._waits_for_import or not _is_importing(frame):
            raise KeyboardInterrupt(number)
        self._waits_for_import = True
        threading.Thread(target=self._send_after_import, args=(number,), daemon=True).start()

    def _send_after_import(self, number: int) -> None:
        """Send the signal once more when the main thread has imported what it imports."""
        main_thread = threading.main_thread().ident or 0
        while _is_importing(sys._current_frames().get(main_thread)):
            time.sleep(_IMPORT_PAUSE_SECONDS)
        if not self.ended:
            self._last = -_ONE_SIGNAL_SECONDS
            os.kill(os.getpid(), number)


def _is_importing(frame: FrameType | None) -> bool:
    """Whether the command is importing a module where this frame runs."""
    while frame is not None and frame.f_code is not main.__code__:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            return True
        frame = frame.f_back
    return False


def _code_of_signal(interrupt: KeyboardInterrupt) -> int:
    """The exit code of a command that a signal ended."""
    return Exit.SIGNAL + signal_of(interrupt)


def _run(words: list[str]) -> int:
    """Run the verb, and print its result where ``--json`` asks for it."""
    verbs = [word for word in words if not word.startswith("-")]
    verb = verbs[0] if verbs else None
    arguments = argparse.Namespace(verb=verb, stopped=0, result={})
    prints_json = "--json" in given_options(words)
    with contextlib.redirect_stdout(sys.stderr if prints_json else sys.stdout):
        end = _run_verb(words, arguments)
    if end.reason:
        print(f"ocr-phases: {end.reason}", file=sys.stderr)
    if prints_json:
        print(as_json(arguments, end.code, end.reason))
    return end.code


class _End(NamedTuple):
    """How a verb ended: its exit code, and the reason where it did not come to its end."""

    code: int
    reason: str = ""


def _run_verb(words: list[str], arguments: argparse.Namespace) -> _End:
    """Read the command line into ``arguments`` and do what it asks for."""
    try:
        _parser(words).parse_args(words, arguments)
        refuse_idle(arguments)
        with _without_iri_syntax():
            code = arguments.run(arguments)
    except SystemExit:  # --help or --version has been printed
        return _End(Exit.DONE)
    except KeyboardInterrupt as interrupt:
        return _End(_code_of_signal(interrupt), _stop_reason(interrupt, arguments))
    except OcrPhasesError as error:
        return _End(Exit.ERROR, error.sentence(OptionSpelling.of_command(arguments)))
    except ModuleNotFoundError as error:
        return _End(Exit.ERROR, f"this needs {error.name}: pip install ocr_phases {error.name}")
    except OSError as error:
        if error.filename:  # such as a name of 300 characters
            reason = f"{error.filename} cannot be used ({error.strerror}): name another one."
            return _End(Exit.ERROR, reason)
        return _bug(error)
    except Exception as error:  # noqa: BLE001  (whatever it is, a user gets one sentence)
        return _bug(error)
    if arguments.stopped:
        # Of `sweep` only a load test comes here: the cells of a sweep are in its folder.
        finished = "levels" if arguments.verb == "sweep" else "repeats"
        reason = f"stopped: the result has the finished {finished} only."
        return _End(Exit.SIGNAL + arguments.stopped, reason)
    if code is None:  # most verbs have one way to end
        code = Exit.DONE
    return _End(code)


def _stop_reason(interrupt: KeyboardInterrupt, arguments: argparse.Namespace) -> str:
    """What a stopped command leaves behind, in one sentence."""
    given = vars(arguments)
    is_sweep = arguments.verb == "sweep" and not given.get("server") and not given.get("records")
    if arguments.verb == "batch" or is_sweep:
        return "stopped: the same command goes on where this one stopped."
    if isinstance(interrupt, Interrupted):
        return "stopped before a repeat was finished, so there is no record."
    return "stopped."


@contextlib.contextmanager
def _without_iri_syntax() -> Iterator[None]:
    """In a ``with`` block the package ``rfc3987_syntax`` cannot be imported, as if it was missing.

    JupyterLab installs it for jsonschema, which then checks the format ``iri``. No notebook has
    such an entry, but papermill imports nbformat, and that jsonschema, and the package compiles 39
    grammars when it is imported. Without it the import of papermill takes 0.67 s of CPU time, and
    2.30 s with it (medians of 8 alternating pairs of processes on a busy machine, 0.30 times as
    long).
    """
    name = "rfc3987_syntax"
    if name in sys.modules:
        yield
        return
    sys.modules[name] = None  # type: ignore[assignment]  # so an import raises, says Python
    try:
        yield
    finally:
        sys.modules.pop(name, None)


def _bug(error: Exception) -> _End:
    """An error that nobody foresaw; its traceback is printed."""
    traceback.print_exception(error)
    kind = type(error).__name__
    return _End(Exit.BUG, f"this is a bug of ocr_phases, please report it: {kind}: {error}")


def _complete(words: Sequence[str]) -> None:
    """Tell the shell what may follow these words, and end; do nothing without argcomplete."""
    try:
        import argcomplete
    except ImportError:
        return
    argcomplete.autocomplete(_parser(words))


def _parser(words: Sequence[str]) -> Parser:
    """The parser of all verbs, with the options of those among ``words``."""
    parser = Parser(prog="ocr-phases", description=_DESCRIPTION, epilog=_EPILOG, allow_abbrev=False)
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
