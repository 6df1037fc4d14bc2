"""One streamed answer, the server's own times of it and the worker's stages, as spans of one clock."""

from __future__ import annotations

import contextlib
import math
import re
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from ocr_phases.engines.client import (
    QUICK_SECONDS,
    Choice,
    Chunk,
    Deadline,
    Server,
    ServerFailed,
    short_name,
)
from ocr_phases.record import make_spans

#: A request's times as a record has them, and what vLLM calls their histograms.
_TIMES = {f"{part}_ms": f"request_{part}_time" for part in ("queue", "prefill", "decode")}
_TIMES["ttft_ms"] = "time_to_first_token"
_SAMPLE = re.compile(r"vllm:(\w+)_seconds_(sum|count)(?:\{.*\})? (\S+)(?: \S+)?\s*")
#: More seconds or requests than any server has had, so not what it means to tell.
_MOST_OF_SAMPLE = 1e12
#: A call of a stage in the worker: its name, its start, how many ms it took, and a text model's
#: tokens.
Stage = tuple[str, float, float, int]
#: The entries of a delta that are text the model wrote, in the order in which it writes them.
_TEXT_ENTRIES = ("reasoning", "reasoning_content", "thinking", "refusal", "content")
#: The entries of a delta that no token is spent on.
_NO_TOKENS = ("role", "name", "id", "type", "index")
#: Two chunks that arrive within so many ms came together: no model of this kind makes a token in
#: that time, and what a proxy held back leaves it one write after the other.
_TOGETHER_MS = 0.5
#: An answer came all at once where its chunks came within this part of the whole wait.
_AT_ONCE = 0.05
_MOST_LEFT_OUT = 5


