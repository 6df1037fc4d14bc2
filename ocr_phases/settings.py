"""What may be asked of a measurement, and what is wrong whatever the page and the model: needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from ocr_phases.errors import OcrPhasesError
from ocr_phases.presets import AUTO, get_preset, resolve_prompt
from ocr_phases.strategies import STRATEGIES, VISIONS

FIRST_TOKENS = ("prefill", "redecode")

LARGEST_NUMBER = 2**63 - 1
"""Largest whole number of a setting: what a seed may be, and what every reader of a record can hold."""

_LEAST = {"max_new_tokens": 1, "eos_check_every": 1, "repeats": 1, "warmup": 0, "seed": -LARGEST_NUMBER}
_SWITCHES = (
    "grounding",
    "return_text",
    "ignore_eos",
    "exact_mask",
    "autocast",
    "embed_page",
    "generate",
    "verify",
    "ceilings",
)
_NAMES = {"first_token": FIRST_TOKENS, "strategy": STRATEGIES, "vision": VISIONS}


# A logit divided by less than this, or by more, is no float32 any more.
_SMALLEST, _LARGEST = 1e-30, 1e30


@dataclass(frozen=True)
class SamplingSettings:
    """How the next token is chosen; ``top_k=0`` and ``top_p=1`` mean off.

    Raises `OcrPhasesError` for a value of a wrong type or out of range.
    """

    do_sample: bool = False
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    no_repeat_ngram_size: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.do_sample, bool):
            raise OcrPhasesError(f"infer's do_sample is {self.do_sample!r}: it must be True or False.")
        for name, kinds, least, most, wanted in (
            ("temperature", (int, float), _SMALLEST, _LARGEST, f"0, or from {_SMALLEST} to {_LARGEST}"),
            ("top_p", (int, float), _SMALLEST, 1, "above 0 and at most 1"),
            ("top_k", int, 0, LARGEST_NUMBER, "a whole number from 0"),
            ("no_repeat_ngram_size", int, 0, LARGEST_NUMBER, "a whole number from 0"),
        ):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, kinds) or not least <= value <= most:
                raise OcrPhasesError(f"infer's {name} is {value!r}: it must be {wanted}.")
            if kinds is not int:  # transformers takes no whole number for these
                object.__setattr__(self, name, float(value))

    @classmethod
    def from_infer(cls, infer: Mapping[str, Any] | None) -> SamplingSettings:
        """Read an ``infer`` mapping, where temperature 0 means greedy; `OcrPhasesError` where it is wrong."""
        if not isinstance(infer, Mapping | None):
            raise OcrPhasesError(f'infer is {infer!r}: give a mapping, such as {{"temperature": 0.7}}.')
        infer = dict(infer or {})
        known = [item.name for item in fields(cls)]
        unknown = sorted(map(str, set(infer) - set(known)))
        if unknown:
            raise OcrPhasesError(f"infer does not know {', '.join(unknown)}; it knows {', '.join(known)}.")
        if infer.get("do_sample") and infer.get("temperature") == 0:
            raise OcrPhasesError("infer asks for do_sample with temperature 0: drop one of the two.")
        if infer.get("temperature") == 0:
            infer.update(do_sample=False, temperature=1.0)
        elif "temperature" in infer and "do_sample" not in infer:
            infer["do_sample"] = True
        return cls(**infer)

    def as_generate(self) -> dict[str, Any]:
        """The same settings as keyword arguments of ``generate()``."""
        arguments = asdict(self)
        if not self.do_sample:
            arguments = {"do_sample": False, "no_repeat_ngram_size": self.no_repeat_ngram_size}
        return arguments


#: The no-repeat n-gram size of the published ``infer()``, by the name of the setting.
PUBLISHED = {"published": 20, "published-eval": 35}


def resolve_infer(infer: dict[str, Any] | str | None, autocast: bool | None) -> tuple[SamplingSettings, bool]:
    """The sampling settings and autocast of a run, where ``infer`` is a mapping or a name of `PUBLISHED`.

    A name stands for what the published ``infer()`` does: greedy, its n-gram size (``published-eval``: with
    its ``eval_mode``), under bfloat16 autocast. Raises `OcrPhasesError` for another name, for a name with
    ``autocast=False``, and as `SamplingSettings.from_infer` does.
    """
    if not isinstance(infer, str):
        return SamplingSettings.from_infer(infer), bool(autocast)
    if infer not in PUBLISHED:
        raise OcrPhasesError(f"There is no infer {infer!r}: use {' or '.join(PUBLISHED)}, or a mapping.")
    if autocast is False:
        raise OcrPhasesError(f"infer={infer!r} runs under autocast: drop autocast=False, or the name.")
    return SamplingSettings(no_repeat_ngram_size=PUBLISHED[infer]), True


def check_settings(settings: Mapping[str, Any]) -> None:
    """Raise `OcrPhasesError` for the first setting of a request that is wrong whatever page and model it has.

    A setting that is left out is not looked at. Needs no torch, so that a batch's driver can ask too.
    """
    if "prompt" in settings:
        check_text("prompt", settings["prompt"])
        resolve_prompt(settings["prompt"])
    if settings.get("preset", AUTO) != AUTO:
        check_text("preset", settings["preset"])
        get_preset(settings["preset"])
    for name, least in _LEAST.items():
        value = settings.get(name, least)
        if not isinstance(value, int) or isinstance(value, bool):
            raise OcrPhasesError(f"{name} is {value!r}: give a whole number.")
        if value < least:
            raise OcrPhasesError(f"{name} is {value}: it must be at least {least}.")
        if value > LARGEST_NUMBER:
            raise OcrPhasesError(f"{name} is larger than {LARGEST_NUMBER}: give a smaller number.")
    for name in _SWITCHES:
        if not isinstance(settings.get(name, False), bool):
            raise OcrPhasesError(f"{name} is {settings[name]!r}: it must be True or False.")
    for name, known in _NAMES.items():
        value = settings.get(name, known[0])
        if value not in known:
            raise OcrPhasesError(f"Unknown {name} {value!r}: use {' or '.join(known)}.")


def check_text(name: str, value: Any) -> None:
    """Raise `OcrPhasesError` where the setting ``name`` is no text that UTF-8 can hold."""
    if not isinstance(value, str):
        raise OcrPhasesError(f"{name} is {value!r}: give a text.")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise OcrPhasesError(f"{name} is {value!a}, which is not valid Unicode: type it again.") from error
