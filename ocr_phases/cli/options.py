"""The options of the measuring verbs, generated from `Settings`."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import Field, fields
from pathlib import Path
from typing import Any

from ocr_phases.settings import ModelSettings, RunSettings, Settings, help_text, kind, setting_names

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


class _Value(argparse.Action):
    """Store an option's value, and its name in ``asked``, because a default may be given explicitly."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: Any = None
    ) -> None:
        setattr(namespace, self.dest, values)
        namespace.asked = [*namespace.asked, self.dest]


class _Switch(argparse.BooleanOptionalAction):
    """The same for ``--name`` and ``--no-name``."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, values: Any, option: Any = None
    ) -> None:
        super().__call__(parser, namespace, values, option)
        namespace.asked = [*namespace.asked, self.dest]


def add_settings(command: argparse.ArgumentParser, wanted: Sequence[str], **defaults: Any) -> None:
    """An option for each of the settings ``wanted``; ``defaults`` are this verb's own."""
    for title, group in (("model", ModelSettings), ("measurement", RunSettings)):
        options = command.add_argument_group(title)
        for setting in fields(group):
            if setting.name in wanted:
                _add(options, setting)
    known = {setting.name: setting.default for setting in fields(Settings)}
    command.set_defaults(**{**{name: known[name] for name in wanted}, **defaults}, asked=[])


def _add(options: Any, setting: Field[Any]) -> None:
    name = f"--{setting.name.replace('_', '-')}"
    text = help_text(setting).replace("%", "%%")
    if kind(setting) == "bool":
        options.add_argument(name, action=_Switch, help=text)
        return
    if setting.default is not None:
        text = f"{text} (default: %(default)s)"
    is_int = kind(setting) == "int"
    options.add_argument(
        name, action=_Value, type=int if is_int else str, metavar="N" if is_int else "TEXT", help=text
    )


def settings_of(arguments: argparse.Namespace) -> Settings:
    """The settings of these options; `OcrPhasesError` for a wrong one."""
    return Settings.among(vars(arguments))


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
    """Names from a comma-separated list."""
    return [part.strip() for part in text.split(",") if part.strip()]


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
