"""The command line: what it writes, what it refuses, and that it starts without the heavy libraries."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import PAGES, RECORD
from wording import says

from ocr_phases import PhaseRun
from ocr_phases.cli import main
from ocr_phases.files import MANIFEST_NAME, folders_of
from ocr_phases.versions import asset


def test_a_default_name_is_numbered_and_a_given_one_replaced(tmp_path, capsys, monkeypatch):
    run = PhaseRun.load(RECORD)
    monkeypatch.setattr("ocr_phases.cli.measuring.measure", lambda *_, **options: run)
    monkeypatch.chdir(tmp_path)
    shutil.copy(PAGES / "receipt.png", "page.png")
    for name in ("run.json", "run-2.json", "run-3.json"):
        assert main(["profile", "page.png"]) == 0
        said = capsys.readouterr()
        assert said.out.splitlines()[-1] == f"Wrote {name}"
        assert (said.err == "") == (name == "run.json")
    assert says(said.err, "run.json", name)
    assert main(["profile", "page.png", "--save", "run.json"]) == 0
    assert capsys.readouterr().err == "Replaced run.json.\n"
    assert PhaseRun.load("run.json").to_json() == run.to_json()


def test_a_folder_is_numbered_by_default_and_only_own_files_in_it_are_replaced(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    record = shutil.copy(RECORD, "b.json")
    compare = ["compare", record, record]
    assert main(compare) == 0
    for folder in ("ocr_phases_artifacts", "ocr_phases_artifacts-2"):
        assert main(["artifacts", record]) == 0
        assert Path(folder, "result.mmd").is_file()
    given, written = ["artifacts", record, "--out", folder], Path(folder, "result.mmd")
    capsys.readouterr()
    assert main(given) == 0
    assert says(capsys.readouterr().err, "Replacing", written.name)
    compared = Path("ocr_phases_compare", "compare.html")
    for path, command in ((written, given), (compared, [*compare, "--out", str(compared.parent)])):
        path.write_text("edited")
        assert main(command) == 2
        assert says(capsys.readouterr().err, path.name, "--overwrite")
        assert path.read_text() == "edited"
    assert main([*given, "--overwrite"]) == 0
    assert written.read_text() != "edited"


def test_a_batch_is_kept_out_of_a_folder_that_has_its_list_or_files_of_others(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("ocr_phases.batch.jobs.find_pages", lambda *_: pytest.fail("it was read"))
    for name, arguments in {"pages.csv": ["--overwrite"], "index.html": [], "jobs.jsonl": []}.items():
        Path(name).write_text("page\na.png\n")
        assert main(["batch", "pages.csv" if arguments else "a.png", "--out", ".", *arguments]) == 2
        assert says(capsys.readouterr().err, name)
        assert [path.name for path in tmp_path.iterdir()] == [name]
        Path(name).unlink()


def test_verify_leaves_a_report_where_it_is_told_to(tiny_session, tmp_path, monkeypatch):
    folder = tmp_path / "verified"
    monkeypatch.setattr("ocr_phases.cli.measuring.load_session", lambda arguments: tiny_session)
    monkeypatch.setattr("ocr_phases.cli.measuring.measure", lambda *_, **options: PhaseRun.load(RECORD))
    assert main(["verify", str(PAGES / "receipt.png"), "--out", str(folder)]) == 0
    document = (folder / "verify.html").read_text(encoding="utf-8")
    assert "condition of vision" in document  # where the code does it, of the session that measured
    assert "A record does not keep this" not in document
    files = {path.name for path in folder.iterdir()}
    assert files == {MANIFEST_NAME, "run.json", "verify.html", "verify.ipynb"}


def test_notebooks_are_copied_and_an_edited_one_is_kept(tmp_path, capsys):
    folder = tmp_path / "mine"
    assert main(["notebooks", str(folder)]) == 0
    shipped = sorted(path.name for path in asset("notebooks").glob("*.ipynb"))
    assert capsys.readouterr().out.splitlines() == [f"Wrote {folder / name}" for name in shipped]
    assert main(["notebooks", str(folder)]) == 0
    (folder / "verify.ipynb").write_text("edited")
    for options, code in (([], 2), (["--overwrite"], 0)):
        capsys.readouterr()
        assert main(["notebooks", str(folder), *options, "--json"]) == code
    assert len(json.loads(capsys.readouterr().out)["files"]) == len(shipped)
    assert (folder / "verify.ipynb").read_bytes() == (asset("notebooks") / "verify.ipynb").read_bytes()


def test_a_reader_that_stops_is_no_error() -> None:
    command = [sys.executable, "-m", "ocr_phases.cli", "verify", "--record", str(RECORD)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        process.stdout.close()
        assert (process.stderr.read(), process.wait(120)) == (b"", 141)


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP"])
def test_a_signal_stops_a_verb_with_one_line(name, capsys, monkeypatch):
    number = signal.Signals[name]
    monkeypatch.setattr(PhaseRun, "load", lambda path: os.kill(os.getpid(), number))
    before = signal.getsignal(number)
    assert main(["artifacts", str(RECORD)]) == 128 + number
    assert capsys.readouterr().err == "ocr-phases: stopped.\n"
    assert signal.getsignal(number) == before


def test_nohup_keeps_a_verb_running(tmp_path, monkeypatch):
    load = PhaseRun.load
    monkeypatch.setattr(PhaseRun, "load", lambda path: os.kill(os.getpid(), signal.SIGHUP) or load(path))
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert main(["artifacts", str(RECORD), "--out", str(tmp_path)]) == 0
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.skipif("__import__('torch').cuda.is_available()", reason="a CUDA device is here")
def test_cuda_where_there_is_none(capsys):
    assert main(["profile", str(PAGES / "slide.png"), "--device", "cuda"]) == 2
    assert "sees no CUDA" in capsys.readouterr().err


def test_folders_are_named_like_pages():
    out = Path("out")
    pages = ["a/x.png", "b/x.png", "doc.pdf#3", "x-2.png"]
    assert folders_of(pages, out) == [out / name for name in ("x", "x-2", "doc-3", "x-2-2")]


@pytest.mark.parametrize("code", ["import ocr_phases", "import ocr_phases.cli"])
def test_starting_loads_nothing_heavy(code):
    heavy = ("torch", "transformers", "pandas", "matplotlib", "numpy", "papermill")
    check = f"{code}; import sys; sys.exit(any(name in sys.modules for name in {heavy!r}))"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


def test_what_was_measured_outlives_its_report(tiny_session, tmp_path, monkeypatch, capsys):
    def stopped(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("ocr_phases.cli.report.measure", lambda *_, **__: PhaseRun.load(RECORD))
    monkeypatch.setattr("ocr_phases.cli.report.load_session", lambda *_: tiny_session)
    monkeypatch.setattr("ocr_phases.report.render.page_report", stopped)
    assert main(["report", str(PAGES / "slide.png"), "--out", str(tmp_path)]) == 130
    assert PhaseRun.load(tmp_path / "slide" / "run.json").text
