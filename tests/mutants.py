"""Damaged copies of JSON values, seeded: one entry each is taken out, replaced, cut or made
longer.
"""

import copy
import math
import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

#: The keys and places that lead to an entry of plain JSON.
Path = tuple[str | int, ...]
#: What becomes of an entry.
Change = Callable[[Any, random.Random], Any]

REPLACEMENTS = (
    5, -1, 0, 1.5, math.nan, math.inf, 2**64, 10**400, True, None, "x", "", "\ud800", [], ["x"],
    [1], [None], {}, {"x": 1}, {"x": {"y": [{}]}}, [[[[]]]],
)  # fmt: skip

#: What a change gives for an entry that is to be taken out.
REMOVED = object()


def mutants(base: Any, count: int, seed: int) -> Iterator[tuple[str, Any]]:
    """``count`` damaged copies of ``base``, each with a line that says what was done to which
    entry.

    Every kind of entry is as likely as any other, however many of it there are.
    """
    rng = random.Random(seed)
    paths_by_kind = group_by_kind(paths(base))
    kinds = list(paths_by_kind)
    for _ in range(count):
        path = rng.choice(paths_by_kind[rng.choice(kinds)])
        change = rng.choice(CHANGES)
        damaged = copy.deepcopy(base)
        description = change_entry(damaged, path, change, rng)
        yield description, damaged


def paths(value: Any, before: Path = ()) -> Iterator[Path]:
    """The paths of all entries of plain JSON; ``before`` is the path of ``value`` itself."""
    entries: Any = ()
    if isinstance(value, dict):
        entries = value.items()
    elif isinstance(value, list):
        entries = enumerate(value)
    for key, inner in entries:
        path = (*before, key)
        yield path
        yield from paths(inner, path)


def group_by_kind(found: Iterator[Path]) -> dict[Path, list[Path]]:
    """Paths that differ in places of lists alone are of one kind."""
    kinds = defaultdict(list)
    for path in found:
        kind = tuple("*" if isinstance(part, int) else part for part in path)
        kinds[kind].append(path)
    return kinds


def change_entry(damaged: Any, path: Path, change: Change, rng: random.Random) -> str:
    """Change the entry at ``path`` in place, and say in a line what it is now."""
    *parents, key = path
    holder = damaged
    for part in parents:
        holder = holder[part]
    name = ".".join(str(part) for part in path)
    value = change(holder[key], rng)
    if value is REMOVED:
        del holder[key]
        return f"{name}: taken out"
    holder[key] = value
    return f"{name}: now {value!r:.60}"


# -- changes ---------------------------------------------------------------------------------------


def replace(_value: Any, rng: random.Random) -> Any:
    """Something else in the place of a value."""
    return rng.choice(REPLACEMENTS)


def remove(_value: Any, _rng: random.Random) -> Any:
    """Nothing in its place."""
    return REMOVED


def swap_type(value: Any, _rng: random.Random) -> Any:
    """The value as another type would hold it."""
    if isinstance(value, str):
        return len(value)
    if isinstance(value, list):
        return dict.fromkeys(str(item) for item in value)
    if isinstance(value, dict):
        return list(value)
    if isinstance(value, int | float) and not isinstance(value, bool):
        return str(value)
    return [value]


def resize(value: Any, rng: random.Random) -> Any:
    """A list that is shorter or longer; of what is no list, or empty, a list of two."""
    if not isinstance(value, list) or not value:
        return [value, value]
    if rng.random() < 0.6:
        return value[: rng.randrange(len(value))]
    return [*value, rng.choice(value)]


#: All changes; a value is replaced three times as often as anything else is done to it.
CHANGES: list[Change] = [replace, replace, replace, remove, swap_type, resize]
