"""A new record against the newest earlier ones of a folder: which are taken, and the judgement."""

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from example_run import altered, make_run, with_times
from refusals import refused

from benchmarks import baselines
from ocr_phases import OcrPhasesError, PhaseRun
from ocr_phases.analyse.history import differing_settings, predicted_ratio
from ocr_phases.cli import main
from ocr_phases.results.baseline import Baseline


def record(day: int, *prefills: float, **parts: object) -> PhaseRun:
    """The example of a day in November, with these prefills in ms."""
    run = make_run(repeats=len(prefills))
    run = altered(with_times(run, "prefill", lambda step, repeat: prefills[int(repeat)]), **parts)
    return replace(run, created=f"2026-11-{day:02}T06:00:00+00:00")


def saved(folder: Path, *runs: PhaseRun) -> None:
    folder.mkdir(exist_ok=True)
    for number, run in enumerate(runs):
        run.save(folder / f"run-{number}.json")


#: Five days of a machine that is up to 4 % faster or slower as a whole.
DAYS = [
    record(day, *(np.array([99.9, 100.0, 100.1]) * factor))
    for day, factor in enumerate((1.0, 1.04, 0.97, 1.02, 0.99), start=1)
]


@pytest.mark.parametrize(
    ("parts", "differing"),
    [
        ({"device": {"name": "NVIDIA L4"}}, "card"),
        ({"request": {"strategy": "cuda_graph"}}, "strategy"),
        ({"model": {"dtype": "bfloat16"}}, "dtype"),
        ({"model": {"revision": "sha256:other"}}, "weights"),
        ({"request": {"max_new_tokens": 7}}, "max_new_tokens"),
        ({"request": {"repeats": 4, "price_per_hour": 2.0, "embed_page": False}}, None),
    ],
)
def test_only_the_same_measurement_is_taken(
    parts: dict[str, object], differing: str | None, tmp_path: Path
) -> None:
    new = record(9, 100.0, 101.0, 102.0)
    other = record(1, 100.0, 101.0, 102.0, **parts)
    saved(tmp_path / "records", other)
    found = Baseline.newest(tmp_path / "records", new)
    assert differing_settings(other, new) == ([] if differing is None else [differing])
    assert len(found.runs) == (1 if differing is None else 0)
    if differing is not None:
        assert f"run-0.json differs in {differing}" in str(found)


def test_the_newest_are_taken_and_other_files_are_passed_over(tmp_path: Path) -> None:
    folder = tmp_path / "records"
    saved(folder, DAYS[3], DAYS[0], DAYS[4], DAYS[1])
    saved(folder / "deeper", DAYS[2])
    (folder / "status.json").write_text("{}")
    new = record(9, 100.0, 101.0, 102.0)
    new.save(folder / "new.json")
    found = Baseline.newest(folder, new, last=3, path=folder / "new.json")
    assert [run.created[8:10] for run in found.runs] == ["05", "04", "03"]
    assert "3 records" in str(found) and "from 2026-11-03 to 2026-11-05" in str(found)
    with refused():
        Baseline.newest(tmp_path / "nowhere", new)


@pytest.mark.parametrize(("count", "quantile"), [(3, 4.30265), (5, 2.77645)])
def test_the_interval_is_that_of_predicting_one_more_record(count: int, quantile: float) -> None:
    """Against the quantile in tables of Student's t, and the formula written out."""
    rng = np.random.default_rng(count)
    earlier = rng.lognormal(4.6, 0.05, (count, 8))
    now = rng.lognormal(4.6, 0.05, 8)
    means = np.log(earlier).mean(axis=1)
    reach = quantile * means.std(ddof=1) * math.sqrt(1 + 1 / count)
    middle = np.log(now).mean() - means.mean()
    low, high = predicted_ratio([*earlier], now).interval()
    assert (low, high) == pytest.approx(
        (math.exp(middle - reach), math.exp(middle + reach)), rel=1e-4
    )


@pytest.mark.parametrize(
    ("prefill", "of_pair", "of_days"),
    [
        # The repeats of two days tell a change of 4 % apart, and the days scatter as much.
        (104.0, "worse", "undecided"),
        (130.0, "worse", "worse"),
        (100.0, "within", "undecided"),
    ],
)
def test_days_that_differ_raise_no_alarm(prefill: float, of_pair: str, of_days: str) -> None:
    new = record(9, prefill - 0.1, prefill, prefill + 0.1)
    found = []
    for earlier in (DAYS[:1], DAYS):
        table = Baseline(earlier, [], Path()).against_limit(new, 2.0, ["prefill_ms"])
        found += table.loc[table["metric"] == "prefill_ms", "outcome"].tolist()
    assert found == [of_pair, of_days]


def test_the_verb_exits_as_a_limit_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "ocr_phases.report.render.write_report", lambda *_, **__: tmp_path / "compare.html"
    )
    saved(tmp_path / "records", *DAYS[:3])
    new = tmp_path / "new.json"
    options = ["--fail-above", "30", "--metric", "prefill_ms", "--out", str(tmp_path / "out")]
    command = ["compare", "--baseline", str(tmp_path / "records"), str(new), *options, "--json"]
    for ms, code in ((101.0, 0), (200.0, 1)):
        record(9, ms, ms + 1, ms + 2).save(new)
        assert main(command) == code
        told = json.loads(capsys.readouterr().out)
        assert [Path(path).name for path in told["baseline"]] == [
            f"run-{number}.json" for number in (2, 1, 0)
        ]
        assert [row["metric"] for row in told["judged"]] == ["prefill_ms"]
    record(9, 100.0, 101.0, device={"name": "NVIDIA L4"}).save(new)
    assert main(command) == 3
    assert json.loads(capsys.readouterr().out)["baseline"] == []
    for wrong in (["--last", "3", str(new), str(new)], [str(new)], [*command[1:4], str(new)]):
        assert main(["compare", *wrong]) == 2


def test_a_baseline_of_several_days_raises_few_false_alarms() -> None:
    """As docs/guide.md says; the machine drifts by 5 % from day to day."""
    of_pair = baselines.play(1, 0.0, 0.05, gates=150)
    of_days = baselines.play(8, 0.0, 0.05, gates=150)
    assert of_pair.false_alarms > 0.06 > 0.03 > of_days.false_alarms
    assert of_days.found > 0.4
    assert of_days.undecided > 0.8


def test_no_earlier_record_is_an_error() -> None:
    with pytest.raises(OcrPhasesError, match="no earlier record"):
        Baseline([], [], Path()).against_limit(DAYS[0], 5.0)
