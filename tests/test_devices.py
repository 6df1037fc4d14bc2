"""One interface for all kinds of device: the CPU's as it is, an Apple GPU's by a stand-in.

No test here proves that an Apple or an AMD GPU is measured rightly: the stand-ins know only which
calls of torch are made, and in which order.
"""

from __future__ import annotations

from dataclasses import dataclass
from threading import Event, Thread
from types import SimpleNamespace

import pytest
import torch
from example_run import altered, make_run
from refusals import refused

from ocr_phases import OcrPhasesError, Timeline
from ocr_phases.collectors.conditions import Conditions
from ocr_phases.collectors.machine import describe_device, versions
from ocr_phases.collectors.memory import PeakMemory
from ocr_phases.models.devices import cpu_threads, device_of, resolve_device, usable_cores
from ocr_phases.models.weights import resolve_dtype
from ocr_phases.report.result_files import trace_of_spans
from ocr_phases.steps.decode_kernels import decode_backends

APPLE = torch.device("mps")


class AppleGpu:
    """Stands in for ``torch.mps``: each event is 2 ms after the one before."""

    def __init__(self) -> None:
        self.waits = 0
        self.state = 7
        self.clock_ms = 0.0
        gpu = self

        @dataclass
        class Event:
            enable_timing: bool = False
            at_ms: float | None = None

            def record(self) -> None:
                gpu.clock_ms += 2.0
                self.at_ms = gpu.clock_ms

            def elapsed_time(self, end: Event) -> float:
                assert self.enable_timing and end.enable_timing
                assert gpu.waits > 0, "an event was read before the device was waited for"
                return end.at_ms - self.at_ms

        self.Event = Event

    def synchronize(self) -> None:
        self.waits += 1

    def recommended_max_memory(self) -> int:
        return 16 << 30

    def driver_allocated_memory(self) -> int:
        return 4 << 30

    def empty_cache(self) -> None:
        pass

    def get_rng_state(self) -> int:
        return self.state

    def set_rng_state(self, state: int) -> None:
        self.state = state

    def manual_seed(self, seed: int) -> None:
        self.state = seed


@pytest.fixture
def apple(monkeypatch: pytest.MonkeyPatch) -> AppleGpu:
    gpu = AppleGpu()
    monkeypatch.setattr(torch, "mps", gpu)
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: True)
    return gpu


def test_an_apple_gpu_is_taken_where_torch_sees_one_and_only_if_asked(
    apple: AppleGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve_device("mps") == "mps"
    assert resolve_device("auto") == "cpu"  # nobody has proven the other
    assert resolve_dtype(None, "mps") is torch.float16


def test_an_apple_gpu_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.mps, "is_available", lambda: False)
    with refused():
        resolve_device("mps")


def test_a_timeline_has_the_clock_of_an_apple_gpu_and_waits_once(apple: AppleGpu) -> None:
    timeline = Timeline("mps")
    with timeline.in_phase("prefill"), timeline.span("sam"):
        pass
    assert apple.waits == 0

    table = timeline.table()

    assert apple.waits == 1
    assert table["device_ms"].tolist() == [6.0, 2.0]
    assert (table["host_ms"] < 1000).all()


def test_what_cannot_be_measured_on_an_apple_gpu_is_missing(apple: AppleGpu) -> None:
    memory = PeakMemory("mps")
    with memory.during("prefill"):
        pass
    assert memory.source is None
    assert memory.peaks == {}

    conditions = Conditions("mps")
    with conditions.during(0):
        pass
    described = conditions.describe()
    assert described["gpu"] is None
    assert "mps" in described["energy"]["missing"]

    described_device = describe_device("mps")
    assert described_device["kind"] == "mps"
    assert described_device["memory_bytes"] == 16 << 30
    assert described_device["cores"] is None
    assert decode_backends("mps") == ()


def test_memory_of_an_apple_gpu_is_what_metal_recommends(apple: AppleGpu) -> None:
    device = device_of("mps")
    assert device.free_bytes() == 12 << 30
    assert device.reserved_bytes() == 4 << 30


@pytest.mark.parametrize("kind", ["cpu", "mps"])
def test_random_numbers_start_from_a_seed_and_then_go_on_as_before(
    kind: str, apple: AppleGpu
) -> None:
    torch.default_generator.manual_seed(5)
    without_a_seed = torch.rand(3).tolist()
    torch.default_generator.manual_seed(5)

    seeded = []
    for _ in range(2):
        with device_of(kind).seeded(11):
            seeded.append(torch.rand(3).tolist())
            if kind == "mps":
                assert apple.state == 11

    assert seeded[0] == seeded[1]
    assert torch.rand(3).tolist() == without_a_seed
    assert apple.state != 11


