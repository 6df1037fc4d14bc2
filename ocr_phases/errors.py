"""The errors of this package, wrong calls told in one sentence, and the signals that end a measurement."""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import signal
import threading
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from types import NoneType, SimpleNamespace, UnionType
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from ocr_phases.text import nearest


class OcrPhasesError(Exception):
    """Bad input or an unusable environment; the command line prints it and exits with code 2.

    A notebook's cell shows the sentence alone. ``%tb`` shows the traceback, and the environment variable
    ``OCR_PHASES_TRACEBACK`` shows it at once.
    """

    _shown = False

    def _render_traceback_(self) -> list[str]:
        """The lines that IPython shows."""
        again, self._shown = self._shown, True
        if again or os.environ.get("OCR_PHASES_TRACEBACK"):
            return "".join(traceback.format_exception(self)).splitlines()
        return [f"{type(self).__name__}: {self}"]


class WrongCall(OcrPhasesError, TypeError):
    """A call with arguments that it does not take, or of a wrong type."""


class UnknownAttribute(OcrPhasesError, AttributeError):
    """A name that an object does not have."""


class UnknownName(OcrPhasesError, KeyError):
    """A key that a record does not have."""

    __str__ = Exception.__str__  # KeyError's own is a repr


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


class Interrupted(KeyboardInterrupt):
    """An interrupted `run_inference`; a cell shows one sentence.

    ``run`` is the record of the finished repeats, as in ``session.last_run``, or None. ``number`` is the
    signal's.
    """

    def __init__(self, run: Any, number: int) -> None:
        super().__init__(number)
        self.run = run
        self.number = number

    def __str__(self) -> str:
        if self.run is None:
            return "Interrupted before a repeat was finished: there is no record."
        return f"Interrupted: session.last_run has the finished repeats ({len(self.run.repeats)})."

    def _render_traceback_(self) -> list[str]:
        return [str(self)]


_STOPPING = [number for number in signal.Signals if number.name in ("SIGINT", "SIGTERM", "SIGHUP")]


@contextlib.contextmanager
def signals_to(handler: Callable[[int, object], None]) -> Iterator[None]:
    """In a ``with`` block of the main thread, ``handler(number, frame)`` gets the signals that stop.

    One that is ignored (nohup) stays so. Other threads never get a signal, so nothing changes in them.
    """
    before = {}
    if threading.current_thread() is threading.main_thread():
        for number in _STOPPING:
            if signal.getsignal(number) not in (signal.SIG_IGN, None):  # None: not Python's
                before[number] = signal.signal(number, handler)
    try:
        yield
    finally:
        for number, handled in before.items():
            signal.signal(number, handled)


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """A signal that stops waits until the end of a ``with`` block: nothing in it is left half done."""
    waiting: list[int] = []
    try:
        with signals_to(lambda number, _: waiting.append(number)):
            yield
    finally:
        for number in waiting[:1]:  # an impatient second one says nothing new
            signal.raise_signal(number)


class Interrupts:
    """In a ``with`` block of the main thread, Ctrl-C and a notebook's Interrupt call ``handler``.

    A kernel ignores Interrupt between two cells, and says so again at the end of each: `take` it back.
    While a cell runs, it is the cell that is interrupted.
    """

    def __init__(self, handler: Callable[[], None]) -> None:
        self._handler = handler
        self._before: Any = None

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():
            self._before = signal.signal(signal.SIGINT, self._handle)
        return self

    def take(self) -> None:
        """Take over where the kernel has begun to ignore it."""
        if self._before is not None and signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
            self._before = signal.signal(signal.SIGINT, self._handle)

    def __exit__(self, *_: object) -> None:
        if self._before is not None and signal.getsignal(signal.SIGINT) == self._handle:
            signal.signal(signal.SIGINT, self._before)

    def _handle(self, number: int, frame: object) -> None:
        self._handler()


