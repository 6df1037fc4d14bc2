"""The benchmark: every part on the smallest model, figures of known times, and the README's speed table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import PAGES
from refusals import refused

from benchmarks import speed_table
from benchmarks.__main__ import main
from benchmarks.measure import PARTS, BenchSettings, run_bench
from benchmarks.tables import (
    batch_table,
    failure_table,
    load_bench,
    mark_table,
    prefill_table,
    ratio_table,
    stage_coverage_table,
    strategy_table,
)

PAGE = PAGES / "slide.png"
QUICK = BenchSettings(
    presets=("tiny",), strategies=("eager", "cuda_graph"), batches=(1, 2), pairs=2, max_new_tokens=3
)


def example() -> dict[str, Any]:
    """A benchmark with times that are easy to reckon with."""
    drift = np.linspace(1.0, 2.0, 15)
    steps = [[2.0, 2.0, 4.0], [2.0, 2.0, 4.0], [2.0, 2.0, 4.0]]
    way = {"setup": None, "cache_len": [100, 104], "equal_tokens": 4, "tokens": 4, "step_ms": steps}
    fast = {**way, "setup": {"compile_ms": 1500.0, "capture_ms": 500.0}, "equal_tokens": 3}
    return {
        "schema": 2,
        "kind": "ocr_phases bench",
        "device": {"name": "NVIDIA H200"},
        "model": {"name": "dummy", "dtype": "bfloat16"},
        "page": {"file": "a.png"},
        "settings": {"presets": ["base", "gundam"], "pairs": 15, "max_new_tokens": 4},
        "results": [
            {
                "part": "marks",
                "preset": "base",
                "clock": "CUDA event",
                "mark_pair_us": [9.0, 10.0, 11.0],
                "nvtx_range_us": [0.5] * 3,
                "span_us": [12.0] * 3,
            },
            {
                "part": "overhead",
                "preset": "base",
                "two_phase_ms": (90.0 * drift).tolist(),
                "generate_ms": (100.0 * drift).tolist(),
            },
            {"part": "collectors", "preset": "base", "failed": "no room"},
            {
                "part": "stage_coverage",
                "preset": "base",
                "prefill_len": 282,
                "prefill_ms": [100.0, 110.0, 120.0],
                "stages_ms": {"sam": [89.0, 89.0, 89.0], "vision_fusion": [10.0, 20.0, 30.0]},
            },
            {
                "part": "prefill",
                "preset": "base",
                "ways": {
                    "eager": {"host_ms": [40.0] * 3, "device_ms": [38.0] * 3, "vision_ms": [20.0] * 3},
                    "compiled": {"host_ms": [30.0] * 3, "device_ms": [28.0] * 3, "vision_ms": [10.0] * 3},
                },
                "ways_failed": {},
            },
            {
                "part": "strategies",
                "preset": "base",
                "ways": {
                    "eager": {
                        **way,
                        "decode_ms": [9.0, 12.0, 15.0],
                        "floor_ms": 0.5,
                        "floor_bound_by": "bandwidth",
                        "busy_ms": 1.5,
                    },
                    "compiled": {**fast, "decode_ms": [3.0, 3.0, 3.0], "busy_failed": "no profiler"},
                },
                "ways_failed": {"cuda_graph": "not here"},
            },
            {
                "part": "batches",
                "preset": "base",
                "ways": [
                    {
                        "strategy": "eager",
                        "batch": 4,
                        "steps": 10,
                        "decode_ms": [100.0, 100.0, 200.0],
                        "step_ms": [10.0] * 30,
                        "prefill_ms": [50.0] * 3,
                    }
                ],
                "ways_failed": [{"strategy": "eager", "batch": 16, "failed": "no room"}],
            },
        ],
    }


# -- measuring ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def measured(golden_session: Any, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    target = tmp_path_factory.mktemp("bench") / "bench.json"
    seen: list[str] = []
    bench = run_bench(
        golden_session, PAGE, QUICK, target, progress=lambda result: seen.append(result["part"])
    )
    assert seen == list(PARTS)
    assert load_bench(target) == json.loads(json.dumps(bench))
    return bench


def test_every_part_has_its_figures(measured: dict[str, Any]) -> None:
    assert [result["part"] for result in measured["results"]] == list(PARTS)
    assert not any("failed" in result for result in measured["results"])
    ratios = ratio_table(measured)
    assert ratios["pairs"].tolist() == [2, 2]
    assert (ratios["ratio_low"] <= ratios["ratio_high"]).all()
    assert len(mark_table(measured)) == 3
    coverage = stage_coverage_table(measured).iloc[0]
    assert 0.5 < coverage["stage_coverage"] <= 1.0
    assert coverage["prefill_len"] > 73
    decode = strategy_table(measured).iloc[0]
    assert (decode["strategy"], decode["equal_tokens"], decode["tokens"]) == ("eager", 3, 3)
    strategies = next(result for result in measured["results"] if result["part"] == "strategies")
    assert strategies["ways"]["eager"]["parity"]["verdict"] == "pass"
    batches = batch_table(measured)
    assert batches["batch"].tolist() == [1, 2]
    assert batches["floor_ms"].notna().all()  # of rows that are known to be copies
    assert decode["times_floor"] > 1
    assert prefill_table(measured)["vision"].tolist() == ["eager"]
    assert "data" not in measured["page"] or measured["page"]["data"] is None


def test_what_cannot_run_here_is_said_and_stops_nothing(measured: dict[str, Any]) -> None:
    failures = failure_table(measured)
    assert failures["way"].tolist() == ["cuda_graph", "cuda_graph, batch 1", "cuda_graph, batch 2"]
    assert failures["reason"].str.contains("CUDA").all()


@pytest.mark.parametrize(
    "settings",
    [
        {"parts": ("speed",)},
        {"strategies": ("fast",)},
        {"presets": ("huge",)},
        {"pairs": 0},
        {"max_new_tokens": 1},
    ],
)
def test_what_no_benchmark_can_do_is_refused(settings: dict[str, Any]) -> None:
    with refused():
        BenchSettings(**settings)


# -- figures ------------------------------------------------------------------------------------------


def test_figures_of_known_times() -> None:
    bench = example()
    ratio = ratio_table(bench).iloc[0]
    assert (ratio["ratio"], ratio["ratio_low"], ratio["ratio_high"]) == pytest.approx((0.9, 0.9, 0.9))
    assert (ratio["ours_ms"], ratio["theirs_ms"]) == pytest.approx((135.0, 150.0))
    coverage = stage_coverage_table(bench).iloc[0]
    assert coverage["stage_coverage"] == coverage["stage_coverage_least"] == pytest.approx(89 / 90)
    assert coverage["fusion_share"] == pytest.approx(20 / 110)
    prefill = prefill_table(bench).set_index("vision")
    assert prefill.loc["compiled", "ratio"] == pytest.approx(0.75)
    assert np.isnan(prefill.loc["eager", "ratio"])
    decode = strategy_table(bench).set_index("strategy")
    assert decode.loc["eager", "ms_per_token"] == pytest.approx(4.0)
    assert decode.loc["eager", "times_floor"] == pytest.approx(8.0)
    assert decode.loc["eager", "cache_len"] == 102
    assert decode.loc["compiled", "setup_s"] == pytest.approx(2.0)
    assert np.isnan(decode.loc["compiled", "times_floor"])
    assert decode.loc["eager", "bound_by"] == "bandwidth"
    assert decode.loc["eager", "busy_ms"] == 1.5
    assert batch_table(bench)["tokens_per_s"].tolist() == pytest.approx([400.0])
    marks = mark_table(bench).set_index("what")
    assert marks.loc["a pair of marks (CUDA event)", "us"] == 10.0
    failures = failure_table(bench)
    assert failures["part"].tolist() == ["collectors", "strategies", "strategies", "batches"]
    assert failures["way"].tolist() == ["", "compiled, kernel view", "cuda_graph", "eager, batch 16"]


def test_other_files_are_no_benchmark(tmp_path: Path) -> None:
    for content in ("{", "{}", json.dumps({**example(), "schema": 9})):
        (tmp_path / "x.json").write_text(content)
        with refused():
            load_bench(tmp_path / "x.json")
    with refused():
        load_bench(tmp_path / "none.json")


# -- the command -----------------------------------------------------------------------------------------


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "new" / "bench.json"
    command = [str(PAGE), "--parts", "marks,stage_coverage", "--presets", "tiny", "--pairs", "1"]
    assert main([*command, "--device", "cpu", "--save", str(target)]) == 0
    said = capsys.readouterr().out
    assert "What the prefill's stages account for" in said
    assert said.splitlines()[-1] == f"Wrote {target}"
    assert load_bench(target)["settings"]["strategies"] == ["eager"]


# -- the README's table -------------------------------------------------------------------------------


@pytest.mark.parametrize("document", speed_table.TABLES, ids=lambda document: document.stem)
def test_documents_have_the_table_of_data_runs(document: Path) -> None:
    text = document.read_text(encoding="utf-8")
    table = speed_table.speed_table(speed_table.find_benches(speed_table.TABLES[document]))
    assert speed_table.with_table(text, table) == text, "run: python -m benchmarks.speed_table"


# -- on a GPU -----------------------------------------------------------------------------------------


@pytest.mark.cuda
@pytest.mark.skipif("not __import__('torch').cuda.is_available()", reason="there is no CUDA device")
def test_every_part_on_a_gpu(tmp_path: Path) -> None:
    from ocr_phases import OCRSession

    session = OCRSession.load("tiny", device="cuda")
    settings = BenchSettings(
        presets=("tiny",), strategies=("eager", "cuda_graph"), batches=(1, 2), pairs=2, max_new_tokens=9
    )
    bench = run_bench(session, PAGE, settings, tmp_path / "bench.json")
    assert failure_table(bench).empty, failure_table(bench).to_string()
    decode = strategy_table(bench).set_index("strategy")
    assert (decode["busy_ms"] > 0).all()
    assert mark_table(bench)["what"].str.contains("CUDA event").any()
