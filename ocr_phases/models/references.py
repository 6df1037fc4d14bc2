"""Where in the loaded source the two phases happen: found in the code itself, by its syntax tree.

Line numbers written down go stale with the next version; these are looked up in the files of the
classes that are loaded.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
from torch import nn
from transformers import DynamicCache, PreTrainedTokenizerFast

from ocr_phases.inputs.packing import pack
from ocr_phases.models.wiring import wired_interface
from ocr_phases.stages import VISION_STAGES

COLUMNS = ("what", "symbol", "file", "line", "version")
_SHOWN = 120
_EXAMPLE = re.compile(r"\b(model|self)\.generate\(.*")


class Method(NamedTuple):
    """A method as written, behind its decorators.

    ``start`` is the first line of ``source`` in its file. ``all_calls`` are the calls in it with
    their code, in order.
    """

    function: Callable[..., Any]
    node: ast.FunctionDef
    source: str
    start: int
    all_calls: list[tuple[str, ast.Call]]

    def calls(self, pattern: str) -> list[ast.Call]:
        """The calls in it whose code matches ``pattern``, in order."""
        return [call for code, call in self.all_calls if re.match(pattern, code)]


class SourcePlace(NamedTuple):
    """A line of a method, and the code there; empty for the method as a whole."""

    method: Method
    code: str
    line: int


def references(model: nn.Module, revision: str = "") -> pd.DataFrame:
    """Where in the loaded source each step of the two phases happens.

    That is where prompts are made, where vision is gated, called and fused, where SAM's two
    convolutions make 16 times fewer tokens, where the text layers are called, the cache grown and
    steps prepared, and the source's own example of a call of ``generate()``, or ``generate()``
    itself where it has none.
    One row a place: what, symbol (``Class.method: code``), file (relative to site-packages or to
    the checkpoint), line, and version (the library's, or the checkpoint's ``revision``). What is
    not found is a row without file and line.
    """
    interface = wired_interface(model)
    paths = {
        stage: path for stage, path in interface.wiring.modules.items() if stage in VISION_STAGES
    }
    vision_methods = _methods_above(model, paths.values())
    sam_methods = _methods_inside(model.get_submodule(paths["sam"]))
    text_layers = [part.first for part in interface.timed_parts(model) if part.role == "language"]
    text_methods = _methods_inside(text_layers[0])

    table = _Table(revision)
    table.add("tokenizer", _definition(PreTrainedTokenizerFast.encode))
    table.add("prompt assembly", _definition(pack))
    table.add("condition of vision", _condition(vision_methods, _last_name(paths["projector"])))
    for stage, path in paths.items():
        calls = _calls(vision_methods, _pattern_of(_last_name(path)))
        table.add(f"vision call: {stage}", calls)
    strided = _pattern_of("Conv2d") + r".*\bstride=2\b"
    table.add("16x compression", _calls(sam_methods, strided))
    table.add("fusion", _calls(vision_methods, _pattern_of("masked_scatter_?")))
    language = _calls(vision_methods, r"[^(]*\.language_model\(|super\(\)\.forward\(")
    table.add("language model", language[:1])
    updates = _calls(text_methods, r"[^(]*past_key_value[^(]*\.update\(")
    table.add("cache update", updates[:1])
    table.add("cache class", _definition(getattr(DynamicCache, "update", None)))
    preparation = getattr(model, "prepare_inputs_for_generation", None)
    table.add("step preparation", _definition(preparation))
    example = _example(model) or _definition(getattr(model, "generate", None))
    table.add("generate() call", example)
    return pd.DataFrame(table.rows, columns=list(COLUMNS)).astype({"line": "Int64"})


class _Table:
    """The rows of `references`; ``revision`` is the checkpoint's."""

    def __init__(self, revision: str) -> None:
        self._revision = revision
        self.rows: list[tuple[str, str, str | None, int | None, str]] = []

    def add(self, what: str, places: list[SourcePlace]) -> None:
        """Add a row for each of the places, and one without file and line where there is none."""
        for place in places:
            file, version = self._origin(place.method.function)
            self.rows.append((what, _symbol(place), file, place.line, version))
        if not places:
            self.rows.append((what, "", None, None, ""))

    def _origin(self, function: Callable[..., Any]) -> tuple[str, str]:
        """The file of a function and the version of that file's package.

        A file of a checkpoint, which is of no package with a version, has its plain name.
        """
        path = Path(inspect.getfile(function))
        library = sys.modules[function.__module__.partition(".")[0]]
        if not hasattr(library, "__version__"):
            return path.name, self._revision
        site_packages = Path(str(library.__file__)).parents[1]
        file = path.relative_to(site_packages).as_posix()
        return file, f"{library.__name__} {library.__version__}"


