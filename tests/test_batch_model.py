"""A batch with the real worker and model, and pages that a worker in this process measures and
reports on.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from batch_example import (
    QUICK,
    SETTINGS,
    jobs,
    listening,
    make_pages,
    measured_here,
    run_jobs,
    statuses,
)
from conftest import GOLDEN, PAGES
from example_run import altered
from PIL import Image
from refusals import refused
from wording import says

from ocr_phases import OCRSession, PhaseRun
from ocr_phases.batch.archive import read_listing
from ocr_phases.batch.jobs import Job, make_jobs
from ocr_phases.batch.local_workers import LocalWorkers
from ocr_phases.batch.pages import BatchPage
from ocr_phases.cli import main
from ocr_phases.collectors.conditions import CoreWaits
from ocr_phases.errors import NotebookFailed
from ocr_phases.files import MANIFEST_NAME
from ocr_phases.models.devices import resolve_device
from ocr_phases.record.parts import to_plain

SLIDE = PAGES / "slide.png"
#: A file name that is no UTF-8.
CAFE = os.fsdecode(b"caf\xe9.pdf")


@pytest.fixture
def odd_pages(tmp_path: Path) -> Path:
    """A PDF of two pages, beside files that are damaged and one that is no page."""
    pages = tmp_path / "in"
    pages.mkdir()
    slide = Image.open(SLIDE).convert("RGB").resize((300, 300))
    receipt = Image.open(PAGES / "receipt.png").convert("RGB").resize((300, 300))
    slide.save(pages / "a.pdf", save_all=True, append_images=[receipt])
    (pages / "a.pdf").rename(pages / CAFE)
    (pages / "broken.pdf").write_bytes(b"%PDF-1.7 broken")
    (pages / "truncated.png").write_bytes(SLIDE.read_bytes()[:2000])
    (pages / "notes.txt").write_text("no page")
    return pages


@pytest.fixture
def worker_sockets(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """Where each worker of a batch listens, by its command, from the end of the batch on."""
    sockets: dict[str, list[str]] = {}
    close = LocalWorkers.close

    def note_and_close(pool: LocalWorkers) -> None:
        sockets.update(listening())
        close(pool)

    monkeypatch.setattr(LocalWorkers, "close", note_and_close)
    return sockets


def test_pages_of_a_pdf_are_measured_shown_and_kept_beside_damaged_files_that_are_named(
    golden_session: OCRSession,
    golden_checkpoint: Callable[[Path], Path],
    odd_pages: Path,
    worker_sockets: dict[str, list[str]],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "out"
    second_page = f"{odd_pages / CAFE}#2"
    command = ["batch", str(odd_pages), second_page, "--out", str(out)]
    command += ["--model", str(golden_checkpoint(GOLDEN)), "--preset", "tiny"]
    command += ["--max-new-tokens", "3", "--repeats", "1", "--warmup", "0"]
    command += ["--no-ceilings", "--no-token-probabilities", "--no-embed-page"]
    command += ["--render", "during", "--retries", "0", "--price-per-hour", "7"]
    alone = golden_session.run_inference(
        second_page,
        preset="tiny",
        max_new_tokens=3,
        repeats=1,
        warmup=0,
        token_probabilities=False,
    )

    assert main(command) == 1
    assert any("batch.worker" in program for program in worker_sockets)
    assert not any(worker_sockets.values())
    said = capsys.readouterr().out
    assert says(said, "1 file left out (.txt)", "5 pages", "2 measured", "0 kept", "2 failed")
    assert says(said, "1 listed twice")

    by_page = statuses(out)
    assert list(by_page) == ["broken.pdf", "caf?.pdf#1", "caf?.pdf#2", "truncated.png"]
    broken, first, second, truncated = by_page.values()
    assert "broken.pdf is not a PDF" in broken["reason"]
    assert "damaged" in truncated["reason"]
    assert broken["failure"] == "the page cannot be read"
    assert truncated["failure"] == "the page cannot be read"

    # The model was loaded once and stayed; a PDF that cannot be opened needs no worker.
    workers = {status["attempts"][-1].worker for status in by_page.values()}
    assert len(workers - {""}) == 1
    # The automatic device is known by what it is.
    device = resolve_device("auto")
    assert {status["settings"]["device"] for status in by_page.values()} == {device}

    index = (out / "index.html").read_text()
    _, first_entry, second_entry, *_ = read_listing(out)
    for status, entry in ((first, first_entry), (second, second_entry)):
        folder = out / entry["folder"]
        run = PhaseRun.load(folder / "run.json")
        report = (folder / "report.html").read_text()
        assert status["id"] == entry["id"]
        assert run.page.file == entry["page"]
        assert run.page.data is None
        assert report.rstrip().endswith("</html>")
        assert "at 7.0 per hour" in report
        assert f"{folder.relative_to(out)}/report.html" in index
    assert run.results == alone.results
    assert {path.name for path in out.glob("pages/*/*/.*")} == {MANIFEST_NAME}

    (odd_pages / "broken.pdf").unlink()
    (odd_pages / "truncated.png").unlink()
    assert main([*command, "--device", device]) == 0
    said = capsys.readouterr().out
    assert says(said, "Resumed", "3 found", "3 finished", "0 failed before", "measures 0 pages")
    assert says(said, "0 measured, 2 kept")

    render_only = ["batch", "--render", "only", "--out", str(out), "--price-per-hour", "7"]
    assert main([*render_only, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["reports_failed"] == 0


def test_a_model_that_cannot_be_loaded_stops_the_batch_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("ocr_phases.batch.local_workers.LocalWorkers", measured_here)
    out = tmp_path / "out"

    code = main(["batch", str(PAGES), "--out", str(out), "--model", "huge", *QUICK])

    assert code == 2
    assert "no model 'huge'" in capsys.readouterr().err
    assert not list(out.glob("pages"))


def test_a_worker_with_other_versions_stops_the_batch_and_fails_no_page(tmp_path: Path) -> None:
    (job,) = jobs(make_pages(tmp_path / "in", "ok"))
    of_other_torch = Job(**{**vars(job), "versions": {**job.versions, "torch": "0.1"}, "id": ""})

    with refused():
        run_jobs([of_other_torch], tmp_path / "out", measured_here())

    assert not statuses(tmp_path / "out")


@pytest.mark.parametrize("mode", ["measure", "notebook"])
def test_a_worker_tells_that_its_machine_is_too_busy(
    mode: str, golden_session: OCRSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(CoreWaits, "share", 0.9)
    monkeypatch.setattr("ocr_phases.session.kept.kept_session", lambda **_: golden_session)
    monkeypatch.setattr("ocr_phases.session.kept_session", lambda **_: golden_session)
    settings = {**SETTINGS, "preset": "tiny", "max_new_tokens": 3, "repeats": 1}
    (job,) = make_jobs([BatchPage("slide.png", str(SLIDE))], {**settings, "warm_once": False})

    counts = run_jobs([job], tmp_path, measured_here(), mode=mode)

    assert counts.done == 1
    assert ["too noisy" in warning for warning in counts.busy.values()] == [True]


def failed_notebook(folder: Path) -> Exception:
    return NotebookFailed(f"See {folder}/report.ipynb.")


def unexpected_error(folder: Path) -> Exception:
    return KeyError()


@pytest.mark.parametrize("error", [failed_notebook, unexpected_error])
def test_a_report_that_alone_fails_leaves_its_page_measured(
    error: Callable[[Path], Exception], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    settings = {"model": "tiny", "device": "cpu", "dtype": None, "preset": None}
    (job,) = make_jobs([BatchPage("slide.png", str(SLIDE))], settings)
    golden = PhaseRun.load(GOLDEN / "run.json")
    run = altered(golden, pages=[to_plain(golden.pages[0]) | {"sha256": job.sha256}])
    session = SimpleNamespace(run_inference=lambda *_, **__: run)

    def fail_to_render(notebook: Path, html: Path, **_: Any) -> Path:
        raise error(html.parent)

    monkeypatch.setattr("ocr_phases.session.kept.kept_session", lambda **_: session)
    monkeypatch.setattr("ocr_phases.session.kept_session", lambda **_: session)
    monkeypatch.setattr("ocr_phases.report.render.render_html", fail_to_render)

    counts = run_jobs([job], out, measured_here(), mode="notebook")

    assert counts.done == 1
    (status,) = statuses(out).values()
    assert status["state"] == "done"
    assert status["report"]["state"] == "failed"
    assert status["report"]["reason"]
    assert str(tmp_path) not in status["report"]["reason"]
    # It is not measured again for its report: that is rendered from the record.
    assert run_jobs([job], out, measured_here(), mode="notebook").kept == 1
