"""The tables of a record, its verdict, and times as text; what is shown of them is approved."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest
from example_run import altered, make_run, paced, with_steps

from ocr_phases.analyse.checks import run_checks
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


def test_repeats_agree_with_the_record_and_the_slow_step_is_the_only_outlier() -> None:
    run = make_run()
    table = repeat_table(run)
    for name in ("prefill_ms", "tokens_per_s"):
        assert table[name].median() == pytest.approx(run[name])
    np.testing.assert_allclose(table["ttft_ms"], table["prepare_ms"] + table["prefill_ms"])
    steps = step_table(run)
    assert steps.loc[steps["outlier"], "step"].tolist() == [60]
    row = steps.iloc[60]
    token = [run.result.token_texts[61], run.request.prefill_len + 61]
    assert row[["text", "cache_len"]].tolist() == token
    assert row["device_ms_p10"] <= row["device_ms"] <= row["device_ms_p90"]
    many = make_run(repeats=10)  # fewer have the least and the greatest, as approved
    prefill = stage_table(many).set_index("stage").loc["prefill"]
    assert prefill["device_ms_p90"] == pytest.approx(repeat_table(many)["prefill_ms"].quantile(0.9))


def _without_steps(run, repeats):
    """The record as if the tokens of these repeats had come together: a decode phase, no step."""
    spans = run.spans
    together = spans["repeat"].isin(repeats) & (spans["stage"] == "decode_step")
    return replace(run, spans=spans[~together].reset_index(drop=True))


def _with_unknown_tokens(run):
    """The record of a server that sends pieces of text and tells no number of tokens."""
    pieces = msgspec.structs.replace(run.result, pieces=True, token_count=None)
    return replace(run, results=[pieces])


@pytest.mark.parametrize(
    ("run", "has_rate"),
    [
        (make_run(), [True, True, True]),
        (_without_steps(make_run(), [1]), [True, False, True]),
        (_without_steps(make_run(), [0, 1, 2]), [False, False, False]),
        (_with_unknown_tokens(make_run()), [False, False, False]),
        (make_run(max_tokens=1), [False, False, False]),  # the prefill's token is the only one
        (make_run(generate=True), [False, False, False]),
    ],
    ids=["steps", "one repeat without", "no steps", "tokens unknown", "one token", "generate()"],
)
def test_tokens_per_second_need_steps_and_a_number_of_tokens_and_are_one_figure(run, has_rate):
    rates = repeat_table(run)["tokens_per_s"]
    assert rates.notna().tolist() == has_rate
    assert run["tokens_per_s"] == (rates.median() if any(has_rate) else None)


@pytest.mark.parametrize("first_token, token", [("prefill", 62), ("redecode", 61)])
def test_a_slow_step_is_named_by_its_token_counted_from_one_wherever_a_person_reads(
    first_token, token
):
    run = altered(make_run(), request={"first_token": first_token})
    # The tables for programs go on counting steps from 0.
    assert step_table(run).query("outlier")["step"].tolist() == [60]
    assert token_of_step(run, 60) == token
    (check,) = (each for each in run_checks(run) if each.name == "outlier_steps")
    assert check.measured.startswith(f"token {token}: ")
    assert f"the slowest made token {token}," in " ".join(findings(run))
    figure = plot_latency(run)
    assert any(each.get_text().startswith(f"token {token}") for each in figure.axes[0].texts)
    assert figure.axes[0].get_xlim()[0] == token - 60.5
    assert f">{token}<" in latency_section(run).html()


def test_the_typical_repeat_is_near_the_median_in_both_phases() -> None:
    """The total alone would choose the second, whose prefill is three times the others'."""
    run = paced(make_run(repeats=3), 1.0, 3.0, 1.0, phase="prefill")
    assert typical_repeat(paced(run, 1.0, 1.08, 1.1, phase="decode")) != 1


def test_every_figure_has_one_row() -> None:
    assert len(FIGURE_ROWS) == len(FIGURES)
    known = {*make_run().summary(), *MEASURES, *AGREEMENT.values()}
    assert not known - set(FIGURE_ROWS)


@pytest.mark.parametrize("place", Place)
def test_no_two_figures_have_the_same_rank_in_a_place(place: Place) -> None:
    ranks = [row.places[place] for row in figures_in(place)]
    assert ranks and len(set(ranks)) == len(ranks)


def test_every_figure_on_a_card_has_a_label() -> None:
    assert all(row.card for row in figures_in(Place.CARD))


HOST = {"host_ms": lambda spans: spans["device_ms"] * 2}
DRIFT = with_steps(make_run(), lambda step, _: 10.0 + 0.05 * step)
TOLD = {
    "single repeat": make_run(repeats=1),
    "The prefill gave the only token": make_run(max_tokens=1),
    "limit of 20 tokens": make_run(max_tokens=20),
    "end token was ignored": altered(make_run(max_tokens=20), request={"ignore_eos": True}),
    "One-shot": make_run(generate=True),
    "no warm-up": altered(make_run(), request={"warmup": 0}),
    "host ran ahead": make_run(cuda=True),
    "the device was idle": altered(
        make_run(cuda=True), spans=make_run(cuda=True).spans.assign(**HOST)
    ),
    f"became {100 * decode_trend(DRIFT).shares[0]:.1f} % slower over the run": DRIFT,
}


@pytest.mark.parametrize("said", TOLD)
def test_the_verdict_names_what_is_missing_or_odd(said: str) -> None:
    usual = verdict(make_run())
    assert said in verdict(TOLD[said]) and said not in usual and "clock" not in usual


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        *(
            (None, "n/a"),
            (float("nan"), "n/a"),
            (0.0, "0 ms"),
            (0.0583, "0.058 ms"),
            (0.5, "0.500 ms"),
        ),
        *((9.994, "9.99 ms"), (9.996, "10.0 ms"), (99.96, "100 ms"), (999.4, "999 ms")),
        *((999.6, "1.00 s"), (12_340.0, "12.3 s"), (1_000_000.0, "1,000 s")),
    ],
)
def test_ms_text(ms: float | None, text: str) -> None:
    assert ms_text(ms) == text


def test_each_caller_of_a_table_has_a_copy() -> None:
    run = make_run()
    steps = step_table(run)
    steps["device_ms"] = 0.0
    assert step_table(run)["device_ms"].gt(0).all()
