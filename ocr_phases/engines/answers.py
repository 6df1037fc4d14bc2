"""One streamed answer, the server's own times of it and the worker's stages, as spans of one clock."""

from __future__ import annotations

import itertools
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ocr_phases.engines.client import Chunk, Server, ServerFailed, Usage
from ocr_phases.text import count_text

#: vLLM's histograms of a request's seconds, by what they are called here.
_HISTOGRAMS = {
    "ttft_ms": "time_to_first_token_seconds",
    "queue_ms": "request_queue_time_seconds",
    "prefill_ms": "request_prefill_time_seconds",
    "decode_ms": "request_decode_time_seconds",
    "requests": "e2e_request_latency_seconds",
}
_SAMPLE = re.compile(r"^vllm:(\w+)_(sum|count)\{[^}]*\} ([0-9.eE+-]+)$", re.MULTILINE)
# Pieces that arrive together were not made one by one.
_BURST_MS = 0.05
_LEAST_MS = 1e-6


class Stage(NamedTuple):
    """A call of a stage in the worker's forward of that ``number``, or (``forward``) the whole of it.

    Times are ms since the request was sent; ``tokens`` are those of a whole forward.
    """

    number: int
    stage: str
    start: float
    ms: float
    tokens: int


@dataclass
class Answer:
    """What a server streamed: pieces of text, each with its ids and the time at which it arrived.

    ``begun`` is when the request was sent, seconds of `time.monotonic`; ``times`` are ms since then, one a
    piece, and ``sizes`` how many ids each had. ``logprobs`` has one a token, or too few to be used.
    """

    begun: float
    times: list[float] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)
    sizes: list[int] = field(default_factory=list)
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    prompt_ids: list[int] | None = None
    usage: Usage | None = None
    finish: str | None = None

    def add(self, now: float, chunk: Chunk) -> list[int]:
        """Take in a chunk; its new ids."""
        self.usage = chunk.usage or self.usage
        self.prompt_ids = chunk.prompt_token_ids or self.prompt_ids
        new: list[int] = []
        for choice in chunk.choices:
            text, ids = choice.delta.content or "", choice.token_ids or []
            self.finish = choice.finish_reason or self.finish
            self.logprobs += [each.logprob for each in (choice.logprobs and choice.logprobs.content) or []]
            self.ids, new = self.ids + ids, new + ids
            late = bool(ids) and not text and bool(self.sizes) and not any(self.sizes)
            if (text or ids) and not late:
                self.times.append((now - self.begun) * 1e3)
                self.pieces.append(text)
                self.sizes.append(len(ids))
        return new

    @property
    def untimed(self) -> str:
        """Why the tokens have no times of their own; empty where each has one."""
        apart = [later - earlier for earlier, later in zip(self.times, self.times[1:], strict=False)]
        bursts = sum(each < _BURST_MS for each in apart)
        if max(self.sizes) > 1:
            return f"a chunk has up to {max(self.sizes)} tokens"
        if self.ids and len(self.ids) != len(self.pieces):
            return f"{len(self.pieces)} chunks of text came for {len(self.ids)} tokens"
        return (
            f"{bursts} of {len(apart)} chunks came together with another" if 2 * bursts > len(apart) else ""
        )

    @property
    def tokens(self) -> tuple[list[int], list[str]]:
        """Ids and their texts; where a server sends no ids, numbers of its pieces of text."""
        if not self.ids:
            numbers: dict[str, int] = {}
            return [numbers.setdefault(piece, len(numbers)) for piece in self.pieces], self.pieces
        if not any(self.sizes):  # all ids came at the end
            most = len(self.ids)
            texts = [*self.pieces[: most - 1], "".join(self.pieces[most - 1 :])]
            return self.ids, texts + [""] * (most - len(texts))
        pairs = zip(self.pieces, self.sizes, strict=True)
        return self.ids, [text for piece, size in pairs for text in [piece, *[""] * (size - 1)][:size]]

    @property
    def prompt_tokens(self) -> int | None:
        """Tokens of the prompt, where the server tells."""
        told = self.usage.prompt_tokens if self.usage else None
        return len(self.prompt_ids) if self.prompt_ids else told

    @property
    def cached(self) -> int | None:
        """Tokens of the prompt that a cache had, where the server tells."""
        details = self.usage and self.usage.prompt_tokens_details
        return details.cached_tokens if details else None


