"""Damaged copies of JSON values, seeded: one entry each is taken out, replaced, cut or made longer."""

from __future__ import annotations

import copy
import math
import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

REPLACEMENTS = (
    5, -1, 0, 1.5, math.nan, math.inf, 2**64, 10**400, True, None, "x", "", "\ud800", [], ["x"], [1],
    [None], {}, {"x": 1}, {"x": {"y": [{}]}}, [[[[]]]],
)  # fmt: skip


def mutants(base: Any, count: int, seed: int) -> Iterator[tuple[str, Any]]:
    """``count`` damaged copies of ``base``, each with a line that says what was done to which entry.

    Every kind of entry is as likely as any other, however many of it there are.
    """
    rng = random.Random(seed)
    kinds = defaultdict(list)
    for path in paths(base):
        kinds[tuple("*" if isinstance(part, int) else part for part in path)].append(path)
    for _ in range(count):
        path = rng.choice(kinds[rng.choice(list(kinds))])
        damaged = copy.deepcopy(base)
        holder = damaged
        for part in path[:-1]:
            holder = holder[part]
        name, change = rng.choice(_CHANGES)
        told = change(holder, path[-1], rng)
        yield f"{'.'.join(map(str, path))}: {name} {told!r:.60}", damaged


def paths(value: Any, before: tuple = ()) -> Iterator[tuple]:
    """The keys that lead to each entry of plain JSON."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield (*before, key)
        yield from paths(inner, (*before, key))


def _replace(holder: Any, key: Any, rng: random.Random) -> Any:
    holder[key] = rng.choice(REPLACEMENTS)
    return holder[key]


def _delete(holder: Any, key: Any, rng: random.Random) -> None:
    del holder[key]


def _swap_type(holder: Any, key: Any, rng: random.Random) -> Any:
    value = holder[key]
    swapped = {str: len, int: str, float: str, list: lambda v: dict.fromkeys(map(str, v)), dict: list}
    holder[key] = swapped.get(type(value), lambda v: [v])(value)  # type: ignore[operator]
    return holder[key]


def _resize(holder: Any, key: Any, rng: random.Random) -> Any:
    value = holder[key]
    if isinstance(value, list) and value:
        shorter = rng.random() < 0.6
        holder[key] = value[: rng.randrange(len(value))] if shorter else [*value, rng.choice(value)]
    else:
        holder[key] = [value, value]
    return len(holder[key])


_CHANGES: list[tuple[str, Callable[[Any, Any, random.Random], Any]]] = [
    *[("replaced by", _replace)] * 3,
    *(("taken out", _delete), ("as another type", _swap_type), ("resized to", _resize)),
]
