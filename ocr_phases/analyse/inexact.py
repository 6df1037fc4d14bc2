"""Loops that are not exact: slips of a letter, phrases in changing order, counting, fragments of
numbers.

`ocr_phases.analyse.repetition` looks for one period, and a single slip ends a period. What all
loops have in common is that they bring nothing new: each three words in a row were there a moment
ago. So this module walks over the words once and scores them: a triple of words that was seen
lately counts for a loop, a new one against it. Correct text, even a list or a poem with a refrain,
has more new triples than old ones.

Numbers are what correct lists, logs and calendars are made of, so they never count for a loop, and
a new number counts against one. Loops of numbers alone (counting, and fragments such as ``-3 -33
3-3``) have measures of their own.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

#: A triple of words counts as seen when it was there at most so many words ago.
MEMORY_WORDS = 600
#: The score of a new triple, and of a new number; a triple that was seen counts 1.
NEW_TRIPLE = -2.0
NEW_NUMBER = -6.0
#: The score of a new date or time of day: a log says the same again and again, and when.
NEW_STAMP = -30.0
#: The score from which a stretch is a loop: where the text ended by itself, and where the limit cut
#: it.
ENDED_SCORE = 75.0
CUT_SCORE = 36.0
#: The same for the words of a table, whose cells are often equal.
CUT_TABLE_SCORE = 300.0
#: Words of shorter cells are no sign of a loop in a table that ended.
CELL_WORDS = 4
#: How many different words a loop has at least, where the text ended and where the limit cut it: a
#: list of answers is often made of "true" and "false".
DIFFERENT_WORDS = 4
CUT_DIFFERENT_WORDS = 3
#: Numbers in a row that are counted with one step: a calendar, a year's list or a page's lines have
#: fewer.
COUNTED = 150
#: Numbers without words between them, of which only a few are different ones.
FRAGMENTS = 100
CUT_FRAGMENTS = 40
DIFFERENT_FRAGMENTS = 8

_MARKUP = re.compile(r"<\|ref\|>.*?<\|/ref\|>|<\|det\|>.*?<\|/det\|>|<[^<>]{0,500}>", re.DOTALL)
_MARKDOWN_ROW = re.compile(r"^[ \t]*\|.*$", re.MULTILINE)
_HTML_TABLE = re.compile(r"<table\b.*?(?:</table>|\Z)", re.DOTALL | re.IGNORECASE)
_CELL_END = re.compile(r"</?t[dhr]\b[^<>]*>|\||\n", re.IGNORECASE)
#: The number of a list's entry is the list's own, and says nothing new.
_ENUMERATOR = re.compile(r"^[ \t]*\(?\d{1,5}[.)](?=[ \t])", re.MULTILINE)
#: Dates, times of day and addresses: in a log they are what each line has to say.
_STAMP = r"\d+(?:[:/.-]\d+){2,}|\d+:\d+"
_UNIT = re.compile(
    rf"(?P<stamp>{_STAMP})|(?P<number>\d+(?:[.,]\d+)*)"
    r"|(?P<sign>[\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af])|(?P<word>[^\W\d_]+(?:['’][^\W\d_]+)*)"
)
#: A word of more letters is taken apart into its letters: no language has it, and a loop may be one
#: word.
_LONGEST_WORD = 40
#: In a word of so many letters one slip is forgiven.
_FORGIVING_LENGTH = 5
_NUMBER_FRAGMENT = re.compile(r"\S*\d\S*")
_COUNTED = re.compile(r"\d{1,9}(?!\d)")


class Stretch(NamedTuple):
    """Tokens ``start`` to ``stop``: what is said first, and from token ``again`` on again and
    again.
    """

    start: int
    again: int
    stop: int


class _Unit(NamedTuple):
    """A word or a number, where it begins and ends in the text, and whether it lies in a table's
    cell.
    """

    key: str
    start: int
    end: int
    is_number: bool
    cell_words: int  # 0 outside of tables


def find_inexact_loops(texts: Sequence[str], *, cut: bool = False) -> list[Stretch]:
    """The stretches of a row's tokens that bring nothing new, in order, none inside another.

    ``texts`` are the tokens' texts, or any other pieces of the text; ``cut`` says whether the token
    limit ended them, where a shorter stretch is a loop. Linear in the length of the text.
    """
    text = "".join(texts)
    spans = [*_closed_vocabulary(text, cut=cut), *_counting(text), *_fragments(text, cut=cut)]
    token_starts = list(accumulate(map(len, texts), initial=0))[:-1]
    stretches: list[Stretch] = []
    for start, again, stop in sorted(spans):
        first, repeat, last = (
            max(bisect_right(token_starts, at) - 1, 0) for at in (start, again, stop - 1)
        )
        if stretches and first < stretches[-1].stop:
            continue
        stretches.append(Stretch(first, max(repeat, first), last + 1))
    return stretches


# -- words -----------------------------------------------------------------------------------------


def _closed_vocabulary(text: str, *, cut: bool) -> Iterator[tuple[int, int, int]]:
    """Spans ``(start, again, stop)`` of characters in which nearly every triple of words was seen
    lately.
    """
    units = _units(text)
    scores, seen_at = _scores(units, cut=cut)
    for begin, end, score in _best_stretches(scores):
        at_limit = cut and end >= len(units) - 4
        in_table = units[begin].cell_words > 0
        least = ENDED_SCORE
        if at_limit:
            least = CUT_TABLE_SCORE if in_table else CUT_SCORE
        if score < least:
            continue
        # As they are written: a slip makes another word, while a list of answers has the same few
        # throughout.
        words = {
            text[unit.start : unit.end].lower() for unit in units[begin:end] if not unit.is_number
        }
        if len(words) < (CUT_DIFFERENT_WORDS if at_limit else DIFFERENT_WORDS):
            continue
        earlier = max(seen_at[begin], 0)
        yield units[earlier].start, units[begin].start, units[end - 1].end


def _units(text: str) -> list[_Unit]:
    """The words and numbers outside of markup; a word with a slip has the key of the word it stands
    for.
    """
    cells = _cell_sizes(text)
    cell_starts = [start for start, _ in cells]
    plain = _MARKUP.sub(lambda match: " " * len(match[0]), text)
    plain = _ENUMERATOR.sub(lambda match: " " * len(match[0]), plain)
    spelling = _Spelling()
    units = []
    for match in _UNIT.finditer(plain):
        place = bisect_right(cell_starts, match.start()) - 1
        cell_words = cells[place][1] if place >= 0 else 0
        written = match[0].lower()
        if match["number"] or match["stamp"]:
            units.append(
                _Unit(written, match.start(), match.end(), is_number=True, cell_words=cell_words)
            )
        elif len(written) > _LONGEST_WORD:
            for at in range(match.start(), match.end()):
                key = f"{plain[at].lower()}+"  # not the key of a letter that stands alone
                units.append(_Unit(key, at, at + 1, is_number=False, cell_words=cell_words))
        else:
            key = spelling.key(written)
            units.append(
                _Unit(key, match.start(), match.end(), is_number=False, cell_words=cell_words)
            )
    return units


def _cell_sizes(text: str) -> list[tuple[int, int]]:
    """Where each cell begins, and its number of words (at least 1); what lies outside of tables has
    0.
    """
    cells: list[tuple[int, int]] = []
    tables = [match.span() for match in _HTML_TABLE.finditer(text)]
    tables += [match.span() for match in _MARKDOWN_ROW.finditer(text)]
    for begin, end in sorted(tables):
        at = begin
        for border in _CELL_END.finditer(text, begin, end):
            cells.append((at, max(1, _count_words(text[at : border.start()]))))
            at = border.end()
        cells.append((at, max(1, _count_words(text[at:end]))))
        cells.append((end, 0))
    return cells


def _count_words(cell: str) -> int:
    return sum(1 for _ in _UNIT.finditer(_MARKUP.sub(" ", cell)))


class _Spelling:
    """Gives a word that differs in one letter from an earlier one that earlier word's key."""

    def __init__(self) -> None:
        self._keys: dict[str, str] = {}
        self._shortened: dict[str, str] = {}

    def key(self, word: str) -> str:
        if len(word) < _FORGIVING_LENGTH:
            return word
        if word in self._keys:
            return self._keys[word]
        # Two words that differ in one letter are equal once a letter is left out of each or of one.
        variants = [word, *(word[:at] + "\0" + word[at + 1 :] for at in range(len(word)))]
        variants += [word[:at] + word[at + 1 :] for at in range(len(word))]
        key = next((self._shortened[each] for each in variants if each in self._shortened), word)
        for each in variants:
            self._shortened.setdefault(each, key)
        self._keys[word] = key
        return key


