"""Comparing records: intervals, verdicts, environments, the verb for CI, the notebook and its
pictures.
"""

import re

import numpy as np
import pytest
from conftest import TINY_CONFIG
from example_run import TEXT, altered, failed_cells, make_run, paced, with_times
from refusals import refused
from wording import says

from ocr_phases.analyse.compared_metrics import COMPARE_COLUMNS
from ocr_phases.analyse.statistics import LogMean, holm, log_ratio, spread
from ocr_phases.cli import main
from ocr_phases.record.parts import to_plain
from ocr_phases.record.schema import Truth
from ocr_phases.results.comparison import Comparison
from ocr_phases.results.sweep import SweepResult
from ocr_phases.text import ms_text


def test_welch_by_hand_and_by_the_table_of_students_t():
    test = log_ratio(np.exp([1.0, 2.0, 3.0]), np.exp([4.0, 6.0]))
    assert (test.mean, test.error) == pytest.approx((3.0, (1 / 3 + 1) ** 0.5))
    assert test.freedom == pytest.approx((4 / 3) ** 2 / ((1 / 3) ** 2 / 2 + 1))
    even = log_ratio(np.exp([1.0, 2.0, 3.0]), np.exp([4.0, 5.0, 6.0]))  # four degrees of freedom
    for alpha, t in ((0.05, 2.776), (0.01, 4.604)):
        assert np.log(even.interval(alpha)) == pytest.approx(
            [3 - t * (2 / 3) ** 0.5, 3 + t * (2 / 3) ** 0.5], 1e-3
        )
    assert spread(np.exp([1.0, 2.0, 3.0])) == pytest.approx(1.0)


def test_holm_steps_down_and_stops():
    def alphas(*means):
        return list(
            holm({place: LogMean(mean, 1.0, 200) for place, mean in enumerate(means)}).values()
        )

    assert alphas(2.1) == [0.05]
    assert alphas(9.0, 3.0, 8.0) == pytest.approx([0.05 / 3, 0.05, 0.05 / 2])
    # Where the first is not proven, none is.
    assert alphas(2.1, 2.2, 0.1) == pytest.approx([0.05 / 3] * 3)
    assert holm({"a": log_ratio([1.0], [2.0])}) == {"a": 0.05}


def table_of(*runs, **options):
    return Comparison(runs, **options).table.set_index("metric")


def test_a_change_is_found_where_it_is_and_three_metrics_have_a_verdict():
    meter = {"seconds": 2.0, "run_joules": 600.0, "idle_w": 80.0}
    base = altered(make_run(repeats=5), device={"conditions": {"repeats": [], "energy": meter}})
    slow = paced(base, 1.5, phase="prefill")
    table = table_of(base, slow)
    assert table.loc["energy_j", ["unit", "other"]].tolist() == ["J", 600.0]
    assert tuple(table.reset_index()[list(COMPARE_COLUMNS)].columns) == COMPARE_COLUMNS
    verdicts = {"prefill_ms": "slower", "inter_token_ms": "equivalent", "kv_cache_bytes": "equal"}
    assert table["verdict"].replace("", np.nan).dropna().to_dict() == verdicts | {
        "agreement": "equal"
    }
    row = table.loc["prefill/sam/global"]
    assert row["ratio"] == pytest.approx(1.5)
    assert row["difference"] == pytest.approx(row["other"] - row["baseline"])
    assert row["ratio_low"] <= row["ratio"] <= row["ratio_high"]
    named = table_of(base, slow, judged=["prefill/sam/global"])
    assert named.loc[["prefill/sam/global", "prefill_ms"], "verdict"].tolist() == ["slower", ""]


def test_verdicts_know_which_way_is_better():
    base = make_run(repeats=5)
    slow = altered(paced(base, 2.0), memory={"peak_bytes": {"decode": [2_000_000_000] * 5}})
    names = ["prefill_ms", "tokens_per_s", "decode_peak_bytes", "prefill_peak_bytes"]
    told = [
        table_of(*runs, judged=names).loc[names, "verdict"].tolist()
        for runs in ((base, slow), (slow, base))
    ]
    assert told == [["slower", "slower", "more", "n/a"], ["faster", "faster", "less", "n/a"]]


def test_what_only_one_has_and_single_repeats_have_no_verdict():
    compared = Comparison([make_run(crops=False), make_run(repeats=1)], ["a", "b"])
    rows = compared.table.set_index("metric")
    assert rows.loc[["prefill/sam/local", "prefill_ms"], "verdict"].tolist() == ["", "n/a"]
    assert np.isnan(rows.loc["prefill/sam/local", "baseline"]) and not compared.headline.empty
    assert says(compared.verdict, "a has 3 repeats", "b has 1 repeat", "unknown")
    same = table_of(*[make_run(repeats=1)] * 2).loc["kv_cache_bytes", ["verdict", "ratio_low"]]
    assert same.tolist() == ["equal", 1.0]
    with refused():
        Comparison([make_run()])


def with_prefills(*ms):
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
def test_three_verdicts(base, other, verdict):
    comparison = Comparison([with_prefills(*base), with_prefills(*other)], ["a", "b"])
    row, said = comparison.table.set_index("metric").loc["prefill_ms"], comparison.verdict
    assert row["verdict"] == verdict
    assert (f" {verdict} (" in said.partition("a decode step")[0]) or verdict == "noisy"
    assert ("unproven" in said) == (verdict == "noisy")
    reach = max(row["ratio"] / row["ratio_low"], row["ratio_high"] / row["ratio"]) - 1.0
    assert row["detectable"] == pytest.approx(reach)
    assert ("cannot be resolved" in said) or verdict != "inconclusive"
    assert ("times as fast" in said) == (verdict == "faster")


