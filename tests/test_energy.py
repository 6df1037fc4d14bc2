"""Energy: counters that begin again, windows that are too short, and hosts without a counter."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from ocr_phases.collectors import energy

#: Where the counter of a package begins again, in microjoules.
RANGE = 262_143_328_850


def write_counter(folder: Path, name: str, microjoules: int) -> None:
    """Write a counter as the kernel shows it, in a folder of its own."""
    (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / name / "energy_uj").write_text(f"{microjoules}\n")
    (folder / name / "max_energy_range_uj").write_text(f"{RANGE}\n")


class FakeClock:
    """A clock that moves only when it is told to, or when somebody sleeps."""

    def __init__(self) -> None:
        self.now = 0.0

    def time(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> FakeClock:
    fake = FakeClock()
    monkeypatch.setattr(energy, "perf_counter", fake.time)
    monkeypatch.setattr(energy, "sleep", fake.sleep)
    return fake


def do_nothing() -> None:
    pass


def energy_of_window(
    clock: FakeClock, folder: Path, seconds: float, meanwhile: Callable[[], None] = do_nothing
) -> dict[str, Any]:
    """What a meter of the counters in a folder tells of a window of so many seconds."""
    meter = energy.EnergyMeter(torch.device("cpu"), folder)
    meter.mark()
    meanwhile()
    clock.sleep(seconds)
    meter.mark()
    return meter.describe()


def test_packages_are_added_up_past_the_end_of_their_range(
    tmp_path: Path, clock: FakeClock
) -> None:
    def write_counters(first: int, second: int) -> None:
        write_counter(tmp_path, "intel-rapl:0", first)
        write_counter(tmp_path, "intel-rapl:1", second)
        write_counter(tmp_path, "intel-rapl:0:0", 7)  # a part of package 0, which counts already

    def use_seven_joules() -> None:
        """Three in the first package, whose counter begins again, and four in the second."""
        write_counters(2_000_000, 9_000_000)

    write_counters(RANGE - 1_000_000, 5_000_000)

    found = energy_of_window(clock, tmp_path, 2.5, use_seven_joules)

    assert found == {"seconds": 2.5, "run_joules": pytest.approx(7.0, abs=1e-5), "idle_w": 0.0}


def missing_reason(clock: FakeClock, folder: Path) -> str:
    """Why a window of 0.4 s has no figure; it has nothing else to tell."""
    found = energy_of_window(clock, folder, 0.4)
    assert list(found) == ["missing"]
    return found["missing"]


def test_a_window_that_is_too_short_says_its_length(tmp_path: Path, clock: FakeClock) -> None:
    write_counter(tmp_path, "intel-rapl:0", 0)
    assert "0.40 s" in missing_reason(clock, tmp_path)


def test_a_host_without_a_counter_is_told_where_one_would_be(
    tmp_path: Path, clock: FakeClock
) -> None:
    assert "powercap" in missing_reason(clock, tmp_path / "none")


def test_a_counter_that_cannot_be_read_has_a_reason(tmp_path: Path, clock: FakeClock) -> None:
    # A folder in place of the file is no file to read, not even for root.
    (tmp_path / "intel-rapl:0" / "energy_uj").mkdir(parents=True)
    assert missing_reason(clock, tmp_path)