def _scores(units: Sequence[_Unit], *, cut: bool) -> tuple[list[float], list[int]]:
    """What each unit says for a loop (above 0) or against it, and where its triple was seen last
    (or -1).
    """
    last_triple: dict[tuple[str, str, str], int] = {}
    last_number: dict[str, int] = {}
    scores: list[float] = []
    seen_at: list[int] = []
    for number, unit in enumerate(units):
        before = units[max(number - 2, 0) : number]
        triple = ("", "", unit.key)
        if len(before) == 2:
            triple = (before[0].key, before[1].key, unit.key)
        earlier = last_triple.get(triple, -1)
        is_seen = earlier >= 0 and number - earlier <= MEMORY_WORDS
        last_triple[triple] = number
        seen_at.append(earlier if is_seen else -1)
        if unit.is_number:
            known = number - last_number.get(unit.key, -MEMORY_WORDS - 1) <= MEMORY_WORDS
            last_number[unit.key] = number
            if known:
                scores.append(0.0)
            elif unit.key.replace(".", "").replace(",", "").isdecimal() and unit.key.count(".") < 2:
                scores.append(NEW_NUMBER)
            else:
                scores.append(NEW_STAMP)
        elif not is_seen:
            scores.append(NEW_TRIPLE)
        elif unit.cell_words and unit.cell_words < CELL_WORDS and not cut:
            scores.append(0.0)
        elif len(unit.key) == 1 and unit.key.isascii():
            scores.append(0.0)  # the letters of answers, of variables and of entries
        else:
            scores.append(1.0)
    return scores, seen_at


