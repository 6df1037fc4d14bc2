"""The benchmark: every part on the smallest model, figures of known times, and the tables of the docs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import PAGES
from refusals import refused

from benchmarks import documents, speed_table
from benchmarks.__main__ import main
from benchmarks.measure import PARTS, BenchSettings, run_bench
from benchmarks.tables import TABLES, bench_text, load_bench
from ocr_phases import OCRSession

PAGE = PAGES / "slide.png"
QUICK = BenchSettings(
    presets=("tiny",), strategies=("eager", "cuda_graph"), batches=(1, 2), pairs=2, max_new_tokens=3
)
COST, MARKS, COVERAGE, PREFILL, DECODE, BATCHES, FAILURES = TABLES.values()


def example() -> dict[str, Any]:
    """A benchmark with times that are easy to reckon with."""
    drift = np.linspace(1.0, 2.0, 15)
    steps = [[2.0, 2.0, 4.0]] * 3
    way = {"setup": None, "cache_len": [100, 104], "equal_tokens": 4, "tokens": 4, "step_ms": steps}
    fast = {**way, "setup": {"compile_ms": 1500.0, "capture_ms": 500.0}, "equal_tokens": 3}
    floor = {"floor_ms": 0.5, "floor_bound_by": "bandwidth", "busy_ms": 1.5}
    ways = {
        "eager": {**way, **floor, "decode_ms": [9.0, 12.0, 15.0]},
        "compiled": {**fast, "decode_ms": [3.0, 3.0, 3.0], "busy_failed": "no profiler"},
    }
    batch = {"strategy": "eager", "batch": 4, "steps": 10, "step_ms": [10.0] * 30, "prefill_ms": [50.0] * 3}
    prefill = {
        "eager": {"host_ms": [40.0] * 3, "device_ms": [38.0] * 3, "vision_ms": [20.0] * 3},
        "compiled": {"host_ms": [30.0] * 3, "device_ms": [28.0] * 3, "vision_ms": [10.0] * 3},
    }
    covered = {"sam": [89.0, 89.0, 89.0], "vision_fusion": [10.0, 20.0, 30.0]}
    marks = {"mark_pair_us": [9.0, 10.0, 11.0], "nvtx_range_us": [0.5] * 3, "span_us": [12.0] * 3}
    parts = {
        "marks": {"clock": "CUDA event", **marks},
        "overhead": {"two_phase_ms": (90.0 * drift).tolist(), "generate_ms": (100.0 * drift).tolist()},
        "collectors": {"failed": "no room"},
        "stage_coverage": {"prefill_len": 282, "prefill_ms": [100.0, 110.0, 120.0], "stages_ms": covered},
        "prefill": {"ways": prefill, "ways_failed": {}},
        "strategies": {"ways": ways, "ways_failed": {"cuda_graph": "not here"}},
        "batches": {
            "ways": [{**batch, "decode_ms": [100.0, 100.0, 200.0]}],
            "ways_failed": [{"strategy": "eager", "batch": 16, "failed": "no room"}],
        },
    }
    return {
        "schema": 2,
        "kind": "ocr_phases bench",
        "device": {"name": "NVIDIA H200"},
        "model": {"name": "dummy", "dtype": "bfloat16"},
        "page": {"file": "a.png"},
        "settings": {"presets": ["base", "gundam"], "pairs": 15, "max_new_tokens": 4},
        "results": [{"part": part, "preset": "base", **found} for part, found in parts.items()],
    }


# -- measuring ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def measured(golden_session: OCRSession, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    target, seen = tmp_path_factory.mktemp("bench") / "bench.json", []
    bench = run_bench(golden_session, PAGE, QUICK, target, progress=lambda found: seen.append(found["part"]))
    assert seen == list(PARTS)
    assert load_bench(target) == json.loads(json.dumps(bench))
    return bench


def test_every_part_has_its_figures_and_what_cannot_run_here_stops_nothing(measured: dict[str, Any]) -> None:
    assert [result["part"] for result in measured["results"] if "failed" not in result] == list(PARTS)
    ratios = COST(measured)
    assert ratios["pairs"].tolist() == [2, 2]
    assert (ratios["ratio_low"] <= ratios["ratio_high"]).all()
    assert len(MARKS(measured)) == 3
    assert 0.5 < COVERAGE(measured)["stage_coverage"][0] <= 1.0
    decode = DECODE(measured).iloc[0]
    assert (decode["strategy"], decode["equal_tokens"], decode["tokens"]) == ("eager", 3, 3)
    assert decode["times_floor"] > 1
    strategies = next(result for result in measured["results"] if result["part"] == "strategies")
    assert strategies["ways"]["eager"]["parity"]["verdict"] == "pass"
    batches = BATCHES(measured)
    assert batches["batch"].tolist() == [1, 2]
    assert batches["floor_ms"].notna().all()  # of rows that are known to be copies
    assert PREFILL(measured)["vision"].tolist() == ["eager"]
    assert measured["page"]["data"] is None
    failures = FAILURES(measured)
    assert failures["way"].tolist() == ["cuda_graph", "cuda_graph, batch 1", "cuda_graph, batch 2"]
    assert failures["reason"].str.contains("CUDA").all()


@pytest.mark.parametrize(
    "wrong",
    [
        {"parts": ("speed",)},
        {"strategies": ("fast",)},
        {"presets": ("huge",)},
        {"pairs": 0},
        {"max_new_tokens": 1},
    ],
)
def test_what_no_benchmark_can_do_is_refused(wrong: dict[str, Any]) -> None:
    with refused():
        BenchSettings(**wrong)


# -- figures ------------------------------------------------------------------------------------------


def test_figures_of_known_times() -> None:
    bench = example()
    ratio = COST(bench).iloc[0]
    assert (ratio["ratio"], ratio["ratio_low"], ratio["ratio_high"]) == pytest.approx((0.9, 0.9, 0.9))
    assert (ratio["ours_ms"], ratio["theirs_ms"]) == pytest.approx((135.0, 150.0))
    coverage = COVERAGE(bench).iloc[0]
    assert coverage["stage_coverage"] == coverage["stage_coverage_least"] == pytest.approx(89 / 90)
    assert coverage["fusion_share"] == pytest.approx(20 / 110)
    assert PREFILL(bench)["ratio"].tolist() == pytest.approx([np.nan, 0.75], nan_ok=True)
    decode = DECODE(bench).set_index("strategy")
    eager = ["ms_per_token", "times_floor", "cache_len", "bound_by", "busy_ms"]
    assert decode.loc["eager", eager].tolist() == [4.0, 8.0, 102, "bandwidth", 1.5]
    assert decode.loc["compiled", ["setup_s", "times_floor"]].tolist() == pytest.approx(
        [2, np.nan], nan_ok=True
    )
    assert BATCHES(bench)["tokens_per_s"].tolist() == pytest.approx([400.0])
    assert MARKS(bench).set_index("what").loc["a pair of marks (CUDA event)", "us"] == 10.0
    failures = FAILURES(bench)
    assert failures["part"].tolist() == ["collectors", "strategies", "strategies", "batches"]
    assert failures["way"].tolist() == ["", "compiled, kernel view", "cuda_graph", "eager, batch 16"]
    assert all(title in bench_text(bench) for title in TABLES)


def test_other_files_are_no_benchmark(tmp_path: Path) -> None:
    for content in ("{", "{}", json.dumps({**example(), "schema": 9})):
        (tmp_path / "x.json").write_text(content)
        with refused():
            load_bench(tmp_path / "x.json")
    with refused():
        load_bench(tmp_path / "none.json")


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "new" / "bench.json"
    command = [str(PAGE), "--parts", "marks,stage_coverage", "--presets", "tiny", "--pairs", "1"]
    assert main([*command, "--device", "cpu", "--save", str(target)]) == 0
    said = capsys.readouterr().out
    assert "What the prefill's stages account for" in said
    assert said.splitlines()[-1] == f"Wrote {target}"
    assert load_bench(target)["settings"]["strategies"] == ["eager"]


def test_the_document_has_the_tables_of_data_runs() -> None:
    text = speed_table.DOCUMENT.read_text(encoding="utf-8")
    parts = {mark: speed_table.speed_table(folder) for mark, folder in speed_table.TABLES.items()}
    assert documents.with_parts(text, parts) == text, "run: python -m benchmarks.speed_table"


@pytest.mark.cuda
@pytest.mark.skipif("not __import__('torch').cuda.is_available()", reason="there is no CUDA device")
def test_every_part_on_a_gpu(tmp_path: Path) -> None:
    session = OCRSession.load("tiny", device="cuda")
    settings = BenchSettings(
        presets=("tiny",), strategies=("eager", "cuda_graph"), batches=(1, 2), pairs=2, max_new_tokens=9
    )
    bench = run_bench(session, PAGE, settings, tmp_path / "bench.json")
    assert FAILURES(bench).empty, FAILURES(bench).to_string()
    assert (DECODE(bench)["busy_ms"] > 0).all()
    assert MARKS(bench)["what"].str.contains("CUDA event").any()
