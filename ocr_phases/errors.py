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
from pathlib import Path
from types import NoneType, SimpleNamespace, UnionType
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

import tomllib

from ocr_phases.text import any_of, nearest


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


@contextlib.contextmanager
def stop_signals(
    handler: Callable[[int, object], object] | None = None, *, notebook: bool = False
) -> Iterator[None]:
    """In a ``with`` block of the main thread, ``handler(number, frame)`` gets SIGINT, SIGTERM and SIGHUP.

    Without a handler they wait until the end of the block: nothing in it is left half done. One that is
    ignored (nohup) stays so. In a ``notebook`` it is SIGINT alone: its kernel ignores that between two cells,
    and while a cell runs, it is the cell that is interrupted. Other threads never get a signal, so nothing
    changes in them.
    """
    names = ("SIGINT",) if notebook else ("SIGINT", "SIGTERM", "SIGHUP")
    # None is a handler that is not Python's.
    spared = (None, signal.default_int_handler if notebook else signal.SIG_IGN)
    waiting: list[int] = []
    handler = handler or (lambda number, _: waiting.append(number))
    before: dict[signal.Signals, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for number in signal.Signals:
            if number.name in names and signal.getsignal(number) not in spared:
                before[number] = signal.signal(number, handler)
    try:
        yield
    finally:
        for number, handled in before.items():
            if signal.getsignal(number) == handler:  # a cell that began meanwhile has its own
                signal.signal(number, handled)
        for first in waiting[:1]:  # an impatient second one says nothing new
            signal.raise_signal(first)


_Called = TypeVar("_Called", bound=Callable[..., Any])
_Class = TypeVar("_Class", bound=type)

#: Errors that the type of an argument may have caused within a call; the outer call's own words are nearer.
_BY_TYPE = (WrongCall, UnknownAttribute)
#: The first call that takes a setting, for one that was given to another.
_TAKER: dict[str, str] = {}
#: What an argument may be besides what is declared.
_ADMITTED: dict[Any, Any] = {float: (float, int), inspect.Parameter.empty: object}
#: Declared types in a sentence.
_WORDS = {Callable: "a function", Mapping: "dict", Sequence: "list", NoneType: "None"}


def checked(*sources: Callable[..., Any]) -> Callable[[_Called], _Called]:
    """Decorator of a public function: a call that cannot work is a `WrongCall` in one sentence.

    The keywords of ``sources`` join the signature: the function takes them by ``**``. Types are compared with
    the declared ones only after a call has failed, so what works is neither slowed down nor refused.
    """

    def decorated(called: _Called) -> _Called:
        signature = _joined(called, sources)
        takes = frozenset(signature.parameters)
        name = called.__qualname__
        if "." in name:  # a method is what a keyword is looked for on
            for keyword in takes - inspect.signature(called).parameters.keys():
                _TAKER.setdefault(keyword, name)

        @functools.wraps(called)
        def call(*args: Any, **keywords: Any) -> Any:
            try:
                if keywords and not keywords.keys() <= takes:  # before anything slow starts
                    signature.bind(*args, **keywords)
                return called(*args, **keywords)
            except Exception as error:
                told = isinstance(error, OcrPhasesError | Stopped) and not isinstance(error, _BY_TYPE)
                said = "" if told else _mistake(called, signature, args, keywords)
                if not said:
                    raise
                raise WrongCall(said) from error

        call.__signature__ = signature  # type: ignore[attr-defined]
        return cast(_Called, call)

    return decorated


def public(kind: _Class) -> _Class:
    """Class decorator: `checked` methods, and `hinted`."""
    for name, member in list(vars(kind).items()):
        function = getattr(member, "__func__", member)  # of a class method
        named = name == "__init__" or not name.startswith("_")
        if named and inspect.isfunction(function) and not hasattr(function, "__wrapped__"):
            call = checked()(function)
            setattr(kind, name, call if function is member else classmethod(call))
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
    joined = dict(signature.parameters)
    for source in sources:
        joined = {name: item for name, item in joined.items() if item.kind is not item.VAR_KEYWORD}
        for name, item in inspect.signature(source).parameters.items():
            if item.kind is item.KEYWORD_ONLY:
                joined.setdefault(name, item)
    return signature.replace(parameters=list(joined.values()))


def _mistake(called: Callable[..., Any], signature: inspect.Signature, args: Any, keywords: Any) -> str:
    """What is wrong in a failed call: arguments that it does not take, or of a wrong type; else empty."""
    name = called.__qualname__.removesuffix(".__init__")
    try:
        arguments = signature.bind(*args, **keywords).arguments
    except TypeError as error:
        unknown = [word for word in keywords if word not in signature.parameters]
        return _unknown(unknown[0], name, signature) if unknown else f"{name}: {error}."
    for name, value in arguments.items():
        item = signature.parameters[name]
        declared = SimpleNamespace(__annotations__={name: item.annotation})
        # Some types are imported for type checkers only, and some tell nothing.
        with contextlib.suppress(NameError, TypeError):
            wanted = get_type_hints(declared, called.__globals__)[name]
            among = get_args(wanted) if get_origin(wanted) in (Union, UnionType) else (wanted,)
            kinds = [get_origin(kind) or kind for kind in among]
            allowed = tuple(_ADMITTED.get(kind, kind) for kind in kinds)
            for each in value if item.kind is item.VAR_POSITIONAL else [value]:
                if not isinstance(each, allowed):
                    words = any_of(_WORDS.get(kind) or kind.__name__ for kind in kinds)
                    return f"{name} is {short(each)}: give {words}."
    return ""


def _unknown(word: str, name: str, signature: inspect.Signature) -> str:
    """A sentence on a keyword that a call does not take."""
    said = f"{name} has no keyword {word}"
    advice = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))["keywords"]
    if word in advice:
        return f"{said}: {advice[word]}."
    if hint := nearest(word, signature.parameters):
        return f"{said}.{hint}"
    return f"{said}: {f'it is a keyword of {_TAKER[word]}' if word in _TAKER else f'see help({name})'}."


def check_known(what: str, name: Any, known: Collection[str], of: str = "", more: str = "") -> None:
    """Raise `OcrPhasesError` for a name of a ``what`` that is none of ``known``, with the nearest of them.

    ``of`` says whose names they are, ``more`` what else there is.
    """
    if name not in known:
        said = f"Unknown {what} {name!r}{of and f' of {of}'}: use {any_of(known)}{more}."
        raise OcrPhasesError(f"{said}{nearest(str(name), known)}")


def short(value: Any) -> str:
    """A wrong value for a sentence: itself where it is short, else its type."""
    text = repr(value)
    return text if len(text) <= 60 and "\n" not in text else f"of type {type(value).__name__}"