def _best_stretches(scores: Sequence[float]) -> Iterator[tuple[int, int, float]]:
    """Stretches ``(begin, end, score)`` whose sum of scores rises above 0 and has not fallen far
    since.

    A stretch ends at its highest sum, once the sum has fallen by `ENDED_SCORE` below it or to 0.
    """
    total = highest = 0.0
    begin = end = 0
    for number, score in enumerate(scores):
        if total == 0.0:
            begin = end = number
        total += score
        if total > highest:
            highest = total
            end = number + 1
        if total <= 0.0 or highest - total > ENDED_SCORE:
            if highest > 0.0:
                yield begin, end, highest
            total = highest = 0.0
    if highest > 0.0:
        yield begin, end, highest


# -- numbers ---------------------------------------------------------------------------------------


def _counting(text: str) -> Iterator[tuple[int, int, int]]:
    """Passages that count up or down: numbers one step apart, with the same text between each two.

    Yields for each where its first number begins, where its second one begins, and where its last
    one ends. Tables are left out: their rows may well be numbered.
    """
    plain = _HTML_TABLE.sub(lambda match: " " * len(match[0]), text)
    plain = _MARKDOWN_ROW.sub(lambda match: " " * len(match[0]), plain)
    for numbers in _evenly_spaced(plain):
        if len(numbers) >= COUNTED:
            yield numbers[0].start(), numbers[1].start(), numbers[-1].end()


def _evenly_spaced(text: str) -> Iterator[list[re.Match[str]]]:
    """The numbers of a text, in runs that have one step and the same words between their numbers.

    The last number of a run is also the first of the next.
    """
    numbers = list(_COUNTED.finditer(text))
    run = numbers[:1]
    spacing: tuple[int, str] | None = None
    for last, number in pairwise(numbers):
        step = int(number[0]) - int(last[0])
        between = " ".join(text[last.end() : number.start()].split())
        if step == 0 or (step, between) != spacing:
            yield run
            run = [last]
        spacing = (step, between)
        run.append(number)
    yield run


def _fragments(text: str, *, cut: bool) -> Iterator[tuple[int, int, int]]:
    """Spans of numbers without words between them, few of them different and most longer than a
    digit.
    """
    plain = _HTML_TABLE.sub(lambda match: "x" * len(match[0]), text)
    plain = _MARKDOWN_ROW.sub(lambda match: "x" * len(match[0]), plain)
    start = 0
    gaps = [match.span() for match in re.finditer(r"[^\W\d_]+", plain)]
    for begin, end in [*gaps, (len(plain), len(plain))]:
        found = list(_NUMBER_FRAGMENT.finditer(plain, start, begin))
        least = CUT_FRAGMENTS if cut and begin == len(plain) else FRAGMENTS
        start = end
        if len(found) < least:
            continue
        different = {match[0] for match in found}
        long = sum(len(match[0]) > 1 for match in found)
        if 1 < len(different) <= DIFFERENT_FRAGMENTS and long * 2 >= len(found):
            yield (
                found[0].start(),
                found[min(len(different), len(found) - 1)].start(),
                found[-1].end(),
            )
