"""The tables of a record, its verdict, and times as text; what is shown of them is approved."""

import math
from collections.abc import Sequence
from dataclasses import replace

import msgspec
import numpy as np
import pytest
from example_run import altered, check_of, make_run, paced, with_steps

from ocr_phases import PhaseRun
from ocr_phases.analyse.figure_rows import FIGURE_ROWS, FIGURES, Place, figures_in
from ocr_phases.analyse.quality import AGREEMENT, MEASURES
from ocr_phases.analyse.sentences import findings, verdict
from ocr_phases.analyse.stages import (
    decode_trend,
    repeat_table,
    stage_table,
    step_table,
    token_of_step,
    typical_repeat,
)
from ocr_phases.show.latency_plot import plot_latency
from ocr_phases.show.run_times import latency_section
from ocr_phases.text import ms_text


def test_the_table_of_repeats_agrees_with_the_record() -> None:
    run = make_run()

    table = repeat_table(run)

    for name in ("prefill_ms", "tokens_per_s"):
        assert table[name].median() == pytest.approx(run[name])
    np.testing.assert_allclose(table["ttft_ms"], table["prepare_ms"] + table["prefill_ms"])


def test_the_slow_step_is_the_only_outlier() -> None:
    steps = step_table(make_run())

    assert steps.loc[steps["outlier"], "step"].tolist() == [60]


def test_a_step_has_its_token_its_cache_and_its_range_over_the_repeats() -> None:
    run = make_run()

    row = step_table(run).iloc[60]

    assert row["text"] == run.result.token_texts[61]
    assert row["cache_len"] == run.request.prefill_len + 61
    assert row["device_ms_p10"] <= row["device_ms"] <= row["device_ms_p90"]


def test_a_stages_ninth_decile_is_that_of_its_repeats() -> None:
    run = make_run(repeats=10)  # fewer have the least and the greatest, as approved

    prefill = stage_table(run).set_index("stage").loc["prefill"]

    ninth_decile = repeat_table(run)["prefill_ms"].quantile(0.9)
    assert prefill["device_ms_p90"] == pytest.approx(ninth_decile)


def without_steps(run: PhaseRun, repeats: Sequence[int]) -> PhaseRun:
    """The record as if the tokens of these repeats had come together: a decode phase, no step."""
    spans = run.spans
    is_dropped = spans["repeat"].isin(repeats) & (spans["stage"] == "decode_step")
    return replace(run, spans=spans[~is_dropped].reset_index(drop=True))


def with_unknown_tokens(run: PhaseRun) -> PhaseRun:
    """The record of a server that sends pieces of text and tells no number of tokens."""
    pieces = msgspec.structs.replace(run.result, pieces=True, token_count=None)
    return replace(run, results=[pieces])


RATE_CASES = [
    pytest.param(make_run(), [True, True, True], id="steps"),
    pytest.param(without_steps(make_run(), [1]), [True, False, True], id="one repeat without"),
    pytest.param(without_steps(make_run(), [0, 1, 2]), [False, False, False], id="no steps"),
    pytest.param(with_unknown_tokens(make_run()), [False, False, False], id="tokens unknown"),
    pytest.param(make_run(max_tokens=1), [False, False, False], id="the prefill's token alone"),
    pytest.param(make_run(generate=True), [False, False, False], id="generate()"),
]


@pytest.mark.parametrize(("run", "has_rate"), RATE_CASES)
def test_tokens_per_second_need_steps_and_a_number_of_tokens_and_are_one_figure(
    run: PhaseRun, has_rate: list[bool]
) -> None:
    rates = repeat_table(run)["tokens_per_s"]

    assert rates.notna().tolist() == has_rate
    if any(has_rate):
        assert run["tokens_per_s"] == rates.median()
    else:
        assert run["tokens_per_s"] is None


@pytest.mark.parametrize(("first_token", "token"), [("prefill", 62), ("redecode", 61)])
def test_a_slow_step_is_named_by_its_token_counted_from_one_wherever_a_person_reads(
    first_token: str, token: int
) -> None:
    run = altered(make_run(), request={"first_token": first_token})

    # The tables for programs go on counting steps from 0.
    assert step_table(run).query("outlier")["step"].tolist() == [60]
    assert token_of_step(run, 60) == token
    assert check_of(run, "outlier_steps").measured.startswith(f"token {token}: ")
    assert f"the slowest made token {token}," in " ".join(findings(run))
    assert f">{token}<" in latency_section(run).html()


