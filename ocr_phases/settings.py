"""Settings: every setting of a measurement, declared once; needs no torch.

These fields define the keywords of `OCRSession.load` and ``run_inference``, the command line's
options, the notebooks' parameters, the explorer's fields, the columns of a list of pages, the record's
request and docs/settings.md; tests compare them.
"""

import functools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import Field, asdict, dataclass, field, fields
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal, Self, TypeGuard, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from ocr_phases.errors import OcrPhasesError, checked, short
from ocr_phases.families import PRESET_NAMES, PROMPTS, check_preset, facts_of, resolve_prompt
from ocr_phases.text import nearest

Strategy = Literal["eager", "cuda_graph", "compiled"]
Vision = Literal["eager", "compiled"]

#: How a decode step is executed; what each does is in `ocr_phases.steps.execution`.
STRATEGIES: tuple[str, ...] = get_args(Strategy)
#: How the vision encoders run in the prefill.
VISIONS: tuple[str, ...] = get_args(Vision)

NEW_TOKENS = 512
"""Most new tokens where nobody says."""

LARGEST_NUMBER = 2**63 - 1
"""Largest whole number of a setting: what a seed may be, and what every reader of a record can hold."""

MOST_TOKENS = 1_000_000
"""Most tokens or steps that a setting may ask for."""

FromZero = Annotated[int, Meta(ge=0, le=LARGEST_NUMBER)]
Steps = Annotated[int, Meta(ge=1, le=MOST_TOKENS)]

#: Settings of no one type: what reads them checks them.
_FREE = ("prompt", "infer", "kernel_trace")
_WORDS = {"int": "a whole number", "float": "a number", "bool": "True or False", "str": "a text"}


def _setting(default: Any, text: str, *, kept: bool = True) -> Any:
    """A field with its help; its declared type is checked."""
    return field(default=default, metadata={"text": text, "kept": kept})


@functools.cache
def _declared(settings: type) -> dict[str, Any]:
    """The declared types of settings, ``| None`` left out."""
    hints = get_type_hints(settings, include_extras=True)
    return {
        name: get_args(hint)[0] if NoneType in get_args(hint) else hint
        for name, hint in hints.items()
        if name not in _FREE
    }


def _check(settings: Any, declared: type, owner: str = "") -> None:
    """Hold the fields of ``declared`` against their types; raise `OcrPhasesError` for the first wrong one."""
    default = {item.name: item.default for item in fields(declared)}
    for name, wanted in _declared(declared).items():
        value = getattr(settings, name)
        if value is not None or default[name] is not None:
            object.__setattr__(settings, name, _converted(f"{owner}{name}", value, wanted))


def _converted(name: str, value: Any, wanted: Any, *, strict: bool = True) -> Any:
    """A value as its declared type, read from a text where not ``strict``; else `OcrPhasesError`."""
    if isinstance(value, float):
        value = float(value)  # numpy's are no floats to msgspec
    try:
        value = msgspec.convert(value, wanted, strict=strict)
    except ValueError as error:
        choices = get_args(wanted) if get_origin(wanted) is Literal else ()
        if choices:
            hint = nearest(str(value), choices)
            raise OcrPhasesError(f"Unknown {name} {value!r}: use {' or '.join(choices)}.{hint}") from error
        problem = str(error).partition(",")[0].removeprefix("Expected ").replace("`", "")
        told = re.sub(r"\w+", lambda word: _WORDS.get(word[0], word[0]), problem)
        raise OcrPhasesError(f"{name} is {short(value)}: give {told}.") from error
    if isinstance(value, str):
        check_text(name, value)
    return value


