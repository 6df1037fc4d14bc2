"""The times of a record as sections of its report: stages, decode steps and floors."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from ocr_phases.analyse.floors import ceilings_text, floor_table, why_no_floor
from ocr_phases.analyse.noise import ceilings_are_wrong, impossible_values
from ocr_phases.analyse.stages import (
    STAGE_KEYS,
    repeat_table,
    spread_names,
    stage_table,
    step_table,
    token_of_step,
)
from ocr_phases.record import Record, is_whole_phase
from ocr_phases.show.html_table import table_html
from ocr_phases.show.latency_plot import plot_latency
from ocr_phases.show.roofline_plot import plot_roofline
from ocr_phases.show.section import Section
from ocr_phases.show.web import Html, note

_PRINTS_ABOVE = 1.005  # as per cent this is 101, a lower share at most 100
OVER_HUNDRED = "⚠ above 100 %"
_OVER_CAPTION = (
    ". ⚠ No stage does more than its hardware can: above 100 %, the ceiling was measured too low, or (MBU) "
    "the bytes came from a cache"
)
_SLOWEST = 8
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
    """Each phase with its stages, whole phases in bold; each repeat."""
    table, whole = name_whole_phases(stage_table(run))
    spread = ["device_ms_p10", "device_ms_p90"] if len(run.repeats) == 1 else []
    shown = timed_table(
        run, table.drop(columns=spread), "Time of each phase and its stages", strong=whole
    )
    repeats = repeat_table(run)
    repeats["repeat"] = range(1, len(repeats) + 1)  # a person counts from one
    return Section(shown, table_html(repeats, caption="Time of each repeat"))


def name_whole_phases(table: pd.DataFrame) -> tuple[pd.DataFrame, pd.Series]:
    """A table of stages that calls whole phases so, and where they are."""
    whole = is_whole_phase(table)
    waits = table["stage"] == "first_token"
    table = table.assign(stage=table["stage"].mask(whole, "whole phase"))
    return table.assign(phase=table["phase"].mask(waits, "first token")), whole


def timed_table(
    run: Record, table: pd.DataFrame, caption: str, time: str = "device", **given: Any
) -> Html:
    """A table of medians over repeats with their spread; without a device clock there is one time."""
    low, high = spread_names(len(run.repeats))
    if not run.device.has_own_clock:
        table, time = table.drop(columns="host_ms", errors="ignore"), time.replace("device", "time")
    headings = {
        "device_ms": (time, "ms"),
        "device_ms_p10": (low, "ms"),
        "device_ms_p90": (high, "ms"),
    }
    return table_html(
        table, caption=caption, headings=headings | given.pop("headings", {}), **given
    )


def latency_section(run: Record) -> Section:
    """Every decode step over its floor, and the slowest steps."""
    slowest = step_table(run).nlargest(_SLOWEST, "device_ms").drop(columns="outlier")
    slowest["index"] = token_of_step(
        run, slowest.pop("step")
    )  # one count, from 1, as everywhere on the page
    caption, headings = (
        f"The {len(slowest)} slowest steps",
        {"index": ("token", ""), "text": ("text", "")},
    )
    table = timed_table(run, slowest, caption, "median", headings=headings, empty="")
    return Section(plot_latency(run), table)


def floors_section(run: Record) -> Section:
    """Each stage beside its floor, or the reason why there is none."""
    reason = why_no_floor(run)
    if reason is not None:
        return Section(note(reason))
    table = floor_table(run).dropna(subset=["device_ms"])
    table, whole = name_whole_phases(table.assign(gflop=table["flops"] / 1e9)[_FLOORS])
    wrong, missing, faults = ceilings_are_wrong(run), None, Html("")
    if wrong:
        table = table.assign(floor_ms=math.nan, times_floor=math.nan, bound_by="n/a")
        missing = "the ceilings were measured wrongly"
        faults = note(
            f"These ceilings are wrong, so that no floor is known: {impossible_values(run).measured}."
        )
    given: dict[str, Any] = {
        "strong": whole,
        "headings": {"bytes": ("read", "bytes")},
        "missing": missing,
    }
    shown = timed_table(run, table, _floor_caption(table), marks=over_hundred(table), **given)
    return Section(shown, note(f"Ceilings: {ceilings_text(run)}."), faults, plot_roofline(run))


def over_hundred(table: pd.DataFrame) -> dict[str, pd.Series]:
    """A mark for each MFU and MBU of `floor_table` that is above 100 %, for `table_html`."""
    return {
        name: (table[name] > _PRINTS_ABOVE).map({True: OVER_HUNDRED, False: ""})
        for name in ("mfu", "mbu")
    }


def floor_table_html(table: pd.DataFrame) -> Html:
    """`ocr_phases.analyse.floors.floor_table` in a notebook: what is above 100 % is marked and
    explained.
    """
    return table_html(
        table, caption=_floor_caption(table), missing="none", marks=over_hundred(table)
    )


def _floor_caption(table: pd.DataFrame) -> str:
    marked = any((words != "").any() for words in over_hundred(table).values())
    return f"Time and floor of each stage{_OVER_CAPTION if marked else ''}"
