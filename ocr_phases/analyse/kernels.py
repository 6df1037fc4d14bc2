"""The kernel view of a record: busy time of each stage and causes of idle time.

How long the device worked, for whom and in which kernels comes from a run of its own under
torch.profiler (`ocr_phases.measure.kernels`). How long a stage takes comes from the timed
repeats, because the profiler slows the host down: busy time over wall time is therefore a figure of
the undisturbed run. Idle gaps and the host's waits were seen under the profiler and are longer
there; their kind and number are not.

Figures of the decode are for one step (one token a row), wall times of the same steps as the
profiled ones; all others are for one run of the phase.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from ocr_phases.analyse.floors import WHOLES
from ocr_phases.analyse.noise import trusted_floors
from ocr_phases.analyse.stages import (
    STAGE_KEYS,
    cached,
    replayed_stage_ms,
    stage_medians,
    vision_stages,
)
from ocr_phases.errors import OcrPhasesError
from ocr_phases.record import PHASES, Record
from ocr_phases.record.parts import KernelsFailed, KernelsPart, Part, columns_of
from ocr_phases.stages import ENCODERS, stage_title
from ocr_phases.text import count_text, ms_text, percent_text

_COUNTED = ("kernels", "copies", "launches", "busy_ms")
KERNEL_COLUMNS = (*STAGE_KEYS, *_COUNTED, "wall_ms", "profiled_ms")
SHARE_COLUMNS = ("phase", "part", "kernels", "busy_ms", "of_busy", "of_wall", "by")
SYNC_COLUMNS = ("phase", "stage", "operator", "through", "call", "copy", "count", "wait_ms")
VERDICT_COLUMNS = (
    *STAGE_KEYS,
    "verdict",
    "busy_ms",
    "wall_ms",
    "idle_after_sync",
    "queue_ms",
    "floor_ms",
    "of_floor",
    "mfu",
    "mbu",
)

#: From this share of its wall time on that the device works, the stage is bound by the device.
DEVICE_BOUND = 0.7
#: From this share of the idle time on that follows the host's waits, they and not the launches are
#: to blame.
_SYNC_BOUND = 0.5
#: From this share of its floor's rate on that the device reaches while it works, it is bound as its
#: floor is.
FLOOR_BOUND = 0.5
#: From this share of the prefill on, both under the profiler, one operator's waits are worth a
#: word.
_CLEAR_WAIT = 0.05
_NOISE = re.compile(r"^void |at::native::|\(anonymous namespace\)::|<unnamed>::|std::")


def has_kernels(run: Record) -> bool:
    """Whether the record has a kernel view that worked."""
    return isinstance(run.kernels, KernelsPart)


@cached
def kernel_table(run: Record) -> pd.DataFrame:
    """One row per stage, columns `KERNEL_COLUMNS`; a stage includes its inner stages.

    ``busy_ms`` is the union of the stage's kernels, copies and fills on the device; ``wall_ms`` the
    median over the timed repeats on the device's clock, in decode over the profiled steps (missing
    where they have no such stage, and for the loop around the steps, which the profiled run cuts
    short). ``launches`` are the host's calls that put work on the device: one for a whole graph.
    ``profiled_ms`` is the host's time in the stage under the profiler. A stage within a replayed
    graph is not timed by itself: its ``wall_ms`` is the time in the profiled replays, from the
    start of its first kernel to the end of its last one.
    """
    view = _kernel_view(run)
    table = _step_figures(view, view.stages, (*_COUNTED, "host_ms"))
    table = table.rename(columns={"host_ms": "profiled_ms"})
    walls = stage_medians(run, tuple(view.decode_steps.step))
    table = table.join(walls.rename("wall_ms"), on=[*STAGE_KEYS])
    replayed = replayed_stage_ms(run).rename("replayed_ms")
    table = table.join(replayed, on=[*STAGE_KEYS])
    # Sampling is in the graph, and is the span in which the host reads the token, too.
    in_graph = table["replayed_ms"].notna()
    both = table[["wall_ms", "replayed_ms"]].sum(axis="columns")
    table["wall_ms"] = table["wall_ms"].where(~in_graph, both)
    return table[list(KERNEL_COLUMNS)]


def top_kernels(run: Record, stage: str | None = None) -> pd.DataFrame:
    """The kernels that take longest, the longest first within each phase and stage.

    Columns ``phase``, ``stage``, ``kernel``, ``count``, ``device_ms`` and ``share``, of the stage's
    summed kernel time; its last row, without a name, is all the others. A kernel counts for the
    innermost stage. ``stage`` keeps one stage, or a whole phase by its name.
    """
    view = _kernel_view(run)
    table = _step_figures(view, view.top, ("count", "device_ms"))
    if stage is not None:
        table = table[(table["stage"] == stage) | (table["phase"] == stage)].reset_index(drop=True)
    total = table.groupby(["phase", "stage"])["device_ms"].transform("sum")
    return table.assign(share=table["device_ms"] / total)


def compared_kernels(runs: Sequence[Record], labels: Sequence[str]) -> pd.DataFrame:
    """The kernel tables of records side by side, a row for each stage that one of them has.

    For each record there are ``kernels``, ``launches`` and ``busy_ms`` with its label, as in
    `kernel_table`; ``busy_ratio`` is the busy time of the last record over that of the first. Of
    decode they are for one step. Raises `OcrPhasesError` where a record has no kernel view.
    """
    tables = []
    for run, label in zip(runs, labels, strict=True):
        table = kernel_table(run).set_index([*STAGE_KEYS])[["kernels", "launches", "busy_ms"]]
        tables.append(table.add_suffix(f" {label}"))
    side_by_side = tables[0]
    for table in tables[1:]:
        side_by_side = side_by_side.join(table, how="outer", sort=False)
    last = side_by_side[f"busy_ms {labels[-1]}"]
    first = side_by_side[f"busy_ms {labels[0]}"]
    side_by_side["busy_ratio"] = last / first.where(first > 0)
    order = {stage: place for place, stage in enumerate(kernel_table(runs[0])["stage"])}
    rows = side_by_side.reset_index()
    rows["place"] = rows["stage"].map(order).fillna(len(order))
    rows["phase_place"] = rows["phase"].map(PHASES.index)
    rows = rows.sort_values(["phase_place", "place", "view"], kind="stable", ignore_index=True)
    return rows.drop(columns=["place", "phase_place"])


def short_kernel(name: str, length: int = 80) -> str:
    """A kernel's name without common namespaces, cut to ``length`` characters."""
    if not name:
        return "(all others)"
    short = _NOISE.sub("", name)
    return short if len(short) <= length else f"{short[: length - 1]}…"


