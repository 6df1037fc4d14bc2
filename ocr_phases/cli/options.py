"""Which settings are options of which verb, the parser, and how an option's text is read."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from ocr_phases.errors import Keyword, OcrPhasesError, check_known
from ocr_phases.settings import SIZE_SETTINGS, ModelSettings, Settings, setting_names
from ocr_phases.text import nearest

if TYPE_CHECKING:
    from ocr_phases.analyse.other_cards import CardChoice

#: What ``--kernels`` asks for.
KERNELS = ("kernels", "kernel_steps")
#: Settings of the published remote-code class; a list of pages cannot set them.
VENDOR_SETTINGS = ("implementation", "trust_remote_code", "attention", "cuda_calls")
#: The options of every measuring verb; ``--trace`` names the file of ``kernel_trace``.
EVERY = [name for name in setting_names(Settings) if name not in (*KERNELS, "kernel_trace")]
#: What changes no measurement, so that nothing is measured again for it.
PRICE = "price_per_hour"
#: What a server is told, and no model that is loaded here.
FAMILY = "family"
OF_SERVERS = (FAMILY, "engine", "extra_body")
#: The settings that a list of pages may have.
BATCH = [name for name in EVERY if name not in (*VENDOR_SETTINGS, "revision", PRICE)]
#: The settings of a run that all cells of a sweep share; its lists give the others.
SHARED = ("prompt", *SIZE_SETTINGS, "infer", "threads", "ignore_eos", "repeats", "warmup", "seed")
#: The settings that may be given beside ``--published``: what the weights run on, and how. The
#: page, its prompt and its reference text are fixed, so that files of several people compare.
BESIDE_PUBLISHED = (
    "device",
    "dtype",
    "revision",
    "implementation",
    "trust_remote_code",
    "attention",
    "cuda_calls",
    "preset",
    "max_new_tokens",
    "infer",
    "repeats",
    "warmup",
    "seed",
    "strategy",
    "vision",
    "threads",
    "autocast",
    "ceilings",
    "token_probabilities",
)
#: The settings that are options of a verb.
SETTINGS = {
    "report": [*EVERY, *KERNELS],
    "profile": [*EVERY, *KERNELS],
    "verify": [name for name in EVERY if name not in ("generate", "verify")],
    "sweep": [*setting_names(ModelSettings), *SHARED, PRICE],
    "batch": [*BATCH, PRICE],
}
#: Options that name several values of a setting, or the setting in another way.
_OTHER_OPTIONS = {
    "--models": "model",
    "--presets": "preset",
    "--strategies": "strategy",
    "--visions": "vision",
    "--attentions": "attention",
    "--dtypes": "dtype",
    "--server": "model",
}


def given_options(words: Iterable[str]) -> list[str]:
    """The options among the words of a command line, without their values.

    What stands behind a ``--`` is none.
    """
    before = itertools.takewhile(lambda word: word != "--", words)
    return [word.partition("=")[0] for word in before if word.startswith("--")]


class Parser(argparse.ArgumentParser):
    """Raises `OcrPhasesError` for a wrong command line, with the nearest name and the verb's own
    usage.

    ``given`` of its result are the options on the command line, since a default may be given
    explicitly.
    """

    def error(self, message: str) -> NoReturn:
        """Raise the message with the usage of this verb."""
        raise OcrPhasesError(f"{message} ({' '.join(self.format_usage().split())})")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """As argparse's, of which an option that is not known is told here, where its verb is
        known.
        """
        known, unknown = super().parse_known_args(args, namespace)
        for word in unknown:
            name = word.partition("=")[0]
            self.error(f"{name} is not known here.{nearest(name, self._option_string_actions)}")
        known.given = given_options(args)
        return known, unknown

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        # An empty text is a variable of a shell that is not set: a name of nothing. Those of a verb
        # come here too, all at once, and again as its own.
        if arg_string == "" and action.nargs != argparse.PARSER:
            if action.option_strings:
                name = "/".join(action.option_strings)
                raise OcrPhasesError(f"{name} is empty: give a value, or leave it out.")
            raise OcrPhasesError(f"{action.metavar} is empty: give a value.")
        return super()._get_value(action, arg_string)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None:
            check_known(
                "/".join(action.option_strings) or str(action.metavar), value, list(action.choices)
            )


@dataclass(frozen=True)
class OptionSpelling:
    """Writes a keyword as the option that a verb has in its place: ``--max-new-tokens 64``.

    A keyword without an option stays as Python writes it.
    """

    options: Mapping[str, str]  # a verb's options, by the names of the settings

    @classmethod
    def of_command(cls, arguments: argparse.Namespace) -> OptionSpelling:
        """The spelling of a command; a setting that several options can give has the one that was
        given.
        """
        parsed = vars(arguments)
        options = {name: _option_of(name) for name in parsed}
        for option in parsed.get("given", ()):
            own_name = option.removeprefix("--").replace("-", "_")
            options[own_name] = option
            if option in _OTHER_OPTIONS:
                options[_OTHER_OPTIONS[option]] = option
        return cls(options)

    def __call__(self, keyword: Keyword) -> str:
        """The keyword as an option, or as Python writes it."""
        option = self.options.get(keyword.name)
        if option is None:
            return str(keyword)
        match keyword.value:
            case None | True:
                return option
            case False:
                return f"--no-{option.removeprefix('--')}"
            case value:
                return f"{option} {shlex.quote(str(value))}"


def _option_of(name: str) -> str:
    return "--" + name.replace("_", "-")


def shows_saved(arguments: argparse.Namespace, option: str, pages: object) -> bool:
    """Whether what ``option`` names is shown in place of measuring ``pages``; both or neither is an
    error.
    """
    saved = bool(vars(arguments)[option])
    if saved == bool(pages):
        raise OcrPhasesError(
            f"Name either what to measure (PAGE) or what was measured (--{option})."
        )
    return saved


def name_list(text: str, comma: str = ",") -> list[str]:
    """Names from a list, separated by the regular expression ``comma``; at least one."""
    names = [part.strip() for part in re.split(comma, text) if part.strip()]
    if not names:
        raise argparse.ArgumentTypeError(f"{text!r} is an empty list")
    return names


def model_list(text: str) -> list[str]:
    """Models from a comma-separated list, of which ``dummy:layers=2,experts=8`` is one."""
    models = name_list(text, r",(?!\s*[a-z]+=\d+\s*(?:,|$))")
    return [re.sub(r",\s+", ",", model) for model in models]


def card_list(text: str) -> list[CardChoice]:
    """Cards from a comma-separated list, each with its price of an hour or without:
    ``RTX 4090=0.69,L4``; ``all`` are all that have a datasheet. A card of one's own has its
    figures: ``GTX 1650 (4 GB, 128 GB/s, 5.9 TFLOP/s)``.
    """
    from ocr_phases.analyse.datasheets import DATASHEETS, datasheet_named
    from ocr_phases.analyse.other_cards import CardChoice

    choices: list[CardChoice] = []
    for part in name_list(text, r",(?![^(]*\))"):  # not a comma between the figures of a card
        name, has_price, price = part.partition("=")
        per_hour = None
        if has_price:
            per_hour = number(float, 0)(price)
        if name.strip().lower() == "all":
            choices += [CardChoice(sheet, per_hour) for sheet in DATASHEETS]
        else:
            choices.append(CardChoice(datasheet_named(name), per_hour))
    return choices


def number_list(text: str) -> list[int]:
    """Whole numbers from a comma-separated list."""
    return [int(number(int, 1)(part)) for part in name_list(text)]


def number(kind: type[int | float], least: float, most: float = 1e9) -> Callable[[str], float]:
    """An option's type: a number from ``least`` to ``most``, by default a thousand million."""

    def read(text: str) -> float:
        with contextlib.suppress(ValueError):
            value = kind(text)
            if least <= value <= most:
                return value
        noun = "whole number" if kind is int else "number"
        range_text = f"from {least:g} to {most:g}".replace("1e+09", "1e9")
        raise argparse.ArgumentTypeError(f"{text!r} is not a {noun} {range_text}")

    return read
