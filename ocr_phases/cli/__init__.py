"""The command line: a module a verb, each with ``SUMMARY``, ``USAGE``, ``run`` and ``add_options``.

Heavy imports wait until a verb runs, so that ``--help`` is immediate.

Exit codes: 0 done; 1 a check of ``verify`` failed, a limit of ``compare`` is exceeded, a page or report of
``batch`` failed, or ``sweep`` measured no cell; 2 an error, told in one sentence; 3 a limit of ``compare`` is
undecided; 70 a bug, its traceback on stderr; 128 + N stopped by signal N (130 Ctrl-C, 143 SIGTERM); 141 done,
but what was printed is lost: its reader closed it, or its disk is full.
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
import traceback
from collections.abc import Sequence

from ocr_phases.cli import artifacts, batch, compare, profile, report, sweep, verify
from ocr_phases.cli.options import Parser
from ocr_phases.cli.results import as_json
from ocr_phases.errors import OcrPhasesError, signals_to
from ocr_phases.settings import Settings, setting_names
from ocr_phases.text import plain_streams
from ocr_phases.versions import __version__

_OUTPUT_FAILED = 141  # as a shell names SIGPIPE's end
_BUG = 70  # EX_SOFTWARE of sysexits.h


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb and return its exit code, one of the table above."""
    atexit.register(gc.freeze)  # a process that ends need not look through all its objects for garbage
    os.environ["MPLBACKEND"] = "agg"  # matplotlib cannot be imported with a wrong one
    words = sys.argv[1:] if argv is None else list(argv)
    try:
        with plain_streams() as out, signals_to(_stop):
            code = _run(words)
            out.flush()
    except KeyboardInterrupt as stop:  # a second signal, or one before a verb runs
        return 128 + (stop.args or (signal.SIGINT,))[0]
    return code or (_OUTPUT_FAILED if out.failed else 0)


def _stop(number: int, _: object) -> None:
    raise KeyboardInterrupt(number)


def _run(words: list[str]) -> int:
    verb = next((word for word in words if not word.startswith("-")), None)
    arguments = argparse.Namespace(verb=verb, stopped=0, result={})
    if "--json" not in words:
        return _outcome(words, arguments)[0]
    with contextlib.redirect_stdout(sys.stderr):
        code, reason = _outcome(words, arguments)
    print(as_json(arguments, code, reason))
    return code


def _outcome(words: list[str], arguments: argparse.Namespace) -> tuple[int, str]:
    """The verb's exit code, and the reason for an early end, printed on stderr too."""
    try:
        _parser(words).parse_args(words, arguments)
        code, reason = arguments.run(arguments) or 0, ""
        if arguments.stopped:
            code, reason = 128 + arguments.stopped, "stopped: the result has the finished repeats only."
    except SystemExit:  # --help or --version has been printed
        code, reason = 0, ""
    except OcrPhasesError as error:
        code, reason = 2, _with_options(str(error), arguments)
    except ModuleNotFoundError as error:
        code, reason = 2, f"this needs {error.name}: pip install {error.name}"
    except KeyboardInterrupt as stop:
        code, reason = 128 + (stop.args or (signal.SIGINT,))[0], "stopped."
    except Exception as error:  # noqa: BLE001  (told with its traceback)
        if isinstance(error, OSError) and error.filename:  # such as a name of 300 characters
            code, reason = 2, f"{error.filename} cannot be used ({error.strerror}): name another one."
        else:
            traceback.print_exc()
            name = type(error).__name__
            code, reason = _BUG, f"this is a bug of ocr_phases, please report it: {name}: {error}"
    if reason:
        print(f"ocr-phases: {reason}", file=sys.stderr)
    return code, reason


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


def _parser(words: Sequence[str]) -> Parser:
    parser = Parser(
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
        command.add_argument(
            "--json", action="store_true", help="print one JSON object on stdout, everything else on stderr"
        )
        if name in words:  # building the options of every verb would slow --help down
            verb.add_options(command)
    return parser
