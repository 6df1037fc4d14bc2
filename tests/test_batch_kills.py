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
from batch_example import STUB, children, jobs, make_pages, measure, start_driver, statuses, wait_for
from conftest import PAGES

from ocr_phases.batch.child import Child, Outcome
from ocr_phases.batch.store import read_listing


def test_a_worker_ends_with_its_driver_in_the_middle_of_a_page(tmp_path):
    make_pages(tmp_path / "in", "sleep")
    process = start_driver(tmp_path)
    worker = wait_for(lambda: children(process.pid))
    time.sleep(0.3)
    process.kill()
    process.wait()
    wait_for(lambda: all(not Path(f"/proc/{pid}").exists() for pid in worker))


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds processes in /proc")
def test_a_batch_of_15_pages_with_two_workers_killed_twice_loses_nothing(tmp_path):
    chance, out = random.Random(5), tmp_path / "out"
    words = [("slow", "slow", "slow", "bad", "kill 1")[number % 5] for number in range(15)]
    make_pages(tmp_path / "in", *words)
    done: dict[Path, str] = {}
    for _ in range(2):
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
    assert 0 < len(done) < 12
    counts = measure(tmp_path / "in", out)
    assert (counts.kept, counts.done, counts.failed) == (len(done), 12 - len(done), 3)
    assert {path: path.read_text() for path in done} == done  # none was measured twice
    found = {name: status["state"] for name, status in statuses(out).items()}
    assert found == {f"page-{n}.png": "failed" if word == "bad" else "done" for n, word in enumerate(words)}
    assert [entry["page"] for entry in read_listing(out)] == sorted(found)
    assert not list(out.glob("pages/*/*/.*"))
    assert len(list(out.glob("pages/*/*/status.json"))) == 15


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


def test_a_child_is_warm_and_replaced_when_it_dies_at_a_page_or_between_two(tmp_path):
    pages = jobs(make_pages(tmp_path / "in", "ok", "ok", "kill", "ok", "ok"))
    child, outcomes = Child(command=STUB), []
    try:
        for number, job in enumerate(pages):
            if number == 4:
                assert child.process is not None
                child.process.kill()
                child.process.wait()
            request = {"job": dict(vars(job)), "folder": str(tmp_path / "out" / job.folder)}
            outcomes.append(child.run(request, 30.0))
    finally:
        child.close()
    first, second, died, third, fourth = outcomes
    assert first.worker == second.worker != third.worker != fourth.worker
    assert first.slot == fourth.slot
    assert died.failure == "died" and "SIGKILL" in died.reason
    assert all(one.failure is None and one.rss_bytes > 0 for one in (first, second, third, fourth))


#: What a worker does in place of its work, and what its death is told by.
DEATHS = {
    "import os; os.read(0, 9); os.write(0, (20).to_bytes(4, 'big') + b'{\"pages\": 1')": "exit code 0",
    "import no_such_module_here": "exit code 1",
    # A process that it started holds its pipe.
    "import subprocess, sys; subprocess.Popen(['sleep', '100'], stdin=-3); sys.exit(3)": "exit code 3",
}


@pytest.mark.parametrize("program", DEATHS)
def test_an_answer_cut_short_or_none_is_a_death_that_says_why(program):
    outcome = Child(command=[sys.executable, "-c", program]).run({"job": {}}, 30.0)
    assert outcome.failure == "died" and DEATHS[program] in outcome.reason
    if "no_such" in program:
        assert "no_such_module_here" in outcome.reason
        assert outcome.stderr.splitlines()[0].startswith("Traceback")


def test_a_worker_imports_nothing_from_the_current_folder(tmp_path, monkeypatch):
    (tmp_path / "timeit.py").write_text("raise IndexError('not the standard library')")
    monkeypatch.chdir(tmp_path)
    child = Child()
    try:
        assert child.run({"mode": "count", "source": str(PAGES / "slide.png")}).pages == 1
    finally:
        child.close()