@pytest.mark.parametrize(("first_token", "token"), [("prefill", 62), ("redecode", 61)])
def test_the_plot_of_latency_counts_tokens_from_one(first_token: str, token: int) -> None:
    run = altered(make_run(), request={"first_token": first_token})

    (axes, *_) = plot_latency(run).axes

    labels = [text.get_text() for text in axes.texts]
    assert any(label.startswith(f"token {token}") for label in labels)
    left, _ = axes.get_xlim()
    assert left == token - 60.5


def test_the_typical_repeat_is_near_the_median_in_both_phases() -> None:
    """The total alone would choose the second, whose prefill is three times the others'."""
    slow_prefill = paced(make_run(repeats=3), 1.0, 3.0, 1.0, phase="prefill")
    run = paced(slow_prefill, 1.0, 1.08, 1.1, phase="decode")

    assert typical_repeat(run) != 1


def test_every_figure_has_one_row() -> None:
    figures = {*make_run().summary(), *MEASURES, *AGREEMENT.values()}

    assert len(FIGURE_ROWS) == len(FIGURES)
    assert figures - set(FIGURE_ROWS) == set()


@pytest.mark.parametrize("place", Place)
def test_no_two_figures_have_the_same_rank_in_a_place(place: Place) -> None:
    ranks = [row.places[place] for row in figures_in(place)]

    assert ranks
    assert len(set(ranks)) == len(ranks)


def test_every_figure_on_a_card_has_a_label() -> None:
    assert all(row.card for row in figures_in(Place.CARD))


def idle_device_run() -> PhaseRun:
    """A record of a GPU whose host took twice as long for each span."""
    run = make_run(cuda=True)
    spans = run.spans.assign(host_ms=run.spans["device_ms"] * 2)
    return altered(run, spans=spans)


def drifting_run() -> PhaseRun:
    """A record whose decode steps take longer and longer."""

    def step_ms(step: int, _repeat: int) -> float:
        return 10.0 + 0.05 * step

    return with_steps(make_run(), step_ms)


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (make_run(repeats=1), "single repeat"),
        (make_run(max_tokens=1), "The prefill gave the only token"),
        (make_run(max_tokens=20), "limit of 20 tokens"),
        (altered(make_run(max_tokens=20), request={"ignore_eos": True}), "end token was ignored"),
        (make_run(generate=True), "One-shot"),
        (altered(make_run(), request={"warmup": 0}), "no warm-up"),
        (make_run(cuda=True), "host ran ahead"),
        (idle_device_run(), "the device was idle"),
    ],
)
def test_the_verdict_names_what_is_missing_or_odd(run: PhaseRun, words: str) -> None:
    assert words in verdict(run)
    assert words not in verdict(make_run())


def test_the_verdict_says_by_how_much_decoding_became_slower() -> None:
    run = drifting_run()
    slower_by = decode_trend(run).shares[0]

    sentence = f"became {100 * slower_by:.1f} % slower over the run"

    assert sentence in verdict(run)
    assert sentence not in verdict(make_run())


def test_the_verdict_of_a_usual_record_says_nothing_of_clocks() -> None:
    assert "clock" not in verdict(make_run())


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (None, "n/a"),
        (math.nan, "n/a"),
        (0.0, "0 ms"),
        (0.0583, "0.058 ms"),
        (0.5, "0.500 ms"),
        (9.994, "9.99 ms"),
        (9.996, "10.0 ms"),
        (99.96, "100 ms"),
        (999.4, "999 ms"),
        (999.6, "1.00 s"),
        (12_340.0, "12.3 s"),
        (1_000_000.0, "1,000 s"),
    ],
)
def test_a_time_is_written_with_three_digits_in_its_unit(ms: float | None, text: str) -> None:
    assert ms_text(ms) == text


def test_each_caller_of_a_table_has_a_copy() -> None:
    run = make_run()
    steps = step_table(run)

    steps["device_ms"] = 0.0

    assert step_table(run)["device_ms"].gt(0).all()