def outcomes(runs, percent, metrics=()):
    judged = Comparison(runs).against_limit(percent, metrics)
    return dict(zip(judged["metric"], judged["outcome"], strict=True))


def test_limits():
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
    # A measure of the text is judged by points.
    heavy = [
        altered(base, results=[to_plain(base.result) | {"text": text}])
        for text in (TEXT, TEXT[:-40])
    ]
    heavy = [run.with_truth(Truth(TEXT)) for run in heavy]
    assert outcomes(heavy, 0.1, ("cer",)) == {"cer": "worse"} != outcomes(heavy, 50, ("cer",))
    four_slower = [with_prefills(*[100] * 5), with_prefills(*[104] * 5)]
    assert table_of(*four_slower, margin=5).loc["prefill_ms", "verdict"] == "equivalent"
    # Noise proves nothing.
    loud = with_prefills(90, 150, 100)
    for other in (with_prefills(120, 110, 160), with_prefills(900, 910, 905)):
        assert outcomes([loud, other], 10) == {
            "prefill_ms": "undecided",
            "inter_token_ms": "undecided",
        }
    assert outcomes([loud, loud], 10, ("agreement",)) == {"agreement": "within"}


def strategies():
    """A record of each strategy of a GPU whose ceilings are known, and of the vision encoder
    compiled.
    """
    ceilings = {
        "bandwidth_bytes_per_s": 4e12,
        "matmul_flops_per_s": 7e14,
        "matmul_dtype": "bfloat16",
    }
    eager = altered(
        make_run(cuda=True), model={"config": TINY_CONFIG}, device={"ceilings": ceilings}
    )
    compiled = altered(paced(eager, 0.1), model={"strategy": "compiled"})
    captured = altered(paced(eager, 0.3), model={"strategy": "cuda_graph"})
    vision = altered(paced(eager, 0.5, phase="prefill"), request={"vision": "compiled"})
    return [compiled, eager, captured, vision]


def test_strategies_are_one_sentence_in_their_order_with_the_floor():
    *runs, vision = strategies()
    steps = [ms_text(run["inter_token_ms"]).removesuffix(" ms") for run in runs]
    told = (f"{steps[1]} ms", "eager", steps[2], "captured in a graph", steps[0], "compiled")
    assert says(
        Comparison(runs).verdict, *told, "memory bandwidth allows", "measured on this device"
    )
    cells = SweepResult({"a": vision, "b": runs[1]}, failed_cells())
    prefills = [ms_text(run["prefill_ms"]).removesuffix(" ms") for run in (runs[1], vision)]
    told = (f"{prefills[0]} ms", "with vision eager", prefills[1], "compiled", "its floor is")
    assert says(cells.verdict, *told, "measured on this device")
    for unlike in ({"device": {"name": "another"}}, {"request": {"max_new_tokens": 32}}):
        assert "a token eager" not in Comparison([runs[1], altered(runs[0], **unlike)]).verdict
    unknown = [altered(run, device={"name": "another", "ceilings": None}) for run in runs]
    assert "a token eager" in (said := Comparison(unknown).verdict) and "allows" not in said


def test_limits_have_exit_codes_of_their_own(tmp_path, capsys, monkeypatch):
    """What it prints and its page are held by the approved comparisons."""
    monkeypatch.setattr(
        "ocr_phases.report.render.write_report", lambda *_, **__: tmp_path / "compare.html"
    )
    prefills = {"base": (90, 100, 96), "unsure": (104, 96, 112), "worse<i>": (900, 910, 905)}
    for name, ms in prefills.items():
        with_prefills(*ms).save(tmp_path / f"{name}.json")

    def judged(*names):
        options = ["--fail-above", "10", "--metric", "prefill_ms", "--out", str(tmp_path / "out")]
        code = main(["compare", *(str(tmp_path / f"{name}.json") for name in names), *options])
        return code, capsys.readouterr().out

    code, said = judged("base", "unsure")
    assert code == 3 and re.search(r"unsure: prefill_ms .*undecided.* 1\.0", said)
    code, said = judged("base", "unsure", "worse<i>")
    told = ("unsure: prefill_ms", "undecided", "worse<i>: prefill_ms", "worse", "10 %")
    assert code == 1 and says(said, *told)
    assert "inter_token_ms" not in said.partition("unsure: ")[2]
    code, said = judged("worse<i>", "worse<i>")
    assert code == 0 and not says(said, "undecided")


@pytest.mark.parametrize(
    ("other", "metric", "code"),
    [
        ("base", "agreement", 0),  # the texts are equal
        ("worse", "prefill_ms", 1),
        ("base", "prefill_ms", 3),  # the interval of an equal figure contains a change of zero
    ],
)
def test_a_limit_of_zero_is_a_limit(other, metric, code, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "ocr_phases.report.render.write_report", lambda *_, **__: tmp_path / "compare.html"
    )
    with_prefills(90, 100, 96).save(tmp_path / "base.json")
    with_prefills(900, 910, 905).save(tmp_path / "worse.json")
    paths = [str(tmp_path / f"{name}.json") for name in ("base", other)]
    options = ["--fail-above", "0", "--metric", metric, "--out", str(tmp_path / "out")]
    assert main(["compare", *paths, *options]) == code
