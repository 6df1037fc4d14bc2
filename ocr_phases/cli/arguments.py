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
from ocr_phases.families import PRESETS_BY_FAMILY
from ocr_phases.settings import ModelSettings, RunSettings, full_help_text, kind

_PAGE_HELP = (
    "an image file, or a page of a PDF or TIFF file (file.pdf#3); file.pdf#1-8 are eight pages"
)
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
    command.add_argument("--record", help="show this record (run.json) instead of measuring a page")
    command.add_argument(
        "--show-code",
        action="store_true",
        help="also show the code of the notebook that makes the report",
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
        help="folder for the results; if it has a batch already, that one is resumed (default: "
        "%(default)s)",
    )
    command.add_argument(
        "pages",
        nargs="*",
        metavar="PAGES",
        help="image and PDF files, folders, patterns such as 'scans/*.png', or a file that "
        "lists pages (.csv, .jsonl)",
    )
    command.add_argument(
        "--presets",
        type=name_list,
        default=[],
        metavar="LIST",
        help="measure every page at each of these presets, instead of --preset. "
        f"{PRESETS_BY_FAMILY}",
    )
    command.add_argument(
        "--render",
        choices=["during", "after", "none", "only"],
        help="when the reports are made. during: after each page, by the worker that has the "
        "model; after: all at the end, without a GPU; none: not at all; only: measure "
        "nothing, and make the reports that a measured batch lacks (default: during; with "
        "--truth: after)",
    )
    command.add_argument(
        "--documents",
        type=Path,
        metavar="DIR",
        help="also write each PDF file as one document into this folder: its text page by "
        "page, and a PDF of its pages with their boxes",
    )
    command.add_argument(
        "--predictions",
        type=Path,
        metavar="DIR",
        help="also write the text of each page into this folder as NAME.md, as OmniDocBench's "
        "evaluator expects it",
    )
    command.add_argument(
        "--retries",
        type=_COUNT,
        default=1,
        metavar="N",
        help="how often a page that failed is tried again (default: %(default)s)",
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
        help="number of worker processes on this machine (default: one per GPU, or one without "
        "a GPU)",
    )
    command.add_argument(
        "--scheduler",
        metavar="ADDRESS",
        help="use the workers of this dask scheduler, tls://HOST:PORT or tcp://HOST:PORT, "
        "instead of processes on this machine",
    )
    command.add_argument(
        "--wait-workers",
        type=_SECONDS,
        default=math.inf,
        metavar="S",
        help="with --scheduler: stop after this many seconds without a worker (default: wait "
        "for one)",
    )
    command.add_argument(
        "--render-workers",
        type=int,
        default=1,
        metavar="N",
        help="number of processes that make reports after the measurement (default: %(default)s)",
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
        "--save",
        help="file for the record (default: run.json; if that exists, run-2.json and so on)",
    )
    command.add_argument(
        "--dry-run",
        action="store_true",
        help="measure nothing, and say how much memory the measurement needs and whether it "
        "fits (exit code 1: it does not). Of the model, only its config.json is needed",
    )
    command.add_argument(
        "--card",
        "--cards",
        dest="cards",
        action="extend",
        type=card_list,
        default=[],
        metavar="LIST",
        help='with --dry-run: say it for these GPUs, from their datasheets: "RTX 4090,L4", '
        'with a price per hour "L4=0.80", or all. This needs no GPU',
    )
    command.add_argument(
        "--batch",
        dest="dry_batch",
        type=number(int, 1, 1000),
        default=1,
        metavar="N",
        help="with --dry-run: number of pages that the model reads at the same time (default: "
        "%(default)s)",
    )
    command.add_argument(
        "--speculate",
        type=number(int, 1),
        metavar="N",
        help="also say whether speculative decoding, with up to N tokens guessed from earlier "
        "n-grams of the text, would pay for this page",
    )
    command.add_argument(
        "--from",
        dest="repeated",
        metavar="RUN.json",
        help="measure once more what this record measured, and compare the two",
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
        help="check published weights (a folder, or a hub id such as deepseek-ai/DeepSeek-OCR) "
        "on three sample pages, and write one file that you can share, because it has no "
        "private data",
    )
    command.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="folder for verify.html (default: it is not written), or for what --published "
        "writes (default: ocr_phases_published, with a number if that exists)",
    )
    command.add_argument(
        "--record", help="check this record (run.json) instead of measuring a page"
    )
    command.add_argument("--save", help="file for the record (default: it is not saved)")


def _add_artifacts(command: argparse.ArgumentParser) -> None:
    _add_output(command)
    _add_out(command, "artifacts")
    command.add_argument("record", metavar="RUN.json", help="the record")
    command.add_argument(
        "--chrome-trace",
        action="store_true",
        help="write trace.json instead: the start and end of every stage, for ui.perfetto.dev "
        "or chrome://tracing",
    )


