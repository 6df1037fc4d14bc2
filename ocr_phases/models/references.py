"""Where in the loaded source the two phases happen: found in the code itself, by its syntax tree.

Line numbers written down go stale with the next version; these are looked up in the files of the classes
that are loaded.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from torch import nn
from transformers import DynamicCache, PreTrainedTokenizerFast

from ocr_phases.inputs.packing import pack
from ocr_phases.models.wiring import family_of
from ocr_phases.versions import __version__

COLUMNS = ("what", "symbol", "file", "line", "version")
_SHOWN = 120
_EXAMPLE = re.compile(r"\b(model|self)\.generate\(.*")


@dataclass(frozen=True)
class Method:
    """A method as written; ``owner`` is its module, ``start`` its first line in ``file``."""

    name: str
    owner: str
    node: ast.FunctionDef
    source: str
    file: str
    start: int

    def calls(self, pattern: str) -> list[ast.Call]:
        """The calls in it whose code matches ``pattern``, in order."""
        calls = [node for node in ast.walk(self.node) if isinstance(node, ast.Call)]
        found = [call for call in calls if re.match(pattern, _code(call))]
        return sorted(found, key=lambda node: (node.lineno, node.col_offset))


#: A method, and the code in it with its line.
Place = tuple[Method, str, int]


def references(model: nn.Module, revision: str = "") -> pd.DataFrame:
    """Where prompts are made, vision is gated, called and fused, the text layers called, the cache grown.

    Also where SAM's two convolutions make 16 times fewer tokens, where steps are prepared, and the source's
    own example of a call of ``generate()``, or ``generate()`` itself where it has none.
    One row a place: what, symbol (``Class.method: code``), file (relative to site-packages or to the
    checkpoint), line, and version (the library's, or the checkpoint's ``revision``). What is not found is a
    row without file and line.
    """
    family = family_of(model)
    paths = {stage: family.wiring.modules[stage] for stage in family.facts.vision_stages}
    leaves = {stage: path.rpartition(".")[2] for stage, path in paths.items()}
    ways = [path.split(".")[:-1] for path in paths.values()]
    above = {".".join(way[:count]) for way in ways for count in range(len(way) + 1)}
    seeing = _methods(type(model.get_submodule(path)) for path in sorted(above))
    compressing = _methods(map(type, model.get_submodule(paths["sam"]).modules()))
    attending = _methods(map(type, family.timed(model)["language_model"][0].modules()))
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
        for method, code, line in places:
            file, version = _origin(method.file, revision)
            code = code if len(code) <= _SHOWN else f"{code[:_SHOWN]}..."
            rows.append((what, f"{method.name}: {code}".removesuffix(": "), file, line, version))
        if not places:
            rows.append((what, "", None, None, ""))
    return pd.DataFrame(rows, columns=list(COLUMNS)).astype({"line": "Int64"})


def _methods(owners: Iterable[type]) -> list[Method]:
    """The methods that objects of the classes run, inherited ones too, but for those of torch itself."""
    return [method for owner in dict.fromkeys(owners) for method in _methods_of(owner)]


def _methods_of(owner: type) -> Iterator[Method]:
    seen: set[str] = set()
    for base in owner.__mro__:
        if base.__module__.startswith("torch."):
            continue
        for name, function in vars(base).items():
            if name not in seen and inspect.isfunction(function):
                seen.add(name)
                yield from _read(function)


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
        yield Method(
            function.__qualname__, function.__module__, node, source, inspect.getfile(function), start
        )


def _definition(function: Callable[..., Any] | None) -> list[Place]:
    return [(method, "", method.node.lineno) for method in _read(function)] if function else []


def _example(model: nn.Module) -> list[Place]:
    """The first call of ``generate()`` in the class's own code or in the examples of its docstrings."""
    for method in _methods([type(model)]):
        if method.owner != type(model).__module__:
            continue
        for line, text in enumerate(method.source.splitlines(), method.start):
            if found := _EXAMPLE.search(text):
                calls = [call for call in method.calls(_named("generate")) if call.lineno == line]
                return [(method, _code(calls[0]) if calls else found[0], line)]
    return []


def _code(node: ast.expr) -> str:
    return " ".join(ast.unparse(node).split())


def _all(methods: list[Method], pattern: str) -> list[Place]:
    return [(method, _code(call), call.lineno) for method in methods for call in method.calls(pattern)]


def _named(*names: str) -> str:
    """The pattern of calls of a function or method of one of these names."""
    return rf"(?:[^(]*\.)?(?:{'|'.join(names)})\("


def _condition(methods: list[Method], name: str) -> list[Place]:
    """The ``if`` around every call of ``name``, or around all calls of its callers, and so on."""
    names = {name}
    while True:
        callers = [(method, calls) for method in methods if (calls := method.calls(_named(*names)))]
        for method, calls in callers:
            guard = _guard(method.node, calls)
            if guard is not None:
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


def _origin(file: str, revision: str) -> tuple[str, str]:
    """The file relative to site-packages with its library's version, or its name in the checkpoint."""
    import transformers

    path = Path(file)
    package = Path(__file__).parents[1]
    for root in (Path(transformers.__file__).parents[1], package.parent):
        if path.is_relative_to(package if root == package.parent else root):
            relative = path.relative_to(root)
            library = relative.parts[0]
            version = getattr(sys.modules.get(library), "__version__", __version__)
            return relative.as_posix(), f"{library} {version}".strip()
    return path.name, revision
