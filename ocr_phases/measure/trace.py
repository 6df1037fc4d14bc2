"""A Chrome trace of torch.profiler reduced to small tables.

They say to which stage each kernel, each idle gap and each wait of the host belongs.

A kernel belongs to the stage whose range was open on the host when its launch was called: the
profiler gives a kernel and the call that launched it one correlation id. Every kernel of a replayed
CUDA graph carries the id of its ``cudaGraphLaunch``. pandas over the JSON, so that a saved trace
can be read anywhere.

Event categories: https://github.com/pytorch/kineto/blob/main/libkineto/include/ActivityType.h
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

import numpy as np
import pandas as pd

from ocr_phases.errors import Keyword, SettingError
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

#: The range that the measuring pass puts around the cache's ``update``.
KV_RANGE = "kv_cache_update"

_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
_CALLS = ("cuda_runtime", "cuda_driver")
_HOST = ("cpu_op", "user_annotation")
# AMD's calls have NVIDIA's names with another beginning, in the same categories.
_SYNC = r"(?:cuda|cu|hip)(?:Stream|Device|Event|Ctx)Synchronize|(?:cuda|hip)Memcpy$"
_GRAPH_LAUNCH = r"(?:cuda|cu|hip)GraphLaunch"
_ATTENTION_OPERATOR = "aten::scaled_dot_product_attention"
# A replayed graph has no operators: its kernels can only be told by their names. index_copy_ writes
# the static cache and nothing else; attention over it is the plain formula, whose products look
# like any other's.
_GRAPH_KV_UPDATE = "index_copy"
_TOP = 12
_NAME_LENGTH = 240
_DECIMALS = 6  # of ms: the trace has no more, and what touches must not seem to be apart

#: Of a span: phase, stage, view and step.
Identity = tuple[str, str, str, int | None]
_STAGE = ["phase", "stage", "view"]
_Table = TypeVar("_Table", bound=Part)


def busy_ms(intervals: Iterable[tuple[float, float]]) -> float:
    """Length of the union of ``(start, end)`` intervals: what overlaps counts once."""
    table = np.array(sorted(intervals), dtype=float).reshape(-1, 2)
    start = table[:, 0]
    end = table[:, 1]
    reached = np.maximum.accumulate(np.append(-np.inf, end))[:-1]
    return float((end - np.maximum(start, reached)).clip(0.0).sum())


def reduce_trace(
    trace: Mapping[str, Any], spans: Sequence[Identity], tool: str = ""
) -> KernelsPart:
    """The kernel view of a record: its tables with one list per column, times in ms.

    ``trace`` is the profiler's Chrome trace, ``spans`` what the timeline recorded in the same pass,
    in order of their start (phase, stage, view, step): the n-th range of a name is the n-th span of
    that stage. ``tool`` names the profiler and its version.

    ``stages``: calls, kernels, copies, launches and busy time (union) of each stage with all that
    lies inside it, and the host's time in it. ``decode_steps``: the same for each step. ``top``:
    the kernels that took longest, by the innermost stage; the rest is one row without a name.
    ``gaps``: idle time by the innermost stage of the kernel that ended it and by cause. ``parts``:
    KV cache update and attention of the language model. ``host_syncs``: the host's waits for the
    device. ``unattributed``: what was launched outside every stage.

    Raises `OcrPhasesError` where the trace and the spans do not belong together.
    """
    events = _events(trace)
    ranges = _ranges(events, spans)
    work = _work(events)
    calls = events[events["category"].isin(_CALLS)]
    syncs = calls[calls["name"].str.match(_SYNC)]
    # Those of one thread nest; the ranges' thread is the one that launches.
    operators = events[
        (events["category"] == "cpu_op") & events["thread"].isin(ranges["host_thread"])
    ]
    within = _inside(ranges, work, "called")
    waits = _inside(ranges, syncs, "start")
    inside = _innermost(within)
    outside = work.drop(inside["event"])
    steps = _decode_steps(ranges, within, waits)
    return KernelsPart(
        steps=len(steps),
        tool=tool,
        stages=_as_part(KernelStages, _stages(ranges, within)),
        decode_steps=_as_part(KernelSteps, steps),
        top=_as_part(TopKernels, _top(inside)),
        gaps=_as_part(KernelGaps, _gaps(inside, syncs)),
        parts=_as_part(KernelParts, _parts(events, operators, inside)),
        host_syncs=_as_part(HostSyncs, _host_syncs(_innermost(waits), operators, work)),
        unattributed={
            "events": len(outside),
            "busy_ms": round(busy_ms(outside["interval"]), _DECIMALS),
        },
    )


def _as_part(kind: type[_Table], table: pd.DataFrame) -> _Table:
    """A table of the record, which has a list for each column."""
    rounded = table.round(_DECIMALS)
    return make_part(kind, {str(name): rounded[name].tolist() for name in rounded.columns})


# -- reading the trace -----------------------------------------------------------------------


def _events(trace: Mapping[str, Any]) -> pd.DataFrame:
    """The complete events (``ph`` X) of all categories that matter, by start and then longest
    first.

    ``start`` and ``end`` are ms from the first of them.
    """
    categories = (*_DEVICE, *_CALLS, *_HOST)
    complete = []
    for event in trace["traceEvents"]:
        if event.get("ph") == "X" and event.get("cat") in categories:
            complete.append(event)
    # Microseconds since some epoch: differences keep more digits.
    origin_us = min((float(event["ts"]) for event in complete), default=0.0)
    rows = []
    for event in complete:
        args = event.get("args", {})
        start_us = float(event["ts"]) - origin_us
        end_us = start_us + float(event.get("dur", 0.0))
        rows.append(
            (
                str(event["name"]),
                event["cat"],
                start_us / 1e3,
                end_us / 1e3,
                event.get("tid"),
                args.get("correlation"),
                args.get("External id", args.get("external id")),
            )
        )
    names = ["name", "category", "start", "end", "thread", "correlation", "external"]
    events = pd.DataFrame(rows, columns=names)
    events = events.astype({"start": float, "end": float}).round(_DECIMALS)
    return events.sort_values(["start", "end"], ascending=[True, False], ignore_index=True)


def _ranges(events: pd.DataFrame, spans: Sequence[Identity]) -> pd.DataFrame:
    """Each span with its stretch of the host's time, ``since`` and ``until``.

    The outer ones come first. Raises `OcrPhasesError` where the profiler kept fewer ranges than
    there are spans.
    """
    expected = pd.DataFrame(spans, columns=[*_STAGE, "step"]).sort_values("stage", kind="stable")
    annotations = events[events["category"] == "user_annotation"]
    annotations = annotations[annotations["name"].isin(expected["stage"])]
    found_counts = annotations["name"].value_counts()
    for stage, count in expected["stage"].value_counts().items():
        found = found_counts.get(stage, 0)
        if found != count:
            raise SettingError(
                "kernel_steps",
                f"The profiler kept {found} of {count} ranges of {stage}: its buffers were too "
                "small for this run; ask for fewer steps in the kernel view (",
                Keyword("kernel_steps"),
                ").",
            )
    annotations = annotations.sort_values("name", kind="stable").set_axis(expected.index)
    times = _as_ranges(annotations).drop(columns="name")
    times["host_thread"] = annotations["thread"]
    times["host_ms"] = times["until"] - times["since"]
    ranges = expected.join(times)
    ranges = ranges.sort_values(["since", "until"], ascending=[True, False], ignore_index=True)
    return ranges.rename_axis("range")


def _work(events: pd.DataFrame) -> pd.DataFrame:
    """Each kernel, copy and fill on the device with its launch.

    That is the name of the ``call``, and when it was ``called`` and ``left``.
    """
    work = events[events["category"].isin(_DEVICE)]
    # A call that the trace has lost leaves the operator or range which made it.
    caller = _callers(events, work, _CALLS, "correlation")
    caller = caller.fillna(_callers(events, work, _HOST, "external"))
    called = events[["name", "start", "end"]].set_axis(["call", "called", "left"], axis=1)
    work = work.join(called.reindex(caller).set_axis(work.index))
    kernels = work["category"] == "kernel"
    intervals = pd.Series(
        list(zip(work["start"], work["end"], strict=True)), work.index, dtype=object
    )
    return work.assign(kernels=kernels, copies=~kernels, interval=intervals)


def _callers(
    events: pd.DataFrame, work: pd.DataFrame, categories: Sequence[str], key: str
) -> pd.Series:
    """The event of these categories that has the same id in ``key``, for each one of the device."""
    callers = events[events["category"].isin(categories)].dropna(subset=key)
    event_by_id = dict(zip(callers[key], callers.index, strict=True))
    return work[key].map(event_by_id)


def _inside(ranges: pd.DataFrame, events: pd.DataFrame, time: str) -> pd.DataFrame:
    """Each event beside every range that its ``time`` lies in, the outer ranges first: the columns
    of both.

    ``range`` and ``event`` say which, by the index of each.
    """
    times = events[time].sort_values()
    first = times.searchsorted(ranges["since"])
    last = times.searchsorted(ranges["until"])
    pairs = []
    for place, begin, end in zip(ranges.index, first, last, strict=True):
        pairs += [(place, event) for event in times.index[begin:end]]
    table = pd.DataFrame(pairs, columns=["range", "event"], dtype="int64")
    return table.join(ranges, on="range").join(events, on="event")


def _innermost(inside: pd.DataFrame) -> pd.DataFrame:
    """Each event once, in order of time, beside the innermost of its ranges."""
    return inside.drop_duplicates("event", keep="last").sort_values("event")


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


def _stages(ranges: pd.DataFrame, within: pd.DataFrame) -> pd.DataFrame:
    spans = ranges.groupby(_STAGE, sort=False).agg(
        calls=("host_ms", "size"), host_ms=("host_ms", "sum")
    )
    return _with_work(spans, within).reset_index()


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
    groups = table.groupby([*_STAGE, "cause", "longer_than_us"], sort=False)["idle_ms"]
    return groups.agg(count="count", idle_ms="sum", longest_ms="max").reset_index()


def _parts(events: pd.DataFrame, operators: pd.DataFrame, inside: pd.DataFrame) -> pd.DataFrame:
    """KV cache update and attention within the language model.

    ``by`` says how their kernels were told from others.

    Attention within a replayed graph cannot be told, so it has no row.
    """
    calls = inside.set_index("event")[["called"]]
    update_ranges = _as_ranges(events[events["name"] == KV_RANGE])
    updates = inside["event"].isin(_inside(update_ranges, calls, "called")["event"])
    attention_ranges = _as_ranges(operators[operators["name"] == _ATTENTION_OPERATOR])
    attention = inside["event"].isin(_inside(attention_ranges, calls, "called")["event"])
    graph = inside["call"].str.match(_GRAPH_LAUNCH)
    written = graph & inside["name"].str.contains(_GRAPH_KV_UPDATE)
    attention &= inside["stage"] == "language_model"
    by = np.select([written, graph, updates, attention], ["name", "", "range", "operator"], "")
    table = inside.assign(by=by, part=np.where(by == "operator", "attention", "kv_update"))[
        by != ""
    ]
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
    around = _inside(_as_ranges(operators), waits, "start")
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


def _as_ranges(events: pd.DataFrame) -> pd.DataFrame:
    return events[["name", "start", "end"]].set_axis(["name", "since", "until"], axis=1)
