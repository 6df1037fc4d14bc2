"""The devices that a model runs on: their clock, their memory, and what they are called.

Everything that torch does differently on a CPU, a CUDA device and an Apple GPU is asked of a
`Device`; `device_of` gives the one for a torch device. torch drives AMD's GPUs by the names of
CUDA, and so does this package. Apple's and AMD's GPUs are unproven: nobody has measured on one yet.

Two things stay outside, because only CUDA has them: graphs (`ocr_phases.steps.graphs`) and the
debug mode that tells of the host's waits (`ocr_phases.collectors.host_syncs`).
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, ClassVar, Protocol

import psutil
import torch

from ocr_phases.errors import OcrPhasesError, SettingError
from ocr_phases.models.host import host_name, text_in_file
from ocr_phases.text import count_text, nearest

#: The seconds of `time.perf_counter`.
Seconds = float


class Event(Protocol):
    """A moment in the work of a device, as torch's events are."""

    def elapsed_time(self, end: Any, /) -> float:
        """The milliseconds from here to ``end``, of the same class, once both are reached."""


#: A moment: an event that was recorded on the device (None on a CPU), and the host's clock.
Mark = tuple[Event | None, Seconds]


@dataclass(frozen=True)
class Chip:
    """What a device is: its name, bytes of memory, cores, and bytes of its last cache.

    ``cores`` are multiprocessors of a GPU, or the cores of a CPU that this process may use. What
    the system does not tell is None.
    """

    name: str
    memory_bytes: int | None
    cores: int | None
    cache_bytes: int | None


class Clock:
    """Marks moments of a device's work.

    This one is the host's, which is also the clock of a CPU: torch returns when the work is done.
    """

    def mark(self) -> Mark:
        """The moment now."""
        return None, perf_counter()


class EventClock(Clock):
    """The clock of a CUDA device: each mark records an event into the device's stream.

    Nothing waits for the device here. The events can be read once it has been waited for.
    """

    def __init__(self, device: torch.device) -> None:
        # Asking for it at every mark would cost as much as the mark.
        self._stream = torch.cuda.current_stream(device)

    def mark(self) -> Mark:
        """The moment now on the host, and the one when the device will have come so far."""
        event = torch.cuda.Event(enable_timing=True)
        event.record(self._stream)
        return event, perf_counter()


class AppleClock(Clock):
    """The clock of an Apple GPU, which has one stream."""

    def mark(self) -> Mark:
        """The moment now on the host, and the one when the device will have come so far."""
        event = torch.mps.Event(enable_timing=True)
        event.record()
        return event, perf_counter()


class Device:
    """One device of torch. Its kinds are the classes below; `device_of` chooses among them."""

    #: As torch calls it, and as a record names the kind of its device.
    kind: ClassVar[str]
    #: What `peak_bytes` counts, as a record names it.
    peak_source: ClassVar[str]

    def __init__(self, device: torch.device) -> None:
        self.torch_device = device

    def clock(self) -> Clock:
        """The clock that times what runs in the stream that is current now."""
        raise NotImplementedError

    def synchronize(self) -> None:
        """Wait until the device has done all that it was told."""
        raise NotImplementedError

    def made_current(self) -> AbstractContextManager:
        """Make it the device that torch uses where none is named, for a ``with`` block."""
        return contextlib.nullcontext()

    def seeded(self, seed: int) -> AbstractContextManager[None]:
        """Start torch's own random numbers from ``seed`` in a ``with`` block, here and on the CPU.

        After it they go on as if the block had not been.
        """
        raise NotImplementedError

    def chip(self) -> Chip:
        """What the device is."""
        raise NotImplementedError

    def uuid(self) -> str | None:
        """The name that the driver knows a GPU by; None where there is none."""
        return None

    def free_bytes(self) -> int:
        """Memory that nobody has."""
        raise NotImplementedError

    def reserved_bytes(self) -> int:
        """Memory that torch holds in this process; what it holds of a CPU's does not count."""
        return 0

    def peak_bytes(self) -> int | None:
        """The most memory in use since the last call; None where that cannot be counted."""
        return None

    def release_memory(self) -> None:
        """Give memory back to the system that torch holds without need."""

    def computes_bfloat16(self) -> bool:
        """Whether it computes with bfloat16 itself, and does not emulate it."""
        return True