@dataclass
class Answer:
    """What a server streamed, a piece of text at a time.

    ``begun`` is when the request was sent, seconds of `time.monotonic`; ``times`` are ms since
    then, one for each piece. ``beside`` says that the ids came with the pieces, and ``most_ids``
    how many came with one; of several ids the first has the piece as its text. ``logprobs`` has one
    for each token, or too few to be used. ``usage`` may have ``prompt_tokens``,
    ``completion_tokens`` and ``cached_tokens``. ``finish`` is why it ended, in OpenAI's words, and
    empty where the server did not say. ``cut`` is whether the server went on after the limit, and
    ``left_out`` names what it sent that is no text. ``own`` are `server_times`, and ``stages`` what
    the worker ran, ms since ``begun``; either may be empty.
    """

    begun: float
    times: list[float] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    beside: bool = False
    most_ids: int = 0
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    prompt_ids: list[int] = field(default_factory=list)
    usage: dict[str, int] = field(default_factory=dict)
    finish: str = ""
    cut: bool = False
    left_out: list[str] = field(default_factory=list)
    own: dict[str, float] = field(default_factory=dict)
    stages: list[Stage] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The whole text."""
        return "".join(self.texts)

    @property
    def prompt_tokens(self) -> int | None:
        """How many tokens the prompt has; None where the server tells neither them nor their ids."""
        return self.usage.get("prompt_tokens") or len(self.prompt_ids) or None

    @property
    def token_count(self) -> int | None:
        """How many tokens it has, by their ids or by the server's count; None where it tells
        neither.

        A server counts the end token, which has no piece of its own. That difference of one is
        none.
        """
        pieces = len(self.ids) or len(self.times)
        told = self.usage.get("completion_tokens") or 0
        if abs(told - pieces) > 1 and told > len(self.ids):
            return told
        return pieces if self.ids or told else None

    @property
    def untimed(self) -> str:
        """Why the tokens have no times of their own; empty where each has one, or their number is
        unknown.
        """
        pieces = len(self.times)
        tokens = self.token_count
        if tokens is not None:
            allowed = 0 if self.beside else 1
            if self.most_ids > 1 or abs(tokens - pieces) > allowed:
                return f"{pieces} chunks came for {tokens} tokens"
        together = int((np.diff(self.times) < _TOGETHER_MS).sum())
        if 2 * together >= pieces:
            return f"{together} of {pieces} chunks came together with another"
        return ""

    @property
    def timed(self) -> bool:
        """Whether each token has a time of its own."""
        return self.token_count is not None and not self.untimed

    @property
    def at_once(self) -> bool:
        """Whether the whole answer came at once, so that nothing tells the first token from the
        last.
        """
        if len(self.times) == 1:
            # The end token has no piece.
            made = self.usage.get("completion_tokens") or len(self.ids)
            return made == 0 or made > 2
        return bool(self.untimed) and self.times[-1] - self.times[0] < _AT_ONCE * self.times[-1]

    @property
    def tokens(self) -> tuple[list[int], list[str]]:
        """Ids and their texts; where a server sends no ids, numbers of its pieces of text."""
        ids = self.ids or pd.factorize(np.asarray(self.texts, dtype=object))[0].tolist()
        if len(self.texts) == len(ids):
            return ids, self.texts
        if len(self.texts) + 1 == len(ids):  # the end token has no text
            return ids, [*self.texts, ""]
        return ids, [self.text, *[""] * (len(ids) - 1)]


class AnswerReader:
    """Reads the chunks of one answer into an `Answer`, up to ``limit`` tokens."""

    def __init__(self, limit: int | None) -> None:
        self.answer = Answer(time.monotonic())
        self._limit = math.inf if limit is None else limit
        self._taken = 0  # tokens so far, as far as chunks show them

    def read(self, now: float, chunk: Chunk) -> list[int]:
        """Take what a chunk brings, and give its ids: a 0 for text without an id, none for no
        token.
        """
        answer = self.answer
        answer.prompt_ids = chunk.prompt_token_ids or answer.prompt_ids
        choice = chunk.choices[0] if chunk.choices else Choice()
        answer.finish = short_name(choice.finish_reason or "") or answer.finish
        text = self._text(choice.delta or {})
        ids = choice.token_ids or []
        entries = _logprob_entries(choice.logprobs)
        at_end = bool(answer.times) and not answer.beside and not text  # all ids, sent once more
        if at_end:
            self._take_usage(chunk)
            answer.ids = self._within(answer.ids + ids, 0)
            answer.logprobs += _logprobs(entries)
            self._taken += len(entries)
            return ids
        brings = self._brought(text, ids, entries, ended=choice.finish_reason is not None)
        room = self._limit - self._taken
        if brings > 0 and room <= 0:
            self._cut()
            return []
        if brings > room:
            text = _first_tokens(entries, text, ids, int(room))
            ids = self._within(ids, self._taken)
            entries = entries[: int(room)]
            self._cut()
        self._taken += brings
        answer.logprobs += _logprobs(entries)
        if text or ids:
            answer.times.append((now - answer.begun) * 1e3)
            answer.texts += [text, *[""] * (len(ids) - 1)]
            answer.ids += ids
            answer.beside |= bool(ids)
            answer.most_ids = max(answer.most_ids, len(ids))
        self._take_usage(chunk)
        return ids or [0] * bool(text)

    def _text(self, delta: Mapping[str, Any]) -> str:
        """All text of a delta; what else it holds is named in ``left_out``."""
        texts: dict[str, str] = {}
        for name, value in delta.items():
            if name in _TEXT_ENTRIES:
                texts[name] = _plain_text(value)
            if name in _NO_TOKENS or not value or texts.get(name):
                continue
            shown = short_name(name)
            if shown not in self.answer.left_out and len(self.answer.left_out) < _MOST_LEFT_OUT:
                self.answer.left_out.append(shown)
        if texts.get("reasoning") == texts.get(
            "reasoning_content"
        ):  # one is the other's older name
            texts.pop("reasoning_content", None)
        return "".join(texts.get(name, "") for name in _TEXT_ENTRIES)

    def _brought(self, text: str, ids: list[int], entries: list[Any], *, ended: bool) -> int:
        """How many tokens a chunk brings, as far as it shows."""
        told = max(len(ids), len(entries))
        if told or not text:
            return told
        # The last chunk may have the end of a text that was held back, without a token of its own.
        return 0 if ended and self.answer.times else 1

    def _within(self, ids: list[int], taken: int) -> list[int]:
        """The ids up to the limit, where so many were taken before."""
        room = self._limit - taken
        if len(ids) <= room:
            return ids
        self._cut()
        return ids[: int(room)]

    def _cut(self) -> None:
        self.answer.cut = True
        self.answer.finish = "length"

    def _take_usage(self, chunk: Chunk) -> None:
        """Keep the server's counts; with usage in every chunk the last one counts, unless it has
        none.
        """
        usage = chunk.usage or {}
        details = usage.get("prompt_tokens_details")
        cached = details.get("cached_tokens") if isinstance(details, dict) else None
        counts = {
            "prompt_tokens": usage.get("prompt_tokens"),
            "completion_tokens": usage.get("completion_tokens"),
            "cached_tokens": cached,
        }
        for name, value in counts.items():
            count = _count(value)
            if count is not None:
                self.answer.usage[name] = count
        if self.answer.usage.get("completion_tokens", 0) <= self._limit:
            return
        if chunk.choices and not self.answer.finish:  # it would go on
            self._cut()
            self.answer.usage["completion_tokens"] = int(self._limit)
        self.answer.cut = True


def ask(
    server: Server,
    body: Any,
    on_ids: Callable[[list[list[int]]], None] | None = None,
    limit: int | None = None,
) -> Answer:
    """The answer to a chat completion; `ServerFailed` where it does not end well.

    ``on_ids`` gets the ids of each piece, a 0 for one without. A server that goes on after
    ``limit`` tokens is not listened to any longer. One that said why it ended has ended, whatever
    follows.
    """
    first, whole = server.first_token_timeout, server.answer_timeout
    deadline = Deadline(min(first, whole), f"sent no token within {min(first, whole):g} s")
    reader = AnswerReader(limit)
    answer = reader.answer
    with contextlib.closing(server.stream(body, deadline)) as chunks:
        try:
            for now, chunk in chunks:
                waited = not answer.times
                ids = reader.read(now, chunk)
                if on_ids is not None and ids:
                    on_ids([ids])
                if answer.cut:
                    break
                if waited and answer.times:
                    deadline.extend(whole, f"did not end its answer within {whole:g} s")
                if answer.finish:
                    deadline.end_within(QUICK_SECONDS)
        except ServerFailed:
            if not answer.finish:
                raise
    if not answer.times:
        raise ServerFailed(f"{server.url} answered without a token.")
    return answer


def _plain_text(value: Any) -> str:
    """The text of a delta's entry: a text, or a list of parts that have one."""
    if isinstance(value, str):
        return value
    if isinstance(value, dict):
        return _plain_text(value.get("text"))
    if isinstance(value, list):
        return "".join(_plain_text(part) for part in value)
    return ""