@cached
def idle_gaps(run: Record) -> pd.DataFrame:
    """Idle time between the device's work by stage and cause, seen under the profiler, in ms.

    Columns ``phase``, ``stage``, ``view``, ``cause``, ``longer_than_us``, ``gaps``, ``idle_ms`` and
    ``longest_ms``. The stage is that of the kernel which ends the gap. Causes are ``host sync``
    (the host had waited for the device), ``launch`` (the host was late with it) and ``device`` (it
    was there in time). Earlier records count gaps by length too: longer than ``longer_than_us``
    microseconds.
    """
    view = _kernel_view(run)
    table = _step_figures(view, view.gaps, ("count", "idle_ms"))
    return table.rename(columns={"count": "gaps"})


@cached
def kv_cache_share(run: Record) -> pd.DataFrame:
    """The KV cache's part, columns `SHARE_COLUMNS`: ``kv_update`` (write) and ``attention`` (read),
    by phase.

    ``of_busy`` is of the device's work in the prefill or in one decode step, ``of_wall`` of its
    wall time. ``by`` says how the kernels were told: by the ``range`` around the cache's update or
    by the attention ``operator`` that launched them, by their ``order`` within a CUDA graph, which
    is that of the same step launched kernel by kernel, or by ``name`` within one (best effort;
    attention then cannot be told and has no row).
    """
    view = _kernel_view(run)
    table = _step_figures(view, view.parts, ("kernels", "busy_ms"))
    wholes = kernel_table(run)
    wholes = wholes[wholes["stage"] == wholes["phase"].map(WHOLES)].set_index("phase")
    table["of_busy"] = table["busy_ms"] / table["phase"].map(wholes["busy_ms"])
    table["of_wall"] = table["busy_ms"] / table["phase"].map(wholes["wall_ms"])
    return table[list(SHARE_COLUMNS)]


