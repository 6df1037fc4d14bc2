"""Guesses by n-gram lookup, played over the tokens of a record."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import PAGES, RUNS
from example_run import altered, make_run, paced
from hypothesis import given
from hypothesis import strategies as st

from ocr_phases import OcrPhasesError, PhaseRun
from ocr_phases.analyse.speculation import SPECULATION_COLUMNS, speculate
from ocr_phases.cli import main

TOKEN_IDS = st.lists(st.integers(0, 3), min_size=2, max_size=40)


def published_guess(ids: list[int], most: int, longest: int) -> list[int]:
    """What prompt lookup guesses as it is published, over a text of one digit a token.

    Up to ``most`` tokens follow the ids; up to ``longest`` of their last ones are looked up.
    """
    text = "".join(str(token) for token in ids)
    for size in range(min(longest, len(text) - 1), 0, -1):
        place = text.find(text[-size:])
        if place < len(text) - size:
            return ids[place + size : place + size + most]
    return []


def right_guesses(guessed: list[int], actual: list[int]) -> int:
    """How many guesses are right before the first one that is wrong."""
    right = 0
    for expected, token in zip(guessed, actual, strict=False):
        if expected != token:
            break
        right += 1
    return right


@given(ids=TOKEN_IDS, most=st.integers(1, 5), longest=st.integers(1, 3))
def test_the_guesses_and_what_is_kept_are_those_of_the_published_rule(
    ids: list[int], most: int, longest: int
) -> None:
    place = 1  # the prefill made the first token

    for step in speculate(ids, most, longest):
        guessed = published_guess(ids[:place], most, longest)
        right = right_guesses(guessed, ids[place:])
        assert step.first == place
        assert step.drafted == len(guessed)
        assert step.accepted == right
        assert step.tokens == min(right + 1, len(ids) - place)
        place += step.tokens

    assert place == len(ids)


@pytest.mark.parametrize(
    ("ids", "draft", "tokens_of_steps"),
    [
        pytest.param(list(range(20)), 4, [1] * 19, id="nothing repeats"),
        pytest.param([7] * 21, 4, [1, 2, 2, 4, 5, 5, 1], id="guesses grow with a loop"),
        pytest.param([1, 2, 3, 9, 1, 2, 3, 9], 2, [1, 1, 1, 1, 3], id="a line repeats"),
    ],
)
def test_a_step_makes_the_right_guesses_and_one_token_more(
    ids: list[int], draft: int, tokens_of_steps: list[int]
) -> None:
    steps = speculate(ids, draft, 3)

    assert [step.tokens for step in steps] == tokens_of_steps


@pytest.fixture(scope="module")
def receipt() -> PhaseRun:
    """The shipped record of a receipt, read by the built-in model."""
    return PhaseRun.load(RUNS / "tiny-receipt.json.gz")


def test_the_rows_of_the_regions_add_up_to_the_last_one(receipt: PhaseRun) -> None:
    table = receipt.speculation(draft=6)

    assert tuple(table.columns) == SPECULATION_COLUMNS
    *regions, total = table.to_dict("records")
    assert len(regions) > 2
    assert total["label"] == "all"
    assert total["tokens"] == len(receipt.results[0].ids) - 1
    for name in ("tokens", "steps", "drafted_steps", "drafted", "accepted"):
        assert sum(row[name] for row in regions) == total[name]


def test_the_table_says_where_guessing_breaks_even(receipt: PhaseRun) -> None:
    steps = speculate(receipt.results[0].ids, 6, 3)
    drafted = [step for step in steps if step.drafted]
    plain_steps = len(steps) - len(drafted)

    total = receipt.speculation(draft=6).iloc[-1]

    assert total["steps"] == len(steps)
    assert total["tokens"] == sum(step.tokens for step in steps)
    assert total["acceptance"] == total["accepted"] / total["drafted"]
    assert total["break_even"] == pytest.approx(np.mean([step.tokens for step in drafted]))
    time_with_guesses = plain_steps + len(drafted) * total["verify_cost"]
    assert total["speedup"] == pytest.approx(total["tokens"] / time_with_guesses)
    # At the cost that breaks even, decoding takes as long as without a guess.
    time_at_break_even = plain_steps + len(drafted) * total["break_even"]
    assert time_at_break_even == pytest.approx(total["tokens"])


def verify_cost(strategy: str) -> float:
    """What checking guesses costs on an H200 with this strategy, in steps."""
    run = PhaseRun.load(RUNS / f"h200-invoice-{strategy}.json.gz")
    return run.speculation(draft=10)["verify_cost"].iloc[-1]


def test_checking_costs_more_the_less_else_a_step_does() -> None:
    """Of a compiled step most is weights: other experts make it dearer, an eager one not."""
    eager = verify_cost("eager")
    captured = verify_cost("cuda_graph")
    compiled = verify_cost("compiled")

    assert 1.0 < eager < 1.1
    assert 1.1 < captured < compiled
    assert compiled < 3.0


def test_the_cost_of_checking_is_measured_by_a_batch() -> None:
    run = make_run()
    slower = paced(run, 1.5, stage="decode_step")
    batch = altered(slower, results=[*run.results] * 3)

    table = run.speculation(draft=2, verified_by=batch)

    ratio = batch["inter_token_ms"] / run["inter_token_ms"]
    assert table["verify_cost"].iloc[-1] == pytest.approx(ratio)


def test_without_a_floor_the_cost_of_checking_is_unknown(receipt: PhaseRun) -> None:
    unknown_device = altered(receipt, device={"name": "another", "ceilings": None})

    table = unknown_device.speculation()

    assert table["verify_cost"].isna().all()
    assert table["speedup"].isna().all()


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"draft": 0}, id="no token is guessed"),
        pytest.param({"longest": 0}, id="nothing is looked up"),
        pytest.param({"draft": 3, "verified_by": make_run()}, id="checked by a batch of one row"),
        pytest.param({"row": 4}, id="no such row"),
    ],
)
def test_guesses_that_cannot_be_made_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(OcrPhasesError):
        make_run().speculation(**options)


def test_guesses_over_pieces_of_text_that_are_no_tokens_are_refused() -> None:
    piece = {"ids": [0], "token_texts": ["a"], "text": "a", "pieces": True}
    run = altered(make_run(), results=[piece])

    with pytest.raises(OcrPhasesError):
        run.speculation()


def test_a_text_of_one_token_has_no_step() -> None:
    one_token = {"ids": [5], "token_texts": ["<5>"], "text": None}
    run = altered(make_run(max_tokens=1), results=[one_token])

    table = run.speculation()

    assert table["tokens"].tolist() == [0]
    assert table["speedup"].isna().all()


def test_profile_says_after_a_measurement_whether_guessing_would_pay(
    receipt: PhaseRun,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def measure_nothing(*_: object, **__: object) -> PhaseRun:
        return receipt

    monkeypatch.setattr("ocr_phases.cli.measuring.measure", measure_nothing)
    command = ["profile", str(PAGES / "receipt.png"), "--save", str(tmp_path / "run.json")]

    assert main([*command, "--speculate", "4", "--json"]) == 0

    printed = json.loads(capsys.readouterr().out)
    rows = receipt.speculation(4).to_json(orient="records", double_precision=15)
    assert printed["speculation"] == json.loads(rows)


def test_a_dry_run_has_no_tokens_to_guess() -> None:
    assert main(["profile", "--dry-run", "--speculate", "4"]) == 2