def _logprob_entries(logprobs: Any) -> list[Any]:
    """The entries of a choice's log probabilities, one for each token; none where they have another
    form.
    """
    entries = logprobs.get("content") if isinstance(logprobs, dict) else None
    return entries if isinstance(entries, list) else []


def _logprobs(entries: Sequence[Any]) -> list[float]:
    """The log probability of each entry; one that has none leaves too few, so that none is used."""
    found = []
    for entry in entries:
        value = entry.get("logprob") if isinstance(entry, dict) else None
        if isinstance(value, int | float) and math.isfinite(value):
            found.append(float(value))
    return found


def _first_tokens(entries: Sequence[Any], text: str, ids: list[int], count: int) -> str:
    """The text of a chunk's first tokens by its log probabilities; without them none, if ids tell
    more.
    """
    pieces = [entry.get("token") if isinstance(entry, dict) else None for entry in entries]
    if all(isinstance(piece, str) for piece in pieces) and "".join(map(str, pieces)) == text:
        return "".join(map(str, pieces[:count]))
    return "" if ids else text


def _count(value: Any) -> int | None:
    """A number of tokens as a server tells it; None for what is none."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if not math.isfinite(value) or value != int(value) or not 0 <= value <= 2**24:
        return None
    return int(value)


Samples = dict[tuple[str, str], float]


def metrics(server: Server) -> Samples:
    """Sum in s and count of each of vLLM's histograms so far, of all engines.

    Empty where there are none, and where they are not such as can be read.
    """
    try:
        text = b"".join(server.lines(f"{server.root}/metrics")).decode("utf-8", "replace")
    except ServerFailed:
        return {}
    return read_metrics(text)


def read_metrics(text: str) -> Samples:
    """`metrics` of this text in Prometheus's format."""
    found: Counter[tuple[str, str]] = Counter()
    for line in text.splitlines():
        sample = _SAMPLE.fullmatch(line)
        if sample is None or sample[1] not in _TIMES.values():
            continue
        value = _sample_value(sample[3])
        if value is None:
            return {}
        found[sample[1], sample[2]] += value  # type: ignore[assignment]
    return dict(found)


