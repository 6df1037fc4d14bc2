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
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused
from wording import says

from ocr_phases.analyse.comparison import (
    COMPARE_COLUMNS,
    Comparison,
    few_repeats,
    first_other_token,
    run_labels,
)
from ocr_phases.analyse.statistics import LogMean, holm, leaders, log_ratio, spread
from ocr_phases.cli import main
from ocr_phases.files import MANIFEST_NAME
from ocr_phases.record import PhaseRun
from ocr_phases.show import results_many
from ocr_phases.show.figures import figure_png

# -- statistics ---------------------------------------------------------------------------------------


@given(st.lists(st.floats(0.1, 1e3), min_size=2, max_size=9), st.floats(0.1, 10.0))
@settings(max_examples=40, deadline=None)
def test_a_ratio_lies_in_its_interval_which_scales(values: list[float], factor: float) -> None:
    found = log_ratio(values, np.array(values) * factor)
    low, high = found.interval()
    assert low <= factor * (1 + 1e-9) and high >= factor * (1 - 1e-9)
    assert np.exp(found.mean) == pytest.approx(factor)
    wider = found.interval(0.01)
    assert wider[0] <= low * (1 + 1e-9) and wider[1] >= high * (1 - 1e-9)


def test_welch_by_hand() -> None:
    test = log_ratio(np.exp([1.0, 2.0, 3.0]), np.exp([4.0, 6.0]))
    assert (test.mean, test.error) == pytest.approx((3.0, (1 / 3 + 1) ** 0.5))
    assert test.freedom == pytest.approx((4 / 3) ** 2 / ((1 / 3) ** 2 / 2 + 1))
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
    for runs, words in (
        ([base, slow], ["slower", "slower", "more", "n/a"]),
        ([slow, base], ["faster", "faster", "less", "n/a"]),
    ):
        assert table_of(*runs, judged=names).loc[names, "verdict"].tolist() == words


def test_what_only_one_has_and_single_repeats_have_no_verdict() -> None:
    compared = Comparison([make_run(crops=False), make_run(repeats=1)])
    rows = compared.table.set_index("metric")
    assert rows.loc[["prefill/sam/local", "prefill_ms"], "verdict"].tolist() == ["", "n/a"]
    assert np.isnan(rows.loc["prefill/sam/local", "baseline"]) and not compared.headline.empty
    with refused():
        Comparison([make_run()])


@pytest.mark.parametrize(
    ("counts", "told"),
    [
        ((5, 5), ()),
        ((3, 3), ("a", "3 repeats", "b", "3 repeats")),
        ((9, 4), ("b", "4 repeats")),
        ((1, 9), ("a", "1 repeat", "unknown")),
    ],
)
def test_few_repeats_are_told_and_judge_what_is_far_apart(
    counts: tuple[int, int], told: tuple[str, ...]
) -> None:
    one, other = (make_run(repeats=count) for count in counts)
    comparison = Comparison([one, paced(other, 3.0)], ["a", "b"])
    said, sentence = comparison.verdict, few_repeats(comparison.runs, comparison.labels)
    assert says(sentence, *told) and bool(sentence) == bool(told) and said.endswith(sentence)
    table = comparison.table.set_index("metric")
    assert table.loc["prefill_ms", "verdict"] == ("slower" if min(counts) > 1 else "n/a")
    assert ("slower" in said.removesuffix(sentence)) == (min(counts) > 1)
    assert table.loc["kv_cache_bytes", ["verdict", "ratio_low"]].tolist() == ["equal", 1.0]


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
        told = first_other_token(base, other)
        assert told in Comparison([base, other]).verdict
        return told

    assert where(ids, texts) == ""
    told = where([*ids[:3], 7777, *ids[4:]], [*texts[:3], "\x1b[2J", *texts[4:]])
    assert says(told, "number 4") and told.index(r"'\x1b[2J'") < told.index(repr(texts[3]))
    told = where(ids[:2], texts[:2])
    assert says(told, "number 3", "the end") and repr(texts[2]) in told


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.filterwarnings("error")
def test_every_shape_is_compared_and_drawn(shape: str) -> None:
    runs = [make_run(), make_run(**SHAPES[shape])]
    compared = Comparison(runs, run_labels(runs))
    for draw in (compared.plot.ratios, compared.plot.stages, compared.plot.decode):
        assert figure_png(draw()).startswith(b"\x89PNG")
    tables = results_many.compare_html(compared.table) + results_many.environment_html(compared.differs)
    elements = Elements(tables)
    assert not elements.open and "nan" not in elements.said + compared.verdict
    assert compared.verdict.endswith(".")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"name": "dummy"}, "The model is dummy, not tiny."),
        ({"revision": "sha256:1"}, "The model's weights have another revision."),
        ({"dtype": "bfloat16"}, "It computes in bfloat16, not float32."),
    ],
)
def test_another_model_is_said(change: dict[str, str], sentence: str) -> None:
    base = altered(make_run(), model={"revision": "sha256:0"})
    assert sentence in Comparison([base, altered(base, model=change)]).verdict
    assert sentence not in Comparison([base, base]).verdict


# -- the verb -----------------------------------------------------------------------------------------


def test_the_verb_writes_one_html_and_fails_above_a_limit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, out = make_run(repeats=5, page_name="<b>.png"), tmp_path / "out"
    runs = {"before": run, "after<i>": paced(run, 1.3, phase="prefill")}
    paths = [str(each.save(tmp_path / f"{name}.json")) for name, each in runs.items()]
    assert main(["compare", *paths, "--out", str(out), "--fail-above", "10"]) == 1
    said = capsys.readouterr().out
    assert says(said, "after<i>", "prefill_ms", "worse", "10 %", "1.300")
    assert "after<i>: inter_token_ms" not in said
    assert {path.name for path in out.iterdir()} == {"compare.html", "compare.ipynb", MANIFEST_NAME}
    elements = Elements((out / "compare.html").read_text(encoding="utf-8"))
    assert not elements.open and not elements.stray and not {"b", "i"} & elements.tags()
    assert says(elements.said, "prefill", "30 % slower") and says(elements.said, "versions", "the same")
    (image,) = (attributes for tag, attributes in elements.found if tag == "img")
    assert (image["src"] or "").startswith("data:") and image["alt"]
    drawings = [attributes for _, attributes in elements.found if attributes.get("role") == "img"]
    assert len(drawings) == 3 and all(attributes["aria-label"] for attributes in drawings)


def test_what_is_undecided_is_named_and_has_its_own_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ocr_phases.report.render.write_report", lambda *_, **__: tmp_path / "compare.html")
    prefills = {
        "base": (90, 100, 96),
        "unsure": (104, 96, 112),
        "worse": (900, 910, 905),
        "same": (90, 91, 89),
    }
    paths = {name: str(with_prefills(*ms).save(tmp_path / f"{name}.json")) for name, ms in prefills.items()}
    judged = ["--fail-above", "10", "--metric", "prefill_ms", "--out", str(tmp_path / "out")]
    assert main(["compare", paths["base"], paths["unsure"], *judged]) == 3
    assert re.search(r"unsure: prefill_ms .*undecided.* 1\.0", capsys.readouterr().out)
    assert main(["compare", paths["base"], paths["unsure"], paths["worse"], *judged]) == 1
    said = capsys.readouterr().out
    assert says(said, "unsure", "prefill_ms", "undecided")
    assert says(said, "worse", "prefill_ms", "worse", "10 %")
    assert main(["compare", paths["same"], paths["same"], *judged]) == 0
    assert not says(capsys.readouterr().out, "undecided")
