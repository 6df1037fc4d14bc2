"""The kernel view of a record as a section of its report."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from ocr_phases.analyse.kernels import (
    host_syncs,
    idle_gaps,
    kernel_table,
    kv_cache_share,
    stage_verdict,
    top_kernels,
)
from ocr_phases.analyse.sentences import kernel_account
from ocr_phases.analyse.stages import STAGE_KEYS
from ocr_phases.record import Record
from ocr_phases.record.parts import KernelsPart
from ocr_phases.show.html_table import table_html
from ocr_phases.show.kernel_plot import plot_kernels
from ocr_phases.show.run_times import name_whole_phases
from ocr_phases.show.section import Section
from ocr_phases.show.web import fold, note, section_heading
from ocr_phases.text import percent_text

_TOP_KERNELS = 12
_KERNELS = [*STAGE_KEYS, "verdict", "kernels", "launches", "busy_ms", "wall_ms", "busy_%"]


def kernels_section(run: Record) -> Section:
    """What limits each stage by the kernel view, under its own heading; empty without one.

    Decode's figures are per profiled step. A view that failed gives its error.
    """
    if run.kernels is None:
        return Section()
    head = section_heading("Kernels"), note(kernel_account(run))
    if not isinstance(run.kernels, KernelsPart):
        return Section(*head)
    table = kernel_table(run).merge(stage_verdict(run)[[*STAGE_KEYS, "verdict"]])
    table["busy_%"] = table["busy_ms"] / table["wall_ms"]
    table, whole = name_whole_phases(table[_KERNELS])
    caption = (
        f"From one more run under {run.kernels.tool} with {run.kernels.steps} decode steps; decode is per "
        "profiled step."
    )
    headings = {"wall_ms": ("time", "ms")}
    shown = table_html(table, caption=caption, headings=headings, strong=whole)
    folded = [
        fold(name, table_html(rows, caption=caption))
        for name, rows, caption in _kernel_details(run)
    ]
    return Section(*head, shown, plot_kernels(run), *folded)


def _kernel_details(run: Record) -> Iterator[tuple[str, pd.DataFrame, str]]:
    """Name, table and caption of what is folded: idle gaps, KV cache, host syncs and longest
    kernels.
    """
    gaps = (
        idle_gaps(run)
        .groupby(["phase", "cause"], sort=False)[["gaps", "idle_ms"]]
        .sum()
        .reset_index()
    )
    caption = (
        "Under the profiler, where gaps are longer; launch: the host was late, device: it was not."
    )
    yield "Idle gaps", gaps, caption
    waits = host_syncs(run)
    caption = (
        "Share of each phase. Attention in a captured graph is n/a: it does not name its kernels."
    )
    yield "Share of the KV cache", kv_cache_share(run), caption
    each = waits.loc[waits["phase"] == "decode", "count"].sum()
    caption = "Each host sync beyond the EOS check stops the host from launching ahead."
    yield f"Host syncs: {each:g} per step", waits, caption
    for phase, name in (("prefill", "the prefill"), ("decode", "a decode step")):
        table = top_kernels(run, phase)
        times = table["device_ms"]
        table = table.assign(share=times / times.sum(), time_us=1e3 * times)
        top = table[table["kernel"] != ""].nlargest(_TOP_KERNELS, "device_ms")
        if len(table):
            caption = f"Together {percent_text(top['share'].sum())} of GPU busy time."
            yield (
                f"Longest kernels of {name}",
                top[["stage", "count", "time_us", "share", "kernel"]],
                caption,
            )
