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
    """The example of a day in November, with these prefills in ms and other entries in parts."""

    def prefill_ms(_step: int, repeat: int) -> float:
        return prefills[repeat]

    run = with_times(make_run(repeats=len(prefills)), "prefill", prefill_ms)
    return replace(altered(run, **parts), created=f"2026-11-{day:02}T06:00:00+00:00")


def save_all(folder: Path, *runs: PhaseRun) -> None:
    """The records as ``run-0.json`` and so on."""
    folder.mkdir(exist_ok=True)
    for number, run in enumerate(runs):
        run.save(folder / f"run-{number}.json")


#: How much slower a machine is as a whole on each of five days.
PACE_OF_DAYS = (1.0, 1.04, 0.97, 1.02, 0.99)
DAYS = [
    record(day, 99.9 * pace, 100.0 * pace, 100.1 * pace)
    for day, pace in enumerate(PACE_OF_DAYS, start=1)
]


@pytest.mark.parametrize(
    ("parts", "difference"),
    [
        ({"device": {"name": "NVIDIA L4"}}, "card"),
        ({"request": {"strategy": "cuda_graph"}}, "strategy"),
        ({"model": {"dtype": "bfloat16"}}, "dtype"),
        ({"model": {"revision": "sha256:other"}}, "weights"),
        ({"request": {"max_new_tokens": 7}}, "max_new_tokens"),
    ],
)
def test_another_measurement_is_passed_over_and_its_difference_is_named(
    parts: dict[str, object], difference: str, tmp_path: Path
) -> None:
    new = record(9, 100.0, 101.0, 102.0)
    other = record(1, 100.0, 101.0, 102.0, **parts)
    save_all(tmp_path / "records", other)

    found = Baseline.newest(tmp_path / "records", new)

    assert differing_settings(other, new) == [difference]
    assert len(found.runs) == 0
    assert f"run-0.json differs in {difference}" in str(found)


def test_a_record_with_other_settings_that_change_no_time_is_taken(tmp_path: Path) -> None:
    new = record(9, 100.0, 101.0, 102.0)
    settings = {"repeats": 4, "price_per_hour": 2.0, "embed_page": False}
    other = record(1, 100.0, 101.0, 102.0, request=settings)
    save_all(tmp_path / "records", other)

    found = Baseline.newest(tmp_path / "records", new)

    assert differing_settings(other, new) == []
    assert len(found.runs) == 1


def test_the_newest_are_taken_and_other_files_are_passed_over(tmp_path: Path) -> None:
    folder = tmp_path / "records"
    save_all(folder, DAYS[3], DAYS[0], DAYS[4], DAYS[1])
    save_all(folder / "deeper", DAYS[2])
    (folder / "status.json").write_text("{}")
    new = record(9, 100.0, 101.0, 102.0)
    new.save(folder / "new.json")

    found = Baseline.newest(folder, new, last=3, path=folder / "new.json")

    assert [run.created[:10] for run in found.runs] == ["2026-11-05", "2026-11-04", "2026-11-03"]
    assert "3 records" in str(found)
    assert "from 2026-11-03 to 2026-11-05" in str(found)


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with refused():
        Baseline.newest(tmp_path / "nowhere", DAYS[0])


def test_a_folder_without_a_record_has_no_nearest_one(tmp_path: Path) -> None:
    found = Baseline.newest(tmp_path, DAYS[0])

    assert found.runs == []
    assert "nearest" not in str(found)


@pytest.mark.parametrize(("count", "quantile"), [(3, 4.30265), (5, 2.77645)])
def test_the_interval_is_that_of_predicting_one_more_record(count: int, quantile: float) -> None:
    """Against the quantile in tables of Student's t, and the formula written out."""
    rng = np.random.default_rng(count)
    earlier = rng.lognormal(4.6, 0.05, (count, 8))
    now = rng.lognormal(4.6, 0.05, 8)

    low, high = predicted_ratio(list(earlier), now).interval()

    means = np.log(earlier).mean(axis=1)
    difference = np.log(now).mean() - means.mean()
    reach = quantile * means.std(ddof=1) * math.sqrt(1 + 1 / count)
    assert low == pytest.approx(math.exp(difference - reach), rel=1e-4)
    assert high == pytest.approx(math.exp(difference + reach), rel=1e-4)


