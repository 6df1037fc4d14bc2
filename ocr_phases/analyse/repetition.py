"""Repeated text: this family's best-known fault is a loop of the same words up to the token limit.

Text repeats in three forms: a word to the limit, a block of some hundred tokens again and again,
and a few repetitions before the model recovers. All are runs of one period, found here from a
record's tokens alone. Loops with slips, which have no period, are found by
`ocr_phases.analyse.inexact`; the table has both.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
import pandas as pd

from ocr_phases.analyse.inexact import Stretch, find_inexact_loops
from ocr_phases.analyse.stages import cached, tokens_of
from ocr_phases.record import Record
from ocr_phases.record.parts import ResultPart
from ocr_phases.text import count_text, percent_text

REPETITION_COLUMNS = (
    "row",
    "measure",
    "start",
    "period",
    "times",
    "repeated",
    "decode_ms",
    "share",
    "to_limit",
    "text",
)

#: Exact runs that make up so much of an inexact loop say all that there is to say about it.
_EXACT_ENOUGH = 0.8

#: The longest block, in units of `_units`; each period is looked for in one pass over the tokens.
LONGEST_PERIOD = 512
#: What the token limit cuts is a loop from so many tokens and times on, whatever it says.
LIMIT_TOKENS = 48
LIMIT_TIMES = 4
#: A slip in the last words hides the end of a loop: at most so many tokens may follow, or this part
#: of it.
LIMIT_TOLERANCE_TOKENS = 16
LIMIT_TOLERANCE = 0.25


class _Rule(NamedTuple):
    """A block of so many words outside of markup, so many times, is a fault; both at least."""

    words: int
    times: int


# Tables, dot leaders and lists repeat too, and correctly. Any of these rules makes a fault of a
# block, by whether it is the same each time, or has other numbers and boxes.
_RULES_OF_SAME = (_Rule(words=5, times=3), _Rule(words=1, times=16))
_RULES_OF_SAME_IN_TABLE = (_Rule(words=12, times=3), _Rule(words=1, times=64))
_RULES_OF_OTHERS = (_Rule(words=8, times=4),)
_RULES_OF_OTHERS_IN_TABLE = (_Rule(words=16, times=4),)

_MARKUP = re.compile(r"<\|ref\|>.*?<\|/ref\|>|<[^<>]*>", re.DOTALL)
#: A word, or a character of a script that writes without spaces.
_WORD = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af]|[^\W\d_]+")
#: A box, or a number of at most 15 digits; an id without a text is written ``<id>``, and is none.
_VARIES = re.compile(r"<\|det\|>[^<]*<\|/det\|>|(?<![<\d])\d{1,15}(?!\d)(?:[.,]\d{1,15}(?!\d))*")
_CLOCK = re.compile(r"\d:\d\d")


class Repetition(NamedTuple):
    """Tokens ``start`` to ``stop`` say a block of ``period`` tokens ``times`` times, the last
    perhaps cut.
    """

    start: int
    stop: int
    period: int
    times: int

    @property
    def repeated(self) -> int:
        """The tokens behind the first time."""
        return self.stop - self.start - self.period


def find_repetitions(texts: Sequence[str], *, cut: bool = False) -> list[Repetition]:
    """The repeated runs among a row's tokens, in order, none inside another.

    ``texts`` are the tokens' texts, ``cut`` says whether the token limit ended them. Numbers and
    boxes of a block may differ from time to time. The shortest period counts. Linear in the number
    of tokens.
    """
    firsts, keys = _units(texts)
    bounds = np.append(firsts, len(texts))
    repetitions: list[Repetition] = []
    # Of each unit the shortest period that it lies in so far, 0 for none, and whether it is part of
    # a repetition.
    shortest = np.zeros(len(keys), dtype=np.int64)
    is_taken = np.zeros(len(keys), dtype=bool)
    for period in range(1, min(LONGEST_PERIOD, len(keys) // 2) + 1):
        for begin, end in _periodic(keys, period):
            known_periods = shortest[begin:end]
            is_multiple = (known_periods > 0).all() and not (period % known_periods).any()
            if is_multiple or is_taken[begin:end].mean() > 0.5:
                continue
            known_periods[known_periods == 0] = period  # a view: this changes ``shortest``
            places = bounds[begin : end + 1 : period].tolist()
            blocks = ["".join(texts[first:last]) for first, last in pairwise(places)]
            run = Repetition(places[0], int(bounds[end]), places[1] - places[0], len(blocks))
            if _is_fault(blocks, run, at_limit=cut and run.stop == len(texts)):
                repetitions.append(run)
                is_taken[begin:end] = True
    return sorted(repetitions)


@cached
def repetition_table(run: Record) -> pd.DataFrame:
    """One row a repeated run of any batch row, columns `REPETITION_COLUMNS`.

    ``row`` counts from 0, ``measure`` says how the run was found: ``exact``, by its period, or
    ``inexact``, because it says nothing new. ``start`` is the index of the first token, ``period``
    the tokens of the block (of an inexact run, those before it begins again), ``times`` how often
    it is there (missing for an inexact run, whose block changes), ``repeated`` the tokens behind
    the first time and ``decode_ms`` their time, ``share`` of the row's decode (NaN without decode
    steps). ``to_limit`` says that the token limit ended it, ``text`` is the block.
    """
    rows: list[dict[str, object]] = []
    for row, result in enumerate(run.results):
        ended = result.finish_reason == "eos"
        cut = not ended and result.finish_reason != "unknown"  # a server need not say why it ended
        texts = _named_texts(result)
        if ended:
            texts = texts[:-1]
        times = tokens_of(run, row)["device_ms"]
        row_ms = times.sum()
        written = result.token_texts[: len(texts)]
        for repetition in _all_repetitions(texts, written, cut=cut):
            again = repetition.start + repetition.period
            repeated_ms = float(times.iloc[again : repetition.stop].sum())
            rows.append(
                {
                    "row": row,
                    "measure": "exact" if repetition.times else "inexact",
                    "start": repetition.start,
                    "period": repetition.period,
                    "times": repetition.times or pd.NA,
                    "repeated": repetition.repeated,
                    "decode_ms": repeated_ms,
                    "share": repeated_ms / row_ms if row_ms else np.nan,
                    "to_limit": cut and _reaches_end(repetition, len(texts)),
                    "text": "".join(texts[repetition.start : again]),
                }
            )
    table = pd.DataFrame(rows, columns=list(REPETITION_COLUMNS))
    return table.astype({"times": "Int64"})


def _named_texts(result: ResultPart) -> list[str]:
    """The texts of a row's tokens; a token without a text of its own is named by its id.

    Of the tokens that make one character together, the last one has its text.
    """
    texts = []
    for token, text in zip(result.ids, result.token_texts, strict=True):
        is_part = text.strip("\ufffd") == ""
        texts.append(f"<{token}>" if is_part else text)
    return texts


def _reaches_end(run: Repetition, length: int) -> bool:
    """Whether a run goes on to the end of a row of so many tokens, but for a slip in its last
    words.
    """
    tolerance = min(LIMIT_TOLERANCE_TOKENS, int(run.repeated * LIMIT_TOLERANCE))
    return length - run.stop <= tolerance


def _all_repetitions(
    texts: Sequence[str], written: Sequence[str], *, cut: bool
) -> list[Repetition]:
    """Exact runs and inexact loops in order, no token in two of them; an inexact loop has 0
    ``times``.

    ``texts`` name a token without a text by its id, which tells exact runs apart. In ``written`` it
    has none, because the inexact search would read the ids as numbers that are counted.
    """
    exact = find_repetitions(texts, cut=cut)
    inexact: list[Repetition] = []
    for loop in find_inexact_loops(written, cut=cut):
        inside = [run for run in exact if run.start < loop.stop and run.stop > loop.start]
        covered = sum(min(run.stop, loop.stop) - max(run.start, loop.start) for run in inside)
        if covered >= _EXACT_ENOUGH * (loop.stop - loop.start):
            continue
        exact = [run for run in exact if run not in inside]
        inexact.append(_widened(loop, inside))
    return sorted([*inexact, *exact])


def _widened(loop: Stretch, inside: Sequence[Repetition]) -> Repetition:
    """An inexact loop that reaches over the exact runs which it overlaps."""
    start = min([loop.start, *(run.start for run in inside)])
    stop = max([loop.stop, *(run.stop for run in inside)])
    again = min([loop.again, *(run.start + run.period for run in inside)])
    return Repetition(start, stop, again - start, 0)


def repeated_share(run: Record) -> float:
    """The part of the decode time that repeated words took, 0 to 1; of a batch, of all its rows'
    times.

    It is 0 where the weights are random: that text is noise, and no model repeats itself.
    """
    if run.has_random_weights:
        return 0.0
    table = repetition_table(run)
    has_words = table["text"].map(_count_words) > 0
    worded = table[has_words | (table["measure"] == "inexact")]
    times = sum(tokens_of(run, row)["device_ms"].sum() for row in range(len(run.results)))
    return float(worded["decode_ms"].sum() / times) if times else 0.0


def loops_sentence(table: pd.DataFrame, what: str) -> str:
    """How many pages or cells (``what``) loop, and what that takes of all decode time; empty for
    none.

    ``table`` has the `repeated_share` of each, NaN where no text ends, and its ``decode_ms``.
    """
    known = table[["repeated_share", "decode_ms"]].dropna()
    loops = int((known["repeated_share"] > 0).sum())
    if loops == 0:
        return ""
    shares = known["repeated_share"].to_numpy()
    times = known["decode_ms"].to_numpy()
    of_all_time = percent_text(float(shares @ times / times.sum()))
    verb = "loops" if loops == 1 else "loop"
    return f"{loops:,} of {count_text(len(known), what)} {verb}; {of_all_time} of the decode time."


def _units(texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    """What is compared: the first token of each unit, and a number for what it says.

    A unit is a token; a number or a box is one, however many tokens it takes and whatever it says.
    """
    starts = list(accumulate(map(len, texts), initial=0))
    # Of each character, whether a number or a box begins there or goes on there.
    begins = np.zeros(starts[-1] + 1, dtype=bool)
    goes_on = np.zeros(starts[-1] + 1, dtype=bool)
    for varying in _VARIES.finditer("".join(texts)):
        begins[varying.start()] = True
        goes_on[varying.start() + 1 : varying.end()] = True
    firsts = [number for number, start in enumerate(starts[:-1]) if not goes_on[start]]
    contents = []
    for first, end in pairwise([*firsts, len(texts)]):
        content = "".join(texts[first:end])
        if begins[starts[first] : starts[end]].any():
            content = _VARIES.sub("0", content)
        contents.append(content)
    numbers, _ = pd.factorize(np.array(contents, dtype=object))
    return np.array(firsts, dtype=np.int64), numbers


def _periodic(keys: np.ndarray, period: int) -> Iterator[tuple[int, int]]:
    """The longest stretches in which every unit equals the one ``period`` before it, three times or
    more.
    """
    same = np.concatenate([[False], keys[period:] == keys[:-period], [False]])
    begins, ends = np.flatnonzero(same[1:] != same[:-1]).reshape(-1, 2).T
    for begin, end in zip(begins, ends, strict=True):
        if end - begin >= 2 * period:
            yield int(begin), int(end) + period


def _is_fault(blocks: Sequence[str], run: Repetition, *, at_limit: bool) -> bool:
    """Whether the blocks of a run are a fault of the model, and not a list or a table."""
    are_same = len({" ".join(block.split()) for block in blocks}) == 1
    if not are_same and all(_CLOCK.search(block) for block in blocks):
        return False  # a log says the same again, and when, also where the limit cuts it
    if at_limit and run.times >= LIMIT_TIMES and run.stop - run.start >= LIMIT_TOKENS:
        return True
    words = _count_words(blocks[0])
    rules = _rules_of(are_same, in_table="<td" in blocks[0])
    return any(words >= rule.words and run.times >= rule.times for rule in rules)


def _rules_of(are_same: bool, *, in_table: bool) -> tuple[_Rule, ...]:
    """The rules for blocks that are the same each time or are not, in a table or outside."""
    if are_same:
        return _RULES_OF_SAME_IN_TABLE if in_table else _RULES_OF_SAME
    return _RULES_OF_OTHERS_IN_TABLE if in_table else _RULES_OF_OTHERS


def _count_words(block: str) -> int:
    """How many words a block has outside of markup."""
    return len(_WORD.findall(_MARKUP.sub(" ", block)))
