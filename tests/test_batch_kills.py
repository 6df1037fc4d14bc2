"""Workers and drivers of a batch that die, and answers that come late: nothing is lost or half written."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path

import pytest
from batch_example import (
    STUB,
    children,
    jobs,
    make_pages,
    measure,
    start_driver,
    statuses,
    wait_for,
)
from conftest import PAGES

from ocr_phases.batch.child import Child, Outcome
from ocr_phases.batch.store import read_listing
from ocr_phases.errors import OcrPhasesError
from ocr_phases.store import take


def test_a_worker_ends_with_its_driver_in_the_middle_of_a_page(tmp_path):
    make_pages(tmp_path / "in", "sleep")
    process = start_driver(tmp_path)
    worker = wait_for(lambda: children(process.pid))
    time.sleep(0.3)
    process.kill()
    process.wait()
    wait_for(lambda: all(not Path(f"/proc/{pid}").exists() for pid in worker))


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds processes in /proc")
def test_a_batch_of_20_pages_with_two_workers_killed_three_times_loses_nothing(tmp_path):
    chance, out = random.Random(5), tmp_path / "out"
    words = [("slow", "slow", "slow", "bad", "kill 1")[number % 5] for number in range(20)]
    make_pages(tmp_path / "in", *words)
    done: dict[Path, str] = {}
    for _ in range(3):
        process = start_driver(tmp_path)
        workers = wait_for(lambda process=process: len(children(process.pid)) == 2 and children(process.pid))
        wait_for(lambda: len(list(out.glob("pages/*/*/status.json"))) > len(done))
        time.sleep(chance.uniform(0.0, 0.2))
        for victim in (workers[0], process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
        process.wait()
        # The other worker may still write into its attempt's hidden folder.
        for path in out.glob("pages/*/*/[!.]*.json"):
            if json.loads(path.read_text()).get("state") == "done":
                done[path] = path.read_text()
    assert 0 < len(done) < 16
    counts = measure(tmp_path / "in", out)
    assert (counts.kept, counts.done, counts.failed) == (len(done), 16 - len(done), 4)
    assert {path: path.read_text() for path in done} == done  # none was measured twice
    found = statuses(out)
    assert [(name, status["state"]) for name, status in sorted(found.items())] == sorted(
        (f"page-{number}.png", "failed" if word == "bad" else "done") for number, word in enumerate(words)
    )
    assert [entry["page"] for entry in read_listing(out)] == sorted(found)
    assert not list(out.glob("pages/*/*/.*"))
    assert len(list(out.glob("pages/*/*/status.json"))) == 20


def test_a_late_attempt_changes_nothing(tmp_path):
    pages, out = make_pages(tmp_path / "in", "wait"), tmp_path / "out"
    (job,) = jobs(pages)
    folder = out / job.folder
    late: list[Outcome] = []
    child = Child(command=STUB)
    request = {"job": dict(vars(job)), "folder": str(folder.resolve())}
    orphan = threading.Thread(target=lambda: late.append(child.run(request)))
    orphan.start()
    wait_for((pages / "page-0.began").exists)
    try:
        assert measure(pages, out).done == 1  # the next driver's
        record, status = folder / "run.json", (folder / "status.json").read_text()
        known = record.stat()
        (pages / "page-0.go").touch()
        orphan.join(timeout=30.0)
    finally:
        child.close()
    assert late
    assert os.path.samestat(record.stat(), known)
    assert (folder / "status.json").read_text() == status
    assert measure(pages, out).kept == 1


def test_the_files_of_an_attempt_take_the_place_of_older_ones(tmp_path):
    for place, text in ((tmp_path, "old"), (tmp_path / ".attempt-1", "new")):
        (place / "images").mkdir(parents=True)
        for name in ("run.json", "images/0.jpg"):
            (place / name).write_text(text)
    (tmp_path / "images" / "1.jpg").touch()
    take(tmp_path, ".attempt-1")
    found = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*"))
    assert found == ["images", "images/0.jpg", "run.json"]
    assert (tmp_path / "run.json").read_text() == (tmp_path / "images/0.jpg").read_text() == "new"
    with pytest.raises(OcrPhasesError, match="cannot be put in its place .* one file system"):
        take(tmp_path, ".attempt-1")


def test_a_child_is_warm_and_replaced_when_it_dies(tmp_path):
    pages = make_pages(tmp_path / "in", "ok", "ok", "kill", "ok")
    requests = [{"job": dict(vars(job)), "folder": str(tmp_path / "out" / job.folder)} for job in jobs(pages)]
    child = Child(command=STUB)
    try:
        outcomes = [child.run(request, 30.0) for request in requests]
    finally:
        child.close()
    names = [outcome.worker for outcome in outcomes]
    assert names[0] == names[1] != names[3]
    assert outcomes[2].failure == "died" and "SIGKILL" in outcomes[2].reason
    assert all(outcome.rss_bytes > 0 for outcome in outcomes if outcome.failure is None)


def test_a_child_that_died_between_two_pages_costs_no_attempt(tmp_path):
    requests = [
        {"job": dict(vars(job)), "folder": str(tmp_path / "out" / job.folder)}
        for job in jobs(make_pages(tmp_path / "in", "ok", "ok"))
    ]
    child = Child(command=STUB)
    try:
        first = child.run(requests[0], 30.0)
        assert child.process is not None
        child.process.kill()
        child.process.wait()
        second = child.run(requests[1], 30.0)
    finally:
        child.close()
    assert (first.failure, second.failure) == (None, None)
    assert first.worker != second.worker
    assert first.slot == second.slot


def test_an_answer_that_is_cut_short_is_a_death():
    begun = "import os; os.read(0, 9); os.write(0, (20).to_bytes(4, 'big') + b'{\"pages\": 1')"
    outcome = Child(command=[sys.executable, "-c", begun]).run({"job": {}}, 30.0)
    assert outcome.failure == "died" and "exit code 0" in outcome.reason


def test_a_worker_that_cannot_start_says_why(tmp_path):
    child = Child(command=[sys.executable, "-c", "import no_such_module_here"])
    outcome = child.run({"job": {}})
    assert outcome.failure == "died"
    assert "exit code 1" in outcome.reason and "no_such_module_here" in outcome.reason
    assert outcome.stderr.splitlines()[0].startswith("Traceback")


def test_a_worker_that_died_is_noticed_though_a_process_it_started_holds_its_pipe():
    program = "import subprocess, sys; subprocess.Popen(['sleep', '100'], stdin=-3); sys.exit(3)"
    child = Child(command=[sys.executable, "-c", program])
    assert "exit code 3" in child.run({"job": {}}).reason


def test_a_worker_imports_nothing_from_the_current_folder(tmp_path, monkeypatch):
    (tmp_path / "timeit.py").write_text("raise IndexError('not the standard library')")
    monkeypatch.chdir(tmp_path)
    child = Child()
    try:
        assert child.run({"mode": "count", "source": str(PAGES / "slide.png")}).pages == 1
    finally:
        child.close()
