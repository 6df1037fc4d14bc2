"""Comparing records: intervals, verdicts, environments, the verb for CI, the notebook and its pictures."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from elements import Elements
from example_run import SHAPES, make_run
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused
from wording import says

from ocr_phases.analyse import bootstrap
from ocr_phases.analyse.bootstrap import difference_and_ratio, median_interval, paired_ratio, resampled
from ocr_phases.analyse.compare import (
    COMPARE_COLUMNS,
    Compared,
    against_limit,
    compare_runs,
    few_repeats,
    headline_metrics,
    in_units,
    metrics_of,
    same_tokens,
)
from ocr_phases.analyse.environments import environment_table, run_labels
from ocr_phases.analyse.steps import first_other_token
from ocr_phases.cli import main
from ocr_phases.files import MANIFEST_NAME
from ocr_phases.record import PhaseRun
from ocr_phases.show import compare as show
from ocr_phases.show.figures import figure_png


def scaled(run: PhaseRun, factor: float, **only: str) -> PhaseRun:
    """The record with all its times, or those of the spans named by ``only``, times ``factor``."""
    spans = run.spans.copy()
    rows = np.ones(len(spans), dtype=bool)
    for column, value in only.items():
        rows &= (spans[column] == value).to_numpy()
    times = ["device_ms", "host_ms"]
    spans.loc[rows, times] = spans.loc[rows, times] * factor
    return dataclasses.replace(run, spans=spans)


# -- intervals ----------------------------------------------------------------------------------------


@given(st.lists(st.floats(0.1, 1e3), min_size=2, max_size=9))
@settings(max_examples=40, deadline=None)
def test_an_interval_holds_its_median_and_stays_within_the_data(values: list[float]) -> None:
    found = median_interval(np.array(values))
    assert found == median_interval(np.array(values))
    assert min(values) <= found.low <= found.value <= found.high <= max(values)


def test_a_single_repeat_has_no_interval() -> None:
    found = median_interval(np.array([3.0]))
    assert found.value == 3.0
    assert np.isnan([found.low, found.high]).all()


def test_paired_ratios_ignore_a_drift_that_pairs_share() -> None:
    drift = np.linspace(1.0, 3.0, 15)
    found = paired_ratio(1.1 * drift, drift)
    assert (found.value, found.low, found.high) == pytest.approx((1.1, 1.1, 1.1))
    with refused():
        paired_ratio(np.ones(2), np.ones(1))


def test_the_interval_covers_as_often_as_it_says() -> None:
    rng = np.random.default_rng(5)
    hits = 0
    for seed in range(200):
        found = median_interval(rng.normal(10.0, 1.0, 15), seed)
        hits += found.low <= 10.0 <= found.high
    assert 180 <= hits <= 199


def test_repeats_are_drawn_whole_and_large_records_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    samples = np.array([[1.0, 1.0, 1.0], [9.0, 9.0, 9.0]])
    assert set(resampled(samples, 0.5, 0)) == {1.0, 5.0, 9.0}
    samples = np.random.default_rng(0).normal(size=(7, 40))
    whole = resampled(samples, 0.9, 0)
    monkeypatch.setattr(bootstrap, "_CHUNK", 1_000)
    assert np.array_equal(resampled(samples, 0.9, 0), whole)


def test_a_shorter_repeat_and_a_zero_base() -> None:
    base = np.array([[1.0, 2.0], [1.0, np.nan]])
    difference, ratio = difference_and_ratio(base, 2 * base, 0.5)
    assert (difference.value, ratio.value) == (1.0, 2.0)
    difference, ratio = difference_and_ratio(np.zeros((3, 1)), np.ones((3, 1)), 0.5)
    assert difference.value == 1.0
    assert np.isnan(ratio.value)


# -- comparing ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", SHAPES)
def test_metrics_are_the_summarys(shape: str) -> None:
    run = make_run(**SHAPES[shape])
    summary = run.summary()
    found = metrics_of(run)
    for name, metric in found.items():
        assert metric.samples.shape[0] == len(run.repeats)
        if name in summary and name != "ttft_ms":
            value = np.nanquantile(metric.samples, metric.quantile)
            assert value == pytest.approx(summary[name]), name
    assert ("prefill/sam/global" in found) == (summary["prefill_ms"] is not None)


def test_a_change_is_found_where_it_is_and_nowhere_else() -> None:
    base = make_run(repeats=5)
    table = compare_runs([base, scaled(base, 1.5, phase="prefill", stage="sam")]).set_index("metric")
    assert tuple(table.reset_index()[list(COMPARE_COLUMNS)].columns) == COMPARE_COLUMNS
    for metric, row in table.iterrows():
        changed = metric in ("vision_ms", "prefill/sam/global", "prefill/sam/local")
        expected = {"slower"} if changed else {"equivalent", "inconclusive"}
        assert row["verdict"] in expected, metric
    row = table.loc["prefill/sam/global"]
    assert row["ratio"] == pytest.approx(1.5)
    assert row["difference"] == pytest.approx(row["other"] - row["base"])
    assert row["ratio_low"] <= row["ratio"] <= row["ratio_high"]


def test_verdicts_know_which_way_is_better() -> None:
    base = make_run(repeats=5)
    slow = dataclasses.replace(
        scaled(base, 2.0), memory={**base.memory, "peak_bytes": {"decode": [2_000_000_000] * 5}}
    )
    table = compare_runs([base, slow]).set_index("metric")["verdict"]
    assert table["prefill_ms"] == table["tokens_per_s"] == "slower"
    assert table["decode_peak_bytes"] == "more"
    assert table["prefill_peak_bytes"] == "n/a"
    table = compare_runs([slow, base]).set_index("metric")["verdict"]
    assert table["prefill_ms"] == table["tokens_per_s"] == "faster"
    assert table["decode_peak_bytes"] == "less"


def test_what_only_one_has_and_single_repeats_have_no_verdict() -> None:
    table = compare_runs([make_run(crops=False), make_run(repeats=1)]).set_index("metric")
    assert table.loc["prefill/sam/local", "verdict"] == "n/a"
    assert np.isnan(table.loc["prefill/sam/local", "base"])
    assert table.loc["prefill_ms", "verdict"] == "n/a"
    assert not headline_metrics(table.reset_index()).empty
    with refused():
        compare_runs([make_run()])


@pytest.mark.parametrize(
    ("counts", "told"),
    [
        ((5, 5), ()),
        ((3, 3), ("a", "3 repeats", "b", "3 repeats")),
        ((9, 4), ("b", "4 repeats")),
        ((1, 9), ("a", "1 repeat", "no interval")),
    ],
)
def test_few_repeats_are_told_and_judge_what_is_far_apart(
    counts: tuple[int, int], told: tuple[str, ...]
) -> None:
    one, other = (make_run(repeats=count) for count in counts)
    runs, labels = [one, scaled(other, 3.0)], ["a", "b"]
    table = compare_runs(runs, labels).set_index("metric")
    said, sentence = Compared(runs, labels).verdict, few_repeats(runs, labels)
    assert says(sentence, *told) and bool(sentence) == bool(told)
    assert said.endswith(sentence)
    times = set(table.loc[table["unit"] == "ms", "verdict"])
    assert times == {"slower" if min(counts) > 1 else "n/a"}
    assert ("slower" in said.removesuffix(sentence)) == (min(counts) > 1)
    assert table.loc["kv_cache_bytes", "verdict"] == ("equivalent" if min(counts) > 1 else "n/a")
    assert min(counts) == 1 or table.loc["kv_cache_bytes", "ratio_low"] == 1.0
    assert figure_png(show.plot_ratios(headline_metrics(table.reset_index()))).startswith(b"\x89PNG")


def test_what_few_repeats_span_holds_the_median_as_often_as_is_said() -> None:
    rng = np.random.default_rng(3)
    for count in (3, 4, 5):
        drawn = rng.normal(size=(20_000, count))
        held = ((drawn.min(axis=1) < 0) & (drawn.max(axis=1) > 0)).mean()
        assert held == pytest.approx(1 - 2.0 ** (1 - count), abs=0.01)


@pytest.mark.parametrize(("ours", "theirs"), [(2, 2), (3, 3), (2, 4), (4, 4)])
def test_few_equal_repeats_are_seldom_told_apart(ours: int, theirs: int) -> None:
    rng = np.random.default_rng(7)
    apart = 0
    for seed in range(150):
        base, other = (np.exp(rng.normal(0, 0.05, (count, 1))) for count in (ours, theirs))
        _, ratio = difference_and_ratio(base, other, 0.5, seed)
        assert ratio.low <= ratio.value <= ratio.high
        apart += not ratio.low <= 1.0 <= ratio.high
    assert apart <= 14  # 5 % of 150, and what chance adds to it


def with_prefills(*ms: float) -> PhaseRun:
    """A record whose prefill took so long in each repeat."""
    run = make_run(repeats=len(ms))
    spans = run.spans.copy()
    for repeat, time in enumerate(ms):
        whole = (spans["repeat"] == repeat) & (spans["stage"] == "prefill")
        spans.loc[whole, ["device_ms", "host_ms"]] = time
    return dataclasses.replace(run, spans=spans)


@pytest.mark.parametrize(
    ("base", "other", "verdict"),
    [
        ((100, 101, 100.5), (10.4, 10.5, 10.1), "faster"),
        ((100, 101), (10.4, 10.5), "faster"),
        ((100, 101, 100.5), (1000, 1010, 990), "slower"),
        ((90, 150, 100), (120, 110, 160), "inconclusive"),
        ((100, 130, 90, 110, 95), (120, 99, 112, 180, 125), "inconclusive"),
        ((100, 101, 100, 99, 100), (100, 4000, 99, 3000, 112), "inconclusive"),
        ((100, 100.1, 99.9, 100, 100), (100, 100.2, 99.9, 100.1, 100), "equivalent"),
        ((100, 100, 100, 100, 100), (101, 101, 101, 101, 101), "equivalent"),
        ((100, 100, 100, 100, 100), (104, 104, 104, 104, 104), "slower"),
    ],
)
def test_three_verdicts(base: tuple[float, ...], other: tuple[float, ...], verdict: str) -> None:
    runs, labels = [with_prefills(*base), with_prefills(*other)], ["a", "b"]
    table = compare_runs(runs, labels)
    row = table.set_index("metric").loc["prefill_ms"]
    assert row["verdict"] == verdict
    said = Compared(runs, labels).verdict
    assert f" {verdict} (" in said.partition("a decode step")[0]
    reach = max(row["ratio"] / row["ratio_low"], row["ratio_high"] / row["ratio"]) - 1.0
    assert row["detectable"] == pytest.approx(reach)
    assert ("cannot be resolved" in said) or verdict != "inconclusive"
    assert ("times as fast" in said) == (verdict == "faster")


def test_the_margin_decides_what_is_equivalent() -> None:
    runs = [with_prefills(*[100] * 5), with_prefills(*[104] * 5)]
    found = [
        compare_runs(runs, margin=margin).set_index("metric").loc["prefill_ms", "verdict"]
        for margin in (2, 5)
    ]
    assert found == ["slower", "equivalent"]
    for margin in (-1, 100, float("nan")):
        with refused():
            compare_runs(runs, margin=margin)


def outcomes(table: pd.DataFrame, percent: float, metrics: tuple[str, ...] = ()) -> dict[str, str]:
    judged = against_limit(table, percent, metrics)
    return dict(zip(judged["metric"], judged["outcome"], strict=True))


def test_limits() -> None:
    base = make_run(repeats=5)
    table = compare_runs([base, scaled(base, 1.2)])
    assert outcomes(table, 10) == {"prefill_ms": "worse", "inter_token_ms": "worse"}
    assert set(outcomes(table, 25).values()) == {"within"}
    assert outcomes(table, 10, ("tokens_per_s",)) == {"tokens_per_s": "worse"}
    assert set(outcomes(compare_runs([scaled(base, 1.2), base]), 0).values()) == {"within"}
    unsure = compare_runs([with_prefills(90, 150, 100), with_prefills(120, 110, 160)])
    assert outcomes(unsure, 10, ("prefill_ms",)) == {"prefill_ms": "undecided"}
    with refused():
        against_limit(table, 10, ["speed"])
    with refused():
        against_limit(compare_runs([make_run(repeats=1), base]), 10)
    with refused():
        against_limit(compare_runs([make_run(crops=False), base]), 10, ["prefill/sam/local"])
    with refused():
        against_limit(compare_runs([make_run(generate=True), make_run(generate=True)]).iloc[:0], 10)


def test_a_stage_is_named_as_it_is_shown() -> None:
    base = make_run(repeats=5)
    table = compare_runs([base, scaled(base, 1.2)])
    assert "prefill/language_model" in set(in_units(table)["metric"])
    judged = against_limit(table, 10, ["prefill/language_model"])
    assert judged["metric"].tolist() == ["prefill/language_model"]
    assert judged["outcome"].tolist() == ["worse"]


def test_a_thirtieth_is_told_as_a_speed() -> None:
    base = make_run(repeats=5)
    said = Compared([base, scaled(base, 0.03)]).verdict
    assert "33.3 times as fast" in said
    assert "0.03" not in said


def test_the_first_token_that_differs_is_named() -> None:
    base = make_run()
    ids, texts = list(base.result["ids"]), list(base.result["token_texts"])
    assert first_other_token(base, base) == ""
    change = {"ids": [*ids[:3], 7777, *ids[4:]], "token_texts": [*texts[:3], "\x1b[2J", *texts[4:]]}
    other = dataclasses.replace(base, results=[{**base.result, **change}])
    where = first_other_token(base, other)
    assert says(where, "number 3") and where.index(r"'\x1b[2J'") < where.index(repr(texts[3]))
    assert where in Compared([base, other]).verdict
    shorter = dataclasses.replace(base, results=[{**base.result, "ids": ids[:2], "token_texts": texts[:2]}])
    where = first_other_token(base, shorter)
    assert says(where, "number 2", "the end") and repr(texts[2]) in where


def test_environments_side_by_side() -> None:
    then, now = make_run(), make_run(cuda=True)
    table = environment_table([then, now, then], ["a", "b", "c"]).set_index("name")
    assert table.loc["dtype", ["a", "b", "c"]].tolist() == ["float32", "bfloat16", "float32"]
    assert "torch" not in table.index
    assert "torch" in set(environment_table([then, now], everything=True)["name"])
    assert environment_table([then, make_run(seed=1)]).empty
    assert same_tokens(then, make_run(seed=1))
    assert not same_tokens(then, make_run(max_tokens=5))


def test_labels_are_all_different() -> None:
    runs = [make_run(), make_run(), make_run(cuda=True)]
    assert run_labels(runs, ["a/x.json", "b/x.json", "y.json"]) == ["x (1)", "x (2)", "y"]
    assert len(set(run_labels(runs))) == 3


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.filterwarnings("error")
def test_every_shape_is_compared_and_drawn(shape: str) -> None:
    runs = [make_run(), make_run(**SHAPES[shape])]
    labels = run_labels(runs)
    table = compare_runs(runs, labels)
    said = Compared(runs, labels).verdict
    assert said.endswith(".")
    assert "nan" not in said
    for figure in (
        show.plot_ratios(headline_metrics(table)),
        show.plot_prefill_stages(runs, labels),
        show.plot_decode(runs, labels),
    ):
        assert figure_png(figure).startswith(b"\x89PNG")
    elements = Elements(show.compare_html(table) + show.environment_html(environment_table(runs, labels)))
    assert not elements.open
    assert "nan" not in elements.said


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"name": "dummy"}, "The model is dummy, not tiny."),
        ({"revision": "sha256:1"}, "The model's weights have another revision."),
        ({"dtype": "bfloat16"}, "It computes in bfloat16, not float32."),
    ],
)
def test_another_model_is_said(change: dict[str, str], sentence: str) -> None:
    base = make_run()
    runs = [base, dataclasses.replace(base, model=base.model | change)]
    assert sentence in Compared(runs).verdict
    assert sentence not in Compared([base, base]).verdict


def test_nothing_to_show_is_said() -> None:
    empty = pd.DataFrame(columns=list(COMPARE_COLUMNS))
    assert "nothing in common" in show.compare_html(empty)
    assert "are the same" in show.environment_html(environment_table([make_run(), make_run()]))


# -- the verb -----------------------------------------------------------------------------------------


def fail_above_ten(run: PhaseRun, folder: Path, after: str) -> Path:
    """Compare ``run`` with itself 30 % slower in prefill, which fails; the folder with what was written."""
    paths = [
        str(run.save(folder / "before.json")),
        str(scaled(run, 1.3, phase="prefill").save(folder / f"{after}.json")),
    ]
    assert main(["compare", *paths, "--out", str(folder / "out"), "--fail-above", "10"]) == 1
    return folder / "out"


def test_the_verb_writes_one_html_and_fails_above_a_limit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = fail_above_ten(make_run(repeats=5, page_name="<b>.png"), tmp_path, "after<i>")
    said = capsys.readouterr().out
    assert says(said, "after<i>", "prefill_ms", "worse", "10 %", "1.300")
    assert "inter_token_ms" not in said.partition("after<i>")[2]
    assert {path.name for path in out.iterdir()} == {"compare.html", "compare.ipynb", MANIFEST_NAME}
    elements = Elements((out / "compare.html").read_text(encoding="utf-8"))
    assert not elements.open
    assert not elements.stray
    assert not {"b", "i"} & elements.tags()
    assert says(elements.said, "prefill", "30 % slower")
    assert says(elements.said, "versions", "the same")
    images = [attributes for tag, attributes in elements.found if tag == "img"]
    assert len(images) == 1
    drawings = [attributes for tag, attributes in elements.found if attributes.get("role") == "img"]
    assert len(drawings) == 4  # one of them again, for a phone
    assert all(attributes["aria-label"] for attributes in drawings)
    assert all((image["src"] or "").startswith("data:") and image["alt"] for image in images)


def test_what_is_undecided_is_named_and_has_its_own_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from ocr_phases.report import render

    monkeypatch.setattr(render, "write_report", lambda *_, **__: tmp_path / "compare.html")
    prefills = {
        "base": (90, 150, 100),
        "unsure": (120, 110, 160),
        "worse": (900, 910, 905),
        "same": (90, 91, 89),
    }
    paths = {name: str(with_prefills(*ms).save(tmp_path / f"{name}.json")) for name, ms in prefills.items()}
    judged = ["--fail-above", "10", "--metric", "prefill_ms", "--out", str(tmp_path / "out")]
    assert main(["compare", paths["base"], paths["unsure"], *judged]) == 3
    assert re.search(r"unsure: prefill_ms .*undecided.* 1\.2", capsys.readouterr().out)
    assert main(["compare", paths["base"], paths["unsure"], paths["worse"], *judged]) == 1
    said = capsys.readouterr().out
    assert says(said, "unsure", "prefill_ms", "undecided")
    assert says(said, "worse", "prefill_ms", "worse", "10 %")
    assert main(["compare", paths["same"], paths["same"], *judged]) == 0
    assert not says(capsys.readouterr().out, "undecided")


def test_a_limit_over_few_repeats_is_judged_and_said_to_be_unsure(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = fail_above_ten(make_run(repeats=3), tmp_path, "after")
    said = capsys.readouterr().out
    assert says(said, "after", "prefill_ms", "worse", "10 %", "1.300")
    assert said.count("3 repeats") == 2
    shown = Elements((out / "compare.html").read_text(encoding="utf-8")).said
    assert says(shown, "before", "3 repeats", "after", "3 repeats")


def test_bad_comparisons_are_one_sentence_and_write_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    record = str(make_run(repeats=1).save(tmp_path / "run.json"))
    (tmp_path / "bad.json").write_text("{}")
    out = ["--out", str(tmp_path / "out")]
    for arguments, message in (
        ([record, str(tmp_path / "bad.json")], "no schema number"),
        ([record, record, "--metric", "prefill_ms"], "drop --metric"),
        ([record, record, "--fail-above", "5"], "5 repeats or more"),
        ([record, record, "--fail-above", "5", "--metric", "speed"], "no metric speed"),
    ):
        assert main(["compare", *arguments, *out]) == 2
        error = capsys.readouterr().err.strip()
        assert message in error
        assert len(error.splitlines()) == 1
    assert not (tmp_path / "out").exists()
