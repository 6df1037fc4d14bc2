"""The errors of this package, wrong calls told in one sentence, and the signals that end a measurement."""

from __future__ import annotations

import contextlib
import functools
import inspect
import numbers
import os
import re
import signal
import threading
import tomllib
import traceback
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar, cast, get_type_hints

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
        self.run, self.number = run, number

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
    own = signal.Signals if threading.current_thread() is threading.main_thread() else ()
    caught = [each for each in own if each.name in names and signal.getsignal(each) not in spared]
    before = [(number, signal.signal(number, handler)) for number in caught]
    try:
        yield
    finally:
        for number, handled in before:
            if signal.getsignal(number) == handler:  # a cell that began meanwhile has its own
                signal.signal(number, handled)
        for first in waiting[:1]:  # an impatient second one says nothing new
            signal.raise_signal(first)


class Hinted:
    """Base class of what users hold: a misspelt attribute is an `UnknownAttribute` with the nearest name.

    Type checkers do not see the method, so they go on finding misspelt attributes by themselves.
    """

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if hasattr(type(self), name):  # a property that raised AttributeError
                return object.__getattribute__(self, name)
            known: list[str] = []
            if not name.startswith("_"):  # IPython asks for many private names
                known = [each for each in dir(self) if not each.startswith("_")]
            raise UnknownAttribute(f"{type(self).__name__} has no {name}.{nearest(name, known)}")


_Called = TypeVar("_Called", bound=Callable[..., Any])
_Class = TypeVar("_Class", bound=type)

#: What an argument of a wrong type may end in; other errors of this package have their own sentence.
_BY_TYPE = (TypeError, AttributeError, LookupError, ValueError, RuntimeError)
#: The first method that takes a keyword, for one that was given to another call.
_TAKER: dict[str, str] = {}
#: Declared types in a sentence, what is between brackets in them, and what else is such a number.
_WORDS = {"Callable": "a function", "Mapping": "dict", "Sequence": "list"}
_BRACKETS = re.compile(r"\[.*?\](?= \||$)")
_NUMBERS = {"float": numbers.Real, "int": numbers.Integral}


def checked(*sources: Callable[..., Any]) -> Callable[[_Called], _Called]:
    """Decorator of a public function: a call that cannot work is a `WrongCall` in one sentence.

    The keywords of ``sources`` join the signature: the function takes them by ``**``. Types are compared with
    the declared ones only after a call has failed, so what works is neither slowed down nor refused.
    """

    def decorated(called: _Called) -> _Called:
        signature = inspect.signature(called)
        takes = dict(signature.parameters)
        for source in sources:  # whose keywords are those of its **
            takes = {name: own for name, own in takes.items() if own.kind is not own.VAR_KEYWORD}
            for name, item in inspect.signature(source).parameters.items():
                if item.kind is item.KEYWORD_ONLY and name not in takes:
                    takes[name] = item
                    if "." in called.__qualname__:  # a method is what a keyword is looked for on
                        _TAKER.setdefault(name, called.__qualname__)
        signature = signature.replace(parameters=list(takes.values()))

        @functools.wraps(called)
        def call(*args: Any, **keywords: Any) -> Any:
            try:
                if not keywords.keys() <= takes.keys():  # before anything slow starts
                    signature.bind(*args, **keywords)
                return called(*args, **keywords)
            except _BY_TYPE as error:
                said = _mistake(called, signature, args, keywords)
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


def _mistake(called: Callable[..., Any], signature: inspect.Signature, args: Any, keywords: Any) -> str:
    """What is wrong in a failed call: arguments that it does not take, or of a wrong type; else empty."""
    name, scope = called.__qualname__.removesuffix(".__init__"), called.__globals__
    try:
        arguments = signature.bind(*args, **keywords).arguments
    except TypeError as error:
        unknown = [word for word in keywords if word not in signature.parameters]
        return _unknown(unknown[0], name, signature) if unknown else f"{name}: {error}."
    for name, value in arguments.items():
        item = signature.parameters[name]
        declared = _BRACKETS.sub("", str(item.annotation))
        # Some types are imported for type checkers only, and those of settings are checked by themselves.
        with contextlib.suppress(NameError, TypeError, SyntaxError):
            hints = get_type_hints(SimpleNamespace(__annotations__={name: declared}), scope, _NUMBERS)
            for each in value if item.kind is item.VAR_POSITIONAL else [value]:
                if not isinstance(each, hints[name]):
                    words = (_WORDS.get(word) or word.rpartition(".")[2] for word in declared.split(" | "))
                    return f"{name} is {short(each)}: give {any_of(words)}."
    return ""


def _unknown(word: str, name: str, signature: inspect.Signature) -> str:
    """A sentence on a keyword that a call does not take."""
    table = tomllib.loads(Path(__file__).with_suffix(".toml").read_text(encoding="utf-8"))
    advice = {keyword: text for text, keywords in table.items() for keyword in keywords}
    hint = "" if word in advice else nearest(word, signature.parameters)
    taker = f"it is a keyword of {_TAKER[word]}" if word in _TAKER else f"see help({name})"
    return f"{name} has no keyword {word}{f'.{hint}' if hint else f': {advice.get(word, taker)}.'}"


def check_known(what: str, name: Any, known: Collection[str], of: str = "", more: str = "") -> None:
    """Raise `OcrPhasesError` for a name of a ``what`` that is none of ``known``, with the nearest of them.

    ``of`` says whose names they are, ``more`` what else there is.
    """
    if name not in known:
        said = f"Unknown {what} {name!r}{of and f' of {of}'}: use {any_of(known)}{more}."
        raise OcrPhasesError(f"{said}{nearest(str(name), known)}")


def require(facts: Iterable[tuple[str, object]]) -> None:
    """Raise `OcrPhasesError` with the sentence of the first of ``facts`` that does not hold."""
    for told, holds in facts:
        if not holds:
            raise OcrPhasesError(told)


def short(value: Any) -> str:
    """A wrong value for a sentence: itself where it is short, else its type."""
    text = repr(value)
    return text if len(text) <= 60 and "\n" not in text else f"of type {type(value).__name__}"
