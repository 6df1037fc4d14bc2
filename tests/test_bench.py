"""The benchmark: every part on the smallest model, figures of known times, and the tables of the
docs.
"""

from pathlib import Path
from typing import Any

import pytest
from conftest import GOLDEN

from benchmarks import documents, speed_table
from benchmarks.__main__ import main
from benchmarks.measure import PARTS
from benchmarks.step_kernels import kernel_rows
from benchmarks.tables import TABLES, load_bench
from ocr_phases import PhaseRun
from ocr_phases.analyse.kernels import top_kernels
from ocr_phases.versions import asset

PAGE = GOLDEN / "pages" / "small_400x300.png"
QUICK = ["--presets=tiny", "--pairs=2", "--max-new-tokens=3"]
COST, COVERAGE, PREFILL, DECODE, FAILURES = TABLES.values()


def measured(folder: Path, capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, Any]:
    target = folder / "new" / "bench.json"
    assert main([str(PAGE), *QUICK, *options, f"--save={target}"]) == 0
    said = capsys.readouterr().out
    assert "What the prefill's stages account for" in said
    assert said.splitlines()[-1] == f"Wrote {target}"
    return load_bench(target)


def test_every_part_has_its_figures_and_what_cannot_run_here_stops_nothing(
    golden_checkpoint, tmp_path, capsys
):
    here = (f"--model={golden_checkpoint(GOLDEN)}", "--device=cpu", "--strategies=eager,cuda_graph")
    bench = measured(tmp_path, capsys, *here)
    assert [result["part"] for result in bench["results"] if "failed" not in result] == list(PARTS)
    ratios = COST(bench)
    assert ratios["pairs"].tolist() == [2, 2]
    assert (ratios["ratio_low"] <= ratios["ratio_high"]).all()
    assert 0.5 < COVERAGE(bench)["stage_coverage"][0] <= 1.0
    decode = DECODE(bench).iloc[0]
    assert (decode["strategy"], decode["equal_tokens"], decode["tokens"]) == ("eager", 3, 3)
    assert decode["times_floor"] > 1
    results = {result["part"]: result for result in bench["results"]}
    assert results["strategies"]["ways"]["eager"]["parity"]["verdict"] == "pass"
    assert PREFILL(bench)["vision"].tolist() == ["eager"]
    assert bench["page"]["data"] is None
    failures = FAILURES(bench)
    assert failures["way"].tolist() == ["cuda_graph"] * 2  # of the vision and of the decode
    assert failures["reason"].str.contains("CUDA").all()


def test_kernels_stand_beside_the_time_of_their_bytes() -> None:
    run = PhaseRun.load(asset("data", "runs", "h200-dummy-base-compiled.json.gz"))
    [longest, *_, others, step] = kernel_rows(
        run, {top_kernels(run, "decode_step")["kernel"][0]: 1e6}
    )
    rate = run.device.ceilings.bandwidth_bytes_per_s
    assert float(longest[3]) == pytest.approx(float(longest[1]) * 1e12 / rate, abs=0.05)
    assert others[3] == "" and float(step[2]) == pytest.approx(
        1e3 * run["inter_token_ms"], rel=0.02
    )


def test_the_document_has_the_tables_of_data_runs() -> None:
    text = speed_table.DOCUMENT.read_text(encoding="utf-8")
    parts = {mark: speed_table.speed_table(folder) for mark, folder in speed_table.TABLES.items()}
    assert documents.with_parts(text, parts) == text, "run: python -m benchmarks.speed_table"


@pytest.mark.cuda
@pytest.mark.skipif("not __import__('torch').cuda.is_available()", reason="there is no CUDA device")
def test_every_part_on_a_gpu(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bench = measured(tmp_path, capsys, "--device=cuda", "--max-new-tokens=9")
    assert FAILURES(bench).empty, FAILURES(bench).to_string()
    assert (DECODE(bench)["busy_ms"] > 0).all()
