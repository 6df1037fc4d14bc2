"""A comparison: an estimate lies inside its interval, and words say what is equal and what
differs.
"""

import numpy as np
import pytest
from elements import seen
from example_run import altered, make_run, with_times
from msgspec.structs import replace

from ocr_phases import compare
from ocr_phases.analyse.comparison import in_units
from ocr_phases.analyse.comparison_words import first_other_token
from ocr_phases.record.parts import to_plain
from ocr_phases.show.comparison_overview import compare_html, environment_html

BOXED = "<|ref|>text<|/ref|><|det|>[[{box}]]<|/det|>\n{words}"
BASE = BOXED.format(box="10, 20, 300, 400", words="The same words on this page.")


def judged(base, other):
    table = compare(base, other, labels=["before", "after"]).table
    return table[table["ratio"].notna()].set_index("metric")


# -- estimates and intervals -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stage", "then", "now"),
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
def test_an_estimate_lies_in_the_middle_of_its_interval(stage, then, now):
    base, other = (
        with_times(make_run(repeats=len(ms)), stage, lambda _, repeat, ms=ms: ms[repeat])
        for ms in (then, now)
    )
    rows = judged(base, other).dropna(subset=["ratio_low"])
    low, ratio, high = (rows[name].to_numpy() for name in ("ratio_low", "ratio", "ratio_high"))
    assert len(rows) > 10
    np.testing.assert_allclose(ratio, np.sqrt(low * high), rtol=1e-9)
    varies = high > low * (1 + 1e-9)
    assert (ratio[varies] > low[varies]).all() and (ratio[varies] < high[varies]).all()


def test_a_ratio_is_of_the_means_of_the_repeats():
    base, other = (
        with_times(make_run(repeats=3), "prefill", lambda _, repeat, ms=ms: ms[repeat])
        for ms in ((1.0, 10.0, 100.0), (2.0, 40.0, 800.0))
    )
    row = judged(base, other).loc["prefill_ms"]
    assert (row["baseline"], row["other"]) == (10.0, 40.0)
    assert row["ratio"] == pytest.approx(4.0)
    table = compare(base, other).table
    assert "Ratios and their intervals are of the geometric means" in seen(compare_html(table))


# -- what is equal, and what differs ---------------------------------------------------------------


def with_ids(run, ids):
    """The record with other token ids."""
    return altered(run, results=[replace(run.result, ids=ids)])


@pytest.mark.parametrize(
    ("text", "differs"),
    [
        (BASE, ""),
        (BASE.replace("400", "401"), "the boxes differ"),
        (BASE.replace("10, 20, 300, 400", "0, 0, 999, 999"), "the boxes differ"),
        (BASE.replace("ref|>text", "ref|>title"), "the labels differ"),
        (
            BASE.replace("ref|>text", "ref|>list").replace("400", "39"),
            "the labels and the boxes differ",
        ),
        (BASE.replace("same words", "other words"), None),
    ],
)
def test_equal_text_from_other_tokens_says_what_differs(text, differs):
    base, other = make_run(text=BASE), make_run(text=text)
    if text != BASE:
        ids = [
            number + 5000 * (piece not in BASE)
            for number, piece in enumerate(other.result.token_texts)
        ]
        ids[8] += 9000
        other = with_ids(other, ids)
    compared = compare(base, other, labels=["before", "after"])
    verdict = compared.verdict
    shown = in_units(compared.table).set_index("metric").loc["agreement", "verdict"]
    if differs is None:
        assert "The text is equal" not in verdict and shown == "text differs"
    else:
        assert shown == "text equal" and ("The text is equal" in verdict) == bool(differs)
        assert differs in verdict
    assert ("The first different token is" in verdict) == (text != BASE)


def test_equal_text_of_other_tokens_is_said_to_be_so():
    base = make_run(text=BASE)
    other = with_ids(base, [number + 1 for number in base.result.ids])
    assert (
        "The text is equal; the tokens that it is made of differ." in compare(base, other).verdict
    )


# -- both names ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("part", "values", "said"),
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
def test_what_differs_is_named_in_both_records(part, values, said):
    known = {"name": "mymodel", "revision": "abc", "server": {"url": "http://a/v1"}}
    base = altered(make_run(), model=known)
    verdict = compare(base, altered(base, **{part: values}), labels=["before", "after"]).verdict
    assert said in verdict
    assert "before against" not in verdict and " is saved, not" not in verdict
    assert said not in compare(base, base, labels=["before", "after"]).verdict


def test_another_page_is_named():
    verdict = compare(make_run(), make_run(rows=2), labels=["a", "b"]).verdict
    assert "Rows side by side: 2 (baseline: 1)." in verdict
    other = make_run(page_name="second.png")
    pages = [replace(page, sha256="0" * 64) for page in other.pages]
    verdict = compare(make_run(), altered(other, pages=pages), labels=["a", "b"]).verdict
    assert "b read another page: second.png (baseline: example.png)." in verdict
    same = altered(make_run(), pages=[replace(page, sha256="0" * 64) for page in make_run().pages])
    assert (
        "b read another page of the same name, example.png."
        in compare(make_run(), same, labels=["a", "b"]).verdict
    )


def with_tokens(*rows):
    """A record whose rows have these tokens: an id and a text each."""
    run = make_run(rows=len(rows))
    results = []
    for result, tokens in zip(run.results, rows, strict=True):
        ids = [token for token, _ in tokens]
        texts = [text for _, text in tokens]
        results.append(to_plain(result) | {"ids": ids, "token_texts": texts})
    return altered(run, results=results)


CAT = [(5, "a "), (6, "cat")]


@pytest.mark.parametrize(
    ("baseline", "other", "expected"),
    [
        ([CAT], [CAT], ""),
        ([CAT], [[(5, "a "), (7, "dog")]], "number 2: 'dog' here, 'cat' in the baseline"),
        ([CAT], [CAT[:1]], "number 2: the end here, 'cat' in the baseline"),
        ([CAT], [[(5, "a "), (8, "\n")]], "number 2: '\\n' here, 'cat' in the baseline"),
        ([CAT], [[(9, ""), (6, "cat")]], "number 1: 9 here, 'a ' in the baseline"),
        (
            [CAT, CAT],
            [CAT, [(5, "a "), (7, "dog")]],
            "number 2 of row 2: 'dog' here, 'cat' in the baseline",
        ),
    ],
)
def test_the_first_token_that_differs_is_named_in_both_records(baseline, other, expected):
    found = first_other_token(with_tokens(*baseline), with_tokens(*other))
    assert found == expected


def test_what_differs_is_a_table_and_equal_records_get_a_sentence():
    run = make_run()
    other = altered(run, model={"dtype": "bfloat16"})
    shown = seen(environment_html(compare(run, other).differs))
    assert "What differs" in shown
    assert "bfloat16" in shown
    assert "are the same" in seen(environment_html(compare(run, run).differs))
