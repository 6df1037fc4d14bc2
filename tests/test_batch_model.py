"""A batch with the real worker and model, and pages that a worker in this process measures and
reports on.
"""

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from batch_example import QUICK, jobs, listening, make_pages, measured_here, run_jobs, statuses
from conftest import GOLDEN, PAGES
from example_run import altered
from PIL import Image
from refusals import refused
from wording import says

from ocr_phases import PhaseRun
from ocr_phases.batch.archive import read_listing
from ocr_phases.batch.jobs import Job, make_jobs
from ocr_phases.batch.local_workers import LocalWorkers
from ocr_phases.batch.pages import Page
from ocr_phases.cli import main
from ocr_phases.errors import NotebookFailed
from ocr_phases.files import MANIFEST_NAME
from ocr_phases.models.devices import resolve_device
from ocr_phases.record.parts import to_plain

SLIDE = PAGES / "slide.png"
CAFE = os.fsdecode(b"caf\xe9.pdf")


def test_pages_of_a_pdf_are_measured_and_shown(
    golden_session, golden_checkpoint, tmp_path, monkeypatch, capsys
):
    """Beside files that are damaged, which the batch names."""
    pages, out = tmp_path / "in", tmp_path / "out"
    pages.mkdir()
    first, second = (
        Image.open(PAGES / f"{name}.png").convert("RGB") for name in ("slide", "receipt")
    )
    first.save(pages / "a.pdf", save_all=True, append_images=[second])
    (pages / "a.pdf").rename(pages / CAFE)
    (pages / "broken.pdf").write_bytes(b"%PDF-1.7 broken")
    (pages / "truncated.png").write_bytes(SLIDE.read_bytes()[:2000])
    (pages / "notes.txt").write_text("no page")
    quick = {
        "preset": "tiny",
        "max_new_tokens": 3,
        "repeats": 1,
        "warmup": 0,
        "token_probabilities": False,
    }
    plain = golden_session.run_inference(f"{pages / CAFE}#2", **quick)
    command = [
        "batch",
        str(pages),
        f"{pages / CAFE}#2",
        "--out",
        str(out),
        *QUICK[:-2],
        "--preset",
        "tiny",
    ]
    command += ["--model", str(golden_checkpoint(GOLDEN))]
    command += ["--no-ceilings", "--render", "during", "--retries", "0", "--no-embed-page"]
    command += ["--price-per-hour", "7", "--no-token-probabilities"]
    sockets: dict[str, list[str]] = {}
    close = LocalWorkers.close
    monkeypatch.setattr(
        LocalWorkers, "close", lambda pool: sockets.update(listening()) or close(pool)
    )
    assert main(command) == 1
    assert any("batch.worker" in program for program in sockets) and not any(sockets.values())
    told = capsys.readouterr().out
    assert says(told, "1 file left out (.txt)", "5 pages", "2 measured", "0 kept", "2 failed")
    assert says(told, "1 listed twice")
    ends = statuses(out)
    assert list(ends) == ["broken.pdf", "caf?.pdf#1", "caf?.pdf#2", "truncated.png"]
    broken, *done, truncated = ends.values()
    assert "broken.pdf is not a PDF" in broken["reason"] and "damaged" in truncated["reason"]
    assert {broken["failure"], truncated["failure"]} == {"the page cannot be read"}
    # The model was loaded once and stayed.
    workers = {status["attempts"][-1].worker for status in ends.values()}
    assert len(workers - {""}) == 1  # a PDF that cannot be opened needs none
    # The automatic device is known by what it is.
    device = resolve_device("auto")
    assert {status["settings"]["device"] for status in ends.values()} == {device}
    for status, entry in zip(done, [*read_listing(out)][1:3], strict=True):
        folder = out / entry["folder"]
        run = PhaseRun.load(folder / "run.json")
        assert (status["id"], run.page.file, run.page.data) == (entry["id"], entry["page"], None)
        report = (folder / "report.html").read_text()
        assert report.rstrip().endswith("</html>") and "at 7.0 an hour" in report
        assert f"{folder.relative_to(out)}/report.html" in (out / "index.html").read_text()
    assert run.results == plain.results
    assert {path.name for path in out.glob("pages/*/*/.*")} == {MANIFEST_NAME}
    for bad in ("broken.pdf", "truncated.png"):
        (pages / bad).unlink()
    assert main([*command, "--device", device]) == 0
    told = capsys.readouterr().out
    assert says(told, "Resumed", "3 found", "3 finished", "0 failed before", "measures 0 pages")
    assert says(told, "0 measured, 2 kept")
    assert (
        main(["batch", "--render", "only", *command[3:5], "--price-per-hour", "7", "--json"]) == 0
    )
    assert json.loads(capsys.readouterr().out)["reports_failed"] == 0


def test_a_model_that_cannot_be_loaded_stops_the_batch_at_once(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("ocr_phases.batch.local_workers.LocalWorkers", measured_here)
    assert (
        main(["batch", str(PAGES), "--out", str(tmp_path / "out"), "--model", "huge", *QUICK]) == 2
    )
    assert "no model 'huge'" in capsys.readouterr().err
    assert not list((tmp_path / "out").glob("pages"))


def test_a_worker_with_other_versions_stops_the_batch_and_fails_no_page(tmp_path):
    (job,) = jobs(make_pages(tmp_path / "in", "ok"))
    other = Job(**{**vars(job), "versions": {**job.versions, "torch": "0.1"}, "id": ""})
    with refused():
        run_jobs([other], tmp_path / "out", measured_here())
    assert not statuses(tmp_path / "out")


@pytest.mark.parametrize(
    "error", [lambda at: NotebookFailed(f"See {at}/report.ipynb."), lambda at: KeyError()]
)
def test_a_report_that_alone_fails_leaves_its_page_measured(error, tmp_path, monkeypatch):
    settings = {"model": "tiny", "device": "cpu", "dtype": None, "preset": None}
    (job,) = make_jobs([Page("slide.png", str(SLIDE))], settings)
    run, out = PhaseRun.load(GOLDEN / "run.json"), tmp_path / "out"
    run = altered(run, pages=[to_plain(run.pages[0]) | {"sha256": job.sha256}])
    session = SimpleNamespace(run_inference=lambda *_, **__: run)
    monkeypatch.setattr("ocr_phases.session.kept.kept_session", lambda **_: session)
    monkeypatch.setattr("ocr_phases.session.kept_session", lambda **_: session)

    def render_html(notebook: Path, html: Path, **_: Any) -> Path:
        raise error(html.parent)

    monkeypatch.setattr("ocr_phases.report.render.render_html", render_html)
    assert run_jobs([job], out, measured_here(), mode="notebook").done == 1
    (status,) = statuses(out).values()
    assert (status["state"], status["report"]["state"]) == ("done", "failed")
    assert status["report"]["reason"] and str(tmp_path) not in status["report"]["reason"]
    # It is not measured again for its report: that is rendered from the record.
    assert run_jobs([job], out, measured_here(), mode="notebook").kept == 1
