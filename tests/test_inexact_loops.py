"""Loops with slips are found in texts of many kinds, and correct texts that repeat are left
alone.
"""

import calendar
import json
import random
import re
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
    "bridge "
    "school engine silver border copper farmer library teacher summer island doctor kitchen "
    "village factory "
    "forest captain theatre pocket mirror bottle candle basket ladder hammer blanket pencil ticket "
    "dinner",
)
SMALL_WORDS = [
    "the",
    "of",
    "and",
    "a",
    "to",
    "in",
    "is",
    "was",
    "for",
    "on",
    "with",
    "by",
    "from",
    "at",
]
REFRAIN = (
    "And still the river runs below,\nand still the lanterns swing,\nand nobody will ever know.\n"
)
WEEKDAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday"
MONTHS = [calendar.month_name[number] for number in range(1, 13)]


def tokens(text: str) -> list[str]:
    return re.findall(r"\s?\w{1,4}|\s?[^\w\s]|\s", text)


def with_slips(line: str, count: int, chance: float) -> list[str]:
    """The line again and again, often with a letter that is wrong, missing or too many."""
    chooser = random.Random(line)
    lines = []
    for _ in range(count):
        place = chooser.randrange(len(line))
        written = chooser.choice(["", "e", line[place] + "r"])
        is_slip = chooser.random() < chance
        lines.append(line[:place] + written + line[place + 1 :] if is_slip else line)
    return lines


def in_any_order(phrases: list[str], count: int) -> list[str]:
    chooser = random.Random(str(phrases))
    return [chooser.choice(phrases) for _ in range(count)]


def one_word_off(block: str, count: int) -> list[str]:
    chooser = random.Random(block)
    blocks = []
    for _ in range(count):
        words = block.split()
        words[chooser.randrange(len(words))] = chooser.choice(words)
        blocks.append(" ".join(words))
    return blocks


def prose(count: int, seed: int = 1) -> str:
    chooser = random.Random(seed)
    return " ".join(chooser.choice(NOUNS + SMALL_WORDS) for _ in range(count))


def rows(count: int, row, seed: int = 2) -> str:
    """Lines that ``row`` makes of a number and of a source of chance."""
    chooser = random.Random(seed)
    return "\n".join(row(number, chooser) for number in range(1, count + 1))


def cells(*texts: str) -> str:
    return "<tr>" + "".join(f"<td>{text}</td>" for text in texts) + "</tr>"


