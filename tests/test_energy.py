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


def test_no_figure_has_a_reason(tmp_path, clock):
    zone(tmp_path / "short", "intel-rapl:0", 0)
    (tmp_path / "closed" / "intel-rapl:0" / "energy_uj").mkdir(parents=True)  # for root, too, no file to read
    for name, reason in (("short", "0.40 s"), ("none", "powercap"), ("closed", "")):
        meter = EnergyMeter(CPU, tmp_path / name)
        meter.mark()
        clock[0] += 0.4
        meter.mark()
        found = meter.described()
        assert list(found) == ["missing"]
        assert found["missing"] and reason in found["missing"]
