"""A Chrome trace of torch.profiler reduced to small tables: whose kernel, idle gap and wait each one was.

A kernel belongs to the stage whose range was open on the host when its launch was called: the profiler gives
a kernel and the call that launched it one correlation id. Every kernel of a replayed CUDA graph carries the
id of its ``cudaGraphLaunch``. Plain Python over the JSON, so that a saved trace can be read anywhere.

Event categories: https://github.com/pytorch/kineto/blob/main/libkineto/include/ActivityType.h
"""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, NamedTuple

import pandas as pd

from ocr_phases.errors import OcrPhasesError

#: The range that the measuring pass puts around the cache's ``update``.
KV_RANGE = "kv_cache_update"

_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")
_CALLS = ("cuda_runtime", "cuda_driver")
_SYNC = re.compile(r"^(cuda|cu)(Stream|Device|Event|Ctx)Synchronize|^cudaMemcpy$")
_GRAPH_LAUNCH = re.compile(r"^(cuda|cu)GraphLaunch")
_ATTENTION_OPERATOR = "aten::scaled_dot_product_attention"
# A replayed graph has no operators: its kernels can only be told by their names. index_copy_ writes the
# static cache and nothing else; attention over it is the plain formula, whose products look like any other's.
_GRAPH_KV_UPDATE = "index_copy"
_TOP = 12
_NAME_LENGTH = 240
_DECIMALS = 6

Identity = tuple[str, str, str, "int | None"]  # phase, stage, view, step: as in a span
Key = tuple[str, ...]


class Event(NamedTuple):
    """One event of the trace; times are ms from the trace's first event."""

    name: str
    category: str
    start: float
    end: float
    thread: Any
    correlation: Any
    external: Any


class Range(NamedTuple):
    """One stage's stretch of host time, in ms; ``key`` is phase, stage and view: what tables group by."""

    key: Key
    step: int | None
    start: float
    end: float
    thread: Any


class DeviceWork(NamedTuple):
    """One kernel, copy or fill on the device, the call that launched it and the innermost range around it."""

    event: Event
    launched: Event
    place: int


class Nesting:
    """Intervals of one thread, sorted by start and then longest first, which lie inside one another."""

    def __init__(self, intervals: Sequence[Any]) -> None:
        self.starts = [interval.start for interval in intervals]
        self.ends = [interval.end for interval in intervals]
        self.parents: list[int] = []
        opened: list[int] = []
        for place, start in enumerate(self.starts):
            while opened and self.ends[opened[-1]] <= start:
                opened.pop()
            self.parents.append(opened[-1] if opened else -1)
            opened.append(place)

    def innermost(self, time: float) -> int:
        """The place of the innermost interval open at ``time``; -1 for none."""
        place = bisect_right(self.starts, time) - 1
        while place >= 0 and self.ends[place] < time:
            place = self.parents[place]
        return place

    def chain(self, place: int) -> Iterator[int]:
        """``place`` and all that lie around it, the innermost first."""
        while place >= 0:
            yield place
            place = self.parents[place]


def busy_ms(intervals: Sequence[tuple[float, float]]) -> float:
    """Length of the union of ``(start, end)`` intervals: what overlaps counts once."""
    if not intervals:
        return 0.0
    whole = max(end for _, end in intervals) - min(start for start, _ in intervals)
    return whole - sum(end - start for _, start, end in gaps_between(intervals))


def gaps_between(intervals: Sequence[tuple[float, float]]) -> list[tuple[int, float, float]]:
    """Where nothing runs, in order: place of the interval that ends the gap, the gap's start and its end.

    The lengths of all gaps and `busy_ms` add up to the time from the first start to the last end.
    """
    order = sorted(range(len(intervals)), key=intervals.__getitem__)
    ends = accumulate((intervals[place][1] for place in order), max)
    spaces = ((place, end, intervals[place][0]) for end, place in zip(ends, order[1:], strict=False))
    return [(place, end, start) for place, end, start in spaces if start > end]