#: Text, and whether the token limit cut it.
LOOPS = {
    "slips in short lines": ("\n\n".join(with_slips("Marina Workshop", 60, 0.6)), True),
    "slips in short lines, ended": ("\n\n".join(with_slips("Marina Workshop", 120, 0.5)), False),
    "slips in sentences": (
        " ".join(with_slips("Payment is due within thirty days of receipt.", 40, 0.8)),
        True,
    ),
    "slips in Russian": (
        "\n".join(with_slips("Оплата производится в течение тридцати дней", 40, 0.7)),
        True,
    ),
    "slips in a numbered list": (
        "\n".join(
            f"{n}. {line}"
            for n, line in enumerate(with_slips("Harbour Street Northfield", 60, 0.6))
        ),
        False,
    ),
    "slips in boxes": (
        "".join(
            f"<|ref|>text<|/ref|><|det|>[[{n}, {n}, 90, {n}9]]<|/det|>\n{line}\n"
            for n, line in enumerate(with_slips("Marina Workshop opens daily at noon", 30, 0.6))
        ),
        True,
    ),
    "slips in rows of a table": (
        "<table>"
        + "".join(cells(line, "12.50") for line in with_slips("Marina Workshop", 200, 0.4)),
        True,
    ),
    "phrases in any order": (" ".join(in_any_order(PHRASES, 60)), True),
    "phrases in any order, ended": (" ".join(in_any_order(PHRASES, 90)), False),
    "after a good page": (prose(600) + "\n" + " ".join(in_any_order(PHRASES, 40)), True),
    "paragraphs in any order": (
        "\n\n".join(in_any_order([TERMS, TERMS[::-1].title(), prose(20)], 24)),
        False,
    ),
    "a block with one word off": ("\n".join(one_word_off(TERMS, 12)), True),
    "a block with one word off, ended": ("\n".join(one_word_off(TERMS, 16)), False),
    "two Chinese lines": ("\n".join(in_any_order(CHINESE, 60)), True),
    "two Chinese lines, ended": ("\n".join(in_any_order(CHINESE, 80)), False),
    "counting": (" ".join(f"{n}." for n in range(1, 366)), False),
    "counting by five": (", ".join(str(n) for n in range(5, 2_000, 5)), False),
    "counting down": ("\n".join(str(n) for n in range(400, 0, -1)), False),
    "counting pages": ("\n".join(f"Page {n}" for n in range(1, 300)), False),
    "fragments": (" ".join(in_any_order(["-3", "-33", "3-3"], 150)), False),
    "fragments at the limit": ("Figure " + " ".join(in_any_order(["1/2", "-12", "2/1"], 60)), True),
}
CORRECT = {
    "nothing": "",
    "a word": "Yes",
    "a short text": "Thank you. Thank you. Thank you.",
    "prose": prose(1_500),
    "prices": rows(120, lambda n, r: f"{r.choice(NOUNS)} {r.choice(NOUNS)} {r.randrange(90)}.50"),
    "equal prices": rows(120, lambda n, r: f"{r.choice(NOUNS)} {r.choice(NOUNS)} 9.95"),
    "answers in cells": rows(60, lambda n, r: cells(*(r.choice(["yes", "no"]) for _ in range(5)))),
    "states in cells": rows(
        80, lambda n, r: cells(r.choice(NOUNS), r.choice(["available", "sold out"]))
    ),
    "states in Markdown": rows(
        80, lambda n, r: f"| {r.choice(NOUNS)} | {r.choice(['in full', 'in part'])} |"
    ),
    "digits in cells": rows(50, lambda n, r: cells(*(str(r.randrange(9)) for _ in range(8)))),
    "zeros": rows(20, lambda n, r: " ".join(r.choice("0001") for _ in range(20))),
    "a matrix": rows(12, lambda n, r: " ".join(r.choice(["-1", "0", "1", "0"]) for _ in range(12))),
    "numbers to a hundred": " ".join(str(n) for n in range(1, 101)),
    "dot leaders": rows(60, lambda n, r: f"{r.choice(NOUNS)} {r.choice(NOUNS)} {'. ' * 40}{n * 3}"),
    "contents": rows(
        60, lambda n, r: f"Chapter {n} {r.choice(NOUNS)} and {r.choice(NOUNS)} ..... {n * 7}"
    ),
    "contents in Chinese": rows(
        60, lambda n, r: f"第{n}章 {chr(0x4E00 + r.randrange(2_000)) * 2} …… {n * 5}"
    ),
    "a form": rows(12, lambda n, r: f"Name: {'_' * 14} Date: {'_' * 10} Signature: {'_' * 14}"),
    "references": rows(
        60,
        lambda n, r: (
            f"[{n}] {r.choice(NOUNS)} and {r.choice(NOUNS)}. The {r.choice(NOUNS)} of the "
            f"{r.choice(NOUNS)}. In Proceedings of the Conference on Documents "
            f"{r.randrange(1980, 2024)}."
        ),
    ),
    "a list": rows(
        90, lambda n, r: f"- {r.choice(NOUNS)} {r.choice(NOUNS)} for the {r.choice(NOUNS)}"
    ),
    "a key of letters": rows(100, lambda n, r: f"{n}. {r.choice('ABCD')}"),
    "a key of words": rows(120, lambda n, r: f"{n}. {r.choice(['True', 'False'])}"),
    "a log": rows(
        150,
        lambda n, r: (
            f"2024-05-01 12:{n // 60:02}:{n % 60:02} INFO "
            + r.choice(
                [f"Connection from 10.0.0.{r.randrange(255)} accepted", "Heartbeat of node alpha"]
            )
        ),
    ),
    "a log of one message": rows(
        90,
        lambda n, r: (
            f"2024-05-01 12:{n // 60:02}:{n % 60:02} INFO Heartbeat of node alpha was received by "
            f"the "
            "main server in time and no alarm is open"
        ),
    ),
    "code": Path(find_repetitions.__code__.co_filename).read_text(encoding="utf-8"),
    "JSON": json.dumps(
        [{"name": noun, "price": n, "sold": n % 3 == 0} for n, noun in enumerate(NOUNS)], indent=1
    ),
    "a poem": "\n".join(f"{prose(24, seed)}\n\n{REFRAIN}" for seed in range(6)),
    "a calendar": "\n".join(
        f"{month}\n{WEEKDAYS}\n{' '.join(map(str, range(1, 31)))}" for month in MONTHS
    ),
    "addresses": rows(
        80, lambda n, r: f"{r.choice(NOUNS)} {r.choice(NOUNS)}, {n * 7} Harbour Street, Northfield"
    ),
    "a timetable": rows(
        60, lambda n, r: f"Northfield Station {n % 24}:05 Harbour Street {n % 24}:{n % 60:02}"
    ),
    "a bank statement": rows(
        80, lambda n, r: f"{n}.05.2024 Card payment Coffee House {r.randrange(99)}.{n:02}"
    ),
    "Chinese": "".join(chr(0x4E00 + random.Random(n).randrange(1_500)) for n in range(2_000)),
    "a changelog": (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"),
    **{
        page.stem: json.loads(page.read_text(encoding="utf-8"))["markdown"]
        for page in (ROOT / "data" / "pages").glob("*.json")
    },
}


@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_with_slips_is_found_to_its_end(name):
    text, cut = LOOPS[name]
    texts = tokens(text)
    (*_, last) = find_inexact_loops(texts, cut=cut)
    assert last.start <= last.again < last.stop
    assert last.stop >= 0.95 * len(texts)


@pytest.mark.parametrize("name", CORRECT)
def test_correct_text_is_no_loop(name):
    texts = tokens(CORRECT[name])
    assert find_inexact_loops(texts) == []
    assert find_repetitions(texts) == []


@pytest.mark.parametrize("name", CORRECT)
def test_the_limit_alone_makes_no_inexact_loop(name):
    assert find_inexact_loops(tokens(CORRECT[name]), cut=True) == []


@given(st.text("ab <>|/td1.\n谢ж", max_size=300), st.booleans())
def test_any_text_is_read_and_stretches_lie_in_order(text, cut):
    texts = list(text)
    place = 0
    for stretch in find_inexact_loops(texts, cut=cut):
        assert place <= stretch.start <= stretch.again < stretch.stop <= len(texts)
        place = stretch.stop


@pytest.mark.parametrize(
    "name", ["slips in short lines", "counting", "fragments", "two Chinese lines"]
)
def test_the_record_counts_its_time_and_its_check_says_where_it_begins(name):
    run = PhaseRun.load(RECORD)
    length = len(run.result.ids)
    pieces = tokens(LOOPS[name][0])
    size = -(-len(pieces) // (length - 1))  # a server's pieces may hold several tokens
    texts = ["".join(pieces[at : at + size]) for at in range(0, len(pieces), size)]
    texts += [""] * (length - len(texts))
    said = {"token_texts": texts, "text": "".join(texts), "finish_reason": "length"}
    loop = altered(run, results=[to_plain(run.result) | said])
    assert "inexact" in set(repetition_table(loop)["measure"])
    assert repeated_share(loop) > 0.3
    checks = checks_table(loop).set_index("name")
    assert checks.loc["repetition_loop", "verdict"] == "note"
    assert "an inexact loop) from token" in checks.loc["repetition_loop", "measured"]


def test_a_loop_that_begins_where_another_one_ends_is_found_too() -> None:
    phrase = ["the ", "cat ", "sat ", "on "] * 200
    numbers = [f"{number} " for number in range(1, 401)]
    first, second = find_inexact_loops([*phrase, *numbers])
    assert first.stop == len(phrase)
    assert second.start == len(phrase)
    assert second.stop == len(phrase) + len(numbers)