@dataclass(frozen=True)
class SamplingSettings:
    """How the next token is chosen; ``top_k=0`` and ``top_p=1`` mean off.

    ``no_repeat_ngram_window`` is how many of the last tokens the n-gram rule looks at, 0 for all.
    Raises `OcrPhasesError` for a value of a wrong type or out of range.
    """

    do_sample: bool = False
    # Logits divided by less or by more overflow or underflow float32.
    temperature: Annotated[float, Meta(ge=1e-30, le=1e30)] = 1.0
    top_p: Annotated[float, Meta(ge=1e-30, le=1)] = 1.0
    top_k: FromZero = 0
    no_repeat_ngram_size: FromZero = 0
    no_repeat_ngram_window: FromZero = 0

    def __post_init__(self) -> None:
        _check(self, SamplingSettings, "infer's ")
        if self.no_repeat_ngram_window and not self.no_repeat_ngram_size:
            raise OcrPhasesError("infer's no_repeat_ngram_window is for a no_repeat_ngram_size: give both.")

    @classmethod
    def from_infer(cls, infer: Mapping[str, Any] | None) -> Self:
        """Read an ``infer`` mapping (temperature 0 means greedy); `OcrPhasesError` for a wrong one."""
        if not isinstance(infer, Mapping | None):
            raise OcrPhasesError(f'infer is {infer!r}: give a mapping, such as {{"temperature": 0.7}}.')
        infer = dict(infer or {})
        known = [item.name for item in fields(cls)]
        unknown = sorted(map(str, set(infer) - set(known)))
        if unknown:
            hint = nearest(unknown[0], known)
            raise OcrPhasesError(
                f"infer does not know {', '.join(unknown)}; it knows {', '.join(known)}.{hint}"
            )
        if infer.get("do_sample") and infer.get("temperature") == 0:
            raise OcrPhasesError("infer asks for do_sample with temperature 0: drop one of the two.")
        if infer.get("temperature") == 0:
            infer.update(do_sample=False, temperature=1.0)
        elif "temperature" in infer and "do_sample" not in infer:
            infer["do_sample"] = True
        return cls(**infer)

    def described(self) -> dict[str, Any]:
        """As a record keeps them; a window only where there is one."""
        values = asdict(self)
        return values if self.no_repeat_ngram_window else _without_window(values)

    def as_generate(self) -> dict[str, Any]:
        """The same settings as keyword arguments of ``generate()``, but for a rule over a window."""
        arguments = _without_window(asdict(self))
        if self.no_repeat_ngram_window:
            arguments["no_repeat_ngram_size"] = 0
        if not self.do_sample:
            arguments = {name: arguments[name] for name in ("do_sample", "no_repeat_ngram_size")}
        return arguments


def _without_window(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name != "no_repeat_ngram_window"}


def resolve_infer(
    infer: SamplingSettings | Mapping[str, Any] | str | None,
    autocast: bool | None,
    family: str | None = None,
    *,
    several_pages: bool = False,
) -> tuple[SamplingSettings, bool]:
    """The sampling settings and autocast of a run.

    ``infer`` is a mapping, the same as text (``temperature=0.7,top_p=0.9``), or a name. A name stands for
    what the ``family``'s published ``infer()`` does: greedy, its n-gram rule (``published-eval``: with its
    ``eval_mode``; ``several_pages``: of a prompt with several), under bfloat16 autocast. Raises
    `OcrPhasesError` for another name, for a name with ``autocast=False``, and as
    `SamplingSettings.from_infer` does.
    """
    if isinstance(infer, SamplingSettings):
        return infer, bool(autocast)
    if not isinstance(infer, str):
        return SamplingSettings.from_infer(infer), bool(autocast)
    if not is_published(infer):
        return SamplingSettings.from_infer(_infer_mapping(infer)), bool(autocast)
    facts = facts_of(family)
    if infer not in facts.published:
        known = " or ".join(facts.published)
        raise OcrPhasesError(
            f"There is no infer {infer!r}: use {known}, or values such as temperature=0.7."
            f"{nearest(infer, facts.published)}"
        )
    if autocast is False:
        raise OcrPhasesError(f"infer={infer!r} runs under autocast: drop autocast=False, or the name.")
    values = dict(facts.published[infer])
    if values and several_pages:
        values.update(facts.multipage_infer)
    return SamplingSettings.from_infer(values), True


def is_published(infer: object) -> TypeGuard[str]:
    """Whether an ``infer`` names what a published ``infer()`` does, and gives no values."""
    return isinstance(infer, str) and "=" not in infer


def _infer_mapping(text: str) -> dict[str, Any]:
    """``temperature=0.7,top_k=5`` as a mapping; values as JSON writes them."""
    try:
        pairs = [part.split("=", 1) for part in text.split(",")]
        return {name.strip(): json.loads(value.lower()) for name, value in pairs}
    except ValueError as error:
        raise OcrPhasesError(
            f"infer is {text!r}: write name=number, such as temperature=0.7,top_p=0.9."
        ) from error


