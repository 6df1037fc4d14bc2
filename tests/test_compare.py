"""Comparing records: intervals, verdicts, environments, the verb for CI, the notebook and its pictures."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from elements import Elements
from example_run import SHAPES, altered, make_run, paced, with_times
from refusals import refused
from wording import says

from ocr_phases.analyse.comparison import (
    COMPARE_COLUMNS,
    Comparison,
    first_other_token,
)
from ocr_phases.analyse.scaling import ways_sentence
from ocr_phases.analyse.statistics import LogMean, holm, leaders, log_ratio, spread
from ocr_phases.cli import main
from ocr_phases.record import PhaseRun
from ocr_phases.show import results_many

# -- statistics ---------------------------------------------------------------------------------------


def test_welch_by_hand_and_by_the_table_of_students_t() -> None:
    test = log_ratio(np.exp([1.0, 2.0, 3.0]), np.exp([4.0, 6.0]))
    assert (test.mean, test.error) == pytest.approx((3.0, (1 / 3 + 1) ** 0.5))
    assert test.freedom == pytest.approx((4 / 3) ** 2 / ((1 / 3) ** 2 / 2 + 1))
    even = log_ratio(np.exp([1.0, 2.0, 3.0]), np.exp([4.0, 5.0, 6.0]))  # four degrees of freedom
    for alpha, t in ((0.05, 2.776), (0.01, 4.604)):
        assert np.log(even.interval(alpha)) == pytest.approx(
            [3 - t * (2 / 3) ** 0.5, 3 + t * (2 / 3) ** 0.5], 1e-3
        )
    assert spread(np.exp([1.0, 2.0, 3.0])) == pytest.approx(1.0)


def test_holm_steps_down_and_stops() -> None:
    def alphas(*means: float) -> list[float]:
        return list(holm({place: LogMean(mean, 1.0, 200) for place, mean in enumerate(means)}).values())

    assert alphas(2.1) == [0.05]
    assert alphas(9.0, 3.0, 8.0) == pytest.approx([0.05 / 3, 0.05, 0.05 / 2])
    # Where the first is not proven, none is.
    assert alphas(2.1, 2.2, 0.1) == pytest.approx([0.05 / 3] * 3)
    assert holm({"a": log_ratio([1.0], [2.0])}) == {"a": 0.05}


def test_leaders_are_those_that_the_repeats_do_not_tell_from_the_first() -> None:
    times = {
        "slow": [20.0, 20.1, 20.2],
        "first": [10.0, 10.1, 10.2],
        "near": [10.1, 10.2, 10.1],
        "one": [1.0],
    }
    assert leaders({name: np.array(each) for name, each in times.items()}) == ["first", "near"]
    assert leaders({"one": np.array([1.0])}) == []


# -- comparing ----------------------------------------------------------------------------------------


def table_of(*runs: PhaseRun, **options: Any) -> pd.DataFrame:
    return Comparison(runs, **options).table.set_index("metric")


def test_a_change_is_found_where_it_is_and_three_metrics_have_a_verdict() -> None:
    base = make_run(repeats=5)
    slow = paced(base, 1.5, phase="prefill")
    table = table_of(base, slow)
    assert tuple(table.reset_index()[list(COMPARE_COLUMNS)].columns) == COMPARE_COLUMNS
    verdicts = {"prefill_ms": "slower", "inter_token_ms": "equivalent", "kv_cache_bytes": "equal"}
    assert table["verdict"].replace("", np.nan).dropna().to_dict() == verdicts | {"agreement": "equal"}
    row = table.loc["prefill/sam/global"]
    assert row["ratio"] == pytest.approx(1.5)
    assert row["difference"] == pytest.approx(row["other"] - row["baseline"])
    assert row["ratio_low"] <= row["ratio"] <= row["ratio_high"]
    named = table_of(base, slow, judged=["prefill/sam/global"])
    assert named.loc[["prefill/sam/global", "prefill_ms"], "verdict"].tolist() == ["slower", ""]


def test_energy_is_compared_without_a_verdict() -> None:
    meters = [{"seconds": 2.0, "run_joules": joules, "idle_w": 80.0} for joules in (600.0, 200.0)]
    conditions = [{"conditions": {"repeats": [], "energy": meter}} for meter in meters]
    table = table_of(*(altered(make_run(), device=device) for device in conditions))
    row = table.loc["energy_j", ["verdict", "unit", "baseline", "other"]]
    assert row.tolist() == ["", "J", 600.0, 200.0]


def test_verdicts_know_which_way_is_better() -> None:
    base = make_run(repeats=5)
    slow = altered(paced(base, 2.0), memory={"peak_bytes": {"decode": [2_000_000_000] * 5}})
    names = ["prefill_ms", "tokens_per_s", "decode_peak_bytes", "prefill_peak_bytes"]
    told = [
        table_of(*runs, judged=names).loc[names, "verdict"].tolist() for runs in ((base, slow), (slow, base))
    ]
    assert told == [["slower", "slower", "more", "n/a"], ["faster", "faster", "less", "n/a"]]


def test_what_only_one_has_and_single_repeats_have_no_verdict() -> None:
    compared = Comparison([make_run(crops=False), make_run(repeats=1)], ["a", "b"])
    rows = compared.table.set_index("metric")
    assert rows.loc[["prefill/sam/local", "prefill_ms"], "verdict"].tolist() == ["", "n/a"]
    assert np.isnan(rows.loc["prefill/sam/local", "baseline"]) and not compared.headline.empty
    assert says(compared.verdict, "a has 3 repeats", "b has 1 repeat", "unknown")
    same = table_of(*[make_run(repeats=1)] * 2).loc["kv_cache_bytes", ["verdict", "ratio_low"]]
    assert same.tolist() == ["equal", 1.0]
    with refused():
        Comparison([make_run()])


def with_prefills(*ms: float) -> PhaseRun:
    """A record whose prefill took so long in each repeat."""
    return with_times(make_run(repeats=len(ms)), "prefill", lambda _, repeat: ms[repeat])


@pytest.mark.parametrize(
    ("base", "other", "verdict"),
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
def test_three_verdicts(base: tuple[float, ...], other: tuple[float, ...], verdict: str) -> None:
    comparison = Comparison([with_prefills(*base), with_prefills(*other)], ["a", "b"])
    row, said = comparison.table.set_index("metric").loc["prefill_ms"], comparison.verdict
    assert row["verdict"] == verdict
    assert (f" {verdict} (" in said.partition("a decode step")[0]) or verdict == "noisy"
    assert ("unproven" in said) == (verdict == "noisy")
    reach = max(row["ratio"] / row["ratio_low"], row["ratio_high"] / row["ratio"]) - 1.0
    assert row["detectable"] == pytest.approx(reach)
    assert ("cannot be resolved" in said) or verdict != "inconclusive"
    assert ("times as fast" in said) == (verdict == "faster")


def test_the_margin_decides_what_is_equivalent() -> None:
    runs = [with_prefills(*[100] * 5), with_prefills(*[104] * 5)]
    found = [table_of(*runs, margin=margin).loc["prefill_ms", "verdict"] for margin in (2, 5)]
    assert found == ["slower", "equivalent"]
    for margin in (-1, 100, float("nan")):
        with refused():
            Comparison(runs, margin=margin)


def outcomes(runs: list[PhaseRun], percent: float, metrics: tuple[str, ...] = ()) -> dict[str, str]:
    judged = Comparison(runs).against_limit(percent, metrics)
    return dict(zip(judged["metric"], judged["outcome"], strict=True))


def test_limits() -> None:
    base, one = make_run(repeats=5), make_run(repeats=1)
    runs = [base, paced(base, 1.2)]
    assert outcomes(runs, 10) == {"prefill_ms": "worse", "inter_token_ms": "worse"}
    assert set(outcomes(runs, 25).values()) == set(outcomes(runs[::-1], 0).values()) == {"within"}
    for name in ("tokens_per_s", "prefill/language_model"):
        assert outcomes(runs, 10, (name,)) == {name: "worse"}
    exact = ("kv_cache_bytes", "agreement")
    assert outcomes([one, one], 10, exact) == dict.fromkeys(exact, "within")
    for pair, metrics in (
        (runs, ("speed",)),
        ([one, base], ()),
        ([make_run(crops=False), base], ("prefill/sam/local",)),
        ([make_run(generate=True), base], ()),
    ):
        with refused():
            outcomes(pair, 10, metrics)
    # Noise proves nothing.
    loud = with_prefills(90, 150, 100)
    for other in (with_prefills(120, 110, 160), with_prefills(900, 910, 905)):
        assert outcomes([loud, other], 10) == {"prefill_ms": "undecided", "inter_token_ms": "undecided"}
    assert outcomes([loud, loud], 10, ("agreement",)) == {"agreement": "within"}


def test_the_first_token_that_differs_is_named() -> None:
    base = make_run()
    ids, texts = list(base.result["ids"]), list(base.result["token_texts"])

    def where(ids: list[int], texts: list[str]) -> str:
        other = altered(base, results=[base.result | {"ids": ids, "token_texts": texts}])
        assert first_other_token(base, other) in Comparison([base, other]).verdict
        return first_other_token(base, other)

    assert where(ids, texts) == ""
    told = where([*ids[:3], 7777, *ids[4:]], [*texts[:3], "\x1b[2J", *texts[4:]])
    assert says(told, "number 4") and told.index(r"'\x1b[2J'") < told.index(repr(texts[3]))
    told = where(ids[:2], texts[:2])
    assert says(told, "number 3", "the end") and repr(texts[2]) in told


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.filterwarnings("error")
def test_every_shape_is_compared_and_drawn(shape: str) -> None:
    runs = [make_run(page_name="<b>.png"), make_run(**SHAPES[shape])]
    compared = Comparison(runs, ["before", "after<i>"])
    for draw in (compared.plot.ratios, compared.plot.stages, compared.plot.decode):
        assert draw().axes
    tables = results_many.compare_html(compared.table) + results_many.environment_html(compared.differs)
    elements = Elements(tables)
    assert not elements.open and not {"b", "i"} & elements.tags()
    assert "nan" not in elements.said + compared.verdict and compared.verdict.endswith(".")


def test_another_model_is_said() -> None:
    base = altered(make_run(), model={"revision": "sha256:0"})
    other = altered(base, model={"revision": "sha256:1", "dtype": "bfloat16"})
    told = Comparison([base, other]).verdict
    assert "The model's weights have another revision." in told
    assert "It computes in bfloat16, not float32." in told
    named = Comparison([base, altered(other, model={"name": "dummy"})]).verdict
    assert "The model is dummy, not tiny." in named
    assert not {"revision", "float32"} & {*re.findall(r"\w+", Comparison([base, base]).verdict)}


# -- one sentence over several strategies --------------------------------------------------------------


def cell(strategy: str, ms: float | None, **others: object) -> dict[str, object]:
    usual = {"preset": "base", "prefill_len": 291, "vision": "eager", "batch": 1, "max_new_tokens": 128}
    floor = {"step_floor_ms": 0.28, "step_bound_by": "bandwidth", "floor_source": "measured"}
    usual |= {"model": "dummy", "attention": "sdpa", "dtype": "bfloat16", "device": "NVIDIA H200"}
    return {**usual, **floor, "strategy": strategy, "inter_token_ms": ms, **others}


def sentence_of(*cells: dict[str, object]) -> str:
    return ways_sentence(pd.DataFrame(list(cells)).astype({"inter_token_ms": float}), "strategy")


def test_strategies_and_floor_are_one_sentence() -> None:
    # In the order of the strategies, not of the cells.
    cells = [cell("compiled", 1.0), cell("eager", 8.91), cell("cuda_graph", 2.7)]
    told = ("8.91 ms", "eager", "2.70", "captured in a graph", "1.00", "compiled", "memory bandwidth")
    assert says(sentence_of(*cells), *told, "0.280", "measured")
    slow = cell("eager", 2500.0, floor_source="datasheet", step_bound_by="arithmetic")
    fast = cell("compiled", 999.0)
    assert says(
        sentence_of(slow, fast), "eager", "999 ms", "compiled", "memory bandwidth", "0.280 ms", "measured"
    )
    assert says(sentence_of(slow, {**fast, "step_floor_ms": None}), "arithmetic", "0.280 ms", "datasheet")


@pytest.mark.parametrize(
    "other", [None, {"inter_token_ms": None}, {"batch": 4}, {"device": "another"}, {"max_new_tokens": 32}]
)
def test_what_is_missing_or_unlike_is_not_named(other: dict[str, object] | None) -> None:
    eager = cell("eager", 8.9)
    assert sentence_of(eager, *([] if other is None else [cell("compiled", 1.0) | other])) == ""
    unknown = dict.fromkeys(("step_floor_ms", "step_bound_by", "floor_source"))
    without = sentence_of(eager | unknown, cell("compiled", 1.0, **unknown))
    assert says(without, "8.90 ms", "eager", "1.00", "compiled")
    assert re.findall(r"[0-9.]*[0-9]", without) == ["8.90", "1.00"]


def test_vision_is_told_of_the_eager_step_first() -> None:
    prefills = {"eager": 32.7, "compiled": 21.3}
    cells = [
        cell(strategy, 5.0, vision=vision, prefill_ms=ms * factor, prefill_floor_ms=10.0)
        for strategy, factor in (("compiled", 2.0), ("eager", 1.0))
        for vision, ms in prefills.items()
    ]
    told = ("eager", "32.7 ms", "eager", "21.3", "compiled", "10.0", "measured")
    assert says(ways_sentence(pd.DataFrame(cells), "vision"), *told)
    for unlike in (cells[::2], [cells[2], cells[3] | {"batch": 4}]):
        assert ways_sentence(pd.DataFrame(unlike), "vision") == ""


def test_a_comparison_of_strategies_says_it_too_and_others_do_not() -> None:
    """Of records from a GPU it is held by the approved comparison of strategies."""
    eager = make_run()
    compiled = altered(eager, model={"strategy": "compiled"})
    elsewhere = altered(compiled, device={"name": "another"})
    for other, told in ((compiled, True), (elsewhere, False), (eager, False)):
        assert ("a token eager" in Comparison([eager, other]).verdict) == told


# -- the verb -----------------------------------------------------------------------------------------


def test_limits_have_exit_codes_of_their_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it prints and its page are held by the approved comparisons."""
    monkeypatch.setattr("ocr_phases.report.render.write_report", lambda *_, **__: tmp_path / "compare.html")
    prefills = {"base": (90, 100, 96), "unsure": (104, 96, 112), "worse<i>": (900, 910, 905)}
    for name, ms in prefills.items():
        with_prefills(*ms).save(tmp_path / f"{name}.json")

    def judged(*names: str) -> tuple[int, str]:
        options = ["--fail-above", "10", "--metric", "prefill_ms", "--out", str(tmp_path / "out")]
        code = main(["compare", *(str(tmp_path / f"{name}.json") for name in names), *options])
        return code, capsys.readouterr().out

    code, said = judged("base", "unsure")
    assert code == 3 and re.search(r"unsure: prefill_ms .*undecided.* 1\.0", said)
    code, said = judged("base", "unsure", "worse<i>")
    assert code == 1 and says(
        said, "unsure: prefill_ms", "undecided", "worse<i>: prefill_ms", "worse", "10 %"
    )
    assert "inter_token_ms" not in said.partition("unsure: ")[2]
    code, said = judged("worse<i>", "worse<i>")
    assert code == 0 and not says(said, "undecided")
