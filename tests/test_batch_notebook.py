"""A page measured within its notebook fails under the same reasons as any other."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from conftest import GOLDEN, PAGES

from ocr_phases.batch.driver import measure_pages
from ocr_phases.batch.job import Job, make_jobs
from ocr_phases.batch.manifest import Page
from ocr_phases.batch.outcome import Outcome
from ocr_phases.batch.store import read_listing, read_status
from ocr_phases.batch.worker import Refused, measure_in_notebook
from ocr_phases.errors import CannotWrite, NotebookFailed

SETTINGS = {"model": "tiny", "device": "cpu", "dtype": None, "preset": None}
Report = Callable[[Path, dict[str, Any]], None]


def one_job(page: Path) -> Job:
    (job,) = make_jobs([Page(page.name, str(page))], SETTINGS)
    return job


def measure(out: Path, page: Path, report: Report, monkeypatch: pytest.MonkeyPatch) -> Outcome:
    """What a worker answers where ``report(folder, parameters)`` stands for the notebook."""

    def report_page(folder: Path, parameters: dict[str, Any], **options: Any) -> None:
        report(folder, parameters)

    monkeypatch.setattr("ocr_phases.report.render.report_page", report_page)
    monkeypatch.setattr("ocr_phases.measure.kept_session.kept_session", lambda **_: None)
    return measure_in_notebook({"job": one_job(page).as_dict(), "folder": str(out)}, lambda: None)


def failing(error: Exception, *, measured: bool = False) -> Report:
    def report(folder: Path, parameters: dict[str, Any]) -> None:
        if measured:
            record = (GOLDEN / "run.json").read_text()
            sha256 = one_job(Path(parameters["page"])).sha256
            (folder / "run.json").write_text(record.replace(golden_hash(), str(sha256)))
        raise error

    return report


def golden_hash() -> str:
    from ocr_phases import PhaseRun

    return PhaseRun.load(GOLDEN / "run.json").page["sha256"]


@pytest.mark.parametrize(
    ("ename", "evalue", "failure", "reason"),
    [
        ("OutOfMemory", "cuda is out of memory", "memory", "cuda is out of memory"),
        ("MemoryError", "", "memory", "The host is out of memory"),
        ("CannotWrite", "x cannot be written", "output", "x cannot be written"),
        ("OcrPhasesError", "Ask for less.", "request", "Ask for less."),
        ("ValueError", "something", "error", "ValueError: something"),
    ],
)
def test_what_ended_the_notebook_is_the_page_s_reason(ename, evalue, failure, reason, tmp_path, monkeypatch):
    error = NotebookFailed("Cell 4 failed", ename, evalue)
    with pytest.raises(Refused, match=reason) as caught:
        measure(tmp_path, PAGES / "slide.png", failing(error), monkeypatch)
    assert caught.value.failure == failure
    assert not list(tmp_path.iterdir())


def test_a_page_that_cannot_be_read_is_told_from_a_request(tmp_path, monkeypatch):
    page = tmp_path / "damaged.png"
    page.write_bytes(b"none")
    error = NotebookFailed("Cell 4 failed", "OcrPhasesError", "some sentence")
    with pytest.raises(Refused, match="damaged.png is no") as caught:
        measure(tmp_path / "out", page, failing(error), monkeypatch)
    assert caught.value.failure == "page"


def test_an_error_that_nobody_foresaw_is_not_taken_for_another(tmp_path, monkeypatch):
    with pytest.raises(ZeroDivisionError):
        measure(tmp_path, PAGES / "slide.png", failing(ZeroDivisionError()), monkeypatch)


def test_a_page_that_changed_within_the_notebook_is_refused(tmp_path, monkeypatch):
    def report(folder: Path, parameters: dict[str, Any]) -> None:
        shutil.copy(GOLDEN / "run.json", folder)  # of another page

    with pytest.raises(Refused, match="changed in the meantime"):
        measure(tmp_path, PAGES / "slide.png", report, monkeypatch)


@pytest.mark.parametrize(
    "error",
    [
        lambda folder: NotebookFailed(f"Cell 9 failed: see {folder}/report.ipynb.", "ValueError", ""),
        lambda folder: CannotWrite(f"{folder}/report.html cannot be written."),
        lambda folder: KeyError(),
    ],
)
def test_a_report_that_alone_fails_leaves_its_page_measured(error, tmp_path, monkeypatch):
    page, out = PAGES / "slide.png", tmp_path / "out"

    def report(folder: Path, parameters: dict[str, Any]) -> None:
        failing(error(folder), measured=True)(folder, parameters)

    outcome = measure(out, page, report, monkeypatch)
    assert outcome.failure is None
    assert outcome.report and str(tmp_path) not in outcome.report

    class Pool:
        """One worker, which has done the page already."""

        def submit(self, request: Any, timeout: float | None) -> Future[Outcome]:
            from concurrent.futures import Future

            future: Future[Outcome] = Future()
            future.set_result(measure(Path(request["folder"]), page, report, monkeypatch))
            return future

        def room(self) -> int:
            return 2

    pool: Any = Pool()
    job = one_job(page)
    assert measure_pages([job], out, pool, mode="notebook").done == 1
    (entry,) = read_listing(out)
    status = read_status(out / entry["folder"])
    assert status is not None
    assert (status["state"], status["report"]["state"]) == ("done", "failed")
    assert status["report"]["reason"] == outcome.report
    # It is not measured again for its report: that is rendered from the record.
    assert measure_pages([job], out, pool, mode="notebook").kept == 1
