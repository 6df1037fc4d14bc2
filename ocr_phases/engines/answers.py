"""One streamed answer, the server's own times of it and the worker's stages, as spans of one clock."""

from __future__ import annotations

import contextlib
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from ocr_phases.engines.client import Server, ServerFailed
from ocr_phases.text import count_text

#: vLLM's histograms of a request's seconds, and what they are called here.
_HISTOGRAMS = {
    "time_to_first_token": "ttft_ms",
    "request_queue_time": "queue_ms",
    "request_prefill_time": "prefill_ms",
    "request_decode_time": "decode_ms",
    "e2e_request_latency": "requests",
}
_NAMES, _NUMBER = "|".join(_HISTOGRAMS), r"\d+(?:\.\d+)?(?:e[+-]\d+)?"
_SAMPLE = re.compile(rf"^vllm:({_NAMES})_seconds_(sum|count)\{{.*\}} ({_NUMBER})$", re.MULTILINE)
# Pieces that arrive together were not made one by one.
_BURST_MS = 0.05
_LEAST_MS = 1e-6
#: A call of a stage in the worker: its name, its start, how many ms it took, and a text model's tokens.
Stage = tuple[str, float, float, int]


@dataclass
class Answer:
    """What a server streamed, a piece of text at a time.

    ``begun`` is when the request was sent, seconds of `time.monotonic`; ``times`` are ms since then, one a
    piece. ``widest`` is how many ids a piece has at most, 0 where they come with none; of several the first
    has the piece as its text. ``logprobs`` has one a token, or too few to be used. ``own`` are
    `server_times`, and ``stages`` what the worker ran, ms since ``begun``; either may be empty.
    """

    begun: float
    times: list[float] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    widest: int = 0
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    prompt_ids: list[int] = field(default_factory=list)
    prompt_tokens: int | None = None
    cached: int | None = None
    finish: str | None = None
    own: dict[str, float] = field(default_factory=dict)
    stages: list[Stage] = field(default_factory=list)

    def add(self, now: float, chunk: Mapping[str, Any]) -> list[int]:
        """Take in a chunk; its new ids, or a 0 for a piece without."""
        self.prompt_ids = chunk.get("prompt_token_ids") or self.prompt_ids
        if usage := chunk.get("usage"):
            self.prompt_tokens = usage["prompt_tokens"]
            self.cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens")
        if not chunk.get("choices"):
            return []
        choice = chunk["choices"][0]
        text, ids = choice.get("delta", {}).get("content") or "", choice.get("token_ids") or []
        self.finish = choice.get("finish_reason") or self.finish
        self.logprobs += [each["logprob"] for each in (choice.get("logprobs") or {}).get("content") or []]
        if text or (ids and (self.widest or not self.times)):  # all ids may come at the end
            self.times.append((now - self.begun) * 1e3)
            self.texts += [text, *[""] * (len(ids) - 1)]
            self.widest = max(self.widest, len(ids))
        self.ids += ids
        return ids or [0] * bool(text)

    @property
    def untimed(self) -> str:
        """Why the tokens have no times of their own; empty where each has one."""
        bursts, pieces = int((np.diff(self.times) < _BURST_MS).sum()), len(self.times)
        why = {
            f"a chunk has up to {self.widest} tokens": self.widest > 1,
            f"{pieces} chunks of text came for {len(self.ids)} tokens": len(self.ids) not in (0, pieces),
            f"{bursts} of {pieces - 1} chunks came together with another": 2 * bursts > pieces - 1,
        }
        return next((reason for reason, holds in why.items() if holds), "")

    @property
    def tokens(self) -> tuple[list[int], list[str]]:
        """Ids and their texts; where a server sends no ids, numbers of its pieces of text."""
        numbers = {text: number for number, text in enumerate(dict.fromkeys(self.texts))}
        ids = self.ids or [numbers[text] for text in self.texts]
        texts = ["".join(self.texts), *[""] * (len(ids) - 1)]
        return ids, self.texts if len(self.texts) == len(ids) else texts


