"""The answers of a server as spans of one clock, from the client, the server and its worker."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

import pandas as pd

from ocr_phases.engines.answers import Answer, WorkerStage
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


class AnswerSpan(NamedTuple):
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
    has_server_times = all(run.server_times for run in runs)
    has_stages = all(run.stages for run in runs)
    has_steps = all(run.timed for run in runs)
    at_once = any(run.at_once for run in runs)
    rows = []
    for repeat, run in enumerate(runs):
        if at_once:
            spans = [AnswerSpan("generate", "generate", "", None, 0.0, run.times[-1])]
        else:
            spans = _spans(
                run,
                server_times=run.server_times if has_server_times else {},
                stages=run.stages if has_stages else [],
                has_steps=has_steps,
            )
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


def _spans(
    run: Answer,
    *,
    server_times: Mapping[str, float],
    stages: Sequence[WorkerStage],
    has_steps: bool,
) -> list[AnswerSpan]:
    """What happened in a repeat.

    Parameters
    ----------
    run : Answer
        The repeat.
    server_times : mapping of str to float
        The server's own times in ms; empty where they are not used.
    stages : sequence of WorkerStage
        The worker's stages; empty where they are not used.
    has_steps : bool
        Whether the times between chunks are those of decode steps.
    """
    first = run.times[0]
    last = run.times[-1]
    spans: list[AnswerSpan] = []
    if server_times or stages:
        begin = _prefill_begin(server_times, stages, first)
        spans += _before_prefill(server_times, begin)
        spans.append(AnswerSpan("prefill", "prefill", "", None, begin, first - begin))
    else:
        spans.append(AnswerSpan("prefill", "first_token", "", None, 0.0, first))
    if last > first:
        spans.append(AnswerSpan("decode", "decode", "", None, first, last - first))
    step_count = 0
    if has_steps:
        for step, (start, end) in enumerate(pairwise(run.times)):
            spans.append(AnswerSpan("decode", "decode_step", "", step, start, end - start))
            step_count += 1
    spans += _worker_spans(run, stages, step_count)
    return spans


def _prefill_begin(
    server_times: Mapping[str, float], stages: Sequence[WorkerStage], first: float
) -> float:
    """When the prefill began, ms since the request, as the server or its worker tells it."""
    begins = [start for _, start, _, _ in stages]
    if server_times:
        begins.append(first - server_times["prefill_ms"])
    return max(0.0, min(begins))


def _before_prefill(server_times: Mapping[str, float], begin: float) -> Iterator[AnswerSpan]:
    """What happened before the prefill's ``begin``: all of it, preprocessing, the queue."""
    queue_ms = server_times.get("queue_ms", 0.0)
    waited_ms = server_times.get("ttft_ms", 0.0) - server_times.get("prefill_ms", 0.0)
    queued = min(max(waited_ms - queue_ms, 0.0), begin)
    scheduled = min(queued + queue_ms, begin)
    parts = [
        AnswerSpan("prepare", "prepare", "", None, 0.0, begin),
        AnswerSpan("prepare", "preprocess", "", None, 0.0, queued),
        AnswerSpan("prepare", "queue", "", None, queued, scheduled - queued),
    ]
    for part in parts:
        if part.ms > 0:
            yield part


def _worker_spans(
    run: Answer, stages: Sequence[WorkerStage], step_count: int
) -> Iterator[AnswerSpan]:
    """The worker's stages: those of the prefill, and the text model of each of so many decode
    steps.

    The prompt, of which a cache may have the beginning, takes one call of the text model or
    several. So the first decode step is the first call after all of the prompt was read.
    """
    tokens_read = run.usage.get("cached_tokens", 0)
    # Where nobody tells the prompt's length, its first call is taken to be the whole of it.
    prompt_tokens = run.usage.get("prompt_tokens") or 1
    step: int | None = None  # None in the prefill
    seen: set[str] = set()
    for name, start, ms, tokens in stages:
        # A page's first call of an encoder is for the whole page, the second one for its crops.
        view = "local" if name in seen else "global"
        seen.add(name)
        if name == "language_model":
            view = ""
            if tokens_read >= prompt_tokens:
                step = 0 if step is None else step + 1
            tokens_read += tokens
        if step is None:
            yield AnswerSpan("prefill", name, view, None, start, ms)
        elif step < step_count:
            yield AnswerSpan("decode", name, view, step, start, ms)