@pytest.fixture
def amd(monkeypatch: pytest.MonkeyPatch) -> AppleGpu:
    """Stands in for an AMD card under ROCm, which torch drives by the calls of ``torch.cuda``."""
    gpu = AppleGpu()
    card = SimpleNamespace(
        name="AMD Instinct MI300X",
        total_memory=192 << 30,
        multi_processor_count=304,
        uuid="11111111-2222-3333-4444-555555555555",
    )

    class Event(gpu.Event):
        def record(self, stream: str) -> None:
            assert stream == "current stream"
            super().record()

    monkeypatch.setattr(torch.version, "hip", "6.4")
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: card)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: "current stream")
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: gpu.synchronize())
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (150 << 30, 192 << 30))
    return gpu


def test_an_amd_gpu_is_timed_by_the_calls_of_cuda(amd: AppleGpu) -> None:
    timeline = Timeline(resolve_device("auto"))
    with timeline.in_phase("prefill"), timeline.span("sam"):
        pass
    assert timeline.table()["device_ms"].tolist() == [6.0, 2.0]
    assert amd.waits == 1


def test_a_record_of_an_amd_gpu_names_the_card_and_the_version_of_hip(amd: AppleGpu) -> None:
    described_device = describe_device("cuda")
    assert described_device["name"] == "AMD Instinct MI300X"
    assert described_device["memory_bytes"] == 192 << 30
    assert described_device["cores"] == 304
    assert described_device["cache_bytes"] is None
    assert device_of("cuda").free_bytes() == 150 << 30
    found_versions = versions()
    assert found_versions["hip"] == "6.4"
    assert found_versions["cuda"] is None


def test_clocks_and_energy_of_an_amd_gpu_are_missing_with_their_reason(amd: AppleGpu) -> None:
    """They are read by NVML, which sees no card of AMD's."""
    conditions = Conditions("cuda:0")
    with conditions.during(0):
        pass
    described = conditions.describe()
    assert described["gpu"]["before"] is None
    assert "NVML" in described["gpu"]["missing"]
    assert "NVML" in described["energy"]["missing"]


@pytest.mark.parametrize(
    ("user", "idle", "steal", "expected"),
    [
        (5.0, 3.0, 2.0, {"others": 0.5, "steal": 0.2}),
        (0.0, 0.25, 0.0, {"others": 0.0, "steal": 0.0}),
        (0.0, 0.02, 0.0, {"others": None, "steal": None}),  # two ticks of the counter
    ],
)
def test_shares_of_all_cores_are_told_where_the_counts_are_long_enough(
    monkeypatch: pytest.MonkeyPatch, user: float, idle: float, steal: float, expected: dict
) -> None:
    known = {core: 1.0 / len(usable_cores()) for core in usable_cores()}
    counts = iter([0.0, 1.0])

    def cpu_times(percpu: bool) -> list[dict[str, float]]:
        part = next(counts)
        shares = [part * known.get(core, 9.0) for core in range(max(known) + 1)]
        return [{"user": user * at, "idle": idle * at, "steal": steal * at} for at in shares]

    monkeypatch.setattr("psutil.cpu_times", cpu_times)
    conditions = Conditions("cpu")
    with conditions.during(0):
        pass
    (repeat,) = conditions.describe()["repeats"]
    assert repeat["steal"] == expected["steal"]
    assert repeat["others"] == pytest.approx(expected["others"], abs=0.05)


def test_a_thread_that_begins_in_a_repeat_has_used_no_time_before() -> None:
    conditions = Conditions("cpu")
    ended = Event()
    thread = Thread(target=ended.wait)
    with conditions.during(0):
        thread.start()
    ended.set()
    thread.join()
    (repeat,) = conditions.describe()["repeats"]
    seconds = repeat["other_threads_s"]
    assert seconds is None or 0.0 <= seconds < 0.9


def test_a_device_that_nothing_here_can_time_is_refused() -> None:
    with pytest.raises(OcrPhasesError, match="meta"):
        device_of("meta")


def test_a_number_of_threads_holds_for_a_block() -> None:
    before = torch.get_num_threads()
    with cpu_threads(1):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before


@pytest.mark.parametrize(("kind", "clocks"), [("cpu", 1), ("cuda", 2), ("mps", 2)])
def test_a_record_shows_the_clock_that_its_device_has(kind: str, clocks: int) -> None:
    run = altered(make_run(), device={"kind": kind})
    assert run.device.has_own_clock is (clocks == 2)
    events = trace_of_spans(run)["traceEvents"]
    spans = [event for event in events if event["ph"] == "X"]
    assert len(spans) == clocks * len(run.spans)
