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


def test_there_is_more_or_less_of_a_figure_that_follows_from_no_clock(monkeypatch):
    monkeypatch.setattr("ocr_phases.analyse.compared_metrics.EXACT", frozenset({"prefill_ms"}))
    base, longer = with_prefills(10.0, 10.0), with_prefills(20.0, 20.0)
    assert table_of(base, longer).loc["prefill_ms", "verdict"] == "more"
    assert table_of(longer, base).loc["prefill_ms", "verdict"] == "less"


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
    assert ("varied too much" in said) == (verdict == "noisy")
    reach = max(row["ratio"] / row["ratio_low"], row["ratio_high"] / row["ratio"]) - 1.0
    assert row["detectable"] == pytest.approx(reach)
    assert ("cannot be resolved" in said) or verdict != "inconclusive"
    assert ("times as fast" in said) == (verdict == "faster")


def outcomes(runs, percent, metrics=()):
    judged = Comparison(runs).against_limit(percent, metrics)
    return dict(zip(judged["metric"], judged["outcome"], strict=True))


def test_a_slowdown_is_worse_than_a_limit_below_it_and_within_one_above():
    base = make_run(repeats=5)
    slower = paced(base, 1.2)
    both = ("prefill_ms", "inter_token_ms")

    assert outcomes([base, slower], 10) == dict.fromkeys(both, "worse")
    assert outcomes([base, slower], 25) == dict.fromkeys(both, "within")
    assert outcomes([slower, base], 0) == dict.fromkeys(both, "within")


@pytest.mark.parametrize("name", ["tokens_per_s", "prefill/language_model"])
def test_a_limit_judges_any_figure_and_stage_that_is_named(name):
    base = make_run(repeats=5)
    assert outcomes([base, paced(base, 1.2)], 10, (name,)) == {name: "worse"}


@pytest.mark.parametrize("name", ["kv_cache_bytes", "agreement"])
def test_what_is_exact_is_judged_with_a_single_repeat(name):
    run = make_run(repeats=1)
    assert outcomes([run, run], 10, (name,)) == {name: "within"}


@pytest.mark.parametrize(
    ("base", "metrics"),
    [
        ({"repeats": 5}, ("speed",)),  # no such figure
        ({"repeats": 1}, ()),  # an interval needs two repeats
        ({"crops": False}, ("prefill/sam/local",)),  # a stage that only one has
        ({"generate": True}, ()),  # no figure that both have
    ],
    ids=str,
)
def test_a_limit_on_what_cannot_be_compared_is_refused(base, metrics):
    pair = [make_run(**base), make_run(repeats=5)]
    with refused():
        outcomes(pair, 10, metrics)


def test_a_measure_of_the_text_is_judged_by_points():
    run = make_run(repeats=5)
    whole, cut = (
        altered(run, results=[to_plain(run.result) | {"text": text}]).with_truth(Truth(TEXT))
        for text in (TEXT, TEXT[:-40])
    )
    assert outcomes([whole, cut], 0.1, ("cer",)) == {"cer": "worse"}
    assert outcomes([whole, cut], 50, ("cer",)) == {"cer": "within"}


def test_a_margin_says_how_far_apart_equivalent_figures_are():
    runs = [with_prefills(*[100] * 5), with_prefills(*[104] * 5)]
    assert table_of(*runs, margin=5).loc["prefill_ms", "verdict"] == "equivalent"


@pytest.mark.parametrize("prefills", [(120, 110, 160), (900, 910, 905)])
def test_noise_proves_nothing(prefills):
    noisy = with_prefills(90, 150, 100)
    assert outcomes([noisy, with_prefills(*prefills)], 10) == {
        "prefill_ms": "undecided",
        "inter_token_ms": "undecided",
    }
    assert outcomes([noisy, noisy], 10, ("agreement",)) == {"agreement": "within"}


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


def ms_of(run, name):
    """A figure of a record as a sentence writes it, without its unit."""
    return ms_text(run[name]).removesuffix(" ms")


def test_strategies_are_one_sentence_in_their_order_with_the_floor():
    compiled, eager, captured, _ = strategies()

    sentence = Comparison([compiled, eager, captured]).verdict

    in_order = (f"{ms_of(eager, 'inter_token_ms')} ms", "eager")
    in_order += (ms_of(captured, "inter_token_ms"), "captured in a graph")
    in_order += (ms_of(compiled, "inter_token_ms"), "compiled", "memory bandwidth sets")
    assert says(sentence, *in_order, "measured on this device")


def test_vision_eager_and_compiled_are_one_sentence_with_the_floor():
    _, eager, _, vision = strategies()

    sentence = SweepResult({"a": vision, "b": eager}, failed_cells()).verdict

    in_order = (f"{ms_of(eager, 'prefill_ms')} ms", "with vision eager")
    in_order += (ms_of(vision, "prefill_ms"), "compiled", "its floor is")
    assert says(sentence, *in_order, "measured on this device")


@pytest.mark.parametrize(
    "unlike", [{"device": {"name": "another"}}, {"request": {"max_new_tokens": 32}}], ids=str
)
def test_strategies_of_unlike_measurements_are_no_sentence(unlike):
    compiled, eager, _, _ = strategies()
    sentence = Comparison([eager, altered(compiled, **unlike)]).verdict
    assert "per token eager" not in sentence


def test_strategies_on_a_device_of_unknown_ceilings_have_no_floor():
    unknown = {"name": "another", "ceilings": None}
    runs = [altered(run, device=unknown) for run in strategies()[:3]]
    sentence = Comparison(runs).verdict
    assert "per token eager" in sentence
    assert "allows" not in sentence


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
