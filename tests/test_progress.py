"""Progress on stderr, and Ctrl-C that keeps the repeats that are finished."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys

import pytest
from conftest import PAGES

from ocr_phases import PhaseRun
from ocr_phases.cli import main, progress
from ocr_phases.cli.progress import Bar, Watch, watching
from ocr_phases.errors import Stopped

PAGE = str(PAGES / "slide.png")


def test_without_a_terminal_each_finished_run_is_a_line(capsys):
    watch = Watch(1, 8)
    for done in range(4):
        watch.progress(done, 3)
        watch.on_tokens(done - 1, [[1, 2]])
    lines = capsys.readouterr().err.splitlines()
    assert [line.partition(" done in ")[0] for line in lines] == [
        "Warm-up 1 of 1",
        "Repeat 1 of 2",
        "Repeat 2 of 2",
    ]


def test_a_log_gets_a_line_now_and_then_of_what_this_command_did(capsys, monkeypatch):
    with Bar(1000, "page", "Measuring") as bar:
        began = bar.start_t
        for seconds, *told in (
            (20.0, 300, 0, "0 failed, waiting for a worker"),  # the clock starts after it
            (90.0, 400, 100, "3 failed"),  # 300 of them were there
        ):
            monkeypatch.setattr(bar, "_time", lambda seconds=seconds: began + seconds)
            bar.tell(*told)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    for part in ("Measuring:  40%", "400/1000", "01:30<09:00", "1.11page/s", "3 failed"):
        assert part in lines[0]


def test_a_bar_on_a_terminal_goes_at_the_end(monkeypatch, capsys):
    monkeypatch.setattr(progress.sys.stderr, "isatty", lambda: True, raising=False)
    with Bar(2, "token") as bar:
        bar.tell(1, 1, "1 of 2 runs done")
        bar.refresh()
    said = capsys.readouterr().err
    assert "1 of 2 runs done" in said and said.endswith("\r") and "\n" not in said


def test_the_first_signal_waits_only_where_a_repeat_is_finished():
    before = signal.getsignal(signal.SIGINT)
    with watching(1, 8) as watch:
        watch.progress(1, 3)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        watch.progress(2, 3)
        os.kill(os.getpid(), signal.SIGINT)
        with pytest.raises(Stopped):
            watch.on_tokens(1, [[1]])
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert watch.asked == signal.SIGINT
    assert signal.getsignal(signal.SIGINT) == before


@pytest.mark.parametrize(
    ("verb", "name", "times"),
    [
        ("profile", "SIGINT", 1),
        ("profile", "SIGHUP", 2),
        ("verify", "SIGTERM", 2),
        ("report", "SIGHUP", 1),
        ("report", "SIGINT", 2),
    ],
)
def test_signals_keep_the_finished_repeats(verb, name, times, tiny_session, tmp_path, monkeypatch, capsys):
    number = signal.Signals[name]

    def on_tokens(watch: Watch, repeat: int, new: list[list[int]]) -> None:
        if repeat == 1:
            for _ in range(times):
                os.kill(os.getpid(), number)
        told(watch, repeat, new)

    told = Watch.on_tokens
    monkeypatch.setattr(Watch, "on_tokens", on_tokens)
    monkeypatch.setattr("ocr_phases.cli.measuring.load_session", lambda arguments: tiny_session)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("ocr_phases.session.kept_session", lambda **options: tiny_session)
    options = ["--max-new-tokens", "4", "--warmup", "0", "--repeats", "3", "--no-ceilings"]
    options += [] if verb == "report" else ["--json"]
    assert main([verb, PAGE, *options]) == 128 + number
    said = capsys.readouterr()
    if verb != "report":
        result = json.loads(said.out)
        assert (result["exit_code"], result["repeats"], result["record"]) == (128 + number, 1, "run.json")
        assert said.err.splitlines()[-1] == f"ocr-phases: {result['exit_reason']}"
    (record,) = tmp_path.rglob("run.json")
    assert PhaseRun.load(record).request["repeats"] == 1


@pytest.mark.parametrize("part", ["print", "parse"])
def test_a_signal_while_a_command_starts_or_ends_is_no_traceback(part, monkeypatch):
    def killed(*args, **options):
        os.kill(os.getpid(), signal.SIGTERM)

    where = {"print": "ocr_phases.cli._outcome", "parse": "ocr_phases.cli._parser"}[part]
    monkeypatch.setattr(where, killed)
    assert main(["artifacts", "x.json"]) == 143


def test_ctrl_c_ends_a_report_with_the_finished_repeats(tmp_path):
    command = [
        sys.executable,
        "-m",
        "ocr_phases.cli",
        "report",
        PAGE,
        "--out",
        str(tmp_path),
        "--no-ceilings",
    ]
    command += ["--repeats", "1000", "--warmup", "0", "--max-new-tokens", "8", "--device", "cpu"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        for line in process.stderr:
            if re.match(r"Repeat \d+ of 1000 done", line):  # on a busy machine not each is seen
                process.send_signal(signal.SIGINT)
                break
        out, err = process.communicate(timeout=240)
    assert process.returncode == 130
    assert "stopped: the result has the finished repeats" in err
    assert out.splitlines()[-1] == f"Wrote {tmp_path / 'slide' / 'report.html'}"
    assert 1 <= PhaseRun.load(tmp_path / "slide" / "run.json").request["repeats"] < 1000
