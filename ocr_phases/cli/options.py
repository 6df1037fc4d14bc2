"""The options of the measuring verbs, generated from `Settings`."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import Field, fields
from pathlib import Path
from typing import Any, NoReturn

from ocr_phases.errors import OcrPhasesError
from ocr_phases.settings import ModelSettings, RunSettings, Settings, help_text, kind, setting_names
from ocr_phases.text import nearest

#: ``--trace`` names this file.
_NO_OPTION = ("kernel_trace",)
#: What ``--kernels`` asks for.
KERNELS = ("kernels", "kernel_steps")
#: Settings of the published remote-code class; a list of pages cannot set them.
VENDOR = ("implementation", "trust_remote_code", "attention", "cuda_calls")
#: The options of every measuring verb.
EVERY = [name for name in setting_names(Settings) if name not in (*_NO_OPTION, *KERNELS)]


#: The settings that a list of pages may have.
BATCH = [name for name in EVERY if name not in (*VENDOR, "revision")]


class Parser(argparse.ArgumentParser):
    """Raises `OcrPhasesError` for a wrong command line, with the nearest name and the verb's own usage.

    ``given`` of its result are the options on the command line, since a default may be given explicitly.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        """Raise the message with the usage of this verb."""
        raise OcrPhasesError(f"{message} ({' '.join(self.format_usage().split())})")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """As argparse's, of which an option that is not known is told here, where its verb is known."""
        known, unknown = super().parse_known_args(args, namespace)
        for word in unknown:
            name = word.partition("=")[0]
            self.error(f"{name} is not known here.{nearest(name, self._option_string_actions)}")
        known.given = [word.partition("=")[0] for word in args if word.startswith("--")]
        return known, unknown

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            known = list(action.choices)
            what = "/".join(action.option_strings) or action.metavar
            self.error(f"There is no {what} {value!r}: use {' or '.join(known)}.{nearest(value, known)}")


def refuse(arguments: argparse.Namespace, settings: Collection[str], why: str) -> None:
    """Raise `OcrPhasesError` where one of ``settings`` was given as an option, which would do nothing."""
    idle = [name for name in arguments.given if name[2:].removeprefix("no-").replace("-", "_") in settings]
    if idle:
        raise OcrPhasesError(f"{why}: drop {', '.join(dict.fromkeys(idle))}.")


def shows_saved(
    arguments: argparse.Namespace, option: str, pages: object, only_measuring: Collection[str]
) -> bool:
    """Whether what ``option`` names is shown in place of measuring ``pages``.

    Raises `OcrPhasesError` for both or neither, and for options that would do nothing then.
    """
    saved = vars(arguments)[option]
    if bool(saved) == bool(pages):
        raise OcrPhasesError(f"Name either what to measure (PAGE) or what was measured (--{option}).")
    if saved:
        refuse(arguments, only_measuring, f"--{option} shows what was measured")
    return bool(saved)


def add_settings(command: argparse.ArgumentParser, wanted: Sequence[str], **defaults: Any) -> None:
    """An option for each of the settings ``wanted``; ``defaults`` are this verb's own."""
    for title, group in (("model", ModelSettings), ("measurement", RunSettings)):
        options = command.add_argument_group(title)
        for setting in fields(group):
            if setting.name in wanted:
                _add(options, setting)
    known = {setting.name: setting.default for setting in fields(Settings)}
    command.set_defaults(**{**{name: known[name] for name in wanted}, **defaults})


def _add(options: Any, setting: Field[Any]) -> None:
    name = f"--{setting.name.replace('_', '-')}"
    text = help_text(setting).replace("%", "%%")
    if kind(setting) == "bool":
        options.add_argument(name, action=argparse.BooleanOptionalAction, help=text)
        return
    if setting.default is not None:
        text = f"{text} (default: %(default)s)"
    is_int = kind(setting) == "int"
    options.add_argument(name, type=int if is_int else str, metavar="N" if is_int else "TEXT", help=text)


def settings_of(arguments: argparse.Namespace) -> Settings:
    """The settings of these options; `OcrPhasesError` for a wrong one."""
    return Settings.among(vars(arguments))


def asks_kernels(arguments: argparse.Namespace) -> bool:
    """Whether ``--kernels`` or ``--trace`` is given; `OcrPhasesError` for ``--kernel-steps`` without."""
    if not (arguments.kernels or arguments.trace):
        refuse(arguments, ("kernel_steps",), "No kernels are profiled without --kernels or --trace")
        return False
    return True


def add_trace(command: argparse.ArgumentParser) -> None:
    """``--trace``."""
    command.add_argument(
        "--trace",
        action="store_true",
        help="same as --kernels, with a Chrome trace beside the record",
    )


def add_truth(command: argparse.ArgumentParser) -> None:
    """``--truth``."""
    command.add_argument(
        "--truth",
        type=Path,
        metavar="PATH",
        help="compare the text with what the page says: a text, Markdown, page JSON or OmniDocBench file, a "
        "record, or a folder that has it by the page's name",
    )


def name_list(text: str) -> list[str]:
    """Names from a comma-separated list, at least one."""
    names = [part.strip() for part in text.split(",") if part.strip()]
    if not names:
        raise argparse.ArgumentTypeError(f"{text!r} is an empty list")
    return names


def number(kind: type[int | float], least: float) -> Callable[[str], float]:
    """An option's type: a number from ``least`` to a thousand million."""

    def read(text: str) -> float:
        try:
            value = kind(text)
        except ValueError:
            value = math.nan
        if not least <= value <= 1e9:
            whole = "whole " if kind is int else ""
            raise argparse.ArgumentTypeError(f"{text!r} is not a {whole}number from {least:g} to 1e9")
        return value

    return read


def add_page(command: argparse.ArgumentParser, **options: Any) -> None:
    """The page, or pages, as the first argument."""
    command.add_argument(**{"dest": "page", "nargs": "?", "metavar": "PAGE", **options}, help=_PAGE)


def add_out(command: argparse.ArgumentParser, default: str, numbered: str = ", or with a number") -> None:
    """``--out`` and ``--overwrite``."""
    command.add_argument(
        "--out", type=Path, metavar="DIR", help=f"output folder (default: {default}{numbered})"
    )
    add_overwrite(command)


def add_overwrite(command: argparse.ArgumentParser) -> None:
    """``--overwrite``."""
    command.add_argument(
        "--overwrite",
        action="store_true",
        help="replace files in the way that this package did not write too",
    )


_PAGE = "image, file.pdf#3, or several as file.pdf#1-8; the same of a TIFF"
