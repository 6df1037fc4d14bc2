"""A batch whatever happens: every page accounted for exactly once, nothing lost and nothing half
written.
"""

import contextlib
import errno
import itertools
import json
import os
import platform
import signal
import sys
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from batch_example import (
    QUICK,
    STUB,
    has_ended,
    jobs,
    listening,
    make_pages,
    measure,
    start_driver,
    statuses,
    wait_for,
)
from batch_stub import BUSY
from conftest import PAGES
from hypothesis import example, given, settings
from hypothesis import strategies as st
from refusals import refused

from ocr_phases.batch import driver
from ocr_phases.batch.archive import read_listing
from ocr_phases.batch.driver import PageCounts
from ocr_phases.batch.jobs import Job
from ocr_phases.batch.local_workers import LocalWorkers
from ocr_phases.batch.outcome import Outcome
from ocr_phases.batch.worker_process import WorkerProcess
from ocr_phases.cli import main
from ocr_phases.files import only_writer
from ocr_phases.record.store import take


@dataclass(frozen=True)
class PageOutcome:
    """What happens at a page of the stub.

    ``word`` is the page's text, ``failures`` how each attempt fails (None: it is measured), and
    ``reason`` what the page's reason tells.
    """

    word: str
    failures: list[str | None]
    reason: str = ""


OUTCOMES = [
    PageOutcome("ok", [None]),
    PageOutcome("bad", ["page"], "page-1.png is no image"),
    PageOutcome("raise", ["error", "error"], "ValueError: something"),
    PageOutcome("memory", ["memory", "memory"], "asked for too much"),
    PageOutcome("kill", ["died", "died"], "SIGKILL"),
    PageOutcome("sleep", ["timeout", "timeout"], "More than 0.4 s"),
    PageOutcome("kill 1", ["died", None]),
]


def test_every_failure_has_its_reason_is_tried_again_and_stops_no_other_page(
    tmp_path: Path,
) -> None:
    out = tmp_path / "out"
    pages = make_pages(tmp_path / "in", *[outcome.word for outcome in OUTCOMES])

    counts = measure(pages, out, timeout=0.4, retries=1)

    assert counts.pages == 7
    assert counts.done == 2
    assert counts.failed == 5
    attempts = []
    for status, expected in zip(statuses(out).values(), OUTCOMES, strict=True):
        assert [attempt.failure for attempt in status["attempts"]] == expected.failures
        assert status["state"] == ("failed" if status["failure"] else "done")
        assert status["failure"] == driver.FAILURES.get(expected.failures[-1])
        assert expected.reason in status["reason"]
        if expected.word == "raise":
            assert "something nobody thought of" in status["attempts"][0].stderr
        attempts += status["attempts"]

    # One process after another: each stays for the next page until it dies or is in an unknown
    # state.
    attempts.sort(key=lambda attempt: attempt.started)
    for attempt, following in itertools.pairwise(attempts):
        is_replaced = attempt.failure in ("error", "died", "timeout")
        assert (attempt.worker != following.worker) == is_replaced
    assert len({attempt.slot for attempt in attempts}) == 1
    assert attempts[0].rss_bytes > 0
    assert 0 < attempts[0].seconds < 60


def test_a_job_is_known_by_all_it_depends_on_and_not_by_its_folder(tmp_path: Path) -> None:
    (job,) = jobs(make_pages(tmp_path / "in", "ok"))

    moved = (tmp_path / "in").rename(tmp_path / "moved")
    (after_move,) = jobs(moved)
    assert after_move.id == job.id

    (with_another_setting,) = jobs(moved, max_new_tokens=9)
    of_another_torch = Job(**{**vars(job), "versions": {**job.versions, "torch": "0.1"}})
    page = moved / "page-0.png"
    page.write_text("other")
    (with_another_content,) = jobs(moved)
    page.rename(moved / "other.png")
    (with_another_name,) = jobs(moved)
    different = [
        job,
        with_another_setting,
        of_another_torch,
        with_another_content,
        with_another_name,
    ]
    assert len({each.id for each in different}) == 5
    assert len({each.folder for each in different}) == 5


