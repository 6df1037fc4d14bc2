"""NVML, the part of NVIDIA's driver that tells of its cards. Nothing else in the package asks it.

The library ``pynvml`` (package nvidia-ml-py) is imported when a card is asked for. Imports no
torch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

_Answer = TypeVar("_Answer")


class Card:
    """One NVIDIA card, by the name that its driver knows it by (``GPU-2f1c…``).

    Raises OSError where the library, the driver or the card is missing. What a card does not count
    is None, except its joules.
    """

    def __init__(self, uuid: str) -> None:
        self._nvml = _library()
        try:
            self._handle = self._nvml.nvmlDeviceGetHandleByUUID(uuid)
        except self._nvml.NVMLError as error:
            raise OSError(f"NVML: {error}") from error

    def joules(self) -> float:
        """The energy that the card has used since its driver was loaded.

        Raises OSError where the card has no counter of it.
        """
        try:
            millijoules = self._nvml.nvmlDeviceGetTotalEnergyConsumption(self._handle)
        except self._nvml.NVMLError as error:
            raise OSError(f"NVML: {error}") from error
        return millijoules / 1e3

    def sm_mhz(self) -> int | None:
        """The clock of its multiprocessors now, in MHz."""
        return self._ask(self._nvml.nvmlDeviceGetClockInfo, self._nvml.NVML_CLOCK_SM)

    def max_sm_mhz(self) -> int | None:
        """The highest clock of its multiprocessors, in MHz."""
        return self._ask(self._nvml.nvmlDeviceGetMaxClockInfo, self._nvml.NVML_CLOCK_SM)

    def throttle_reasons(self) -> int | None:
        """Why its clocks are as they are: a bit mask of NVML's."""
        return self._ask(self._nvml.nvmlDeviceGetCurrentClocksThrottleReasons)

    def utilization(self) -> int | None:
        """Per cent of the last moments in which a kernel ran."""
        rates = self._ask(self._nvml.nvmlDeviceGetUtilizationRates)
        if rates is None:
            return None
        return rates.gpu

    def compute_processes(self) -> int | None:
        """How many processes compute on it."""
        processes = self._ask(self._nvml.nvmlDeviceGetComputeRunningProcesses)
        if processes is None:
            return None
        return len(processes)

    def _ask(self, question: Callable[..., _Answer], *arguments: int) -> _Answer | None:
        """What NVML's function ``question`` tells of the card.

        It is None where the card or its driver does not tell it.
        """
        try:
            return question(self._handle, *arguments)
        except self._nvml.NVMLError:
            return None


def card_count() -> int:
    """How many NVIDIA cards the driver sees; OSError where the library or the driver is missing."""
    nvml = _library()
    try:
        return nvml.nvmlDeviceGetCount()
    except nvml.NVMLError as error:
        raise OSError(f"NVML: {error}") from error


def _library() -> Any:
    """``pynvml``, ready to be asked; OSError where it is not installed or finds no driver."""
    try:
        import pynvml
    except ImportError as error:
        raise OSError("nvidia-ml-py is not installed (pip install nvidia-ml-py)") from error
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise OSError(f"NVML: {error}") from error
    return pynvml
