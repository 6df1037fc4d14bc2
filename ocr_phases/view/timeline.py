"""What `TimelineView` draws of a record: the spans of its typical repeat in lanes, ready for
JSON.
"""

from __future__ import annotations

from typing import Any

import pandas as pd

from ocr_phases.analyse.stages import typical_repeat
from ocr_phases.record import Record, is_whole_phase
from ocr_phases.show.timeline_plot import named_spans, without_pauses
from ocr_phases.text import ms_text

_START_DIGITS = 3  # of ms: a microsecond
_LENGTH_DIGITS = 4


def timeline_data(run: Record) -> dict[str, Any]:
    """The typical repeat of a record, with a lane for each phase and each stage.

    Times are in ms of the device's clock, where the device has one, and pauses between phases are
    cut out, as in `run.plot.timeline()`.

    Returns
    -------
    dict
        ``title`` says which repeat it is, ``total`` is its length in ms, ``prefill`` has the first
        and last ms of the prefill, ``pauses`` the places of pauses that are left out. Each of
        ``lanes`` has ``name``, ``time`` (the sum in words), ``colour``, ``whole`` (it is a phase),
        and lists of the same length: ``start`` and ``ms`` of each span, and ``step``, the decode
        step that it belongs to, which is None where it belongs to none.
    """
    repeat = typical_repeat(run)
    spans = run.spans[run.spans["repeat"] == repeat]
    title = f"Repeat {run.repeats.index(repeat) + 1} of {len(run.repeats)}"
    drawn, pauses = without_pauses(named_spans(spans))
    drawn["whole"] = is_whole_phase(drawn)
    drawn["end_ms"] = drawn["drawn_ms"] + drawn["device_ms"]
    # Lanes are in the order of their first spans, with a phase above the stages that begin with it.
    drawn = drawn.sort_values(["drawn_ms", "whole"], ascending=[True, False], kind="stable")
    lanes = []
    for name, own_spans in drawn.groupby("name", sort=False):
        lanes.append(_lane(str(name), own_spans))
    of_prefill = drawn[drawn["phase"] == "prefill"]
    prefill: list[float] = []
    if not of_prefill.empty:
        prefill = [float(of_prefill["drawn_ms"].min()), float(of_prefill["end_ms"].max())]
    return {
        "title": title,
        "total": round(float(drawn["end_ms"].max()), _LENGTH_DIGITS),
        "prefill": prefill,
        "pauses": pauses,
        "lanes": lanes,
    }


def _lane(name: str, spans: pd.DataFrame) -> dict[str, Any]:
    """The spans of one phase or stage, in the order in which they are drawn."""
    steps = []
    for step in spans["step"]:
        steps.append(None if pd.isna(step) else int(step))
    return {
        "name": name,
        "time": ms_text(spans["device_ms"].sum()),
        "colour": spans["colour"].iloc[0],
        "whole": bool(spans["whole"].iloc[0]),
        "start": spans["drawn_ms"].round(_START_DIGITS).tolist(),
        "ms": spans["device_ms"].round(_LENGTH_DIGITS).tolist(),
        "step": steps,
    }
