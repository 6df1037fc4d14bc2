"""``ocr-phases profile``: measure a page, or repeat a record's measurement, and save the record."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ocr_phases.cli import measuring
from ocr_phases.cli.compare import print_compared
from ocr_phases.cli.results import Exit, in_words, rows, run_result, show, show_quality, wrote
from ocr_phases.errors import OcrPhasesError
from ocr_phases.settings import Settings

if TYPE_CHECKING:
    import pandas as pd

    from ocr_phases.analyse.other_cards import CardChoice
    from ocr_phases.results.run import PhaseRun

#: Settings that every repetition of a record takes from the command.
_OF_THE_COMMAND = (
    "device",
    "trust_remote_code",
    "token_probabilities",
    "ceilings",
    "phase_energy",
    "kernel_steps",
)


def run(arguments: argparse.Namespace) -> int:
    """Measure a page, print a summary and save the record.

    With --dry-run nothing is measured, and exit code 1 means that the measurement does not fit into
    the memory.
    """
    from ocr_phases.analyse.cards import key_metrics_text
    from ocr_phases.analyse.comparison_words import same_tokens
    from ocr_phases.analyse.kernels import has_kernels, host_sync_table, stage_verdict
    from ocr_phases.analyse.sentences import subject, verdict
    from ocr_phases.files import TRACE_NAME, reserved
    from ocr_phases.results.comparison import Comparison
    from ocr_phases.results.run import PhaseRun

    if arguments.dry_run:
        return _dry_run(arguments)
    is_named = arguments.repeated is not None or arguments.page is not None
    if not is_named and not arguments.no_image:
        raise OcrPhasesError("Name the page to measure, or a record to repeat (--from).")
    target = measuring.check_target(arguments, arguments.repeated)
    earlier = None
    if arguments.repeated is not None:
        earlier = PhaseRun.load(arguments.repeated)
        earlier = measuring.with_truth_and_price(arguments, earlier)
    if arguments.trace:
        with reserved(target.with_name(TRACE_NAME)) as trace:
            record = _measure(arguments, earlier, trace)
    else:
        record = _measure(arguments, earlier, None)
    record = measuring.with_truth_and_price(arguments, record)
    target = measuring.save(arguments, record)
    if earlier is not None:
        compared = Comparison([earlier, record], ["then", "now"])
        print_compared(compared, compared.headline)
        print(f"\nTokens: {'equal' if same_tokens(earlier, record) else 'different'}\n")
    show(_stages_in_words(record))
    if has_kernels(record):
        print()
        show(in_words(stage_verdict(record).dropna(axis="columns", how="all")))
        print()
        show(in_words(host_sync_table(record).dropna(axis="columns", how="all")))
    show_quality(record)
    result = run_result(record)
    if arguments.speculate is not None:
        guessed = record.speculation(arguments.speculate)
        result["speculation"] = rows(guessed)
        print()
        show(guessed)
    print()
    print(subject(record))
    print(key_metrics_text(record))
    print()
    print(verdict(record))
    print(result["checks"]["sentence"])
    result["record"] = wrote(target)
    arguments.result = result
    return Exit.DONE


def _stages_in_words(run: PhaseRun) -> pd.DataFrame:
    """The table of stages as a report shows it, for a terminal."""
    from ocr_phases.analyse.stages import spread_names, stage_table
    from ocr_phases.record import is_whole_phase

    table = stage_table(run)
    # A client does not see a server's prefill.
    phase = table["phase"].mask(table["stage"] == "first_token", "first token")
    stage = table["stage"].mask(is_whole_phase(table), "whole phase")
    table = table.assign(phase=phase, stage=stage)
    time = "device"
    if not run.device.has_own_clock:
        time = "time"
        table = table.drop(columns="host_ms")
    low, high = spread_names(len(run.repeats))
    if len(run.repeats) == 1:  # a single repeat has no spread
        table = table.drop(columns=["device_ms_p10", "device_ms_p90"])
    names = {"device_ms": f"{time}_ms", "device_ms_p10": f"{low}_ms", "device_ms_p90": f"{high}_ms"}
    return in_words(table.rename(columns=names))


def _measure(
    arguments: argparse.Namespace, earlier: PhaseRun | None, trace: Path | None
) -> PhaseRun:
    """Measure the page, or repeat what an earlier record measured; ``trace`` is a file for it."""
    kernels = arguments.kernels or arguments.trace
    if earlier is None:
        return measuring.measure(arguments, kernels=kernels, kernel_trace=trace)
    return _repeat(arguments, earlier, kernels=kernels, kernel_trace=trace)


def _dry_run(arguments: argparse.Namespace) -> int:
    """Say what the measurement needs; of GPUs also what it takes at the least."""
    from ocr_phases.measure.memory_fit import fit, fit_cards

    settings = Settings.among(vars(arguments))
    result: dict[str, Any] = {"page": arguments.page}
    if arguments.cards:
        cards = _with_price(arguments.cards, arguments.price_per_hour)
        found = fit_cards(arguments.page, settings, cards, batch=arguments.dry_batch)
    else:
        found = fit(arguments.page, settings, batch=arguments.dry_batch)
    print(found.sentence)
    result.update(sentence=found.sentence, fits=found.fits, need=rows(found.need))
    if found.cards is not None:
        if len(found.cards) > 1:
            print()
            show(_readable(found.cards))
        result["cards"] = rows(found.cards)
    arguments.result = result
    return Exit.FAILED if found.fits is False else Exit.DONE


def _with_price(cards: Sequence[CardChoice], price_per_hour: float | None) -> list[CardChoice]:
    """The cards, those without a price at the command's."""
    priced = []
    for card in cards:
        if card.price_per_hour is None:
            card = replace(card, price_per_hour=price_per_hour)
        priced.append(card)
    return priced


def _readable(table: pd.DataFrame) -> pd.DataFrame:
    """The table of cards as a person reads it: GB, yes and no, without columns that are empty."""
    from ocr_phases.text import bytes_text

    table = table.dropna(axis="columns", how="all")
    sizes = {name: table[name].map(bytes_text) for name in ("memory_bytes", "need_bytes")}
    shown = table.assign(**sizes, fits=table["fits"].map({True: "yes", False: "no"}))
    return shown.rename(columns={"memory_bytes": "memory", "need_bytes": "need"})


def _repeat(
    arguments: argparse.Namespace,
    earlier: PhaseRun,
    *,
    kernels: bool,
    kernel_trace: Path | None,
) -> PhaseRun:
    """Measure what an earlier record measured, with its settings, on this machine."""
    from ocr_phases.session.repeating import repeat_run

    options: dict[str, Any] = {name: getattr(arguments, name) for name in _OF_THE_COMMAND}
    model = earlier.model.name
    if "--model" in arguments.given:
        model = arguments.model
        options["model"] = model
    if earlier.model.implementation == "vendor" and arguments.trust_remote_code:
        measuring.warn_of_remote_code(model)
    repeat = partial(
        repeat_run,
        earlier,
        page=arguments.page,
        kernels=kernels,
        kernel_trace=kernel_trace,
        **options,
    )
    request = earlier.request
    return measuring.measure_with_bar(arguments, repeat, request.max_new_tokens, request.warmup)
