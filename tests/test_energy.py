"""Energy: counters that begin again, windows that are too short, and hosts without a counter."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from ocr_phases.collectors import machine
from ocr_phases.collectors.machine import EnergyMeter

CPU = torch.device("cpu")
RANGE = 262_143_328_850


def zone(folder: Path, name: str, microjoules: int) -> None:
    (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / name / "energy_uj").write_text(f"{microjoules}\n")
    (folder / name / "max_energy_range_uj").write_text(f"{RANGE}\n")


@pytest.fixture
def clock(monkeypatch):
    """A clock that moves by hand, and by sleeping."""
    time = [0.0]
    monkeypatch.setattr(machine, "perf_counter", lambda: time[0])
    monkeypatch.setattr(machine, "sleep", lambda seconds: time.__setitem__(0, time[0] + seconds))
    return time


def test_packages_are_added_up_past_the_end_of_their_range(tmp_path, clock):
    zone(tmp_path, "intel-rapl:0", RANGE - 1_000_000)
    zone(tmp_path, "intel-rapl:1", 5_000_000)
    zone(tmp_path, "intel-rapl:0:0", 7)  # a part of package 0, which counts already
    meter = EnergyMeter(CPU, tmp_path)
    meter.mark()
    zone(tmp_path, "intel-rapl:0", 2_000_000)
    zone(tmp_path, "intel-rapl:1", 9_000_000)
    clock[0] += 2.5
    meter.mark()
    assert meter.described() == {
        "seconds": 2.5,
        "run_joules": pytest.approx(7.0, abs=1e-5),
        "idle_w": 0.0,
    }


def test_a_short_window_has_no_figure_but_a_reason(tmp_path, clock):
    zone(tmp_path, "intel-rapl:0", 0)
    meter = EnergyMeter(CPU, tmp_path)
    meter.mark()
    clock[0] += 0.4
    meter.mark()
    assert list(meter.described()) == ["missing"]
    assert "0.40 s" in meter.described()["missing"]


def test_a_host_without_counters_says_so(tmp_path, clock):
    meter = EnergyMeter(CPU, tmp_path / "nothing")
    meter.mark()
    meter.mark()
    assert "powercap" in meter.described()["missing"]


def test_a_counter_that_may_not_be_read_says_so(tmp_path, clock):
    (tmp_path / "intel-rapl:0" / "energy_uj").mkdir(parents=True)  # for root, too, it is no file to read
    meter = EnergyMeter(CPU, tmp_path)
    meter.mark()
    meter.mark()
    assert meter.described()["missing"]
