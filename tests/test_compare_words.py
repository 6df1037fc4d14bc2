"""A comparison: an estimate lies inside its interval, and words say what is equal and what
differs.
"""

from functools import cache

import numpy as np
import pandas as pd
import pytest
from elements import seen
from example_run import altered, example, with_times
from msgspec.structs import replace

from ocr_phases import PhaseRun, compare
from ocr_phases.analyse.comparison import in_units
from ocr_phases.analyse.comparison_words import first_other_token
from ocr_phases.record.parts import to_plain
from ocr_phases.results.comparison import Comparison
from ocr_phases.show.comparison_overview import compare_html, environment_html

# -- estimates and intervals -----------------------------------------------------------------------


@cache
def with_stage_ms(stage: str, ms: tuple[float, ...]) -> PhaseRun:
    """A record with these times of a stage, one a repeat."""

    def stage_ms(_step: int, repeat: int) -> float:
        return ms[repeat]

    return with_times(example(repeats=len(ms)), stage, stage_ms)


def table_of_ratios(base: PhaseRun, other: PhaseRun) -> pd.DataFrame:
    """The metrics of a comparison that have a ratio, by name."""
    table = compare(base, other).table
    return table[table["ratio"].notna()].set_index("metric")


@pytest.mark.parametrize(
    ("stage", "base_ms", "other_ms"),
    [
        ("tokenizer", (0.54, 0.74, 10.2), (0.7, 11.0, 12.0)),
        ("prefill", (509, 1295, 6656, 900, 1000), (100, 101, 99, 100, 102)),
        ("prefill", (1, 1, 1, 1, 100), (1, 100, 100, 100, 1)),
        ("prefill", (100, 200, 100, 200), (150, 150, 150, 151)),
        ("prefill", (100, 100, 100), (100, 100, 100)),
        ("decode_step", (4.0, 4.0, 90.0), (4.1, 80.0, 85.0)),
        ("lm_head", (1.0, 5.0, 2.0), (2.0, 1.0, 9.0)),
    ],
)
def test_an_estimate_lies_in_the_middle_of_its_interval(
    stage: str, base_ms: tuple[float, ...], other_ms: tuple[float, ...]
) -> None:
    table = table_of_ratios(with_stage_ms(stage, base_ms), with_stage_ms(stage, other_ms))

    rows = table.dropna(subset=["ratio_low"])
    assert len(rows) > 10
    middles = np.sqrt(rows["ratio_low"] * rows["ratio_high"])
    np.testing.assert_allclose(rows["ratio"], middles, rtol=1e-9)
    wide = rows[rows["ratio_high"] > rows["ratio_low"] * (1 + 1e-9)]
    assert (wide["ratio"] > wide["ratio_low"]).all()
    assert (wide["ratio"] < wide["ratio_high"]).all()


def test_a_ratio_is_of_the_means_of_the_repeats() -> None:
    base = with_stage_ms("prefill", (1.0, 10.0, 100.0))
    other = with_stage_ms("prefill", (2.0, 40.0, 800.0))

    row = table_of_ratios(base, other).loc["prefill_ms"]

    assert row["baseline"] == 10.0
    assert row["other"] == 40.0
    assert row["ratio"] == pytest.approx(4.0)
    shown = seen(compare_html(compare(base, other).table))
    assert "Ratios and their intervals are of the geometric means" in shown


# -- what is equal, and what differs ---------------------------------------------------------------

TEXT = "<|ref|>text<|/ref|><|det|>[[10, 20, 300, 400]]<|/det|>\nThe same words on this page."


def with_ids(run: PhaseRun, ids: list[int]) -> PhaseRun:
    """The record with other token ids."""
    return altered(run, results=[replace(run.result, ids=ids)])


def run_with_other_tokens(text: str) -> PhaseRun:
    """A record of a text whose tokens have other ids than those of `TEXT` where they differ, and
    one that differs in any case.
    """
    run = example(text=text)
    ids = []
    for number, piece in enumerate(run.result.token_texts):
        ids.append(number if piece in TEXT else number + 5000)
    ids[8] += 9000
    return with_ids(run, ids)


def compare_with_text(other: PhaseRun) -> Comparison:
    """A record against one with `TEXT`."""
    return compare(example(text=TEXT), other, labels=["before", "after"])


def text_verdict(comparison: Comparison) -> str:
    """What the table of a comparison says of the texts."""
    return in_units(comparison.table).set_index("metric").loc["agreement", "verdict"]


@pytest.mark.parametrize(
    ("text", "difference"),
    [
        (TEXT.replace("400", "401"), "the boxes differ"),
        (TEXT.replace("10, 20, 300, 400", "0, 0, 999, 999"), "the boxes differ"),
        (TEXT.replace("ref|>text", "ref|>title"), "the labels differ"),
        (
            TEXT.replace("ref|>text", "ref|>list").replace("400", "39"),
            "the labels and the boxes differ",
        ),
    ],
)
def test_equal_text_from_other_tokens_says_what_differs(text: str, difference: str) -> None:
    comparison = compare_with_text(run_with_other_tokens(text))

    assert text_verdict(comparison) == "text equal"
    assert "The text is equal" in comparison.verdict
    assert difference in comparison.verdict
    assert "The first different token is" in comparison.verdict


