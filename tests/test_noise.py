"""Noise is called noise: by the findings, the checks, the headline and every place that shows figures."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from conftest import PAGES, TINY_CONFIG
from elements import Elements
from example_run import SHAPES, check_of, make_run, with_steps
from wording import says

from ocr_phases import PhaseRun
from ocr_phases.analyse.checks import run_checks, with_verdict, worst_verdict
from ocr_phases.analyse.noise import (
    CONDITION_COLUMNS,
    busy_host,
    impossible_values,
    is_noisy,
    repeat_spread,
)
from ocr_phases.analyse.sentences import checks_verdict, headline, noise_warning, verdict
from ocr_phases.collectors import machine
from ocr_phases.show import results

QUIET = {"waited_s": 0.01, "others": 0.01, "steal": 0.0, "load_start": 1.1, "load_end": 1.3}


def paced(*factors: float) -> PhaseRun:
    """A record whose repeats took so many times as long."""
    run = make_run(repeats=len(factors))
    spans = run.spans.copy()
    pace = spans["repeat"].map(dict(enumerate(factors)))
    for column in (name for name in spans.columns if name.endswith("_ms")):
        spans[column] *= pace
    return dataclasses.replace(run, spans=spans)


def on_device(run: PhaseRun, **facts: Any) -> PhaseRun:
    return dataclasses.replace(run, device={**run.device, **facts})


def met(run: PhaseRun, gpu: dict[str, Any] | None = None, **host: Any) -> PhaseRun:
    """The record with what the machine did: quiet, but for ``host`` and ``gpu``."""
    rows = [{"repeat": number, "wall_s": 4.0, "cpu_s": 4.0, **QUIET, **host} for number in run.repeats]
    return on_device(run, threads=2, host_cores=2, conditions={"repeats": rows, "gpu": gpu})


def with_ceilings(bandwidth: float, flops: float, taken: dict[str, Any] | None = None) -> PhaseRun:
    run = make_run()
    run = dataclasses.replace(run, model={**run.model, "config": TINY_CONFIG})
    ceilings = {"bandwidth_bytes_per_s": bandwidth, "matmul_flops_per_s": flops, "matmul_dtype": "float32"}
    return on_device(run, ceilings={**ceilings, "launch_us": 5.0, "taken": taken or {}}, cache_bytes=1_000)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_quiet_machine_has_nothing_said_about_it(shape: str) -> None:
    run = met(make_run(**SHAPES[shape]))
    checks = run_checks(run)
    assert noise_warning(run) == ""
    assert worst_verdict(checks) == "pass"
    assert check_of(run, "busy_host").verdict == "pass"
    said = f"{headline(run)} {verdict(run)} {checks_verdict(checks)}"
    assert "trust" not in said
    assert "No check failed" in said


def test_repeats_far_apart_are_said_beside_the_answer() -> None:
    run = paced(1.0, 10.9, 8.6)
    checks = run_checks(run)
    assert check_of(run, "repeat_spread").verdict == "noisy"
    assert not with_verdict(checks, "fail")
    assert len(headline(run).split()) <= 20
    assert says(verdict(run), "The machine was busy", "from repeat to repeat", "taskset")
    assert says(checks_verdict(checks), "busy machine", "repeat spread")
    document = results.head_html(run)
    assert 'op-noisy">noisy<' in document
    assert Elements(document).said.count("The machine was busy") == 1
    assert ">pass<" not in document


@pytest.mark.parametrize(
    ("factors", "found"),
    [((1.0, 1.04, 1.02), "pass"), ((1.0, 1.14, 1.05), "note"), ((1.0, 1.3, 1.1), "noisy"), ((1.0,), "n/a")],
)
def test_spread(factors: tuple[float, ...], found: str) -> None:
    assert repeat_spread(paced(*factors)).verdict == found


@pytest.mark.parametrize(
    ("host", "found", "told"),
    [
        ({"waited_s": 2.0}, "noisy", "33 %"),
        ({"waited_s": 0.2}, "note", "4.8 %"),
        ({"other_threads_s": 0.4}, "noisy", "the panel or other cells used 10 % of a core"),
        ({"other_threads_s": 0.12}, "note", "used 3.0 % of a core"),
        ({"other_threads_s": 0.06}, "pass", "waited for a core for 0.2 %"),
        ({"steal": 0.2}, "noisy", "hypervisor took 20 %"),
        ({"others": 0.6}, "note", "other programs took 60 %"),
        ({"others": 0.6, "waited_s": None}, "noisy", "other programs took 60 %"),
        ({"cpu_s": 2.0, "waited_s": None}, "noisy", "50 %"),
        (dict.fromkeys(("waited_s", *QUIET)), "n/a", "does not report"),
    ],
)
def test_a_busy_host(host: dict[str, Any], found: str, told: str) -> None:
    run = met(make_run(), **host)
    check = check_of(run, "busy_host")
    assert (check.verdict, says(check.measured, told)) == (found, True)
    assert is_noisy(run) == bool(noise_warning(run)) == (found == "noisy")
    assert not with_verdict(run_checks(run), "fail")


def test_cores_that_stay_free_are_not_missed() -> None:
    run = on_device(met(make_run(), others=0.5, waited_s=None), host_cores=64)
    assert busy_host(run).verdict == "pass"


@pytest.mark.parametrize(
    ("after", "found", "told"),
    [
        ({"throttle_reasons": 0x0}, "pass", "1,980 of 1,980 MHz"),
        ({"throttle_reasons": 0x24}, "noisy", "heat"),
        ({"throttle_reasons": 0x4}, "note", "at its power limit"),
        ({"sm_mhz": 1_000}, "note", "1,000 of 1,980 MHz"),
        ({"other_processes": 1}, "note", "1 other program"),
        (None, "pass", "waited"),
    ],
)
def test_a_busy_gpu(after: dict[str, Any] | None, found: str, told: str) -> None:
    state = {
        "sm_mhz": 1_980,
        "max_sm_mhz": 1_980,
        "throttle_reasons": 0,
        "utilization": 0,
        "other_processes": 0,
    }
    gpu = {"before": state, "after": after and {**state, **after}}
    finding = busy_host(met(make_run(cuda=True), gpu))
    assert (finding.verdict, says(finding.measured, told)) == (found, True)
    busy = {"before": {**state, "other_processes": 2, "utilization": 90}, "after": None}
    assert says(noise_warning(met(make_run(cuda=True), busy)), "2 other programs", "90 %")


def test_what_cannot_be_is_noise() -> None:
    assert impossible_values(make_run()).verdict == "n/a"
    assert impossible_values(with_ceilings(1e12, 1e13)).verdict == "pass"
    slow = with_ceilings(1e6, 1e13)
    assert impossible_values(slow).verdict == "noisy"
    assert says(noise_warning(slow), "exceeds the measured ceiling", "so that ceiling is wrong")
    assert "exceeds the measured ceiling" in impossible_values(with_ceilings(1e12, 1e6)).measured
    # The weights of a small model stay in a large cache: faster than memory, and no wonder.
    cached = on_device(slow, cache_bytes=1_000_000_000)
    assert impossible_values(cached).verdict == "note"
    assert says(impossible_values(cached).measured, "processor's cache")
    uneven = with_ceilings(1e12, 1e13, {"copy_ms": [4.0, 9.0, 8.8], "matmul_ms": [5.0, 5.1]})
    assert says(impossible_values(uneven).measured, "copy", "2.2 times")
    gpu = make_run(cuda=True)
    gpu = dataclasses.replace(gpu, model={**gpu.model, "config": TINY_CONFIG})
    kept = {"bandwidth_bytes_per_s": 4.3e11, "matmul_flops_per_s": 7e14, "matmul_dtype": "bfloat16"}
    assert says(impossible_values(on_device(gpu, ceilings=kept)).measured, "bandwidth", "9.0 %")


def growing(run: PhaseRun, slow: float, repeats: tuple[int, ...]) -> PhaseRun:
    rng = np.random.default_rng(1)
    run = with_steps(run, lambda step, repeat: 10.0 + rng.normal(0, 0.05) + slow * step * (repeat in repeats))
    return on_device(run, ceilings={"bandwidth_bytes_per_s": 1e12})


def test_a_neighbour_is_not_called_a_broken_model() -> None:
    broken = growing(make_run(), 0.2, (0, 1, 2))
    assert check_of(broken, "decode_trend").verdict == "fail"
    busy = check_of(met(broken, waited_s=2.0), "decode_trend")
    assert busy.verdict == "n/a"
    assert "too busy" in busy.measured
    some = check_of(growing(make_run(), 0.2, (0, 1)), "decode_trend")
    assert (some.verdict, says(some.measured, "too busy")) == ("n/a", True)
    assert check_of(growing(make_run(repeats=1), 0.2, (0,)), "decode_trend").verdict == "note"


# -- measuring ----------------------------------------------------------------------------------------


def test_a_measurement_keeps_what_the_machine_did(tiny_session: Any, tmp_path: Path) -> None:
    run = tiny_session.run_inference(
        PAGES / "slide.png", preset="tiny", max_new_tokens=2, repeats=2, warmup=1, ceilings=False
    )
    run = PhaseRun.load(run.save(tmp_path / "run.json"))
    kept = run.device["conditions"]
    assert [row["repeat"] for row in kept["repeats"]] == run.repeats == [0, 1]
    assert kept["gpu"] is None
    for row in kept["repeats"]:
        assert tuple(row) == CONDITION_COLUMNS
        assert row["wall_s"] > 0
        assert row["cpu_s"] > 0
    assert run.device["threads"] == torch.get_num_threads()
    assert run.device["host_cores"] == run.device["cores"] >= 1
    assert busy_host(run).verdict in ("pass", "note", "noisy")


def test_a_gpu_is_asked_through_nvidia_smi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    tool.write_text(
        '#!/bin/sh\ncase "$1" in\n*compute-apps*) printf "11\\n12\\n";;\n'
        '*) echo "1755, 1980, 0x0000000000000024, [N/A]";;\nesac\n'
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(uuid="7"))
    device = torch.device("cuda", 0)
    assert machine.gpu_state(device) == {
        "sm_mhz": 1755,
        "max_sm_mhz": 1980,
        "throttle_reasons": 0x24,
        "utilization": None,
        "other_processes": 1,
    }
    tool.write_text("#!/bin/sh\nexit 9\n")
    assert machine.gpu_state(device) is None
    assert machine.gpu_state(torch.device("cpu")) is None
