"""One streamed answer, the server's own times of it and the worker's stages, as spans of one clock."""

from __future__ import annotations

import contextlib
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from ocr_phases.engines.client import Server, ServerFailed
from ocr_phases.record import make_spans

#: A request's times as a record has them, and what vLLM calls their histograms.
_TIMES = {f"{part}_ms": f"request_{part}_time" for part in ("queue", "prefill", "decode")}
_TIMES["ttft_ms"] = "time_to_first_token"
_SAMPLE = re.compile(r"^vllm:(\w+)_seconds_(sum|count)\{.*\} ([-+.\de]+)$", re.MULTILINE)
#: A call of a stage in the worker: its name, its start, how many ms it took, and a text model's tokens.
Stage = tuple[str, float, float, int]


@dataclass
class Answer:
    """What a server streamed, a piece of text at a time.

    ``begun`` is when the request was sent, seconds of `time.monotonic`; ``times`` are ms since then, one a
    piece. ``beside`` says that the ids came with the pieces; of several ids the first has the piece as its
    text. ``logprobs`` has one a token, or too few to be used. ``usage`` may have
    ``prompt_tokens`` and ``cached_tokens``. ``own`` are `server_times`, and ``stages`` what the worker ran,
    ms since ``begun``; either may be empty.
    """

    begun: float
    times: list[float] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    beside: bool = False
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    prompt_ids: list[int] = field(default_factory=list)
    usage: dict[str, Any] = field(default_factory=dict)
    finish: str = "length"
    own: dict[str, float] = field(default_factory=dict)
    stages: list[Stage] = field(default_factory=list)

    @property
    def untimed(self) -> str:
        """Why the tokens have no times of their own; empty where each has one."""
        # Pieces that arrive together were not made one by one.
        bursts, pieces = int((np.diff(self.times) < 0.05).sum()), len(self.times)
        if len(self.ids) not in (0, pieces):
            return f"{pieces} chunks came for {len(self.ids)} tokens"
        return f"{bursts} of {pieces} chunks came together with another" if 2 * bursts >= pieces else ""

    @property
    def tokens(self) -> tuple[list[int], list[str]]:
        """Ids and their texts; where a server sends no ids, numbers of its pieces of text."""
        ids = self.ids or pd.factorize(np.asarray(self.texts))[0].tolist()
        whole = ["".join(self.texts), *[""] * (len(ids) - 1)]
        return ids, self.texts if len(self.texts) == len(ids) else whole


def ask(server: Server, body: Any, on_ids: Callable[[list[list[int]]], None] | None = None) -> Answer:
    """The answer to a chat completion; `ServerFailed` where it does not end well.

    ``on_ids`` gets the ids of each piece, a 0 for one without.
    """
    answer = Answer(time.monotonic())
    for now, chunk in server.stream(body):
        answer.prompt_ids = chunk.get("prompt_token_ids") or answer.prompt_ids
        if usage := chunk.get("usage"):
            answer.usage = usage | (usage.get("prompt_tokens_details") or {})
        choice: dict[str, Any] = next(iter(chunk.get("choices", [])), {})
        text, ids = choice.get("delta", {}).get("content") or "", choice.get("token_ids") or []
        answer.finish = choice.get("finish_reason") or answer.finish
        answer.logprobs += [each["logprob"] for each in (choice.get("logprobs") or {}).get("content") or []]
        answer.ids += ids
        if text or (ids and (answer.beside or not answer.times)):  # all ids may come at the end
            answer.times.append((now - answer.begun) * 1e3)
            answer.texts += [text, *[""] * (len(ids) - 1)]
            answer.beside |= bool(ids)
        if on_ids and (text or ids):
            on_ids([ids or [0]])
    if not answer.times:
        raise ServerFailed(f"{server.url} answered without a token.")
    return answer


def metrics(server: Server) -> Counter[tuple[str, str]]:
    """Sum in s and count of each of vLLM's histograms so far, of all engines; empty where there are none."""
    found = Counter[tuple[str, str]]()
    with contextlib.suppress(ServerFailed, UnicodeError):
        for name, part, value in _SAMPLE.findall(b"".join(server.lines(f"{server.root}/metrics")).decode()):
            found[name, part] += float(value)  # type: ignore[assignment]
    return found


def server_times(server: Server, before: Counter[tuple[str, str]]) -> dict[str, float]:
    """The server's own times of the request that finished since ``before``, ms; empty unless it was alone."""
    for pause in (0.0, 0.05, 0.2, 0.5) if before else ():
        time.sleep(pause)  # the last chunk may leave before its figures are in
        new = metrics(server) - before
        if all(new[name, "count"] == 1 for name in _TIMES.values()):
            return {own: 1e3 * new[name, "sum"] for own, name in _TIMES.items()}
    return {}


def spans_of(runs: Sequence[Answer]) -> pd.DataFrame:
    """The spans of the repeats (`ocr_phases.record.make_spans`).

    The prefill ends with the first token; it begins by the server's own time of it, and with the worker's
    first stage at the latest, else with the request. What one repeat lacks is left out of all: it would count
    as 0 in a median.
    """
    told = all(run.own for run in runs), all(run.stages for run in runs)
    rows = [(repeat, *span, *span[-2:]) for repeat, run in enumerate(runs) for span in _spans(run, *told)]
    return make_spans(rows)


def _spans(run: Answer, timed: bool, staged: bool) -> Iterator[tuple[Any, ...]]:
    """Phase, stage, view, step, start and time in ms of what happened in a repeat.

    The server's own times are used if ``timed``, and the worker's stages if ``staged``.
    """
    own, stages = run.own if timed else {}, run.stages if staged else []
    first, last = run.times[0], run.times[-1]
    ttft, prefill, queue = (own.get(f"{name}_ms", 0.0) for name in ("ttft", "prefill", "queue"))
    begins = [first - prefill] * bool(own) + [start for _, start, _, _ in stages]
    begin = max(0.0, min(begins, default=0.0))
    before = np.clip(ttft - prefill - queue, 0.0, begin)
    wholes = [("prepare", "prepare", 0.0, begin), ("prepare", "preprocess", 0.0, before)]
    wholes += [("prepare", "queue", before, min(before + queue, begin))]
    wholes += [("prefill", "prefill", begin, first), ("decode", "decode", first, last)]
    yield from ((*names, "", None, start, end - start) for *names, start, end in wholes if end > start)
    steps = [] if run.untimed else list(pairwise(run.times))
    yield from (("decode", "decode_step", "", step, at, end - at) for step, (at, end) in enumerate(steps))
    # The prompt, of which a cache may have the beginning, takes one call or several.
    read, step, seen = run.usage.get("cached_tokens") or 0, -1, set[str]()
    for name, start, ms, tokens in stages:
        view = "local" if name in seen else "global"
        seen.add(name)
        if name == "language_model":
            view, step, read = "", step + (read >= run.usage.get("prompt_tokens", 1)), read + tokens
        if step < len(steps):
            of = ("prefill", None) if step < 0 else ("decode", step)
            yield of[0], name, view, of[1], start, ms
