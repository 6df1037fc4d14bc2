"""The events of a Chrome trace of torch.profiler: work of the device, calls of the host, ranges.

A kernel belongs to the stage whose range was open on the host when its launch was called: the
profiler gives a kernel and the call that launched it one correlation id. Every kernel of a replayed
CUDA graph carries the id of its ``cudaGraphLaunch``. pandas over the JSON, so that a saved trace
can be read anywhere.

Event categories: https://github.com/pytorch/kineto/blob/main/libkineto/include/ActivityType.h
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd

from ocr_phases.analyse.stages import STAGE_KEYS
from ocr_phases.errors import Keyword, SettingError

#: The range that the measuring pass puts around the cache's ``update``.
KV_RANGE = "kv_cache_update"
#: The operator whose kernels are attention.
ATTENTION_OPERATOR = "aten::scaled_dot_product_attention"
#: The call that starts a whole graph, by NVIDIA's names and by AMD's.
GRAPH_LAUNCH = r"(?:cuda|cu|hip)GraphLaunch"
#: Decimals of a time in ms: the trace has no more, and what touches must not seem to be apart.
DECIMALS = 6

DEVICE_EVENTS = ("kernel", "gpu_memcpy", "gpu_memset")
CALLS = ("cuda_runtime", "cuda_driver")
HOST_EVENTS = ("cpu_op", "user_annotation")

#: What tells a span from others of its run: phase, stage, view and step.
Identity = tuple[str, str, str, int | None]


def events_of(trace: Mapping[str, Any]) -> pd.DataFrame:
    """The complete events (``ph`` X) of all categories that matter, by start and then longest
    first.

    ``start`` and ``end`` are ms from the first of them.
    """
    categories = (*DEVICE_EVENTS, *CALLS, *HOST_EVENTS)
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
    events = events.astype({"start": float, "end": float}).round(DECIMALS)
    return events.sort_values(["start", "end"], ascending=[True, False], ignore_index=True)


def ranges_of(events: pd.DataFrame, spans: Sequence[Identity]) -> pd.DataFrame:
    """Each span with its stretch of the host's time, ``since`` and ``until``.

    The outer ones come first. Raises `OcrPhasesError` where the profiler kept fewer ranges than
    there are spans.
    """
    expected = pd.DataFrame(spans, columns=[*STAGE_KEYS, "step"]).sort_values(
        "stage", kind="stable"
    )
    annotations = events[events["category"] == "user_annotation"]
    annotations = annotations[annotations["name"].isin(expected["stage"])]
    found_counts = annotations["name"].value_counts()
    for stage, count in expected["stage"].value_counts().items():
        found = found_counts.get(stage, 0)
        if found != count:
            raise SettingError(
                "kernel_steps",
                "The profiler kept {found} of {count} ranges of {stage}: its buffers were too "
                "small for this run; ask for fewer steps in the kernel view ({kernel_steps}).",
                found=found,
                count=count,
                stage=stage,
                kernel_steps=Keyword("kernel_steps"),
            )
    annotations = annotations.sort_values("name", kind="stable").set_axis(expected.index)
    times = as_ranges(annotations).drop(columns="name")
    times["host_thread"] = annotations["thread"]
    times["host_ms"] = times["until"] - times["since"]
    ranges = expected.join(times)
    ranges = ranges.sort_values(["since", "until"], ascending=[True, False], ignore_index=True)
    return ranges.rename_axis("range")


def device_work(events: pd.DataFrame) -> pd.DataFrame:
    """Each kernel, copy and fill on the device with its launch.

    That is the name of the ``call``, and when it was ``called`` and ``left``.
    """
    work = events[events["category"].isin(DEVICE_EVENTS)]
    # A call that the trace has lost leaves the operator or range which made it.
    caller = _callers(events, work, CALLS, "correlation")
    caller = caller.fillna(_callers(events, work, HOST_EVENTS, "external"))
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


def inside_of(ranges: pd.DataFrame, events: pd.DataFrame, time: str) -> pd.DataFrame:
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


def innermost(inside: pd.DataFrame) -> pd.DataFrame:
    """Each event once, in order of time, beside the innermost of its ranges."""
    return inside.drop_duplicates("event", keep="last").sort_values("event")


def as_ranges(events: pd.DataFrame) -> pd.DataFrame:
    """Events of the host as ranges of its time, ``since`` and ``until``."""
    return events[["name", "start", "end"]].set_axis(["name", "since", "until"], axis=1)
