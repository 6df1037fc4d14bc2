"""How many small faults the tests find: ``python -m benchmarks.mutations CLONE [ROOM ...]``.

CLONE is a clone of this checkout in which ``pytest --cov=ocr_phases --cov-context=test
--cov-report=`` ran. Ten places of each room are broken there, one at a time, from a fixed seed: a
sign, a bound, a unit, a comparison, a condition, a flag, an escape, a returned value. The tests
that run the line, then those that run its file, go on until one fails. Whether what none found
changes anything is for a person to judge.
"""

from __future__ import annotations

import ast
import os
import random
import signal
import sys
from collections import Counter, defaultdict
from itertools import zip_longest
from pathlib import Path

import pytest
from coverage import CoverageData
from transformers import GenerationMixin  # noqa: F401  # slow to load: here once, because every fault is a fork

SEED, PLACES, TESTS, SECONDS = 1, 10, 40, 900
SESSION = ("session",)  # the other modules at the top are the ground
TURNED = {ast.Lt: ast.LtE, ast.Gt: ast.GtE, ast.Eq: ast.NotEq, ast.In: ast.NotIn, ast.Is: ast.IsNot}
TURNED |= {ast.Add: ast.Sub, ast.And: ast.Or}
TURNED |= {new: old for old, new in TURNED.items()} | {ast.Mult: ast.Div}


def other(node: ast.AST) -> ast.AST | None:
    """What may stand in a node's place."""
    match node:
        case ast.Compare(left, [sign], right) if type(sign) in TURNED:
            return ast.Compare(left, [TURNED[type(sign)]()], right)
        case ast.BinOp(left, sign, right) if type(sign) in TURNED:
            return ast.BinOp(left, TURNED[type(sign)](), right)
        case ast.BoolOp(sign, values):
            return ast.BoolOp(TURNED[type(sign)](), values)
        case ast.UnaryOp(ast.Not() | ast.USub(), value):
            return value
        case ast.Constant(value) if type(value) in (int, float):
            return ast.Constant(value + 1 if isinstance(value, int) else 1e3 * value or 1.0)
        case ast.keyword(name, ast.Constant(bool() as value)) if name != "strict":
            return ast.keyword(name, ast.Constant(not value))
        case ast.Call(function, [value, *_]) if "escape" in ast.unparse(function):
            return value
        case ast.Return(ast.expr()):
            return ast.Return(ast.Constant(None))
    return None


class Broken(ast.NodeTransformer):
    """A module with another node in the place of one."""

    def __init__(self, node: ast.AST) -> None:
        self.node = node

    def visit(self, node: ast.AST) -> ast.AST:
        return other(node) if node is self.node else self.generic_visit(node)


def sample(clone: Path) -> dict[str, list[tuple[Path, int]]]:
    """Files and numbers of the nodes that are broken, by room: each kind in its turn."""
    kinds = defaultdict(lambda: defaultdict(list))
    for path in sorted((clone / "ocr_phases").rglob("*.py")):
        top = "session" if path.stem in SESSION else "ground"
        room = top if path.parent.name == "ocr_phases" else path.parent.name
        for number, node in enumerate(ast.walk(ast.parse(path.read_bytes()))):
            if other(node):
                kinds[room][type(node)].append((path, number))
    draw = random.Random(SEED)
    turns = {
        room: zip_longest(*(draw.sample(of, len(of)) for of in own.values()))
        for room, own in kinds.items()
    }
    return {
        room: [place for turn in own for place in turn if place][:PLACES]
        for room, own in turns.items()
    }


def tests_by_line(clone: Path) -> dict[tuple[str, int], list[str]]:
    """The tests that run a line of a file, or any line of it (0): those that run few lines come
    first.
    """
    data, known, lines = CoverageData(str(clone / ".coverage")), defaultdict(set), Counter()
    data.read()
    for file in data.measured_files():
        for line, contexts in data.contexts_by_lineno(file).items():
            tests = {name.rpartition("|")[0] for name in contexts} - {""}
            lines.update(tests)
            known[file, line] |= tests
            known[file, 0] |= tests
    return {
        line: sorted(tests, key=lambda test: (lines[test], test)) for line, tests in known.items()
    }


class InOrder:
    """Runs the tests in the order of this list, which the suite's own configuration changes."""

    def __init__(self, tests: list[str]) -> None:
        self.places = {test: place for place, test in enumerate(tests)}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items.sort(key=lambda item: self.places.get(item.nodeid, len(self.places)))


def passes(clone: Path, tests: list[str]) -> bool:
    """Whether all of the tests pass; one that hangs does not."""
    if not (child := os.fork()):
        os.environ |= {"PYTHONPATH": str(clone), "PYTHONDONTWRITEBYTECODE": "1"}
        os.chdir(clone)
        sys.path.insert(0, str(clone))
        del sys.modules["benchmarks"]  # the tests import the clone's
        sys.dont_write_bytecode = True
        os.dup2(os.open("mutations.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND), 1)
        signal.alarm(SECONDS)
        options = ["-x", "-n", "0", "-p", "no:cacheprovider"]
        os._exit(pytest.main([*options, *tests], plugins=[InOrder(tests)]))
    return os.waitpid(child, 0)[1] == 0


def main(clone: Path, rooms: list[str]) -> None:
    """Print a line a fault."""
    known = tests_by_line(clone)
    for room, places in sample(clone).items():
        for path, number in places if not rooms or room in rooms else ():
            source = path.read_bytes()
            node = [*ast.walk(module := ast.parse(source))][number]
            line = getattr(node, "lineno", 0)
            tests = [test for at in (line, 0) for test in known.get((str(path), at), [])]
            tests = [*dict.fromkeys(tests)][:TESTS]
            before = ast.unparse(node)
            after = ast.unparse(other(node))
            change = f"{path.relative_to(clone)}:{line} {before} -> {after}"
            path.write_text(ast.unparse(Broken(node).visit(module)), "utf-8")
            missed = not tests or passes(clone, tests)
            path.write_bytes(source)
            print("NOT FOUND" if missed else "found", room, change, len(tests), "tests", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]).resolve(), sys.argv[2:])
