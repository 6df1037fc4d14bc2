"""Repeated text is found wherever it is, and tables, leaders and lists are left alone."""

import itertools
import re
from collections.abc import Sequence
from typing import Any

import pytest
from conftest import RECORD
from example_run import altered
from hypothesis import given
from hypothesis import strategies as st

from ocr_phases import PhaseRun
from ocr_phases.analyse.repetition import LIMIT_TOKENS, find_repetitions, repetition_table
from ocr_phases.record.parts import to_plain

SENTENCE = "All goods remain the property of the seller until they are paid for in full. "
IN_A_BOX = "<|ref|>text<|/ref|><|det|>[[9, {top}, 90, {top}9]]<|/det|>\n"


def split_into_tokens(text: str) -> list[str]:
    """A text in pieces as a tokenizer makes them: words of up to four letters with their space."""
    return re.findall(r"\s?\w{1,4}|\s?[^\w\s]|\s", text)


def repeated_lines(line: str, numbers: Sequence[int]) -> str:
    """A line again and again, each time with the next number in the place of ``{n}``."""
    return "".join(line.format(n=number) for number in numbers)


@given(st.integers(0, 40), st.integers(5, 60), st.integers(3, 20), st.integers(0, 40))
def test_a_repeated_block_is_found_with_its_first_time_and_its_length(
    before: int, length: int, times: int, after: int
) -> None:
    distinct_words = (" " + "".join(letters) for letters in itertools.permutations("abcdefg", 4))
    text_before = list(itertools.islice(distinct_words, before))
    block = list(itertools.islice(distinct_words, length))
    text_after = list(itertools.islice(distinct_words, after))

    found = find_repetitions(text_before + block * times + text_after)

    assert found == [(before, before + length * times, length, times)]


LOOPS_TO_THE_LIMIT = [
    pytest.param("Dear all, " + "the " * 300, 300, id="a word"),
    pytest.param("Terms. " + SENTENCE * 12, 12, id="a sentence"),
    pytest.param("开始。" + "谢谢大家的支持。" * 30, 30, id="a sentence without spaces"),
]
LOOPS_WITH_AN_END = [
    pytest.param(f"Terms. {SENTENCE * 4}And so it went on.", 4, id="a few, then recovery"),
    pytest.param(repeated_lines("{n}. " + SENTENCE, range(9, 30)), 21, id="numbered"),
    pytest.param(
        "".join(IN_A_BOX.format(top=top) + SENTENCE for top in range(12)), 12, id="in new boxes"
    ),
]


@pytest.mark.parametrize(("text", "times"), LOOPS_TO_THE_LIMIT)
def test_a_loop_that_the_limit_cuts_is_found(text: str, times: int) -> None:
    (loop,) = find_repetitions(split_into_tokens(text), cut=True)

    assert loop.times in (times - 1, times)  # a period may begin within the first block


@pytest.mark.parametrize(("text", "times"), LOOPS_WITH_AN_END)
def test_a_loop_that_ends_is_found(text: str, times: int) -> None:
    (loop,) = find_repetitions(split_into_tokens(text), cut=False)

    assert loop.times in (times - 1, times)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("<table>" + "<tr><td></td><td></td></tr>" * 60, id="empty cells"),
        pytest.param(
            "".join(f"<tr><td>Item</td><td>{n}</td><td>{n * 3.5}</td></tr>" for n in range(60)),
            id="numbers in cells",
        ),
        pytest.param("<table>" + "<tr><td>yes</td><td>no</td></tr>" * 20, id="equal cells"),
        pytest.param(
            "".join(f"Part {n} {'. ' * 70}{n * 12}\n" for n in range(1, 12)), id="dot leaders"
        ),
        pytest.param(repeated_lines("- item {n}\n", range(40)), id="a list"),
        pytest.param("Signed: " + "_" * 300, id="a line to write on"),
        pytest.param(
            "Pi is 3." + "".join(str(n * n % 97 % 10) for n in range(96)), id="many digits"
        ),
    ],
)
def test_what_repeats_correctly_is_no_finding(text: str) -> None:
    assert find_repetitions(split_into_tokens(text)) == []


def test_a_digit_without_an_end_is_a_loop() -> None:
    texts = ["It", " is", " ", *["7"] * 200]

    assert find_repetitions(texts, cut=True) == [(3, 203, 1, 200)]


