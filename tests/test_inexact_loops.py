"""Loops with slips are found in texts of many kinds, and correct texts that repeat are left
alone.
"""

import calendar
import json
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from conftest import RECORD
from example_run import altered
from hypothesis import given
from hypothesis import strategies as st

from ocr_phases import PhaseRun
from ocr_phases.analyse.checks import checks_table
from ocr_phases.analyse.inexact import find_inexact_loops
from ocr_phases.analyse.repetition import find_repetitions, repeated_share, repetition_table
from ocr_phases.record.parts import to_plain

ROOT = Path(__file__).parents[1]
TERMS = (
    "All goods remain the property of the seller until they are paid for in full and no claim is "
    "possible"
)
PHRASES = [
    "total amount due,",
    "please pay promptly,",
    "thank you for your order,",
    "see the terms overleaf,",
]
CHINESE = ["谢谢大家的支持。", "请在三十天内付款。"]
NOUNS = re.findall(
    r"\w+",
    "harbour street market river station council winter garden letter morning window account paper "
    "bridge school engine silver border copper farmer library teacher summer island doctor kitchen "
    "village factory forest captain theatre pocket mirror bottle candle basket ladder hammer "
    "blanket pencil ticket dinner",
)
SMALL_WORDS = re.findall(r"\w+", "the of and a to in is was for on with by from at")
REFRAIN = (
    "And still the river runs below,\nand still the lanterns swing,\nand nobody will ever know.\n"
)
WEEKDAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday"
MONTHS = [calendar.month_name[number] for number in range(1, 13)]


def tokens(text: str) -> list[str]:
    """The text in pieces of a few letters, as a tokenizer cuts it."""
    return re.findall(r"\s?\w{1,4}|\s?[^\w\s]|\s", text)


class Chance(random.Random):
    """A source of chance that draws words, and the same ones every time."""

    def noun(self) -> str:
        return self.choice(NOUNS)


def prose(count: int, seed: int = 1) -> str:
    """So many words in no order."""
    chance = Chance(seed)
    return " ".join(chance.choice(NOUNS + SMALL_WORDS) for _ in range(count))


def cells(*texts: str) -> str:
    """A row of a table."""
    columns = "".join(f"<td>{text}</td>" for text in texts)
    return f"<tr>{columns}</tr>"


# -- loops -----------------------------------------------------------------------------------------


def with_slips(line: str, count: int, chance_of_slip: float) -> list[str]:
    """The line again and again, often with a letter that is wrong, missing or too many."""
    chance = random.Random(line)
    lines = []
    for _ in range(count):
        place = chance.randrange(len(line))
        written = chance.choice(["", "e", line[place] + "r"])
        if chance.random() < chance_of_slip:
            lines.append(line[:place] + written + line[place + 1 :])
        else:
            lines.append(line)
    return lines


def in_any_order(phrases: list[str], count: int) -> list[str]:
    """So many of these phrases."""
    chance = random.Random(str(phrases))
    return [chance.choice(phrases) for _ in range(count)]


def one_word_off(block: str, count: int) -> list[str]:
    """The block again and again, each time with another word in one place."""
    chance = random.Random(block)
    blocks = []
    for _ in range(count):
        words = block.split()
        words[chance.randrange(len(words))] = chance.choice(words)
        blocks.append(" ".join(words))
    return blocks


def numbered_slips() -> str:
    lines = with_slips("Harbour Street Northfield", 60, 0.6)
    return "\n".join(f"{number}. {line}" for number, line in enumerate(lines))


def slips_in_boxes() -> str:
    text = ""
    for number, line in enumerate(with_slips("Marina Workshop opens daily at noon", 30, 0.6)):
        box = f"[[{number}, {number}, 90, {number}9]]"
        text += f"<|ref|>text<|/ref|><|det|>{box}<|/det|>\n{line}\n"
    return text


def slips_in_rows() -> str:
    lines = with_slips("Marina Workshop", 200, 0.4)
    return "<table>" + "".join(cells(line, "12.50") for line in lines)


@dataclass(frozen=True)
class Loop:
    """A text that is a loop to its end, and whether the token limit cut it."""

    text: str
    cut: bool = False


