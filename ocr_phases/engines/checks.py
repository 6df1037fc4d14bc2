"""Whether a server did what was asked of it: a fresh prompt, this preset, the rule against
repetition.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from tokenizers import Tokenizer

from ocr_phases.analyse.grounding import parse_grounding
from ocr_phases.engines.answers import Answer
from ocr_phases.engines.chat import RepetitionRule
from ocr_phases.engines.vllm_worker import ENCODER_GRAPH
from ocr_phases.families import IMAGE_TAG, FamilyFacts, Preset
from ocr_phases.inputs.views import image_token_count
from ocr_phases.measure.verdicts import (
    check_that,
    failing_check,
    note_check,
    passing_check,
    unknown_check,
)
from ocr_phases.record.parts import CheckPart
from ocr_phases.stages import VISION_STAGES
from ocr_phases.text import count_text, first_difference, ms_text
from ocr_phases.versions import asset

#: A first token after less than this part of the first one's time, and after less than this many
#: decode steps, is one of a cached page. A server that has just started is slow at first.
_FAST = 0.25
_STEPS = 6
#: By how many tokens a prompt's text may be longer or shorter than the built-in tokenizer counts: a
#: served model has another vocabulary, and perhaps a chat template.
_TEXT_TOKENS_OFF = 16


class CutPage(NamedTuple):
    """How a server cut a page: the preset, its image tokens (None where nobody knows them), and the
    check whether that was asked for.
    """

    preset: Preset
    image_tokens: int | None
    check: CheckPart


def how_page_was_cut(
    answer: Answer, asked: Preset, family: FamilyFacts, prompt: str, width: int, height: int
) -> CutPage:
    """How a server cut a page of that width and height, and whether that is as asked.

    The ids of the prompt tell it. Without them the prompt's length tells it, where that is one
    preset's image tokens and about as many tokens as ``prompt`` has. A server that tells neither is
    taken to do as asked, which the check then does not confirm. The image tokens of a model of
    unknown family are None.
    """
    name = "server_preset"
    if family.is_unknown:
        reason = "the model's family is unknown, and so are its presets"
        return CutPage(asked, None, unknown_check(name, reason))
    ways = _ways(asked, family, width, height)
    expected = image_token_count(asked, asked.grid(width, height))
    length = answer.usage.get("prompt_tokens")
    if answer.prompt_ids:  # the image token is the one that most of the prompt is made of
        count = Counter(answer.prompt_ids).most_common(1)[0][1]
        how = f"the server read {count} image tokens, {asked.name} has {expected}"
    elif isinstance(length, int) and length > 0:
        text = text_token_count(prompt)
        rest = max(0, length - text)
        count = rest
        likely = min(ways, key=lambda tokens: abs(tokens - rest))
        if likely < length and abs(likely - rest) <= _TEXT_TOKENS_OFF:
            count = likely
        how = (
            f"the server's prompt has {length} tokens, about {text} of them text, "
            f"which leaves about {rest} for the image; {asked.name} has {expected}"
        )
    else:
        reason = "the server tells neither the prompt's tokens nor how many they are"
        return CutPage(asked, expected, unknown_check(name, reason))
    if count == expected:
        measured = f"{count} image tokens, as {asked.name} has"
        return CutPage(asked, count, passing_check(name, measured))
    if count not in ways:
        return CutPage(asked, count, failing_check(name, f"{how}: no preset has as many"))
    preset = ways[count]
    columns, rows = preset.grid(width, height)
    measured = f"{how}: it cut the page as {preset.name}, into {columns} x {rows}"
    return CutPage(preset, count, failing_check(name, measured))


def _ways(asked: Preset, family: FamilyFacts, width: int, height: int) -> dict[int, Preset]:
    """The ways to cut a page of that size by their image tokens; of equal ones the first, ``asked``
    first.
    """
    presets = [asked, *family.presets.values()]
    # vLLM cuts a page into at most 6 crops, the published code into up to 9.
    presets += [replace(each, most_tiles=6) for each in presets if each.most_tiles > 6]
    ways: dict[int, Preset] = {}
    for preset in presets:
        ways.setdefault(image_token_count(preset, preset.grid(width, height)), preset)
    return ways


def text_token_count(prompt: str) -> int:
    """About how many tokens a prompt has without its image, with the BOS; by the built-in
    tokenizer.
    """
    tokenizer = Tokenizer.from_file(str(asset("data", "tiny") / "tokenizer.json"))
    return 1 + len(tokenizer.encode(prompt.replace(IMAGE_TAG, ""), add_special_tokens=False).ids)


def own_checks(
    runs: list[Answer],
    more: int,
    first: float,
    rule: RepetitionRule | None = None,
    limit: int | None = None,
    *,
    vision_is_hidden: bool = False,
) -> Iterator[CheckPart]:
    """What the repeats themselves show.

    Parameters
    ----------
    runs : list of Answer
        The answers that the record has.
    more : int
        How many repeats are left out of it, because their tokens came together.
    first : float
        The time to first token of the first answer of all, in ms.
    rule : RepetitionRule, optional
        The rule against repetition that was asked for.
    limit : int, optional
        The most tokens that were asked for.
    vision_is_hidden : bool, default False
        Whether vision runs in graphs whose replays nobody times, so that a missing stage of vision
        shows nothing.
    """
    yield _fresh_prompt(runs, first, vision_is_hidden=vision_is_hidden)
    token_times = _token_times(runs[0], more)
    if token_times is not None:
        yield token_times
    if limit is not None and any(run.cut for run in runs):
        yield failing_check(
            "token_limit", f"the server went on after the limit of {limit:,} tokens"
        )
    if rule is not None:
        yield _repetition_rule(runs[0], rule)


def _repetition_rule(answer: Answer, rule: RepetitionRule) -> CheckPart:
    """Whether an answer has a run of tokens that the rule forbids.

    An answer without one does not show whether the rule was applied or never needed.
    """
    name = "repetition_rule"
    if not answer.ids:
        return unknown_check(name, "the server sends no token ids")
    # The ids from each place on, side by side: a row is the run that begins at its place.
    shifted = [answer.ids[place:] for place in range(rule.size)]
    runs = pd.Series(zip(*shifted, strict=False), dtype=object)
    if runs.empty:
        return unknown_check(name, f"{len(answer.ids)} tokens have no run of {rule.size}")
    distance = runs.index.to_series().groupby(runs).diff()
    furthest = math.inf if rule.window is None else rule.window - rule.size
    repeated = distance <= furthest
    if rule.allowed:
        repeated &= ~runs.map(lambda run: run[-1] in rule.allowed)
    count = int(repeated.sum())
    measured = f"{count} of {len(runs)} runs of {rule.size} tokens were there before"
    return check_that(not count, name, measured)


def tags_check(text: str, family: FamilyFacts) -> CheckPart | None:
    """Whether regions were read from lines without tags; None where they were not."""
    grounding = parse_grounding(text, family.name)
    if not grounding.without_tags:
        return None
    regions = count_text(len(grounding.regions), "region")
    return note_check(
        "region_tags",
        f"the server left the tags of regions out: {regions} read from lines such as "
        "label[[x1, y1, x2, y2]]",
    )


def engine_check(engine: str, engine_source: str) -> CheckPart | None:
    """What is lost where nothing tells the server's engine; None where something does."""
    if engine != "other" or engine_source != "unknown":
        return None
    return note_check(
        "server_engine",
        "no path of the server tells its engine, as behind a proxy that shows only /v1: token "
        "ids, the tags of regions, a fresh cache and rules against repetition are not asked for",
    )


