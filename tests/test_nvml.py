"""NVIDIA's cards by NVML: what a stand-in of the library counts, and what is missing without it."""

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ocr_phases.batch.local_workers import visible_gpus
from ocr_phases.collectors.conditions import Conditions, gpu_state
from ocr_phases.collectors.energy import CardCounter
from ocr_phases.collectors.nvml import Card, card_count

UUID = "GPU-7"
CUDA = torch.device("cuda", 0)


class NvmlFault(Exception):
    """What the stand-in raises, as NVML's own error."""


class Nvml:
    """A stand-in of ``pynvml`` with two cards; what is in ``faults`` fails."""

    NVMLError = NvmlFault
    NVML_CLOCK_SM = 1

    def __init__(self) -> None:
        self.faults: set[str] = set()

    def _answer(self, name: str, value: Any) -> Any:
        if name in self.faults:
            raise NvmlFault("Not Supported")
        return value

    def nvmlInit(self) -> None:
        self._answer("driver", None)

    def nvmlDeviceGetCount(self) -> int:
        return self._answer("count", 2)

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        if uuid != UUID:
            raise NvmlFault("Not Found")
        return f"handle of {uuid}"

    def nvmlDeviceGetClockInfo(self, handle: str, kind: int) -> int:
        return self._answer("clock", 1_755)

    def nvmlDeviceGetMaxClockInfo(self, handle: str, kind: int) -> int:
        return self._answer("max clock", 1_980)

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: str) -> int:
        return self._answer("throttle", 0x24)

    def nvmlDeviceGetUtilizationRates(self, handle: str) -> Any:
        return self._answer("utilization", SimpleNamespace(gpu=37, memory=4))

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> list[int]:
        return self._answer("processes", [11, 12])

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: str) -> int:
        return self._answer("energy", 2_500)


@pytest.fixture
def nvml(monkeypatch: pytest.MonkeyPatch) -> Nvml:
    stand_in = Nvml()
    monkeypatch.setitem(sys.modules, "pynvml", stand_in)
    monkeypatch.setattr(
        torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="7")
    )
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return stand_in


def described_by(device: str) -> dict[str, Any]:
    """What a measurement of one repeat says of a device. Each test has its own, with its
    counter.
    """
    conditions = Conditions(device)
    with conditions.during(0):
        pass
    return conditions.describe()


def test_a_card_tells_its_state(nvml: Nvml) -> None:
    assert gpu_state(Card(UUID)) == {
        "sm_mhz": 1_755,
        "max_sm_mhz": 1_980,
        "throttle_reasons": 0x24,
        "utilization": 37,
        "other_processes": 1,
    }


@pytest.mark.parametrize(
    ("fault", "figure"),
    [
        ("clock", "sm_mhz"),
        ("max clock", "max_sm_mhz"),
        ("throttle", "throttle_reasons"),
        ("utilization", "utilization"),
        ("processes", "other_processes"),
    ],
)
def test_a_counter_that_a_card_does_not_have_is_missing_alone(
    nvml: Nvml, fault: str, figure: str
) -> None:
    whole = gpu_state(Card(UUID))
    nvml.faults.add(fault)
    assert gpu_state(Card(UUID)) == whole | {figure: None}


def test_a_measurement_finds_its_card_by_the_name_that_torch_has_for_it(nvml: Nvml) -> None:
    described = described_by("cuda:7")
    assert described["gpu"]["before"] == described["gpu"]["after"]
    assert described["gpu"]["before"]["sm_mhz"] == 1_755


def test_nvml_counts_millijoules(nvml: Nvml) -> None:
    assert CardCounter(CUDA).read() == [2.5]


def test_a_card_without_a_counter_of_energy_says_so(nvml: Nvml) -> None:
    nvml.faults.add("energy")
    with pytest.raises(OSError, match="NVML: Not Supported"):
        CardCounter(CUDA)


def test_without_the_library_the_state_of_a_card_has_a_reason(
    nvml: Nvml, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    described = described_by("cuda:8")
    reason = "nvidia-ml-py is not installed (pip install nvidia-ml-py)"
    assert described["gpu"] == {"before": None, "after": None, "missing": reason}
    assert described["energy"] == {"missing": reason}


def test_without_a_driver_the_state_of_a_card_has_a_reason(nvml: Nvml) -> None:
    nvml.faults.add("driver")
    described = described_by("cuda:9")
    assert described["gpu"]["missing"] == "NVML: Not Supported"
    assert described["energy"] == {"missing": "NVML: Not Supported"}


def test_a_batch_has_a_worker_for_each_card_and_none_without_a_driver(nvml: Nvml) -> None:
    assert card_count() == 2
    assert visible_gpus() == ["0", "1"]
    nvml.faults.add("driver")
    assert visible_gpus() == []
