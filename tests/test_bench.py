"""The benchmark: every part on the smallest model, figures of known times, and the tables of the
docs.
"""

import contextlib
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from conftest import GOLDEN

from benchmarks import documents, speed_table
from benchmarks.__main__ import main
from benchmarks.measure import PARTS
from benchmarks.step_kernels import kernel_rows
from benchmarks.tables import (
    failure_table,
    load_bench,
    prefill_table,
    ratio_table,
    stage_coverage_table,
    strategy_table,
)
from ocr_phases import PhaseRun
from ocr_phases.analyse.kernels import top_kernels
from ocr_phases.versions import asset

PAGE = GOLDEN / "pages" / "small_400x300.png"
QUICK = ["--presets=tiny", "--pairs=2", "--max-new-tokens=3"]
#: What a benchmark has measured, as its file has it.
Bench = dict[str, Any]


class FinishedBench(NamedTuple):
    """A benchmark that was run as a command: its file, and what it printed."""

    path: Path
    printed: str


def run_bench(path: Path, *options: str) -> FinishedBench:
    """Run the benchmark of a small page, which writes to ``path``."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        assert main([str(PAGE), *QUICK, *options, f"--save={path}"]) == 0
    return FinishedBench(path, printed.getvalue())


@pytest.fixture(scope="module")
def finished_bench(
    golden_checkpoint: Callable[[Path], Path], tmp_path_factory: pytest.TempPathFactory
) -> FinishedBench:
    """Every part on a CPU, where the strategy ``cuda_graph`` cannot run."""
    return run_bench(
        tmp_path_factory.mktemp("bench") / "new" / "bench.json",
        f"--model={golden_checkpoint(GOLDEN)}",
        "--device=cpu",
        "--strategies=eager,cuda_graph",
    )


@pytest.fixture(scope="module")
def cpu_bench(finished_bench: FinishedBench) -> Bench:
    """What that benchmark has measured."""
    return load_bench(finished_bench.path)


def test_every_part_is_measured(cpu_bench: Bench) -> None:
    measured = [result["part"] for result in cpu_bench["results"] if "failed" not in result]

    assert measured == list(PARTS)
    assert cpu_bench["page"]["data"] is None


def test_what_measuring_costs_is_a_ratio_of_pairs_with_its_interval(cpu_bench: Bench) -> None:
    table = ratio_table(cpu_bench)

    assert table["pairs"].tolist() == [2, 2]
    assert (table["ratio_low"] <= table["ratio_high"]).all()


def test_the_stages_account_for_most_of_the_prefill(cpu_bench: Bench) -> None:
    coverage = stage_coverage_table(cpu_bench)["stage_coverage"][0]

    assert 0.5 < coverage <= 1.0


def test_a_strategy_has_its_times_and_the_tokens_of_the_eager_one(cpu_bench: Bench) -> None:
    row = strategy_table(cpu_bench).iloc[0]

    assert row["strategy"] == "eager"
    assert row["tokens"] == 3
    assert row["equal_tokens"] == 3
    assert row["times_floor"] > 1
    results = {result["part"]: result for result in cpu_bench["results"]}
    assert results["strategies"]["ways"]["eager"]["parity"]["verdict"] == "pass"
    assert prefill_table(cpu_bench)["vision"].tolist() == ["eager"]


def test_what_cannot_run_here_is_listed_with_its_reason(cpu_bench: Bench) -> None:
    failures = failure_table(cpu_bench)

    assert failures["way"].tolist() == ["cuda_graph", "cuda_graph"]  # of the vision and the decode
    assert failures["reason"].str.contains("CUDA").all()


def test_the_command_prints_its_tables_and_where_the_file_is(
    finished_bench: FinishedBench,
) -> None:
    assert "What the prefill's stages account for" in finished_bench.printed
    assert finished_bench.printed.splitlines()[-1] == f"Wrote {finished_bench.path}"


@pytest.mark.parametrize("record", ["h100-kernels-base", "h200-dummy-base-compiled"])
def test_kernels_stand_beside_the_time_of_their_bytes(record: str) -> None:
    run = PhaseRun.load(asset("data", "runs", f"{record}.json.gz"))
    kernels = top_kernels(run, "decode")
    named = kernels[kernels["kernel"] != ""]
    longest_kernel = named.loc[named["device_ms"].idxmax(), "kernel"]
    bytes_a_call = 1e6

    longest, *_, others, step = kernel_rows(run, {longest_kernel: bytes_a_call})

    _, calls, _, floor_us = longest
    us_a_call = 1e6 * bytes_a_call / run.device.ceilings.bandwidth_bytes_per_s
    assert float(floor_us) == pytest.approx(float(calls) * us_a_call, abs=0.05)
    assert others[3] == ""
    step_us = float(step[2])
    assert step_us == pytest.approx(1e3 * run["inter_token_ms"], rel=0.02)


def test_the_document_has_the_tables_of_data_runs() -> None:
    text = speed_table.DOCUMENT.read_text(encoding="utf-8")
    parts = {mark: speed_table.speed_table(folder) for mark, folder in speed_table.TABLES.items()}

    assert documents.with_parts(text, parts) == text, "run: python -m benchmarks.speed_table"


@pytest.mark.cuda
@pytest.mark.skipif("not __import__('torch').cuda.is_available()", reason="there is no CUDA device")
def test_every_part_on_a_gpu(tmp_path: Path) -> None:
    finished = run_bench(tmp_path / "bench.json", "--device=cuda", "--max-new-tokens=9")

    bench = load_bench(finished.path)
    assert failure_table(bench).empty, failure_table(bench).to_string()
    assert (strategy_table(bench)["busy_ms"] > 0).all()
