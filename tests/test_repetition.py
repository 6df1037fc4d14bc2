"""Repeated text is found wherever it is, and tables, leaders and lists are left alone."""

import itertools
import re

import pytest
from conftest import RECORD
from example_run import altered
from hypothesis import given
from hypothesis import strategies as st

from ocr_phases import PhaseRun
from ocr_phases.analyse.repetition import LIMIT_TOKENS, find_repetitions, repetition_table
from ocr_phases.record.parts import to_plain

SENTENCE = "All goods remain the property of the seller until they are paid for in full. "


def tokens(text: str) -> list[str]:
    return re.findall(r"\s?\w{1,4}|\s?[^\w\s]|\s", text)


@given(st.integers(0, 40), st.integers(5, 60), st.integers(3, 20), st.integers(0, 40))
def test_a_repeated_block_is_found_with_its_first_time_and_its_length(before, length, times, after):
    words = iter(itertools.permutations("abcdefg", 4))
    first, block, last = (
        [" " + "".join(next(words)) for _ in range(n)] for n in (before, length, after)
    )
    texts = first + block * times + last
    assert find_repetitions(texts) == [(before, before + length * times, length, times)]


IN_BOXES = "<|ref|>text<|/ref|><|det|>[[9, {0}, 90, {0}9]]<|/det|>\n"
FAULTS = {
    "a word to the limit": ("Dear all, " + "the " * 300, True, 300),
    "a sentence to the limit": (f"Terms. {SENTENCE * 12}", True, 12),
    "a few, then recovery": (f"Terms. {SENTENCE * 4}And so it went on.", False, 4),
    "without spaces": ("开始。" + "谢谢大家的支持。" * 30, True, 30),
    "numbered": ("".join(f"{n}. {SENTENCE}" for n in range(9, 30)), False, 21),
    "in ever new boxes": ("".join(IN_BOXES.format(n) + SENTENCE for n in range(12)), False, 12),
}
CORRECT = {
    "empty cells": "<table>" + "<tr><td></td><td></td></tr>" * 60,
    "numbers in cells": "".join(
        f"<tr><td>Item</td><td>{n}</td><td>{n * 3.5}</td></tr>" for n in range(60)
    ),
    "equal cells": "<table>" + "<tr><td>yes</td><td>no</td></tr>" * 20,
    "dot leaders": "".join(f"Part {n} {'. ' * 70}{n * 12}\n" for n in range(1, 12)),
    "a list": "".join(f"- item {n}\n" for n in range(40)),
    "a line to write on": "Signed: " + "_" * 300,
    "many digits": "Pi is 3." + "".join(str(n * n % 97 % 10) for n in range(96)),
}


@pytest.mark.parametrize("name", FAULTS)
def test_the_forms_that_users_report(name):
    text, cut, times = FAULTS[name]
    (found,) = find_repetitions(tokens(text), cut=cut)
    assert found.times in (times - 1, times)  # a period may begin within the first block


@pytest.mark.parametrize("name", CORRECT)
def test_what_repeats_correctly_is_no_finding(name):
    assert find_repetitions(tokens(CORRECT[name])) == []


def test_a_digit_without_an_end_and_whatever_the_limit_cuts_are_loops():
    assert find_repetitions(["It", " is", " ", *"7" * 200], cut=True) == [(3, 203, 1, 200)]
    cells = ["<td>", "</td>"] * LIMIT_TOKENS
    assert find_repetitions(cells) == [] and len(find_repetitions(cells, cut=True)) == 1


def test_the_table_of_a_record_counts_tokens_and_their_time():
    run, words = PhaseRun.load(RECORD), tokens(SENTENCE)
    texts, period = run.result.token_texts, len(words)
    times = (len(texts) - 10) // period
    looping = [*texts[:10], *words * times, *texts[10 + times * period :]]
    loop = altered(
        run, results=[to_plain(run.result) | {"token_texts": looping, "text": "".join(looping)}]
    )
    (row,) = repetition_table(loop).to_dict("records")
    assert (row["row"], row["period"], row["times"]) == (0, period, times)
    spent = run.tokens["device_ms"]
    expected = spent.iloc[row["start"] + period : row["start"] + period + row["repeated"]].sum()
    assert row["decode_ms"] == pytest.approx(expected)
    assert row["share"] == pytest.approx(expected / spent.sum())
    assert repetition_table(run).empty


CUT_CORRECT = {
    "a log": "".join(
        f"2024-05-01 12:{n:02}:07 Heartbeat of node alpha was received\n" for n in range(60)
    ),
    "a timetable": "".join(f"Northfield {n}:05 Harbour Street {n}:35\n" for n in range(24)),
    "opening hours": "".join(f"{n}. May 9:00 to 1{n % 8}:00\n" for n in range(1, 31)),
}


@pytest.mark.parametrize("name", CUT_CORRECT)
def test_lines_with_ever_new_times_are_no_loop_where_the_limit_cuts_them(name):
    assert find_repetitions(tokens(CUT_CORRECT[name]), cut=True) == []


def with_tokens(texts, ids=None):
    """A record of one row that the limit cut, with these token texts in place of its own."""
    run = PhaseRun.load(RECORD)
    length = len(run.result.ids)
    shown = [*texts, *[""] * length][:length]
    said = {"token_texts": shown, "text": "".join(shown), "finish_reason": "length"}
    if ids is not None:
        said["ids"] = ids(length)
    return altered(run, results=[to_plain(run.result) | said])


@pytest.mark.parametrize(
    ("end", "to_limit"),
    [
        ([], True),
        (["All", " goods", " remaim", " the"], True),
        ([" qu"] * 3 + ["\n", "12", " is"], True),
        ([f" new{n}" for n in range(40)], False),
    ],
)
def test_a_slip_at_the_very_end_hides_no_limit(end, to_limit):
    length = len(PhaseRun.load(RECORD).result.ids)
    words = tokens(SENTENCE)
    looping = (words * length)[: length - len(end)]
    (row,) = repetition_table(with_tokens(looping + end)).to_dict("records")
    assert row["to_limit"] is to_limit


def test_after_a_short_loop_a_few_tokens_are_other_text():
    words = tokens("Thank you all for your kind help.")
    length = len(PhaseRun.load(RECORD).result.ids)
    before = [
        f" a{chr(97 + n % 26)}{chr(97 + n // 26)}" for n in range(length - 3 * len(words) - 12)
    ]
    after = [f" b{chr(97 + n)}" for n in range(12)]
    (row,) = repetition_table(with_tokens(before + words * 3 + after)).to_dict("records")
    assert not row["to_limit"]


def test_ids_without_texts_are_not_read_as_counted_numbers():
    counted = with_tokens([], ids=lambda length: list(range(10, 10 + length)))
    assert repetition_table(counted).empty
    repeated = with_tokens([], ids=lambda length: ([7, 8, 9, 11] * length)[:length])
    (row,) = repetition_table(repeated).to_dict("records")
    assert (row["measure"], row["period"]) == ("exact", 4)
