"""A family whose decode steps are wrong themselves, as a mistake in this package would be."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ocr_phases.models.wiring import Family


def faulty(family: Family, fault: Callable[[dict[str, Any]], dict[str, Any]]) -> Family:
    """``family`` with ``fault`` over the arguments of each step."""

    class Faulty(Family):
        def step_arguments(self, *given: Any) -> dict[str, Any]:
            return fault(super().step_arguments(*given))

    return Faulty(family.facts, family.implementation)