LOOPS = {
    "slips in short lines": Loop("\n\n".join(with_slips("Marina Workshop", 60, 0.6)), cut=True),
    "slips in short lines, ended": Loop("\n\n".join(with_slips("Marina Workshop", 120, 0.5))),
    "slips in sentences": Loop(
        " ".join(with_slips("Payment is due within thirty days of receipt.", 40, 0.8)), cut=True
    ),
    "slips in Russian": Loop(
        "\n".join(with_slips("Оплата производится в течение тридцати дней", 40, 0.7)), cut=True
    ),
    "slips in a numbered list": Loop(numbered_slips()),
    "slips in boxes": Loop(slips_in_boxes(), cut=True),
    "slips in rows of a table": Loop(slips_in_rows(), cut=True),
    "phrases in any order": Loop(" ".join(in_any_order(PHRASES, 60)), cut=True),
    "phrases in any order, ended": Loop(" ".join(in_any_order(PHRASES, 90))),
    "after a good page": Loop(f"{prose(600)}\n{' '.join(in_any_order(PHRASES, 40))}", cut=True),
    "paragraphs in any order": Loop(
        "\n\n".join(in_any_order([TERMS, TERMS[::-1].title(), prose(20)], 24))
    ),
    "a block with one word off": Loop("\n".join(one_word_off(TERMS, 12)), cut=True),
    "a block with one word off, ended": Loop("\n".join(one_word_off(TERMS, 16))),
    "two Chinese lines": Loop("\n".join(in_any_order(CHINESE, 60)), cut=True),
    "two Chinese lines, ended": Loop("\n".join(in_any_order(CHINESE, 80))),
    "counting": Loop(" ".join(f"{number}." for number in range(1, 366))),
    "counting by five": Loop(", ".join(str(number) for number in range(5, 2_000, 5))),
    "counting down": Loop("\n".join(str(number) for number in range(400, 0, -1))),
    "counting pages": Loop("\n".join(f"Page {number}" for number in range(1, 300))),
    "fragments": Loop(" ".join(in_any_order(["-3", "-33", "3-3"], 150))),
    "fragments at the limit": Loop(
        "Figure " + " ".join(in_any_order(["1/2", "-12", "2/1"], 60)), cut=True
    ),
}


# -- correct texts that repeat ---------------------------------------------------------------------

#: A line of a text, of its number and of a source of chance.
Row = Callable[[int, Chance], str]


def rows(count: int, row: Row) -> str:
    """So many lines of one kind."""
    chance = Chance(2)
    return "\n".join(row(number, chance) for number in range(1, count + 1))


def price(number: int, chance: Chance) -> str:
    return f"{chance.noun()} {chance.noun()} {chance.randrange(90)}.50"


def equal_price(number: int, chance: Chance) -> str:
    return f"{chance.noun()} {chance.noun()} 9.95"


def answers_in_cells(number: int, chance: Chance) -> str:
    return cells(*(chance.choice(["yes", "no"]) for _ in range(5)))


def state_in_cells(number: int, chance: Chance) -> str:
    return cells(chance.noun(), chance.choice(["available", "sold out"]))


def state_in_markdown(number: int, chance: Chance) -> str:
    return f"| {chance.noun()} | {chance.choice(['in full', 'in part'])} |"


def digits_in_cells(number: int, chance: Chance) -> str:
    return cells(*(str(chance.randrange(9)) for _ in range(8)))


def mostly_zeros(number: int, chance: Chance) -> str:
    return " ".join(chance.choice("0001") for _ in range(20))


def row_of_a_matrix(number: int, chance: Chance) -> str:
    return " ".join(chance.choice(["-1", "0", "1", "0"]) for _ in range(12))


def dot_leader(number: int, chance: Chance) -> str:
    return f"{chance.noun()} {chance.noun()} {'. ' * 40}{number * 3}"


def line_of_contents(number: int, chance: Chance) -> str:
    return f"Chapter {number} {chance.noun()} and {chance.noun()} ..... {number * 7}"


def line_of_chinese_contents(number: int, chance: Chance) -> str:
    letter = chr(0x4E00 + chance.randrange(2_000))
    return f"第{number}章 {letter * 2} …… {number * 5}"


def line_of_a_form(number: int, chance: Chance) -> str:
    return f"Name: {'_' * 14} Date: {'_' * 10} Signature: {'_' * 14}"


def reference(number: int, chance: Chance) -> str:
    return (
        f"[{number}] {chance.noun()} and {chance.noun()}. The {chance.noun()} of the "
        f"{chance.noun()}. In Proceedings of the Conference on Documents "
        f"{chance.randrange(1980, 2024)}."
    )


def list_item(number: int, chance: Chance) -> str:
    return f"- {chance.noun()} {chance.noun()} for the {chance.noun()}"


def answer_by_letter(number: int, chance: Chance) -> str:
    return f"{number}. {chance.choice('ABCD')}"


def answer_by_word(number: int, chance: Chance) -> str:
    return f"{number}. {chance.choice(['True', 'False'])}"


def log_time(number: int) -> str:
    return f"2024-05-01 12:{number // 60:02}:{number % 60:02} INFO"


def log_message(number: int, chance: Chance) -> str:
    connection = f"Connection from 10.0.0.{chance.randrange(255)} accepted"
    message = chance.choice([connection, "Heartbeat of node alpha"])
    return f"{log_time(number)} {message}"


def equal_log_message(number: int, chance: Chance) -> str:
    return (
        f"{log_time(number)} Heartbeat of node alpha was received by the main server in time and "
        f"no alarm is open"
    )


def address(number: int, chance: Chance) -> str:
    return f"{chance.noun()} {chance.noun()}, {number * 7} Harbour Street, Northfield"


def line_of_a_timetable(number: int, chance: Chance) -> str:
    hour = number % 24
    return f"Northfield Station {hour}:05 Harbour Street {hour}:{number % 60:02}"


def card_payment(number: int, chance: Chance) -> str:
    amount = f"{chance.randrange(99)}.{number:02}"
    return f"{number}.05.2024 Card payment Coffee House {amount}"


