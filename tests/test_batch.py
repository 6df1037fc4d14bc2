"""A batch whatever happens: every page accounted for exactly once, nothing lost and nothing half written."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import random
import signal
import sys
import threading
import time
from pathlib import Path

import pytest
from batch_example import QUICK, STUB, children, jobs, make_pages, measure, start_driver, statuses, wait_for
from conftest import PAGES
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused

from ocr_phases.batch import driver
from ocr_phases.batch.child import Child, Outcome
from ocr_phases.batch.jobs import Job
from ocr_phases.batch.store import finished, read_listing
from ocr_phases.cli import main
from ocr_phases.errors import OcrPhasesError
from ocr_phases.files import only_writer

#: What happens at a page, its kind of failure (None: it is measured) and what its reason tells.
OUTCOMES = (
    ("ok", None, ""),
    ("bad", "the page cannot be read", "page-1.png is no image"),
    ("raise", "unexpected error", "ValueError: something"),
    ("memory", "out of memory", "asked for too much"),
    ("kill", "the worker died", "SIGKILL"),
    ("sleep", "timeout", "More than 0.4 s"),
    ("ok ", None, ""),
)


def test_every_failure_has_its_reason_and_stops_no_other_page(tmp_path):
    pages = make_pages(tmp_path / "in", *(word for word, _, _ in OUTCOMES))
    counts = measure(pages, tmp_path / "out", timeout=0.4, retries=0)
    assert (counts.done, counts.failed, counts.pages) == (2, 5, 7)
    found = list(statuses(tmp_path / "out").values())
    for status, (_, failure, reason) in zip(found, OUTCOMES, strict=True):
        assert (status["state"], status["failure"]) == ("failed" if failure else "done", failure)
        assert reason in status["reason"]
    assert "something nobody thought of" in found[2]["attempts"][0].stderr


def test_failures_are_retried_as_often_as_asked(tmp_path):
    pages = make_pages(tmp_path / "in", "kill 2", "bad", "ok")
    assert measure(pages, tmp_path / "out", retries=2).failed == 1
    found = statuses(tmp_path / "out").values()
    attempts = [[attempt.failure for attempt in status["attempts"]] for status in found]
    assert attempts == [["died", "died", None], ["page"], [None]]


def test_the_same_command_keeps_what_is_finished_and_tries_the_rest_again(tmp_path):
    pages, out = make_pages(tmp_path / "in", "ok", "bad", "ok", "ok", "full"), tmp_path / "out"
    with pytest.raises(OcrPhasesError):  # a full disk ends the batch
        measure(pages, out)
    before = statuses(out)
    assert finished(out / jobs(pages)[0].folder, jobs(pages)[0].id)
    (pages / "page-1.png").write_text("ok now")  # mended
    (pages / "page-2.png").write_text("ok  and another page")
    (pages / "page-4.png").write_text("ok again")
    (out / jobs(pages)[3].folder / "run.json").unlink()
    counts = measure(pages, out)
    assert (counts.kept, counts.done, counts.failed) == (1, 4, 0)
    after = statuses(out)
    assert after["page-0.png"] == before["page-0.png"]
    assert {status["state"] for status in after.values()} == {"done"}


@pytest.mark.parametrize("change", ["setting", "version", "content", "name"])
def test_a_job_is_known_by_all_it_depends_on_and_not_by_its_folder(change, tmp_path):
    make_pages(tmp_path / "in", "ok")
    (job,) = jobs(tmp_path / "in")
    assert Job(**json.loads(json.dumps(vars(job)))) == job
    moved = (tmp_path / "in").rename(tmp_path / "moved")
    assert jobs(moved)[0].id == job.id
    if change == "content":
        (moved / "page-0.png").write_text("other")
    if change == "name":
        (moved / "page-0.png").rename(moved / "other.png")
    (other,) = jobs(moved, **({"max_new_tokens": 9} if change == "setting" else {}))
    if change == "version":
        other = Job(**{**vars(job), "versions": {**job.versions, "torch": "0.1"}})
    assert other.id != job.id
    assert other.folder != job.folder


@settings(max_examples=50)
@given(name=st.text(min_size=1, max_size=300), number=st.integers(0, 99))
def test_a_page_of_any_name_has_a_folder_of_its_own_below_pages(name, number):
    one, two = (Job(text, text, "ab", {"model": "tiny"}, {}, None) for text in (name, f"{name}{number}"))
    assert one.folder != two.folder
    first, second, last = one.folder.split("/")
    assert (first, second) == ("pages", one.id[:2])
    assert len(last.encode()) < 255
    assert not last.startswith(".")


def test_pages_that_all_fail_alike_from_the_start_stop_the_batch(tmp_path, monkeypatch):
    monkeypatch.setattr(driver, "GIVE_UP_AFTER", 3)
    pages = make_pages(tmp_path / "in", *["memory"] * 4)
    with refused():
        measure(pages, tmp_path / "out", retries=0)
    pages = make_pages(tmp_path / "in", "ok", "raise", "raise", "bad", "raise")
    assert measure(pages, tmp_path / "out", retries=0).failed == 4
    counts = measure(pages, tmp_path / "out", retries=0)  # what is kept proves as much
    assert (counts.kept, counts.failed) == (1, 4)


def test_a_worker_that_fails_page_after_page_stops_the_batch(tmp_path, monkeypatch):
    monkeypatch.setattr(driver, "GIVE_UP_AFTER", 3)
    pages, out = make_pages(tmp_path / "in", "ok", "raise", "kill", "raise", "ok"), tmp_path / "out"
    for _ in range(2):  # at the second time a page is kept
        with refused() as caught:
            measure(pages, out, retries=0)
        assert "--timeout" not in str(caught.value)
    assert len(list(read_listing(out))) >= 4  # what is finished can be shown
    assert not list(out.glob(".*"))


def test_pages_that_take_too_long_one_after_another_say_what_would_help(tmp_path, monkeypatch):
    monkeypatch.setattr(driver, "GIVE_UP_AFTER", 2)
    pages = make_pages(tmp_path / "in", "ok", "sleep", "sleep")
    with refused():
        measure(pages, tmp_path / "out", retries=0, timeout=0.1)


def test_a_second_driver_on_the_same_folder_is_refused(tmp_path, capsys):
    with only_writer(tmp_path):
        assert main(["batch", str(PAGES / "slide.png"), "--out", str(tmp_path), *QUICK]) == 2
    assert "is being written into" in capsys.readouterr().err


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EOPNOTSUPP, errno.EIO])
def test_a_file_system_without_locks_gives_a_warning_and_not_a_second_driver(code, tmp_path, monkeypatch):
    def no_lock(handle: int, how: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("fcntl.flock", no_lock)
    if code == errno.EIO:
        with refused(), only_writer(tmp_path):
            pass
        return
    with pytest.warns(UserWarning, match="without locks"), only_writer(tmp_path):
        (tmp_path / "written").touch()
    assert [path.name for path in tmp_path.iterdir()] == ["written"]


# -- workers and drivers that die, and answers that come late --------------------------------------------


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
