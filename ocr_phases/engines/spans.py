"""The answers of a server as spans of one clock, from the client, the server and its worker."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import pandas as pd

from ocr_phases.engines.answers import Answer, Stage
from ocr_phases.engines.vllm_worker import ENCODER_GRAPH
from ocr_phases.record import make_spans
from ocr_phases.record.parts import StagePart
from ocr_phases.stages import Role, stage_of, stage_place

#: Where a stage is from that is no module of the worker, in a record's list of stages.
SERVER_TIMES = "the server's own times"


#: Where the stage of a replayed graph is from.
_GRAPH_REPLAYS = "replays of the encoder's CUDA graphs"
#: The roles of stages that the table of stages does not have.
_ROLES: dict[str, Role] = {ENCODER_GRAPH: "vision"}


class Span(NamedTuple):
    """A part of one repeat: its phase, stage, view and decode step, its start and length in ms."""

    phase: str
    stage: str
    view: str
    step: int | None
    start_ms: float
    ms: float


def spans_of(runs: Sequence[Answer]) -> pd.DataFrame:
    """The spans of the repeats (`ocr_phases.record.make_spans`).

    Where the server or its worker tells of the prefill, it ends with the first token; it begins by
    the server's own time of it, and with the worker's first stage at the latest. Else there is the
    client's wait for the first token, `first_token`, of which the prefill is a part. Of an answer
    that came all at once there is one time, ``generate``. What one repeat lacks is left out of all:
    it would count as 0 in a median.
    """
    timed = all(run.own for run in runs)
    staged = all(run.stages for run in runs)
    stepped = all(run.timed for run in runs)
    at_once = any(run.at_once for run in runs)
    rows = []
    for repeat, run in enumerate(runs):
        if at_once:
            spans = [Span("generate", "generate", "", None, 0.0, run.times[-1])]
        else:
            spans = [*_spans(run, timed=timed, staged=staged, stepped=stepped)]
        for span in spans:
            # The host and the device of a span have one clock, so it has one start and one length.
            rows.append((repeat, *span, span.start_ms, span.ms))
    return make_spans(rows)


def stages_of_spans(spans: pd.DataFrame, modules: Mapping[str, str]) -> list[StagePart]:
    """The stages of a server's record, with what tells of each.

    Parameters
    ----------
    spans : pandas.DataFrame
        The record's spans.
    modules : mapping of str to str
        The worker's stages, and the module that each one is.

    Returns
    -------
    list of StagePart
            In the order that a page goes through them, without those that are the whole of a phase.
        ``path`` is the module's name, else what tells of the stage.
    """
    stages = [stage_of(name, _ROLES.get(name)) for name in spans["stage"].unique()]
    parts = []
    for stage in sorted(stages, key=stage_place):
        if stage.role != "whole":
            path = modules.get(stage.name, SERVER_TIMES)
            if stage.name == ENCODER_GRAPH:
                path = _GRAPH_REPLAYS
            parts.append(StagePart(name=stage.name, path=path, role=stage.role))
    return parts


def _spans(run: Answer, *, timed: bool, staged: bool, stepped: bool) -> Iterator[Span]:
    """What happened in a repeat.

    The server's own times are used if ``timed``, the worker's stages if ``staged``, and the times
    between chunks are those of decode steps if ``stepped``.
    """
    own = run.own if timed else {}
    stages = run.stages if staged else []
    first = run.times[0]
    last = run.times[-1]
    if own or stages:
        yield from _before_first_token(own, stages, first)
        begin = _prefill_begin(own, stages, first)
        yield Span("prefill", "prefill", "", None, begin, first - begin)
    else:
        yield Span("prefill", "first_token", "", None, 0.0, first)
    if last > first:
        yield Span("decode", "decode", "", None, first, last - first)
    steps = list(pairwise(run.times)) if stepped else []
    for step, (start, end) in enumerate(steps):
        yield Span("decode", "decode_step", "", step, start, end - start)
    yield from _worker_spans(run, stages, len(steps))


def _prefill_begin(own: Mapping[str, float], stages: Sequence[Stage], first: float) -> float:
    """When the prefill began, ms since the request, as the server or its worker tells it."""
    begins = [start for _, start, _, _ in stages]
    if own:
        begins.append(first - own["prefill_ms"])
    return max(0.0, min(begins))


def _before_first_token(
    own: Mapping[str, float], stages: Sequence[Stage], first: float
) -> Iterator[Span]:
    """What happened between the request and the prefill: all of it, preprocessing, the queue."""
    begin = _prefill_begin(own, stages, first)
    queue_ms = own.get("queue_ms", 0.0)
    preprocess_ms = own.get("ttft_ms", 0.0) - own.get("prefill_ms", 0.0) - queue_ms
    queued = min(max(preprocess_ms, 0.0), begin)
    scheduled = min(queued + queue_ms, begin)
    parts = [
        Span("prepare", "prepare", "", None, 0.0, begin),
        Span("prepare", "preprocess", "", None, 0.0, queued),
        Span("prepare", "queue", "", None, queued, scheduled - queued),
    ]
    for part in parts:
        if part.ms > 0:
            yield part


def _worker_spans(run: Answer, stages: Sequence[Stage], steps: int) -> Iterator[Span]:
    """The worker's stages: those of the prefill, and the text model of each of so many decode
    steps.

    The prompt, of which a cache may have the beginning, takes one call of the text model or
    several.
    """
    read = run.usage.get("cached_tokens") or 0
    prompt = run.usage.get("prompt_tokens") or 1
    step = -1
    seen: set[str] = set()
    for name, start, ms, tokens in stages:
        view = "local" if name in seen else "global"
        seen.add(name)
        if name == "language_model":
            view = ""
            if read >= prompt:
                step += 1
            read += tokens
        if step < 0:
            yield Span("prefill", name, view, None, start, ms)
        elif step < steps:
            yield Span("decode", name, view, step, start, ms)