def _token_times(answer: Answer, more: int) -> CheckPart | None:
    """Whether each token has a time of its own; None where there is nothing to say of that.

    There were ``more`` repeats whose tokens came together.
    """
    name = "token_times"
    if answer.left_out:
        names = ", ".join(answer.left_out)
        return failing_check(
            name, f"the server sent {names}, which is no text: it is left out, and so is its time"
        )
    if answer.untimed:
        return failing_check(name, f"{answer.untimed}: there is no inter-token latency")
    if answer.token_count is None:
        pieces = count_text(len(answer.times), "piece")
        return note_check(
            name,
            "the server tells neither ids nor how many tokens it made: "
            f"at least {pieces}, no rates",
        )
    if more:
        repeats = count_text(more, "more repeat")
        return note_check(name, f"left out: {repeats}, with tokens that came together")
    if not answer.ids_with_pieces:
        reason = "the server sends no ids, so its pieces have numbers"
        if answer.ids:
            reason = "ids came at the end"
        return note_check(name, f"chunks of text are timed: {reason}")
    return None


def _step_times(run: Answer) -> list[float]:
    """The times between the tokens of an answer in ms; their mean where several came in a chunk."""
    if run.timed or run.token_count is None:
        return np.diff(run.times).tolist()
    if run.token_count < 2:
        return []
    return [(run.times[-1] - run.times[0]) / (run.token_count - 1)]


