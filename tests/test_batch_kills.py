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
def test_driver_and_workers_killed_at_random_moments_lose_nothing(tmp_path):
    chance = random.Random(5)
    words = [("ok", "ok", "ok", "bad", "kill 1")[number % 5] for number in range(60)]
    make_pages(tmp_path / "in", *words)
    for _ in range(3):
        process = start_driver(tmp_path)
        workers = wait_for(lambda process=process: children(process.pid))
        before = len(list((tmp_path / "out").rglob("status.json")))
        wait_for(lambda before=before: len(list((tmp_path / "out").rglob("status.json"))) > before)
        time.sleep(chance.uniform(0.0, 0.2))
        for victim in (workers[0], process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
        process.wait()
        for path in (tmp_path / "out").rglob("*.json"):
            # The other worker may still write into its attempt's hidden folder.
            if not any(part.startswith(".") for part in path.relative_to(tmp_path).parts):
                json.loads(path.read_text())
    counts = measure(tmp_path / "in", tmp_path / "out")
    assert (counts.pages, counts.failed) == (60, 12)
    assert 0 < counts.kept < 60
    found = statuses(tmp_path / "out")
    assert len(found) == 60
    for number, word in enumerate(words):
        assert (found[f"page-{number}.png"]["state"] == "failed") == (word == "bad")
    names = [entry["page"] for entry in read_listing(tmp_path / "out")]
    assert sorted(names) == sorted(set(names))
    assert not list((tmp_path / "out").glob("pages/*/*/.*"))
    assert len(list((tmp_path / "out").glob("pages/*/*/status.json"))) == 60


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
        child.stop()
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
        child.stop()
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
        child.stop()
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
        child.stop()
