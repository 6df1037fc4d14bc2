"""The benchmark of waits: its long record is one that loads."""

from __future__ import annotations

from pathlib import Path

from conftest import GPU_RECORD

from benchmarks.waits import stretched
from ocr_phases import PhaseRun
from ocr_phases.analyse.checks import run_checks, with_verdict


def test_a_record_is_stretched_to_one_that_holds(tmp_path: Path) -> None:
    own = PhaseRun.load(GPU_RECORD)
    run = PhaseRun.load(stretched(own, 600).save(tmp_path / "long.json.gz"))
    assert (run.token_count, run["decode_steps"], run.repeats) == (600, 599, own.repeats)
    assert not with_verdict(run_checks(run), "fail")