@checked()
@dataclass(frozen=True, kw_only=True)
class ModelSettings:
    """Which model is measured, and where: the keywords of `OCRSession.load`.

    ``dtype`` may be a ``torch.dtype``; its name is kept. Raises `OcrPhasesError` for an unknown choice.
    """

    model: str = _setting(
        "tiny",
        "tiny (built in), dummy or dummy:FAMILY (full size, random weights), a folder or a hub id",
    )
    device: str = _setting("auto", "auto, cpu, cuda or cuda:N")
    dtype: Literal["float32", "bfloat16", "float16"] | None = _setting(
        None, "float32, bfloat16 or float16; by default the device's own"
    )
    revision: str | None = _setting(None, "commit, tag or branch of a hub id; by default its main branch")
    implementation: Literal["native", "vendor"] = _setting(
        "native", "native (transformers' class) or vendor (the checkpoint's own Python files)"
    )
    trust_remote_code: bool = _setting(False, "run the checkpoint's Python files; vendor needs it")
    attention: str | None = _setting(
        None, "vendor: eager, sdpa or flash_attention_2; by default the class's own"
    )
    cuda_calls: Literal["refuse", "ignore"] = _setting(
        "refuse", "vendor on a CPU: refuse or ignore the code's .cuda() calls"
    )

    def __post_init__(self) -> None:
        if self.dtype is not None:
            object.__setattr__(self, "dtype", str(self.dtype).removeprefix("torch."))
        _check(self, ModelSettings)


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """What a run does: the keywords of `OCRSession.run_inference`.

    Raises `OcrPhasesError` for the first setting that is wrong for every page and model.
    """

    prompt: str | Sequence[str] = _setting("markdown", f"{', '.join(PROMPTS)}:words, or your own text")
    preset: str | None = _setting(None, f"{', '.join(PRESET_NAMES)}; by default the model's own")
    max_new_tokens: Steps | None = _setting(
        None, "most tokens, the prefill's included; by default 512, or a published infer's limit"
    )
    infer: SamplingSettings | Mapping[str, Any] | str | None = _setting(
        None,
        "published, published-eval, or temperature, top_p, top_k, no_repeat_ngram_size, ..._window",
    )
    grounding: bool | None = _setting(
        None, "ask for boxes in a prompt of your own (<|grounding|>); by default yes"
    )
    return_text: bool = _setting(True, "keep the text in the record")
    ignore_eos: bool | None = _setting(None, "continue after the end token; by default only for dummy")
    eos_check_every: Steps | None = _setting(
        None, "steps between reads of the end token; by default 1 in eager, else 16"
    )
    first_token: Literal["prefill", "redecode"] = _setting(
        "prefill", "source of token 1: prefill, or redecode (decodes the last prompt token again)"
    )
    repeats: Annotated[int, Meta(ge=1, le=10_000)] = _setting(3, "measured runs")
    warmup: Annotated[int, Meta(ge=0, le=10_000)] = _setting(1, "unrecorded runs before them")
    seed: Annotated[int, Meta(ge=-LARGEST_NUMBER, le=LARGEST_NUMBER)] = _setting(0, "seed of the sampling")
    strategy: Strategy = _setting("eager", "how the language model runs")
    vision: Vision = _setting("eager", "how the vision encoders run")
    autocast: bool | None = _setting(None, "run under bfloat16 autocast; by default no")
    embed_page: bool = _setting(True, "keep the page image in the record")
    generate: bool = _setting(False, "time model.generate() instead of prefill and decode")
    verify: bool = _setting(False, "compare the tokens with model.generate(), after the timed runs")
    token_probabilities: bool = _setting(
        True, "keep each token's probability, from one forward after the timed runs", kept=False
    )
    ceilings: bool = _setting(True, "measure the device's best rates, after the timed runs", kept=False)
    kernels: bool = _setting(
        False, "CUDA: profile kernels and host syncs of each stage in one more run", kept=False
    )
    kernel_steps: Steps = _setting(32, "most decode steps of that run", kept=False)
    kernel_trace: str | Path | None = _setting(None, "Chrome trace file of that run (.json.gz)", kept=False)

    def __post_init__(self) -> None:
        for prompt in _as_list(self.prompt):
            check_text("prompt", prompt)
            resolve_prompt(prompt)
        _check(self, RunSettings)
        if self.preset is not None:
            check_preset(self.preset)
        resolve_infer(self.infer, self.autocast)
        if self.generate and self.first_token == "redecode":
            raise OcrPhasesError("generate() has no first_token='redecode': drop one of the two.")
        if self.generate and self.verify:
            raise OcrPhasesError("generate=True has no other tokens to compare: drop it, or verify=True.")
        if self.generate and self.strategy != "eager":
            raise OcrPhasesError(
                f"generate() has its own decode loop: drop it, or strategy={self.strategy!r}."
            )

    @property
    def expected_tokens(self) -> int:
        """The most new tokens, as far as that is known without the model and the page."""
        if self.max_new_tokens is not None:
            return self.max_new_tokens
        return facts_of(None).published_limit if is_published(self.infer) else NEW_TOKENS


