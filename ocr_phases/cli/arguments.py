"""What each verb takes on the command line: its own options, then one for each of its settings."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

from ocr_phases.cli.options import (
    SETTINGS,
    card_list,
    model_list,
    name_list,
    number,
    number_list,
)
from ocr_phases.families import PRESET_NAMES
from ocr_phases.settings import ModelSettings, RunSettings, full_help_text, kind

_PAGE_HELP = "image, file.pdf#3, or several as file.pdf#1-8; TIFF frames likewise"
_PRESETS = ", ".join(PRESET_NAMES)
_COUNT = number(int, 0)
_PERCENT = number(float, 0)
_SECONDS = number(float, 0.001)
#: How argparse reads a setting of each kind.
_KINDS: dict[str, dict[str, Any]] = {
    "bool": {"action": argparse.BooleanOptionalAction},
    "int": {"type": int, "metavar": "N"},
    "float": {"type": float, "metavar": "X"},
    "str": {"metavar": "TEXT"},
}


def _add_report(command: argparse.ArgumentParser) -> None:
    _add_output(command)
    _add_server(command)
    _add_truth(command)
    _add_served_model(command)
    _add_trace(command)
    _add_show_text(command)
    _add_no_image(command)
    _add_out(command, "report")
    command.add_argument("pages", nargs="*", metavar="PAGE", help=_PAGE_HELP)
    command.add_argument("--record", help="show this run.json instead of measuring")
    command.add_argument(
        "--show-code", action="store_true", help="keep the notebook's code in the report"
    )


def _add_batch(command: argparse.ArgumentParser) -> None:
    _add_output(command)
    _add_server(command)
    _add_truth(command)
    command.add_argument(
        "--out",
        type=Path,
        default="ocr_phases_batch",
        metavar="DIR",
        help="output folder; a batch that is there is resumed (default: %(default)s)",
    )
    command.add_argument(
        "pages",
        nargs="*",
        metavar="PAGES",
        help="files, folders, globs, or a list (.csv, .jsonl) of pages",
    )
    command.add_argument(
        "--presets",
        type=name_list,
        default=[],
        metavar="LIST",
        help=f"measure every page at each of these presets, instead of --preset: {_PRESETS}",
    )
    command.add_argument(
        "--render",
        choices=["during", "after", "none", "only"],
        help="make each report during the measurement, in the worker that holds the model; make "
        "all after it, without a GPU; make none; or make only the missing reports of a measured "
        "batch (default: during; with --truth: after)",
    )
    command.add_argument(
        "--documents",
        type=Path,
        metavar="DIR",
        help="also write each PDF as one document: its text with the pages apart, and a PDF of its "
        "pages with their boxes",
    )
    command.add_argument(
        "--predictions",
        type=Path,
        metavar="DIR",
        help="also write each page's text as NAME.md, for OmniDocBench's evaluator",
    )
    command.add_argument(
        "--retries",
        type=_COUNT,
        default=1,
        metavar="N",
        help="retries per page (default: %(default)s)",
    )
    command.add_argument(
        "--timeout",
        type=_SECONDS,
        default=1800.0,
        metavar="S",
        help="maximum time per page, in seconds (default: %(default)g)",
    )
    command.add_argument(
        "--workers",
        type=int,
        metavar="N",
        help="worker processes on this machine (default: one per GPU, or one)",
    )
    command.add_argument(
        "--scheduler",
        metavar="ADDRESS",
        help="use this dask scheduler's workers: tls://HOST:PORT, or tcp://",
    )
    command.add_argument(
        "--wait-workers",
        type=_SECONDS,
        default=math.inf,
        metavar="S",
        help="stop after this many seconds without a worker (default: wait)",
    )
    command.add_argument(
        "--render-workers",
        type=int,
        default=1,
        metavar="N",
        help="rendering processes (default: %(default)s)",
    )


def _add_profile(command: argparse.ArgumentParser) -> None:
    _add_output(command)
    command.add_argument("page", nargs="?", metavar="PAGE", help=_PAGE_HELP)
    _add_server(command)
    _add_truth(command)
    _add_served_model(command)
    _add_trace(command)
    _add_show_text(command)
    _add_no_image(command)
    command.add_argument(
        "--save", help="file for the record (default: run.json, or run-2.json and so on)"
    )
    command.add_argument(
        "--dry-run",
        action="store_true",
        help="measure nothing: say how much memory the measurement needs and whether it fits; a "
        "config.json is enough. Exit code 1: it does not fit",
    )
    command.add_argument(
        "--card",
        "--cards",
        dest="cards",
        action="extend",
        type=card_list,
        default=[],
        metavar="LIST",
        help='--dry-run for these GPUs by their datasheets: "RTX 4090,L4=0.80" (its price per '
        "hour), or all; needs no GPU",
    )
    command.add_argument(
        "--batch",
        dest="dry_batch",
        type=number(int, 1),
        default=1,
        metavar="N",
        help="--dry-run for a batch of this many pages (default: %(default)s)",
    )
    command.add_argument(
        "--speculate",
        type=number(int, 1),
        metavar="N",
        help="say whether guessing N tokens ahead by n-gram lookup would pay for this text",
    )
    command.add_argument(
        "--from",
        dest="repeated",
        metavar="RUN.json",
        help="repeat this record's measurement and compare",
    )


def _add_verify(command: argparse.ArgumentParser) -> None:
    _add_output(command)
    command.add_argument("page", nargs="?", metavar="PAGE", help=_PAGE_HELP)
    # The model is the native one that the server's tokens are compared with.
    _add_server(command, dest="server")
    _add_truth(command)
    _add_served_model(command)
    command.add_argument(
        "--published",
        metavar="MODEL",
        help="check published weights, a folder or hub id such as deepseek-ai/DeepSeek-OCR, on "
        "three sample pages, and write one file without private data to share",
    )
    command.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="folder for verify.html (default: none), or for what --published writes (default: "
        "ocr_phases_published, or with a number)",
    )
    command.add_argument("--record", help="check this run.json instead of measuring")
    command.add_argument("--save", help="file for the record (default: none)")


def _add_artifacts(command: argparse.ArgumentParser) -> None:
    _add_output(command)
    _add_out(command, "artifacts")
    command.add_argument("record", metavar="RUN.json")
    command.add_argument(
        "--chrome-trace",
        action="store_true",
        help="write trace.json instead: all spans for ui.perfetto.dev or chrome://tracing",
    )


def _add_compare(command: argparse.ArgumentParser) -> None:
    _add_output(command)
    _add_out(command, "compare")
    command.add_argument(
        "base", metavar="A.json", help="the baseline record; with --baseline the new record"
    )
    command.add_argument(
        "records", nargs="*", metavar="B.json", help="records that are compared with A.json"
    )
    command.add_argument(
        "--baseline",
        type=Path,
        metavar="DIR",
        help="compare A.json with the newest records of this folder that have its page, model, "
        "settings and card; exit code 3 with --fail-above where there is none",
    )
    command.add_argument(
        "--last",
        type=number(int, 1),
        default=8,
        metavar="N",
        help="maximum number of records taken from --baseline; 3 or more also show how the machine "
        "changes from day to day (default: %(default)s)",
    )
    command.add_argument(
        "--fail-above",
        type=_PERCENT,
        metavar="PCT",
        help="exit code 1 if the whole 95 %% interval of a slowdown is above this limit, 3 if the "
        "interval contains it; for a measure of the text, percentage points",
    )
    command.add_argument(
        "--margin",
        type=_PERCENT,
        default=2.0,
        metavar="PCT",
        help="call two runs equivalent if the whole interval is within this many per cent "
        "(default: %(default)s)",
    )
    command.add_argument(
        "--metric",
        action="append",
        default=[],
        metavar="NAME",
        help="figure that --fail-above looks at, such as ttft_ms, prefill/sam/global or cer; can "
        "be repeated (default: prefill_ms, inter_token_ms, generate_ms)",
    )
    command.add_argument(
        "--kernels", action="store_true", help="also compare the kernels of each stage"
    )


def _add_sweep(command: argparse.ArgumentParser) -> None:
    _add_output(command)
    command.add_argument("page", nargs="?", metavar="PAGE", help=_PAGE_HELP)
    command.add_argument(
        "--server",
        metavar="URL",
        help="load-test this server, http://HOST:PORT/v1 or with #MODEL, instead of a sweep; its "
        "key is read from OCR_PHASES_API_KEY",
    )
    _add_truth(command)
    _add_served_model(command)
    command.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="output folder; a sweep that is there is resumed (default: ocr_phases_sweep)",
    )
    command.add_argument(
        "--concurrency",
        type=number_list,
        default="1,2,4,8",
        metavar="LIST",
        help="--server: numbers of pages in flight at the same time (default: %(default)s)",
    )
    command.add_argument(
        "--rate",
        type=number_list,
        default=[],
        metavar="PER_MINUTE",
        help="--server: also send this many pages per minute (120 is two a second), at random "
        "times (Poisson, by --seed); several as a list",
    )
    command.add_argument(
        "--pages",
        metavar="PAGES",
        help="--server: a folder, glob or list of pages that are sent in turn",
    )
    command.add_argument(
        "--requests",
        type=int,
        metavar="N",
        help="--server: number of pages per level (default: four times the pages in flight)",
    )
    command.add_argument(
        "--slo",
        metavar="LIST",
        help="--server: latency objective per page in ms, such as ttft=500,itl=30; the table then "
        "has the pages per minute that meet it (goodput)",
    )
    command.add_argument(
        "--records",
        metavar="DIR",
        help="show the records of this folder instead of measuring",
    )
    command.add_argument(
        "--models",
        type=model_list,
        default=[],
        metavar="LIST",
        help="several models, instead of --model",
    )
    command.add_argument(
        "--presets",
        type=name_list,
        default="tiny,base",
        metavar="LIST",
        help=f"of {_PRESETS} (default: %(default)s)",
    )
    command.add_argument(
        "--strategies",
        type=name_list,
        default="eager",
        metavar="LIST",
        help="how the language model runs: eager, cuda_graph, compiled (default: %(default)s)",
    )
    command.add_argument(
        "--visions",
        type=name_list,
        default="eager",
        metavar="LIST",
        help="how the vision encoders run: eager, cuda_graph, compiled (default: %(default)s)",
    )
    command.add_argument(
        "--attentions",
        type=name_list,
        default=[],
        metavar="LIST",
        help="several instead of --attention, such as sdpa,eager",
    )
    command.add_argument(
        "--dtypes",
        type=name_list,
        default=[],
        metavar="LIST",
        help="several instead of --dtype, such as float32,bfloat16",
    )
    command.add_argument(
        "--batch",
        dest="batches",
        type=number_list,
        default="1,2",
        metavar="LIST",
        help="batch sizes: copies of the page in one batch (default: %(default)s)",
    )
    command.add_argument(
        "--max-new-tokens",
        dest="lengths",
        type=number_list,
        metavar="LIST",
        help="output lengths, where the end token is ignored (default: 32,128); with --truth or "
        "--no-ignore-eos the maximum number of new tokens (default: 1024)",
    )
    command.add_argument("--retry-failed", action="store_true", help="measure failed cells again")


def _add_notebooks(command: argparse.ArgumentParser) -> None:
    _add_output(command)
    command.add_argument(
        "folder",
        type=Path,
        metavar="DIR",
        help="the folder to copy into; it is created if it is missing",
    )


def _add_html(command: argparse.ArgumentParser) -> None:
    _add_output(command)
    command.add_argument("notebook", metavar="NOTEBOOK.ipynb", help="a notebook that has been run")
    command.add_argument(
        "--out", type=Path, metavar="FILE", help="the HTML file (default: next to the notebook)"
    )
    command.add_argument("--show-code", action="store_true", help="also show the code of the cells")


# -- options of several verbs ------------------------------------------------------------------


def _add_output(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--json",
        action="store_true",
        help="print one JSON object on stdout, everything else on stderr",
    )
    command.add_argument(
        "--overwrite",
        action="store_true",
        help="also overwrite existing files that ocr_phases did not write",
    )


def _add_out(command: argparse.ArgumentParser, verb: str) -> None:
    command.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help=f"output folder (default: ocr_phases_{verb}, or with a number)",
    )


def _add_server(command: argparse.ArgumentParser, *, dest: str = "model") -> None:
    command.add_argument(
        "--server",
        dest=dest,
        metavar="URL",
        help="measure this OpenAI-compatible server, http://HOST:PORT/v1 or with #MODEL, instead "
        "of loading a model; its key is read from OCR_PHASES_API_KEY",
    )


def _add_truth(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--truth",
        type=Path,
        metavar="PATH",
        help="compare the model's text with this reference text: a text, Markdown, page JSON or "
        "OmniDocBench file, a record, or a folder with one file per page, named like the page",
    )


def _add_served_model(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--first-token-timeout",
        type=_SECONDS,
        metavar="S",
        help="maximum time until a server's first token of a page, in seconds (default: 300)",
    )
    command.add_argument(
        "--answer-timeout",
        type=_SECONDS,
        metavar="S",
        help="maximum time until a server's last token of a page, in seconds (default: 3600)",
    )


def _add_show_text(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--show-text",
        action="store_true",
        help="write the text of the first run to stderr while the model makes it",
    )


def _add_no_image(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--no-image",
        action="store_true",
        help="measure a --prompt of your own without a page; such a run has no vision",
    )


def _add_trace(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--trace",
        action="store_true",
        help="same as --kernels, and save a Chrome trace next to the record",
    )


def _add_settings(command: argparse.ArgumentParser, verb: str) -> None:
    """An option for each setting of a verb, in the order of their fields."""
    for title, group in (("model", ModelSettings), ("measurement", RunSettings)):
        arguments = command.add_argument_group(title)
        for setting in fields(group):
            if setting.name not in SETTINGS.get(verb, ()):
                continue
            text = full_help_text(setting).replace("%", "%%")
            if kind(setting) != "bool" and setting.default is not None:
                text += " (default: %(default)s)"
            option = "--" + setting.name.replace("_", "-")
            arguments.add_argument(option, help=text, **_KINDS[kind(setting)])
            command.set_defaults(**{setting.name: setting.default})
    if verb == "batch":  # they are another prefill for every page
        command.set_defaults(token_probabilities=False, warm_once=True)


# -- the verbs ---------------------------------------------------------------------------------


class VerbOptions(NamedTuple):
    """How a verb is called: the line of its usage, its help, and what adds its own options."""

    usage: str
    help: str
    add: Callable[[argparse.ArgumentParser], None]


#: Usage names no options: one for each setting, some forty, would hide the arguments.
VERB_OPTIONS = {
    "report": VerbOptions(
        "[PAGE ...]", "measure pages, write one HTML report per page", _add_report
    ),
    "batch": VerbOptions(
        "[PAGES ...]",
        "measure many pages on several devices, with an index; resumes after a stop",
        _add_batch,
    ),
    "profile": VerbOptions(
        "[PAGE]", "measure a page, print a summary, save its record", _add_profile
    ),
    "verify": VerbOptions("[PAGE]", "check that the measurement is sound", _add_verify),
    "artifacts": VerbOptions(
        "RUN.json", "write text, crops and boxes from a record", _add_artifacts
    ),
    "compare": VerbOptions(
        "A.json B.json [B.json ...]", "compare records; can fail a CI job", _add_compare
    ),
    "sweep": VerbOptions(
        "[PAGE]",
        "measure one page over presets, strategies, batch sizes and lengths",
        _add_sweep,
    ),
    "notebooks": VerbOptions(
        "DIR", "copy the notebooks of this package into a folder", _add_notebooks
    ),
    "html": VerbOptions(
        "NOTEBOOK.ipynb", "render a notebook that has been run as one HTML file", _add_html
    ),
}


def add_options(command: argparse.ArgumentParser, verb: str) -> None:
    """The options of a verb: its own, and one for each of its `SETTINGS`."""
    VERB_OPTIONS[verb].add(command)
    _add_settings(command, verb)
