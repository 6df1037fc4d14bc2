"""The errors of this package, wrong calls told in one sentence, and the signals that end a
measurement.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import numbers
import os
import re
import signal
import threading
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FrameType, SimpleNamespace
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, get_type_hints

from ocr_phases.text import any_of, nearest


@dataclass(frozen=True)
class Keyword:
    """A keyword that a sentence names, by itself or with its value: ``strategy='compiled'``.

    The command line has an option in place of each keyword, and names that one.
    """

    name: str
    #: None where the sentence names the keyword alone.
    value: str | int | float | None = None

    def __str__(self) -> str:
        if self.value is None:
            return self.name
        return f"{self.name}={self.value!r}"


def first_line(error: BaseException) -> str:
    """The first line of what an error says; its kind where it says nothing.

    Examples
    --------
    >>> first_line(RuntimeError("no compiler\\nsee the manual"))
    'no compiler'
    >>> first_line(RuntimeError())
    'RuntimeError'
    """
    message = str(error).strip() or type(error).__name__
    return message.splitlines()[0]


class OcrPhasesError(Exception):
    """Bad input or an unusable environment; the command line prints it and exits with code 2.

    A notebook's cell shows the sentence alone. ``%tb`` shows the traceback, and the environment
    variable ``OCR_PHASES_TRACEBACK`` shows it at once.

    Parameters
    ----------
    sentence : str
        The sentence. If there are ``values``, it has their names in braces, as `str.format` reads
        them; without them braces are ordinary characters.
    **values
        What stands in the places of these names; a `Keyword` is written as the command line or
        Python has it.

    Examples
    --------
    >>> print(OcrPhasesError("Drop {kernels} on {device}.", kernels=Keyword("kernels", True),
    ...                      device="cpu"))
    Drop kernels=True on cpu.
    """

    _shown = False

    def __init__(self, sentence: str, /, **values: object) -> None:
        super().__init__(sentence)
        self._text = sentence
        self._values = values

    def __str__(self) -> str:
        return self.sentence()

    def sentence(self, spell: Callable[[Keyword], str] = str) -> str:
        """The sentence, in which ``spell`` writes the keywords; as Python does by default."""
        if not self._values:
            return self._text
        spelled = {}
        for name, value in self._values.items():
            spelled[name] = spell(value) if isinstance(value, Keyword) else value
        return self._text.format(**spelled)

    def _render_traceback_(self) -> list[str]:
        """The lines that IPython shows."""
        is_asked_again = self._shown  # by ``%tb``
        self._shown = True
        if is_asked_again or os.environ.get("OCR_PHASES_TRACEBACK"):
            return "".join(traceback.format_exception(self)).splitlines()
        return [f"{type(self).__name__}: {self}"]


class SettingError(OcrPhasesError):
    """A setting that cannot be used as it was given.

    Parameters
    ----------
    field : str
        The name of the setting, as `Settings` and the keywords of a call have it.
    sentence : str
        The sentence, as in `OcrPhasesError`.
    **values
        What stands in the places that the sentence names.
    """

    def __init__(self, field: str, sentence: str, /, **values: object) -> None:
        super().__init__(sentence, **values)
        self.field = field
        self.args = (field, sentence)  # what an error is made again of in another process


class WrongCall(OcrPhasesError, TypeError):
    """A call with arguments that it does not take, or of a wrong type."""


class UnknownAttribute(OcrPhasesError, AttributeError):
    """A name that an object does not have."""


class UnknownName(OcrPhasesError, KeyError):
    """A key that a record does not have."""


class OutOfMemory(OcrPhasesError):
    """The device has too little memory for the request."""


class CannotWrite(OcrPhasesError):
    """A file or folder for results cannot be written."""


class NotebookFailed(OcrPhasesError):
    """A bug of this package ended a notebook."""


class Stopped(Exception):
    """Raised by a callback of a measurement to end it; not an error.

    `run_inference` keeps the repeats that were finished, and passes it on where there is none.
    """


def signal_of(interrupt: KeyboardInterrupt) -> int:
    """The number of the signal that interrupted; Python's own interrupt names none."""
    return interrupt.args[0] if interrupt.args else signal.SIGINT