def test_empty_cells_are_a_loop_where_the_limit_cuts_them_alone() -> None:
    cells = ["<td>", "</td>"] * LIMIT_TOKENS

    assert find_repetitions(cells) == []
    assert len(find_repetitions(cells, cut=True)) == 1


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(
            repeated_lines(
                "2024-05-01 12:{n:02}:07 Heartbeat of node alpha was received\n", range(60)
            ),
            id="a log",
        ),
        pytest.param(
            repeated_lines("Northfield {n}:05 Harbour Street {n}:35\n", range(24)), id="a timetable"
        ),
        pytest.param(
            "".join(f"{n}. May 9:00 to 1{n % 8}:00\n" for n in range(1, 31)), id="opening hours"
        ),
    ],
)
def test_lines_with_ever_new_times_are_no_loop_where_the_limit_cuts_them(text: str) -> None:
    assert find_repetitions(split_into_tokens(text), cut=True) == []


# -- the table of a record -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def recorded_run() -> PhaseRun:
    """A recorded measurement whose text has no loop."""
    return PhaseRun.load(RECORD)


def with_result(run: PhaseRun, texts: Sequence[str], **entries: Any) -> PhaseRun:
    """The record with these texts of its tokens, and other entries of its result."""
    result = to_plain(run.result) | {"token_texts": list(texts), "text": "".join(texts)}
    return altered(run, results=[result | entries])


def only_row(run: PhaseRun) -> dict[str, Any]:
    """The one row of a record's table of repetitions."""
    (row,) = repetition_table(run).to_dict("records")
    return row


def test_a_text_without_a_loop_has_no_row(recorded_run: PhaseRun) -> None:
    assert repetition_table(recorded_run).empty


def test_the_table_of_a_record_counts_tokens_and_their_time(recorded_run: PhaseRun) -> None:
    texts = recorded_run.result.token_texts
    block = split_into_tokens(SENTENCE)
    times = (len(texts) - 10) // len(block)
    end_of_loop = 10 + times * len(block)
    loop = with_result(recorded_run, [*texts[:10], *block * times, *texts[end_of_loop:]])

    row = only_row(loop)

    assert row["row"] == 0
    assert row["period"] == len(block)
    assert row["times"] == times
    token_ms = recorded_run.tokens["device_ms"]
    first_repeated = row["start"] + len(block)
    repeated_ms = token_ms.iloc[first_repeated : first_repeated + row["repeated"]].sum()
    assert row["decode_ms"] == pytest.approx(repeated_ms)
    assert row["share"] == pytest.approx(repeated_ms / token_ms.sum())


@pytest.mark.parametrize(
    ("end", "is_to_limit"),
    [
        pytest.param([], True, id="nothing else"),
        pytest.param(["All", " goods", " remaim", " the"], True, id="a slip"),
        pytest.param([" qu", " qu", " qu", "\n", "12", " is"], True, id="a few other words"),
        pytest.param([f" new{n}" for n in range(40)], False, id="a text of its own"),
    ],
)
def test_a_slip_at_the_very_end_hides_no_limit(
    end: list[str], is_to_limit: bool, recorded_run: PhaseRun
) -> None:
    length = len(recorded_run.result.ids)
    endless = itertools.cycle(split_into_tokens(SENTENCE))
    loop = list(itertools.islice(endless, length - len(end)))

    row = only_row(with_result(recorded_run, loop + end, finish_reason="length"))

    assert row["to_limit"] is is_to_limit


def test_after_a_short_loop_a_few_tokens_are_other_text(recorded_run: PhaseRun) -> None:
    loop = split_into_tokens("Thank you all for your kind help.") * 3
    letter_pairs = itertools.product("abcdefghijklmnopqrstuvwxyz", repeat=2)
    distinct_words = (f" a{first}{second}" for second, first in letter_pairs)
    before_length = len(recorded_run.result.ids) - len(loop) - 12
    before = list(itertools.islice(distinct_words, before_length))
    after = [f" b{letter}" for letter in "abcdefghijkl"]

    row = only_row(with_result(recorded_run, before + loop + after, finish_reason="length"))

    assert not row["to_limit"]


def test_ids_without_texts_are_not_read_as_counted_numbers(recorded_run: PhaseRun) -> None:
    length = len(recorded_run.result.ids)
    counted = list(range(10, 10 + length))

    run = with_result(recorded_run, [""] * length, ids=counted, finish_reason="length")

    assert repetition_table(run).empty


def test_ids_without_texts_that_repeat_are_a_loop(recorded_run: PhaseRun) -> None:
    length = len(recorded_run.result.ids)
    repeated = list(itertools.islice(itertools.cycle([7, 8, 9, 11]), length))

    row = only_row(with_result(recorded_run, [""] * length, ids=repeated, finish_reason="length"))

    assert row["measure"] == "exact"
    assert row["period"] == 4
