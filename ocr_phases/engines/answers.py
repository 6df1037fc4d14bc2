"""One streamed answer of a server: what it wrote, and when each piece of it came."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
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

#: A call of a stage in the worker: its name, its start, how many ms it took, and a text model's
#: tokens.
WorkerStage = tuple[str, float, float, int]
#: The entries of a delta that are text the model wrote, in the order in which it writes them.
_TEXT_ENTRIES = ("reasoning", "reasoning_content", "thinking", "refusal", "content")
#: The entries of a delta that no token is spent on.
_NO_TOKENS = ("role", "name", "id", "type", "index")
#: The entries of a delta that tell once more, in another form, what its text says.
_COPIES = ("reasoning_details", "provider_specific_fields", "annotations")
#: Two chunks that arrive within so many ms came together: no model of this kind makes a token in
#: that time, and what a proxy held back leaves it one write after the other.
_TOGETHER_MS = 0.5
#: An answer came all at once where its chunks came within this part of the whole wait.
_AT_ONCE = 0.05
_MOST_LEFT_OUT = 5
#: More ms than any answer takes: a year.
_MOST_MS = 3.2e10


@dataclass
class Answer:
    """What a server streamed, a piece of text at a time.

    Attributes
    ----------
    begun : float
        When the request was sent, in seconds of `time.monotonic`.
    times : list of float
        When each piece came, in ms since ``begun``.
    texts : list of str
        The text of each piece. Of several ids that came with a piece the first has its text, and
        the others have an empty one.
    ids_with_pieces : bool
        Whether the ids came with the pieces, and not all of them at the end.
    most_ids : int
        How many ids came with one piece at most.
    ids : list of int
        The ids of the tokens; empty where the server sends none.
    logprobs : list of float
        The log probability of each token; fewer than there are tokens where one had none.
    prompt_ids : list of int
        The ids of the prompt's tokens; empty where the server sends none.
    usage : dict of str to int
        Any of ``prompt_tokens``, ``completion_tokens`` and ``cached_tokens``.
    finish : str
        Why the answer ended, in OpenAI's words; empty where the server did not say.
    cut : bool
        Whether the server went on after the limit.
    left_out : list of str
        The names of what the server sent that is no text.
    server_times : dict of str to float
        What the server itself tells of its times, in ms; empty where it tells nothing.
    encoder_ms : float or None
        The encoder's time by vLLM's statistics; None where they are off.
    stages : list of WorkerStage
        What the worker ran, in ms since ``begun``; empty without its extension.
    """

    begun: float
    times: list[float] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    ids_with_pieces: bool = False
    most_ids: int = 0
    ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    prompt_ids: list[int] = field(default_factory=list)
    usage: dict[str, int] = field(default_factory=dict)
    finish: str = ""
    cut: bool = False
    left_out: list[str] = field(default_factory=list)
    server_times: dict[str, float] = field(default_factory=dict)
    encoder_ms: float | None = None
    stages: list[WorkerStage] = field(default_factory=list)

    @property
    def text(self) -> str:
        """The whole text."""
        return "".join(self.texts)

    @property
    def prompt_tokens(self) -> int | None:
        """How many tokens the prompt has; None where the server tells neither that nor ids."""
        count = self.usage.get("prompt_tokens") or len(self.prompt_ids)
        return count if count > 0 else None

    @property
    def token_count(self) -> int | None:
        """How many tokens it has, by their ids or by the server's count; None where it tells
        neither.

        A server counts the end token, which has no piece of its own, so a difference of one is
        ignored.
        """
        usage_count = self.usage.get("completion_tokens", 0)
        if not self.ids and not usage_count:
            return None
        seen_count = len(self.ids) or len(self.times)
        if abs(usage_count - seen_count) > 1 and usage_count > len(self.ids):
            return usage_count
        return seen_count

    @property
    def untimed(self) -> str:
        """Why the tokens have no times of their own; empty where each has one, or their number is
        unknown.
        """
        pieces = len(self.times)
        tokens = self.token_count
        if tokens is not None:
            # Where ids come at the end, the end token is one of them, without a piece.
            allowed = 0 if self.ids_with_pieces else 1
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
            # One text token and the end token, which has no piece, are two.
            token_count = self.usage.get("completion_tokens") or len(self.ids)
            return token_count == 0 or token_count > 2
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
        self._tokens_read = 0  # as far as chunks show them
        self._index: Any = None  # of the choice that is read; None before the first one

    def read(self, now: float, chunk: Chunk) -> list[int]:
        """Take what a chunk brings, and give its ids: a 0 for text without an id, none for no
        token.
        """
        answer = self.answer
        answer.prompt_ids = chunk.prompt_token_ids or answer.prompt_ids
        choice = self._own_choice(chunk.choices or [])
        answer.finish = short_name(choice.finish_reason or "") or answer.finish
        text = self._text(choice.delta or {})
        ids = choice.token_ids or []
        entries = _logprob_entries(choice.logprobs)
        if answer.times and not answer.ids_with_pieces and not text:
            # A chunk after the text has the ids of all tokens, as SGLang sends them.
            self._take_usage(chunk)
            answer.ids = self._within_limit(answer.ids + ids, 0)
            answer.logprobs += _logprobs(entries)
            self._tokens_read += len(entries)
            return ids
        new_tokens = self._new_tokens(text, ids, entries, ended=bool(choice.finish_reason))
        room = self._limit - self._tokens_read
        if new_tokens > 0 and room <= 0:
            self._cut()
            return []
        if new_tokens > room:
            text = _first_tokens(entries, text, ids, int(room))
            ids = self._within_limit(ids, self._tokens_read)
            entries = entries[: int(room)]
            self._cut()
        self._tokens_read += new_tokens
        answer.logprobs += _logprobs(entries)
        if text or ids:
            self._add_piece(now, text, ids)
        self._take_usage(chunk)
        if text and not ids:
            return [0]
        return ids

    def _own_choice(self, choices: list[Choice]) -> Choice:
        """The choice that is read, which is the first that came; an empty one where it is not
        among these.

        A server that was asked for one answer may send several all the same.
        """
        for choice in choices:
            if self._index is None:
                self._index = choice.index
            if choice.index is None or choice.index == self._index:
                return choice
        return Choice()

    def _add_piece(self, now: float, text: str, ids: list[int]) -> None:
        """Keep a piece that came at this time; of several ids the first has its text."""
        answer = self.answer
        answer.times.append((now - answer.begun) * 1e3)
        answer.texts.append(text)
        answer.texts += [""] * (len(ids) - 1)
        answer.ids += ids
        if ids:
            answer.ids_with_pieces = True
        answer.most_ids = max(answer.most_ids, len(ids))

    def _text(self, delta: Mapping[str, Any]) -> str:
        """All text of a delta; what else it holds is named in ``left_out``."""
        texts = {name: _plain_text(delta[name]) for name in _TEXT_ENTRIES if name in delta}
        no_tokens: tuple[str, ...] = _NO_TOKENS
        if any(texts.values()):
            no_tokens = _NO_TOKENS + _COPIES
        for name, value in delta.items():
            if name in no_tokens or not value or texts.get(name):
                continue
            shown = short_name(name)
            if shown not in self.answer.left_out and len(self.answer.left_out) < _MOST_LEFT_OUT:
                self.answer.left_out.append(shown)
        if texts.get("reasoning") == texts.get("reasoning_content"):
            # One is the other's older name, and some servers send both.
            texts.pop("reasoning_content", None)
        return "".join(texts.get(name, "") for name in _TEXT_ENTRIES)

    def _new_tokens(self, text: str, ids: list[int], entries: list[Any], *, ended: bool) -> int:
        """How many tokens a chunk brings, as far as it shows."""
        count = max(len(ids), len(entries))
        if count > 0 or not text:
            return count
        if ended and self.answer.times:
            # The last chunk may have the end of a text that was held back, without a token.
            return 0
        return 1

    def _within_limit(self, ids: list[int], tokens_before: int) -> list[int]:
        """The ids up to the limit, of which so many tokens before them are a part."""
        room = self._limit - tokens_before
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

        The own times that llama.cpp sends with its last chunk are kept too.
        """
        timings = _llama_timings(chunk.timings)
        if timings:
            self.answer.server_times = timings
        usage = chunk.usage if isinstance(chunk.usage, dict) else {}
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
        if chunk.choices and not self.answer.finish:  # the server would go on
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
    whole = server.answer_timeout
    first = min(server.first_token_timeout, whole)
    deadline = Deadline(first, f"sent no token within {first:g} s")
    reader = AnswerReader(limit)
    answer = reader.answer
    with contextlib.closing(server.stream(body, deadline)) as chunks:
        try:
            for now, chunk in chunks:
                ids = reader.read(now, chunk)
                if on_ids is not None and ids:
                    on_ids([ids])
                if answer.cut:
                    break
                if ids:  # also after a reason to end, which some servers give in every chunk
                    deadline.extend(whole, f"did not end its answer within {whole:g} s")
                if answer.finish:
                    deadline.end_within(QUICK_SECONDS)
        except ServerFailed:
            if not answer.finish:
                raise
    if not answer.times:
        instead = f", with {', '.join(answer.left_out)} instead" if answer.left_out else ""
        raise ServerFailed(f"{server.url} answered without a token{instead}.")
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
        value = _finite(entry.get("logprob")) if isinstance(entry, dict) else None
        if value is not None:
            found.append(value)
    return found


