"""Progress on stderr, and Ctrl-C that keeps the repeats that are finished."""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
from types import SimpleNamespace

import pytest
from conftest import PAGES

from ocr_phases import PhaseRun
from ocr_phases.cli import main
from ocr_phases.cli.measuring import Bar, watched

PAGE = str(PAGES / "slide.png")


def test_without_a_terminal_each_finished_run_is_a_line(capsys):
    def measure(progress, on_tokens):
        for done in range(3):
            progress(done, 2)
            on_tokens(done, [[1, 2]])

    watched(argparse.Namespace(), measure, 8)
    lines = capsys.readouterr().err.splitlines()
    assert [re.findall(r"(\d+/16|\d of \d runs done)", line) for line in lines] == [
        ["8/16", "1 of 2 runs done"],
        ["16/16", "2 of 2 runs done"],
    ]


def test_a_log_gets_a_line_now_and_then_of_what_this_command_did(capsys, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr("tqdm.std.time", lambda: clock[0])
    with Bar(1000, "page", "Measuring") as bar:
        clock[0] = 20.0
        bar.tell(300, 0, "0 failed, waiting for a worker")  # the clock starts after it
        clock[0] = 90.0
        bar.tell(400, 100, "3 failed")  # 300 of them were there
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    for part in ("Measuring:  40%", "400/1000", "01:30<09:00", "1.11page/s", "3 failed"):
        assert part in lines[0]


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


@pytest.mark.parametrize(
    ("verb", "name", "times"),
    [("profile", "SIGINT", 1), ("verify", "SIGTERM", 2), ("report", "SIGHUP", 2)],
)
def test_signals_keep_the_finished_repeats(verb, name, times, tiny_session, tmp_path, monkeypatch, capsys):
    number = signal.Signals[name]

    def update(bar: Bar, tokens: int) -> None:
        if tokens and bar.n >= 4:  # one repeat is done
            for _ in range(times):
                os.kill(os.getpid(), number)
        told(bar, tokens)

    told = Bar.update
    monkeypatch.setattr(Bar, "update", update)
    monkeypatch.setattr("ocr_phases.cli.measuring.load_session", lambda arguments: tiny_session)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("ocr_phases.session.kept_session", lambda **options: tiny_session)
    options = ["--preset", "tiny", "--max-new-tokens", "4", "--warmup", "0", "--repeats", "3"]
    options += ["--no-ceilings"] if verb == "report" else ["--no-ceilings", "--json"]
    assert main([verb, PAGE, *options]) == 128 + number
    said = capsys.readouterr()
    if verb != "report":
        result = json.loads(said.out)
        assert (result["exit_code"], result["repeats"], result["record"]) == (128 + number, 1, "run.json")
        assert said.err.splitlines()[-1] == f"ocr-phases: {result['exit_reason']}"
    (record,) = tmp_path.rglob("run.json")
    assert PhaseRun.load(record).request["repeats"] == 1


@pytest.mark.parametrize("where", ["as_json", "refuse_idle"])
def test_a_signal_while_a_command_starts_or_ends_is_no_traceback(where, monkeypatch):
    def killed(*args, **options):
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(f"ocr_phases.cli.{where}", killed)
    assert main(["artifacts", "x.json", "--json"]) == 143
