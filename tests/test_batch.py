"""A batch whatever happens: every page accounted for exactly once, nothing lost and nothing half
written.
"""

import contextlib
import errno
import itertools
import json
import os
import signal
import sys

import psutil
import pytest
from batch_example import (
    QUICK,
    STUB,
    jobs,
    listening,
    make_pages,
    measure,
    start_driver,
    statuses,
    wait_for,
)
from conftest import PAGES
from hypothesis import example, given, settings
from hypothesis import strategies as st
from refusals import refused

from ocr_phases.batch import driver
from ocr_phases.batch.archive import read_listing
from ocr_phases.batch.jobs import Job
from ocr_phases.batch.worker_process import WorkerProcess
from ocr_phases.cli import main
from ocr_phases.files import only_writer
from ocr_phases.record.store import take

#: What happens at a page, how each attempt fails (None: it is measured) and what its reason tells.
OUTCOMES = {
    "ok": ([None], ""),
    "bad": (["page"], "page-1.png is no image"),
    "raise": (["error"] * 2, "ValueError: something"),
    "memory": (["memory"] * 2, "asked for too much"),
    "kill": (["died"] * 2, "SIGKILL"),
    "sleep": (["timeout"] * 2, "More than 0.4 s"),
    "kill 1": (["died", None], ""),
}


def test_every_failure_has_its_reason_is_tried_again_and_stops_no_other_page(tmp_path):
    counts = measure(
        make_pages(tmp_path / "in", *OUTCOMES), tmp_path / "out", timeout=0.4, retries=1
    )
    assert (counts.done, counts.failed, counts.pages) == (2, 5, 7)
    ends = statuses(tmp_path / "out").values()
    for status, (failures, reason) in zip(ends, OUTCOMES.values(), strict=True):
        assert [attempt.failure for attempt in status["attempts"]] == failures
        assert status["state"] == ("failed" if status["failure"] else "done")
        assert status["failure"] == driver.FAILURES.get(failures[-1]) and reason in status["reason"]
        if failures[0] == "error":
            assert "something nobody thought of" in status["attempts"][0].stderr
    tries = [each for status in ends for each in status["attempts"]]
    tries.sort(key=lambda each: each.started)
    # One process after another: each stays for the next page until it dies or is in an unknown
    # state.
    gone = [each.failure in ("error", "died", "timeout") for each in tries[:-1]]
    assert [one.worker != next_one.worker for one, next_one in itertools.pairwise(tries)] == gone
    assert (
        len({each.slot for each in tries}) == 1 and tries[0].rss_bytes > 0 < tries[0].seconds < 60
    )


def test_a_job_is_known_by_all_it_depends_on_and_not_by_its_folder(tmp_path):
    (job,) = jobs(make_pages(tmp_path / "in", "ok"))
    moved = (tmp_path / "in").rename(tmp_path / "moved")
    assert jobs(moved)[0].id == job.id
    others = [job, *jobs(moved, max_new_tokens=9)]
    others.append(Job(**{**vars(job), "versions": {**job.versions, "torch": "0.1"}}))
    (moved / "page-0.png").write_text("other")
    others += jobs(moved)
    (moved / "page-0.png").rename(moved / "other.png")
    others += jobs(moved)
    assert len({other.id for other in others}) == len({other.folder for other in others}) == 5


@settings(max_examples=50)
@example(name="n" * 99, number=1)
@given(name=st.text(min_size=1, max_size=300), number=st.integers(0, 99))
def test_a_page_of_any_name_has_a_folder_of_its_own_below_pages(name, number):
    one, two = (
        Job(text, text, "ab", {"model": "tiny"}, {}, None) for text in (name, f"{name}{number}")
    )
    assert one.folder != two.folder
    first, second, last = one.folder.split("/")
    assert (first, second) == ("pages", one.id[:2])
    assert len(last) <= 49 + len(one.id) and len(last.encode()) < 255 and not last.startswith(".")


#: Pages after which going on makes no sense.
HOPELESS = {
    "a full disk": ["ok", "full", "ok"],
    "alike from the start": ["memory", "memory", "ok"],
    "one after another": ["ok", "raise", "kill", "ok"],
    "too slow": ["ok", "sleep", "sleep"],
}


