"""The kernel view of a record: busy time of each stage and causes of idle time.

How long the device worked, for whom and in which kernels comes from a run of its own under torch.profiler
(`ocr_phases.collectors.kernels`). How long a stage takes comes from the timed repeats,
because the profiler slows the host down: busy time over wall time is therefore a figure of the undisturbed
run. Idle gaps and the host's waits were seen under the profiler and are longer there; their kind and number
are not.

Figures of the decode are for one step (one token a row), wall times of the same steps as the profiled ones;
all others are for one run of the phase.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from ocr_phases.analyse.floors import floor_table
from ocr_phases.analyse.stages import STAGE_KEYS, cached, stage_medians
from ocr_phases.errors import OcrPhasesError
from ocr_phases.families import ENCODERS, VISION_STAGES
from ocr_phases.record import PhaseRun
from ocr_phases.text import count_text, ms_text, percent_text, stage_name

KERNEL_COLUMNS = (
    "phase",
    "stage",
    "view",
    "kernels",
    "copies",
    "launches",
    "busy_ms",
    "wall_ms",
    "idle_share",
    "profiled_ms",
)
TOP_COLUMNS = ("phase", "stage", "kernel", "count", "device_ms", "share")
GAP_COLUMNS = ("phase", "stage", "view", "cause", "longer_than_us", "gaps", "idle_ms", "longest_ms")
SHARE_COLUMNS = ("phase", "part", "kernels", "busy_ms", "of_busy", "of_wall", "by")
SYNC_COLUMNS = ("phase", "stage", "operator", "through", "call", "copy", "count", "wait_ms")
VERDICT_COLUMNS = (
    "phase",
    "stage",
    "view",
    "verdict",
    "busy_ms",
    "wall_ms",
    "idle_after_sync",
    "queue_ms",
    "floor_ms",
    "of_floor",
    "mfu",
    "mbu",
    "reason",
)
GAP_CAUSES = ("host sync", "launch", "device")

#: From this share of its wall time on that the device works, the stage is bound by the device.
DEVICE_BOUND = 0.7
#: From this share of the idle time on that follows the host's waits, they and not the launches are to blame.
_SYNC_BOUND = 0.5
#: From this share of its floor's rate on that the device reaches while it works, it is bound as its floor is.
FLOOR_BOUND = 0.5
#: From this share of the prefill on, both under the profiler, one operator's waits are worth a word.
_CLEAR_WAIT = 0.05
_NOISE = re.compile(r"^void |at::native::|\(anonymous namespace\)::|<unnamed>::|std::")


def has_kernels(run: PhaseRun) -> bool:
    """Whether the record has a kernel view that worked."""
    return run.kernels is not None and "error" not in run.kernels


@cached
def kernel_table(run: PhaseRun) -> pd.DataFrame:
    """One row per stage, columns `KERNEL_COLUMNS`; a stage includes its inner stages.

    ``busy_ms`` is the union of the stage's kernels, copies and fills on the device; ``wall_ms`` the median
    over the timed repeats on the device's clock, in decode over the profiled steps (missing where they have
    no such stage, and for the loop around the steps, which the profiled run cuts short); ``idle_share`` is
    what is left of it. ``launches`` are the host's calls that put work on the device: one for a whole graph.
    ``profiled_ms`` is the host's time in the stage under the profiler.
    """
    table = _table(run, "stages")
    per_step = np.where(table["phase"] == "decode", _steps(run), 1)
    counts = ["kernels", "copies", "launches", "busy_ms"]
    table[counts] = table[counts].div(per_step, axis=0)
    table["profiled_ms"] = table["host_ms"] / per_step
    walls = stage_medians(run, tuple(_table(run, "decode_steps")["step"].tolist()))
    keys = table[[*STAGE_KEYS]].itertuples(index=False, name=None)
    table["wall_ms"] = [walls.get(key, math.nan) for key in keys]
    table["idle_share"] = (1.0 - table["busy_ms"] / table["wall_ms"]).clip(lower=0.0)
    return table[list(KERNEL_COLUMNS)]


def top_kernels(run: PhaseRun, stage: str | None = None) -> pd.DataFrame:
    """The kernels that take longest, columns `TOP_COLUMNS`, the longest first within each phase and stage.

    A kernel counts for the innermost stage. ``stage`` keeps one stage, or a whole phase by its name.
    ``share`` is of the stage's summed kernel time; its last row, without a name, is all the others.
    """
    table = _table(run, "top")
    if stage is not None:
        table = table[(table["stage"] == stage) | (table["phase"] == stage)].reset_index(drop=True)
    total = table.groupby(["phase", "stage"])["device_ms"].transform("sum")
    table["share"] = table["device_ms"] / total
    _per_step(run, table, "count", "device_ms")
    return table[list(TOP_COLUMNS)]


def short_kernel(name: str, length: int = 80) -> str:
    """A kernel's name without common namespaces, cut to ``length`` characters."""
    if not name:
        return "(all others)"
    short = _NOISE.sub("", name)
    return short if len(short) <= length else f"{short[: length - 1]}…"


