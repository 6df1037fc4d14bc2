"""The kernel view of a record as a section of its report."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from ocr_phases.analyse.floors import WHOLES
from ocr_phases.analyse.kernels import (
    host_sync_table,
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
from ocr_phases.show.web import Html, fold, note, section_heading
from ocr_phases.text import percent_text

#: The longest kernels that a table names.
_TOP_KERNELS = 12
#: From which share of the GPU's busy time on the times of all kernels show that kernels overlap.
_OVERLAP = 1.05
_COLUMNS = [*STAGE_KEYS, "verdict", "kernels", "launches", "busy_ms", "wall_ms", "busy_%"]


def kernels_section(run: Record) -> Section:
    """What limits each stage by the kernel view, under its own heading.

    The figures of decode are per profiled step. A view that failed gives its error, and a record
    without one gives an empty section.
    """
    if run.kernels is None:
        return Section()
    heading = section_heading("Kernels")
    account = note(kernel_account(run))
    if not isinstance(run.kernels, KernelsPart):
        return Section(heading, account)
    details = [
        _idle_gaps(run),
        _kv_cache(run),
        _host_syncs(run),
        *_longest_kernels(run, "prefill", "the prefill"),
        *_longest_kernels(run, "decode", "a decode step"),
    ]
    folded = []
    for detail in details:
        table = table_html(detail.table, caption=detail.caption)
        folded.append(fold(detail.title, table))
    return Section(heading, account, _limits_html(run, run.kernels), plot_kernels(run), *folded)


def _limits_html(run: Record, kernels: KernelsPart) -> Html:
    """The table of what limits each phase and its stages."""
    verdicts = stage_verdict(run)[[*STAGE_KEYS, "verdict"]]
    table = kernel_table(run).merge(verdicts)
    table["busy_%"] = table["busy_ms"] / table["wall_ms"]
    table, whole = name_whole_phases(table[_COLUMNS])
    caption = (
        f"Recorded in one more run under {kernels.tool}, with {kernels.steps} decode "
        "steps. Rows of decode are the mean of one of these steps."
    )
    return table_html(table, caption=caption, headings={"wall_ms": ("time", "ms")}, strong=whole)


@dataclass(frozen=True)
class _Detail:
    """A table that is folded under its title."""

    title: str
    table: pd.DataFrame
    caption: str


def _idle_gaps(run: Record) -> _Detail:
    causes = idle_gaps(run).groupby(["phase", "cause"], sort=False)
    table = causes[["gaps", "idle_ms"]].sum().reset_index()
    caption = (
        "Times in which the GPU was idle, under the profiler, which makes them longer. The cause "
        "is launch if the host launched the next kernel too late, host sync if the host waited "
        "for the GPU first, and device if the kernel had been launched in time."
    )
    return _Detail("Idle gaps", table, caption)


def _kv_cache(run: Record) -> _Detail:
    shares = kv_cache_share(run)
    caption = "Time in which the GPU writes or reads the KV cache."
    if run.model.strategy == "compiled" and "decode" not in shares["phase"].tolist():
        caption += (
            " A compiled step does this in kernels that do other work as well, so it is n/a there."
        )
    elif run.model.strategy != "eager" and "order" not in shares["by"].tolist():
        caption += (
            " Reading it (attention) is n/a in a captured graph, which does not name kernels."
        )
    return _Detail("Share of the KV cache", shares, caption)


def _host_syncs(run: Record) -> _Detail:
    syncs = host_sync_table(run)
    per_step = syncs.loc[syncs["phase"] == "decode", "count"].sum()
    caption = (
        "In a host sync the host waits for the GPU, and cannot launch the next kernels meanwhile. "
        "Reading the end token needs one."
    )
    return _Detail(f"Host syncs: {per_step:g} per step", syncs, caption)


def _longest_kernels(run: Record, phase: str, name: str) -> list[_Detail]:
    """The kernels of a phase that took longest, each with its share; nothing without kernels."""
    table = top_kernels(run, phase)
    if table.empty:
        return []
    times_ms = table["device_ms"]
    table = table.assign(share=times_ms / times_ms.sum(), time_us=1e3 * times_ms)
    longest = table[table["kernel"] != ""].nlargest(_TOP_KERNELS, "device_ms")
    share = percent_text(longest["share"].sum())
    caption = f"Together they take {share} of the GPU's busy time."
    stages = kernel_table(run)
    busy_ms = stages.loc[stages["stage"] == WHOLES[phase], "busy_ms"].sum()
    if times_ms.sum() > _OVERLAP * busy_ms:
        caption = (
            f"Together they take {share} of the time of all kernels. Kernels run here before the "
            "one in front of them has ended, so this time is more than the GPU's busy time."
        )
    columns = ["stage", "count", "time_us", "share", "kernel"]
    return [_Detail(f"Longest kernels of {name}", longest[columns], caption)]
