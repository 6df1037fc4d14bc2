"""The benchmark: every part on the smallest model, figures of known times, and the tables of the docs."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import GOLDEN, PAGES
from refusals import refused

from benchmarks import documents, speed_table
from benchmarks.__main__ import main
from benchmarks.measure import PARTS, BenchSettings, run_bench
from benchmarks.tables import KIND, TABLES, bench_text, load_bench
from ocr_phases import OCRSession

PAGE = GOLDEN / "pages" / "small_400x300.png"
RUNS = PAGES.parent / "runs"
QUICK = BenchSettings(
    presets=("tiny",), strategies=("eager", "cuda_graph"), batches=(1, 2), pairs=2, max_new_tokens=3
)
COST, COVERAGE, PREFILL, DECODE, BATCHES, FAILURES = TABLES.values()


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


@pytest.fixture
def recorded() -> dict[str, Any]:
    """A benchmark of ``data/runs`` and the part of another that it lacks."""
    bench = load_bench(RUNS / "cpu-bench.json")
    bench["results"] += load_bench(RUNS / "h200-bench-batches.json")["results"]
    return bench


def test_figures_are_those_of_the_raw_times(recorded: dict[str, Any]) -> None:
    raw = {result["part"]: result for result in recorded["results"]}
    ratio, times = COST(recorded).iloc[0], raw["overhead"]
    assert ratio["ratio"] == np.median(np.divide(times["two_phase_ms"], times["generate_ms"]))
    assert ratio[["ours_ms", "theirs_ms"]].tolist() == [
        np.median(times[f"{way}_ms"]) for way in ("two_phase", "generate")
    ]
    assert ratio["ratio_low"] < ratio["ratio"] < ratio["ratio_high"]

    whole = np.array(raw["stage_coverage"]["prefill_ms"])
    stages = {stage: np.array(times) for stage, times in raw["stage_coverage"]["stages_ms"].items()}
    fusion, covered = stages["vision_fusion"], COVERAGE(recorded).iloc[0]
    shares = (sum(stages.values()) - fusion) / (whole - fusion)
    figures = covered[["stage_coverage", "stage_coverage_least", "fusion_share"]].tolist()
    assert figures == pytest.approx([np.median(shares), shares.min(), np.median(fusion / whole)])

    eager, compiled = (raw["prefill"]["ways"][way]["host_ms"] for way in ("eager", "compiled"))
    ratios = PREFILL(recorded).set_index("vision")["ratio"]
    assert ratios["compiled"] == np.median(np.divide(compiled, eager)) and np.isnan(ratios["eager"])

    way = raw["strategies"]["ways"]["compiled"]
    token = np.median([ms / len(steps) for ms, steps in zip(way["decode_ms"], way["step_ms"], strict=True)])
    decode = DECODE(recorded).set_index("strategy").loc["compiled"]
    assert decode["ms_per_token"] == pytest.approx(token)
    assert decode["times_floor"] == pytest.approx(token / way["floor_ms"])
    assert decode["setup_s"] == pytest.approx(
        way["setup"]["compile_ms"] / 1e3
    )  # nothing is captured on a CPU
    assert decode["step_ms"] == np.median(np.concatenate(way["step_ms"]))

    last, batch = raw["batches"]["ways"][-1], BATCHES(recorded).iloc[-1]
    rate = last["steps"] * last["batch"] / (np.median(last["decode_ms"]) / 1e3)
    assert (batch["batch"], batch["tokens_per_s"]) == (last["batch"], pytest.approx(rate))
    assert all(title in bench_text(recorded) for title in list(TABLES)[:-1])


def test_what_was_not_measured_is_listed(recorded: dict[str, Any]) -> None:
    raw = {result["part"]: result for result in recorded["results"]}
    assert FAILURES(recorded).empty
    raw["collectors"]["failed"] = "no room"
    raw["strategies"]["ways"]["compiled"]["busy_failed"] = "no profiler"
    raw["strategies"]["ways_failed"] = {"cuda_graph": "not here"}
    raw["batches"]["ways_failed"] = [{"strategy": "eager", "batch": 64, "failed": "no room"}]
    assert FAILURES(recorded)[["part", "way", "reason"]].to_numpy().tolist() == [
        ["collectors", "", "no room"],
        ["strategies", "compiled, kernel view", "no profiler"],
        ["strategies", "cuda_graph", "not here"],
        ["batches", "eager, batch 64", "no room"],
    ]
    assert COST(recorded)["what"].str.startswith("two-phase").all()


def test_other_files_are_no_benchmark(tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    for content in ("{", "{}", json.dumps({"kind": KIND, "schema": 9})):
        file.write_text(content)
        with refused():
            load_bench(file)
    file.unlink()
    with refused():
        load_bench(file)


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "new" / "bench.json"
    command = [str(PAGE), "--parts", "stage_coverage", "--presets", "tiny", "--pairs", "1"]
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
    bench = run_bench(session, PAGE, replace(QUICK, max_new_tokens=9), tmp_path / "bench.json")
    assert FAILURES(bench).empty, FAILURES(bench).to_string()
    assert (DECODE(bench)["busy_ms"] > 0).all()
