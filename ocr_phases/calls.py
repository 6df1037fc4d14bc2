"""Public calls: a wrong keyword, name or type is one sentence, with the nearest right name."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from types import NoneType, SimpleNamespace, UnionType
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from ocr_phases.errors import OcrPhasesError, Stopped, UnknownAttribute, WrongCall
from ocr_phases.words import nearest

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