class InterruptedWork(KeyboardInterrupt):
    """Work that a signal of this ``number`` interrupted; a cell shows one sentence."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


class Interrupted(InterruptedWork):
    """An interrupted `run_inference`.

    ``run`` is the record of the finished repeats, as in ``session.last_run``, or None.
    """

    def __init__(self, run: Any, number: int) -> None:
        super().__init__(number)
        self.run = run

    def __str__(self) -> str:
        if self.run is None:
            return "Interrupted before a repeat was finished: there is no record."
        return f"Interrupted: session.last_run has the finished repeats ({len(self.run.repeats)})."


@contextlib.contextmanager
def stop_signals(
    handler: Callable[[int, FrameType | None], object] | None = None, *, notebook: bool = False
) -> Iterator[None]:
    """In a ``with`` block of the main thread, ``handler(number, frame)`` gets SIGINT, SIGTERM and
    SIGHUP.

    Without a handler they wait until the end of the block: nothing in it is left half done. One
    that is ignored (nohup) stays so. In a ``notebook`` it is SIGINT alone: its kernel ignores that
    between two cells, and while a cell runs, it is the cell that is interrupted. Other threads
    never get a signal, so nothing changes in them.
    """
    waiting: list[int] = []

    def hold_back(number: int, _: object) -> None:
        waiting.append(number)

    own_handler = handler or hold_back
    former_handlers = {}
    if threading.current_thread() is threading.main_thread():
        for number in _stop_signals_to_handle(notebook=notebook):
            former_handlers[number] = signal.signal(number, own_handler)
    try:
        yield
    finally:
        for number, former_handler in former_handlers.items():
            if signal.getsignal(number) == own_handler:  # a cell that began meanwhile has its own
                signal.signal(number, former_handler)
        if waiting:  # an impatient second one says nothing new
            signal.raise_signal(waiting[0])


def _stop_signals_to_handle(*, notebook: bool) -> list[signal.Signals]:
    """The signals that `stop_signals` handles here, as far as this system has them."""
    names = ("SIGINT",) if notebook else ("SIGINT", "SIGTERM", "SIGHUP")
    left_alone = signal.default_int_handler if notebook else signal.SIG_IGN
    chosen = []
    for number in signal.Signals:
        if number.name not in names:
            continue
        current = signal.getsignal(number)
        # None is a handler that is not Python's.
        if current is not None and current != left_alone:
            chosen.append(number)
    return chosen


class Hinted:
    """Base class of what users hold: a misspelt attribute is an `UnknownAttribute` with the nearest
    name.

    Type checkers do not see the method, so they go on finding misspelt attributes by themselves.
    """

    __slots__ = ()

    @classmethod
    def _name_here(cls, name: str) -> str | None:
        """The name of what other libraries call ``name``; None where they do not."""
        return None

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if hasattr(type(self), name):  # a property that raised AttributeError
                return object.__getattribute__(self, name)
            known: list[str] = []
            if not name.startswith("_"):  # IPython asks for many private names
                known = [each for each in dir(self) if not each.startswith("_")]
            here = self._name_here(name)
            if here is not None:
                raise UnknownAttribute(f"{type(self).__name__} has no {name}: it is {here} here.")
            raise UnknownAttribute(f"{type(self).__name__} has no {name}.{nearest(name, known)}")


_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")

#: Keywords of other libraries and of the models' published code, and what stands for them here.
ADVICE = {
    "images": "it is made from the page, by run_inference or by prepare",
    "images_seq_mask": "it is made from the page, by run_inference or by prepare",
    "images_spatial_crop": "it is made from the page, by run_inference or by prepare",
    "input_ids": "it is made from the page, by run_inference or by prepare",
    "pixel_values": "it is made from the page, by run_inference or by prepare",
    "image_file": "it is made from the page, by run_inference or by prepare",
    "past_key_values": "the KV cache is always used; DecodeState holds it",
    "use_cache": "the KV cache is always used; DecodeState holds it",
    "temperature": 'infer has it, as in infer={"temperature": 0.7}',
    "top_p": 'infer has it, as in infer={"temperature": 0.7}',
    "top_k": 'infer has it, as in infer={"temperature": 0.7}',
    "do_sample": 'infer has it, as in infer={"temperature": 0.7}',
    "no_repeat_ngram_size": 'infer has it, as in infer={"temperature": 0.7}',
    "repetition_penalty": 'infer has it, as in infer={"repetition_penalty": 1.2}',
    "save_results": "call run.report(folder) or run.save(file) afterwards",
    "output_path": "call run.report(folder) or run.save(file) afterwards",
    "attn_implementation": "load takes attention, device and dtype",
    "_attn_implementation": "load takes attention, device and dtype",
    "device_map": "load takes attention, device and dtype",
    "torch_dtype": "load takes attention, device and dtype",
    "max_new_tokens": (
        "run_inference takes max_new_tokens, a sweep lengths: they count new tokens only"
    ),
    "max_length": "run_inference takes max_new_tokens, a sweep lengths: they count new tokens only",
    "streamer": "it is on_tokens of run_inference",
    "eval_mode": 'it is infer="published-eval" of run_inference',
    "test_compress": 'it is run["compression_ratio"] of every run',
}

#: Which call takes a keyword that was given to another one; a test compares it with the settings.
TAKEN_BY = {
    "OCRSession.load": (
        "device",
        "dtype",
        "revision",
        "implementation",
        "trust_remote_code",
        "attention",
        "cuda_calls",
        "family",
        "engine",
        "extra_body",
    ),
    "OCRSession.run_inference": (
        "prompt",
        "preset",
        "base_size",
        "image_size",
        "crop_mode",
        "min_crops",
        "max_crops",
        "max_new_tokens",
        "infer",
        "grounding",
        "return_text",
        "ignore_eos",
        "eos_check_every",
        "first_token",
        "repeats",
        "warmup",
        "warm_once",
        "seed",
        "strategy",
        "vision",
        "threads",
        "autocast",
        "embed_page",
        "generate",
        "verify",
        "token_probabilities",
        "ceilings",
        "phase_energy",
        "kernels",
        "kernel_steps",
        "kernel_trace",
        "price_per_hour",
        "on_tokens",
        "progress",
    ),
    "OCRSession.sweep": (
        "presets",
        "strategies",
        "batches",
        "lengths",
        "visions",
        "attentions",
        "dtypes",
        "folder",
        "truth",
        "retry_failed",
        "on_run",
    ),
}

#: Errors that an argument of a wrong type may end in; other errors of this package have their own
#: sentence.
_ERRORS_OF_WRONG_TYPES = (TypeError, AttributeError, LookupError, ValueError, RuntimeError)
#: What declared types are called in a sentence.
_TYPES_IN_WORDS = {"Callable": "a function", "Mapping": "dict", "Sequence": "list"}
#: What else counts as such a number.
_NUMBERS = {"float": numbers.Real, "int": numbers.Integral}
_TYPE_ARGUMENTS = re.compile(r"\[.*?\](?= \||$)")


def explain_wrong_calls(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Decorator of a public function: a call that cannot work is a `WrongCall` in one sentence.

    Types are compared with the declared ones only after a call has failed, so what works is neither
    slowed down nor refused. The signature stays as it is.
    """

    @functools.wraps(function)
    def call(*args: _Arguments.args, **keywords: _Arguments.kwargs) -> _Result:
        try:
            return function(*args, **keywords)
        except _ERRORS_OF_WRONG_TYPES as error:
            sentence = _wrong_call(function, args, keywords)
            if sentence is None:
                raise
            raise WrongCall(sentence) from error

    return call


