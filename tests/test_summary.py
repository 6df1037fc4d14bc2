"""The tables and the verdict, over every shape a record can have."""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
import pytest
from example_run import SHAPES, make_run

from ocr_phases.analyse.sentences import key_metrics, key_metrics_text, verdict
from ocr_phases.analyse.stages import (
    cached,
    decode_trend,
    repeat_table,
    stage_medians,
    stage_repeats,
    stage_table,
    step_table,
    typical_repeat,
)
from ocr_phases.record import PhaseRun
from ocr_phases.text import ms_text, percent_text


def test_stage_table_starts_each_phase_with_its_whole() -> None:
    table = stage_table(make_run())
    for phase, rows in table.groupby("phase"):
        assert rows.iloc[0]["stage"] == phase
        assert rows.iloc[0]["share"] == 1.0
    assert table["phase"].drop_duplicates().tolist() == ["prepare", "prefill", "decode"]


def test_stage_table_has_medians_over_repeats_and_below_ten_the_least_and_the_greatest() -> None:
    run = make_run()
    spans = run.spans
    steps = spans[spans["stage"] == "decode_step"].groupby("repeat")["device_ms"].sum()
    row = stage_table(run).query("stage == 'decode_step'").iloc[0]
    assert row["calls"] == run.token_count - 1
    assert row["device_ms"] == pytest.approx(steps.median())
    assert row["device_ms_p10"], row["device_ms_p90"] == pytest.approx((steps.min(), steps.max()))
    many = make_run(repeats=10)
    sums = many.repeat_ms("sam", "prefill")
    row = stage_table(many).query("stage == 'sam' and view == 'global'").iloc[0]
    whole = stage_repeats(many).loc[("prefill", "sam", "global")]
    assert row["device_ms_p90"] == pytest.approx(whole.quantile(0.9))
    assert len(sums) == 10


def test_a_stages_time_is_of_a_repeat_and_in_decode_of_a_step() -> None:
    run = make_run()
    times, spans = stage_medians(run), run.spans
    for (phase, stage, view), ms in times.items():
        rows = spans[(spans["phase"] == phase) & (spans["stage"] == stage) & (spans["view"] == view)]
        assert ms == pytest.approx(rows["device_ms"].median())  # one call in a repeat or a step
    assert times["decode", "decode_step", ""] == run["inter_token_ms"]
    assert ("decode", "decode", "") not in times
    first = stage_medians(run, steps=(0, 1))
    steps = spans[(spans["stage"] == "lm_head") & spans["step"].isin([0, 1])]
    assert first["decode", "lm_head", ""] == steps["device_ms"].median()
    assert first["prefill", "sam", "local"] == times["prefill", "sam", "local"]
    assert "decode" not in stage_medians(run, steps=()).index.get_level_values("phase")


def test_repeat_table_agrees_with_the_record() -> None:
    run = make_run()
    table = repeat_table(run)
    assert table["prefill_ms"].median() == pytest.approx(run["prefill_ms"])
    assert table["tokens_per_s"].median() == pytest.approx(run["tokens_per_s"])
    np.testing.assert_allclose(table["ttft_ms"], table["prepare_ms"] + table["prefill_ms"])


def test_the_slow_step_is_the_only_outlier_and_names_its_token() -> None:
    run = make_run()
    table = step_table(run)
    assert table.loc[table["outlier"], "step"].tolist() == [60]
    row = table.iloc[60]
    assert row["text"] == run.result["token_texts"][61]
    assert row["cache_len"] == run.request["prefill_len"] + 61
    assert row["device_ms_p10"] <= row["device_ms"] <= row["device_ms_p90"]


