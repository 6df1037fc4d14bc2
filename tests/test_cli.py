"""The command line: what it writes and refuses, how it starts, what it tells while it works, how it
ends.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from conftest import GOLDEN, RECORD
from wording import says

from ocr_phases import PhaseRun
from ocr_phases.cli import main
from ocr_phases.cli.measuring import Bar
from ocr_phases.errors import OcrPhasesError
from ocr_phases.files import folders_of, write_into
from ocr_phases.versions import asset

PAGE = str(GOLDEN / "pages" / "small_400x300.png")


@pytest.fixture
def measured(golden_session, monkeypatch):
    """A verb loads a model and measures the example record."""
    run = PhaseRun.load(RECORD)
    monkeypatch.setattr("ocr_phases.cli.measuring.load_session", lambda *_: golden_session)
    monkeypatch.setattr("ocr_phases.cli.measuring.measure", lambda *_, **options: run)
    return run


def test_a_default_name_is_numbered_and_a_given_one_replaced(
    measured, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    for name in ("run.json", "run-2.json", "run-3.json"):
        assert main(["profile", PAGE]) == 0
        said = capsys.readouterr()
        assert said.out.splitlines()[-1] == f"Wrote {name}"
        assert (said.err == "") == (name == "run.json")
    assert says(said.err, "run.json", name)
    assert main(["profile", PAGE, "--save", "run.json"]) == 0
    assert capsys.readouterr().err == "Replaced run.json.\n"
    assert PhaseRun.load("run.json").to_json() == measured.to_json()


def test_a_folder_is_numbered_by_default_and_only_own_files_in_it_are_replaced(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    for folder in ("ocr_phases_artifacts", "ocr_phases_artifacts-2"):
        assert main(["artifacts", str(RECORD)]) == 0
        assert Path(folder, "result.mmd").is_file()
    given, written = ["artifacts", str(RECORD), "--out", folder], Path(folder, "result.mmd")
    capsys.readouterr()
    assert main(given) == 0
    assert says(capsys.readouterr().err, "Replacing", written.name)
    written.write_text("edited")
    assert main(given) == 2
    assert says(capsys.readouterr().err, written.name, "--overwrite")
    assert written.read_text() == "edited"
    assert main([*given, "--overwrite"]) == 0
    assert written.read_text() != "edited"


@pytest.mark.parametrize(
    "options",
    [
        ["--models", "tiny,tiny"],
        ["--models", "tiny,dummy", "--presets", "nonsense"],
        ["--model", "./no_such_folder", "--presets", "tiny"],
        ["--server", "http://127.0.0.1:9/v1", "--concurrency", "0"],
        ["--server", "http://127.0.0.1:9/v1"],
    ],
)
def test_a_refused_sweep_does_not_say_that_it_replaces(options, tmp_path, capsys):
    names = ["load.html", "load.json"] if "--server" in options else ["sweep.html", "sweep.ipynb"]
    write_into(tmp_path, dict.fromkeys(names, b"earlier"))
    assert main(["sweep", PAGE, *options, "--out", str(tmp_path)]) == 2
    assert "Replacing" not in capsys.readouterr().err
    assert [(tmp_path / name).read_bytes() for name in names] == [b"earlier"] * 2


def test_a_verification_that_is_refused_does_not_say_that_it_replaces(tmp_path, capsys):
    write_into(tmp_path, {"verify.html": b"earlier"})
    assert main(["verify", PAGE, "--model", "not/a/folder", "--out", str(tmp_path)]) == 2
    assert "Replacing" not in capsys.readouterr().err


@pytest.mark.parametrize(
    "pages, prompt, reports",
    [
        (["a.pdf#1-3"], "markdown", ["a.pdf#1", "a.pdf#2", "a.pdf#3"]),
        (["b.png", "a.tif#2-3"], "free", ["b.png", "a.tif#2", "a.tif#3"]),
        (["a.pdf#1-2"], "Read this.", ["a.pdf#1", "a.pdf#2"]),
        (["a.pdf#1-2"], "<image>Read this.", ["a.pdf#1", "a.pdf#2"]),
        (["a.pdf#1-2"], "multipage", ["a.pdf#1-2"]),
        (["a.pdf#1-2"], " multipage ", ["a.pdf#1-2"]),
        (["a.pdf#1-2"], "<image><image>What differs?", ["a.pdf#1-2"]),
        (["a.png"], "multipage", ["a.png"]),
    ],
)
def test_each_page_has_its_report_unless_the_prompt_reads_several(
    pages, prompt, reports, monkeypatch
):
    seen = []
    monkeypatch.setattr(
        "ocr_phases.cli.report.folders_of", lambda pages, out: seen.extend(pages) or []
    )

    def load(arguments, loaded_pages):
        assert loaded_pages == reports
        raise OcrPhasesError("The pages are known.")

    monkeypatch.setattr("ocr_phases.cli.report.load_session", load)
    assert main(["report", *pages, "--prompt", prompt]) == 2
    assert seen == reports


def test_a_batch_is_kept_out_of_a_folder_that_has_its_list_or_files_of_others(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("ocr_phases.batch.pages.find_pages", lambda *_: pytest.fail("it was read"))
    for name, arguments in {
        "pages.csv": ["--overwrite"],
        "index.html": [],
        "jobs.jsonl": [],
    }.items():
        Path(name).write_text("page\na.png\n")
        assert main(["batch", "pages.csv" if arguments else "a.png", "--out", ".", *arguments]) == 2
        assert says(capsys.readouterr().err, name)
        assert [path.name for path in tmp_path.iterdir()] == [name]
        Path(name).unlink()


def test_notebooks_are_copied_and_an_edited_one_is_kept(tmp_path, capsys):
    shipped = sorted(path.name for path in asset("notebooks").glob("*.ipynb"))
    for _ in range(2):
        assert main(["notebooks", str(tmp_path)]) == 0
    (tmp_path / "verify.ipynb").write_text("edited")
    for options, code in (([], 2), (["--overwrite"], 0)):
        capsys.readouterr()
        assert main(["notebooks", str(tmp_path), *options, "--json"]) == code
    assert json.loads(capsys.readouterr().out)["files"] == [
        str(tmp_path / name) for name in shipped
    ]
    assert (tmp_path / "verify.ipynb").read_bytes() == (
        asset("notebooks") / "verify.ipynb"
    ).read_bytes()


def test_folders_are_named_like_pages():
    out = Path("out")
    pages = ["a/x.png", "b/x.png", "doc.pdf#3", "x-2.png"]
    assert folders_of(pages, out) == [out / name for name in ("x", "x-2", "doc-3", "x-2-2")]


def test_starting_loads_nothing_heavy():
    heavy = ("torch", "transformers", "pandas", "matplotlib", "numpy", "papermill")
    check = f"import ocr_phases.cli, sys; sys.exit(any(name in sys.modules for name in {heavy!r}))"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


def test_a_log_gets_a_line_now_and_then_of_what_this_command_did(capsys, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("tqdm.std.time", lambda: clock[0])
    with Bar(1000, "page", "Measuring") as bar:
        clock[0] = 20.0
        bar.show_count(300, 0, "0 failed, waiting for a worker")  # the clock starts after it
        clock[0] = 90.0
        bar.show_count(400, 100, "3 failed")  # 300 of them were there
    (line,) = capsys.readouterr().err.splitlines()
    parts = ("Measuring:  40%", "400/1000", "01:30<09:00", "1.11page/s", "3 failed")
    assert [part for part in parts if part not in line] == []


def test_two_signals_at_once_are_one_and_a_later_one_ends_what_does_not_end(monkeypatch):
    before = signal.getsignal(signal.SIGINT)
    clock = iter((1.0, 1.5, 3.0))
    monkeypatch.setattr("ocr_phases.cli.time", SimpleNamespace(monotonic=lambda: next(clock)))

    def verb(*_):
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGHUP)  # the record of the finished repeats is being made
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(PhaseRun, "load", verb)
    assert main(["artifacts", "x.json"]) == 128 + signal.SIGTERM
    assert signal.getsignal(signal.SIGINT) == before


def test_nohup_keeps_a_verb_running(tmp_path, monkeypatch):
    load = PhaseRun.load
    monkeypatch.setattr(
        PhaseRun, "load", lambda path: os.kill(os.getpid(), signal.SIGHUP) or load(path)
    )
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert main(["artifacts", str(RECORD), "--out", str(tmp_path)]) == 0
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize(
    ("verb", "name", "times"),
    [("profile", "SIGINT", 1), ("verify", "SIGTERM", 2), ("report", "SIGHUP", 2)],
)
def test_signals_keep_the_finished_repeats(
    verb, name, times, golden_session, tmp_path, monkeypatch, capsys
):
    number = signal.Signals[name]

    def update(bar, tokens):
        if tokens and bar.n >= 2:  # one repeat is done
            for _ in range(times):
                os.kill(os.getpid(), number)
        told(bar, tokens)

    told = Bar.update
    monkeypatch.setattr(Bar, "update", update)
    monkeypatch.setattr("ocr_phases.cli.measuring.load_session", lambda arguments: golden_session)
    monkeypatch.setattr("ocr_phases.session.kept.kept_session", lambda **options: golden_session)
    monkeypatch.chdir(tmp_path)
    options = ["--preset=tiny", "--max-new-tokens=2", "--warmup=0", "--repeats=3", "--no-ceilings"]
    options.append("--no-token-probabilities")
    assert main([verb, PAGE, *options, *(["--json"] if verb != "report" else [])]) == 128 + number
    said = capsys.readouterr()
    assert "1 of 3 runs done" in said.err  # without a terminal, a line a finished run
    if verb != "report":
        result = json.loads(said.out)
        assert (result["exit_code"], result["repeats"], result["record"]) == (
            128 + number,
            1,
            "run.json",
        )
        assert said.err.splitlines()[-1] == f"ocr-phases: {result['exit_reason']}"
    (record,) = tmp_path.rglob("run.json")
    assert PhaseRun.load(record).request.repeats == 1
