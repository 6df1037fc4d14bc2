"""A Chrome trace of torch.profiler reduced to small tables.

They say to which stage each kernel, each idle gap and each wait of the host belongs.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import pandas as pd

from ocr_phases.analyse.stages import STAGE_KEYS
from ocr_phases.measure.replayed import Replayed, StepKernel, replayed_stages
from ocr_phases.measure.trace_events import (
    ATTENTION_OPERATOR,
    CALLS,
    DECIMALS,
    GRAPH_LAUNCH,
    KV_RANGE,
    Identity,
    as_ranges,
    device_work,
    events_of,
    innermost,
    inside_of,
    ranges_of,
)
from ocr_phases.record.parts import (
    HostSyncs,
    KernelGaps,
    KernelParts,
    KernelsPart,
    KernelStages,
    KernelSteps,
    Part,
    TopKernels,
    make_part,
)

# AMD's calls have NVIDIA's names with another beginning, in the same categories.
_SYNC = r"(?:cuda|cu|hip)(?:Stream|Device|Event|Ctx)Synchronize|(?:cuda|hip)Memcpy$"
# What writes the static cache and nothing else, told by its name where nothing else tells it.
_GRAPH_KV_UPDATE = "index_copy"
_TOP = 12
_NAME_LENGTH = 240

_Table = TypeVar("_Table", bound=Part)


def busy_ms(intervals: Iterable[tuple[float, float]]) -> float:
    """Length of the union of ``(start, end)`` intervals: what overlaps counts once."""
    table = np.array(sorted(intervals), dtype=float).reshape(-1, 2)
    start = table[:, 0]
    end = table[:, 1]
    reached = np.maximum.accumulate(np.append(-np.inf, end))[:-1]
    return float((end - np.maximum(start, reached)).clip(0.0).sum())


def reduce_trace(
    trace: Mapping[str, Any],
    spans: Sequence[Identity],
    tool: str = "",
    step_kernels: Sequence[StepKernel] = (),
) -> KernelsPart:
    """The kernel view of a record: its tables with one list per column, times in ms.

    ``trace`` is the profiler's Chrome trace, ``spans`` what the timeline recorded in the same pass,
    in order of their start (phase, stage, view, step): the n-th range of a name is the n-th span of
    that stage. ``tool`` names the profiler and its version. ``step_kernels`` are those of a step
    that was launched kernel by kernel (`ocr_phases.measure.replayed`): a graph that replays the
    same ones gets their stages and parts, by their order.

    ``stages``: calls, kernels, copies, launches and busy time (union) of each stage with all that
    lies inside it, and the host's time in it. ``decode_steps``: the same for each step. ``top``:
    the kernels that took longest, by the innermost stage; the rest is one row without a name.
    ``gaps``: idle time by the innermost stage of the kernel that ended it and by cause. ``parts``:
    KV cache update and attention of the language model. ``host_syncs``: the host's waits for the
    device. ``unattributed``: what was launched outside every stage.

    Raises `OcrPhasesError` where the trace and the spans do not belong together.
    """
    events = events_of(trace)
    ranges = ranges_of(events, spans)
    work = device_work(events)
    calls = events[events["category"].isin(CALLS)]
    syncs = calls[calls["name"].str.match(_SYNC)]
    # Those of one thread nest; the ranges' thread is the one that launches.
    operators = events[
        (events["category"] == "cpu_op") & events["thread"].isin(ranges["host_thread"])
    ]
    within = inside_of(ranges, work, "called")
    replayed = replayed_stages(within, step_kernels)
    ranges = pd.concat([ranges, replayed.ranges])
    within = pd.concat([within, replayed.within], ignore_index=True)
    waits = inside_of(ranges, syncs, "start")
    inside = innermost(within)
    outside = work.drop(inside["event"])
    steps = _decode_steps(ranges, within, waits)
    return KernelsPart(
        steps=len(steps),
        tool=tool,
        stages=_as_part(KernelStages, _stages(ranges, within, replayed)),
        decode_steps=_as_part(KernelSteps, steps),
        top=_as_part(TopKernels, _top(inside)),
        gaps=_as_part(KernelGaps, _gaps(inside, syncs)),
        parts=_as_part(KernelParts, _parts(events, operators, inside, replayed.part_of_event)),
        host_syncs=_as_part(HostSyncs, _host_syncs(innermost(waits), operators, work)),
        unattributed={
            "events": len(outside),
            "busy_ms": round(busy_ms(outside["interval"]), DECIMALS),
        },
    )


def _as_part(kind: type[_Table], table: pd.DataFrame) -> _Table:
    """A table of the record, which has a list for each column."""
    rounded = table.round(DECIMALS)
    return make_part(kind, {str(name): rounded[name].tolist() for name in rounded.columns})


# -- the tables ------------------------------------------------------------------------------


def _with_work(groups: pd.DataFrame, within: pd.DataFrame) -> pd.DataFrame:
    """``groups`` with their kernels, copies (and fills), launches, and the device's busy time."""
    keys = list(groups.index.names)
    counts = within.groupby(keys).agg(
        kernels=("kernels", "sum"),
        copies=("copies", "sum"),
        launches=("correlation", "nunique"),
        busy_ms=("interval", busy_ms),
    )
    return groups.join(counts.reindex(groups.index, fill_value=0))