def _first_tokens(entries: Sequence[Any], text: str, ids: list[int], count: int) -> str:
    """The text of a chunk's first tokens by its log probabilities; without them none, if ids tell
    more.
    """
    pieces = [entry.get("token") if isinstance(entry, dict) else None for entry in entries]
    if all(isinstance(piece, str) for piece in pieces) and "".join(map(str, pieces)) == text:
        return "".join(map(str, pieces[:count]))
    if ids:
        return ""
    return text


def _llama_timings(timings: Any) -> dict[str, float]:
    """llama.cpp's times of a request as a record has them; empty where they are not told."""
    if not isinstance(timings, dict):
        return {}
    times = {}
    for name, entry in (("prefill_ms", "prompt_ms"), ("decode_ms", "predicted_ms")):
        ms = timings.get(entry)
        if isinstance(ms, bool) or not isinstance(ms, int | float) or not 0 <= ms <= _MOST_MS:
            return {}
        times[name] = float(ms)
    return times


def _count(value: Any) -> int | None:
    """A number of tokens as a server tells it; None for what is none."""
    number = _finite(value)
    if number is None or number != int(number) or not 0 <= number <= 2**24:
        return None
    return int(number)


def _finite(value: Any) -> float | None:
    """A number of JSON; None for what is none, and for one that no float can hold."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None