def _wrong_call(
    function: Callable[..., Any], args: Sequence[Any], keywords: Mapping[str, Any]
) -> str | None:
    """What is wrong with the arguments of a failed call, as a sentence; None where nothing is."""
    signature = inspect.signature(function)
    name = function.__qualname__.removesuffix(".__init__")
    for keyword in keywords:
        if keyword not in signature.parameters:
            return _unknown_keyword(keyword, name, signature)
    try:
        arguments = signature.bind(*args, **keywords).arguments
    except TypeError as error:
        return f"{name}: {error}."
    for argument, value in arguments.items():
        parameter = signature.parameters[argument]
        values = value if parameter.kind is parameter.VAR_POSITIONAL else [value]
        for each in values:
            sentence = _wrong_type(argument, each, parameter, function.__globals__)
            if sentence is not None:
                return sentence
    return None


def _unknown_keyword(keyword: str, name: str, signature: inspect.Signature) -> str:
    """A sentence on a keyword that a call does not take, with what to do instead."""
    if keyword in ADVICE:
        return f"{name} has no keyword {keyword}: {ADVICE[keyword]}."
    hint = nearest(keyword, signature.parameters)
    if hint:
        return f"{name} has no keyword {keyword}.{hint}"
    for other_call, keywords in TAKEN_BY.items():
        if keyword in keywords:
            return f"{name} has no keyword {keyword}: it is a keyword of {other_call}."
    return f"{name} has no keyword {keyword}: see help({name})."