def reduce_trace(trace: Mapping[str, Any], spans: Sequence[Identity]) -> dict[str, Any]:
    """The tables of the kernel view, as plain JSON values; each table is one list a column, times are ms.

    ``trace`` is the profiler's Chrome trace, ``spans`` what the timeline recorded in the same pass, in order
    of their start (phase, stage, view, step): the n-th range of a name is the n-th span of that stage.

    ``stages``: calls, kernels, copies, launches and busy time (union) of each stage with all that lies inside
    it, and the host's time in it. ``decode_steps``: the same for each step. ``top``: the kernels that took
    longest, by the innermost stage; the rest is one row without a name. ``gaps``: idle time by the innermost
    stage of the kernel that ended it and by cause (`_cause`). ``parts``: KV cache update and
    attention of the language model. ``host_syncs``: the host's waits for the device. ``unattributed``: what
    was launched outside every stage.

    Raises `OcrPhasesError` where the trace and the spans do not belong together.
    """
    events = _events(trace)
    ranges = _ranges(events, spans)
    nesting = Nesting(ranges)
    work = _work(events, nesting)
    # Those of one thread nest; the ranges' thread is the one that launches.
    threads = {span.thread for span in ranges}
    operators = [event for event in events if event.category == "cpu_op" and event.thread in threads]
    inside = [item for item in work if item.place >= 0]
    outside = [item for item in work if item.place < 0]
    within = _grouped((place, item) for item in inside for place in nesting.chain(item.place))
    syncs = [event for event in events if event.category in _CALLS and _SYNC.match(event.name)]
    steps = _decode_steps(ranges, nesting, within, syncs)
    return {
        "steps": len(steps["step"]),
        "stages": _stages(ranges, within),
        "decode_steps": steps,
        "top": _top(ranges, inside),
        "gaps": _gaps(ranges, inside, syncs),
        "parts": _parts(events, ranges, inside, operators),
        "host_syncs": _host_syncs(syncs, ranges, nesting, operators, work),
        "unattributed": {"events": len(outside), "busy_ms": _busy(outside)},
    }


# -- reading the trace --------------------------------------------------------------------------------


def _events(trace: Mapping[str, Any]) -> list[Event]:
    """The complete events (``ph`` X) of all categories that matter, by start and then longest first."""
    wanted = (*_DEVICE, *_CALLS, "cpu_op", "user_annotation")
    found = [event for event in trace["traceEvents"] if event.get("ph") == "X" and event.get("cat") in wanted]
    # Microseconds since some epoch: differences keep more digits.
    origin = min((float(event["ts"]) for event in found), default=0.0)
    events = []
    for event in found:
        args = event.get("args", {})
        begin = float(event["ts"]) - origin
        start, end = (_ms(time / 1e3) for time in (begin, begin + float(event.get("dur", 0.0))))
        ids = (args.get("correlation"), args.get("External id", args.get("external id")))
        events.append(Event(str(event["name"]), event["cat"], start, end, event.get("tid"), *ids))
    return sorted(events, key=lambda event: (event.start, -event.end))


def _ranges(events: Sequence[Event], spans: Sequence[Identity]) -> list[Range]:
    waiting = _grouped((span[1], span) for span in spans)
    annotations = _grouped((event.name, event) for event in events if event.category == "user_annotation")
    found = []
    for stage, expected in waiting.items():
        if len(annotations[stage]) != len(expected):
            raise OcrPhasesError(
                f"The profiler kept {len(annotations[stage])} of {len(expected)} ranges of {stage}: its "
                "buffers were too small for this run; ask for fewer steps in the kernel view (kernel_steps)."
            )
        for (*key, step), event in zip(expected, annotations[stage], strict=True):
            found.append(Range(tuple(key), step, event.start, event.end, event.thread))
    return sorted(found, key=lambda span: (span.start, -span.end))