def _symbol(place: SourcePlace) -> str:
    """A place as ``Class.method: code``, long code cut, and ``Class.method`` where it has none."""
    name = place.method.function.__qualname__
    if not place.code:
        return name
    if len(place.code) > _SHOWN:
        return f"{name}: {place.code[:_SHOWN]}..."
    return f"{name}: {place.code}"


def _last_name(path: str) -> str:
    """The name of a module in the one that holds it."""
    return path.rpartition(".")[2]


def _methods_above(model: nn.Module, paths: Iterable[str]) -> list[Method]:
    """The methods of the model and of every module on the way to those at the paths."""
    above = {""}  # the model itself
    for path in paths:
        names = path.split(".")
        for depth in range(1, len(names)):
            above.add(".".join(names[:depth]))
    return _methods(type(model.get_submodule(path)) for path in sorted(above))


def _methods_inside(module: nn.Module) -> list[Method]:
    """The methods of a module and of all modules in it."""
    return _methods(type(part) for part in module.modules())


def _methods(owners: Iterable[type], module: str | None = None) -> list[Method]:
    """The methods that objects of the classes run, each once and in order.

    Inherited ones are among them, but for those of torch itself; with the name of a module only
    those that are written in it.
    """
    functions: dict[Callable[..., Any], None] = {}
    for owner in owners:
        for _, function in inspect.getmembers(owner, inspect.isfunction):
            if module is not None and function.__module__ != module:
                continue
            if not function.__module__.startswith("torch."):
                functions[function] = None
    methods = [_read_method(function) for function in functions]
    return [method for method in methods if method is not None]


def _read_method(function: Callable[..., Any]) -> Method | None:
    """The function as written, behind its decorators; None where there is no source."""
    function = inspect.unwrap(function)
    try:
        lines, start = inspect.getsourcelines(function)
        source = textwrap.dedent("".join(lines))
        (node,) = ast.parse(source).body
    except (OSError, SyntaxError, TypeError, ValueError):
        return None
    if not isinstance(node, ast.FunctionDef):
        return None
    ast.increment_lineno(node, start - 1)
    calls = [part for part in ast.walk(node) if isinstance(part, ast.Call)]
    calls.sort(key=lambda call: (call.lineno, call.col_offset))
    return Method(function, node, source, start, [(_code(call), call) for call in calls])


def _definition(function: Callable[..., Any] | None) -> list[SourcePlace]:
    """Where a function begins; empty where there is none, or no source of it."""
    if not function:
        return []
    method = _read_method(function)
    if method is None:
        return []
    return [SourcePlace(method, "", method.node.lineno)]


def _example(model: nn.Module) -> list[SourcePlace]:
    """The first call of ``generate()`` in the class's own code or in its docstrings' examples."""
    for method in _methods([type(model)], type(model).__module__):
        for line, text in enumerate(method.source.splitlines(), method.start):
            example = _EXAMPLE.search(text)
            if example is None:
                continue
            for call in method.calls(_pattern_of("generate")):
                if call.lineno == line:
                    return [SourcePlace(method, _code(call), line)]
            return [SourcePlace(method, example[0], line)]
    return []


def _code(node: ast.expr) -> str:
    """The code of an expression in one line."""
    return " ".join(ast.unparse(node).split())


def _calls(methods: list[Method], pattern: str) -> list[SourcePlace]:
    """The calls in the methods whose code matches ``pattern``, in order."""
    places: list[SourcePlace] = []
    for method in methods:
        for call in method.calls(pattern):
            places.append(SourcePlace(method, _code(call), call.lineno))
    return places


def _pattern_of(*names: str) -> str:
    """The pattern of calls of a function or method of one of these names."""
    return rf"(?:[^(]*\.)?(?:{'|'.join(names)})\("


def _condition(methods: list[Method], name: str) -> list[SourcePlace]:
    """The ``if`` around every call of ``name``, or around all calls of its callers, and so on."""
    names = {name}
    while True:
        callers: set[str] = set()
        for method in methods:
            calls = method.calls(_pattern_of(*names))
            if not calls:
                continue
            guard = _guard(method.node, calls)
            if guard is not None:
                return [SourcePlace(method, _code(guard), guard.lineno)]
            callers.add(method.node.name)
        callers.discard("forward")
        if callers <= names:
            return []
        names |= callers


def _guard(function: ast.FunctionDef, calls: list[ast.Call]) -> ast.expr | None:
    """The test of the outermost ``if`` that holds all the calls in its body."""
    for node in ast.walk(function):  # breadth first: outer before inner
        if not isinstance(node, ast.If):
            continue
        inside: set[int] = set()
        for statement in node.body:
            inside |= {id(part) for part in ast.walk(statement)}
        if all(id(call) in inside for call in calls):
            return node.test
    return None