def _wrong_type(
    name: str, value: Any, parameter: inspect.Parameter, scope: dict[str, Any]
) -> str | None:
    """A sentence on an argument that is not of its declared type; None where it is or nobody can
    say.
    """
    declared = _TYPE_ARGUMENTS.sub("", str(parameter.annotation))
    annotated = SimpleNamespace(__annotations__={name: declared})
    # Some types are imported for type checkers only, and those of settings are checked by
    # themselves.
    with contextlib.suppress(NameError, TypeError, SyntaxError):
        hints = get_type_hints(annotated, scope, _NUMBERS)
        if not isinstance(value, hints[name]):
            words = []
            for word in declared.split(" | "):
                words.append(_TYPES_IN_WORDS.get(word) or word.rpartition(".")[2])
            return f"{name} is {short(value)}: give {any_of(words)}."
    return None


def check_known(
    what: str | Keyword,
    name: Any,
    known: Collection[str],
    of: str = "",
    more: str = "",
    listed_in: str = "",
) -> None:
    """Raise `OcrPhasesError` for a name of a ``what`` that is none of ``known``, with the nearest
    of them.

    ``what`` is a `Keyword` where a setting has the name, and then the error is a `SettingError`.
    ``of`` says whose names they are, ``more`` what else there is. ``listed_in`` says where names
    stand that are too many for a sentence.
    """
    if name in known:
        return
    whose = f" of {of}" if of else ""
    hint = nearest(str(name), known)
    choice = any_of(known)
    if listed_in:
        choice = f"one of the {len(known)} in {listed_in}"
    advice = f"use {choice}{more}.{hint}"
    if isinstance(what, Keyword):
        raise SettingError(
            what.name,
            "Unknown {setting} {name!r}{whose}: {advice}",
            setting=what,
            name=name,
            whose=whose,
            advice=advice,
        )
    raise OcrPhasesError(f"Unknown {what} {name!r}{whose}: {advice}")


def short(value: Any) -> str:
    """A wrong value for a sentence: itself where it is short, else its type."""
    text = repr(value)
    return text if len(text) <= 60 and "\n" not in text else f"of type {type(value).__name__}"
