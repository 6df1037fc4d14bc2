"""Comparing records: intervals, verdicts, environments, the verb for CI, the notebook and its
pictures.
"""

import math
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from conftest import TINY_CONFIG
from example_run import TEXT, altered, example, failed_cells, paced, with_times
from refusals import refused
from wording import says

from ocr_phases import PhaseRun
from ocr_phases.analyse.compared_metrics import COMPARE_COLUMNS
from ocr_phases.analyse.statistics import LogMean, holm, log_ratio, spread
from ocr_phases.cli import main
from ocr_phases.record.parts import to_plain
from ocr_phases.record.schema import Truth
from ocr_phases.results.comparison import Comparison
from ocr_phases.results.sweep import SweepResult
from ocr_phases.text import ms_text


def test_welchs_mean_error_and_freedom_are_those_of_its_formula() -> None:
    ratio = log_ratio(np.exp([1.0, 2.0, 3.0]), np.exp([4.0, 6.0]))

    assert ratio.mean == pytest.approx(3.0)
    assert ratio.error == pytest.approx(math.sqrt(1 / 3 + 1))
    assert ratio.freedom == pytest.approx((4 / 3) ** 2 / ((1 / 3) ** 2 / 2 + 1))


@pytest.mark.parametrize(("alpha", "quantile"), [(0.05, 2.776), (0.01, 4.604)])
def test_an_interval_is_as_wide_as_the_table_of_students_t_says(
    alpha: float, quantile: float
) -> None:
    four_degrees_of_freedom = log_ratio(np.exp([1.0, 2.0, 3.0]), np.exp([4.0, 5.0, 6.0]))

    low, high = np.log(four_degrees_of_freedom.interval(alpha))

    reach = quantile * math.sqrt(2 / 3)
    assert low == pytest.approx(3 - reach, 1e-3)
    assert high == pytest.approx(3 + reach, 1e-3)


def test_the_spread_is_the_deviation_of_the_logarithms() -> None:
    assert spread(np.exp([1.0, 2.0, 3.0])) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("means", "alphas"),
    [
        pytest.param([2.1], [0.05], id="a single test"),
        pytest.param([9.0, 3.0, 8.0], [0.05 / 3, 0.05, 0.05 / 2], id="all are proven"),
        pytest.param([2.1, 2.2, 0.1], [0.05 / 3] * 3, id="the first is not proven, so none is"),
    ],
)
def test_holm_steps_down_and_stops(means: list[float], alphas: list[float]) -> None:
    tests = {place: LogMean(mean, 1.0, 200) for place, mean in enumerate(means)}

    assert list(holm(tests).values()) == pytest.approx(alphas)


def test_holm_leaves_a_test_without_an_error_at_the_whole_alpha() -> None:
    assert holm({"a": log_ratio([1.0], [2.0])}) == {"a": 0.05}


def comparison_table(*runs: PhaseRun, **options: Any) -> pd.DataFrame:
    """The table of a comparison with these options, by the name of the metric."""
    return Comparison(runs, **options).table.set_index("metric")


@cache
def run_with_prefills(*ms: float) -> PhaseRun:
    """A record whose prefill took so long in each repeat."""

    def prefill_ms(_step: int, repeat: int) -> float:
        return ms[repeat]

    return with_times(example(repeats=len(ms)), "prefill", prefill_ms)


@pytest.fixture
def base_and_slow_prefill() -> tuple[PhaseRun, PhaseRun]:
    """A record with energy, and the same one whose prefill takes half as long again."""
    energy = {"seconds": 2.0, "run_joules": 600.0, "idle_w": 80.0}
    base = altered(example(repeats=5), device={"conditions": {"repeats": [], "energy": energy}})
    return base, paced(base, 1.5, phase="prefill")


