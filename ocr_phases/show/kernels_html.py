"""HTML fragments of a record's kernel view."""

from __future__ import annotations

import pandas as pd

from ocr_phases.analyse.kernels import (
    has_kernels,
    host_syncs,
    kernel_table,
    kv_cache_share,
    short_kernel,
    stage_verdict,
    top_kernels,
)
from ocr_phases.analyse.sentences import kernel_account
from ocr_phases.record import PhaseRun
from ocr_phases.show.blocks import Html, fold, fragment, section_heading
from ocr_phases.show.html import note_html, table_html
from ocr_phases.text import percent_text, stage_name

_HEADINGS = {
    "kernels": ("kernels", ""),
    "copies": ("copies", ""),
    "launches": ("launches", ""),
    "busy_ms": ("GPU busy", "ms"),
    "wall_ms": ("time", "ms"),
    "works": ("busy", "%"),
    "count": ("count", ""),
    "device_us": ("time", "µs"),
    "wait_ms": ("waited", "ms"),
    "through": ("call", ""),
    "of_busy": ("of GPU busy time", "%"),
    "of_wall": ("of the phase", "%"),
    "by": ("identified by", ""),
}
_TOP_SHOWN = 6
_PARTS = {"kv_update": "KV cache, write", "attention": "KV cache, read (attention)"}


def kernels_html(run: PhaseRun) -> Html:
    """What limits each stage, as heading, sentence and table; empty without a kernel view.

    Decode's figures are per step. A failed view gives its error.
    """
    if run.kernels is None:
        return fragment()
    head = fragment(section_heading("Kernels"), note_html(kernel_account(run)))
    if not has_kernels(run):
        return head
    table = kernel_table(run).merge(
        stage_verdict(run)[["phase", "stage", "view", "verdict"]], on=["phase", "stage", "view"]
    )
    table["works"] = (table["busy_ms"] / table["wall_ms"]).clip(upper=1.0)
    whole = table["stage"].isin(("prefill", "decode_step"))
    table["stage"] = table["stage"].map(stage_name).mask(table["stage"] == table["phase"], "whole phase")
    columns = ["phase", "stage", "view", "kernels", "launches", "busy_ms", "wall_ms", "works", "verdict"]
    if not table["view"].any():
        columns.remove("view")
    steps = run.kernels["steps"]
    caption = f"From one more run under {run.kernels['tool']} with {steps} decode steps; decode is per step."
    told = table_html(table[columns], caption=caption, headings=_HEADINGS, strong=whole.tolist())
    return fragment(head, told)


def kernel_details_html(run: PhaseRun) -> Html:
    """The KV cache's share, host syncs and longest kernels, as folded tables."""
    if not has_kernels(run):
        return fragment()
    blocks = [fold("Share of the KV cache", _shares(run)), fold(*_waits(run))]
    for phase, name in (("prefill", "the prefill"), ("decode", "a decode step")):
        table = top_kernels(run, phase)
        if len(table):
            blocks.append(fold(f"Longest kernels of {name}", _top(table)))
    return fragment(*blocks)


def _shares(run: PhaseRun) -> Html:
    table = kv_cache_share(run)
    caption = "Share of each phase."
    shown = set(table.loc[table["part"] == "attention", "phase"])
    seen = set(kernel_table(run)[["phase", "stage"]].itertuples(index=False, name=None))
    with_attention = (("prefill", "language_model"), ("decode", "decode_step"))
    hidden = [stage[0] for stage in with_attention if stage in seen and stage[0] not in shown]
    if hidden:
        caption += (
            f" Attention in {' and '.join(hidden)} is n/a: a captured graph does not show which kernels "
            "belong to it."
        )
    table = table.assign(part=table["part"].map(_PARTS))
    return table_html(table, caption=caption, headings=_HEADINGS)


def _waits(run: PhaseRun) -> tuple[str, Html]:
    table = host_syncs(run)
    each = table.loc[table["phase"] == "decode", "count"].sum()
    table["stage"] = table["stage"].map(stage_name)
    table["operator"] = table["operator"].replace("", "none")
    caption = "Each host sync beyond the EOS check stops the host from launching ahead."
    return f"Host syncs: {each:g} per step", table_html(table, caption=caption, headings=_HEADINGS)


def _top(table: pd.DataFrame) -> Html:
    """The longest kernels over all stages of a phase."""
    whole = float(table["device_ms"].sum())
    named = table[table["kernel"] != ""].nlargest(_TOP_SHOWN * 2, "device_ms")
    shown = pd.DataFrame(
        {
            "stage": named["stage"].map(stage_name),
            "count": named["count"],
            "device_us": named["device_ms"] * 1e3,
            "share": named["device_ms"] / whole,
            "kernel": named["kernel"].map(short_kernel),
        }
    )
    caption = f"Together {percent_text(float(named['device_ms'].sum()) / whole)} of GPU busy time."
    return table_html(shown, caption=caption, headings=_HEADINGS)