_Called = TypeVar("_Called", bound=Callable[..., Any])
_Class = TypeVar("_Class", bound=type)

#: What the keywords of the models' published code, and of transformers, are here.
_ADVICE = {
    **dict.fromkeys(("base_size", "image_size", "crop_mode"), "preset sets it"),
    **dict.fromkeys(
        ("images", "images_seq_mask", "images_spatial_crop", "input_ids", "pixel_values", "image_file"),
        "it is made from the page, by run_inference or by prepare",
    ),
    **dict.fromkeys(("past_key_values", "use_cache"), "the KV cache is always used; DecodeState holds it"),
    **dict.fromkeys(
        ("temperature", "top_p", "top_k", "do_sample", "no_repeat_ngram_size"),
        'infer has it, as in infer={"temperature": 0.7}',
    ),
    **dict.fromkeys(("attn_implementation", "_attn_implementation"), "it is attention of OCRSession.load"),
    **dict.fromkeys(("save_results", "output_path"), "call run.report(folder) or run.save(file) afterwards"),
    "torch_dtype": "it is dtype of OCRSession.load",
    "device_map": "it is device of OCRSession.load",
    "max_new_tokens": "it is a keyword of run_inference, and lengths of a sweep",
    "max_length": "it is max_new_tokens of run_inference, which counts new tokens only",
    "streamer": "it is on_tokens of run_inference",
    "eval_mode": 'it is infer="published-eval" of run_inference',
    "test_compress": 'it is run["compression_ratio"] of every run',
}
#: Errors that the type of an argument may have caused within a call; the outer call's own words are nearer.
_BY_TYPE = (WrongCall, UnknownAttribute)
#: The first call that takes a setting, for one that was given to another.
_TAKER: dict[str, str] = {}


def checked(*sources: Callable[..., Any]) -> Callable[[_Called], _Called]:
    """Decorator of a public function or class: a call that cannot work is a `WrongCall` in one sentence.

    The keywords of ``sources`` join the signature: the function takes them by ``**``. Types are compared with
    the declared ones only after a call has failed, so what works is neither slowed down nor refused.
    """

    def decorated(called: _Called) -> _Called:
        if isinstance(called, type):
            called.__init__ = checked(*sources)(called.__init__)  # type: ignore[misc]
            return called
        signature = _joined(called, sources)
        name = called.__qualname__.removesuffix(".__init__")
        takes = frozenset(signature.parameters)
        closed = all(item.kind is not item.VAR_KEYWORD for item in signature.parameters.values())
        if "." in name:  # a method is what a keyword is looked for on
            for keyword in takes - inspect.signature(called).parameters.keys():
                _TAKER.setdefault(keyword, name)

        @functools.wraps(called)
        def call(*args: Any, **keywords: Any) -> Any:
            if keywords and closed and not keywords.keys() <= takes:
                raise WrongCall(_unknown(next(word for word in keywords if word not in takes), name, takes))
            try:
                return called(*args, **keywords)
            except Exception as error:
                told = isinstance(error, OcrPhasesError | Stopped) and not isinstance(error, _BY_TYPE)
                said = "" if told else _reason(error, called, args, keywords)
                if not said:
                    raise
                raise WrongCall(said) from error

        call.__signature__ = signature  # type: ignore[attr-defined]
        return cast(_Called, call)

    return decorated


def public(kind: _Class) -> _Class:
    """Class decorator: `checked` methods, and `hinted`."""
    for name, member in list(vars(kind).items()):
        if name.startswith("_") or hasattr(getattr(member, "__func__", member), "__wrapped__"):
            continue
        if isinstance(member, classmethod):
            setattr(kind, name, classmethod(checked()(member.__func__)))
        elif inspect.isfunction(member):
            setattr(kind, name, checked()(member))
    return hinted(kind)