def ask(server: Server, body: Any, on_ids: Callable[[list[list[int]]], None] | None = None) -> Answer:
    """The answer to a chat completion; `ServerFailed`, with what had come, where it does not end well."""
    answer = Answer(time.monotonic())
    try:
        for now, chunk in server.stream(body):
            pieces = len(answer.pieces)
            new = answer.add(now, chunk) or [0] * (len(answer.pieces) - pieces)
            if new and on_ids is not None:
                on_ids([new])
    except ServerFailed as error:
        had = f" {count_text(len(answer.pieces), 'chunk')} of the answer had come." if answer.pieces else ""
        told = ServerFailed(f"{error}{had}")
        told.status = error.status
        raise told from error
    if not answer.pieces:
        raise ServerFailed(f"{server.url} answered without a token.")
    return answer


def metrics(server: Server) -> dict[str, tuple[float, float]]:
    """Sum and count of each of vLLM's histograms so far; empty where the server has none."""
    try:
        text = server.get("/metrics").decode("utf-8", "replace")
    except ServerFailed:
        return {}
    found: dict[tuple[str, str], float] = defaultdict(float)
    for name, part, value in _SAMPLE.findall(text):  # one a model and engine
        found[name, part] += float(value)
    if not all((name, "sum") in found for name in _HISTOGRAMS.values()):
        return {}
    return {key: (found[name, "sum"], found[name, "count"]) for key, name in _HISTOGRAMS.items()}


def server_times(server: Server, before: Mapping[str, tuple[float, float]]) -> dict[str, float]:
    """The server's own times of the request that finished since ``before``, ms; empty unless it was alone."""
    if not before:
        return {}
    for pause in (0.0, 0.05, 0.2, 0.5):  # the last chunk may leave before its figures are in
        time.sleep(pause)
        after = metrics(server)
        if after and after["requests"][1] > before["requests"][1]:
            counts = {after[name][1] - before[name][1] for name in before}
            alone = counts == {1.0}
            return {name: 1e3 * (after[name][0] - before[name][0]) for name in before} if alone else {}
    return {}


def spans_of(
    repeat: int, answer: Answer, own: Mapping[str, float], stages: Sequence[Stage], *, timed: bool
) -> Iterator[tuple[Any, ...]]:
    """The rows of `ocr_phases.record.SPAN_COLUMNS` of one repeat.

    ``own`` are `server_times`. The prefill ends with the first token; it begins with the worker's first
    forward, else by the server's own time of it, else with the request.
    """

    def row(phase: str, stage: str, start: float, end: float, view: str = "", step: Any = None) -> Any:
        times = start, max(end - start, _LEAST_MS)
        return (repeat, phase, stage, view, step, *times, *times)

    first, last = answer.times[0], answer.times[-1]
    forwards = [each for each in stages if each.stage == "forward"]
    begin = max(0.0, first - own["prefill_ms"]) if own else 0.0
    begin = min(forwards[0].start, first) if forwards else begin
    if begin > 0:
        yield row("prepare", "prepare", 0.0, begin)
        if own:
            before = max(0.0, min(own["ttft_ms"] - own["prefill_ms"] - own["queue_ms"], begin))
            yield row("prepare", "preprocess", 0.0, before)
            yield row("prepare", "queue", before, min(before + own["queue_ms"], begin))
    yield row("prefill", "prefill", begin, first)
    through, steps = itertools.accumulate(each.tokens for each in forwards), dict[int, int]()
    wanted = answer.prompt_tokens or 1  # a long prompt takes several forwards
    for each, done in zip(forwards, through, strict=True):
        steps[each.number] = steps[max(steps)] + 1 if done > wanted and steps else -1
    count = len(answer.times) - 1 if timed else 0
    if len(answer.times) > 1:
        yield row("decode", "decode", first, last)
    for step in range(count):
        yield row("decode", "decode_step", answer.times[step], answer.times[step + 1], step=step)
    seen: dict[str, int] = defaultdict(int)
    for each in stages:
        step, end = steps.get(each.number, count), each.start + each.ms
        if each.stage == "forward" or step >= count:
            continue
        if step >= 0:
            yield row("decode", each.stage, each.start, end, step=step)
            continue
        view = "" if each.stage == "language_model" else ("global", "local")[min(seen[each.stage], 1)]
        seen[each.stage] += 1
        yield row("prefill", each.stage, each.start, end, view)