def _sample_value(text: str) -> float | None:
    """A sample's number; None where it is none, or none that a sum of seconds or a count can be."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0.0 <= value <= _MOST_OF_SAMPLE else None


def server_times(server: Server, before: Samples) -> dict[str, float]:
    """The server's own times of the request that finished since ``before``, ms; empty unless it was
    alone.
    """
    if not before:
        return {}
    for pause in (0.0, 0.05, 0.2, 0.5):
        time.sleep(pause)  # the last chunk may leave before its figures are in
        after = metrics(server)
        new = {key: value - before.get(key, 0.0) for key, value in after.items()}
        if all(new.get((name, "count")) == 1 for name in _TIMES.values()):
            times = {own: 1e3 * new.get((name, "sum"), -1.0) for own, name in _TIMES.items()}
            return times if min(times.values()) >= 0 else {}
    return {}


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
    rows: list[tuple[Any, ...]] = []
    for repeat, run in enumerate(runs):
        if at_once:
            spans = iter([("generate", "generate", "", None, 0.0, run.times[-1])])
        else:
            spans = _spans(run, timed=timed, staged=staged, stepped=stepped)
        rows += [(repeat, *span, *span[-2:]) for span in spans]
    return make_spans(rows)


def _spans(run: Answer, *, timed: bool, staged: bool, stepped: bool) -> Iterator[tuple[Any, ...]]:
    """Phase, stage, view, step, start and time in ms of what happened in a repeat.

    The server's own times are used if ``timed``, the worker's stages if ``staged``, and the times
    between chunks are those of decode steps if ``stepped``.
    """
    own = run.own if timed else {}
    stages = run.stages if staged else []
    first, last = run.times[0], run.times[-1]
    begin = 0.0
    if own or stages:
        yield from _before_first_token(own, stages, first)
        begin = _prefill_begin(own, stages, first)
    waited_for = "prefill" if own or stages else "first_token"
    yield "prefill", waited_for, "", None, begin, first - begin
    if last > first:
        yield "decode", "decode", "", None, first, last - first
    steps = list(pairwise(run.times)) if stepped else []
    for step, (start, end) in enumerate(steps):
        yield "decode", "decode_step", "", step, start, end - start
    yield from _worker_spans(run, stages, len(steps))


def _prefill_begin(own: Mapping[str, float], stages: Sequence[Stage], first: float) -> float:
    """When the prefill began, ms since the request, as the server or its worker tells it."""
    begins = [start for _, start, _, _ in stages]
    if own:
        begins.append(first - own["prefill_ms"])
    return max(0.0, min(begins))


def _before_first_token(
    own: Mapping[str, float], stages: Sequence[Stage], first: float
) -> Iterator[tuple[Any, ...]]:
    """What happened between the request and the prefill: all of it, preprocessing, and the queue."""
    begin = _prefill_begin(own, stages, first)
    queue = own.get("queue_ms", 0.0)
    before = own.get("ttft_ms", 0.0) - own.get("prefill_ms", 0.0) - queue
    queued = min(max(before, 0.0), begin)
    parts = [
        ("prepare", 0.0, begin),
        ("preprocess", 0.0, queued),
        ("queue", queued, min(queued + queue, begin)),
    ]
    for name, start, end in parts:
        if end > start:
            yield "prepare", name, "", None, start, end - start


def _worker_spans(run: Answer, stages: Sequence[Stage], steps: int) -> Iterator[tuple[Any, ...]]:
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
            yield "prefill", name, view, None, start, ms
        elif step < steps:
            yield "decode", name, view, step, start, ms