@pytest.mark.parametrize("kind", HOPELESS)
def test_pages_that_fail_one_after_another_stop_the_batch(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(driver, "GIVE_UP_AFTER", 2)
    pages, out = make_pages(tmp_path / "in", *HOPELESS[kind]), tmp_path / "out"
    for _ in range(2):  # at the second time a page may be kept
        with refused():
            measure(pages, out, retries=0, timeout=0.3)
    assert len(list(read_listing(out))) == len(HOPELESS[kind])  # what is finished can be shown
    assert not list(out.glob(".*"))


def test_what_went_well_or_is_kept_or_the_page_s_fault_proves_a_worker_sound(tmp_path, monkeypatch):
    monkeypatch.setattr(driver, "GIVE_UP_AFTER", 2)
    pages, out = make_pages(tmp_path / "in", "ok", "raise", "bad", "raise"), tmp_path / "out"
    assert measure(pages, out, retries=0).failed == 3
    counts = measure(pages, out, retries=0)
    assert (counts.kept, counts.failed) == (1, 3)


def test_a_second_driver_on_the_same_folder_is_refused(tmp_path, capsys):
    with only_writer(tmp_path):
        assert main(["batch", str(PAGES / "slide.png"), "--out", str(tmp_path), *QUICK]) == 2
    assert "is being written into" in capsys.readouterr().err


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EIO])
def test_a_file_system_without_locks_gives_a_warning_and_not_a_second_driver(
    code, tmp_path, monkeypatch
):
    def no_lock(handle: int, how: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("fcntl.flock", no_lock)
    expected = refused() if code == errno.EIO else pytest.warns(UserWarning, match="without locks")
    with expected, only_writer(tmp_path):
        (tmp_path / "written").touch()
    left = ".ocr_phases.lock" if code == errno.EIO else "written"
    assert [path.name for path in tmp_path.iterdir()] == [left]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_batch_stopped_in_the_middle_of_pages_loses_nothing_and_leaves_nobody(number, tmp_path):
    out, words = tmp_path / "out", ["wait", "slow", "slow", "slow", "bad", "kill 1"]
    pages = make_pages(tmp_path / "in", *words)
    process = start_driver(tmp_path, "--workers", "2")
    wait_for((pages / "page-0.began").exists)
    wait_for(lambda: list(out.rglob("status.json")))
    wait_for(lambda: len(psutil.Process(process.pid).children()) == 2)
    workers, found = psutil.Process(process.pid).children(), listening(process.pid)
    assert any("batch_stub" in one for one in found) and not any(found.values())
    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    wait_for(lambda: not any(worker.is_running() for worker in workers))
    if number == signal.SIGINT:
        assert process.returncode == 130
        *progress, stopped = said.splitlines()
        assert len(progress) <= 1 and all(line.startswith("Measuring: ") for line in progress)
        assert stopped == "ocr-phases: stopped."
        assert "stopped early" in (out / "index.html").read_text()
    states = {path: path.read_text() for path in out.glob("pages/*/*/status.json")}
    done = {path: text for path, text in states.items() if json.loads(text)["state"] == "done"}
    assert len(states) > 0 and len(done) < 5
    counts = measure(pages, out)
    assert (counts.kept, counts.done, counts.failed) == (len(done), 5 - len(done), 1)
    assert {path: path.read_text() for path in done} == done  # none was measured twice
    found_states = {name: status["state"] for name, status in statuses(out).items()}
    ends = {f"page-{n}.png": "failed" if word == "bad" else "done" for n, word in enumerate(words)}
    assert found_states == ends
    assert len(list(out.glob("pages/*/*/status.json"))) == 6 and not list(out.glob("pages/*/*/.*"))


def test_the_files_of_an_attempt_take_the_place_of_older_ones(tmp_path):
    for place, text in ((tmp_path, "old"), (tmp_path / ".attempt-1", "new")):
        (place / "images").mkdir(parents=True)
        for name in ("run.json", "images/0.jpg"):
            (place / name).write_text(text)
    (tmp_path / "images" / "1.jpg").touch()
    take(tmp_path, ".attempt-1")
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["0.jpg", "images", "run.json"]
    assert {path.read_text() for path in tmp_path.rglob("*.*")} == {"new"}
    with refused():
        take(tmp_path, ".attempt-1")


def test_a_worker_that_dies_between_two_pages_fails_neither(tmp_path):
    first, second = jobs(make_pages(tmp_path / "in", "ok", "ok"))
    outcomes = []
    with contextlib.closing(WorkerProcess(command=STUB)) as child:
        for job in (first, second):
            request = {"job": dict(vars(job)), "folder": str(tmp_path / "out" / job.folder)}
            outcomes.append(child.run(request, 30.0))
            child.process.kill()
            child.process.wait()
    assert [outcome.failure for outcome in outcomes] == [None, None]
    assert len({outcome.worker for outcome in outcomes}) == 2


#: What a worker does in place of its work, and what its death is told by.
DEATHS = {
    (
        "import os; os.read(0, 9); os.write(0, (20).to_bytes(4, 'big') + b'{\"pages\": 1')"
    ): "exit code 0",
    "import no_such_module_here": "exit code 1",
    # A process that it started holds its pipe.
    (
        "import subprocess, sys; subprocess.Popen(['sleep', '100'], stdin=-3); sys.exit(3)"
    ): "exit code 3",
}


@pytest.mark.parametrize("program", DEATHS)
def test_an_answer_cut_short_or_none_is_a_death_that_says_why(program):
    outcome = WorkerProcess(command=[sys.executable, "-c", program]).run({"job": {}}, 30.0)
    assert outcome.failure == "died" and DEATHS[program] in outcome.reason
    if "no_such" in program:
        assert "no_such_module_here" in outcome.reason
        assert outcome.stderr.splitlines()[0].startswith("Traceback")


def test_a_worker_imports_nothing_from_the_current_folder(tmp_path, monkeypatch):
    (tmp_path / "timeit.py").write_text("raise IndexError('not the standard library')")
    monkeypatch.chdir(tmp_path)
    with contextlib.closing(WorkerProcess()) as child:
        assert child.run({"mode": "count", "source": str(PAGES / "slide.png")}).pages == 1