def _add_compare(command: argparse.ArgumentParser) -> None:
    _add_output(command)
    _add_out(command, "compare")
    command.add_argument(
        "base",
        metavar="A.json",
        help="the baseline: the record that the others are compared with. With --baseline it "
        "is the new record",
    )
    command.add_argument(
        "records", nargs="*", metavar="B.json", help="records that are compared with A.json"
    )
    command.add_argument(
        "--baseline",
        type=Path,
        metavar="DIR",
        help="compare A.json with the newest records in this folder that have the same page, "
        "model, settings and device. With --fail-above, exit code 3 also means that there "
        "are none",
    )
    command.add_argument(
        "--last",
        type=number(int, 1),
        default=8,
        metavar="N",
        help="maximum number of records that are taken from the folder of --baseline. With 3 "
        "or more, the interval includes how the machine varies from day to day (default: "
        "%(default)s)",
    )
    command.add_argument(
        "--fail-above",
        type=_PERCENT,
        metavar="PCT",
        help="limit in per cent: exit code 1 if a figure is proven to be worse by more than "
        "this (its whole 95 %% interval is above the limit), 3 if that is undecided (the "
        "interval contains the limit). For the accuracy of the text, such as cer, it is "
        "in percentage points",
    )
    command.add_argument(
        "--margin",
        type=_PERCENT,
        default=2.0,
        metavar="PCT",
        help="call two records equivalent if the whole interval of their ratio is within this "
        "many per cent of 1 (default: %(default)s)",
    )
    command.add_argument(
        "--metric",
        action="append",
        default=[],
        metavar="NAME",
        help="figure that --fail-above looks at, such as ttft_ms, prefill/sam/global or cer; "
        "can be given several times (default: the figures that get a verdict, such as "
        "prefill_ms and inter_token_ms)",
    )
    command.add_argument(
        "--kernels",
        action="store_true",
        help="also compare the GPU kernels of each stage, if the records have them",
    )


def _add_sweep(command: argparse.ArgumentParser) -> None:
    _add_output(command)
    command.add_argument("page", nargs="?", metavar="PAGE", help=_PAGE_HELP)
    command.add_argument(
        "--server",
        metavar="URL",
        help="load-test this server instead of a sweep. Give its address as "
        "http://HOST:PORT/v1, or as http://HOST:PORT/v1#MODEL if it has several models. "
        "Its key is read from the environment variable OCR_PHASES_API_KEY",
    )
    _add_truth(command)
    _add_served_model(command)
    command.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="folder for the results; if it has a sweep already, that one is resumed (default: "
        "ocr_phases_sweep)",
    )
    command.add_argument(
        "--concurrency",
        type=number_list,
        default="1,2,4,8",
        metavar="LIST",
        help="with --server: numbers of pages that are sent at the same time; each number is "
        "one level of the load test (default: %(default)s)",
    )
    command.add_argument(
        "--rate",
        type=number_list,
        default=[],
        metavar="PER_MINUTE",
        help="with --server: also send this many pages per minute (120 is two per second), at "
        "random times (Poisson; --seed repeats them). A list, such as 30,60, has one "
        "level for each number",
    )
    command.add_argument(
        "--pages",
        metavar="PAGES",
        help="with --server: the pages that are sent one after another: a folder, a pattern such "
        "as 'scans/*.png', or a file that lists pages",
    )
    command.add_argument(
        "--requests",
        type=int,
        metavar="N",
        help="with --server: how many pages are sent at each level (default: four times the "
        "number of pages that are sent at the same time)",
    )
    command.add_argument(
        "--slo",
        metavar="LIST",
        help="with --server: objective in ms for the time to first token and the mean time "
        "between tokens of a page, such as ttft=500,itl=30. The table then also has the "
        "pages per minute that meet it (goodput)",
    )
    command.add_argument(
        "--records",
        metavar="DIR",
        help="show the records in this folder instead of measuring a page",
    )
    command.add_argument(
        "--models",
        type=model_list,
        default=[],
        metavar="LIST",
        help="models to compare, instead of --model",
    )
    command.add_argument(
        "--presets",
        type=name_list,
        default="tiny,base",
        metavar="LIST",
        help=f"presets to compare (default: %(default)s). {PRESETS_BY_FAMILY}",
    )
    command.add_argument(
        "--strategies",
        type=name_list,
        default="eager",
        metavar="LIST",
        help="ways to run the language model that are compared, of eager, cuda_graph, compiled "
        "(default: %(default)s)",
    )
    command.add_argument(
        "--visions",
        type=name_list,
        default="eager",
        metavar="LIST",
        help="ways to run the vision encoders that are compared, of eager, cuda_graph, "
        "compiled (default: %(default)s)",
    )
    command.add_argument(
        "--attentions",
        type=name_list,
        default=[],
        metavar="LIST",
        help="implementations of attention to compare, such as sdpa,eager, instead of --attention",
    )
    command.add_argument(
        "--dtypes",
        type=name_list,
        default=[],
        metavar="LIST",
        help="dtypes of the weights to compare, such as float32,bfloat16, instead of --dtype",
    )
    command.add_argument(
        "--batch",
        dest="batches",
        type=number_list,
        default="1,2",
        metavar="LIST",
        help="batch sizes to compare: how many copies of the page the model reads at the same "
        "time (default: %(default)s)",
    )
    command.add_argument(
        "--max-new-tokens",
        dest="lengths",
        type=number_list,
        metavar="LIST",
        help="numbers of new tokens to compare; the end token is ignored (default: 32,128). "
        "With --truth or --no-ignore-eos the text ends at the end token, and these are "
        "maximum numbers (default: 1024)",
    )
    command.add_argument(
        "--retry-failed",
        action="store_true",
        help="measure again the combinations that failed before",
    )


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
        help="print the result as one JSON object on stdout, and everything else on stderr",
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
        help=f"folder for the results (default: ocr_phases_{verb}, with a number if that exists)",
    )