def graphs_check(settings: Mapping[str, Any]) -> CheckPart | None:
    """Whether the stages of vision are hidden in CUDA graphs; None where vLLM replays none."""
    if not settings.get("cudagraph_mm_encoder"):
        return None
    if settings.get("encoder_graphs_timed"):
        measured = "vLLM replays vision as CUDA graphs: their whole time is the stage encoder_graph"
    else:
        measured = "vLLM replays vision as CUDA graphs, and this version's replays are not timed"
    return note_check("encoder_graphs", measured)


def _fresh_prompt(
    runs: Sequence[Answer], first: float, *, vision_is_hidden: bool = False
) -> CheckPart:
    """Whether every repeat read its page and prompt anew.

    ``first`` is the time to first token of the first answer of all, in ms. Without
    ``vision_is_hidden`` a repeat whose worker ran no vision had its page in a cache.
    """
    name = "fresh_prompt"
    cached_tokens = [run.usage.get("cached_tokens") for run in runs]
    most_cached = max(cached or 0 for cached in cached_tokens)
    if most_cached:
        prompt = runs[0].usage.get("prompt_tokens", "the")
        return failing_check(name, f"a cache had {most_cached} of {prompt} prompt tokens")
    vision = {*VISION_STAGES, ENCODER_GRAPH}
    stages_of_runs = [{stage[0] for stage in run.stages} for run in runs]
    if vision_is_hidden:
        stages_of_runs = [set() for _ in runs]
    blind = [stages for stages in stages_of_runs if stages and stages.isdisjoint(vision)]
    if blind:
        repeats = count_text(len(blind), "repeat")
        return failing_check(name, f"no vision ran in {repeats}: a cache had it")
    if all(stages_of_runs):
        return passing_check(name, "vision ran in every repeat")
    if all(cached is not None for cached in cached_tokens):
        return passing_check(name, "no prompt token came from a cache")
    fastest = min(run.times[0] for run in runs)
    steps: list[float] = []
    for run in runs:
        steps += _step_times(run)
    measured = (
        f"first tokens after {ms_text(fastest)} or more, "
        f"of the first request after {ms_text(first)}"
    )
    is_fast = bool(steps) and fastest < _FAST * first
    if is_fast and fastest < _STEPS * float(np.median(steps)):
        return failing_check(name, measured)
    return passing_check(name, measured)


def prompt_check(answer: Answer, prompt: Sequence[int]) -> CheckPart:
    """The server's prompt beside that of the native class."""
    server_ids = answer.prompt_ids
    count = answer.usage.get("prompt_tokens")
    difference = ""
    if server_ids:
        place = first_difference(server_ids, prompt)
        if place is not None:
            difference = f": token {place} is the first that differs"
        lacks_bos = server_ids == prompt[1:]
    else:
        lacks_bos = count == len(prompt) - 1
    if lacks_bos:
        difference = ": the BOS at its beginning is missing"
    return check_that(
        not difference and count == len(prompt),
        "server_prompt",
        f"{count} tokens in both",
        f"the server's prompt has {count} tokens for {len(prompt)}{difference}",
    )