def test_a_change_is_found_where_it_is_and_only_the_judged_metrics_have_a_verdict(
    base_and_slow_prefill: tuple[PhaseRun, PhaseRun],
) -> None:
    table = comparison_table(*base_and_slow_prefill)

    assert tuple(table.reset_index()[list(COMPARE_COLUMNS)].columns) == COMPARE_COLUMNS
    assert table.loc["energy_j", ["unit", "other"]].tolist() == ["J", 600.0]
    assert table["verdict"].replace("", np.nan).dropna().to_dict() == {
        "prefill_ms": "slower",
        "inter_token_ms": "equivalent",
        "kv_cache_bytes": "equal",
        "agreement": "equal",
    }


def test_a_stage_that_took_half_as_long_again_has_that_ratio_within_its_interval(
    base_and_slow_prefill: tuple[PhaseRun, PhaseRun],
) -> None:
    row = comparison_table(*base_and_slow_prefill).loc["prefill/sam/global"]

    assert row["ratio"] == pytest.approx(1.5)
    assert row["difference"] == pytest.approx(row["other"] - row["baseline"])
    assert row["ratio_low"] <= row["ratio"] <= row["ratio_high"]


def test_a_metric_that_is_named_has_the_verdict_instead_of_the_usual_ones(
    base_and_slow_prefill: tuple[PhaseRun, PhaseRun],
) -> None:
    table = comparison_table(*base_and_slow_prefill, judged=["prefill/sam/global"])

    assert table.loc["prefill/sam/global", "verdict"] == "slower"
    assert table.loc["prefill_ms", "verdict"] == ""


def test_verdicts_know_which_way_is_better() -> None:
    base = example(repeats=5)
    slow = altered(paced(base, 2.0), memory={"peak_bytes": {"decode": [2_000_000_000] * 5}})
    names = ["prefill_ms", "tokens_per_s", "decode_peak_bytes", "prefill_peak_bytes"]

    verdicts_of_slow = comparison_table(base, slow, judged=names).loc[names, "verdict"]
    verdicts_of_base = comparison_table(slow, base, judged=names).loc[names, "verdict"]

    assert verdicts_of_slow.tolist() == ["slower", "slower", "more", "n/a"]
    assert verdicts_of_base.tolist() == ["faster", "faster", "less", "n/a"]


def test_what_only_one_has_and_single_repeats_have_no_verdict() -> None:
    without_crops = example(crops=False)
    single_repeat = example(repeats=1)

    comparison = Comparison([without_crops, single_repeat], ["a", "b"])

    table = comparison.table.set_index("metric")
    assert table.loc["prefill/sam/local", "verdict"] == ""
    assert table.loc["prefill_ms", "verdict"] == "n/a"
    assert np.isnan(table.loc["prefill/sam/local", "baseline"])
    assert not comparison.headline.empty
    assert says(comparison.verdict, "a has 3 repeats", "b has 1 repeat", "unknown")


def test_what_is_exact_has_a_verdict_of_single_repeats() -> None:
    run = example(repeats=1)

    row = comparison_table(run, run).loc["kv_cache_bytes"]

    assert row["verdict"] == "equal"
    assert row["ratio_low"] == 1.0


def test_a_comparison_of_one_record_is_refused() -> None:
    with refused():
        Comparison([example()])


