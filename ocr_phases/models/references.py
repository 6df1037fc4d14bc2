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
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
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
    """A method as written, behind its decorators; ``start`` is the first line of ``source`` in its
    file.

    ``called`` are the calls in it with their code, in order.
    """

    function: Callable[..., Any]
    node: ast.FunctionDef
    source: str
    start: int
    called: list[tuple[str, ast.Call]]

    def calls(self, pattern: str) -> list[ast.Call]:
        """The calls in it whose code matches ``pattern``, in order."""
        return [call for code, call in self.called if re.match(pattern, code)]


#: A method, and the code in it with its line.
Place = tuple[Method, str, int]


def references(model: nn.Module, revision: str = "") -> pd.DataFrame:
    """Where prompts are made, vision is gated, called and fused, the text layers called, the cache
    grown.

    Also where SAM's two convolutions make 16 times fewer tokens, where steps are prepared, and the
    source's own example of a call of ``generate()``, or ``generate()`` itself where it has none.
    One row a place: what, symbol (``Class.method: code``), file (relative to site-packages or to
    the checkpoint), line, and version (the library's, or the checkpoint's ``revision``). What is
    not found is a row without file and line.
    """
    interface = wired_interface(model)
    paths = {
        stage: path for stage, path in interface.wiring.modules.items() if stage in VISION_STAGES
    }
    leaves = {stage: path.rpartition(".")[2] for stage, path in paths.items()}
    # The model itself, whose path is empty, and every module on the way.
    above = {
        path[:end]
        for path in paths.values()
        for end, sign in enumerate(path)
        if sign == "." or not end
    }
    seeing = _methods(type(model.get_submodule(path)) for path in sorted(above))
    compressing = _methods(map(type, model.get_submodule(paths["sam"]).modules()))
    text_layers = [part.first for part in interface.timed_parts(model) if part.role == "language"]
    attending = _methods(map(type, text_layers[0].modules()))
    found: list[tuple[str, list[Place]]] = [
        ("tokenizer", _definition(PreTrainedTokenizerFast.encode)),
        ("prompt assembly", _definition(pack)),
        ("condition of vision", _condition(seeing, leaves["projector"])),
        *((f"vision call: {stage}", _all(seeing, _named(leaf))) for stage, leaf in leaves.items()),
        ("16x compression", _all(compressing, _named("Conv2d") + r".*\bstride=2\b")),
        ("fusion", _all(seeing, _named("masked_scatter_?"))),
        ("language model", _all(seeing, r"[^(]*\.language_model\(|super\(\)\.forward\(")[:1]),
        ("cache update", _all(attending, r"[^(]*past_key_value[^(]*\.update\(")[:1]),
        ("cache class", _definition(getattr(DynamicCache, "update", None))),
        ("step preparation", _definition(getattr(model, "prepare_inputs_for_generation", None))),
        ("generate() call", _example(model) or _definition(getattr(model, "generate", None))),
    ]
    rows: list[tuple[Any, ...]] = []
    for what, places in found:
        rows += [(what, *_told(*place, revision)) for place in places] or [
            (what, "", None, None, "")
        ]
    return pd.DataFrame(rows, columns=list(COLUMNS)).astype({"line": "Int64"})


def _told(method: Method, code: str, line: int, revision: str) -> tuple[str, str, int, str]:
    """Symbol, file, line and version: of a library with one, or of the checkpoint, whose files have
    names.
    """
    function = method.function
    code = code if len(code) <= _SHOWN else f"{code[:_SHOWN]}..."
    path, library = (
        Path(inspect.getfile(function)),
        sys.modules[function.__module__.partition(".")[0]],
    )
    file, version = path.name, revision
    if hasattr(library, "__version__"):
        file = path.relative_to(Path(str(library.__file__)).parents[1]).as_posix()
        version = f"{library.__name__} {library.__version__}"
    return f"{function.__qualname__}: {code}".removesuffix(": "), file, line, version


def _methods(owners: Iterable[type]) -> list[Method]:
    """The methods that objects of the classes run, inherited ones too, but for those of torch
    itself.
    """
    members = chain.from_iterable(inspect.getmembers(owner, inspect.isfunction) for owner in owners)
    ours = dict.fromkeys(each for _, each in members if not each.__module__.startswith("torch."))
    return list(chain.from_iterable(map(_read, ours)))


def _read(function: Callable[..., Any]) -> Iterator[Method]:
    """The function as written, behind its decorators; nothing where there is no source."""
    function = inspect.unwrap(function)
    try:
        lines, start = inspect.getsourcelines(function)
        source = textwrap.dedent("".join(lines))
        (node,) = ast.parse(source).body
    except (OSError, SyntaxError, TypeError, ValueError):
        return
    if isinstance(node, ast.FunctionDef):
        ast.increment_lineno(node, start - 1)
        calls = [part for part in ast.walk(node) if isinstance(part, ast.Call)]
        calls.sort(key=lambda call: (call.lineno, call.col_offset))
        yield Method(function, node, source, start, [(_code(call), call) for call in calls])


def _definition(function: Callable[..., Any] | None) -> list[Place]:
    return [(method, "", method.node.lineno) for method in _read(function)] if function else []


def _example(model: nn.Module) -> list[Place]:
    """The first call of ``generate()`` in the class's own code or in the examples of its
    docstrings.
    """
    for method in _methods([type(model)]):
        own = method.function.__module__ == type(model).__module__
        for line, text in enumerate(method.source.splitlines() if own else (), method.start):
            if found := _EXAMPLE.search(text):
                calls = [call for call in method.calls(_named("generate")) if call.lineno == line]
                return [(method, _code(calls[0]) if calls else found[0], line)]
    return []


def _code(node: ast.expr) -> str:
    return " ".join(ast.unparse(node).split())


def _all(methods: list[Method], pattern: str) -> list[Place]:
    return [
        (method, _code(call), call.lineno) for method in methods for call in method.calls(pattern)
    ]


def _named(*names: str) -> str:
    """The pattern of calls of a function or method of one of these names."""
    return rf"(?:[^(]*\.)?(?:{'|'.join(names)})\("


def _condition(methods: list[Method], name: str) -> list[Place]:
    """The ``if`` around every call of ``name``, or around all calls of its callers, and so on."""
    names = {name}
    while True:
        callers = [(method, calls) for method in methods if (calls := method.calls(_named(*names)))]
        for method, calls in callers:
            if guard := _guard(method.node, calls):
                return [(method, _code(guard), guard.lineno)]
        further = {method.node.name for method, _ in callers} - {"forward"}
        if further <= names:
            return []
        names |= further


def _guard(function: ast.FunctionDef, calls: list[ast.Call]) -> ast.expr | None:
    """The test of the outermost ``if`` that holds all the calls in its body."""
    for node in ast.walk(function):  # breadth first: outer before inner
        if isinstance(node, ast.If):
            inside = {id(part) for statement in node.body for part in ast.walk(statement)}
            if all(id(call) in inside for call in calls):
                return node.test
    return None
