"""Options that would do nothing beside others are refused: a function for each verb."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Sequence

from ocr_phases.cli.options import BESIDE_PUBLISHED, FAMILY, OF_SERVERS, PRICE, SETTINGS
from ocr_phases.errors import OcrPhasesError
from ocr_phases.settings import ModelSettings, is_address, setting_names

#: What a sweep measures or shows; a server under load is asked as it is.
_SWEEP_LISTS = ("models", "presets", "strategies", "visions", "attentions", "dtypes", "batch")
#: What is for a model that this command loads.
_OF_LOADING = [name for name in setting_names(ModelSettings) if name not in OF_SERVERS]
#: How long a server is waited for.
WAITS = ("first_token_timeout", "answer_timeout")
#: What ``--from`` may change of the measurement that it repeats.
_NOT_REPEATED = (
    "model",
    "device",
    "trust_remote_code",
    "token_probabilities",
    "ceilings",
    "phase_energy",
    "kernels",
    "kernel_steps",
    PRICE,
)


def refuse_options(arguments: argparse.Namespace, names: Collection[str], why: str) -> None:
    """Raise `OcrPhasesError` where an option of these names was given, which would do nothing."""
    idle = []
    for option in arguments.given:
        name = option.removeprefix("--").removeprefix("no-").replace("-", "_")
        if name in names and option not in idle:
            idle.append(option)
    if idle:
        raise OcrPhasesError(f"{why}: drop {', '.join(idle)}.")


def refuse_of_servers(arguments: argparse.Namespace) -> None:
    """Raise `OcrPhasesError` for settings of a server beside a model that this command loads."""
    refuse_options(arguments, (FAMILY,), "Only a --server is told its model's family")
    refuse_options(arguments, OF_SERVERS, "Only a --server is asked in the way of its engine")


def refuse_idle(arguments: argparse.Namespace) -> None:
    """Raise `OcrPhasesError` for options that would do nothing beside another one.

    An option by the name of a list's, such as ``--model`` beside ``--models``, is one too.
    """
    for option in arguments.given:
        refuse_options(
            arguments, {option.removeprefix("--")[:-1]}, f"{option} already names what is compared"
        )
    match arguments.verb:
        case "report":
            _refuse_idle_of_report(arguments)
        case "profile":
            _refuse_idle_of_profile(arguments)
        case "verify":
            _refuse_idle_of_verify(arguments)
        case "batch":
            _refuse_idle_of_batch(arguments)
        case "sweep":
            _refuse_idle_of_sweep(arguments)
        case "compare":
            _refuse_idle_of_compare(arguments)


def _refuse_idle_of_report(arguments: argparse.Namespace) -> None:
    if arguments.no_image:
        _refuse_beside_no_image(arguments, arguments.pages)
    _refuse_beside_server(arguments)
    _refuse_beside_record(arguments)
    _refuse_truth_without_text(arguments)
    _refuse_steps_without_kernels(arguments)


def _refuse_idle_of_profile(arguments: argparse.Namespace) -> None:
    if arguments.no_image:
        _refuse_beside_no_image(arguments, [arguments.page] if arguments.page else [])
    _refuse_beside_server(arguments)
    _refuse_truth_without_text(arguments)
    _refuse_steps_without_kernels(arguments)
    if arguments.dry_run:
        names = (
            "from",
            "save",
            "trace",
            "truth",
            "server",
            "kernels",
            "verify",
            "speculate",
            "show_text",
            *WAITS,
        )
        refuse_options(arguments, names, "--dry-run measures nothing")
        if is_address(arguments.model):
            why = "--dry-run reads the config.json of a model, which no server gives"
            refuse_options(arguments, ("model",), why)
    else:
        refuse_options(arguments, ("card", "cards", "batch"), "Only --dry-run says what they need")
    if arguments.cards:
        refuse_options(arguments, ("device",), "--card names what the measurement would run on")
    if arguments.repeated:
        repeated = _settings_but(arguments, _NOT_REPEATED)
        refuse_options(arguments, repeated, "--from takes these settings from the record")
        why = "--from measures with a model that is loaded here"
        refuse_options(arguments, ("server", *WAITS), why)
        if is_address(arguments.model):
            refuse_options(arguments, ("model",), why)
        refuse_options(arguments, ("show_text",), "--from has the text in its record")


def _refuse_idle_of_verify(arguments: argparse.Namespace) -> None:
    if arguments.published is not None:
        _refuse_beside_published(arguments)
    if is_address(arguments.model):
        raise OcrPhasesError(
            "--model is the checkpoint that a server's tokens are compared with: name the server "
            "with --server."
        )
    _refuse_beside_record(arguments)
    _refuse_truth_without_text(arguments)


def _refuse_idle_of_batch(arguments: argparse.Namespace) -> None:
    _refuse_beside_server(arguments)
    if not is_address(arguments.model):
        refuse_of_servers(arguments)
    _refuse_truth_without_text(arguments)
    if not arguments.return_text:
        why = "They are made of the texts, which --no-return-text leaves out"
        refuse_options(arguments, ("documents", "predictions"), why)
    if arguments.render == "only":
        names = {"presets", "workers", "scheduler", "wait_workers"}
        names |= _settings_but(arguments, (PRICE,))
        refuse_options(arguments, names, "--render only measures nothing")
    if arguments.render == "none":
        refuse_options(arguments, ("render_workers",), "--render none renders nothing")
    if arguments.scheduler:
        why = "--workers start on this machine, --scheduler has its own"
        refuse_options(arguments, ("workers",), why)
    else:
        why = "Without --scheduler the workers are processes of this machine"
        refuse_options(arguments, ("wait_workers",), why)


def _refuse_idle_of_sweep(arguments: argparse.Namespace) -> None:
    if arguments.server:
        names = {"records", *_SWEEP_LISTS, "truth", "retry_failed"}
        names |= _settings_but(arguments, (*OF_SERVERS, "prompt", "ignore_eos", "seed", PRICE))
        refuse_options(arguments, names, "--server is loaded as it is")
        if arguments.lengths is not None and len(arguments.lengths) > 1:
            raise OcrPhasesError(
                "Every page of a load test has the same limit of new tokens: give "
                "--max-new-tokens one number."
            )
    else:
        names = {"concurrency", "rate", "pages", "requests", "slo"}
        refuse_options(arguments, names, "Only a --server is loaded")
        refuse_options(arguments, WAITS, "Only a --server is waited for")
        refuse_of_servers(arguments)
    if arguments.records:
        names = {*_SWEEP_LISTS, "max_new_tokens", "retry_failed"}
        names |= _settings_but(arguments, (PRICE,))
        refuse_options(arguments, names, "--records shows what was measured")
    if arguments.ignore_eos:
        why = "A reference text needs texts that end at the end token, which --ignore-eos ignores"
        refuse_options(arguments, ("truth",), why)


def _refuse_idle_of_compare(arguments: argparse.Namespace) -> None:
    if arguments.fail_above is None:
        why = "--metric says which figure --fail-above looks at, and --fail-above is not given"
        refuse_options(arguments, ("metric",), why)
    if arguments.baseline is None:
        refuse_options(arguments, ("last",), "Only --baseline takes records from a folder")
        if not arguments.records:
            raise OcrPhasesError(
                "A comparison needs at least two records: name another one, or --baseline DIR."
            )
    elif arguments.records:
        raise OcrPhasesError("--baseline compares one record: name no other one beside it.")


def _refuse_beside_published(arguments: argparse.Namespace) -> None:
    why = "--published measures its own pages, with settings that make results comparable"
    if arguments.page is not None:
        raise OcrPhasesError(f"{why}: drop {arguments.page}.")
    names = {"record", "server", "truth", "save", *WAITS}
    names |= _settings_but(arguments, BESIDE_PUBLISHED)
    refuse_options(arguments, names, why)


# -- rules of several verbs --------------------------------------------------------------------


def _refuse_beside_no_image(arguments: argparse.Namespace, pages: Sequence[str]) -> None:
    why = "--no-image measures a prompt without a page, with a model that is loaded here"
    if pages:
        raise OcrPhasesError(f"{why}: drop {', '.join(pages)}.")
    names = {"record", "from", "truth", "server", "dry_run", "card", "cards", "batch"}
    refuse_options(arguments, names, why)


def _refuse_beside_server(arguments: argparse.Namespace) -> None:
    if "--server" in arguments.given:  # its address is the setting `model`
        refuse_options(arguments, _OF_LOADING, "--server has its model, on its device")
        if not is_address(arguments.model):  # the sentence does not repeat it: it may have a key
            raise OcrPhasesError("--server is no address: give http://HOST:PORT/v1, or https.")
    elif is_address(arguments.model):  # the same in another way
        names = [name for name in _OF_LOADING if name != "model"]
        refuse_options(arguments, names, "A server has its model, on its device")


def _refuse_beside_record(arguments: argparse.Namespace) -> None:
    if arguments.record:
        names = {"server", "trace", "show_text", *WAITS} | _settings_but(arguments, (PRICE,))
        refuse_options(arguments, names, "--record shows what was measured")


def _refuse_truth_without_text(arguments: argparse.Namespace) -> None:
    if not arguments.return_text:
        why = "A reference text is compared with the text, which --no-return-text leaves out"
        refuse_options(arguments, ("truth",), why)


def _refuse_steps_without_kernels(arguments: argparse.Namespace) -> None:
    if not arguments.kernels and not arguments.trace:
        why = "No kernels are profiled without --kernels or --trace"
        refuse_options(arguments, ("kernel_steps",), why)


def _settings_but(arguments: argparse.Namespace, kept: Collection[str]) -> set[str]:
    """The settings of the verb that have an option, but those that are kept."""
    return set(SETTINGS[arguments.verb]) - set(kept)
