"""The stages of a decode step that a CUDA graph replays, found by the order of its kernels.

A replayed graph has no operators and no ranges: all its kernels belong to one launch. The same step
launched kernel by kernel shows for whom each of them works. A graph replays them in that order, so
where the names agree, the stages do.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from ocr_phases.measure.trace_events import (
    ATTENTION_OPERATOR,
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

#: The stage of the head, as `ocr_phases.stages` names it.
_HEAD = "lm_head"


@dataclass(frozen=True)
class StepKernel:
    """What the device does in a decode step at one place of its order, and for whom.

    ``stage`` is the innermost stage that launched it, ``part`` is ``attention``, ``kv_update`` or
    empty.
    """

    name: str
    stage: str
    part: str = ""


@dataclass(frozen=True)
class Replayed:
    """The stages within the replays of a graph, found by the order of its kernels.

    ``ranges`` and ``within`` have the rows that `ranges_of` and `inside_of` would have for them;
    both are empty where nothing was found. ``replay_ms`` of a range is the time from the start of
    its first kernel to the end of its last one.
    """

    ranges: pd.DataFrame
    within: pd.DataFrame
    part_of_event: Mapping[int, str]


def replayed_stages(within: pd.DataFrame, step_kernels: Sequence[StepKernel]) -> Replayed:
    """The stages of the kernels that a graph replays, where they are the ``step_kernels``."""
    names = [_plain_name(kernel.name) for kernel in step_kernels]
    parts = [kernel.part for kernel in step_kernels]
    stages = np.array([kernel.stage for kernel in step_kernels])
    is_replayed = (within["stage"] == "decode_step") & within["call"].str.match(GRAPH_LAUNCH)
    rows: list[dict[str, Any]] = []
    kernels_within: list[pd.DataFrame] = []
    part_of_event: dict[int, str] = {}
    next_range = int(within["range"].max()) + 1 if len(within) else 0
    for _, step in within[is_replayed].sort_values("start").groupby("range"):
        if step["name"].map(_plain_name).tolist() != names:
            continue
        part_of_event |= dict(zip(step["event"], parts, strict=True))
        for stage in dict.fromkeys(stages):
            if stage == "decode_step":
                continue
            kernels = step[stages == stage].assign(stage=stage, range=next_range)
            kernels_within.append(kernels)
            row = kernels.iloc[0][["phase", "view", "step", "since", "until", "host_thread"]]
            replay_ms = kernels["end"].max() - kernels["start"].min()
            rows.append({**row, "stage": stage, "host_ms": 0.0, "replay_ms": replay_ms})
            next_range += 1
    if not rows:
        return Replayed(pd.DataFrame(), within.head(0), {})
    first_range = next_range - len(rows)
    ranges = pd.DataFrame(rows, index=pd.RangeIndex(first_range, next_range, name="range"))
    return Replayed(ranges, pd.concat(kernels_within), part_of_event)


def _plain_name(name: str) -> str:
    """The name of a kernel; copies and fills, which a graph names otherwise, are all alike."""
    for word in ("memcpy", "memset"):
        if name.lower().startswith(word):
            return word
    return name


def kernels_of_step(
    trace: Mapping[str, Any],
    spans: Sequence[Identity],
    head_shape: tuple[int, int] | None = None,
) -> list[StepKernel]:
    """What the device did in a decode step that was launched kernel by kernel, in its order.

    Parameters
    ----------
    trace : mapping
        The profiler's Chrome trace of the step; with the shapes of inputs where a ``head_shape`` is
        given.
    spans : sequence
        What a timeline recorded in the same pass. Kernels behind the head's are sampling.
    head_shape : (int, int), optional
        The shape of the head's weight, [vocab, hidden]. It tells the stages of a compiled step,
        whose kernels belong to no module: the last operator that reads such a weight is the head.
    """
    events = events_of(trace)
    ranges = ranges_of(events, spans)
    work = device_work(events)
    operators = events[events["category"] == "cpu_op"]
    inside = innermost(inside_of(ranges, work, "called")).sort_values("start")
    inside = inside[inside["phase"] == "decode"].set_index("event")
    calls = inside[["called"]]
    stage = inside["stage"].copy()
    if head_shape is not None:
        stage[:] = _compiled_stages(trace, operators, calls, head_shape)
    is_head = (stage == _HEAD).to_numpy()
    if is_head.any():
        behind_the_head = np.arange(len(stage)) > np.flatnonzero(is_head)[-1]
        stage[behind_the_head & (stage == "decode_step").to_numpy()] = "sampling"

    part = pd.Series("", index=inside.index)
    attention = as_ranges(operators[operators["name"] == ATTENTION_OPERATOR])
    part[inside_of(attention, calls, "called")["event"].unique()] = "attention"
    updates = as_ranges(events[events["name"] == KV_RANGE])
    part[inside_of(updates, calls, "called")["event"].unique()] = "kv_update"
    return [
        StepKernel(name, stage_name, part_name)
        for name, stage_name, part_name in zip(inside["name"], stage, part, strict=True)
    ]


def _compiled_stages(
    trace: Mapping[str, Any],
    operators: pd.DataFrame,
    calls: pd.DataFrame,
    head_shape: tuple[int, int],
) -> list[str]:
    """The stage of each kernel of a compiled step, by the last operator that reads the head."""
    shapes = (list(head_shape), list(reversed(head_shape)))
    ids = set()
    for event in trace["traceEvents"]:
        if event.get("cat") != "cpu_op":
            continue
        args = event.get("args", {})
        read_shapes = args.get("Input Dims", [])
        if any(shape in read_shapes for shape in shapes):
            ids.add(args.get("External id", args.get("external id")))
    readers = operators[operators["external"].isin(ids)]
    if readers.empty:
        return ["decode_step"] * len(calls)
    last = readers.sort_values("start").iloc[-1]
    stages = []
    for called in calls["called"]:
        if called < last["start"]:
            stages.append("language_model")
        elif called <= last["end"]:
            stages.append(_HEAD)
        else:
            stages.append("sampling")
    return stages
