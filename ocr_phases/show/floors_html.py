"""HTML fragments about floors: how far each stage is from what the hardware allows."""

from __future__ import annotations

from ocr_phases.analyse.floors import ceilings_of, floor_table, why_no_floor
from ocr_phases.analyse.summary import stage_name
from ocr_phases.record import PhaseRun
from ocr_phases.show.html import note_html, table_html

_WHOLES = {"prefill": "whole prefill", "decode_step": "whole step"}
_HEADINGS = {
    "floor_ms": ("floor", "ms"),
    "limit": ("limited by", ""),
    "distance": ("over its floor", "×"),
    "mfu": ("MFU", "%"),
    "mbu": ("MBU", "%"),
    "gflop": ("GFLOP", ""),
    "bytes": ("weights and cache", "bytes"),
}


def floors_html(run: PhaseRun) -> str:
    """`floor_table` as a table and a line on its ceilings, or the sentence that says why there is none."""
    reason = why_no_floor(run)
    ceilings = ceilings_of(run)
    if reason is not None or ceilings is None:
        return note_html(reason or "")
    table = floor_table(run).dropna(subset=["device_ms"])
    whole = table["stage"].isin(_WHOLES)
    table["stage"] = table["stage"].map(lambda stage: _WHOLES.get(stage) or stage_name(stage))
    table["phase"] = table["phase"].replace("decode", "decode step")
    table["gflop"] = table["flops"] / 1e9
    if not table["view"].any():
        table = table.drop(columns="view")
    shown = [
        "phase",
        "stage",
        "view",
        "device_ms",
        "floor_ms",
        "distance",
        "limit",
        "mfu",
        "mbu",
        "gflop",
        "bytes",
    ]
    shown = [name for name in shown if name in table]
    headings = _HEADINGS | ({} if run.device.get("kind") == "cuda" else {"device_ms": ("time", "ms")})
    return table_html(table[shown], headings=headings, strong=whole.tolist()) + note_html(_source(run))


def _source(run: PhaseRun) -> str:
    ceilings = ceilings_of(run)
    if ceilings is None:
        return ""
    rates = (
        f"{ceilings.bandwidth_bytes_per_s / 1e9:,.0f} GB/s and {ceilings.flops_per_s / 1e12:,.3g} TFLOP/s in "
        f"{run.model.get('dtype')}"
    )
    if ceilings.source == "datasheet":
        return f"Ceilings: {rates}, by the {ceilings.name}; none were measured on this device."
    launch = (run.device.get("ceilings") or {}).get("launch_us")
    launches = f"; one more small operation costs {launch:.1f} µs" if launch else ""
    return f"Ceilings: {rates}, measured on this device by a large copy and a large product{launches}."