def _stages(ranges: pd.DataFrame, within: pd.DataFrame, replayed: Replayed) -> pd.DataFrame:
    """Each stage with its work; ``replay_ms`` is its time within the replays of a graph."""
    spans = ranges.groupby([*STAGE_KEYS], sort=False).agg(
        calls=("host_ms", "size"), host_ms=("host_ms", "sum")
    )
    table = _with_work(spans, within).reset_index()
    if len(replayed.ranges):
        from_first_to_last = replayed.ranges.groupby([*STAGE_KEYS])["replay_ms"].sum()
        table = table.join(from_first_to_last, on=[*STAGE_KEYS])
        table["replay_ms"] = table["replay_ms"].fillna(0.0)
    return table


def _decode_steps(ranges: pd.DataFrame, within: pd.DataFrame, waits: pd.DataFrame) -> pd.DataFrame:
    steps = _with_work(ranges[ranges["stage"] == "decode_step"], within).astype({"step": int})
    steps["host_syncs"] = waits["range"].value_counts().reindex(steps.index, fill_value=0)
    return steps[["step", "kernels", "copies", "launches", "busy_ms", "host_syncs", "host_ms"]]


def _top(inside: pd.DataFrame) -> pd.DataFrame:
    """The kernels that took longest, by stage; the others of a stage are one row without a name."""
    stage = ["phase", "stage"]
    each = ["phase", "stage", "kernel"]
    work = inside.assign(kernel=inside["name"], device_ms=inside["end"] - inside["start"])
    table = (
        work.groupby(each, sort=False)["device_ms"]
        .agg(count="count", device_ms="sum")
        .reset_index()
    )
    table["place"] = table.groupby(stage, sort=False).ngroup()
    table = table.sort_values(["place", "device_ms"], ascending=[True, False], kind="stable")
    table.loc[table.groupby("place").cumcount() >= _TOP, "kernel"] = ""
    table = table.groupby(each, sort=False)[["count", "device_ms"]].sum().reset_index()
    return table.assign(kernel=table["kernel"].str[:_NAME_LENGTH])


def _gaps(inside: pd.DataFrame, syncs: pd.DataFrame) -> pd.DataFrame:
    """Idle time by the stage of the kernel that ended it, and by why the device was idle.

    ``host sync``: the host was waiting for the device and only then went on. ``launch``: the host
    was late with the next launch. ``device``: the launch was there in time (the space between
    queued kernels).
    """
    work = inside.sort_values(["start", "end"])
    reached = work.groupby("phase")["end"].cummax().groupby(work["phase"]).shift()
    table = work.assign(idle_from=reached)[work["start"] > reached]
    returns = syncs["end"].sort_values()
    waited = returns.searchsorted(table["idle_from"]) < returns.searchsorted(
        table["start"], "right"
    )
    late = table["left"] > table["idle_from"]
    table = table.assign(
        cause=np.select([waited, late], ["host sync", "launch"], "device"),
        longer_than_us=0.0,
        idle_ms=table["start"] - table["idle_from"],
    )
    groups = table.groupby([*STAGE_KEYS, "cause", "longer_than_us"], sort=False)["idle_ms"]
    return groups.agg(count="count", idle_ms="sum", longest_ms="max").reset_index()