class CpuDevice(Device):
    """The CPU of this host, with the cores that the process may use."""

    kind = "cpu"
    peak_source = "process_high_water_mark"

    def clock(self) -> Clock:
        """The clock of the host."""
        return Clock()

    def synchronize(self) -> None:
        """Nothing is left to wait for: torch returns when the work is done."""

    @contextlib.contextmanager
    def seeded(self, seed: int) -> Iterator[None]:
        """The generator of the CPU."""
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            yield

    def chip(self) -> Chip:
        """The host, as its system describes it."""
        memory_bytes = psutil.virtual_memory().total
        return Chip(host_name(), memory_bytes, len(usable_cores()), _last_cache_bytes())

    def free_bytes(self) -> int:
        """Memory that the system can give without swapping."""
        return psutil.virtual_memory().available

    def peak_bytes(self) -> int | None:
        """The process's high-water mark (``VmHWM``), which Linux lets a process reset.

        It counts everything that is resident, not torch's tensors alone.
        """
        kilobytes = text_in_file(r"VmHWM:\s+(\d+) kB", "/proc/self/status")
        try:
            Path("/proc/self/clear_refs").write_text("5")
        except OSError:
            return None
        return None if kilobytes is None else int(kilobytes) * 1024


class CudaDevice(Device):
    """A GPU that torch drives as ``cuda``: NVIDIA's, and AMD's by the same calls."""

    kind = "cuda"
    peak_source = "cuda_peak_allocated"

    def clock(self) -> Clock:
        """Events in the stream that is current now."""
        return EventClock(self.torch_device)

    def synchronize(self) -> None:
        """Wait for all streams."""
        torch.cuda.synchronize(self.torch_device)

    def made_current(self) -> AbstractContextManager:
        """Its events, memory counters and `synchronize` are those of the current device."""
        return torch.cuda.device(self.torch_device)

    @contextlib.contextmanager
    def seeded(self, seed: int) -> Iterator[None]:
        """The generators of this GPU and of the CPU."""
        with torch.random.fork_rng(devices=[self.torch_device]), self.made_current():
            torch.default_generator.manual_seed(seed)
            torch.cuda.manual_seed(seed)
            yield

    def chip(self) -> Chip:
        """The card, as its driver describes it."""
        properties = torch.cuda.get_device_properties(self.torch_device)
        return Chip(
            name=properties.name,
            memory_bytes=properties.total_memory,
            cores=properties.multi_processor_count,
            cache_bytes=getattr(properties, "L2_cache_size", None),  # since torch 2.6
        )

    def uuid(self) -> str | None:
        """As the driver writes it. A visible device's number need not be the driver's."""
        return f"GPU-{torch.cuda.get_device_properties(self.torch_device).uuid}"

    def free_bytes(self) -> int:
        """Memory that no process has, as the driver tells."""
        free, _ = torch.cuda.mem_get_info(self.torch_device)
        return free

    def reserved_bytes(self) -> int:
        """What torch's allocator holds, in use or not."""
        return torch.cuda.memory_reserved(self.torch_device)

    def peak_bytes(self) -> int | None:
        """The peak of torch's allocator."""
        peak = torch.cuda.max_memory_allocated(self.torch_device)
        torch.cuda.reset_peak_memory_stats(self.torch_device)
        return peak

    def release_memory(self) -> None:
        """Empty torch's cache of blocks, of all CUDA devices."""
        torch.cuda.empty_cache()

    def computes_bfloat16(self) -> bool:
        """Cards before Ampere (T4, V100, P100) emulate it."""
        with self.made_current():
            return torch.cuda.is_bf16_supported(including_emulation=False)


class AppleDevice(Device):
    """The GPU of an Apple computer, which torch calls ``mps``. It shares the host's memory.

    torch has no peak counter for it, so `peak_bytes` is None. Unproven.
    """

    kind = "mps"
    peak_source = ""

    def clock(self) -> Clock:
        """Events in the device's one stream."""
        return AppleClock()

    def synchronize(self) -> None:
        """Wait for its stream."""
        torch.mps.synchronize()

    @contextlib.contextmanager
    def seeded(self, seed: int) -> Iterator[None]:
        """The generators of this GPU and of the CPU."""
        state = torch.mps.get_rng_state()
        try:
            with torch.random.fork_rng(devices=[]):
                torch.default_generator.manual_seed(seed)
                torch.mps.manual_seed(seed)
                yield
        finally:
            torch.mps.set_rng_state(state)

    def chip(self) -> Chip:
        """What torch tells of it: neither cores nor caches in all its versions."""
        return Chip(f"{host_name()} GPU", torch.mps.recommended_max_memory(), None, None)

    def free_bytes(self) -> int:
        """What Metal recommends as the most, less what is in use."""
        return max(0, torch.mps.recommended_max_memory() - self.reserved_bytes())

    def reserved_bytes(self) -> int:
        """What Metal has given to this process."""
        return torch.mps.driver_allocated_memory()

    def release_memory(self) -> None:
        """Empty torch's cache of blocks."""
        torch.mps.empty_cache()

    def computes_bfloat16(self) -> bool:
        """Not all do: an M1 emulates it, and macOS lacks it before version 14."""
        return False


