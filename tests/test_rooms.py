"""The package's rooms: imports go one way, from a later room to an earlier one, and never in a circle."""

import ast
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
#: The rooms from the ground up, which is every module at the top that is not named here.
ROOMS = ["inputs", "models", "steps", "collectors", "session", "analyse", "show", "engines", "report"]
ROOMS += ["explorer", "batch", "cli"]
#: Modules at the top that belong to the session.
SESSION = {"recorder", "request", "sweep_models"}
#: The public names, resolved on first use: the only door from the ground to every room.
FRONT_DOOR = "ocr_phases"


def modules(root: Path) -> dict[str, Path]:
    found = {}
    for path in sorted((root / "ocr_phases").rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def imports(root: Path) -> dict[str, set[str]]:
    """The modules of the package that each module imports: in functions and for types as well."""
    known = modules(root)
    graph: dict[str, set[str]] = {}
    for name, path in known.items():
        graph[name] = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module:
                wanted = [f"{node.module}.{alias.name}" for alias in node.names]
                graph[name] |= {full if full in known else node.module for full in wanted} & set(known)
            elif isinstance(node, ast.Import):
                graph[name] |= {alias.name for alias in node.names} & set(known)
        graph[name].discard(name)
    return graph


def room(module: str) -> int:
    """The number of a module's room, -1 for the ground."""
    name = module.split(".")[1] if "." in module else ""
    name = "session" if name in SESSION else name
    return ROOMS.index(name) if name in ROOMS else -1


def test_no_import_goes_in_a_circle() -> None:
    TopologicalSorter(imports(ROOT)).prepare()  # else its CycleError has the modules


def test_no_import_goes_up() -> None:
    pairs = [(module, other) for module, others in imports(ROOT).items() for other in sorted(others)]
    assert not [f"{one} -> {other}" for one, other in pairs if room(other) > room(one) and one != FRONT_DOOR]