def json_of_prices() -> str:
    prices = [
        {"name": noun, "price": number, "sold": number % 3 == 0}
        for number, noun in enumerate(NOUNS)
    ]
    return json.dumps(prices, indent=1)


def poem() -> str:
    return "\n".join(f"{prose(24, seed)}\n\n{REFRAIN}" for seed in range(6))


def year() -> str:
    days = " ".join(str(day) for day in range(1, 31))
    return "\n".join(f"{month}\n{WEEKDAYS}\n{days}" for month in MONTHS)


def chinese() -> str:
    return "".join(chr(0x4E00 + random.Random(n).randrange(1_500)) for n in range(2_000))


CORRECT = {
    "nothing": "",
    "a word": "Yes",
    "a short text": "Thank you. Thank you. Thank you.",
    "prose": prose(1_500),
    "prices": rows(120, price),
    "equal prices": rows(120, equal_price),
    "answers in cells": rows(60, answers_in_cells),
    "states in cells": rows(80, state_in_cells),
    "states in Markdown": rows(80, state_in_markdown),
    "digits in cells": rows(50, digits_in_cells),
    "zeros": rows(20, mostly_zeros),
    "a matrix": rows(12, row_of_a_matrix),
    "numbers to a hundred": " ".join(str(number) for number in range(1, 101)),
    "dot leaders": rows(60, dot_leader),
    "contents": rows(60, line_of_contents),
    "contents in Chinese": rows(60, line_of_chinese_contents),
    "a form": rows(12, line_of_a_form),
    "references": rows(60, reference),
    "a list": rows(90, list_item),
    "a key of letters": rows(100, answer_by_letter),
    "a key of words": rows(120, answer_by_word),
    "a log": rows(150, log_message),
    "a log of one message": rows(90, equal_log_message),
    "code": Path(find_repetitions.__code__.co_filename).read_text(encoding="utf-8"),
    "JSON": json_of_prices(),
    "a poem": poem(),
    "a calendar": year(),
    "addresses": rows(80, address),
    "a timetable": rows(60, line_of_a_timetable),
    "a bank statement": rows(80, card_payment),
    "Chinese": chinese(),
    "a changelog": (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"),
}
CORRECT |= {
    page.stem: json.loads(page.read_text(encoding="utf-8"))["markdown"]
    for page in (ROOT / "data" / "pages").glob("*.json")
}
every_correct_text = pytest.mark.parametrize("text", CORRECT.values(), ids=CORRECT)


# -- what is found ---------------------------------------------------------------------------------


@pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS)
def test_a_loop_with_slips_is_found_to_its_end(loop: Loop) -> None:
    pieces = tokens(loop.text)
    *_, last = find_inexact_loops(pieces, cut=loop.cut)
    assert last.start <= last.again < last.stop
    assert last.stop >= 0.95 * len(pieces)


@every_correct_text
def test_correct_text_is_no_loop(text: str) -> None:
    pieces = tokens(text)
    assert find_inexact_loops(pieces) == []
    assert find_repetitions(pieces) == []


@every_correct_text
def test_the_limit_alone_makes_no_inexact_loop(text: str) -> None:
    assert find_inexact_loops(tokens(text), cut=True) == []


@given(st.text("ab <>|/td1.\n谢ж", max_size=300), st.booleans())
def test_any_text_is_read_and_stretches_lie_in_order(text: str, cut: bool) -> None:
    pieces = list(text)
    place = 0
    for stretch in find_inexact_loops(pieces, cut=cut):
        assert place <= stretch.start <= stretch.again < stretch.stop <= len(pieces)
        place = stretch.stop


def record_of(text: str) -> PhaseRun:
    """A record whose model wrote this text up to its token limit, several tokens a piece."""
    run = PhaseRun.load(RECORD)
    length = len(run.result.ids)
    pieces = tokens(text)
    size = -(-len(pieces) // (length - 1))  # rounded up
    texts = ["".join(pieces[start : start + size]) for start in range(0, len(pieces), size)]
    texts += [""] * (length - len(texts))
    written = {"token_texts": texts, "text": "".join(texts), "finish_reason": "length"}
    return altered(run, results=[to_plain(run.result) | written])


@pytest.mark.parametrize(
    "name", ["slips in short lines", "counting", "fragments", "two Chinese lines"]
)
def test_the_record_counts_its_time_and_its_check_says_where_it_begins(name: str) -> None:
    run = record_of(LOOPS[name].text)

    assert "inexact" in set(repetition_table(run)["measure"])
    assert repeated_share(run) > 0.3
    check = checks_table(run).set_index("name").loc["repetition_loop"]
    assert check["verdict"] == "note"
    assert "an inexact loop) from token" in check["measured"]


def test_a_loop_that_begins_where_another_one_ends_is_found_too() -> None:
    phrase = ["the ", "cat ", "sat ", "on "] * 200
    numbers = [f"{number} " for number in range(1, 401)]
    first, second = find_inexact_loops([*phrase, *numbers])
    assert first.stop == len(phrase)
    assert second.start == len(phrase)
    assert second.stop == len(phrase) + len(numbers)