@checked()
@dataclass(frozen=True, kw_only=True)
class Settings(RunSettings, ModelSettings):
    """All settings of a measurement, listed in docs/settings.md.

    Use as ``OCRSession.load(**settings.of_model())`` and ``run_inference(page, **settings.of_run())``.
    """

    def __post_init__(self) -> None:
        ModelSettings.__post_init__(self)
        RunSettings.__post_init__(self)

    @classmethod
    def among(cls, values: Mapping[str, Any]) -> Self:
        """Settings from ``values``, such as a notebook's ``globals()``; missing ones take their defaults."""
        return cls(**{name: values[name] for name in setting_names(cls) if name in values})

    def of_model(self) -> dict[str, Any]:
        """The keywords of ``load``."""
        return {name: getattr(self, name) for name in setting_names(ModelSettings)}

    def of_run(self) -> dict[str, Any]:
        """The keywords of ``run_inference``."""
        return {name: getattr(self, name) for name in setting_names(RunSettings)}


#: The settings of a run that its record keeps in ``request``.
REQUEST_SETTINGS = [setting.name for setting in fields(RunSettings) if setting.metadata["kept"]]


def setting_names(settings: type) -> list[str]:
    """The names of a settings class, in order."""
    return [setting.name for setting in fields(settings)]


def declared(setting: Field[Any]) -> Any:
    """The declared type of a setting, without ``| None``; text for one of several types."""
    return _declared(Settings).get(setting.name, str)


def kind(setting: Field[Any]) -> str:
    """What a setting's value is: int, bool or str."""
    wanted = declared(setting)
    return {int: "int", bool: "bool"}.get(getattr(wanted, "__origin__", wanted), "str")


def choices(setting: Field[Any]) -> tuple[str, ...]:
    """The values that a setting may have; empty where they are not listed."""
    return get_args(declared(setting)) if get_origin(declared(setting)) is Literal else ()


def setting_from_text(name: str, text: str) -> Any:
    """A setting's value from a list of pages: ``false``, ``3``; `OcrPhasesError` for a wrong one."""
    return _converted(name, text, _declared(Settings).get(name, str), strict=False)


def help_text(setting: Field[Any]) -> str:
    """A setting's one-line help, with its choices."""
    text, known = str(setting.metadata["text"]), choices(setting)
    return f"{text}: {', '.join(known)}" if known and known[0] not in text else text


def check_text(name: str, value: Any) -> None:
    """Raise `OcrPhasesError` unless the setting ``name`` is a text that UTF-8 can hold."""
    if not isinstance(value, str):
        raise OcrPhasesError(f"{name} is {short(value)}: give a text.")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise OcrPhasesError(f"{name} is {value!a}, which is not valid Unicode: type it again.") from error


@dataclass(frozen=True, kw_only=True)
class Request(RunSettings):
    """What `OCRSession.run_inference` was asked to do, with every default filled in.

    ``pages`` holds one list of pages a row, ``prompts`` one resolved prompt a row.
    """

    pages: list[list[Any]]
    prompt: str
    prompts: list[str]
    preset: str
    preset_choice: str
    max_new_tokens: int
    infer: SamplingSettings
    grounding: bool | None
    ignore_eos: bool
    eos_check_every: int
    autocast: bool

    def described(self) -> dict[str, Any]:
        """The settings as plain JSON values, without the pages."""
        asked = {name: getattr(self, name) for name in REQUEST_SETTINGS}
        return {
            **asked,
            "infer": self.infer.described(),
            "prompts": self.prompts,
            "preset_choice": self.preset_choice,
        }


def _as_list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str | bytes) else [value]