def _work(events: Sequence[Event], nesting: Nesting) -> list[DeviceWork]:
    launches = {event.correlation: event for event in events if event.category in _CALLS}
    # A call that the trace has lost leaves the operator or range which made it.
    operators = {event.external: event for event in events if event.category in ("cpu_op", "user_annotation")}
    work = []
    for event in events:
        if event.category in _DEVICE:
            launched = launches.get(event.correlation) or operators.get(event.external)
            place = -1 if launched is None else nesting.innermost(launched.start)
            work.append(DeviceWork(event, launched or event, place))
    return work


# -- the tables ---------------------------------------------------------------------------------------


def _grouped(pairs: Iterable[tuple[Any, Any]]) -> defaultdict[Any, list[Any]]:
    """The values of each key, in order; an empty list for any other key."""
    groups: defaultdict[Any, list[Any]] = defaultdict(list)
    for key, value in pairs:
        groups[key].append(value)
    return groups


def _columns(names: str, rows: Sequence[tuple]) -> dict[str, list]:
    return {name: [row[place] for row in rows] for place, name in enumerate(names.split())}


def _totals(names: str, rows: Sequence[tuple], **figures: Any) -> pd.DataFrame:
    """A row for each combination of the columns ``names``: ``figures`` of the ms, which stand last."""
    table = pd.DataFrame(rows, columns=[*names.split(), "ms"])
    return table.groupby(names.split(), sort=False)["ms"].agg(**figures).reset_index()


def _plain(table: pd.DataFrame) -> dict[str, list]:
    """To the nanosecond: the trace has no more."""
    return {str(name): column.tolist() for name, column in table.round(_DECIMALS).items()}


def _stages(ranges: Sequence[Range], within: Mapping[int, list[DeviceWork]]) -> dict[str, list]:
    rows = []
    for key, places in _grouped((span.key, place) for place, span in enumerate(ranges)).items():
        host_ms = sum(ranges[place].end - ranges[place].start for place in places)
        work = [item for place in places for item in within[place]]
        rows.append((*key, len(places), *_counts(work), _ms(host_ms)))
    return _columns("phase stage view calls kernels copies launches busy_ms host_ms", rows)


def _decode_steps(
    ranges: Sequence[Range],
    nesting: Nesting,
    within: Mapping[int, list[DeviceWork]],
    syncs: Sequence[Event],
) -> dict[str, list]:
    waits = Counter(place for sync in syncs for place in nesting.chain(nesting.innermost(sync.start)))
    rows = [
        (span.step, *_counts(within[place]), waits[place], _ms(span.end - span.start))
        for place, span in enumerate(ranges)
        if span.key[1] == "decode_step"
    ]
    return _columns("step kernels copies launches busy_ms host_syncs host_ms", rows)


def _counts(work: Sequence[DeviceWork]) -> tuple[int, int, int, float]:
    """Kernels, copies (and fills), launching calls, and the time the device worked."""
    kernels = sum(item.event.category == "kernel" for item in work)
    launches = len({item.event.correlation for item in work})
    return kernels, len(work) - kernels, launches, _busy(work)


def _top(ranges: Sequence[Range], work: Sequence[DeviceWork]) -> dict[str, list]:
    times = [
        (*ranges[item.place].key[:2], item.event.name, item.event.end - item.event.start) for item in work
    ]
    table = _totals("phase stage kernel", times, count="count", device_ms="sum")
    table["place"] = table.groupby(["phase", "stage"], sort=False).ngroup()
    table = table.sort_values(["place", "device_ms"], ascending=[True, False], kind="stable")
    table.loc[table.groupby("place").cumcount() >= _TOP, "kernel"] = ""
    keys = ["phase", "stage", "kernel"]
    table = table.groupby(keys, sort=False)[["count", "device_ms"]].sum().reset_index()
    return _plain(table.assign(kernel=[name[:_NAME_LENGTH] for name in table["kernel"]]))


