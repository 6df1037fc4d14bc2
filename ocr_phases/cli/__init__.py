"""The command line: a module a verb, each with ``SUMMARY``, ``USAGE``, ``run`` and ``add_options``.

Heavy imports wait until a verb runs, so that ``--help`` is immediate.
"""

from __future__ import annotations

import argparse
import atexit
import contextlib
import gc
import os
import re
import signal
import sys
import threading
from collections.abc import Iterator, Sequence

from ocr_phases.cli import artifacts, batch, compare, profile, report, sweep, verify
from ocr_phases.cli.results import as_json
from ocr_phases.errors import OcrPhasesError
from ocr_phases.plain_text import plain_streams
from ocr_phases.settings import Settings, setting_names
from ocr_phases.version import __version__

_CUT_OFF = 141  # as a shell names SIGPIPE's end


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return its exit code: 0 for success, 2 for an error (one sentence on stderr).

    1 means that a check of ``verify`` failed or a limit of ``compare`` is exceeded, 141 that the reader
    closed the output. A signal gives 128 plus its number: 130 for Ctrl-C.
    """
    atexit.register(gc.freeze)  # a process that ends need not look through all its objects for garbage
    with plain_streams(), _signals_stop():
        return _run(argv)


def _run(argv: Sequence[str] | None) -> int:
    try:
        arguments = _parser(sys.argv[1:] if argv is None else argv).parse_args(argv)
        arguments.stopped, arguments.result = 0, {}
        if not getattr(arguments, "json", False):
            code, _ = _outcome(arguments)
        else:
            with contextlib.redirect_stdout(sys.stderr):
                code, reason = _outcome(arguments)
            print(as_json(arguments, code, reason))
        sys.stdout.flush()
        return code
    except BrokenPipeError:  # the reader closed the pipe, as `head` does
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _CUT_OFF


def _outcome(arguments: argparse.Namespace) -> tuple[int, str]:
    """The verb's exit code, and the reason for an early end, printed on stderr too."""
    try:
        code, reason = arguments.run(arguments) or 0, ""
        if arguments.stopped:
            code, reason = 128 + arguments.stopped, "stopped: the result has the finished repeats only."
    except OcrPhasesError as error:
        code, reason = 2, _with_options(str(error), arguments)
    except ModuleNotFoundError as error:
        code, reason = 2, f"this needs {error.name}: pip install {error.name}"
    except KeyboardInterrupt as stop:
        code, reason = 128 + (stop.args or (signal.SIGINT,))[0], "stopped."
    if reason:
        with contextlib.suppress(OSError):  # after a hangup stderr is gone
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
    """A message of the package with settings named as this verb's options: ``--max-new-tokens 64``."""
    names = "|".join(vars(arguments))
    words = re.compile(rf"""(?<![\w/.-])({names})=(?:(True|False)|["']?([\w./:-]+)["']?)""")
    message = words.sub(_as_option, message)
    names = "|".join(name for name in setting_names(Settings) if name in vars(arguments))
    message = re.sub(rf"^({names})(?= is )", _as_option, message) if names else message
    names = "|".join(name for name in vars(arguments) if "_" in name)
    words = re.compile(rf"(?<![\w/.-])({names})(?![\w/=-]|\.\w)")
    return words.sub(_as_option, message) if names else message


def _as_option(found: re.Match[str]) -> str:
    name, switch, value = (*found.groups(), None, None)[:3]
    name = str(name).replace("_", "-")
    return f"--no-{name}" if switch == "False" else f"--{name} {value}" if value else f"--{name}"


def _parser(argv: Sequence[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="ocr-phases",
        description="Measure where DeepSeek-OCR spends its time on a page: prefill, vision stages, decode.",
    )
    parser.add_argument("--version", action="version", version=__version__)
    verbs = parser.add_subparsers(required=True, metavar="VERB")
    for verb in (report, batch, profile, verify, artifacts, compare, sweep):
        name = verb.__name__.rpartition(".")[2]
        command = verbs.add_parser(
            name, help=verb.SUMMARY, description=verb.run.__doc__, usage=f"ocr-phases {name} {verb.USAGE}"
        )
        command.set_defaults(verb=name, run=verb.run)
        if name in argv:  # building the options of every verb would slow --help down
            verb.add_options(command)
    return parser