@cached
def idle_gaps(run: PhaseRun) -> pd.DataFrame:
    """Idle time between the device's work, columns `GAP_COLUMNS`: by stage and cause.

    The stage is that of the kernel which ends the gap, the cause one of `GAP_CAUSES`: the host had waited for
    the device, the host was late with the launch, or the launch was there in time. Earlier
    records count gaps by length too: longer than ``longer_than_us`` microseconds. Seen under the profiler, in
    ms.
    """
    table = _table(run, "gaps").rename(columns={"count": "gaps"})
    _per_step(run, table, "gaps", "idle_ms")
    return table[list(GAP_COLUMNS)]


@cached
def kv_cache_share(run: PhaseRun) -> pd.DataFrame:
    """The KV cache's part, columns `SHARE_COLUMNS`: ``kv_update`` (write) and ``attention`` (read), by phase.

    ``of_busy`` is of the device's work in the prefill or in one decode step, ``of_wall`` of its wall time.
    ``by`` says how the kernels were told: by the ``range`` around the cache's update or by the attention
    ``operator`` that launched them (sure), or by ``name`` within a CUDA graph (best effort). Attention within
    a graph cannot be told and has no row.
    """
    table = _table(run, "parts")
    totals = kernel_table(run).set_index(["phase", "stage", "view"])
    _per_step(run, table, "kernels", "busy_ms")
    for column, of in (("of_busy", "busy_ms"), ("of_wall", "wall_ms")):
        of_phase = [totals[of].get((phase, _whole(phase), ""), math.nan) for phase in table["phase"]]
        table[column] = table["busy_ms"] / np.asarray(of_phase, dtype=np.float64)
    return table[list(SHARE_COLUMNS)]


@cached
def host_syncs(run: PhaseRun) -> pd.DataFrame:
    """Every kind of the host's waits for the device, columns `SYNC_COLUMNS`, the most frequent first.

    ``operator`` is the outermost PyTorch operator within the stage that waited, ``through`` the innermost
    (``aten::item`` waits through ``aten::_local_scalar_dense``), ``call`` the CUDA call, ``copy`` the
    direction of the copy that was waited for. ``count`` is per step in decode: each one beyond the read of
    the end token holds up the next launches.
    """
    table = _table(run, "host_syncs")
    _per_step(run, table, "count", "wait_ms")
    order = table["phase"].map({"prepare": 0, "prefill": 1, "decode": 2})
    table = table.assign(order=order).sort_values(["order", "count"], ascending=[True, False], kind="stable")
    return table[list(SYNC_COLUMNS)].reset_index(drop=True)


