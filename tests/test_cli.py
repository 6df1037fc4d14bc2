"""The command line: what it writes and refuses, how it starts, what it tells while it works, how it
ends.
"""

import importlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import GOLDEN, RECORD
from wording import says

from ocr_phases import OCRSession, PhaseRun
from ocr_phases.cli import main
from ocr_phases.cli.measuring import Bar
from ocr_phases.errors import OcrPhasesError
from ocr_phases.files import folders_of, write_into
from ocr_phases.versions import asset

PAGE = str(GOLDEN / "pages" / "small_400x300.png")


# -- what it writes --------------------------------------------------------------------------------


@pytest.fixture
def measured_run(golden_session: OCRSession, monkeypatch: pytest.MonkeyPatch) -> PhaseRun:
    """What a verb measures: it loads a model, and gives the example record."""
    run = PhaseRun.load(RECORD)
    monkeypatch.setattr("ocr_phases.cli.measuring.load_session", lambda *_: golden_session)
    monkeypatch.setattr("ocr_phases.cli.measuring.measure", lambda *_, **options: run)
    return run


def test_a_default_name_is_numbered_and_a_given_one_replaced(
    measured_run: PhaseRun,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)

    assert main(["profile", PAGE]) == 0
    first = capsys.readouterr()
    assert first.out.splitlines()[-1] == "Wrote run.json"
    assert first.err == ""

    for name in ("run-2.json", "run-3.json"):
        assert main(["profile", PAGE]) == 0
        numbered = capsys.readouterr()
        assert numbered.out.splitlines()[-1] == f"Wrote {name}"
        assert says(numbered.err, "run.json", name)

    assert main(["profile", PAGE, "--save", "run.json"]) == 0
    assert capsys.readouterr().err == "Replaced run.json.\n"
    assert PhaseRun.load("run.json").to_json() == measured_run.to_json()


def test_a_folder_is_numbered_by_default_and_only_own_files_in_it_are_replaced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for folder in ("ocr_phases_artifacts", "ocr_phases_artifacts-2"):
        assert main(["artifacts", str(RECORD)]) == 0
        assert "CORNER CAFE" in Path(folder, "result.mmd").read_text()
    capsys.readouterr()
    written = Path("ocr_phases_artifacts-2", "result.mmd")
    command = ["artifacts", str(RECORD), "--out", str(written.parent)]

    assert main(command) == 0
    assert says(capsys.readouterr().err, "Replacing", "result.mmd")

    written.write_text("edited")
    assert main(command) == 2
    assert says(capsys.readouterr().err, "result.mmd", "--overwrite")
    assert written.read_text() == "edited"

    assert main([*command, "--overwrite"]) == 0
    assert written.read_text() != "edited"


