"""Whether a server did what was asked of it: a fresh prompt, this preset, the rule against repetition."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ocr_phases.engines.answers import Answer
from ocr_phases.families import FamilyFacts, Preset
from ocr_phases.inputs.views import image_token_count
from ocr_phases.settings import SamplingSettings
from ocr_phases.text import count_text, first_difference, ms_text

FLAGS = "--no-enable-prefix-caching --mm-processor-cache-gb 0"
PROCESSOR = "vllm.model_executor.models.deepseek_ocr:NGramPerReqLogitsProcessor"
# A first token after less than this part of the first one's time may be of a cached page; one after less than
# this many decode steps is. A server that has just started is slow at first.
_FAST, _STEPS = 0.25, 6
#: Crops of a page at most, in vLLM; the published code cuts up to 9.
_FEWER_TILES = 6
_Check = dict[str, str]


def check(name: str, verdict: str, measured: str) -> _Check:
    """A live check, as a record has it."""
    return {"name": name, "verdict": verdict, "measured": measured}


def read_as(
    answer: Answer, asked: Preset, family: FamilyFacts, size: tuple[int, int]
) -> tuple[Preset, tuple[int, int], int]:
    """How a page of that size was cut, by the prompt's image tokens: preset, grid and their number.

    Of a server that tells neither its prompt's ids nor their number it is as asked.
    """
    presets = [asked, *(each for each in family.presets.values() if each != asked)]
    presets += [replace(each, most_tiles=_FEWER_TILES) for each in presets if each.most_tiles > _FEWER_TILES]
    ways = [(each, each.grid(*size), image_token_count(each, each.grid(*size))) for each in presets]
    if answer.prompt_ids:  # the image token is the one that most of the prompt is made of
        count = Counter(answer.prompt_ids).most_common(1)[0][1]
        return next((way for way in ways if way[2] == count), (asked, asked.grid(*size), count))
    fitting = [way for way in ways if way[2] < (answer.prompt_tokens or 0)]
    return max(fitting, key=lambda way: way[2], default=ways[0])


def preset_check(asked: Preset, size: tuple[int, int], read: tuple[Preset, tuple[int, int], int]) -> _Check:
    """Whether the server cut the page as the preset says."""
    preset, grid, count = read
    wanted = asked.grid(*size)
    expected = image_token_count(asked, wanted)
    if count == expected:
        return check("server_preset", "pass", f"{count} image tokens, as {asked.name} has")
    if (preset.name, grid) == (asked.name, wanted):
        told = f"the server read {count} image tokens, {asked.name} has {expected}, and no preset has as many"
        return check("server_preset", "fail", told)
    how = f"as {preset.name}" if preset.name != asked.name else f"into {grid[0]} x {grid[1]} crops"
    told = f"the server read {count} image tokens, {asked.name} has {expected}: it cut the page {how}"
    if preset.name == asked.name:
        told += f" (at most {preset.most_tiles}) in place of {wanted[0]} x {wanted[1]}"
    return check("server_preset", "fail", told)


def own_checks(
    answers: Sequence[Answer], first: float, infer: SamplingSettings, blind: int, watched: bool, left_out: int
) -> Iterator[_Check]:
    """What the answers themselves show; ``first`` is the time to first token of the first of all, in ms.

    ``blind`` is how many repeats had a worker that saw no vision; ``watched`` whether all had a worker.
    ``left_out`` is how many answers were asked for again, as their tokens came together.
    """
    same = len({tuple(answer.tokens[0]) for answer in answers}) == 1
    told = f"{count_text(len(answers), 'repeat')}, {'equal' if same else 'different'} tokens"
    yield check("repeats_agree", "pass" if same else "fail", told)
    cached = [answer.cached for answer in answers]
    fastest = min(answer.times[0] for answer in answers)
    if any(cached):
        most = max(count or 0 for count in cached)
        yield check("fresh_prompt", "fail", f"a cache had {most} of {answers[0].prompt_tokens} prompt tokens")
    elif blind:
        yield check("fresh_prompt", "fail", f"no vision ran in {count_text(blind, 'repeat')}: a cache had it")
    elif watched or None not in cached:
        told = "vision ran in every repeat" if watched else "no prompt token came from a cache"
        yield check("fresh_prompt", "pass", told)
    else:
        told = f"first tokens after {ms_text(fastest)} or more, of the first request after {ms_text(first)}"
        short = fastest < _STEPS * np.median([each for answer in answers for each in np.diff(answer.times)])
        verdict = ("note", "fail")[bool(short)] if fastest < _FAST * first else "pass"
        yield check("fresh_prompt", verdict, told)
    if untimed := next(filter(None, (answer.untimed for answer in answers)), ""):
        yield check("token_times", "note", f"{untimed}: there is no inter-token latency")
    elif left_out:
        told = f"left out: {count_text(left_out, 'more answer')}, with tokens that came together"
        yield check("token_times", "note", told)
    elif not any(answers[0].sizes):
        what = (
            "ids came at the end" if answers[0].ids else "the server sends no ids, so its pieces have numbers"
        )
        yield check("token_times", "note", f"chunks of text are timed: {what}")
    if size := infer.no_repeat_ngram_size:
        again = repeated(answers[0].ids, size, infer.no_repeat_ngram_window)
        told = f"token {again} repeats {size} tokens" if again else f"no {size} tokens are repeated"
        yield check("repetition_rule", "fail" if again else "pass", told)


def repeated(ids: Sequence[int], size: int, window: int) -> int | None:
    """Where ``size`` ids stand that stood within the ``window`` of ids before already; None for nowhere."""
    seen: dict[tuple[int, ...], int] = {}
    for end in range(size, len(ids) + 1):
        gram = tuple(ids[end - size : end])
        if gram in seen and (not window or end - 1 - seen[gram] <= window - size):
            return end - 1
        seen[gram] = end - 1
    return None


def compared(answer: Answer, ids: list[int], prompt: list[int], dtype: str) -> Iterator[_Check]:
    """The server's prompt and tokens beside those of the native class, ``prompt`` and ``ids``."""
    ours, theirs = answer.ids, answer.prompt_ids or []
    count = answer.prompt_tokens
    if count == len(prompt) and theirs in ([], prompt):
        yield check("server_prompt", "pass", f"{len(prompt)} tokens in both")
    else:
        told = f"the server's prompt has {count} tokens for {len(prompt)}"
        if theirs == prompt[1:] or (not theirs and count == len(prompt) - 1):
            told += ": the BOS at its beginning is missing"
        elif (place := first_difference(theirs, prompt)) is not None and theirs:
            told += f": token {place} is the first that differs"
        yield check("server_prompt", "fail", told)
    place = first_difference(ours, ids) if ours else 0
    if not ours:
        yield check("parity", "n/a", "the server sends no token ids")
    elif place is None:
        yield check("parity", "pass", f"{count_text(len(ids), 'token')} equal")
    else:
        pair: Any = [row[place] if place < len(row) else "no more" for row in (ours, ids)]
        told = f"token {place} of {len(ours)} is the first that differs ({pair[0]}, native class: {pair[1]})"
        low = dtype != "float32"  # where a tie may fall either way
        yield check(
            "parity", "note" if low else "fail", f"{told}; the native class ran in {dtype}" * low or told
        )