def test_equal_text_from_equal_tokens_needs_no_words() -> None:
    comparison = compare_with_text(example(text=TEXT))

    assert text_verdict(comparison) == "text equal"
    assert "The text is equal" not in comparison.verdict
    assert "The first different token is" not in comparison.verdict


def test_another_text_is_not_said_to_be_equal() -> None:
    comparison = compare_with_text(run_with_other_tokens(TEXT.replace("same", "other")))

    assert text_verdict(comparison) == "text differs"
    assert "The text is equal" not in comparison.verdict
    assert "The first different token is" in comparison.verdict


def test_equal_text_of_other_tokens_is_said_to_be_so() -> None:
    base = example(text=TEXT)
    other = with_ids(base, [number + 1 for number in base.result.ids])

    verdict = compare(base, other).verdict

    assert "The text is equal; the tokens that it is made of differ." in verdict


# -- both names ------------------------------------------------------------------------------------


@cache
def base_with_names() -> PhaseRun:
    """A record of a named model at a server, with a revision."""
    model = {"name": "mymodel", "revision": "abc", "server": {"url": "http://a/v1"}}
    return altered(example(), model=model)


@pytest.mark.parametrize(
    ("part", "values", "sentence"),
    [
        ("model", {"name": "saved"}, "Model: saved (baseline: mymodel)."),
        ("model", {"dtype": "bfloat16"}, "Dtype: bfloat16 (baseline: float32)."),
        ("model", {"revision": "def"}, "Revision of the weights: def (baseline: abc)."),
        (
            "model",
            {"server": {"url": "http://b/v1"}},
            "Server: http://b/v1 (baseline: http://a/v1).",
        ),
        ("device", {"name": "H100"}, "Device: H100 (baseline: Example CPU, 2 cores)."),
        ("request", {"prefill_len": 91}, "Prompt: 91 tokens (baseline: 912 tokens)."),
    ],
)
def test_what_differs_is_named_in_both_records(
    part: str, values: dict[str, object], sentence: str
) -> None:
    base = base_with_names()
    other = altered(base, **{part: values})

    verdict = compare(base, other, labels=["before", "after"]).verdict

    assert sentence in verdict
    assert "before against" not in verdict
    assert " is saved, not" not in verdict
    assert sentence not in compare(base, base, labels=["before", "after"]).verdict


def with_another_page(run: PhaseRun) -> PhaseRun:
    """The record as if its page had other contents."""
    return altered(run, pages=[replace(page, sha256="0" * 64) for page in run.pages])


@pytest.mark.parametrize(
    ("other", "sentence"),
    [
        pytest.param(example(rows=2), "Rows side by side: 2 (baseline: 1).", id="more rows"),
        pytest.param(
            with_another_page(example(page_name="second.png")),
            "b read another page: second.png (baseline: example.png).",
            id="another page",
        ),
        pytest.param(
            with_another_page(example()),
            "b read another page of the same name, example.png.",
            id="another page of the same name",
        ),
    ],
)
def test_another_page_is_named(other: PhaseRun, sentence: str) -> None:
    assert sentence in compare(example(), other, labels=["a", "b"]).verdict


#: A token's id and its text.
Token = tuple[int, str]
#: Two tokens of a row.
CAT: list[Token] = [(5, "a "), (6, "cat")]


def with_tokens(*rows: list[Token]) -> PhaseRun:
    """A record whose rows have these tokens."""
    run = example(rows=len(rows))
    results = []
    for result, tokens in zip(run.results, rows, strict=True):
        ids = [token for token, _ in tokens]
        texts = [text for _, text in tokens]
        results.append(to_plain(result) | {"ids": ids, "token_texts": texts})
    return altered(run, results=results)


@pytest.mark.parametrize(
    ("base_rows", "other_rows", "difference"),
    [
        pytest.param([CAT], [CAT], "", id="none"),
        pytest.param(
            [CAT],
            [[(5, "a "), (7, "dog")]],
            "number 2: 'dog' here, 'cat' in the baseline",
            id="another word",
        ),
        pytest.param(
            [CAT], [CAT[:1]], "number 2: the end here, 'cat' in the baseline", id="an earlier end"
        ),
        pytest.param(
            [CAT],
            [[(5, "a "), (8, "\n")]],
            "number 2: '\\n' here, 'cat' in the baseline",
            id="a line break",
        ),
        pytest.param(
            [CAT],
            [[(9, ""), (6, "cat")]],
            "number 1: 9 here, 'a ' in the baseline",
            id="a token without a text",
        ),
        pytest.param(
            [CAT, CAT],
            [CAT, [(5, "a "), (7, "dog")]],
            "number 2 of row 2: 'dog' here, 'cat' in the baseline",
            id="in the second row",
        ),
    ],
)
def test_the_first_token_that_differs_is_named_in_both_records(
    base_rows: list[list[Token]], other_rows: list[list[Token]], difference: str
) -> None:
    assert first_other_token(with_tokens(*base_rows), with_tokens(*other_rows)) == difference


def test_what_differs_is_a_table() -> None:
    run = example()
    other = altered(run, model={"dtype": "bfloat16"})

    shown = seen(environment_html(compare(run, other).differs))

    assert "What differs" in shown
    assert "bfloat16" in shown


def test_records_that_were_measured_in_the_same_way_get_a_sentence() -> None:
    run = example()

    assert "are the same" in seen(environment_html(compare(run, run).differs))