@pytest.mark.parametrize("shape", SHAPES)
def test_key_figures_are_those_of_the_summary(shape: str) -> None:
    run = make_run(**SHAPES[shape])
    figures, shown = run.summary(), {label: value for label, value, _ in key_metrics(run)}
    names = {"Prefill": "prefill_ms", "Time to first token": "ttft_ms", "generate()": "generate_ms"}
    names |= {"Inter-token latency": "inter_token_ms", "Decode": "decode_ms"}
    for label, name in names.items():
        known = figures[name] is not None and (figures["decode_steps"] or name not in ("decode_ms",))
        assert shown.get(label) == (ms_text(figures[name]) if known else None)
    assert len(key_metrics_text(run).splitlines()) == len(shown)


def test_the_typical_repeat_is_near_the_median_in_both_phases() -> None:
    """The total alone would choose the second, whose prefill is three times the others'."""
    run = make_run(repeats=3)
    spans = run.spans.copy()
    for repeat, prefill, decode in ((0, 1.0, 1.0), (1, 3.0, 1.08), (2, 1.0, 1.1)):
        mine = spans["repeat"] == repeat
        spans.loc[mine & (spans["phase"] == "prefill"), ["device_ms", "host_ms"]] *= prefill
        spans.loc[mine & (spans["phase"] == "decode"), ["device_ms", "host_ms"]] *= decode
    run = dataclasses.replace(run, spans=spans)
    assert typical_repeat(run) != 1


def test_the_verdict_names_what_is_missing() -> None:
    assert "single repeat" in verdict(make_run(repeats=1))
    assert "The prefill gave the only token" in verdict(make_run(max_tokens=1))
    assert "limit of 20 tokens" in verdict(make_run(max_tokens=20))
    assert "One-shot" in verdict(make_run(generate=True))
    assert "3 rows together" in key_metrics_text(make_run(rows=3))


def _with_request(run: PhaseRun, **values: object) -> PhaseRun:
    return dataclasses.replace(run, request={**run.request, **values})


def test_the_verdict_knows_about_warm_up_and_the_end_token() -> None:
    assert "no warm-up" in verdict(_with_request(make_run(), warmup=0))
    assert "end token was ignored" in verdict(_with_request(make_run(max_tokens=20), ignore_eos=True))


def test_the_clocks_are_compared_on_cuda_alone_and_only_where_they_differ() -> None:
    assert "host ran ahead" in verdict(make_run(cuda=True))
    assert "clock" not in verdict(make_run())
    run = make_run(cuda=True)
    spans = run.spans.assign(host_ms=run.spans["device_ms"] * 2)
    assert "the device was idle" in verdict(dataclasses.replace(run, spans=spans))


def test_a_drift_over_the_steps_is_told() -> None:
    run = make_run()
    spans = run.spans.copy()
    steps = spans["stage"] == "decode_step"
    spans.loc[steps, "device_ms"] = 10.0 + spans.loc[steps, "step"].astype(float) * 0.05
    drifting = dataclasses.replace(run, spans=spans)
    trend = decode_trend(drifting)
    assert trend.slope == pytest.approx(0.05)
    assert trend.interval == pytest.approx((0.05, 0.05))
    assert f"became {percent_text(trend.shares[0])} slower over the run" in verdict(drifting)
    steady = decode_trend(run)
    assert steady.interval[0] <= steady.slope <= steady.interval[1]
    assert "over the run" not in verdict(run)


@pytest.mark.parametrize(
    ("ms", "text"),
    [
        (None, "n/a"),
        (float("nan"), "n/a"),
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
def test_ms_text(ms: float | None, text: str) -> None:
    assert ms_text(ms) == text


def test_what_follows_from_a_record_is_worked_out_once_and_each_caller_has_a_copy() -> None:
    made = []

    @cached
    def table(run: PhaseRun, row: int = 0) -> pd.DataFrame:
        made.append(row)
        return pd.DataFrame({"a": [row]})

    run = make_run()
    first = table(run)
    first["a"] = 5
    assert table(run)["a"].tolist() == [0]
    assert table(run, 1)["a"].tolist() == [1]
    assert made == [0, 1]
    table(dataclasses.replace(run))
    assert made == [0, 1, 0]
    steps = step_table(run)
    steps["device_ms"] = 0.0
    assert step_table(run)["device_ms"].gt(0).all()
