"""The times of a record as sections of its report: stages, decode steps and floors."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import pandas as pd

from ocr_phases.analyse.floors import ceilings_text, floor_table, why_no_floor
from ocr_phases.analyse.noise import ceilings_are_wrong, impossible_values
from ocr_phases.analyse.sentences import read_rate_sentence
from ocr_phases.analyse.stages import (
    STAGE_KEYS,
    repeat_table,
    spread_names,
    stage_table,
    step_table,
    token_of_step,
)
from ocr_phases.record import Record, is_whole_phase
from ocr_phases.show.html_table import Heading, table_html
from ocr_phases.show.latency_plot import plot_latency
from ocr_phases.show.roofline_plot import plot_roofline
from ocr_phases.show.section import Section
from ocr_phases.show.terminal_table import table_text
from ocr_phases.show.web import Html, note
from ocr_phases.text import digits_text

#: A share above this one is printed as 101 % or more, a lower one as 100 % at most.
_PRINTS_ABOVE = 1.005
OVER_HUNDRED = "⚠ above 100 %"
_OVER_CAPTION = (
    ". ⚠ No stage can do more than its hardware. If a value is above 100 %, the ceiling was "
    "measured too low, or, for MBU, the bytes came from a cache"
)
_SLOWEST = 8  # steps in the table below the curve
_FLOORS = [
    *STAGE_KEYS,
    "device_ms",
    "floor_ms",
    "times_floor",
    "bound_by",
    "mfu",
    "mbu",
    "gflop",
    "bytes",
]


def stages_section(run: Record) -> Section:
    """The time of each phase and its stages, with whole phases in bold, and of each repeat."""
    table, whole = name_whole_phases(stage_table(run))
    if len(run.repeats) == 1:  # a single repeat has no spread
        table = table.drop(columns=["device_ms_p10", "device_ms_p90"])
    stages = timed_table(run, table, "Time of each phase and its stages", strong=whole)
    repeats = repeat_table(run)
    repeats["repeat"] = range(1, len(repeats) + 1)  # a person counts from one
    return Section(stages, table_html(repeats, caption="Time of each repeat"))


def name_whole_phases(table: pd.DataFrame) -> tuple[pd.DataFrame, pd.Series]:
    """A table of stages in which a whole phase is called so, and which rows are whole phases.

    ``table`` has the columns ``phase`` and ``stage``.
    """
    whole = is_whole_phase(table)
    waits = table["stage"] == "first_token"
    stage = table["stage"].mask(whole, "whole phase")
    phase = table["phase"].mask(waits, "first token")
    return table.assign(stage=stage, phase=phase), whole


def timed_table(
    run: Record,
    table: pd.DataFrame,
    caption: str,
    time: str = "device",
    *,
    headings: Mapping[str, Heading] | None = None,
    strong: Iterable[bool] | None = None,
    missing: str | None = None,
    empty: str | None = None,
    marks: Mapping[str, Iterable[str]] | None = None,
) -> Html:
    """A table of medians over repeats with their spread.

    ``time`` is the heading of the device's time. Without a device clock there is one time, and the
    host's is left out. The keywords are those of `table_html`.
    """
    if not run.device.has_own_clock:
        table = table.drop(columns="host_ms", errors="ignore")
        time = time.replace("device", "time")
    low, high = spread_names(len(run.repeats))
    headings_of_times = {
        "device_ms": (time, "ms"),
        "device_ms_p10": (low, "ms"),
        "device_ms_p90": (high, "ms"),
    }
    return table_html(
        table,
        caption=caption,
        headings={**headings_of_times, **(headings or {})},
        strong=strong,
        missing=missing,
        empty=empty,
        marks=marks,
    )


def latency_section(run: Record) -> Section:
    """Every decode step over its floor, and the slowest steps."""
    return Section(plot_latency(run), slowest_steps_section(run))


def slowest_steps_section(run: Record) -> Section:
    """The slowest decode steps; empty for a record without steps."""
    slowest = step_table(run).nlargest(_SLOWEST, "device_ms")
    # A reader knows a step by the token that it made.
    tokens = token_of_step(run, slowest["step"])
    table = slowest.drop(columns=["step", "outlier"]).assign(index=tokens)
    shown = timed_table(
        run,
        table,
        f"The {len(table)} slowest steps",
        "median",
        headings={"index": ("token", ""), "text": ("text", "")},
        empty="",
    )
    return Section(shown)


def floors_section(run: Record) -> Section:
    """Each stage beside its floor, or the reason why there is none."""
    reason = why_no_floor(run)
    if reason is not None:
        return Section(note(reason))
    timed = floor_table(run).dropna(subset=["device_ms"])
    table = timed.assign(gflop=timed["flops"] / 1e9)[_FLOORS]
    table, whole = name_whole_phases(table)
    missing = None
    faults = ""
    if ceilings_are_wrong(run):
        table = table.assign(floor_ms=math.nan, times_floor=math.nan, bound_by="n/a")
        missing = "the ceilings were measured wrongly"
        measured = impossible_values(run).measured
        faults = f"These ceilings are wrong, so that no floor is known: {measured}."
    floors = timed_table(
        run,
        table,
        _floor_caption(table),
        headings={"bytes": ("bytes read", "bytes")},
        strong=whole,
        missing=missing,
        marks=over_hundred(table),
    )
    ceilings = note(f"Ceilings: {ceilings_text(run)}.")
    read_rate = note(read_rate_sentence(run))
    return Section(floors, ceilings, read_rate, note(faults), plot_roofline(run))


def over_hundred(table: pd.DataFrame) -> dict[str, pd.Series]:
    """A mark for each MFU and MBU of `floor_table` that is above 100 %, for `table_html`."""
    marks = {}
    for name in ("mfu", "mbu"):
        marks[name] = (table[name] > _PRINTS_ABOVE).map({True: OVER_HUNDRED, False: ""})
    return marks


def floor_table_html(table: pd.DataFrame) -> Html:
    """`ocr_phases.analyse.floors.floor_table` in a notebook.

    What is above 100 % is marked and explained.
    """
    caption = _floor_caption(table)
    return table_html(table, caption=caption, missing="none", marks=over_hundred(table))


def floor_table_text(table: pd.DataFrame) -> str:
    """A table of floors for a terminal, where an MFU or MBU above 100 % has its mark beside it."""
    marked = table.copy()
    for name, marks in over_hundred(table).items():
        values: list[object] = []
        for value, mark in zip(table[name], marks, strict=True):
            values.append(f"{digits_text(value)} {mark}" if mark else value)
        marked[name] = pd.Series(values, table.index, dtype=object)
    return table_text(marked)


def _floor_caption(table: pd.DataFrame) -> str:
    """What the table shows; where a share is above 100 %, also what that means."""
    caption = "Time and floor of each stage"
    for marks in over_hundred(table).values():
        if (marks != "").any():
            return caption + _OVER_CAPTION
    return caption