def hinted(kind: _Class) -> _Class:
    """Class decorator: an attribute that there is not is an `UnknownAttribute` with the nearest name."""

    def no_attribute(self: Any, name: str) -> Any:
        if hasattr(type(self), name):  # a property that raised AttributeError
            return object.__getattribute__(self, name)
        # IPython asks for many private names.
        known = [] if name.startswith("_") else [each for each in dir(self) if not each.startswith("_")]
        raise UnknownAttribute(f"{type(self).__name__} has no {name}.{nearest(name, known)}")

    # Not a method of a base class: type checkers would then believe in any attribute.
    kind.__getattr__ = no_attribute  # type: ignore[attr-defined]
    return kind


def _joined(called: Callable[..., Any], sources: Sequence[Callable[..., Any]]) -> inspect.Signature:
    """The signature of a function with the keywords of ``sources`` in place of its ``**``."""
    signature = inspect.signature(called)
    if not sources:
        return signature
    own = {name: item for name, item in signature.parameters.items() if item.kind is not item.VAR_KEYWORD}
    for source in sources:
        for name, item in inspect.signature(source).parameters.items():
            if item.kind is item.KEYWORD_ONLY:
                own.setdefault(name, item)
    return signature.replace(parameters=list(own.values()))


def _unknown(word: str, name: str, takes: Collection[str]) -> str:
    """A sentence on a keyword that a call does not take."""
    said = f"{name} has no keyword {word}"
    if word in _ADVICE:
        return f"{said}: {_ADVICE[word]}."
    if hint := nearest(word, takes):
        return f"{said}.{hint}"
    return f"{said}: {f'it is a keyword of {_TAKER[word]}' if word in _TAKER else f'see help({name})'}."


def _reason(error: Exception, called: Callable[..., Any], args: Sequence[Any], keywords: Any) -> str:
    """Why a call failed, if that was the caller's doing: arguments it does not take, or of a wrong type."""
    assert error.__traceback__ is not None
    if isinstance(error, TypeError) and error.__traceback__.tb_next is None:  # the function did not start
        return f"{error}."
    signature = inspect.signature(called)
    for name, value in signature.bind(*args, **keywords).arguments.items():
        item = signature.parameters[name]
        declared = {} if item.annotation is item.empty else {name: item.annotation}
        try:
            wanted = get_type_hints(SimpleNamespace(__annotations__=declared), called.__globals__).get(
                name, Any
            )
        except NameError:  # imported for type checkers only
            continue
        for each in value if item.kind is item.VAR_POSITIONAL else [value]:
            if not _fits(each, wanted):
                return f"{name} is {short(each)}: give {_kinds(wanted)}."
    return ""


def _fits(value: Any, wanted: Any) -> bool:
    """Whether a value is of a declared type, as far as that can be told."""
    origin, inner = get_origin(wanted), get_args(wanted)
    if origin in (Union, UnionType):
        return any(_fits(value, each) for each in inner)
    if origin in (Sequence, Collection):
        listed = isinstance(value, Collection) and not isinstance(value, str | bytes)
        return listed and all(_fits(each, inner[0]) for each in value)
    if wanted is float:
        wanted = float | int
    kind = wanted if origin is None else origin
    if kind is Any or getattr(kind, "_is_protocol", False) or not isinstance(kind, type | UnionType):
        return True
    return isinstance(value, kind)


def _kinds(wanted: Any) -> str:
    """A declared type for a sentence: ``str, Path or list of str``."""
    origin, inner = get_origin(wanted), get_args(wanted)
    if origin in (Union, UnionType):
        *first, last = map(_kinds, inner)
        return f"{', '.join(first)} or {last}"
    if origin in (Sequence, Collection):
        return f"list of {_kinds(inner[0])}"
    names = {Callable: "a function", Mapping: "dict", NoneType: "None"}
    return names.get(origin or wanted) or str((origin or wanted).__name__)


def short(value: Any) -> str:
    """A wrong value for a sentence: itself where it is short, else its type."""
    text = repr(value)
    return text if len(text) <= 60 and "\n" not in text else f"of type {type(value).__name__}"
