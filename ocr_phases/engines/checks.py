"""Whether a server did what was asked of it: a fresh prompt, this preset, the rule against repetition.

Checks are name, verdict and what was measured, as a record's ``live_checks`` have them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from ocr_phases.engines.answers import Answer
from ocr_phases.families import VISION_STAGES, FamilyFacts, Preset
from ocr_phases.inputs.views import image_token_count
from ocr_phases.settings import SamplingSettings
from ocr_phases.text import count_text, first_difference, ms_text

# A first token after less than this part of the first one's time and less than this many decode steps is one
# of a cached page. A server that has just started is slow at first.
_FAST, _STEPS = 0.25, 6
#: Crops of a page at most, in vLLM; the published code cuts up to 9.
_FEWER_TILES = 6
_Check = tuple[str, str, str]
#: How a page was cut: preset, grid and the number of its image tokens.
_Cut = tuple[Preset, tuple[int, int], int]


def live(name: str, verdict: str, measured: str) -> dict[str, str]:
    """A check as a record has it."""
    return {"name": name, "verdict": verdict, "measured": measured}


def read_as(answer: Answer, asked: Preset, family: FamilyFacts, size: tuple[int, int]) -> _Cut:
    """How a page of that size was cut, by the prompt's image tokens: preset, grid and their number.

    Of a server that tells neither its prompt's ids nor their number it is as asked.
    """
    presets = [asked, *(each for each in family.presets.values() if each != asked)]
    presets += [replace(each, most_tiles=_FEWER_TILES) for each in presets if each.most_tiles > _FEWER_TILES]
    ways = [(each, each.grid(*size), image_token_count(each, each.grid(*size))) for each in presets]
    if answer.prompt_ids:  # the image token is the one that most of the prompt is made of
        count = Counter(answer.prompt_ids).most_common(1)[0][1]
        return next((way for way in ways if way[2] == count), (asked, ways[0][1], count))
    fitting = [way for way in ways if way[2] < (answer.prompt_tokens or 0)]
    return max(fitting, key=lambda way: way[2], default=ways[0])


def preset_check(asked: Preset, size: tuple[int, int], read: _Cut) -> _Check:
    """Whether the server cut the page as the preset says."""
    (preset, grid, count), wanted = read, asked.grid(*size)
    if count == (expected := image_token_count(asked, wanted)):
        return "server_preset", "pass", f"{count} image tokens, as {asked.name} has"
    how = f"it cut the page as {preset.name}"
    if preset.name == asked.name:
        how += f" of at most {preset.most_tiles} crops, into {grid[0]} x {grid[1]}"
    how = "no preset has as many" if (preset.name, grid) == (asked.name, wanted) else how
    told = f"the server read {count} image tokens, {asked.name} has {expected}: {how}"
    return "server_preset", "fail", told


def own_checks(
    runs: Sequence[Answer], left_out: int, first: float, infer: SamplingSettings
) -> Iterator[_Check]:
    """What the repeats themselves show; ``first`` is the time to first token of the first answer, in ms.

    ``left_out`` is how many more there were whose tokens came together.
    """
    same = len({tuple(run.tokens[0]) for run in runs}) == 1
    told = f"{count_text(len(runs), 'repeat')}, {'equal' if same else 'different'} tokens"
    yield "repeats_agree", "pass" if same else "fail", told
    yield "fresh_prompt", *_freshness(runs, first)
    if untimed := runs[0].untimed:
        yield "token_times", "note", f"{untimed}: there is no inter-token latency"
    elif left_out:
        told = f"left out: {count_text(left_out, 'more repeat')}, with tokens that came together"
        yield "token_times", "note", told
    elif not runs[0].widest:
        came = "ids came at the end" if runs[0].ids else "the server sends no ids, so its pieces have numbers"
        yield "token_times", "note", f"chunks of text are timed: {came}"
    if size := infer.no_repeat_ngram_size:
        again = repeated(runs[0].ids, size, infer.no_repeat_ngram_window)
        told = f"token {again} repeats {size} tokens" if again else f"no {size} tokens are repeated"
        yield "repetition_rule", "fail" if again else "pass", told


def _freshness(runs: Sequence[Answer], first: float) -> tuple[str, str]:
    """Whether every repeat read its page and prompt anew."""
    if most := max(run.cached or 0 for run in runs):
        return "fail", f"a cache had {most} of {runs[0].prompt_tokens} prompt tokens"
    seen = [{stage[0] for stage in run.stages} for run in runs]
    if blind := sum(bool(stages) and stages.isdisjoint(VISION_STAGES) for stages in seen):
        return "fail", f"no vision ran in {count_text(blind, 'repeat')}: a cache had it"
    if all(seen):
        return "pass", "vision ran in every repeat"
    if all(run.cached is not None for run in runs):
        return "pass", "no prompt token came from a cache"
    fastest, steps = min(run.times[0] for run in runs), np.concatenate([np.diff(run.times) for run in runs])
    fast = fastest < _FAST * first and fastest < _STEPS * np.median(steps)
    told = f"first tokens after {ms_text(fastest)} or more, of the first request after {ms_text(first)}"
    return "fail" if fast else "pass", told


def repeated(ids: Sequence[int], size: int, window: int) -> int | None:
    """Where ``size`` ids stand that stood within the ``window`` of ids before already; None for nowhere."""
    seen: dict[tuple[int, ...], int] = {}
    for last in range(size - 1, len(ids)):
        gram = tuple(ids[last - size + 1 : last + 1])
        if gram in seen and (not window or last - seen[gram] <= window - size):
            return last
        seen[gram] = last
    return None


def prompt_check(answer: Answer, prompt: Sequence[int]) -> _Check:
    """The server's prompt beside that of the native class."""
    theirs, count = answer.prompt_ids, answer.prompt_tokens
    place = first_difference(theirs, prompt) if theirs else None
    if count == len(prompt) and place is None:
        return "server_prompt", "pass", f"{count} tokens in both"
    why = "" if place is None else f": token {place} is the first that differs"
    if theirs == prompt[1:] or (not theirs and count == len(prompt) - 1):
        why = ": the BOS at its beginning is missing"
    return "server_prompt", "fail", f"the server's prompt has {count} tokens for {len(prompt)}{why}"
