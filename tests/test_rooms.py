"""The package's rooms: imports go one way, from a higher room to a lower one, and never in a
circle.

An import counts wherever it stands: at the top of a file, in a function, under ``TYPE_CHECKING``. A
name of the package in a string would be an import that nobody sees, so strings have none.
"""

import ast
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = "ocr_phases"

#: The rooms from the lowest to the highest. A room imports only itself and rooms before it.
ROOMS = (
    "text",
    "errors",
    "files",
    "versions",
    "listeners",
    "images",
    "stages",
    "families",
    "settings",
    "record",
    "analyse",
    "show",
    "view",
    "report",
    "results",
    "inputs",
    "models",
    "collectors",
    "steps",
    "measure",
    "engines",
    "session",
    "explorer",
    "batch",
    "cli",
    "__main__",  # `python -m ocr_phases`
)

#: Imports that go up, each with what removes it. This list only shrinks.
GO_UP_UNTIL: dict[str, str] = {}

#: The public names, resolved on first use: the only door from the ground to every room.
FRONT_DOOR = PACKAGE

#: Strings that may name a module, each with its reason.
NAMED_IN_STRINGS = {
    "ocr_phases.batch.worker_process": {"ocr_phases.batch.worker"},  # what Python is told to run
    "ocr_phases.explorer.panel": {"ocr_phases.explorer"},  # whose files are resources
    # IPython prints a class that nobody has imported yet.
    "ocr_phases.report.engine": {"ocr_phases.show.shown_figure"},
    "ocr_phases.show.web": {"ocr_phases.show"},  # whose files are resources
    "ocr_phases.view.assets": {"ocr_phases.view"},  # whose files are resources
}

#: The dataclasses that change while something is measured or loaded; all others are frozen.
CHANGING = {
    "Afterwards",
    "Answer",
    "Carried",
    "DecodeState",
    "NotebookOutcome",
    "PageCounts",
    "Preparation",
    "ProcessedInputs",
    "Reach",
    "Span",
    "StepSetup",
    "Task",
}


@cache
def modules(root: Path) -> dict[str, Path]:
    found = {}
    for path in sorted((root / PACKAGE).rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        if parts[-1] == "__init__":
            parts = parts[:-1]
        found[".".join(parts)] = path
    return found


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def imports(root: Path) -> dict[str, set[str]]:
    """The modules of the package that each module imports, wherever the import stands."""
    known = modules(root)
    graph: dict[str, set[str]] = {}
    for name, path in known.items():
        graph[name] = set()
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    full_name = f"{node.module}.{alias.name}"
                    graph[name].add(full_name if full_name in known else node.module)
            elif isinstance(node, ast.Import):
                graph[name].update(alias.name for alias in node.names)
        graph[name] &= set(known)
        graph[name].discard(name)
    return graph


def room_of(module: str) -> str:
    below_package = module.removeprefix(f"{PACKAGE}.")
    return below_package.partition(".")[0]


def goes_up(importer: str, imported: str) -> bool:
    return ROOMS.index(room_of(imported)) > ROOMS.index(room_of(importer))


def upward_imports(root: Path) -> set[str]:
    found = set()
    for importer, others in imports(root).items():
        if importer == FRONT_DOOR:
            continue
        for imported in others:
            if imported != FRONT_DOOR and goes_up(importer, imported):
                found.add(f"{importer} -> {imported}")
    return found


@cache
def defined_in(path: Path) -> set[str]:
    """The names that a module defines at its top."""
    names = set()
    for node in tree_of(path).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names.update(target.id for target in node.targets if isinstance(target, ast.Name))
    return names


def names_a_thing_of_ours(text: str, known: dict[str, Path]) -> bool:
    """Whether a text is the name of a module, or of what one defines, with or without the package's
    name.
    """
    if text in known and text != PACKAGE:
        return True
    module, _, attribute = text.rpartition(".")
    for full_name in (module, f"{PACKAGE}.{module}"):
        if full_name in known and attribute in defined_in(known[full_name]):
            return True
    return False


def names_in_strings(path: Path, known: dict[str, Path]) -> Iterator[str]:
    """The texts of a module that name a thing of ours, and the attributes that it gets by a
    computed name.
    """
    tree = tree_of(path)
    docstrings = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
        if is_text and id(node) not in docstrings and names_a_thing_of_ours(node.value, known):
            yield node.value
        is_getattr = isinstance(node, ast.Call) and ast.unparse(node.func) == "getattr"
        if is_getattr and len(node.args) > 1 and isinstance(node.args[1], ast.JoinedStr):
            yield ast.unparse(node)


def dataclasses_that_change(path: Path) -> Iterator[str]:
    """The names of a module's dataclasses whose entries can be set again."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.ClassDef):
            made_by = [ast.unparse(decorator) for decorator in node.decorator_list]
            if any(text.startswith("dataclass") and "frozen=True" not in text for text in made_by):
                yield node.name


def test_every_module_is_in_a_room() -> None:
    rooms = {room_of(module) for module in modules(ROOT) if module != FRONT_DOOR}
    assert rooms <= set(ROOMS)


def test_no_import_goes_in_a_circle() -> None:
    graph = {module: set(others) for module, others in imports(ROOT).items()}
    for pair in GO_UP_UNTIL:
        importer, _, imported = pair.partition(" -> ")
        graph[importer].discard(imported)
    TopologicalSorter(graph).prepare()  # else its CycleError has the modules


def test_no_import_goes_up() -> None:
    found = upward_imports(ROOT)
    assert sorted(found - set(GO_UP_UNTIL)) == []


def test_the_exceptions_are_still_needed() -> None:
    assert sorted(set(GO_UP_UNTIL) - upward_imports(ROOT)) == []


@pytest.mark.parametrize("module", sorted(modules(ROOT)))
def test_no_name_of_the_package_is_hidden_in_a_string(module: str) -> None:
    if module == FRONT_DOOR:
        return
    known = modules(ROOT)
    found = set(names_in_strings(known[module], known))
    assert found <= NAMED_IN_STRINGS.get(module, set())


def test_nobody_changes_a_value_behind_its_reader_s_back() -> None:
    found = [name for path in modules(ROOT).values() for name in dataclasses_that_change(path)]
    assert sorted(found) == sorted(CHANGING)