def _gaps(ranges: Sequence[Range], work: Sequence[DeviceWork], syncs: Sequence[Event]) -> dict[str, list]:
    returns = sorted(event.end for event in syncs)
    found = []
    for inside in _grouped((ranges[item.place].key[0], item) for item in work).values():
        for place, start, end in gaps_between([_interval(item) for item in inside]):
            cause = _cause(inside[place], start, end, returns)
            found.append((*ranges[inside[place].place].key, cause, 0.0, end - start))
    keys = "phase stage view cause longer_than_us"
    return _plain(_totals(keys, found, count="count", idle_ms="sum", longest_ms="max"))


def _cause(ended_by: DeviceWork, start: float, end: float, sync_returns: Sequence[float]) -> str:
    """Why the device was idle between ``start`` and ``end``.

    ``host sync``: the host was waiting for the device and only then went on. ``launch``: the host was late
    with the next launch. ``device``: the launch was there in time (the space between queued kernels).
    """
    place = bisect_left(sync_returns, start)
    if place < len(sync_returns) and sync_returns[place] <= end:
        return "host sync"
    return "launch" if ended_by.launched.end > start else "device"


def _parts(
    events: Sequence[Event], ranges: Sequence[Range], work: Sequence[DeviceWork], operators: Sequence[Event]
) -> dict[str, list]:
    """KV cache update and attention within the language model; ``by`` says how their kernels were told.

    Attention within a replayed graph cannot be told, so it has no row.
    """
    updates = Nesting(
        [event for event in events if event.category == "user_annotation" and event.name == KV_RANGE]
    )
    attention = Nesting([event for event in operators if event.name == _ATTENTION_OPERATOR])
    groups: dict[Key, list[DeviceWork]] = defaultdict(list)
    for item in work:
        phase, stage, _ = ranges[item.place].key
        time = item.launched.start
        if _GRAPH_LAUNCH.match(item.launched.name):
            if _GRAPH_KV_UPDATE in item.event.name:
                groups[phase, "kv_update", "name"].append(item)
        elif updates.innermost(time) >= 0:
            groups[phase, "kv_update", "range"].append(item)
        elif stage == "language_model" and attention.innermost(time) >= 0:
            groups[phase, "attention", "operator"].append(item)
    rows = [(*key, len(inside), _busy(inside)) for key, inside in groups.items()]
    return _columns("phase part by kernels busy_ms", rows)


def _host_syncs(
    syncs: Sequence[Event],
    ranges: Sequence[Range],
    nesting: Nesting,
    operators: Sequence[Event],
    work: Sequence[DeviceWork],
) -> dict[str, list]:
    """The host's waits by stage, call and operator: the outermost within the stage, and what it went through.

    ``copy`` is the direction of a copy made within the same operator (DtoH, HtoD); the time of the call that
    made it, which for pageable memory waits too, counts as waiting.
    """
    stack = Nesting(operators)
    copies = [item for item in work if item.event.category == "gpu_memcpy"]
    copies.sort(key=lambda item: item.launched.start)
    starts = [item.launched.start for item in copies]
    found = []
    for sync in syncs:
        place = nesting.innermost(sync.start)
        if place < 0:
            continue
        around = [operators[index] for index in stack.chain(stack.innermost(sync.start))]
        around = [operator for operator in around if operator.start >= ranges[place].start]
        direction, waited = "", sync.end - sync.start
        before = bisect_right(starts, sync.start) - 1
        if around and before >= 0 and starts[before] >= around[0].start:
            match = re.search(r"[DH]to[DH]", copies[before].event.name)
            direction = match[0] if match else ""
            waited += copies[before].launched.end - starts[before]
        names = (around[-1].name, around[0].name) if around else ("", "")
        found.append((*ranges[place].key[:2], sync.name, *names, direction, waited))
    return _plain(_totals("phase stage call operator through copy", found, count="count", wait_ms="sum"))


def _busy(work: Sequence[DeviceWork]) -> float:
    return _ms(busy_ms([_interval(item) for item in work]))


def _interval(work: DeviceWork) -> tuple[float, float]:
    return work.event.start, work.event.end


def _ms(value: float) -> float:
    """To the nanosecond: the trace has no more, and what touches must not seem to be apart."""
    return round(value, _DECIMALS)