def assert_nothing_replaced(
    command: list[str], files: list[str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A refused command leaves files of an earlier one, and does not say that it replaces them."""
    write_into(folder, dict.fromkeys(files, b"earlier"))

    assert main([*command, "--out", str(folder)]) == 2

    assert "Replacing" not in capsys.readouterr().err
    for name in files:
        assert (folder / name).read_bytes() == b"earlier"


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(["--models", "tiny,tiny"], id="one model twice"),
        pytest.param(["--models", "tiny,dummy", "--presets", "nonsense"], id="no preset"),
        pytest.param(["--model", "./no_such_folder", "--presets", "tiny"], id="no model"),
    ],
)
def test_a_refused_sweep_does_not_say_that_it_replaces(
    options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    files = ["sweep.html", "sweep.ipynb"]
    assert_nothing_replaced(["sweep", PAGE, *options], files, tmp_path, capsys)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(["--concurrency", "0"], id="no page at once"),
        pytest.param([], id="no server there"),
    ],
)
def test_a_refused_load_test_does_not_say_that_it_replaces(
    options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["sweep", PAGE, "--server", "http://127.0.0.1:9/v1", *options]
    assert_nothing_replaced(command, ["load.html", "load.json"], tmp_path, capsys)


def test_a_verification_that_is_refused_does_not_say_that_it_replaces(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["verify", PAGE, "--model", "not/a/folder"]
    assert_nothing_replaced(command, ["verify.html"], tmp_path, capsys)


@pytest.mark.parametrize(
    ("pages", "prompt", "reports"),
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
    pages: list[str], prompt: str, reports: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    reported: list[str] = []

    def folders_of_reports(report_pages: list[str], out: Path) -> list[Path]:
        reported.extend(report_pages)
        return []

    def load(arguments: object, loaded_pages: list[str]) -> None:
        assert loaded_pages == reports
        raise OcrPhasesError("The pages are known.")

    monkeypatch.setattr("ocr_phases.cli.report.folders_of", folders_of_reports)
    monkeypatch.setattr("ocr_phases.cli.report.load_session", load)

    assert main(["report", *pages, "--prompt", prompt]) == 2
    assert reported == reports


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("pages.csv", ["batch", "pages.csv", "--overwrite"]),
        ("index.html", ["batch", "a.png"]),
        ("jobs.jsonl", ["batch", "a.png"]),
    ],
)
def test_a_batch_is_kept_out_of_a_folder_that_has_its_list_or_files_of_others(
    name: str,
    command: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object) -> None:
        pytest.fail("the pages were looked for")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("ocr_phases.batch.pages.find_pages", fail)
    Path(name).write_text("page\na.png\n")

    assert main([*command, "--out", "."]) == 2

    assert says(capsys.readouterr().err, name)
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("name", ["-page.png", "--json", "--kernels"])
def test_what_stands_behind_two_dashes_is_a_page(
    name: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copy(PAGE, name)

    assert main(["profile", "--model", "tiny", "--dry-run", "--", name]) == 0

    assert capsys.readouterr().out.startswith("tiny at ")


def test_notebooks_are_copied_and_an_edited_one_is_kept(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["notebooks", str(tmp_path)]
    shipped = sorted(path.name for path in asset("notebooks").glob("*.ipynb"))
    edited = tmp_path / "verify.ipynb"
    for _ in range(2):  # again over its own files
        assert main(command) == 0

    edited.write_text("edited")
    assert main([*command, "--json"]) == 2
    assert edited.read_text() == "edited"
    capsys.readouterr()

    assert main([*command, "--overwrite", "--json"]) == 0
    files = json.loads(capsys.readouterr().out)["files"]
    assert files == [str(tmp_path / name) for name in shipped]
    assert edited.read_bytes() == (asset("notebooks") / "verify.ipynb").read_bytes()


def test_folders_are_named_like_pages() -> None:
    out = Path("out")
    pages = ["a/x.png", "b/x.png", "doc.pdf#3", "x-2.png"]
    assert folders_of(pages, out) == [out / "x", out / "x-2", out / "doc-3", out / "x-2-2"]


def test_starting_loads_nothing_heavy() -> None:
    heavy = ("torch", "transformers", "pandas", "matplotlib", "numpy", "papermill")
    check = f"import ocr_phases.cli, sys; sys.exit(any(name in sys.modules for name in {heavy!r}))"
    assert subprocess.run([sys.executable, "-c", check], check=False).returncode == 0


class FakeClock:
    """A clock that a test moves by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_log_gets_a_line_now_and_then_of_what_this_command_did(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock()
    monkeypatch.setattr("tqdm.std.time", clock)

    with Bar(1000, "page", "Measuring") as bar:
        clock.now = 20.0
        bar.show_count(300, 0, "0 failed, waiting for a worker")  # the clock starts after it
        clock.now = 90.0
        bar.show_count(400, 100, "3 failed")  # 300 of them were there

    (line,) = capsys.readouterr().err.splitlines()
    for part in ("Measuring:  40%", "400/1000", "01:30<09:00", "1.11page/s", "3 failed"):
        assert part in line


def test_the_rate_is_that_of_all_pages_of_this_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock()
    monkeypatch.setattr("tqdm.std.time", clock)

    with Bar(1000, "page", "Measuring") as bar:
        for now, finished, by_this_command in (
            (40.0, 300, 0),
            (50.0, 300, 0),
            (95.0, 350, 50),
            (140.0, 400, 100),
        ):
            clock.now = now
            bar.show_count(finished, by_this_command, "")

    *_, last = capsys.readouterr().err.splitlines()
    assert "1.00page/s" in last


# -- signals ---------------------------------------------------------------------------------------


def send_signal(number: int) -> None:
    """Send this process a signal."""
    os.kill(os.getpid(), number)


def test_two_signals_at_once_are_one_and_a_later_one_ends_what_does_not_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    handler_before = signal.getsignal(signal.SIGINT)
    times: Iterator[float] = iter((1.0, 1.5, 3.0))
    clock = SimpleNamespace(monotonic=lambda: next(times))
    monkeypatch.setattr("ocr_phases.cli.time", clock)

    def load(*_: object) -> None:
        with pytest.raises(KeyboardInterrupt):
            send_signal(signal.SIGHUP)
        send_signal(signal.SIGHUP)  # the record of the finished repeats is being made
        send_signal(signal.SIGTERM)

    monkeypatch.setattr(PhaseRun, "load", load)

    assert main(["artifacts", "x.json"]) == 128 + signal.SIGTERM
    assert signal.getsignal(signal.SIGINT) == handler_before


#: A module that loses what is raised while it is imported, as modules of C do.
LOSES_SIGNALS = """
import contextlib, os, signal
with contextlib.suppress(BaseException):
    os.kill(os.getpid(), signal.SIGTERM)
    for _ in range(1000):
        pass
is_whole = True
"""


def test_a_signal_in_the_middle_of_an_import_ends_the_command_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "loses_signals.py").write_text(LOSES_SIGNALS)
    monkeypatch.syspath_prepend(str(tmp_path))

    def load(*_: object) -> None:
        importlib.import_module("loses_signals")
        for _ in range(2_000):
            time.sleep(0.01)

    monkeypatch.setattr(PhaseRun, "load", load)

    assert main(["artifacts", "x.json"]) == 128 + signal.SIGTERM
    assert sys.modules.pop("loses_signals").is_whole
    assert capsys.readouterr().err == "ocr-phases: stopped.\n"


def test_nohup_keeps_a_verb_running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load = PhaseRun.load

    def hang_up_and_load(path: str) -> PhaseRun:
        send_signal(signal.SIGHUP)
        return load(path)

    monkeypatch.setattr(PhaseRun, "load", hang_up_and_load)
    handler_before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert main(["artifacts", str(RECORD), "--out", str(tmp_path)]) == 0
    finally:
        signal.signal(signal.SIGHUP, handler_before)


@pytest.fixture
def measuring_verb(
    golden_session: OCRSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> list[str]:
    """The options of a verb that measures three quick repeats, in an empty folder."""
    monkeypatch.setattr("ocr_phases.cli.measuring.load_session", lambda arguments: golden_session)
    monkeypatch.setattr("ocr_phases.session.kept.kept_session", lambda **options: golden_session)
    monkeypatch.chdir(tmp_path)
    options = ["--preset=tiny", "--max-new-tokens=2", "--warmup=0", "--repeats=3"]
    return [PAGE, *options, "--no-ceilings", "--no-token-probabilities"]


def signal_after_one_repeat(monkeypatch: pytest.MonkeyPatch, name: str, times: int) -> int:
    """Send this process a signal, so many times, when one repeat is done; gives its number."""
    number = signal.Signals[name]
    update = Bar.update

    def update_and_signal(bar: Bar, tokens: Any) -> None:
        if tokens and bar.n >= 2:  # one repeat is done
            for _ in range(times):
                send_signal(number)
        update(bar, tokens)

    monkeypatch.setattr(Bar, "update", update_and_signal)
    return number


@pytest.mark.parametrize(
    ("verb", "name", "times"), [("profile", "SIGINT", 1), ("verify", "SIGTERM", 2)]
)
def test_signals_keep_the_finished_repeats(
    verb: str,
    name: str,
    times: int,
    measuring_verb: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    number = signal_after_one_repeat(monkeypatch, name, times)

    assert main([verb, *measuring_verb, "--json"]) == 128 + number

    printed = capsys.readouterr()
    result = json.loads(printed.out)
    assert "1 of 3 runs done" in printed.err  # without a terminal, a line a finished run
    assert result["exit_code"] == 128 + number
    assert result["repeats"] == 1
    assert result["record"] == "run.json"
    assert printed.err.splitlines()[-1] == f"ocr-phases: {result['exit_reason']}"
    assert PhaseRun.load("run.json").request.repeats == 1


def test_signals_keep_the_finished_repeats_of_a_report(
    measuring_verb: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    number = signal_after_one_repeat(monkeypatch, "SIGHUP", times=2)

    assert main(["report", *measuring_verb]) == 128 + number

    assert "1 of 3 runs done" in capsys.readouterr().err
    (record,) = tmp_path.rglob("run.json")
    assert PhaseRun.load(record).request.repeats == 1
