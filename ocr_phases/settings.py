"""Settings: every setting of a measurement, declared once with its help; needs no torch.

These fields define the keywords of `OCRSession.load` and ``run_inference``, the command line's
options, the notebooks' parameters, the explorer's fields, the columns of a list of pages, the
record's request and docs/settings.md; tests compare them.
"""

import functools
import re
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import Field, dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from types import NoneType
from typing import (
    Annotated,
    Any,
    Literal,
    Self,
    TypeGuard,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec
from msgspec import Meta

from ocr_phases.errors import (
    Hinted,
    Keyword,
    SettingError,
    check_known,
    explain_wrong_calls,
    short,
)
from ocr_phases.families import (
    DEEPSEEK_OCR,
    FAMILIES,
    PRESET_NAMES,
    PRESETS_BY_FAMILY,
    PROCESSOR,
    PROMPT_NAMES,
    UNKNOWN,
    Preset,
    ViewSizes,
    facts_of,
    family_of_name,
)

Strategy = Literal["eager", "cuda_graph", "compiled"]
Vision = Literal["eager", "cuda_graph", "compiled"]
Engine = Literal["vllm", "sglang", "llama.cpp", "ollama", "other"]

#: How a decode step is executed; what each does is in `ocr_phases.steps.strategies`.
STRATEGIES: tuple[str, ...] = get_args(Strategy)
#: How the vision encoders run in the prefill.
VISIONS: tuple[str, ...] = get_args(Vision)
#: What the setting ``engine`` may be.
ENGINES: tuple[str, ...] = get_args(Engine)

#: What the setting ``family`` may be.
FAMILY_NAMES = (*FAMILIES, UNKNOWN)

#: Most new tokens where nobody says.
NEW_TOKENS = 512
#: Largest whole number of a setting: what a seed may be, and what every reader of a record can
#: hold.
LARGEST_NUMBER = 2**63 - 1
#: Most tokens or steps that a setting may ask for.
MOST_TOKENS = 1_000_000

FromZero = Annotated[int, Meta(ge=0, le=LARGEST_NUMBER)]
Steps = Annotated[int, Meta(ge=1, le=MOST_TOKENS)]
#: The side of a view in pixels. A token stands for 64 x 64 of them, and a view of 4,096 has 4,161.
ViewSide = Annotated[int, Meta(ge=64, le=4_096)]
Crops = Annotated[int, Meta(ge=1, le=256)]
#: A view has a whole number of tokens on each side.
PIXELS_PER_TOKEN = 64

#: What follows the timed runs and changes nothing in them: no part of a record's request.
_AFTERWARDS = (
    "token_probabilities",
    "ceilings",
    "phase_energy",
    "kernels",
    "kernel_steps",
    "kernel_trace",
)
#: Settings of no one type: what reads them checks them.
_FREE = ("prompt", "infer", "kernel_trace", "pages", "cutting")
_WINDOW = "no_repeat_ngram_window"
_WHITELIST = "whitelist_token_ids"
#: Commas between entries of a text, which those within a list are not.
_BETWEEN_ENTRIES = re.compile(r",(?![^\[\]]*\])")
_Default = TypeVar("_Default")
_WORDS = {"int": "a whole number", "float": "a number", "bool": "True or False", "str": "a text"}


@functools.cache
def _declared(settings: type) -> dict[str, Any]:
    """The declared types of settings, ``| None`` left out."""
    declared_types = {}
    for name, hint in get_type_hints(settings, include_extras=True).items():
        if name in _FREE:
            continue
        choices = get_args(hint)
        declared_types[name] = choices[0] if NoneType in choices else hint
    return declared_types


def _converted(
    name: str, value: Any, wanted: Any, *, strict: bool = True, entry_of: str = ""
) -> Any:
    """A value as its declared type, read from a text where not ``strict``; else `SettingError`.

    ``entry_of`` names the setting that this one is an entry of, if it is.
    """
    field_name = entry_of or name
    subject = f"{entry_of}'s {name}" if entry_of else Keyword(name)
    if isinstance(value, float):
        value = float(value)  # numpy's are no floats to msgspec
    try:
        value = msgspec.convert(value, wanted, strict=strict)
        if isinstance(value, str):
            value.encode()
    except UnicodeEncodeError as error:
        raise SettingError(
            field_name,
            "{subject} is {value!a}, which is not valid Unicode: type it again.",
            subject=subject,
            value=value,
        ) from error
    except ValueError as error:
        if get_origin(wanted) is Literal:
            check_known(Keyword(name), value, get_args(wanted))
        problem = str(error).partition(",")[0].removeprefix("Expected ").replace("`", "")
        expected = re.sub(r"\w+", lambda word: _WORDS.get(word[0], word[0]), problem)
        raise SettingError(
            field_name,
            "{subject} is {value}: give {expected}.",
            subject=subject,
            value=short(value),
            expected=expected,
        ) from error
    return value


class FormGroup(StrEnum):
    """The groups in which a form shows the settings, in its order."""

    PAGE = "Page and prompt"
    VIEWS = "Views of the page"
    GENERATION = "Generation"
    MEASUREMENT = "Measurement"
    MODEL = "Model and device"
    AFTERWARDS = "After the run"


def _setting(
    default: _Default,
    help: str,
    *,
    details: str = "",
    group: FormGroup | None = None,
    label: str = "",
) -> _Default:
    """A field of the settings with its one-line help.

    ``details`` are whole sentences that are shown after it where there is more room than in a line
    of a notebook: on the command line, in docs/settings.md and in a form. ``group`` and ``label``
    say where a form shows it and what it is called there. A form leaves out what has no group: code
    of a checkpoint is allowed by name, in code; a record without phases or text has little to show;
    a form reads the end token after each step, and names no file.
    """
    return field(
        default=default,
        metadata={"help": help, "details": details, "group": group, "label": label},
    )


@dataclass(frozen=True)
class _Checked:
    """Fields held against their declared types; `SettingError` for the first wrong one."""

    _entry_of = ""  # the setting whose entries these fields are

    def __post_init__(self) -> None:
        for name, wanted in _declared(type(self)).items():  # type: ignore[arg-type]
            value = getattr(self, name)
            is_left_open = value is None and getattr(type(self), name) is None
            if not is_left_open:
                checked = _converted(name, value, wanted, entry_of=self._entry_of)
                object.__setattr__(self, name, checked)


@dataclass(frozen=True)
class SamplingSettings(_Checked):
    """How the next token is chosen; ``top_k=0``, ``top_p=1`` and ``repetition_penalty=1`` mean off.

    ``repetition_penalty`` is transformers': scores of all tokens of the prompt and of those
    generated are divided by it where they are positive, else multiplied. ``no_repeat_ngram_window``
    is how many of the last tokens the n-gram rule looks at, 0 for all. ``whitelist_token_ids`` are
    tokens that the rule never forbids, such as those of a table's cells. Raises `SettingError` for
    a value of a wrong type or out of range.
    """

    _entry_of = "infer"

    do_sample: bool = False
    # Logits divided by less or by more overflow or underflow float32.
    temperature: Annotated[float, Meta(ge=1e-30, le=1e30)] = 1.0
    top_p: Annotated[float, Meta(ge=1e-30, le=1)] = 1.0
    top_k: FromZero = 0
    no_repeat_ngram_size: FromZero = 0
    no_repeat_ngram_window: FromZero = 0
    whitelist_token_ids: tuple[FromZero, ...] = ()
    repetition_penalty: Annotated[float, Meta(ge=1e-3, le=1e3)] = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.no_repeat_ngram_window and not self.no_repeat_ngram_size:
            raise SettingError(
                "infer", "infer's no_repeat_ngram_window is for a no_repeat_ngram_size: give both."
            )
        if self.whitelist_token_ids and not self.no_repeat_ngram_size:
            raise SettingError(
                "infer", "infer's whitelist_token_ids is for a no_repeat_ngram_size: give both."
            )

    @classmethod
    def from_infer(
        cls, infer: Mapping[str, Any] | str | None, defaults: Mapping[str, Any] | None = None
    ) -> Self:
        """Read an ``infer`` mapping, also as text: ``temperature=0.7,top_k=5``, values as TOML
        writes them.

        Temperature 0 means greedy. ``defaults`` are a checkpoint's own entries, which those given
        here replace. Raises `SettingError` for a wrong one.
        """
        if isinstance(infer, str):
            try:
                infer = tomllib.loads(_BETWEEN_ENTRIES.sub("\n", infer.lower()))
            except (ValueError, RecursionError) as error:
                raise SettingError(
                    "infer",
                    "{setting} is {infer!r}: write name=number, such as temperature=0.7,top_p=0.9.",
                    setting=Keyword("infer"),
                    infer=infer,
                ) from error
        if not isinstance(infer, Mapping | None):
            raise SettingError(
                "infer",
                '{setting} is {infer!r}: give a mapping, such as {{"temperature": 0.7}}.',
                setting=Keyword("infer"),
                infer=infer,
            )
        given = dict(infer or {})
        for name in given:
            check_known("entry", name, setting_names(cls), "infer")
        values = {"do_sample": False, **(defaults or {}), **given}
        if "temperature" in given and "do_sample" not in given:
            values["do_sample"] = True
        if values.get("temperature") == 0:
            if given.get("do_sample"):
                raise SettingError(
                    "infer", "infer asks for do_sample with temperature 0: drop one of the two."
                )
            values.update(do_sample=False, temperature=1.0)
        return cls(**values)

    def described(self) -> dict[str, Any]:
        """As a record keeps them; a window, a whitelist and a penalty only where there is one."""
        values = dict(vars(self))
        if not self.no_repeat_ngram_window:
            del values[_WINDOW]
        if self.whitelist_token_ids:
            values[_WHITELIST] = list(self.whitelist_token_ids)
        else:
            del values[_WHITELIST]
        if self.repetition_penalty == 1.0:
            del values["repetition_penalty"]
        return values

    def changes(self) -> dict[str, Any]:
        """The settings that have another value than their default."""
        return {
            name: value for name, value in vars(self).items() if value != getattr(type(self), name)
        }

    def as_generate(self) -> dict[str, Any]:
        """The same settings as keyword arguments of ``generate()``, which has no rule of its own
        for a window or a whitelist.
        """
        names = ["do_sample", "no_repeat_ngram_size", "repetition_penalty"]
        if self.do_sample:
            names = setting_names(SamplingSettings)
        not_of_generate = (_WINDOW, _WHITELIST)
        arguments = {name: getattr(self, name) for name in names if name not in not_of_generate}
        if self.has_own_rule:
            arguments["no_repeat_ngram_size"] = 0
        return arguments

    @property
    def has_own_rule(self) -> bool:
        """Whether the n-gram rule is one that ``generate()`` does not have itself."""
        return bool(self.no_repeat_ngram_window or self.whitelist_token_ids)


def resolve_infer(
    infer: SamplingSettings | Mapping[str, Any] | str | None,
    autocast: bool | None,
    family: str | None = None,
    *,
    several_pages: bool = False,
    defaults: Mapping[str, Any] | None = None,
) -> tuple[SamplingSettings, bool]:
    """The sampling settings and autocast of a run.

    ``infer`` is a mapping, the same as text (``temperature=0.7,top_p=0.9``), or a name. A name
    stands for what the ``family``'s published ``infer()`` does: greedy, its n-gram rule
    (``published-eval``: with its ``eval_mode``; ``several_pages``: of a prompt with several), under
    bfloat16 autocast; or for what one of its scripts for vLLM asks for (``published-vllm`` of an
    image, ``published-vllm-pdf``, ``published-vllm-eval``), without autocast. ``defaults`` are the
    checkpoint's own settings, for what ``infer`` does not say. Raises `SettingError` for another
    name, for a name with ``autocast=False`` that runs under autocast, and as
    `SamplingSettings.from_infer` does.
    """
    if isinstance(infer, SamplingSettings):
        return infer, bool(autocast)
    if not is_published(infer):
        return SamplingSettings.from_infer(infer, defaults), bool(autocast)
    facts = facts_of(family or DEEPSEEK_OCR)
    if facts.is_unknown:
        raise SettingError(
            "infer",
            "What infer() {family} has is unknown: leave {name} out.",
            family=facts.title,
            name=Keyword("infer", infer),
        )
    if infer in facts.published_vllm:
        values = dict(facts.published_vllm[infer])
        return SamplingSettings.from_infer({"temperature": 0, **values}, defaults), bool(autocast)
    names = [*facts.published, *facts.published_vllm]
    check_known(Keyword("infer"), infer, names, more=", or values such as temperature=0.7")
    if autocast is False:
        raise SettingError(
            "autocast",
            "{name} runs under autocast: drop {without_autocast}, or the name.",
            name=Keyword("infer", infer),
            without_autocast=Keyword("autocast", False),
        )
    values = dict(facts.published[infer])
    if values and several_pages:
        values.update(facts.multipage_infer)
    return SamplingSettings.from_infer({"temperature": 0, **values}, defaults), True


def is_published(infer: object) -> TypeGuard[str]:
    """Whether an ``infer`` names what a published ``infer()`` does, and gives no values."""
    return isinstance(infer, str) and "=" not in infer


@dataclass(frozen=True, kw_only=True)
class ModelSettings(_Checked):
    """Which model is measured, and where: the keywords of `OCRSession.load`.

    ``dtype`` may be a ``torch.dtype``; its name is kept. Raises `SettingError` for an unknown
    choice.
    """

    model: str = _setting(
        "tiny",
        "tiny (built in), dummy[:FAMILY] (random weights), a folder or a hub id",
        details="tiny is a small model for demonstrations. dummy is DeepSeek-OCR at full size; "
        "dummy:deepseek-ocr-2 and dummy:unlimited-ocr are the other two families.",
        group=FormGroup.MODEL,
        label="Model",
    )
    device: str = _setting(
        "auto",
        "auto (a CUDA GPU, otherwise the CPU), cpu, cuda, cuda:N or mps",
        group=FormGroup.MODEL,
        label="Device",
    )
    dtype: Literal["float32", "bfloat16", "float16"] | None = _setting(
        None,
        "dtype of the weights: float32, bfloat16 or float16; the default is the device's",
        details="That is float32 on a CPU, bfloat16 on a GPU that computes with it, and float16 on "
        "other GPUs.",
        group=FormGroup.MODEL,
        label="Data type of the weights",
    )
    revision: str | None = _setting(
        None,
        "commit, tag or branch of a model on the hub; the default is its main branch",
        group=FormGroup.MODEL,
        label="Revision of a hub id",
    )
    implementation: Literal["native", "vendor"] = _setting(
        "native", "native (transformers' class) or vendor (the checkpoint's own code)"
    )
    trust_remote_code: bool = _setting(
        False, "allow the checkpoint's Python code to run, as vendor needs"
    )
    attention: Literal["eager", "sdpa", "flash_attention_2"] | None = _setting(
        None,
        "implementation of attention: eager, sdpa or flash_attention_2",
        details="By default it is sdpa if the model's class has it, and otherwise eager. This "
        "eager is the plain code of transformers, and is not the strategy of that name.",
    )
    cuda_calls: Literal["refuse", "ignore"] = _setting(
        "refuse",
        "for vendor on a CPU: refuse or ignore the .cuda() calls in its code",
        details="The vendor's code makes such calls, and they fail without a GPU.",
    )
    family: str | None = _setting(
        None,
        "a server's model family: deepseek-ocr, deepseek-ocr-2, unlimited-ocr, unknown",
        details="By default it follows from what the server reports, or from the name of its "
        "model. For an unknown family no preset is assumed.",
        group=FormGroup.MODEL,
        label="Family of a server's model",
    )
    engine: Engine | None = _setting(
        None,
        "server software if a proxy hides it: vllm, sglang, llama.cpp, ollama, other",
        group=FormGroup.MODEL,
        label="Engine of a server",
    )
    extra_body: str | None = _setting(
        None,
        'JSON object that is added to each request: {{"priority": 1}} (servers only)',
        group=FormGroup.MODEL,
        label="Extra JSON for a server",
    )

    def __post_init__(self) -> None:
        if self.dtype is not None:
            object.__setattr__(self, "dtype", str(self.dtype).removeprefix("torch."))
        super().__post_init__()
        if self.family is not None:
            check_known(Keyword("family"), self.family, FAMILY_NAMES)


@dataclass(frozen=True, kw_only=True)
class RunSettings(_Checked):
    """What a run does: the keywords of `OCRSession.run_inference`.

    Raises `SettingError` for the first setting that is wrong for every page and model.
    """

    prompt: str | Sequence[str] = _setting(
        "markdown",
        "{prompts}, any text",
        details="A name stands for a prompt of the model's family; any other text is a prompt of "
        "your own.",
        group=FormGroup.PAGE,
        label="Prompt",
    )
    preset: str | None = _setting(
        None,
        "{presets}; or the model's own",
        details=f"{PRESETS_BY_FAMILY} By default it is that of the model. A preset says to which "
        "resolution the page is scaled, and whether it is also cut into crops.",
        group=FormGroup.PAGE,
        label="Preset",
    )
    base_size: ViewSide | None = _setting(
        None,
        "side of the whole page's view in pixels, if the page is cut into crops",
        details="The default is that of the preset.",
        group=FormGroup.VIEWS,
        label="Pixels of the global view",
    )
    image_size: ViewSide | None = _setting(
        None,
        "side of a crop in pixels, or of the only view of a page that is not cut",
        details="The default is that of the preset.",
        group=FormGroup.VIEWS,
        label="Pixels of a crop",
    )
    crop_mode: bool | None = _setting(
        None,
        "cut a large page into crops; the default is what the preset does",
        group=FormGroup.VIEWS,
        label="Cut a large page",
    )
    min_crops: Crops | None = _setting(
        None,
        "minimum number of crops of a page that is cut; the default is 2",
        group=FormGroup.VIEWS,
        label="Minimum number of crops",
    )
    max_crops: Crops | None = _setting(
        None,
        "maximum number of crops; the default depends on the family: 9, 6 or 32",
        details="It is 9 for DeepSeek-OCR, 6 for DeepSeek-OCR-2 and 32 for Unlimited-OCR.",
        group=FormGroup.VIEWS,
        label="Maximum number of crops",
    )
    max_new_tokens: Steps | None = _setting(
        None,
        "maximum number of new tokens, including the first; the default is 512",
        group=FormGroup.GENERATION,
        label="Maximum new tokens",
    )
    infer: SamplingSettings | Mapping[str, Any] | str | None = _setting(
        None,
        "sampling: values of temperature, top_p, top_k, ..., or a name (published)",
        details="Values are given as temperature=0.7,top_p=0.9. By default the model always takes "
        "the token with the highest score (greedy decoding). published and published-eval are the "
        "settings of the vendor's infer().",
        group=FormGroup.GENERATION,
        label="Sampling",
    )
    grounding: bool | None = _setting(
        None,
        "ask for boxes in a prompt of your own (<|grounding|>); the default is yes",
        group=FormGroup.PAGE,
        label="Ask for boxes",
    )
    return_text: bool = _setting(True, "keep the text that the model wrote in the record")
    ignore_eos: bool | None = _setting(
        None,
        "continue after the end token; by default only random weights do so",
        group=FormGroup.GENERATION,
        label="Continue after the end token",
    )
    eos_check_every: Steps | None = _setting(
        None, "look for the end token every N steps; default: 1 in eager, else 16"
    )
    first_token: Literal["prefill", "redecode"] = _setting(
        "prefill",
        "what computes token 1: prefill, or a decode step (redecode)",
        details="With redecode, token 1 has the latency of a decode step as all others have. The "
        "tokens are the same.",
        group=FormGroup.GENERATION,
        label="Source of token 1",
    )
    repeats: Annotated[int, Meta(ge=1, le=10_000)] = _setting(
        3,
        "number of measured runs; a time is the median over them",
        group=FormGroup.MEASUREMENT,
        label="Repeats",
    )
    warmup: Annotated[int, Meta(ge=0, le=10_000)] = _setting(
        1,
        "number of warm-up runs before the measured ones; they are not recorded",
        group=FormGroup.MEASUREMENT,
        label="Warm-up runs",
    )
    warm_once: bool = _setting(
        False,
        "skip the warm-up if the loaded model has run inputs of this shape before",
        group=FormGroup.MEASUREMENT,
        label="Warm up each shape once",
    )
    seed: Annotated[int, Meta(ge=-LARGEST_NUMBER, le=LARGEST_NUMBER)] = _setting(
        0,
        "seed of the random numbers for sampling",
        group=FormGroup.GENERATION,
        label="Seed for sampling",
    )
    strategy: Strategy = _setting(
        "eager",
        "how the language model runs",
        details="With eager, Python launches each kernel. With cuda_graph, one launch replays all "
        "kernels of a step. With compiled, torch.compile makes fewer and faster kernels, "
        "which on a GPU are replayed as well.",
        group=FormGroup.MEASUREMENT,
        label="Strategy of the language model",
    )
    vision: Vision = _setting(
        "eager",
        "how the vision encoders run",
        details="The values mean what they mean for the language model.",
        group=FormGroup.MEASUREMENT,
        label="Strategy of the encoders",
    )
    threads: Annotated[int, Meta(ge=1, le=1_024)] | None = _setting(
        None,
        "number of CPU threads that torch uses; the default is torch's own choice",
        group=FormGroup.MODEL,
        label="CPU threads",
    )
    autocast: bool | None = _setting(
        None,
        "run under torch's bfloat16 autocast, as published does; the default is no",
        group=FormGroup.MODEL,
        label="bfloat16 autocast",
    )
    embed_page: bool = _setting(
        True,
        "keep the image of the page in the record",
        group=FormGroup.PAGE,
        label="Keep the page image",
    )
    generate: bool = _setting(
        False, "time model.generate() as a whole, instead of prefill and decode"
    )
    verify: bool = _setting(
        False,
        "compare the tokens with those of model.generate(), after the timed runs",
        group=FormGroup.AFTERWARDS,
        label="Compare with generate()",
    )
    token_probabilities: bool = _setting(
        True,
        "compute each token's probability, after the timed runs",
        group=FormGroup.AFTERWARDS,
        label="Token probabilities",
    )
    ceilings: bool = _setting(
        True,
        "measure the device's peak rates, after the timed runs",
        details="The floors are computed from these rates, and without them from the device's "
        "datasheet if there is one.",
        group=FormGroup.AFTERWARDS,
        label="Peak rates of the device",
    )
    phase_energy: bool = _setting(
        False,
        "measure each phase's energy, by repeating it after the timed runs",
        group=FormGroup.AFTERWARDS,
        label="Energy of each phase",
    )
    kernels: bool = _setting(
        False,
        "record the kernels and host syncs of each stage in one more run (CUDA only)",
        details="In a host sync, the program waits for the GPU.",
        group=FormGroup.AFTERWARDS,
        label="Kernels of each stage (CUDA)",
    )
    kernel_steps: Steps = _setting(32, "maximum number of decode steps whose kernels are recorded")
    kernel_trace: str | Path | None = _setting(
        None, "file for a Chrome trace of the kernels (.json.gz)"
    )
    price_per_hour: Annotated[float, Meta(gt=0, le=2**24)] | None = _setting(
        None,
        "price of the machine per hour, for the price of 1,000 pages",
        group=FormGroup.AFTERWARDS,
        label="Price of the machine per hour",
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for prompt in self._all_prompts:
            if not _converted("prompt", prompt, str).strip():
                raise SettingError("prompt", "The prompt is empty: write one, or leave it out.")
        self._check_sizes()
        resolve_infer(self.infer, self.autocast)
        if self.generate:
            self._check_one_shot()

    @property
    def _all_prompts(self) -> Sequence[str]:
        """The prompts, also where it is one for all rows."""
        if isinstance(self.prompt, Sequence) and not isinstance(self.prompt, str | bytes):
            return self.prompt
        return [self.prompt]

    def _check_sizes(self) -> None:
        """Raise `SettingError` for sizes that no view can have, or that contradict each other."""
        for name, side in (("base_size", self.base_size), ("image_size", self.image_size)):
            if side is not None and side % PIXELS_PER_TOKEN != 0:
                below = side - side % PIXELS_PER_TOKEN
                raise SettingError(
                    name,
                    "{size} is no multiple of {token_side}, the pixels of a token's side: give "
                    "{below} or {above}.",
                    size=Keyword(name, side),
                    token_side=PIXELS_PER_TOKEN,
                    below=below,
                    above=below + PIXELS_PER_TOKEN,
                )
        ViewSizes.from_settings(self)

    def _check_one_shot(self) -> None:
        """Raise `SettingError` for a setting that ``generate=True`` leaves no room for."""
        if self.first_token != "prefill":
            raise SettingError(
                "first_token",
                "generate() has no {first_token}: drop one of the two.",
                first_token=Keyword("first_token", self.first_token),
            )
        if self.verify:
            raise SettingError(
                "verify",
                "{generate} has no other tokens to compare: drop it, or {verify}.",
                generate=Keyword("generate", True),
                verify=Keyword("verify", True),
            )
        if self.strategy != "eager":
            raise SettingError(
                "strategy",
                "generate() has its own decode loop: drop it, or {strategy}.",
                strategy=Keyword("strategy", self.strategy),
            )

    @property
    def expected_tokens(self) -> int:
        """The most new tokens, as far as that is known without the model and the page."""
        if self.max_new_tokens is not None:
            return self.max_new_tokens
        if is_published(self.infer):
            return FAMILIES[DEEPSEEK_OCR].published_limit or NEW_TOKENS
        return NEW_TOKENS


@dataclass(frozen=True, kw_only=True)
class Settings(Hinted, RunSettings, ModelSettings):
    """All settings of a measurement, listed in docs/settings.md.

    Use as ``OCRSession.load(**settings.of_model())`` and ``run_inference(page,
    **settings.of_run())``. The names of prompts and presets are a family's. `run_inference` checks
    them by the model's, and here they are checked as far as the model's name tells it, so that a
    misspelt one is refused before anything is loaded.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.preset is not None:
            self.check_preset(self.preset)
        if not self.names_known_family:
            return
        for prompt in self._all_prompts:
            if prompt.strip() not in PROMPT_NAMES:  # of some family
                FAMILIES[DEEPSEEK_OCR].text_of(prompt)

    @property
    def names_known_family(self) -> bool:
        """Whether the model is said to be of one of `FAMILIES`, by its name or by ``family``."""
        if self.family is not None:
            return self.family in FAMILIES
        is_built_in = self.model.partition(":")[0] in ("tiny", "dummy")
        return is_built_in or family_of_name(self.model) != UNKNOWN

    def check_preset(self, preset: str, keyword: str = "preset") -> None:
        """Raise `SettingError` for a preset that no model has.

        ``keyword`` is the setting that gave it. The presets of the known families are named only
        where the model is said to be of one of them.
        """
        if preset == PROCESSOR:  # that of a model of unknown family
            return
        if self.names_known_family:
            check_known(Keyword(keyword), preset, PRESET_NAMES)
        elif preset not in PRESET_NAMES:
            raise SettingError(
                keyword,
                f"There is no preset {preset!r}: leave it out, and the page is cut as the model's "
                "own processor cuts it.",
            )

    @classmethod
    def among(cls, values: Mapping[str, Any]) -> Self:
        """Settings from ``values``, such as a notebook's ``globals()``; missing ones take their
        defaults.
        """
        return cls(**{name: values[name] for name in setting_names(cls) if name in values})

    def of_model(self) -> dict[str, Any]:
        """The keywords of ``load``."""
        return {name: getattr(self, name) for name in setting_names(ModelSettings)}

    def of_prepare(self) -> dict[str, Any]:
        """The keywords of ``prepare``."""
        return {name: getattr(self, name) for name in PREPARE_SETTINGS}

    def of_run(self) -> dict[str, Any]:
        """The keywords of ``run_inference``."""
        return {name: getattr(self, name) for name in setting_names(RunSettings)}


# A dataclass makes its own __init__, so the sentence about a wrong keyword is put around it here.
Settings.__init__ = explain_wrong_calls(Settings.__init__)  # type: ignore[method-assign]

#: The settings of a run that its record keeps in ``request``.
REQUEST_SETTINGS = [
    setting.name for setting in fields(RunSettings) if setting.name not in _AFTERWARDS
]


def is_address(model: object) -> bool:
    """Whether the name of a model is the address of a server."""
    return "://" in str(model)


def setting_names(settings: type) -> list[str]:
    """The names of a settings class, in order."""
    return [setting.name for setting in fields(settings)]


#: The settings of the sizes that a page is cut to.
SIZE_SETTINGS = setting_names(ViewSizes)

#: The settings of a run that `OCRSession.prepare` takes, too.
PREPARE_SETTINGS = ("prompt", "preset", *SIZE_SETTINGS, "infer", "grounding")


def declared(setting: Field[Any]) -> Any:
    """The declared type of a setting, without ``| None``; text for one of several types."""
    return _declared(Settings).get(setting.name, str)


def kind(setting: Field[Any]) -> str:
    """What a setting's value is: int, float, bool or str."""
    wanted = declared(setting)
    # An annotated type, such as `Steps`, is of the type that it annotates.
    plain_type = getattr(wanted, "__origin__", wanted)
    if plain_type is bool:
        return "bool"
    if plain_type is int:
        return "int"
    if plain_type is float:
        return "float"
    return "str"


def choices(setting: Field[Any]) -> tuple[str, ...]:
    """The values that a setting may have; empty where they are not listed."""
    wanted = declared(setting)
    if get_origin(wanted) is not Literal:
        return ()
    return get_args(wanted)


def setting_from_text(name: str, text: str) -> Any:
    """A setting's value from a list of pages: ``false``, ``3``; `SettingError` for a wrong one."""
    return _converted(name, text, _declared(Settings).get(name, str), strict=False)


def help_text(setting: Field[Any]) -> str:
    """A setting's one-line help, with its choices."""
    prompts = ", ".join(PROMPT_NAMES).replace("locate", "locate:words")
    text = setting.metadata["help"].format(prompts=prompts, presets=", ".join(PRESET_NAMES))
    known = choices(setting)
    if known and known[0] not in text:
        text = f"{text}: {', '.join(known)}"
    return text


def full_help_text(setting: Field[Any]) -> str:
    """A setting's help with its details, if it has some."""
    text = help_text(setting)
    details = setting.metadata["details"]
    if details:
        text = f"{text}. {details}"
    return text


def form_group(setting: Field[Any]) -> FormGroup | None:
    """Where a form shows a setting; None for one that it leaves out."""
    group: FormGroup | None = setting.metadata["group"]
    return group


def form_label(setting: Field[Any]) -> str:
    """What a form calls a setting."""
    return str(setting.metadata["label"])


@dataclass(frozen=True, kw_only=True)
class Request(RunSettings):
    """What `OCRSession.run_inference` was asked to do, with every default filled in.

    ``pages`` are those of all rows in their order, ``prompts`` one resolved prompt a row.
    ``cutting`` is the preset with the sizes that were asked for instead of its own.
    """

    pages: list[Any]
    prompts: list[str]
    prompt: str
    preset: str
    preset_choice: str
    cutting: Preset
    max_new_tokens: int
    infer: SamplingSettings
    eos_check_every: int
    autocast: bool
