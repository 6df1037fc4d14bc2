"""A batch with the real worker and model, and a page that one worker measures and reports on."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from batch_example import QUICK, Here, jobs, make_pages, measure, run_jobs, statuses, watched_sockets
from conftest import GOLDEN, PAGES
from PIL import Image
from refusals import refused
from wording import says

from ocr_phases import PhaseRun
from ocr_phases.batch.child import LocalPool
from ocr_phases.batch.jobs import Job, Page, make_jobs
from ocr_phases.batch.store import page_status, read_listing
from ocr_phases.batch.worker import measure_page
from ocr_phases.cli import main
from ocr_phases.errors import CannotWrite, NotebookFailed, OcrPhasesError
from ocr_phases.files import MANIFEST_NAME
from ocr_phases.models.load import resolve_device

SLIDE = PAGES / "slide.png"
CAFE = os.fsdecode(b"caf\xe9.png")


def runs_of(out: Path) -> Iterator[tuple[str, Path, PhaseRun]]:
    """Each page that has a record, its folder and that record."""
    for entry in read_listing(out):
        folder = out / entry["folder"]
        if (folder / "run.json").exists():
            yield entry["page"], folder, PhaseRun.load(folder / "run.json")


def test_a_batch_measures_a_pdf_page_by_page_and_bad_files_beside_it(tmp_path, capsys):
    pages, out = tmp_path / "in", tmp_path / "out"
    pages.mkdir()
    first, second = (Image.open(PAGES / f"{name}.png").convert("RGB") for name in ("slide", "receipt"))
    first.save(pages / "two.pdf", save_all=True, append_images=[second])
    (pages / "broken.pdf").write_bytes(b"%PDF-1.7 broken")
    (pages / "truncated.png").write_bytes(SLIDE.read_bytes()[:2000])
    (pages / "notes.txt").write_text("no page")
    options = [
        "--max-new-tokens",
        "3",
        "--repeats",
        "1",
        "--warmup",
        "0",
        "--no-ceilings",
        "--render",
        "none",
    ]
    command = ["batch", str(pages), "--out", str(out), *options, "--retries", "0", "--no-embed-page"]
    assert main(command) == 1
    told = capsys.readouterr().out
    assert says(told, "1 file left out (.txt)", "4 pages", "2 measured", "0 kept", "2 failed")
    found = statuses(out)
    assert list(found) == ["broken.pdf", "truncated.png", "two.pdf#1", "two.pdf#2"]
    assert [status["state"] for status in found.values()] == ["failed", "failed", "done", "done"]
    assert "broken.pdf is not a PDF" in found["broken.pdf"]["reason"]
    for page, _, run in runs_of(out):
        assert (run.page["file"], run.page["data"]) == (page, None)
    # The model was loaded once and stayed.
    workers = {status["attempts"][-1].worker for status in found.values()}
    assert len(workers - {""}) == 1  # a PDF that cannot be opened needs none
    # The automatic device is known by what it is.
    device = resolve_device("auto")
    assert {status["settings"]["device"] for status in found.values()} == {device}
    (pages / "broken.pdf").unlink()
    (pages / "truncated.png").unlink()
    assert main([*command, "--device", device]) == 0
    told = capsys.readouterr().out
    assert says(told, "Resumed", "2 found", "2 finished", "0 failed before", "measures 0 pages")
    assert says(told, "0 measured, 2 kept")


def test_measuring_within_the_notebook_gives_the_same_tokens_and_a_report(tiny_session, tmp_path, capsys):
    out, nameless, damaged = tmp_path / "out", tmp_path / CAFE, tmp_path / "damaged.png"
    plain = tiny_session.run_inference(SLIDE, preset="tiny", max_new_tokens=3, repeats=1, warmup=0)
    nameless.write_bytes(SLIDE.read_bytes())
    damaged.write_bytes(SLIDE.read_bytes()[:2000])
    pages = [str(page) for page in (SLIDE, SLIDE, nameless, damaged)]
    options = [*QUICK, "--no-ceilings", "--preset", "tiny", "--render", "during", "--retries", "0"]
    with watched_sockets() as found:
        assert main(["batch", *pages, "--out", str(out), *options]) == 1
    assert any("batch.worker" in program for program in found)
    assert not any(found.values())
    told = capsys.readouterr().out
    assert says(told, "4 pages", "2 measured", "0 kept", "1 failed", "1 listed twice")
    runs = {page: (folder, run) for page, folder, run in runs_of(out)}
    folder, within = runs["slide.png"]
    assert within.results == plain.results
    assert (folder / "report.html").read_text().rstrip().endswith("</html>")
    assert f"{folder.relative_to(out)}/report.html" in (out / "index.html").read_text()
    _, again = runs["caf?.png"]
    assert (again.results, again.page["file"]) == (plain.results, "caf?.png")
    status = statuses(out)["damaged.png"]
    assert (status["failure"], "damaged" in status["reason"]) == ("the page cannot be read", True)
    assert {path.name for path in out.glob("pages/*/*/.*")} == {MANIFEST_NAME}


def test_a_model_that_cannot_be_loaded_stops_the_batch_at_once(tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["batch", str(PAGES), "--out", str(out), "--model", "huge", *QUICK]) == 2
    assert "no model 'huge'" in capsys.readouterr().err
    assert not list(out.glob("pages"))


def files_of(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, dict[Path, bytes]]:
    """A folder of pages, that of a batch of them that ended, and all its files."""
    folder = tmp_path_factory.mktemp("stopped")
    measure(make_pages(folder / "in", "bad"), folder / "out")
    return folder / "in", folder / "out", files_of(folder / "out")


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("preset", "huge"),
        ("prompt", "locate:"),
        ("prompt", " "),
        ("strategy", "fast"),
        ("vision", "sharp"),
        ("max_new_tokens", 0),
        ("eos_check_every", 0),
        ("repeats", 0),
        ("warmup", -1),
    ],
)
def test_a_setting_wrong_for_every_page_is_refused_before_anything_starts(
    option, value, stopped, tiny_session, tmp_path, monkeypatch, capsys
):
    with pytest.raises(OcrPhasesError) as single:
        tiny_session.run_inference(SLIDE, **{option: value})
    pages, ended, before = stopped
    monkeypatch.setattr(subprocess, "Popen", None)  # no worker could start now
    for out in (tmp_path / "new", ended):
        command = ["batch", str(pages), f"--{option.replace('_', '-')}", str(value), "--out", str(out)]
        assert main(command) == 2
        said = capsys.readouterr().err.replace("--", "").replace("-", "_")  # settings are options there
        assert said == f"ocr-phases: {single.value}\n".replace("-", "_")
    assert not (tmp_path / "new").exists()
    assert files_of(ended) == before


def test_a_worker_with_other_versions_stops_the_batch_and_fails_no_page(tmp_path):
    (job,) = jobs(make_pages(tmp_path / "in", "ok"))
    other = Job(**{**vars(job), "versions": {**job.versions, "torch": "0.1"}, "id": ""})
    (tmp_path / "out").mkdir()
    with contextlib.closing(LocalPool()) as pool, refused():
        run_jobs([other], tmp_path / "out", pool)
    assert not statuses(tmp_path / "out")


@pytest.mark.parametrize(
    "error",
    [
        lambda folder: NotebookFailed(f"page_report failed: see {folder}/report.ipynb."),
        lambda folder: CannotWrite(f"{folder}/report.html cannot be written."),
        lambda folder: KeyError(),
    ],
)
def test_a_report_that_alone_fails_leaves_its_page_measured(error, tmp_path, monkeypatch):
    settings = {"model": "tiny", "device": "cpu", "dtype": None, "preset": None}
    (job,) = make_jobs([Page("slide.png", str(SLIDE))], settings)
    run, out = PhaseRun.load(GOLDEN / "run.json"), tmp_path / "out"
    run.pages[0]["sha256"] = job.sha256
    session = SimpleNamespace(run_inference=lambda *_, **__: run)
    monkeypatch.setattr("ocr_phases.session.kept_session", lambda **_: session)

    def page_report(run: PhaseRun, folder: Path, parameters: dict[str, Any]) -> Path:
        raise error(folder)

    monkeypatch.setattr("ocr_phases.report.render.page_report", page_report)
    out.mkdir()
    pool = Here(lambda request: measure_page(request, lambda: None))
    assert run_jobs([job], out, pool, mode="notebook").done == 1
    (entry,) = read_listing(out)
    status = page_status(out, entry)
    assert status is not None
    assert (status["state"], status["report"]["state"]) == ("done", "failed")
    assert status["report"]["reason"] and str(tmp_path) not in status["report"]["reason"]
    # It is not measured again for its report: that is rendered from the record.
    assert run_jobs([job], out, pool, mode="notebook").kept == 1
