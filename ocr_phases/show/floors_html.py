"""HTML fragments about floors."""

from __future__ import annotations

from ocr_phases.analyse.floors import ceilings_text, floor_table, why_no_floor
from ocr_phases.record import PhaseRun
from ocr_phases.show.blocks import Html, fragment
from ocr_phases.show.html import note_html, table_html
from ocr_phases.text import stage_name

_WHOLES = {"prefill": "whole prefill", "decode_step": "whole decode step"}
_HEADINGS = {
    "floor_ms": ("floor", "ms"),
    "bound_by": ("bound by", ""),
    "times_floor": ("times floor", ""),
    "mfu": ("MFU", "%"),
    "mbu": ("MBU", "%"),
    "gflop": ("GFLOP", ""),
    "bytes": ("read", "bytes"),
}
_SHOWN = ("stage", "device_ms", "floor_ms", "times_floor", "bound_by", "mfu", "mbu", "gflop", "bytes")


def floors_html(run: PhaseRun) -> Html:
    """`floor_table` as a table with its ceilings, or the reason why there is none."""
    reason = why_no_floor(run)
    if reason is not None:
        return note_html(reason)
    table = floor_table(run).dropna(subset=["device_ms"])
    whole = table["stage"].isin(_WHOLES)
    names = (table["stage"].map(stage_name) + " " + table["view"]).str.strip()
    names = names.mask(table["phase"] == "decode", "decode: " + names)
    table["stage"] = names.mask(whole, table["stage"].map(_WHOLES))
    table["gflop"] = table["flops"] / 1e9
    headings = _HEADINGS | ({} if run.device.get("kind") == "cuda" else {"device_ms": ("time", "ms")})
    shown = table_html(
        table[list(_SHOWN)],
        caption="Time and floor of each stage",
        headings=headings,
        strong=whole.tolist(),
    )
    return fragment(shown, note_html(f"Ceilings: {ceilings_text(run)}."))