def test_there_is_more_or_less_of_a_figure_that_follows_from_no_clock(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("ocr_phases.analyse.compared_metrics.EXACT", frozenset({"prefill_ms"}))
    shorter = run_with_prefills(10.0, 10.0)
    longer = run_with_prefills(20.0, 20.0)

    assert comparison_table(shorter, longer).loc["prefill_ms", "verdict"] == "more"
    assert comparison_table(longer, shorter).loc["prefill_ms", "verdict"] == "less"


@pytest.mark.parametrize(
    ("base_ms", "other_ms", "verdict"),
    [
        ((100, 101, 100.5), (10.4, 10.5, 10.1), "faster"),
        ((100, 101), (10.4, 10.5), "faster"),
        ((100, 101, 100.5), (1000, 1010, 990), "slower"),
        ((93, 105, 100), (104, 98, 108), "inconclusive"),
        ((90, 150, 100), (120, 110, 160), "noisy"),
        ((100, 101, 100, 99, 100), (100, 4000, 99, 3000, 112), "noisy"),
        ((100, 100.1, 99.9, 100, 100), (100, 100.2, 99.9, 100.1, 100), "equivalent"),
        ((100, 100, 100, 100, 100), (101, 101, 101, 101, 101), "equivalent"),
        ((100, 100, 100, 100, 100), (104, 104, 104, 104, 104), "slower"),
    ],
)
def test_a_verdict_of_times_follows_from_their_difference_and_their_spread(
    base_ms: tuple[float, ...], other_ms: tuple[float, ...], verdict: str
) -> None:
    runs = [run_with_prefills(*base_ms), run_with_prefills(*other_ms)]

    comparison = Comparison(runs, ["a", "b"])

    row = comparison.table.set_index("metric").loc["prefill_ms"]
    assert row["verdict"] == verdict
    reach_up = row["ratio_high"] / row["ratio"]
    reach_down = row["ratio"] / row["ratio_low"]
    assert row["detectable"] == pytest.approx(max(reach_up, reach_down) - 1.0)

    about_prefill = comparison.verdict.partition("a decode step")[0]
    if verdict != "noisy":
        assert f" {verdict} (" in about_prefill
    if verdict == "inconclusive":
        assert "cannot be resolved" in comparison.verdict
    assert ("varied too much" in comparison.verdict) == (verdict == "noisy")
    assert ("times as fast" in comparison.verdict) == (verdict == "faster")


def test_a_margin_says_how_far_apart_equivalent_figures_are() -> None:
    base = run_with_prefills(*[100] * 5)
    slower_by_four_percent = run_with_prefills(*[104] * 5)

    table = comparison_table(base, slower_by_four_percent, margin=5)

    assert table.loc["prefill_ms", "verdict"] == "equivalent"


@pytest.mark.parametrize("margin", [-1, 100, math.nan])
def test_a_margin_outside_0_to_100_percent_is_refused(margin: float) -> None:
    run = example()

    with refused():
        Comparison([run, run], margin=margin)


def limit_outcomes(
    runs: Sequence[PhaseRun], percent: float, metrics: Sequence[str] = ()
) -> dict[str, str]:
    """How the second record stands against a limit in per cent, by metric."""
    judged = Comparison(runs).against_limit(percent, metrics)
    return dict(zip(judged["metric"], judged["outcome"], strict=True))


def test_a_slowdown_is_worse_than_a_limit_below_it_and_within_one_above() -> None:
    base = example(repeats=5)
    slower = paced(base, 1.2)
    both = ("prefill_ms", "inter_token_ms")

    assert limit_outcomes([base, slower], 10) == dict.fromkeys(both, "worse")
    assert limit_outcomes([base, slower], 25) == dict.fromkeys(both, "within")
    assert limit_outcomes([slower, base], 0) == dict.fromkeys(both, "within")


@pytest.mark.parametrize("name", ["tokens_per_s", "prefill/language_model"])
def test_a_limit_judges_any_figure_and_stage_that_is_named(name: str) -> None:
    base = example(repeats=5)

    assert limit_outcomes([base, paced(base, 1.2)], 10, [name]) == {name: "worse"}


@pytest.mark.parametrize("name", ["kv_cache_bytes", "agreement"])
def test_what_is_exact_is_judged_with_a_single_repeat(name: str) -> None:
    run = example(repeats=1)

    assert limit_outcomes([run, run], 10, [name]) == {name: "within"}


@pytest.mark.parametrize(
    ("shape", "metrics"),
    [
        pytest.param({"repeats": 5}, ["speed"], id="no such figure"),
        pytest.param({"repeats": 1}, [], id="an interval needs two repeats"),
        pytest.param({"crops": False}, ["prefill/sam/local"], id="a stage that only one has"),
        pytest.param({"generate": True}, [], id="no figure that both have"),
    ],
)
def test_a_limit_on_what_cannot_be_compared_is_refused(
    shape: dict[str, bool | int], metrics: list[str]
) -> None:
    runs = [example(**shape), example(repeats=5)]

    with refused():
        limit_outcomes(runs, 10, metrics)


def run_with_text(text: str) -> PhaseRun:
    """A record of five repeats with this text, beside what the page truly says."""
    run = example(repeats=5)
    result = to_plain(run.result) | {"text": text}
    return altered(run, results=[result]).with_truth(Truth(TEXT))


def test_a_measure_of_the_text_is_judged_by_points() -> None:
    whole = run_with_text(TEXT)
    cut = run_with_text(TEXT[:-40])

    assert limit_outcomes([whole, cut], 0.1, ["cer"]) == {"cer": "worse"}
    assert limit_outcomes([whole, cut], 50, ["cer"]) == {"cer": "within"}


@pytest.mark.parametrize(
    "prefills",
    [
        pytest.param((120, 110, 160), id="a little slower"),
        pytest.param((900, 910, 905), id="much slower"),
    ],
)
def test_noise_proves_nothing(prefills: tuple[float, ...]) -> None:
    noisy = run_with_prefills(90, 150, 100)

    outcomes = limit_outcomes([noisy, run_with_prefills(*prefills)], 10)

    assert outcomes == {"prefill_ms": "undecided", "inter_token_ms": "undecided"}


def test_noise_in_the_times_leaves_the_text_judged() -> None:
    noisy = run_with_prefills(90, 150, 100)

    assert limit_outcomes([noisy, noisy], 10, ["agreement"]) == {"agreement": "within"}


@cache
def eager_on_a_gpu() -> PhaseRun:
    """An eager measurement on a GPU whose ceilings are known."""
    ceilings = {
        "bandwidth_bytes_per_s": 4e12,
        "matmul_flops_per_s": 7e14,
        "matmul_dtype": "bfloat16",
    }
    return altered(example(cuda=True), model={"config": TINY_CONFIG}, device={"ceilings": ceilings})


@cache
def captured_on_a_gpu() -> PhaseRun:
    """The same with decode steps captured in a graph, which take less time."""
    return altered(paced(eager_on_a_gpu(), 0.3), model={"strategy": "cuda_graph"})


@cache
def compiled_on_a_gpu() -> PhaseRun:
    """The same with compiled decode steps, which take the least time."""
    return altered(paced(eager_on_a_gpu(), 0.1), model={"strategy": "compiled"})


def vision_compiled_on_a_gpu() -> PhaseRun:
    """The same with a compiled vision encoder."""
    faster = paced(eager_on_a_gpu(), 0.5, phase="prefill")
    return altered(faster, request={"vision": "compiled"})


def ms_without_unit(run: PhaseRun, name: str) -> str:
    """A figure of a record as a sentence writes it, without its unit."""
    return ms_text(run[name]).removesuffix(" ms")


def test_strategies_are_one_sentence_in_their_order_with_the_floor() -> None:
    compiled = compiled_on_a_gpu()
    eager = eager_on_a_gpu()
    captured = captured_on_a_gpu()

    sentence = Comparison([compiled, eager, captured]).verdict

    assert says(
        sentence,
        f"{ms_without_unit(eager, 'inter_token_ms')} ms",
        "eager",
        ms_without_unit(captured, "inter_token_ms"),
        "captured in a graph",
        ms_without_unit(compiled, "inter_token_ms"),
        "compiled",
        "memory bandwidth sets",
        "measured on this device",
    )


def test_vision_eager_and_compiled_are_one_sentence_with_the_floor() -> None:
    eager = eager_on_a_gpu()
    vision = vision_compiled_on_a_gpu()

    sentence = SweepResult({"a": vision, "b": eager}, failed_cells()).verdict

    assert says(
        sentence,
        f"{ms_without_unit(eager, 'prefill_ms')} ms",
        "with vision eager",
        ms_without_unit(vision, "prefill_ms"),
        "compiled",
        "its floor is",
        "measured on this device",
    )


@pytest.mark.parametrize(
    "difference",
    [
        pytest.param({"device": {"name": "another"}}, id="another device"),
        pytest.param({"request": {"max_new_tokens": 32}}, id="another limit of tokens"),
    ],
)
def test_strategies_of_unlike_measurements_are_no_sentence(
    difference: dict[str, dict[str, object]],
) -> None:
    unlike = altered(compiled_on_a_gpu(), **difference)

    sentence = Comparison([eager_on_a_gpu(), unlike]).verdict

    assert "per token eager" not in sentence


def test_strategies_on_a_device_of_unknown_ceilings_have_no_floor() -> None:
    unknown = {"name": "another", "ceilings": None}
    strategies = [compiled_on_a_gpu(), eager_on_a_gpu(), captured_on_a_gpu()]

    sentence = Comparison([altered(run, device=unknown) for run in strategies]).verdict

    assert "per token eager" in sentence
    assert "memory bandwidth" not in sentence


#: The prefills in ms of the records that the verb compares, by the name of their file.
SAVED_PREFILLS = {"base": (90, 100, 96), "unsure": (104, 96, 112), "worse<i>": (900, 910, 905)}


def compare_files(folder: Path, names: Sequence[str], percent: float, metric: str) -> int:
    """The exit code of the verb for files with `SAVED_PREFILLS` under a limit on one metric."""
    paths = []
    for name in names:
        path = folder / f"{name}.json"
        run_with_prefills(*SAVED_PREFILLS[name]).save(path)
        paths.append(str(path))
    limit = ["--fail-above", str(percent), "--metric", metric]
    return main(["compare", *paths, *limit, "--out", str(folder / "out")])


@pytest.mark.usefixtures("no_comparison_page")
def test_the_verb_exits_with_3_where_a_limit_is_undecided(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the verb prints besides, and its page, are held by the approved comparisons."""
    code = compare_files(tmp_path, ["base", "unsure"], 10, "prefill_ms")

    assert code == 3
    assert re.search(r"unsure: prefill_ms .*undecided.* 1\.0", capsys.readouterr().out)


@pytest.mark.usefixtures("no_comparison_page")
def test_the_verb_exits_with_1_where_one_record_is_worse_than_its_limit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = compare_files(tmp_path, ["base", "unsure", "worse<i>"], 10, "prefill_ms")

    printed = capsys.readouterr().out
    assert code == 1
    assert says(printed, "unsure: prefill_ms", "undecided", "worse<i>: prefill_ms", "worse", "10 %")
    assert "inter_token_ms" not in printed.partition("unsure: ")[2]


@pytest.mark.usefixtures("no_comparison_page")
def test_the_verb_exits_with_0_within_a_limit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code = compare_files(tmp_path, ["worse<i>", "worse<i>"], 10, "prefill_ms")

    assert code == 0
    assert not says(capsys.readouterr().out, "undecided")


@pytest.mark.usefixtures("no_comparison_page")
@pytest.mark.parametrize(
    ("other", "metric", "exit_code"),
    [
        pytest.param("base", "agreement", 0, id="the texts are equal"),
        pytest.param("worse<i>", "prefill_ms", 1, id="slower"),
        pytest.param("base", "prefill_ms", 3, id="an equal figure's interval holds a change of 0"),
    ],
)
def test_a_limit_of_zero_is_a_limit(
    other: str, metric: str, exit_code: int, tmp_path: Path
) -> None:
    assert compare_files(tmp_path, ["base", other], 0, metric) == exit_code
