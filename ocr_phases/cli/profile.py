"""``ocr-phases profile``: measure a page, or repeat a record's measurement, and save the record."""

from __future__ import annotations

import argparse
import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any

from ocr_phases.cli import measuring
from ocr_phases.cli.options import (
    EVERY,
    KERNELS,
    add_overwrite,
    add_page,
    add_settings,
    add_trace,
    asks_kernels,
    refuse,
)
from ocr_phases.cli.results import run_result
from ocr_phases.errors import OcrPhasesError
from ocr_phases.settings import ModelSettings

if TYPE_CHECKING:
    from ocr_phases.record import PhaseRun

SUMMARY = "measure a page, print a summary, save its record"
USAGE = "[options] PAGE | --from RUN.json"
#: Settings that every repetition of a record takes from the command.
_EACH = ("device", "trust_remote_code", "token_probabilities", "ceilings")
#: Settings that --from does not take from the record.
_ANEW = ("model", *_EACH)


def run(arguments: argparse.Namespace) -> None:
    """Measure a page, or repeat a record's measurement, print a summary and save the record."""
    from ocr_phases.analyse.headline import key_metrics_text, subject, verdict
    from ocr_phases.analyse.kernels import has_kernels
    from ocr_phases.analyse.summary import stage_table
    from ocr_phases.files import TRACE_NAME, reserved

    target = measuring.check_target(arguments, arguments.repeated)
    then = _recorded(arguments)
    kernels: dict[str, Any] = {"kernels": asks_kernels(arguments)}
    with contextlib.ExitStack() as held:
        if arguments.trace:
            kernels["kernel_trace"] = held.enter_context(reserved(target.with_name(TRACE_NAME)))
        measured = measuring.measure if then is None else partial(_repeat, then=then)
        record = measured(arguments, **kernels)
    target = measuring.save(arguments, record)
    if then is not None:
        _print_then_and_now(then, record)
    print(stage_table(record).to_string(index=False, float_format="{:.3f}".format, na_rep=""))
    if has_kernels(record):
        _print_kernels(record)
    arguments.result = {**run_result(record), "record": str(target)}
    print(f"\n{subject(record)}\n{key_metrics_text(record)}\n\n{verdict(record)}")
    print(f"{arguments.result['checks']['sentence']}\nWrote {target}")


def _recorded(arguments: argparse.Namespace) -> PhaseRun | None:
    """The record to repeat, if any; `OcrPhasesError` for options that contradict it."""
    from ocr_phases.record import PhaseRun

    if arguments.repeated is None:
        if arguments.page is None:
            raise OcrPhasesError("Name the page to measure, or a record to repeat (--from).")
        return None
    refuse(arguments, set(EVERY) - {*_ANEW}, "--from takes these settings from the record")
    return PhaseRun.load(arguments.repeated)


def _repeat(arguments: argparse.Namespace, then: PhaseRun, **options: Any) -> PhaseRun:
    from ocr_phases.measure.rerun import recorded_pages, repeat_run

    recorded_pages(then, arguments.page)
    options |= {name: getattr(arguments, name) for name in _EACH}
    if "--model" in arguments.given:
        options["model"] = arguments.model
    if then.model.get("implementation") == "vendor":
        name, trusted = options.get("model", then.model["name"]), arguments.trust_remote_code
        settings = ModelSettings(model=name, implementation="vendor", trust_remote_code=trusted)
        measuring.warn_of_remote_code(arguments, settings)
    if options["kernels"]:
        options["kernel_steps"] = arguments.kernel_steps
    repeat = partial(repeat_run, then, page=arguments.page, **options)
    return measuring.watched(arguments, repeat, then.request["warmup"], then.request["max_new_tokens"])


def _print_kernels(run: PhaseRun) -> None:
    """Print the kernel view: a verdict per stage and the host syncs."""
    from ocr_phases.analyse.kernels import host_syncs, stage_verdict

    for table in (stage_verdict(run).drop(columns="reason"), host_syncs(run)):
        table = table.dropna(axis="columns", how="all")
        print(f"\n{table.to_string(index=False, float_format='{:.3f}'.format, na_rep='')}")


def _print_then_and_now(then: PhaseRun, now: PhaseRun) -> None:
    """Print a record beside its repetition."""
    from ocr_phases.analyse.compare import (
        compare_runs,
        few_repeats,
        headline_metrics,
        in_units,
        same_tokens,
    )
    from ocr_phases.analyse.environments import what_differs
    from ocr_phases.analyse.steps import first_other_token

    table = in_units(headline_metrics(compare_runs([then, now]))).rename(
        columns={"base": "then", "other": "now"}
    )
    print(table.to_string(index=False, float_format="{:,.3f}".format, na_rep=""))
    few = few_repeats([then, now], ["then", "now"])
    if few:
        print(f"\n{few}")
    differ = first_other_token(then, now)
    tokens = "equal" if same_tokens(then, now) else f"different{differ and '; the first is '}{differ}"
    print(f"\nTokens: {tokens}")
    for line in what_differs(then, now):
        print(f"Differs: {line}")
    print()


def add_options(command: argparse.ArgumentParser) -> None:
    """The options of ``profile``."""
    add_page(command)
    command.add_argument("--save", help="file for the record (default: run.json, or run-2.json and so on)")
    add_overwrite(command)
    command.add_argument(
        "--from", dest="repeated", metavar="RUN.json", help="repeat this record's measurement and compare"
    )
    add_trace(command)
    add_settings(command, [*EVERY, *KERNELS])
