"""A page measured and reported on by one worker."""

from __future__ import annotations

from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from batch_example import run_jobs
from conftest import GOLDEN, PAGES

from ocr_phases import PhaseRun
from ocr_phases.batch.child import Outcome
from ocr_phases.batch.jobs import Page, make_jobs
from ocr_phases.batch.store import page_status, read_listing
from ocr_phases.batch.worker import measure_page
from ocr_phases.errors import CannotWrite, NotebookFailed

SETTINGS = {"model": "tiny", "device": "cpu", "dtype": None, "preset": None}


@pytest.mark.parametrize(
    "error",
    [
        lambda folder: NotebookFailed(f"page_report failed: see {folder}/report.ipynb."),
        lambda folder: CannotWrite(f"{folder}/report.html cannot be written."),
        lambda folder: KeyError(),
    ],
)
def test_a_report_that_alone_fails_leaves_its_page_measured(error, tmp_path, monkeypatch):
    (job,) = make_jobs([Page("slide.png", str(PAGES / "slide.png"))], SETTINGS)
    run, out = PhaseRun.load(GOLDEN / "run.json"), tmp_path / "out"
    run.pages[0]["sha256"] = job.sha256
    session = SimpleNamespace(run_inference=lambda *_, **__: run)
    monkeypatch.setattr("ocr_phases.session.kept_session", lambda **_: session)

    def page_report(run: PhaseRun, folder: Path, parameters: dict[str, Any]) -> Path:
        raise error(folder)

    monkeypatch.setattr("ocr_phases.report.render.page_report", page_report)
    out.mkdir()

    class Pool:
        """One worker, in this process."""

        def submit(self, request: Any, timeout: float | None) -> Future[Outcome]:
            future: Future[Outcome] = Future()
            future.set_result(measure_page({"job": dict(vars(job)), **request}, lambda: None))
            return future

        def workers(self) -> int:
            return 2

        def close(self) -> None:
            pass

    pool: Any = Pool()
    assert run_jobs([job], out, pool, mode="notebook").done == 1
    (entry,) = read_listing(out)
    status = page_status(out, entry)
    assert status is not None
    assert (status["state"], status["report"]["state"]) == ("done", "failed")
    assert status["report"]["reason"] and str(tmp_path) not in status["report"]["reason"]
    # It is not measured again for its report: that is rendered from the record.
    assert run_jobs([job], out, pool, mode="notebook").kept == 1
