"""The size of the type on a record's pages, as its views showed it."""

from __future__ import annotations

from collections.abc import Sequence

from ocr_phases.record import PhaseRun
from ocr_phases.type_fit import Size, Type, small_type, type_shown


def recorded_type(run: PhaseRun) -> Type:
    """The type size in the views of a record's pages, pixels; None if unknown."""
    return type_shown(run.request["preset"], _sizes(run), _types(run)) if _types(run) else None


def small_type_in(run: PhaseRun) -> str:
    """`small_type` of a record; empty where it is large enough, or nothing is known about it."""
    least = run.model.get("least_type_px")
    return small_type(run.request["preset"], _sizes(run), _types(run), least) if least and _types(run) else ""


def _sizes(run: PhaseRun) -> list[Size]:
    return [(page["width"], page["height"]) for page in run.pages]


def _types(run: PhaseRun) -> Sequence[Type]:
    return run.request.get("type_px") or ()