def ask(server: Server, body: Any, on_ids: Callable[[list[list[int]]], None] | None = None) -> Answer:
    """The answer to a chat completion; `ServerFailed`, with what had come, where it does not end well."""
    answer = Answer(time.monotonic())
    try:
        for now, chunk in server.stream(body):
            new = answer.add(now, chunk)
            if new and on_ids is not None:
                on_ids([new])
    except ServerFailed as error:
        if answer.times:
            error.args = (f"{error} {count_text(len(answer.times), 'chunk')} of the answer had come.",)
        raise
    if not answer.times:
        raise ServerFailed(f"{server.url} answered without a token.")
    return answer


def metrics(server: Server) -> pd.DataFrame:
    """Sum in s and count of each of vLLM's histograms so far; empty where the server has none."""
    found: list[tuple[str, str, str]] = []
    with contextlib.suppress(ServerFailed):
        found = _SAMPLE.findall(server.read(f"{server.root}/metrics").decode("utf-8", "replace"))
    samples = pd.DataFrame(found, columns=["name", "part", "value"]).astype({"value": float})
    return samples.pivot_table("value", "name", "part", "sum").rename(_HISTOGRAMS)  # of all engines


def server_times(server: Server, before: pd.DataFrame) -> dict[str, float]:
    """The server's own times of the request that finished since ``before``, ms; empty unless it was alone."""
    for pause in (0.0, 0.05, 0.2, 0.5) if len(before) == len(_HISTOGRAMS) else ():
        time.sleep(pause)  # the last chunk may leave before its figures are in
        new = metrics(server) - before
        if new.loc["requests", "count"]:
            sums = {str(name): 1e3 * seconds for name, seconds in new["sum"].items()}
            return sums if new["count"].eq(1).all() else {}
    return {}


def spans_of(runs: Sequence[Answer]) -> Iterator[tuple[Any, ...]]:
    """The rows of `ocr_phases.record.SPAN_COLUMNS` of the repeats.

    What one of them lacks is left out of all: it would count as 0 in a median.
    """
    own, staged = all(run.own for run in runs), all(run.stages for run in runs)
    timed = not any(run.untimed for run in runs)
    for repeat, run in enumerate(runs):
        told = replace(run, own=run.own if own else {}, stages=run.stages if staged else [])
        for phase, stage, view, step, start, end in _spans(told, timed):
            times = start, max(end - start, _LEAST_MS)
            yield (repeat, phase, stage, view, step, *times, *times)


def _spans(run: Answer, timed: bool) -> Iterator[tuple[Any, ...]]:
    """Phase, stage, view, step, start and end in ms of what happened in a repeat.

    The prefill ends with the first token; it begins by the server's own time of it, and with the worker's
    first stage at the latest, else with the request.
    """
    first, last, own = run.times[0], run.times[-1], run.own
    begins = [first - own["prefill_ms"]] if own else []
    begin = max(0.0, min([*begins, *(start for _, start, _, _ in run.stages)], default=0.0))
    if begin:
        yield "prepare", "prepare", "", None, 0.0, begin
    if begin and own:
        before = np.clip(own["ttft_ms"] - own["prefill_ms"] - own["queue_ms"], 0.0, begin)
        yield "prepare", "preprocess", "", None, 0.0, before
        yield "prepare", "queue", "", None, before, min(before + own["queue_ms"], begin)
    yield "prefill", "prefill", "", None, begin, first
    if len(run.times) > 1:
        yield "decode", "decode", "", None, first, last
    steps = list(pairwise(run.times)) if timed else []
    for step, ends in enumerate(steps):
        yield "decode", "decode_step", "", step, *ends
    step, through, seen = -1, run.cached or 0, Counter[str]()
    for name, start, ms, tokens in run.stages:
        view = ""
        if name != "language_model":
            view, seen[name] = ("global", "local")[min(seen[name], 1)], seen[name] + 1
        else:  # a long prompt takes several
            step += through >= (run.prompt_tokens or 1)
            through += tokens
        if step < 0:
            yield "prefill", name, view, None, start, start + ms
        elif step < len(steps):
            yield "decode", name, view, step, start, start + ms
