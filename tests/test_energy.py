"""Energy: counters that begin again, windows that are too short, and hosts without a counter."""

import pytest
import torch

from ocr_phases.collectors import energy

RANGE = 262_143_328_850


def zone(folder, name, microjoules):
    (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / name / "energy_uj").write_text(f"{microjoules}\n")
    (folder / name / "max_energy_range_uj").write_text(f"{RANGE}\n")


@pytest.fixture
def metered(monkeypatch):
    """What a meter tells of a window of ``seconds``, by a clock that moves by hand and by
    sleeping.
    """
    time = [0.0]
    monkeypatch.setattr(energy, "perf_counter", lambda: time[0])
    monkeypatch.setattr(energy, "sleep", lambda seconds: time.__setitem__(0, time[0] + seconds))

    def described(folder, seconds, meanwhile=lambda: None):
        meter = energy.EnergyMeter(torch.device("cpu"), folder)
        meter.mark()
        meanwhile()
        time[0] += seconds
        meter.mark()
        return meter.describe()

    return described


def test_packages_are_added_up_past_the_end_of_their_range(tmp_path, metered):
    def used(first, second):
        zone(tmp_path, "intel-rapl:0", first)
        zone(tmp_path, "intel-rapl:1", second)
        zone(tmp_path, "intel-rapl:0:0", 7)  # a part of package 0, which counts already

    used(RANGE - 1_000_000, 5_000_000)
    found = metered(tmp_path, 2.5, lambda: used(2_000_000, 9_000_000))
    assert found == {"seconds": 2.5, "run_joules": pytest.approx(7.0, abs=1e-5), "idle_w": 0.0}


@pytest.mark.parametrize(
    ("name", "reason"), [("short", "0.40 s"), ("none", "powercap"), ("closed", "")]
)
def test_no_figure_has_a_reason(name, reason, tmp_path, metered):
    zone(tmp_path / "short", "intel-rapl:0", 0)
    (tmp_path / "closed" / "intel-rapl:0" / "energy_uj").mkdir(
        parents=True
    )  # for root, too, no file to read
    found = metered(tmp_path / name, 0.4)
    assert list(found) == ["missing"]
    assert found["missing"] and reason in found["missing"]