@cached
def stage_verdict(run: PhaseRun) -> pd.DataFrame:
    """What bounds each stage of prefill and decode, columns `VERDICT_COLUMNS`, with numbers and a sentence.

    The device is at work in ``busy_ms``, and in ``queue_ms`` it goes from one kernel to another that was
    launched in time. Where both together are less than `DEVICE_BOUND` of ``wall_ms``, a stage is
    ``host-sync-bound`` if at least half of its idle time (wall less busy) follows a wait of the host
    (``idle_after_sync``; gaps were seen under the profiler, so it is cut at 1), else ``launch-bound``. Any
    other is ``compute-bound`` or ``bandwidth-bound``, by what its floor is made of, where the floor is at
    least `FLOOR_BOUND` of the busy time (``of_floor``). Farther from its floor (`floor_table`), or without
    one, it is ``device-bound``. ``prepare`` is the host's own work and has no verdict.
    """
    table = kernel_table(run).dropna(subset=["wall_ms"])
    table = table[(table["phase"] != "prepare") & (table["busy_ms"] > 0) & (table["wall_ms"] > 0)]
    gaps = idle_gaps(run).to_dict("records")
    known = floor_table(run).set_index([*STAGE_KEYS]).to_dict("index")
    rows = []
    for row in table.to_dict("records"):
        key = (row["phase"], row["stage"], row["view"])
        idle = _idle_ms(gaps, *key)
        waiting = row["wall_ms"] - row["busy_ms"]
        after_sync = min(1.0, idle.get("host sync", 0.0) / waiting) if waiting > 0 else math.nan
        queue_ms = idle.get("device", 0.0)
        floor: Mapping[Any, Any] = known.get(key, {})
        floor_ms, mfu, mbu = (floor.get(name, math.nan) for name in ("floor_ms", "mfu", "mbu"))
        of_floor = floor_ms / row["busy_ms"]
        verdict = _verdict(row, after_sync, queue_ms, of_floor, floor.get("bound_by"))
        reason = _reason(row, verdict, after_sync, of_floor, floor)
        times = (row["busy_ms"], row["wall_ms"], after_sync, queue_ms)
        rows.append((*key, verdict, *times, floor_ms, of_floor, mfu, mbu, reason))
    return pd.DataFrame(rows, columns=list(VERDICT_COLUMNS))


def kernel_clauses(run: PhaseRun, phase: str) -> list[str]:
    """What limits ``prefill`` or ``decode``, in clauses; none where the profiler did not see it."""
    table = stage_verdict(run)
    clauses = []
    for row in table[(table["phase"] == phase) & (table["stage"] == _whole(phase))].to_dict("records"):
        unit = " a step" if phase == "decode" else ""
        works = of_text(row["busy_ms"], row["wall_ms"])
        clauses.append(f"{phase} is {row['verdict']}: the GPU is busy {works}{unit}{_at_floor(row)}")
        if phase == "prefill":
            clauses += _waits(run)
        elif row["verdict"] == "launch-bound" and run.model["strategy"] == "eager":
            clauses.append("a CUDA graph (strategy cuda_graph) would remove most of the wait for launches")
    return clauses


def vision_in_decode(run: PhaseRun) -> tuple[bool | None, str]:
    """Whether vision ran in decode, judged by the device's work, and why; None if unknown.

    A step that keeps the device busy for less time than the prefill's smallest vision encoder cannot contain
    vision, under any strategy.
    """
    table = kernel_table(run)
    decode = table[table["phase"] == "decode"]
    inside = decode[decode["stage"].isin(VISION_STAGES) & (decode["kernels"] > 0)]
    if len(inside):
        return True, f"{inside['kernels'].sum():,.0f} kernels a step were launched by vision stages"
    step = decode.loc[decode["stage"] == "decode_step", "busy_ms"]
    encoders = table[(table["phase"] == "prefill") & table["stage"].isin(ENCODERS)]
    if not len(step) or not len(encoders):
        return None, "the profiler saw no step, or no vision"
    vision = encoders.groupby("stage")["busy_ms"].sum()
    text = f"a step keeps the GPU busy for {ms_text(float(step.iloc[0]))}, vision for {ms_text(vision.sum())}"
    return (False if step.iloc[0] < vision.min() else None), text


# -- parts --------------------------------------------------------------------------------------------


def _table(run: PhaseRun, name: str) -> pd.DataFrame:
    view: Mapping[str, Any] | None = run.kernels
    if view is None:
        raise OcrPhasesError(
            "This record has no kernel view: measure with kernels=True (--kernels) on a CUDA device."
        )
    if "error" in view:
        raise OcrPhasesError(f"This record's kernel view failed: {view['error']}")
    try:
        return pd.DataFrame(view[name])
    except (KeyError, ValueError) as error:
        raise OcrPhasesError(f"This record's kernel view is damaged ({name}: {error}).") from error


@cached
def _steps(run: PhaseRun) -> int:
    return max(1, len(_table(run, "decode_steps")))


