"""Guesses by n-gram lookup, played over the tokens of a record."""

import json
from pathlib import Path

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
    """Prompt lookup as it is published, over a text of one letter a token: written anew."""
    text = "".join(map(str, ids))
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
    place = 1
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
    ("ids", "draft", "steps"),
    [
        (range(20), 4, [1] * 19),  # nothing repeats
        ([7] * 21, 4, [1, 2, 2, 4, 5, 5, 1]),  # a loop: guesses grow with the text
        ([1, 2, 3, 9, 1, 2, 3, 9], 2, [1, 1, 1, 1, 3]),
    ],
)
def test_a_step_makes_the_right_guesses_and_one_token_more(
    ids: list[int], draft: int, steps: list[int]
) -> None:
    assert [step.tokens for step in speculate(list(ids), draft, 3)] == steps


def with_ids(run: PhaseRun, ids: list[int]) -> PhaseRun:
    results = [{"ids": ids, "token_texts": [f"<{each}>" for each in ids], "text": None}]
    return altered(run, results=results)


def test_the_table_adds_up_and_says_where_guessing_breaks_even() -> None:
    run = PhaseRun.load(RUNS / "tiny-receipt.json.gz")
    table = run.speculation(draft=6)
    assert tuple(table.columns) == SPECULATION_COLUMNS
    *regions, total = table.to_dict("records")
    steps = speculate(run.results[0].ids, 6, 3)
    assert total["label"] == "all"
    assert len(regions) > 2
    assert total["tokens"] == len(run.results[0].ids) - 1
    assert total["tokens"] == sum(step.tokens for step in steps)
    for name in ("tokens", "steps", "drafted_steps", "drafted", "accepted"):
        assert sum(row[name] for row in regions) == total[name]
    drafted = [step for step in steps if step.drafted]
    assert total["break_even"] == pytest.approx(np.mean([step.tokens for step in drafted]))
    assert total["acceptance"] == total["accepted"] / total["drafted"]
    plain = total["steps"] - len(drafted)
    time = plain + len(drafted) * total["verify_cost"]
    assert total["speedup"] == pytest.approx(total["tokens"] / time)
    # At the cost that breaks even, decoding takes as long as without a guess.
    assert plain + len(drafted) * total["break_even"] == pytest.approx(total["tokens"])


def test_checking_costs_more_the_less_else_a_step_does() -> None:
    """Of a compiled step most is weights: other experts make it dearer, an eager one not."""
    costs = {}
    for strategy in ("eager", "cuda_graph", "compiled"):
        run = PhaseRun.load(RUNS / f"h200-invoice-{strategy}.json.gz")
        costs[strategy] = run.speculation(draft=10)["verify_cost"].iloc[-1]
    assert 1.0 < costs["eager"] < 1.1 < costs["cuda_graph"] < costs["compiled"] < 3.0


def test_the_cost_of_checking_is_measured_by_a_batch() -> None:
    run = make_run()
    batch = paced(run, 1.5, stage="decode_step")
    batch = altered(batch, results=[*batch.results] * 3)
    table = run.speculation(draft=2, verified_by=batch)
    ratio = batch["inter_token_ms"] / run["inter_token_ms"]
    assert table["verify_cost"].iloc[-1] == pytest.approx(ratio)


def test_without_a_floor_the_cost_of_checking_is_unknown() -> None:
    tiny = PhaseRun.load(RUNS / "tiny-receipt.json.gz")
    unknown = altered(tiny, device={"name": "another", "ceilings": None})
    assert unknown.speculation()[["verify_cost", "speedup"]].isna().all(axis=None)


def test_what_cannot_be_guessed_is_refused() -> None:
    run = make_run()
    pieces = altered(run, results=[{"ids": [0], "token_texts": ["a"], "text": "a", "pieces": True}])
    for wrong in (
        lambda: run.speculation(draft=0),
        lambda: run.speculation(longest=0),
        lambda: run.speculation(draft=3, verified_by=run),
        lambda: run.speculation(row=4),
        pieces.speculation,
    ):
        with pytest.raises(OcrPhasesError):
            wrong()


def test_a_text_of_one_token_has_no_step() -> None:
    table = with_ids(make_run(max_tokens=1), [5]).speculation()
    assert table["tokens"].tolist() == [0]
    assert table["speedup"].isna().all()


def test_profile_says_it_after_a_measurement(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = PhaseRun.load(RUNS / "tiny-receipt.json.gz")
    monkeypatch.setattr("ocr_phases.cli.measuring.measure", lambda *_, **__: run)
    command = ["profile", str(PAGES / "receipt.png"), "--save", str(tmp_path / "run.json")]
    assert main([*command, "--speculate", "4", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    rows = run.speculation(4).to_json(orient="records", double_precision=15)
    assert printed["speculation"] == json.loads(rows)
    assert main(["profile", "--dry-run", "--speculate", "4"]) == 2
