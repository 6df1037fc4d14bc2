"""``ocr-phases profile``: measure a page, or repeat a record's measurement, and save the record."""

from __future__ import annotations

import argparse
import contextlib
from functools import partial
from typing import TYPE_CHECKING, Any

from ocr_phases.cli import measuring
from ocr_phases.cli.compare import print_compared
from ocr_phases.cli.results import rows, run_result, show, show_quality, wrote
from ocr_phases.errors import OcrPhasesError
from ocr_phases.settings import Settings

if TYPE_CHECKING:
    from ocr_phases.results.run import PhaseRun

#: Settings that every repetition of a record takes from the command.
_EACH = (
    "device",
    "trust_remote_code",
    "token_probabilities",
    "ceilings",
    "phase_energy",
    "kernel_steps",
)


def run(arguments: argparse.Namespace) -> None:
    """Measure a page, or repeat a record's measurement, print a summary and save the record."""
    from ocr_phases.analyse.cards import key_metrics_text
    from ocr_phases.analyse.comparison_words import same_tokens
    from ocr_phases.analyse.kernels import has_kernels, host_syncs, stage_verdict
    from ocr_phases.analyse.sentences import subject, verdict
    from ocr_phases.analyse.stages import stage_table
    from ocr_phases.files import TRACE_NAME, reserved
    from ocr_phases.results.comparison import Comparison
    from ocr_phases.results.run import PhaseRun

    if arguments.repeated is None and arguments.page is None:
        raise OcrPhasesError("Name the page to measure, or a record to repeat (--from).")
    if arguments.dry_run:
        from ocr_phases.measure.memory_fit import fit

        need, said = fit(arguments.page, Settings.among(vars(arguments)))
        print(said)
        arguments.result = {"page": arguments.page, "sentence": said, "need": rows(need)}
        return
    target = measuring.check_target(arguments, arguments.repeated)
    then = None
    if arguments.repeated is not None:
        then = measuring.judged(arguments, PhaseRun.load(arguments.repeated))
    kernels = arguments.kernels or arguments.trace
    measured = measuring.measure if then is None else partial(_repeat, then=then)
    trace = reserved(target.with_name(TRACE_NAME)) if arguments.trace else contextlib.nullcontext()
    with trace as file:
        record = measuring.judged(
            arguments, measured(arguments, kernels=kernels, kernel_trace=file)
        )
    target = measuring.save(arguments, record)
    if then is not None:
        compared = Comparison([then, record], ["then", "now"])
        print_compared(compared, compared.headline)
        print(f"\nTokens: {'equal' if same_tokens(then, record) else 'different'}\n")
    stages = stage_table(record)
    # A client does not see a server's prefill.
    show(stages.assign(phase=stages["phase"].mask(stages["stage"] == "first_token", "first token")))
    if has_kernels(record):
        for table in (stage_verdict(record), host_syncs(record)):
            print()
            show(table.dropna(axis="columns", how="all"))
    show_quality(record)
    told = run_result(record)
    print(f"\n{subject(record)}\n{key_metrics_text(record)}\n")
    print(f"{verdict(record)}\n{told['checks']['sentence']}")
    arguments.result = {**told, "record": wrote(target)}


def _repeat(arguments: argparse.Namespace, then: PhaseRun, **options: Any) -> PhaseRun:
    from ocr_phases.session.repeating import repeat_run

    options |= {name: getattr(arguments, name) for name in _EACH}
    if "--model" in arguments.given:
        options["model"] = arguments.model
    if then.model.implementation == "vendor" and arguments.trust_remote_code:
        measuring.warn_of_remote_code(options.get("model", then.model.name))
    repeat = partial(repeat_run, then, page=arguments.page, **options)
    request = then.request
    return measuring.watched(arguments, repeat, request.max_new_tokens, request.warmup)