@settings(max_examples=50)
@example(name="n" * 99, number=1)
@given(name=st.text(min_size=1, max_size=300), number=st.integers(0, 99))
def test_a_page_of_any_name_has_a_folder_of_its_own_below_pages(name: str, number: int) -> None:
    longer_name = f"{name}{number}"
    job = Job(name, name, "ab", {"model": "tiny"}, {}, None)
    other = Job(longer_name, longer_name, "ab", {"model": "tiny"}, {}, None)

    top, prefix, folder = job.folder.split("/")

    assert job.folder != other.folder
    assert top == "pages"
    assert prefix == job.id[:2]
    assert len(folder) <= 49 + len(job.id)
    assert len(folder.encode()) < 255
    assert not folder.startswith(".")


#: Pages after which going on makes no sense.
HOPELESS = {
    "a full disk": ["ok", "full", "ok"],
    "alike from the start": ["memory", "memory", "ok"],
    "one after another": ["ok", "raise", "kill", "ok"],
    "too slow": ["ok", "sleep", "sleep"],
}


@pytest.fixture
def give_up_after_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two pages that fail one after another stop a batch."""
    monkeypatch.setattr(driver, "GIVE_UP_AFTER", 2)


def test_a_batch_in_which_pages_went_well_outlasts_any_number_that_fail_alike() -> None:
    counts = PageCounts(kept=1, done=1)
    cut_off = Outcome(failure="page", reason="The image is cut off.")

    for number in range(2 * driver.GIVE_UP_AFTER):
        counts.judge(cut_off, f"page {number}", is_last=True)

    assert not counts.alike


def test_closed_workers_begin_no_page_that_waited_for_its_turn() -> None:
    workers = LocalWorkers(command=STUB)
    begun = workers.submit({}, None)  # its process takes longer to start than this test
    waiting = workers.submit({}, None)

    workers.close()

    assert begun.done()
    assert waiting.cancelled()


@pytest.mark.usefixtures("give_up_after_two")
@pytest.mark.parametrize("kind", HOPELESS)
def test_pages_that_fail_one_after_another_stop_the_batch(kind: str, tmp_path: Path) -> None:
    words = HOPELESS[kind]
    pages = make_pages(tmp_path / "in", *words)
    out = tmp_path / "out"

    for _ in range(2):  # at the second time a page may be kept
        with refused():
            measure(pages, out, retries=0, timeout=0.3)

    assert len(list(read_listing(out))) == len(words)  # what is finished can be shown
    assert not list(out.glob(".*"))


@pytest.mark.usefixtures("give_up_after_two")
def test_what_went_well_or_is_kept_or_the_pages_fault_proves_a_worker_sound(
    tmp_path: Path,
) -> None:
    pages = make_pages(tmp_path / "in", "ok", "raise", "bad", "raise")
    out = tmp_path / "out"

    first = measure(pages, out, retries=0)
    second = measure(pages, out, retries=0)

    assert first.failed == 3
    assert second.kept == 1
    assert second.failed == 3


def test_a_batch_says_once_that_its_machine_is_too_busy(tmp_path: Path) -> None:
    make_pages(tmp_path / "in", "ok", "busy", "busy")

    _, errors = start_driver(tmp_path).communicate()

    assert [line for line in errors.splitlines() if line.endswith(BUSY)] == [
        f"On {platform.node()}: {BUSY}"
    ]


def test_a_second_driver_on_the_same_folder_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with only_writer(tmp_path):
        code = main(["batch", str(PAGES / "slide.png"), "--out", str(tmp_path), *QUICK])

    assert code == 2
    assert "is being written into" in capsys.readouterr().err


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.EIO])
def test_a_file_system_without_locks_gives_a_warning_and_not_a_second_driver(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_lock(handle: int, how: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("fcntl.flock", no_lock)
    if code == errno.EIO:
        expected = refused()
        file_left = ".ocr_phases.lock"
    else:
        expected = pytest.warns(UserWarning, match="without locks")
        file_left = "written"

    with expected, only_writer(tmp_path):
        (tmp_path / "written").touch()

    assert [path.name for path in tmp_path.iterdir()] == [file_left]


#: What the stub's pages do while a batch is stopped; all but ``bad`` can be measured.
STOPPED_PAGES = ["wait", "slow", "slow", "slow", "bad", "kill 1"]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_batch_stopped_in_the_middle_of_pages_loses_nothing_and_leaves_nobody(
    number: signal.Signals, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    pages = make_pages(tmp_path / "in", *STOPPED_PAGES)
    process = start_driver(tmp_path, "--workers", "2")
    wait_for((pages / "page-0.began").exists)
    wait_for(lambda: list(out.rglob("status.json")))
    wait_for(lambda: len(psutil.Process(process.pid).children()) == 2)
    workers = psutil.Process(process.pid).children()
    sockets = listening(process.pid)
    assert any("batch_stub" in command for command in sockets)
    assert not any(sockets.values())

    process.send_signal(number)
    _, said = process.communicate(timeout=60)
    wait_for(lambda: all(has_ended(worker) for worker in workers))
    if number == signal.SIGINT:
        assert process.returncode == 130
        *progress, stopped = said.splitlines()
        assert len(progress) <= 1
        assert all(line.startswith("Measuring: ") for line in progress)
        assert stopped.startswith("ocr-phases: stopped: the same command goes on")
        assert "stopped early" in (out / "index.html").read_text()
    left = {path: path.read_text() for path in out.glob("pages/*/*/status.json")}
    done = {path: text for path, text in left.items() if json.loads(text)["state"] == "done"}
    assert len(left) > 0
    assert len(done) < 5

    resumed = measure(pages, out)
    assert resumed.kept == len(done)
    assert resumed.done == 5 - len(done)
    assert resumed.failed == 1
    for path, text in done.items():  # none was measured twice
        assert path.read_text() == text
    states = {name: status["state"] for name, status in statuses(out).items()}
    expected = {}
    for page, word in enumerate(STOPPED_PAGES):
        expected[f"page-{page}.png"] = "failed" if word == "bad" else "done"
    assert states == expected
    assert len(list(out.glob("pages/*/*/status.json"))) == 6
    assert not list(out.glob("pages/*/*/.*"))


def test_the_files_of_an_attempt_take_the_place_of_older_ones(tmp_path: Path) -> None:
    attempt = tmp_path / ".attempt-1"
    for place, text in ((tmp_path, "old"), (attempt, "new")):
        (place / "images").mkdir(parents=True)
        (place / "run.json").write_text(text)
        (place / "images" / "0.jpg").write_text(text)
    (tmp_path / "images" / "1.jpg").touch()

    take(tmp_path, attempt.name)

    assert sorted(path.name for path in tmp_path.rglob("*")) == ["0.jpg", "images", "run.json"]
    assert (tmp_path / "run.json").read_text() == "new"
    assert (tmp_path / "images" / "0.jpg").read_text() == "new"
    with refused():
        take(tmp_path, attempt.name)


def test_a_worker_that_dies_between_two_pages_fails_neither(tmp_path: Path) -> None:
    both = jobs(make_pages(tmp_path / "in", "ok", "ok"))
    outcomes = []

    with contextlib.closing(WorkerProcess(command=STUB)) as child:
        for job in both:
            request = {"job": dict(vars(job)), "folder": str(tmp_path / "out" / job.folder)}
            outcomes.append(child.run(request, 30.0))
            child.process.kill()
            child.process.wait()

    first, second = outcomes
    assert first.failure is None
    assert second.failure is None
    assert first.worker != second.worker


#: Programs that a worker runs in place of its work.
CUT_ANSWER = "import os; os.read(0, 9); os.write(0, (20).to_bytes(4, 'big') + b'{\"pages\": 1')"
BAD_IMPORT = "import no_such_module_here"
HELD_PIPE = "import subprocess, sys; subprocess.Popen(['sleep', '100'], stdin=-3); sys.exit(3)"


@pytest.mark.parametrize(
    ("program", "exit_code"),
    [
        pytest.param(CUT_ANSWER, 0, id="answer-cut-short"),
        pytest.param(BAD_IMPORT, 1, id="import-fails"),
        pytest.param(HELD_PIPE, 3, id="child-holds-its-pipe"),
    ],
)
def test_an_answer_cut_short_or_none_is_a_death_that_says_why(program: str, exit_code: int) -> None:
    outcome = WorkerProcess(command=[sys.executable, "-c", program]).run({"job": {}}, 30.0)

    assert outcome.failure == "died"
    assert f"exit code {exit_code}" in outcome.reason
    if program == BAD_IMPORT:
        assert "no_such_module_here" in outcome.reason
        assert outcome.stderr.splitlines()[0].startswith("Traceback")


def test_a_worker_imports_nothing_from_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "timeit.py").write_text("raise IndexError('not the standard library')")
    monkeypatch.chdir(tmp_path)

    with contextlib.closing(WorkerProcess()) as child:
        outcome = child.run({"mode": "count", "source": str(PAGES / "slide.png")})

    assert outcome.pages == 1