def _per_step(run: PhaseRun, table: pd.DataFrame, *columns: str) -> None:
    """Turn sums over the profiled steps into those of one step, in the rows of decode."""
    decode = table["phase"] == "decode"
    for column in columns:
        table[column] = table[column].astype("float64")
        table.loc[decode, column] /= _steps(run)


def _whole(phase: str) -> str:
    """The row of a whole phase: in decode the step, because the profiled loop is shortened."""
    return "decode_step" if phase == "decode" else phase


def _waits(run: PhaseRun) -> list[str]:
    """The operator that waits longest before the prefill's first token, as a clause; none if it is short."""
    table, waits = kernel_table(run), host_syncs(run)
    total = table.loc[(table["phase"] == "prefill") & (table["stage"] == "prefill"), "profiled_ms"].sum()
    inside = (waits["phase"] == "prefill") & (waits["stage"] != "sampling")  # which reads that token
    waits = waits[inside & (waits["operator"] != "")]
    each = waits.groupby(["stage", "operator"])[["count", "wait_ms"]].sum().nlargest(1, "wait_ms")
    return [
        f"the host waits for the GPU {count_text(round(count), 'time')} in {operator} of "
        f"{stage_name(stage)}, {ms_text(ms)} under the profiler"
        for (stage, operator), count, ms in each.itertuples(name=None)
        if ms >= _CLEAR_WAIT * total
    ]


def _idle_ms(gaps: Sequence[Mapping[Any, Any]], phase: str, stage: str, view: str) -> dict[str, float]:
    """A stage's idle time between its kernels in ms, by cause."""
    idle: dict[str, float] = {}
    for gap in gaps:
        whole = stage == phase or (stage == "decode_step" and gap["stage"] != "decode")
        if gap["phase"] == phase and (whole or (gap["stage"], gap["view"]) == (stage, view)):
            idle[gap["cause"]] = idle.get(gap["cause"], 0.0) + gap["idle_ms"]
    return idle


def _verdict(
    row: Mapping[Any, Any], after_sync: float, queue_ms: float, of_floor: float, bound_by: str | None
) -> str:
    if row["busy_ms"] + queue_ms < DEVICE_BOUND * row["wall_ms"]:
        return "host-sync-bound" if after_sync >= _SYNC_BOUND else "launch-bound"
    if of_floor >= FLOOR_BOUND:
        return "compute-bound" if bound_by == "arithmetic" else "bandwidth-bound"
    return "device-bound"


def _at_floor(row: Mapping[Any, Any]) -> str:
    """How near a device-bound stage is to its floor; empty for other stages and without a floor."""
    if row["verdict"] != "device-bound" or math.isnan(row["of_floor"]):
        return ""
    return f", and its kernels reach {percent_text(row['of_floor'])} of the best rate"


def _reason(
    row: Mapping[Any, Any], verdict: str, after_sync: float, of_floor: float, floor: Mapping[Any, Any]
) -> str:
    name = " ".join(filter(None, (stage_name(row["stage"]), row["view"])))
    text = f"{name}: the GPU is busy {of_text(row['busy_ms'], row['wall_ms'])}"
    if verdict == "launch-bound":
        launches = row["launches"]
        text += f"; {launches:,.0f} launches, one every {row['wall_ms'] / launches * 1e3:.1f} µs"
    elif verdict == "host-sync-bound":
        text += f"; {percent_text(after_sync)} of its idle time follows a host sync"
    text += _at_floor({"verdict": verdict, "of_floor": of_floor})
    if not floor:
        return text
    allows = "arithmetic" if floor["bound_by"] == "arithmetic" else "memory bandwidth"
    used = f"MFU {percent_text(floor['mfu'])}, MBU {percent_text(floor['mbu'])}"
    return f"{text}; the floor by {allows} is {ms_text(floor['floor_ms'])} ({used})"


def of_text(busy: float, wall: float) -> str:
    """``2.1 of 18.6 ms``."""
    texts = ms_text(min(busy, wall)), ms_text(wall)
    first, unit = texts[0].rsplit(" ", 1)
    return f"{first} of {texts[1]}" if texts[1].endswith(f" {unit}") else f"{texts[0]} of {texts[1]}"
