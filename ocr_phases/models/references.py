"""Where in the loaded source the two phases happen: found in the code itself, by its syntax tree.

Line numbers written down go stale with the next version; these are looked up in the files of the classes
that are loaded.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import pandas as pd
from torch import nn

from ocr_phases.models.wiring import Family, family_of

COLUMNS = ("what", "symbol", "file", "line", "version")
_SHOWN = 120


@dataclass(frozen=True)
class Method:
    """A method as written: the class that defines it, its node and file."""

    owner: str
    node: ast.FunctionDef
    file: str

    def calls(self, wanted: Callable[[ast.Call], bool]) -> list[ast.Call]:
        """The calls in it that ``wanted`` says yes to, in order."""
        found = [node for node in ast.walk(self.node) if isinstance(node, ast.Call) and wanted(node)]
        return sorted(found, key=lambda node: (node.lineno, node.col_offset))


Place = tuple[Method, ast.expr]


def references(model: nn.Module, revision: str = "") -> pd.DataFrame:
    """Where vision is gated and called, fused, the text layers called, the cache grown and steps prepared.

    One row a place: what, symbol (``Class.method: code``), file (relative to site-packages or to the
    checkpoint), line, and version (the library's, or the checkpoint's ``revision``). What is not found is a
    row without file and line.
    """
    family = family_of(model)
    methods = _vision_methods(model, family)
    leaves = {stage: family.wiring.modules[stage].rpartition(".")[2] for stage in family.facts.vision_stages}
    found: list[tuple[str, list[Place]]] = [
        ("condition of vision", _condition(methods, leaves["projector"])),
        *((f"vision call: {stage}", _all(methods, _named(leaf))) for stage, leaf in leaves.items()),
        ("fusion", _all(methods, _named("masked_scatter", "masked_scatter_"))),
        ("language model", _all(methods, _is_delegation)[:1]),
        ("cache update", _all(_attention_methods(model, family), _is_cache_update)[:1]),
    ]
    rows = []
    for what, places in found:
        rows += [_row(what, *place, revision) for place in places] or [(what, "", None, None, "")]
    rows.append(_function_row("cache class", _cache_update(), revision))
    prepare = getattr(type(model), "prepare_inputs_for_generation", None)
    rows.append(_function_row("step preparation", prepare, revision))
    return pd.DataFrame(rows, columns=list(COLUMNS)).astype({"line": "Int64"})


def _vision_methods(model: nn.Module, family: Family) -> list[Method]:
    """The methods of every module on the way from the model to its vision parts."""
    paths = {""}
    for stage in family.facts.vision_stages:
        parts = family.wiring.modules[stage].split(".")[:-1]
        paths |= {".".join(parts[:count]) for count in range(1, len(parts) + 1)}
    classes = dict.fromkeys(type(model.get_submodule(path)) for path in sorted(paths))
    return [method for owner in classes for method in _methods(owner)]


def _attention_methods(model: nn.Module, family: Family) -> list[Method]:
    language_model, _ = family.timed(model)["language_model"]
    classes = dict.fromkeys(type(module) for module in language_model.modules())
    return [method for owner in classes for method in _methods(owner)]


def _methods(owner: type) -> Iterator[Method]:
    """The methods an object of the class runs, inherited ones too, but for those of torch itself."""
    seen: set[str] = set()
    for base in owner.__mro__:
        file = _file_of(base)
        if file is None or base.__module__.startswith("torch."):
            continue
        for node in _class_body(file, base.__name__):
            if node.name not in seen:
                seen.add(node.name)
                yield Method(base.__name__, node, file)


def _file_of(owner: type) -> str | None:
    return getattr(sys.modules.get(owner.__module__), "__file__", None)


def _class_body(file: str, name: str) -> list[ast.FunctionDef]:
    for node in ast.walk(_tree(file)):
        if isinstance(node, ast.ClassDef) and node.name == name:
            return [part for part in node.body if isinstance(part, ast.FunctionDef)]
    return []


def _tree(file: str) -> ast.Module:
    try:
        return _parsed(Path(file).read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return ast.Module(body=[], type_ignores=[])


@lru_cache(maxsize=32)
def _parsed(source: str) -> ast.Module:
    return ast.parse(source)


def _all(methods: Iterable[Method], wanted: Callable[[ast.Call], bool]) -> list[Place]:
    return [(method, call) for method in methods for call in method.calls(wanted)]


def _named(*names: str) -> Callable[[ast.Call], bool]:
    return lambda call: getattr(call.func, "attr", getattr(call.func, "id", None)) in names


def _is_delegation(call: ast.Call) -> bool:
    """``self.language_model(...)``, or ``super().forward(...)`` where the class is the language model."""
    if not isinstance(call.func, ast.Attribute):
        return False
    above = call.func.value
    to_super = isinstance(above, ast.Call) and getattr(above.func, "id", None) == "super"
    return call.func.attr == "language_model" or (to_super and call.func.attr == "forward")


def _is_cache_update(call: ast.Call) -> bool:
    if not isinstance(call.func, ast.Attribute) or call.func.attr != "update":
        return False
    return "past_key_value" in ast.unparse(call.func.value)


def _condition(methods: list[Method], name: str) -> list[Place]:
    """The ``if`` around every call of ``name``, or around all calls of its callers, and so on."""
    names = {name}
    while True:
        callers = [(method, calls) for method in methods if (calls := method.calls(_named(*names)))]
        for method, calls in callers:
            guard = _guard(method.node, calls)
            if guard is not None:
                return [(method, guard)]
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


def _cache_update() -> Any:
    from transformers import DynamicCache

    return getattr(DynamicCache, "update", None)


def _row(what: str, method: Method, node: ast.expr, revision: str) -> tuple:
    code = " ".join(ast.unparse(node).split())
    code = code if len(code) <= _SHOWN else f"{code[:_SHOWN]}..."
    file, version = _origin(method.file, revision)
    return what, f"{method.owner}.{method.node.name}: {code}", file, node.lineno, version


def _function_row(what: str, function: Any, revision: str) -> tuple:
    function = inspect.unwrap(function) if function is not None else None
    code = getattr(function, "__code__", None)
    if code is None:
        return what, "", None, None, ""
    file, version = _origin(code.co_filename, revision)
    return what, function.__qualname__, file, code.co_firstlineno, version


def _origin(file: str, revision: str) -> tuple[str, str]:
    """The file relative to site-packages with its library's version, or its name in the checkpoint."""
    import transformers

    packages = Path(transformers.__file__).parents[1]
    path = Path(file)
    if path.is_relative_to(packages):
        relative = path.relative_to(packages)
        version = getattr(sys.modules.get(relative.parts[0]), "__version__", "")
        return relative.as_posix(), f"{relative.parts[0]} {version}".strip()
    return path.name, revision