@cached
def host_sync_table(run: Record) -> pd.DataFrame:
    """Every kind of the host's waits for the device, columns `SYNC_COLUMNS`, the most frequent
    first.

    ``operator`` is the outermost PyTorch operator within the stage that waited, ``through`` the
    innermost (``aten::item`` waits through ``aten::_local_scalar_dense``), ``call`` the CUDA call,
    ``copy`` the direction of the copy that was waited for. ``count`` is per step in decode: each
    one beyond the read of the end token holds up the next launches.
    """
    view = _kernel_view(run)
    table = _step_figures(view, view.host_syncs, ("count", "wait_ms"))
    table["phase_number"] = table["phase"].map(PHASES.index)
    table["minus_count"] = -table["count"]
    order = ["phase_number", "minus_count"]
    table = table.sort_values(order, kind="stable", ignore_index=True)
    return table[list(SYNC_COLUMNS)]


@cached
def stage_verdict(run: Record) -> pd.DataFrame:
    """What bounds each stage of prefill and decode, columns `VERDICT_COLUMNS`.

    The device is at work in ``busy_ms``, and in ``queue_ms`` it goes from one kernel to another
    that was launched in time. Where both together are less than `DEVICE_BOUND` of ``wall_ms``, a
    stage is ``host-sync-bound`` if at least half of its idle time (wall less busy) follows a wait
    of the host (``idle_after_sync``; gaps were seen under the profiler, so it is cut at 1), else
    ``launch-bound``. Any other is ``compute-bound`` or ``bandwidth-bound``, by what its floor is
    made of, where the floor is at least `FLOOR_BOUND` of the busy time (``of_floor``). Farther from
    its floor (`trusted_floors`), or without one, it is ``device-bound``. ``prepare`` is the host's
    own work and has no verdict.
    """
    table = kernel_table(run)
    table = table[(table["phase"] != "prepare") & (table["busy_ms"] > 0) & (table["wall_ms"] > 0)]
    floors = trusted_floors(run).set_index([*STAGE_KEYS])[["floor_ms", "bound_by", "mfu", "mbu"]]
    table = table.join(floors, on=[*STAGE_KEYS]).reset_index(drop=True)
    idle = [_idle_ms(run, *key) for key in table[[*STAGE_KEYS]].itertuples(index=False, name=None)]
    causes = pd.DataFrame(idle, columns=["host sync", "device"], dtype="float64").fillna(0.0)
    waiting = table["wall_ms"] - table["busy_ms"]
    after_sync = causes["host sync"] / waiting.where(waiting > 0)
    table["idle_after_sync"] = after_sync.clip(upper=1.0)
    table["queue_ms"] = causes["device"]
    table["of_floor"] = table["floor_ms"] / table["busy_ms"]
    table["verdict"] = [_bound(row) for row in table.to_dict("records")]
    return table[list(VERDICT_COLUMNS)]


def _bound(row: dict[Any, Any]) -> str:
    """What bounds a stage, by its row of `stage_verdict`."""
    worked_or_queued = row["busy_ms"] + row["queue_ms"]
    if worked_or_queued < DEVICE_BOUND * row["wall_ms"]:
        if row["idle_after_sync"] >= _SYNC_BOUND:
            return "host-sync-bound"
        return "launch-bound"
    if row["of_floor"] >= FLOOR_BOUND:
        if row["bound_by"] == "arithmetic":
            return "compute-bound"
        return "bandwidth-bound"
    return "device-bound"


def kernel_sentences(run: Record, *phases: str) -> list[str]:
    """What limits ``prefill`` and ``decode``, a sentence each; none without a view, or where it saw
    none.
    """
    if isinstance(run.kernels, KernelsFailed) and run.kernels.error:
        return [f"The kernel view failed: {run.kernels.error.rstrip('.')}."]
    if not has_kernels(run):
        return []
    wholes = {}
    for row in stage_verdict(run).to_dict("records"):
        if row["stage"] == WHOLES[row["phase"]]:
            wholes[row["phase"]] = row
    sentences: list[str] = []
    for phase in phases:
        if phase not in wholes:
            continue
        row = wholes[phase]
        unit = " per profiled step" if phase == "decode" else ""
        works = of_text(row["busy_ms"], row["wall_ms"]) + unit
        if row["verdict"] == "device-bound" and not math.isnan(row["of_floor"]):
            works += f", and its kernels reach {percent_text(row['of_floor'])} of the best rate"
        sentences.append(f"{phase.capitalize()} is {row['verdict']}: the GPU is busy {works}.")
        if phase == "prefill":
            sentences += _waits(run)
        elif row["verdict"] == "launch-bound" and run.model.strategy == "eager":
            sentences.append(
                "A CUDA graph (strategy cuda_graph) would remove most of the wait for launches."
            )
    return sentences