def _parts(
    events: pd.DataFrame,
    operators: pd.DataFrame,
    inside: pd.DataFrame,
    part_of_event: Mapping[int, str],
) -> pd.DataFrame:
    """KV cache update and attention within the language model.

    ``by`` says how their kernels were told from others. Within a replayed graph they are those that
    ``part_of_event`` names. Without it attention there cannot be told and has no row.
    """
    if part_of_event:
        replayed_parts = inside["event"].map(part_of_event).fillna("")
        replayed = inside.assign(part=replayed_parts, by="order")[replayed_parts != ""]
        inside = inside[~inside["call"].str.match(GRAPH_LAUNCH)]
    else:
        replayed = inside.assign(part="", by="").head(0)
    calls = inside.set_index("event")[["called"]]
    update_ranges = as_ranges(events[events["name"] == KV_RANGE])
    updates = inside["event"].isin(inside_of(update_ranges, calls, "called")["event"])
    attention_ranges = as_ranges(operators[operators["name"] == ATTENTION_OPERATOR])
    attention = inside["event"].isin(inside_of(attention_ranges, calls, "called")["event"])
    graph = inside["call"].str.match(GRAPH_LAUNCH)
    written = graph & inside["name"].str.contains(_GRAPH_KV_UPDATE)
    attention &= inside["stage"] == "language_model"
    by = np.select([written, graph, updates, attention], ["name", "", "range", "operator"], "")
    part = np.where(by == "operator", "attention", "kv_update")
    launched = inside.assign(by=by, part=part)[by != ""]
    table = pd.concat([launched, replayed], ignore_index=True)
    groups = table.groupby(["phase", "part", "by"], sort=False)["interval"]
    return groups.agg(kernels="size", busy_ms=busy_ms).reset_index()


def _host_syncs(waits: pd.DataFrame, operators: pd.DataFrame, work: pd.DataFrame) -> pd.DataFrame:
    """The host's waits by stage, call and operator.

    The operator is the outermost within the stage, ``through`` is the innermost that it went
    through.

    ``copy`` is the direction of a copy made within the same operator (DtoH, HtoD); the time of the
    call that made it, which for pageable memory waits too, counts as waiting.
    """
    columns = {"event": "wait", "name": "call", "since": "stage_since"}
    waits = waits.rename(columns=columns)[
        ["wait", "phase", "stage", "call", "start", "end", "stage_since"]
    ]
    around = inside_of(as_ranges(operators), waits, "start")
    around = around[around["since"] >= around["stage_since"]]
    names = around.groupby("event").agg(
        operator=("name", "first"), through=("name", "last"), began=("since", "last")
    )
    copies = work[work["category"] == "gpu_memcpy"].sort_values("called")[
        ["name", "called", "left"]
    ]
    waits = pd.merge_asof(waits.join(names), copies.dropna(), left_on="start", right_on="called")
    own = waits["called"] >= waits["began"]
    waits["copy"] = waits["name"].str.extract("([DH]to[DH])", expand=False).where(own)
    copy_ms = (waits["left"] - waits["called"]).where(own, 0.0)
    waits["wait_ms"] = waits["end"] - waits["start"] + copy_ms
    keys = ["phase", "stage", "call", "operator", "through", "copy"]
    groups = waits.fillna(dict.fromkeys(keys, "")).groupby(keys, sort=False)["wait_ms"]
    return groups.agg(count="count", wait_ms="sum").reset_index()