def _add_server(command: argparse.ArgumentParser, *, dest: str = "model") -> None:
    command.add_argument(
        "--server",
        dest=dest,
        metavar="URL",
        help="measure an OpenAI-compatible server instead of loading a model. Give its address "
        "as http://HOST:PORT/v1, or as http://HOST:PORT/v1#MODEL if it has several "
        "models. Its key is read from the environment variable OCR_PHASES_API_KEY",
    )


def _add_truth(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--truth",
        type=Path,
        metavar="PATH",
        help="compare the model's text with this reference text, which is what the page really "
        "says: a text, Markdown, page JSON or OmniDocBench file, a record, or a folder "
        "with one file per page, named like the page",
    )


def _add_served_model(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--first-token-timeout",
        type=_SECONDS,
        metavar="S",
        help="with --server: maximum time until the first token of a page, in seconds "
        "(default: 300)",
    )
    command.add_argument(
        "--answer-timeout",
        type=_SECONDS,
        metavar="S",
        help="with --server: maximum time until the last token of a page, in seconds (default: "
        "3600)",
    )


def _add_show_text(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--show-text",
        action="store_true",
        help="also write the text to stderr while the model makes it (in the first run only)",
    )


def _add_no_image(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--no-image",
        action="store_true",
        help="measure a prompt of your own (--prompt) without a page, and so without the "
        "vision encoders",
    )


def _add_trace(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--trace",
        action="store_true",
        help="the same as --kernels, and save a Chrome trace of the kernels next to the record",
    )


def _add_settings(command: argparse.ArgumentParser, verb: str) -> None:
    """An option for each setting of a verb, in the order of their fields."""
    defaults: dict[str, Any] = {}
    if verb == "batch":  # they are another prefill for every page
        defaults = {"token_probabilities": False, "warm_once": True}
    for title, group in (("model", ModelSettings), ("measurement", RunSettings)):
        arguments = command.add_argument_group(title)
        for setting in fields(group):
            if setting.name not in SETTINGS.get(verb, ()):
                continue
            text = full_help_text(setting).replace("%", "%%")
            default = defaults.get(setting.name, setting.default)
            if isinstance(default, bool):
                text += f" (default: {'yes' if default else 'no'})"
            elif default is not None:
                text += " (default: %(default)s)"
            option = "--" + setting.name.replace("_", "-")
            arguments.add_argument(option, help=text, **_KINDS[kind(setting)])
            command.set_defaults(**{setting.name: default})


# -- the verbs ---------------------------------------------------------------------------------


class VerbOptions(NamedTuple):
    """How a verb is called: the line of its usage, its help, and what adds its own options."""

    usage: str
    help: str
    add: Callable[[argparse.ArgumentParser], None]


#: Usage names no options: one for each setting, some forty, would hide the arguments.
VERB_OPTIONS = {
    "report": VerbOptions(
        "[PAGE ...]", "measure pages, and write an HTML report for each", _add_report
    ),
    "batch": VerbOptions(
        "[PAGES ...]",
        "measure many pages, on one or several GPUs or machines; resumes after a stop",
        _add_batch,
    ),
    "profile": VerbOptions(
        "[PAGE]", "measure a page, print a summary, and save the record", _add_profile
    ),
    "verify": VerbOptions(
        "[PAGE]", "measure a page, and check whether its times can be trusted", _add_verify
    ),
    "artifacts": VerbOptions(
        "RUN.json",
        "write the text of a record, its pictures, and the page with boxes",
        _add_artifacts,
    ),
    "compare": VerbOptions(
        "A.json B.json [B.json ...]",
        "compare records: did it get slower? can fail a CI job",
        _add_compare,
    ),
    "sweep": VerbOptions(
        "[PAGE]",
        "measure one page at several presets, strategies, batch sizes and lengths",
        _add_sweep,
    ),
    "notebooks": VerbOptions(
        "DIR", "copy the notebooks of this package into a folder", _add_notebooks
    ),
    "html": VerbOptions(
        "NOTEBOOK.ipynb", "convert a notebook that has been run to one HTML file", _add_html
    ),
}


def add_options(command: argparse.ArgumentParser, verb: str) -> None:
    """The options of a verb: its own, and one for each of its `SETTINGS`."""
    VERB_OPTIONS[verb].add(command)
    _add_settings(command, verb)