class VisionInDecode(NamedTuple):
    """Whether vision ran in decode, None if that is unknown, and the reason."""

    ran: bool | None
    reason: str


def vision_in_decode(run: Record) -> VisionInDecode:
    """Whether vision ran in decode, judged by the device's work.

    A step that keeps the device busy for less time than the prefill's smallest vision encoder
    cannot contain vision, under any strategy.
    """
    table = kernel_table(run)
    decode = table[table["phase"] == "decode"]
    inside = decode[decode["stage"].isin(vision_stages(run)) & (decode["kernels"] > 0)]
    if len(inside):
        count = inside["kernels"].sum()
        return VisionInDecode(True, f"{count:,.0f} kernels per step were launched by vision stages")
    step = decode.loc[decode["stage"] == "decode_step", "busy_ms"]
    encoders = table[(table["phase"] == "prefill") & table["stage"].isin(ENCODERS)]
    if not len(step) or not len(encoders):
        return VisionInDecode(None, "the profiler saw no step, or no vision")
    vision = encoders.groupby("stage")["busy_ms"].sum()
    step_ms = float(step.iloc[0])
    times = f"a step keeps the GPU busy for {ms_text(step_ms)}, vision for {ms_text(vision.sum())}"
    if step_ms < vision.min():
        return VisionInDecode(False, times)
    return VisionInDecode(None, times)


# -- parts -----------------------------------------------------------------------------------------


def _kernel_view(run: Record) -> KernelsPart:
    """The kernel view of a record; `OcrPhasesError` where it has none, with the reason."""
    if run.kernels is None:
        raise OcrPhasesError(
            "This record has no kernel view: measure with kernels=True (--kernels) on a CUDA "
            "device."
        )
    if isinstance(run.kernels, KernelsFailed):
        raise OcrPhasesError(f"This record has no kernel view: {run.kernels.error}")
    return run.kernels


def _step_figures(view: KernelsPart, part: Part, columns: Sequence[str]) -> pd.DataFrame:
    """A table of the view, in which these columns become float64, in decode those of one step."""
    table = pd.DataFrame(columns_of(part))
    # A table without rows has no types of its own, and could not be joined with others.
    table = table.astype({key: object for key in STAGE_KEYS if key in table})
    profiled_steps = max(len(view.decode_steps.step), 1)
    runs_of_phase = np.where(table["phase"] == "decode", profiled_steps, 1)
    for column in columns:
        table[column] = table[column].astype("float64") / runs_of_phase
    return table


def _waits(run: Record) -> list[str]:
    """The operator that waits longest before the prefill's first token; none if it is short."""
    stages = kernel_table(run)
    is_prefill = (stages["phase"] == "prefill") & (stages["stage"] == "prefill")
    profiled_ms = stages.loc[is_prefill, "profiled_ms"].sum()
    # Sampling reads that token.
    waits = host_sync_table(run)
    waits = waits.query("phase == 'prefill' and stage != 'sampling' and operator != ''")
    sums = waits.groupby(["stage", "operator"], as_index=False)[["count", "wait_ms"]].sum()
    sentences = []
    for row in sums.nlargest(1, "wait_ms").to_dict("records"):
        if row["wait_ms"] < _CLEAR_WAIT * profiled_ms:
            continue
        times = count_text(round(row["count"]), "time")
        place = f"{row['operator']} of {stage_title(row['stage'])}"
        wait = ms_text(row["wait_ms"])
        sentences.append(
            f"The host waits for the GPU {times} in {place}, {wait} under the profiler."
        )
    return sentences


def _idle_ms(run: Record, phase: str, stage: str, view: str) -> dict[Any, float]:
    """A stage's idle time between its kernels in ms, by cause; a whole has that of its stages."""
    gaps = idle_gaps(run)
    gaps = gaps[gaps["phase"] == phase]
    if stage == "decode_step":
        gaps = gaps[gaps["stage"] != "decode"]
    elif stage != phase:
        gaps = gaps[(gaps["stage"] == stage) & (gaps["view"] == view)]
    return gaps.groupby("cause")["idle_ms"].sum().to_dict()


def of_text(busy: float, wall: float) -> str:
    """``2.1 of 18.6 ms``; a profiled device may have been busy for longer: ``all of 18.6 ms``."""
    if busy >= wall:
        return f"all of {ms_text(wall)}"
    number, unit = ms_text(busy).split()
    whole = ms_text(wall)
    if whole.endswith(f" {unit}"):
        return f"{number} of {whole}"
    return f"{number} {unit} of {whole}"
