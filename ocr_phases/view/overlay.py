"""Latency curves of other records, which the linked view draws over one another with its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict, TypeGuard

import pandas as pd

from ocr_phases.analyse.comparison import run_labels
from ocr_phases.analyse.figures import summary
from ocr_phases.analyse.stages import tokens_of
from ocr_phases.errors import OcrPhasesError
from ocr_phases.record import Record
from ocr_phases.show.web import printable
from ocr_phases.text import ms_text
from ocr_phases.view.curves import curve_top, slowest_points

#: A drawing of more curves than these, and that of the record itself, cannot be read.
MOST_OTHERS = 5
_MOST_POINTS = 2_000  # of a curve, which is more than a screen has pixels across
_LONGEST_NAME = 60


class OverlaidCurve(TypedDict):
    """One curve as the browser draws it: ``points`` are pairs of a token, from 0, and its ms."""

    name: str
    median: str
    points: list[tuple[int, float]]
    tokens: int
    top: float


def check_others(others: object) -> None:
    """Raise `OcrPhasesError` unless these are records, and no more than `MOST_OTHERS`."""
    if not _are_records(others):
        raise OcrPhasesError("others takes a list of records, such as others=[run].")
    if len(others) > MOST_OTHERS:
        raise OcrPhasesError(
            f"others has {len(others)} records: give at most {MOST_OTHERS}, because more curves "
            "cannot be told apart."
        )


def _are_records(values: object) -> TypeGuard[Sequence[Record]]:
    if not isinstance(values, list | tuple):
        return False
    return all(isinstance(value, Record) for value in values)


def overlaid_curves(
    run: Record, others: Sequence[Record], row: int, names: Sequence[str] = ()
) -> list[OverlaidCurve]:
    """The curve of a record's row, and those of other records.

    Parameters
    ----------
    run : Record
        The record that is shown.
    others : sequence of Record
        The records whose curves are drawn with its own; of more than `MOST_OTHERS` the first.
    row : int
        The row of a batch, counted from 0. A record that has no such row gives its last one.
    names : sequence of str, optional
        What the legend calls the curves, that of ``run`` first. The default is how the records
        differ, as in `compare`.

    Returns
    -------
    list of OverlaidCurve
        That of ``run`` first; empty where there are no others. A curve of many tokens has the
        slowest of each few, so that no slow one goes missing.
    """
    if not others:
        return []
    records = [run, *others[:MOST_OTHERS]]
    if not names:
        names = run_labels(records)
    curves = []
    for record, name in zip(records, names, strict=True):
        last_row = len(record.results) - 1
        curves.append(_curve(record, min(row, last_row), name))
    return curves


def _curve(run: Record, row: int, name: str) -> OverlaidCurve:
    times = tokens_of(run, row)["device_ms"].reset_index(drop=True)
    median_ms = summary(run)["inter_token_ms"]
    median = ""  # where tokens have no times of their own
    if median_ms is not None and not pd.isna(median_ms):
        median = f"median {ms_text(median_ms)}"
    return OverlaidCurve(
        name=printable(name, _LONGEST_NAME),
        median=median,
        points=slowest_points(times, len(times), _MOST_POINTS),
        tokens=len(times),
        top=curve_top(times.dropna()),
    )
