"""A batch with the real worker and model."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from batch_example import (
    QUICK,
    jobs,
    make_pages,
    measure,
    run_jobs,
    statuses,
    watched_sockets,
)
from conftest import PAGES
from refusals import refused
from wording import says

from ocr_phases import PhaseRun
from ocr_phases.batch.child import LocalPool
from ocr_phases.batch.jobs import Job
from ocr_phases.batch.store import read_listing
from ocr_phases.cli import main
from ocr_phases.errors import OcrPhasesError
from ocr_phases.files import MANIFEST_NAME


def test_batch_measures_a_pdf_page_by_page_and_bad_files_beside_it(tmp_path, capsys):
    from PIL import Image

    pages = tmp_path / "in"
    pages.mkdir()
    first, second = (Image.open(PAGES / f"{name}.png").convert("RGB") for name in ("slide", "receipt"))
    first.save(pages / "two.pdf", save_all=True, append_images=[second])
    (pages / "broken.pdf").write_bytes(b"%PDF-1.7 broken")
    (pages / "truncated.png").write_bytes((PAGES / "slide.png").read_bytes()[:2000])
    (pages / "notes.txt").write_text("no page")
    command = [
        "batch",
        str(pages),
        "--out",
        str(tmp_path / "out"),
        *QUICK,
        "--render",
        "none",
        "--retries",
        "0",
        "--no-embed-page",
    ]
    assert main(command) == 1
    said = capsys.readouterr().out
    assert says(said, "1 file left out (.txt)", "4 pages", "2 measured", "0 kept", "2 failed")
    found = statuses(tmp_path / "out")
    assert list(found) == ["broken.pdf", "truncated.png", "two.pdf#1", "two.pdf#2"]
    assert [status["state"] for status in found.values()] == ["failed", "failed", "done", "done"]
    assert "broken.pdf is not a PDF" in found["broken.pdf"]["reason"]
    runs = {
        entry["page"]: PhaseRun.load(tmp_path / "out" / entry["folder"] / "run.json")
        for entry in read_listing(tmp_path / "out")
        if found[entry["page"]]["state"] == "done"
    }
    assert [run.page["file"] for run in runs.values()] == ["two.pdf#1", "two.pdf#2"]
    assert all(run.page["data"] is None for run in runs.values())
    # The model was loaded once and stayed.
    workers = {status["attempts"][-1].worker for status in found.values()}
    assert len(workers - {""}) == 1  # a PDF that cannot be opened needs none


def test_measuring_within_the_notebook_gives_the_same_tokens_and_a_report(tiny_session, tmp_path, capsys):
    page, out = str(PAGES / "slide.png"), tmp_path / "out"
    plain = tiny_session.run_inference(page, max_new_tokens=3, repeats=1, warmup=0)
    nameless, damaged = tmp_path / os.fsdecode(b"caf\xe9.png"), tmp_path / "damaged.png"
    nameless.write_bytes(Path(page).read_bytes())
    damaged.write_bytes(Path(page).read_bytes()[:2000])
    pages = [page, page, str(nameless), str(damaged)]
    command = ["batch", *pages, "--out", str(out), *QUICK, "--render", "during", "--retries", "0"]
    with watched_sockets() as found:
        assert main(command) == 1
    assert any("batch.worker" in program for program in found)
    assert not any(found.values())
    said = capsys.readouterr().out
    assert says(said, "4 pages", "2 measured", "0 kept", "1 failed", "1 listed twice")
    entries = {entry["page"]: out / entry["folder"] for entry in read_listing(out)}
    within = PhaseRun.load(entries["slide.png"] / "run.json")
    assert within.results == plain.results
    assert (entries["slide.png"] / "report.html").read_text().rstrip().endswith("</html>")
    assert f"{entries['slide.png'].relative_to(out)}/report.html" in (out / "index.html").read_text()
    again = PhaseRun.load(entries["caf?.png"] / "run.json")
    assert (again.results, again.page["file"]) == (plain.results, "caf?.png")
    status = statuses(out)["damaged.png"]
    assert (status["failure"], "damaged" in status["reason"]) == ("the page cannot be read", True)
    assert {path.name for path in out.glob("pages/*/*/.*")} == {MANIFEST_NAME}


def test_a_model_that_cannot_be_loaded_stops_the_batch_at_once(tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["batch", str(PAGES), "--out", str(out), "--model", "huge", *QUICK]) == 2
    assert "no model 'huge'" in capsys.readouterr().err
    assert not list(out.glob("pages"))


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
    option, value, tiny_session, tmp_path, monkeypatch, capsys
):
    with pytest.raises(OcrPhasesError) as single:
        tiny_session.run_inference(PAGES / "slide.png", **{option: value})
    stopped = tmp_path / "stopped"
    measure(make_pages(tmp_path / "in", "bad"), stopped)
    before = {path: path.read_bytes() for path in stopped.rglob("*") if path.is_file()}
    monkeypatch.setattr(subprocess, "Popen", None)  # no worker could start now
    command = ["batch", str(tmp_path / "in"), f"--{option.replace('_', '-')}", str(value)]
    for out in (tmp_path / "new", stopped):
        assert main([*command, "--out", str(out)]) == 2
        said = capsys.readouterr().err.replace("--", "").replace("-", "_")  # settings are options there
        assert said == f"ocr-phases: {single.value}\n".replace("-", "_")
    assert not (tmp_path / "new").exists()
    assert {path: path.read_bytes() for path in stopped.rglob("*") if path.is_file()} == before


def test_a_worker_with_other_versions_stops_the_batch_and_fails_no_page(tmp_path):
    make_pages(tmp_path / "in", "ok")
    out = tmp_path / "out"
    out.mkdir()
    (job,) = jobs(tmp_path / "in")
    other = Job(**{**vars(job), "versions": {**job.versions, "torch": "0.1"}, "id": ""})
    pool = LocalPool()
    try:
        with refused():
            run_jobs([other], out, pool)
    finally:
        pool.close()
    assert not statuses(out)