_KINDS: tuple[type[Device], ...] = (CpuDevice, CudaDevice, AppleDevice)


def device_of(device: torch.device | str) -> Device:
    """The `Device` for one of torch; `OcrPhasesError` for a kind that nothing here can time."""
    torch_device = torch.device(device)
    for kind in _KINDS:
        if kind.kind == torch_device.type:
            return kind(torch_device)
    kinds = ", ".join(kind.kind for kind in _KINDS)
    raise OcrPhasesError(f"{torch_device} cannot be timed: a model must be on one of {kinds}.")


def resolve_device(device: str) -> str:
    """The device that a setting names: ``auto`` is ``cuda`` where there is one, else ``cpu``.

    Raises `SettingError` for a device that torch does not see here.
    """
    if device == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cpu":
        return device
    if device == "mps":
        if not torch.backends.mps.is_available():
            raise SettingError(
                "device",
                "Device mps was asked for, but torch sees no Apple GPU here: use device cpu.",
            )
        return device
    match = re.fullmatch(r"cuda(?::(\d+))?", device)
    if match is None:
        hint = nearest(device, ("auto", "cpu", "cuda", "mps"))
        raise SettingError(
            "device", f"Unknown device {device!r}: use auto, cpu, cuda, cuda:N or mps.{hint}"
        )
    if not torch.cuda.is_available():
        raise SettingError("device", _why_no_cuda(device))
    count = torch.cuda.device_count()
    if int(match[1] or 0) >= count:
        raise SettingError(
            "device", f"There is no {device}: torch sees {count_text(count, 'CUDA device')}."
        )
    return device


def _why_no_cuda(device: str) -> str:
    """Why torch cannot use the CUDA device that was asked for, and what to do."""
    if torch.version.cuda is None and torch.version.hip is None:
        return (
            f"Device {device} was asked for, but this torch {torch.__version__} is a build for "
            "CPUs: install one for your GPU (https://pytorch.org/get-started/locally), or use "
            "device cpu."
        )
    return (
        f"Device {device} was asked for, but torch sees no such GPU here: look whether nvidia-smi "
        "shows it and CUDA_VISIBLE_DEVICES hides it, or use device cpu."
    )


def is_cuda_elsewhere(device: str) -> bool:
    """Whether a setting names a CUDA device and torch sees none here, so that it is another
    machine's.
    """
    return re.fullmatch(r"cuda(?::\d+)?", device) is not None and not torch.cuda.is_available()


def release_memory() -> None:
    """Give memory back to the system that torch holds without need, on all devices."""
    device_of("cuda").release_memory()  # does nothing where CUDA was not used
    if torch.backends.mps.is_available():
        device_of("mps").release_memory()


@contextlib.contextmanager
def cpu_threads(count: int | None) -> Iterator[None]:
    """Within it torch computes with so many CPU threads; None leaves the number as it is."""
    before = torch.get_num_threads()
    if count is not None:
        torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


# -- the host --------------------------------------------------------------------------------------


def usable_cores() -> Sequence[int]:
    """The cores that this process may run on.

    A container or a batch system often gives fewer than there are.
    """
    process = psutil.Process()
    if hasattr(process, "cpu_affinity"):  # not on macOS
        return process.cpu_affinity()
    return range(psutil.cpu_count() or 1)


def _last_cache_bytes() -> int | None:
    """Bytes of the host's largest cache; None where the system does not tell."""
    units = {"K": 1 << 10, "M": 1 << 20}
    sizes = []
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("*/size"):
        text = path.read_text().strip()
        if text[-1:] in units:
            sizes.append(int(text[:-1]) * units[text[-1]])
    return max(sizes, default=None)