def prefill_outcome(earlier: list[PhaseRun], new: PhaseRun) -> str:
    """How a record's prefill stands against earlier records under a limit of 2 %."""
    table = Baseline(earlier, [], Path()).against_limit(new, 2.0, ["prefill_ms"])
    return table.set_index("metric").loc["prefill_ms", "outcome"]


@pytest.mark.parametrize(
    ("prefill", "against_one_day", "against_all_days"),
    [
        # The repeats of two days tell a change of 4 % apart, and the days scatter as much.
        (104.0, "worse", "undecided"),
        (130.0, "worse", "worse"),
        (100.0, "within", "undecided"),
    ],
)
def test_days_that_differ_raise_no_alarm(
    prefill: float, against_one_day: str, against_all_days: str
) -> None:
    new = record(9, prefill - 0.1, prefill, prefill + 0.1)

    assert prefill_outcome(DAYS[:1], new) == against_one_day
    assert prefill_outcome(DAYS, new) == against_all_days


@pytest.fixture
def three_days(tmp_path: Path, no_comparison_page: None) -> Path:
    """A folder with the records of three days."""
    save_all(tmp_path / "records", *DAYS[:3])
    return tmp_path / "records"


def compare_with_baseline(folder: Path, new: PhaseRun) -> int:
    """The exit code of the verb for a record against those of a folder under a limit of 30 %."""
    path = new.save(folder.parent / "new.json")
    limit = ["--fail-above", "30", "--metric", "prefill_ms"]
    out = ["--out", str(folder.parent / "out"), "--json"]
    return main(["compare", "--baseline", str(folder), str(path), *limit, *out])


@pytest.mark.parametrize(
    ("prefill", "exit_code"),
    [pytest.param(101.0, 0, id="equal"), pytest.param(200.0, 1, id="slow")],
)
def test_the_verb_exits_as_a_limit_does(
    prefill: float, exit_code: int, three_days: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    new = record(9, prefill, prefill + 1, prefill + 2)

    assert compare_with_baseline(three_days, new) == exit_code

    result = json.loads(capsys.readouterr().out)
    newest_first = [Path(path).name for path in result["baseline"]]
    assert newest_first == ["run-2.json", "run-1.json", "run-0.json"]
    assert [row["metric"] for row in result["judged"]] == ["prefill_ms"]


def test_the_verb_exits_with_3_without_an_earlier_record_of_the_same_measurement(
    three_days: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    on_another_card = record(9, 100.0, 101.0, device={"name": "NVIDIA L4"})

    assert compare_with_baseline(three_days, on_another_card) == 3

    assert json.loads(capsys.readouterr().out)["baseline"] == []


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["--last", "3", "new.json", "new.json"], id="--last without --baseline"),
        pytest.param(["new.json"], id="one record without --baseline"),
        pytest.param(
            ["--baseline", ".", "new.json", "new.json"], id="two records beside --baseline"
        ),
    ],
)
def test_records_and_options_that_do_not_go_with_a_baseline_are_refused(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    DAYS[0].save(tmp_path / "new.json")
    monkeypatch.chdir(tmp_path)

    assert main(["compare", *arguments]) == 2


def test_a_baseline_of_several_days_raises_few_false_alarms() -> None:
    """As docs/guide.md says; the machine drifts by 5 % from day to day."""
    one_day = baselines.play(1, 0.0, 0.05, gates=150)
    eight_days = baselines.play(8, 0.0, 0.05, gates=150)

    assert one_day.false_alarms > 0.06
    assert eight_days.false_alarms < 0.03
    assert eight_days.found > 0.4
    assert eight_days.undecided > 0.8


def test_no_earlier_record_is_an_error() -> None:
    with pytest.raises(OcrPhasesError, match="no earlier record"):
        Baseline([], [], Path()).against_limit(DAYS[0], 5.0)
