"""Damaged copies of JSON values, seeded: one entry each is taken out, replaced, cut or made
longer.
"""

import copy
import math
import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

REPLACEMENTS = (
    5, -1, 0, 1.5, math.nan, math.inf, 2**64, 10**400, True, None, "x", "", "\ud800", [], ["x"],
    [1], [None], {}, {"x": 1}, {"x": {"y": [{}]}}, [[[[]]]],
)  # fmt: skip


def mutants(base: Any, count: int, seed: int) -> Iterator[tuple[str, Any]]:
    """``count`` damaged copies of ``base``, each with a line that says what was done to which
    entry.

    Every kind of entry is as likely as any other, however many of it there are.
    """
    rng = random.Random(seed)
    kinds = defaultdict(list)
    for path in paths(base):
        kinds[tuple("*" if isinstance(part, int) else part for part in path)].append(path)
    for _ in range(count):
        path = rng.choice(kinds[rng.choice(list(kinds))])
        holder = damaged = copy.deepcopy(base)
        for part in path[:-1]:
            holder = holder[part]
        change = rng.choice(_CHANGES)
        if change is None:
            del holder[path[-1]]
        else:
            holder[path[-1]] = change(holder[path[-1]], rng)
        told = "taken out" if change is None else f"now {holder[path[-1]]!r:.60}"
        yield f"{'.'.join(map(str, path))}: {told}", damaged


def paths(value: Any, before: tuple = ()) -> Iterator[tuple]:
    """The keys that lead to each entry of plain JSON."""
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for key, inner in items:
        yield (*before, key)
        yield from paths(inner, (*before, key))


def _swap_type(value: Any, rng: random.Random) -> Any:
    swapped = {
        str: len,
        int: str,
        float: str,
        list: lambda v: dict.fromkeys(map(str, v)),
        dict: list,
    }
    return swapped.get(type(value), lambda v: [v])(value)  # type: ignore[operator]


def _resize(value: Any, rng: random.Random) -> Any:
    if not isinstance(value, list) or not value:
        return [value, value]
    return value[: rng.randrange(len(value))] if rng.random() < 0.6 else [*value, rng.choice(value)]


#: What becomes of an entry; None: it is taken out.
_CHANGES: list[Callable[[Any, random.Random], Any] | None] = [
    *[lambda value, rng: rng.choice(REPLACEMENTS)] * 3,
    *(None, _swap_type, _resize),
]
