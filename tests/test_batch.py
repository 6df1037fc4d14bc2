"""A batch whatever happens: every page accounted for exactly once, and nothing half written."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from conftest import GOLDEN, PAGES
from hypothesis import given
from hypothesis import strategies as st

from ocr_phases import PhaseRun
from ocr_phases.batch import driver
from ocr_phases.batch.child import Child
from ocr_phases.batch.cluster import DaskPool
from ocr_phases.batch.command import Progress
from ocr_phases.batch.driver import Counts, measure_pages
from ocr_phases.batch.index import build_index
from ocr_phases.batch.job import Job, make_jobs
from ocr_phases.batch.manifest import find_pages
from ocr_phases.batch.outcome import Outcome
from ocr_phases.batch.pool import LocalPool, worker_environments
from ocr_phases.batch.store import LISTING, finished, read_listing, read_status, take_attempt
from ocr_phases.cli import main
from ocr_phases.errors import OcrPhasesError
from ocr_phases.files import only_writer

STUB = [sys.executable, str(Path(__file__).with_name("batch_stub.py"))]
TWO_THREADS = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "2")
SETTINGS = {"model": "tiny", "preset": None, "max_new_tokens": 8}
TLS = ["--tls-ca", "ca.pem", "--tls-cert", "cert.pem", "--tls-key", "key.pem"]
QUICK = ["--max-new-tokens", "3", "--repeats", "1", "--warmup", "0", "--device", "cpu"]


@pytest.fixture(autouse=True)
def record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BATCH_STUB_RECORD", str(GOLDEN / "run.json"))


def make_pages(folder: Path, *words: str) -> Path:
    """Page files for the stub, page-0 and so on, each of its own content."""
    folder.mkdir(exist_ok=True)
    for number, word in enumerate(words):
        (folder / f"page-{number}.png").write_text(f"{word}\n{' ' * number}")
    return folder


def jobs(folder: Path, **more: Any) -> list[Job]:
    return list(make_jobs(find_pages([str(folder)], list(SETTINGS)), {**SETTINGS, **more}))


def measure(folder: Path, out: Path, **options: Any) -> Counts:
    out.mkdir(exist_ok=True)
    pool = LocalPool(command=STUB)
    try:
        return measure_pages(jobs(folder), out, pool, **options)
    finally:
        pool.close()


def statuses(out: Path) -> dict[str, dict[str, Any]]:
    """Status by page; a page without one is missing."""
    found = {entry["page"]: read_status(out / entry["folder"]) for entry in read_listing(out)}
    return {page: status for page, status in found.items() if status is not None}


def test_every_failure_has_its_reason_and_stops_no_other_page(tmp_path):
    words = ("ok", "bad", "raise", "memory", "kill", "sleep", "ok")
    counts = measure(make_pages(tmp_path / "in", *words), tmp_path / "out", timeout=0.4, retries=0)
    assert (counts.done, counts.failed, counts.pages) == (2, 5, 7)
    found = list(statuses(tmp_path / "out").values())
    assert [status["state"] for status in found] == ["done", *["failed"] * 5, "done"]
    for status, failure, reason in zip(
        found[1:6],
        (
            "the page cannot be read",
            "unexpected error",
            "out of memory",
            "the worker died",
            "timeout",
        ),
        (
            "page-1.png is no image",
            "ValueError: something",
            "asked for too much",
            "SIGKILL",
            "More than 0.4 s",
        ),
        strict=True,
    ):
        assert status["failure"] == failure
        assert reason in status["reason"]


def test_failures_are_retried_as_often_as_asked(tmp_path):
    pages = make_pages(tmp_path / "in", "kill 2", "bad", "ok")
    assert measure(pages, tmp_path / "out", retries=2).failed == 1
    attempts = [
        [attempt["failure"] for attempt in status["attempts"]]
        for status in statuses(tmp_path / "out").values()
    ]
    assert attempts == [["died", "died", None], ["page"] * 3, [None]]


def test_the_same_command_keeps_what_is_finished_and_tries_the_rest_again(tmp_path):
    pages, out = make_pages(tmp_path / "in", "ok", "bad", "ok", "ok"), tmp_path / "out"
    measure(pages, out)
    before = {page: status["finished"] for page, status in statuses(out).items()}
    (pages / "page-1.png").write_text("ok now")  # mended
    (pages / "page-2.png").write_text("ok  and another page")
    (out / jobs(pages)[3].folder / "run.json").unlink()
    counts = measure(pages, out)
    assert (counts.kept, counts.done, counts.failed) == (1, 3, 0)
    after = statuses(out)
    assert after["page-0.png"]["finished"] == before["page-0.png"]
    assert {status["state"] for status in after.values()} == {"done"}


@pytest.mark.parametrize("change", ["setting", "version", "content", "name"])
def test_a_job_is_known_by_all_it_depends_on_and_not_by_its_folder(change, tmp_path):
    page = make_pages(tmp_path / "in", "ok") / "page-0.png"
    (job,) = jobs(tmp_path / "in")
    assert Job.from_dict(json.loads(json.dumps(job.as_dict()))) == job
    (tmp_path / "in").rename(tmp_path / "moved")
    assert jobs(tmp_path / "moved")[0].id == job.id
    page = tmp_path / "moved" / page.name
    values = job.as_dict()
    if change == "setting":
        other = jobs(tmp_path / "moved", max_new_tokens=9)[0]
    elif change == "version":
        other = Job.from_dict({**values, "versions": {**job.versions, "torch": "0.1"}})
    elif change == "content":
        page.write_text("other")
        other = jobs(tmp_path / "moved")[0]
    else:
        page.rename(page.with_name("other.png"))
        other = jobs(tmp_path / "moved")[0]
    assert other.id != job.id
    assert other.folder != job.folder


@given(name=st.text(min_size=1, max_size=300), number=st.integers(0, 99))
def test_a_page_of_any_name_has_a_folder_of_its_own_below_pages(name, number):
    one, two = (Job(text, text, "ab", {"model": "tiny"}, {}, None) for text in (name, f"{name}{number}"))
    assert one.folder != two.folder
    first, second, last = one.folder.split("/")
    assert (first, second) == ("pages", one.id[:2])
    assert len(last.encode()) < 255
    assert last not in (".", "..") and not last.startswith(".")


def test_a_model_that_cannot_be_loaded_stops_the_batch_at_once(tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["batch", str(PAGES), "--out", str(out), "--model", "huge", *QUICK]) == 2
    assert "no model 'huge'" in capsys.readouterr().err
    assert not list(out.glob("pages"))


def test_pages_that_all_fail_alike_from_the_start_stop_the_batch(tmp_path, monkeypatch):
    monkeypatch.setattr(driver, "GIVE_UP_AFTER", 3)
    pages = make_pages(tmp_path / "in", *["memory"] * 5)
    with pytest.raises(OcrPhasesError, match="first 3 pages failed alike: The host is out of memory"):
        measure(pages, tmp_path / "out", retries=0)
    pages = make_pages(tmp_path / "in", "ok", *["raise", "raise", "bad"] * 2)
    assert measure(pages, tmp_path / "out", retries=0).failed == 6
    counts = measure(pages, tmp_path / "out", retries=0)  # what is kept proves as much
    assert (counts.kept, counts.failed) == (1, 6)


@pytest.mark.parametrize("kept", [False, True])
def test_a_worker_that_fails_page_after_page_stops_the_batch(kept, tmp_path, monkeypatch):
    monkeypatch.setattr(driver, "GIVE_UP_AFTER", 3)
    pages, out = make_pages(tmp_path / "in", "ok", "raise", "kill", "raise", "ok"), tmp_path / "out"
    if kept:
        with pytest.raises(OcrPhasesError):
            measure(pages, out)
    with pytest.raises(
        OcrPhasesError, match="3 pages one after another failed .*ValueError.* goes on"
    ) as caught:
        measure(pages, out)
    assert "--timeout" not in str(caught.value)
    assert len(list(read_listing(out))) >= 4  # what is finished can be shown
    assert not list(out.glob(".*"))


def test_pages_that_take_too_long_one_after_another_say_what_would_help(tmp_path, monkeypatch):
    monkeypatch.setattr(driver, "GIVE_UP_AFTER", 2)
    pages = make_pages(tmp_path / "in", "ok", "sleep", "sleep")
    with pytest.raises(
        OcrPhasesError, match="2 pages .* More than 0.1 s .*leave these pages out, or raise --timeout"
    ):
        measure(pages, tmp_path / "out", retries=0, timeout=0.1)


def test_a_worker_with_other_versions_stops_the_batch_and_fails_no_page(tmp_path):
    make_pages(tmp_path / "in", "ok")
    out = tmp_path / "out"
    out.mkdir()
    (job,) = jobs(tmp_path / "in")
    other = Job.from_dict({**job.as_dict(), "versions": {**job.versions, "torch": "0.1"}, "id": ""})
    pool = LocalPool()
    try:
        with pytest.raises(OcrPhasesError, match=r"torch .* instead of 0\.1"):
            measure_pages([other], out, pool)
    finally:
        pool.close()
    assert not statuses(out)


def test_a_page_of_any_file_name_is_measured_and_shown(tmp_path):
    pages, out = tmp_path / "in", tmp_path / "out"
    pages.mkdir()
    (pages / os.fsdecode(b"caf\xe9.png")).write_text("ok")
    assert measure(pages, out).done == 1
    assert build_index(out).pages["page"].tolist() == ["caf?.png"]
    assert measure(pages, out).kept == 1
    page = {"file": os.fsdecode(b"caf\xe9.png")}
    run = PhaseRun.load(GOLDEN / "run.json")
    run.pages[0] |= page
    assert PhaseRun.load(run.save(tmp_path / "run.json")).page["file"] == "caf?.png"


def test_a_full_disk_ends_the_batch_and_keeps_what_is_finished(tmp_path):
    pages, out = make_pages(tmp_path / "in", "ok", "full", "ok"), tmp_path / "out"
    with pytest.raises(OcrPhasesError, match="No space left on device.*same command goes on"):
        measure(pages, out)
    assert finished(out / jobs(pages)[0].folder, jobs(pages)[0].id)
    (pages / "page-1.png").write_text("ok again")
    counts = measure(pages, out)
    assert (counts.kept + counts.done, counts.failed) == (3, 0)


@pytest.mark.parametrize("place", ["status", "listing"])
def test_a_disk_that_is_full_for_the_driver_is_one_sentence(place, tmp_path, monkeypatch):
    def full(*args: Any, **kwargs: Any) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(*((os, "fsync") if place == "status" else (Path, "open")), full)
    pages = tmp_path / "in"
    pages.mkdir()
    os.close(os.open(pages / "page-0.png", os.O_CREAT))
    with pytest.raises(OcrPhasesError, match=r"cannot be written \(No space left on device\)"):
        measure(pages, tmp_path / "out")


def test_a_read_only_output_folder_is_refused(tmp_path, capsys, monkeypatch):
    def read_only(*args: Any, **kwargs: Any) -> Any:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "mkdir", read_only)
    assert main(["batch", str(PAGES), "--out", str(tmp_path / "out"), *QUICK]) == 2
    assert "cannot be written (Read-only file system)" in capsys.readouterr().err


def test_bad_options_are_one_sentence_and_start_nothing(tmp_path, capsys):
    (tmp_path / "file").touch()
    page = str(PAGES / "slide.png")
    for arguments, message in (
        ([page, "--out", str(tmp_path / "file")], "cannot be written"),
        ([page, "--retries", "-1"], "retries is -1"),
        ([page, "--timeout", "0"], "timeout is 0"),
        ([page, "--timeout", "nan"], "timeout is nan"),
        ([page, "--timeout", "inf"], "timeout is inf"),
        ([page, "--timeout", "1e300"], "timeout is 1e+300"),
        ([page, "--render", "only"], "name no others"),
        ([page, "--wait-workers", "0"], "wait-workers is 0"),
        ([page, "--render-workers", "0"], "render-workers is 0"),
        ([page, "--render-workers", "99999"], "render-workers is 99999"),
        ([page, "--tls-ca", "ca.pem", "--scheduler", "tls://127.0.0.1:1"], "--tls-key together"),
        ([page, *TLS], "with --scheduler"),
        ([page, *TLS, "--scheduler", "tcp://127.0.0.1:1"], "no address with TLS"),
        ([page, "--workers", "0"], "workers is 0"),
        ([page, "--workers", "99999"], "workers is 99999"),
        ([page, "--workers", "2", "--scheduler", "tcp://127.0.0.1:1"], "drop --scheduler"),
        ([str(tmp_path / "none.png")], "names no page"),
    ):
        assert main(["batch", "--out", str(tmp_path / "out"), *arguments]) == 2
        assert message in capsys.readouterr().err
        assert not list(tmp_path.glob("out/*"))


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("preset", "huge"),
        ("prompt", "locate:"),
        ("prompt", " "),
        ("strategy", "fast"),
        ("vision", "sharp"),
        ("max_new_tokens", 0),
        ("eos_check_every", 0),
        ("repeats", 0),
        ("warmup", -1),
    ],
)
def test_a_setting_wrong_for_every_page_is_refused_before_anything_starts(
    option, value, tiny_session, tmp_path, monkeypatch, capsys
):
    with pytest.raises(OcrPhasesError) as single:
        tiny_session.run_inference(PAGES / "slide.png", **{option: value})
    stopped = tmp_path / "stopped"
    measure(make_pages(tmp_path / "in", "bad"), stopped)
    before = {path: path.read_bytes() for path in stopped.rglob("*") if path.is_file()}
    monkeypatch.setattr(subprocess, "Popen", None)  # no worker could start now
    command = ["batch", str(tmp_path / "in"), f"--{option.replace('_', '-')}", str(value)]
    for out in (tmp_path / "new", stopped):
        assert main([*command, "--out", str(out)]) == 2
        said = str(single.value).replace(option, f"--{option.replace('_', '-')}" if "_" in option else option)
        assert capsys.readouterr().err == f"ocr-phases: {said}\n"
    assert not (tmp_path / "new").exists()
    assert {path: path.read_bytes() for path in stopped.rglob("*") if path.is_file()} == before


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
        with pytest.raises(OcrPhasesError, match="cannot be locked"), only_writer(tmp_path):
            pass
        return
    with pytest.warns(UserWarning, match="without locks"), only_writer(tmp_path):
        (tmp_path / "written").touch()
    assert [path.name for path in tmp_path.iterdir()] == ["written"]


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
    request = {"job": job.as_dict(), "folder": str(folder.resolve())}
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
    take_attempt(tmp_path, ".attempt-1")
    found = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*"))
    assert found == ["images", "images/0.jpg", "run.json"]
    assert (tmp_path / "run.json").read_text() == (tmp_path / "images/0.jpg").read_text() == "new"
    with pytest.raises(OcrPhasesError, match="cannot be put in its place .* one file system"):
        take_attempt(tmp_path, ".attempt-1")


def start_driver(folder: Path, scheduler: str | None = None) -> subprocess.Popen[bytes]:
    program = (
        "import json, sys; from pathlib import Path\n"
        "from ocr_phases.batch.driver import measure_pages\n"
        "from ocr_phases.batch.job import make_jobs\n"
        "from ocr_phases.batch.manifest import find_pages\n"
        "from ocr_phases.batch.cluster import DaskPool\n"
        "from ocr_phases.batch.pool import LocalPool\n"
        "folder, settings, stub = Path(sys.argv[1]), json.loads(sys.argv[2]), json.loads(sys.argv[3])\n"
        "(folder / 'out').mkdir(exist_ok=True)\n"
        "pages = find_pages([str(folder / 'in')], list(settings))\n"
        "pool = DaskPool(sys.argv[4], command=stub) if sys.argv[4] else LocalPool([{}, {}], stub)\n"
        "measure_pages(make_jobs(pages, settings), folder / 'out', pool)"
    )
    values = [str(folder), json.dumps(SETTINGS), json.dumps(STUB), scheduler or ""]
    return subprocess.Popen([sys.executable, "-c", program, *values])


def children(pid: int) -> list[int]:
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
        threads = [Path(task, "children").read_text() for task in Path(f"/proc/{pid}/task").iterdir()]
    except OSError:
        return []
    return [int(child) for child in f"{text} {' '.join(threads)}".split()]


def wait_for(condition: Any, seconds: float = 30.0) -> Any:
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.02)
    return found


def test_equal_pages_named_twice_are_measured_once_and_counted_twice(tmp_path):
    pages = make_pages(tmp_path / "in", "ok")
    out = tmp_path / "out"
    out.mkdir()
    pool = LocalPool(command=STUB)
    counts = measure_pages([*jobs(pages), *jobs(pages)], out, pool)
    pool.close()
    assert (counts.done, counts.kept + counts.again, counts.pages) == (1, 1, 2)
    assert len(list(read_listing(out))) == 2


def test_a_million_pages_never_wait_in_memory(tmp_path):
    class Watched(LocalPool):
        waiting = most = 0

        def submit(self, request: Any, timeout: Any) -> Any:
            self.waiting += 1
            self.most = max(self.most, self.waiting)
            future = super().submit(request, timeout)
            future.add_done_callback(lambda _: setattr(self, "waiting", self.waiting - 1))
            return future

    pages, out = make_pages(tmp_path / "in", *["ok"] * 30), tmp_path / "out"
    out.mkdir()
    pool = Watched(command=STUB)
    taken: list[int] = []

    def counted() -> Iterator[Job]:
        for job in jobs(pages):
            taken.append(pool.waiting)
            yield job

    measure_pages(counted(), out, pool)
    pool.close()
    assert pool.most <= pool.room() == 2
    assert max(taken) <= 2


def test_a_child_is_warm_and_replaced_when_it_dies(tmp_path):
    pages = make_pages(tmp_path / "in", "ok", "ok", "kill", "ok")
    requests = [{"job": job.as_dict(), "folder": str(tmp_path / "out" / job.folder)} for job in jobs(pages)]
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
        {"job": job.as_dict(), "folder": str(tmp_path / "out" / job.folder)}
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
    child = Child(command=[sys.executable, "-c", "print('{\"ready\": tr', flush=True); input()"])
    outcome = child.run({"job": {}}, 30.0)
    assert outcome.failure == "died"
    assert "cut short" in outcome.reason


def test_a_worker_that_cannot_start_says_why(tmp_path):
    child = Child(command=[sys.executable, "-c", "import no_such_module_here"])
    outcome = child.run({"job": {}})
    assert outcome.failure == "died"
    assert "exit code 1" in outcome.reason and "no_such_module_here" in outcome.reason


def test_a_worker_stopped_in_the_middle_of_a_page_leaves_nothing_in_its_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    program = "import pathlib, sys; pathlib.Path(sys.argv[1], 'left').touch(); input(); input()"
    pool = LocalPool(command=[sys.executable, "-c", program])
    page = pool.submit({}, None)
    wait_for(lambda: list(tmp_path.glob("*/*/left")))
    pool.close()  # as after Ctrl-C
    assert page.result().failure == "died"
    assert not list(tmp_path.glob("*/*"))


# -- with the real worker and model -----------------------------------------------------------------


def test_batch_measures_a_pdf_page_by_page_and_bad_files_beside_it(tmp_path, capsys):
    from PIL import Image

    pages = tmp_path / "in"
    pages.mkdir()
    first, second = (Image.open(PAGES / f"{name}.png").convert("RGB") for name in ("slide", "receipt"))
    first.save(pages / "two.pdf", save_all=True, append_images=[second])
    (pages / "broken.pdf").write_bytes(b"%PDF-1.7 broken")
    (pages / "truncated.png").write_bytes((PAGES / "slide.png").read_bytes()[:2000])
    (pages / "notes.txt").write_text("no page")
    command = [
        "batch",
        str(pages),
        "--out",
        str(tmp_path / "out"),
        *QUICK,
        "--render",
        "none",
        "--retries",
        "0",
        "--no-embed",
    ]
    assert main(command) == 1
    assert "4 pages: 2 measured, 0 kept, 2 failed" in capsys.readouterr().out
    found = statuses(tmp_path / "out")
    assert list(found) == ["broken.pdf", "truncated.png", "two.pdf#1", "two.pdf#2"]
    assert [status["state"] for status in found.values()] == ["failed", "failed", "done", "done"]
    assert "broken.pdf is not a PDF" in found["broken.pdf"]["reason"]
    runs = {
        entry["page"]: PhaseRun.load(tmp_path / "out" / entry["folder"] / "run.json")
        for entry in read_listing(tmp_path / "out")
        if found[entry["page"]]["state"] == "done"
    }
    assert [run.page["file"] for run in runs.values()] == ["two.pdf#1", "two.pdf#2"]
    assert all(run.page["data"] is None for run in runs.values())
    # The model was loaded once and stayed.
    workers = {status["attempts"][-1]["worker"] for status in found.values()}
    assert len(workers - {""}) == 1  # a PDF that cannot be opened needs none


@contextlib.contextmanager
def watched_sockets(pid: int | None = None) -> Iterator[dict[str, set[str]]]:
    """The commands of ``pid`` (None: this one) and all processes below it, and where each began to listen."""
    psutil = pytest.importorskip("psutil")
    top = psutil.Process(pid)
    found: dict[str, set[str]] = {}
    done = threading.Event()

    def addresses(process: Any) -> set[str]:
        connections = getattr(process, "net_connections", None) or process.connections  # before psutil 6
        return {f"{one.laddr.ip}:{one.laddr.port}" for one in connections("inet") if not one.raddr}

    before = addresses(top) if pid is None else set()

    def look() -> None:
        while not done.wait(0.1):
            for process in (top, *top.children(recursive=True)):
                with contextlib.suppress(psutil.Error):
                    own = found.setdefault(" ".join(process.cmdline()), set())
                    own.update(addresses(process) - before)

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        yield found
    finally:
        done.set()
        watcher.join()


def test_measuring_within_the_notebook_gives_the_same_tokens_and_a_report(
    tiny_session, tmp_path, capsys, monkeypatch
):
    scratch = Path(tempfile.mkdtemp(dir="/tmp"))  # short enough for UNIX sockets
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setenv("TMPDIR", str(scratch))
    page, out = str(PAGES / "slide.png"), tmp_path / "out"
    plain = tiny_session.run_inference(page, max_new_tokens=3, repeats=1, warmup=0)
    nameless, damaged = tmp_path / os.fsdecode(b"caf\xe9.png"), tmp_path / "damaged.png"
    nameless.write_bytes(Path(page).read_bytes())
    damaged.write_bytes(Path(page).read_bytes()[:2000])
    pages = [page, page, str(nameless), str(damaged)]
    command = ["batch", *pages, "--out", str(out), *QUICK, "--render", "during", "--retries", "0"]
    with watched_sockets() as found:
        assert main(command) == 1
    kernels = [found.pop(program) for program in list(found) if "ipykernel" in program]
    assert kernels and any("batch.worker" in program for program in found)
    assert not any(found.values())
    # ipykernel's own, for what forked children print; it takes nothing without the kernel's secret.
    assert all(address.startswith("127.0.0.1:") for addresses in kernels for address in addresses)
    assert "4 pages: 2 measured, 0 kept, 1 failed, 1 named twice" in capsys.readouterr().out
    entries = {entry["page"]: out / entry["folder"] for entry in read_listing(out)}
    within = PhaseRun.load(entries["slide.png"] / "run.json")
    assert within.results == plain.results
    assert (entries["slide.png"] / "report.html").read_text().rstrip().endswith("</html>")
    assert f"{entries['slide.png'].relative_to(out)}/report.html" in (out / "index.html").read_text()
    again = PhaseRun.load(entries["caf?.png"] / "run.json")
    assert (again.results, again.page["file"]) == (plain.results, "caf?.png")
    status = statuses(out)["damaged.png"]
    assert (status["failure"], "damaged" in status["reason"]) == ("the page cannot be read", True)
    assert not list(out.glob("pages/*/*/.*"))
    assert not list(scratch.glob("ocr-*/*"))  # the kernel's files went with the worker
    shutil.rmtree(scratch)


def test_a_session_is_kept_while_its_options_are_the_same(monkeypatch):
    from ocr_phases.measure import kept_session as module

    loaded: list[tuple[str | None, ...]] = []

    def load(model: str, *, device: str, dtype: str | None, revision: str | None) -> object:
        loaded.append((model, device, dtype, revision))
        return object()

    monkeypatch.setattr(module.DeepSeekOCRSession, "load", load)
    monkeypatch.setattr(module, "_kept", {})
    first = module.kept_session("tiny", device="cpu")
    assert module.kept_session("tiny", device="cpu") is first
    assert module.kept_session("tiny", device="cpu", dtype="bfloat16") is not first
    assert module.kept_session("tiny", device="cpu", dtype="bfloat16", revision="a") is not first
    assert len(module._kept) == 1
    assert loaded == [
        ("tiny", "cpu", None, None),
        ("tiny", "cpu", "bfloat16", None),
        ("tiny", "cpu", "bfloat16", "a"),
    ]


def test_progress_tells_pages_rate_and_time_left(capsys, monkeypatch):
    clock = iter((-20.0, 0.0, 60.0, 90.0))
    monkeypatch.setattr("ocr_phases.batch.command.time.monotonic", lambda: next(clock))
    progress = Progress("Measuring", 1000)
    progress.show(pages=300, failed=0, worked=0, note=", waiting for a worker")  # the clock starts after it
    progress.show(pages=400, failed=3, worked=97)  # 300 of them were there
    progress.show(pages=1000, failed=3, worked=697)
    progress.end()
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "Measuring: 400 of 1,000 pages through, 3 failed, 97.0 pages/min, 6:11 left"
    assert lines[-1] == "Measuring: 1,000 of 1,000 pages through, 3 failed, 464.7 pages/min"


# -- devices and dask -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gpus", "workers", "device", "expected"),
    [
        ("", None, "auto", [{}]),
        ("0,1,3", None, "auto", [{"CUDA_VISIBLE_DEVICES": gpu, **TWO_THREADS} for gpu in "013"]),
        ("0,1", 1, "cuda", [{"CUDA_VISIBLE_DEVICES": "0"}]),
        ("0,1", None, "cuda:1", [{}]),
        ("0,1", None, "cpu", [{}]),
        ("0,1", 3, "auto", "3 workers on 2 GPUs"),
        ("0,1", 2, "cuda:1", "2 workers on cuda:1"),
        ("0", 0, "auto", "workers is 0: give 1 to 6"),
        ("", 99999, "auto", "workers is 99999: give 1 to 6"),
    ],
)
def test_each_worker_has_a_device_of_its_own(gpus, workers, device, expected, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", gpus)
    monkeypatch.setattr("ocr_phases.batch.pool.cores", lambda: 6)
    if isinstance(expected, str):
        with pytest.raises(OcrPhasesError, match=expected):
            worker_environments(workers, device)
    else:
        assert worker_environments(workers, device) == expected


def test_workers_on_a_cpu_share_its_cores(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr("ocr_phases.batch.pool.cores", lambda: 9)
    assert worker_environments(4, "auto") == [TWO_THREADS] * 4


def test_a_machine_that_does_not_say_which_gpus_it_has_is_one_sentence(tmp_path, monkeypatch):
    (tmp_path / "nvidia-smi").touch(0o755)  # no program that could run
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(OcrPhasesError, match="set CUDA_VISIBLE_DEVICES"):
        worker_environments(None, "auto")


@contextlib.contextmanager
def dask_cluster(workers: int = 1, **options: Any) -> Iterator[Any]:
    """A dask cluster that listens on loopback alone, its workers in this process unless asked otherwise."""
    distributed = pytest.importorskip("distributed")
    import dask

    from ocr_phases.batch.cluster import stop_children

    options = {"processes": False, "protocol": "tcp://", "silence_logs": 50, **options}
    # Closing waits so long for who is gone.
    with (
        dask.config.set({"distributed.comm.timeouts.connect": "1s"}),
        distributed.LocalCluster(
            n_workers=workers,
            threads_per_worker=1,
            host="127.0.0.1",
            dashboard_address="127.0.0.1:0",
            worker_dashboard_address="127.0.0.1:0",
            memory_limit=0,
            **options,
        ) as cluster,
    ):
        yield cluster
    stop_children()


def test_a_dask_worker_that_is_lost_costs_no_page_and_doubles_none(tmp_path):
    pages, out = make_pages(tmp_path / "in", *["ok"] * 40, "bad", "kill 1"), tmp_path / "out"
    out.mkdir()
    lost: list[int] = []

    def lose_one(counts: Counts) -> None:
        if counts.done >= 5 and not lost:
            lost.append(next(iter(pool.client.run(os.getpid).values())))
            os.kill(lost[0], signal.SIGKILL)

    with dask_cluster(2, processes=True) as cluster:
        pool = DaskPool(cluster.scheduler_address, command=STUB)
        try:
            counts = measure_pages(jobs(pages), out, pool, progress=lose_one)
        finally:
            pool.close()
    assert lost
    assert (counts.done, counts.failed, counts.pages) == (41, 1, 42)
    assert len(statuses(out)) == 42
    assert len((out / LISTING).read_text().splitlines()) == 42


def test_a_scheduler_that_does_not_answer_is_one_sentence(monkeypatch):
    pytest.importorskip("distributed")
    monkeypatch.setattr("ocr_phases.batch.cluster._CONNECT_SECONDS", 0.5)
    with pytest.raises(OcrPhasesError, match="does not answer"):
        DaskPool("tcp://127.0.0.1:1")


def test_a_scheduler_that_is_lost_is_one_sentence_and_keeps_what_is_finished(tmp_path, monkeypatch):
    pages, out = make_pages(tmp_path / "in", *["ok"] * 60), tmp_path / "out"
    out.mkdir()
    monkeypatch.setattr("ocr_phases.batch.cluster._CONNECT_SECONDS", 2)  # so long it waits for a new one

    def lose_scheduler(counts: Counts) -> None:
        if counts.done >= 3 and cluster.scheduler.status.name == "running":
            cluster.sync(cluster.scheduler.close)

    with dask_cluster() as cluster:
        pool = DaskPool(cluster.scheduler_address, command=STUB)
        try:
            with pytest.raises(OcrPhasesError, match="scheduler was lost"):
                measure_pages(jobs(pages), out, pool, progress=lose_scheduler)
        finally:
            pool.close()
    assert 3 <= len(statuses(out)) < 60
    cancelled: Future[Outcome] = Future()  # as dask leaves the pages that were with it
    cancelled.cancel()
    with pytest.raises(OcrPhasesError, match="scheduler was lost"):
        driver._result(cancelled)


def test_the_workers_of_a_scheduler_with_tls_let_go_of_their_model_at_the_end(tmp_path, monkeypatch):
    pytest.importorskip("cryptography")
    from distributed import Security

    security = Security.temporary()
    tls = {}
    for name in ("tls_ca_file", "tls_client_cert", "tls_client_key"):
        (tmp_path / name).write_text(getattr(security, name))
        tls[name] = str(tmp_path / name)
    pages, out = make_pages(tmp_path / "in", "ok"), tmp_path / "out"
    out.mkdir()
    with dask_cluster(protocol="tls://", security=security) as cluster:
        address = cluster.scheduler_address
        pool = DaskPool(address.removeprefix("tls://"), STUB, tls)
        try:
            assert not pool.plain
            assert driver.auto_device(pool) == "cpu"
            assert measure_pages(jobs(pages), out, pool).done == 1
            (status,) = statuses(out).values()
            host, _, child = status["attempts"][0]["worker"].rpartition(":")
            assert Path(f"/proc/{child}").exists()
        finally:
            pool.close()
        wait_for(lambda: not Path(f"/proc/{child}").exists() or "\nState:\tZ" in status_of(child))
        monkeypatch.setattr("ocr_phases.batch.cluster._CONNECT_SECONDS", 0.5)
        other = {**tls, "tls_ca_file": str(tmp_path / "none.pem")}
        for wrong, files in ((address, None), (address.replace("tls", "tcp"), None), (address, other)):
            with pytest.raises(OcrPhasesError, match="does not answer"):
                DaskPool(wrong, tls=files)


@pytest.mark.parametrize("device", ["auto", "cpu"])
def test_a_batch_without_workers_waits_as_long_as_it_was_told(device, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("ocr_phases.batch.cluster._COUNT_SECONDS", 0.0)
    with dask_cluster(0) as cluster:
        options = ["--scheduler", cluster.scheduler_address, "--wait-workers", "0.5"]
        page = str(PAGES / "slide.png")
        command = ["batch", page, "--out", str(tmp_path), *QUICK, "--device", device, *options]
        assert main(command) == 2
    said = capsys.readouterr().err
    assert "There was no worker for 0.5 s. What is finished is kept" in said
    assert said.count("has no TLS: whoever reaches it can run code on its workers") == 1
    assert not statuses(tmp_path)


@pytest.fixture
def scheduler(tmp_path: Path) -> Iterator[tuple[str, Path]]:
    """The address of a scheduler that is a process of its own, with one worker, and that worker's log."""
    pytest.importorskip("distributed")
    file, log = tmp_path / "scheduler.json", tmp_path / "worker.log"
    where = ["--scheduler-file", str(file), "--host", "127.0.0.1", "--dashboard-address", "127.0.0.1:0"]
    commands = [
        ["dask_scheduler", "--port", "0", "--no-dashboard", *where],
        ["dask_worker", "--nthreads", "1", "--memory-limit", "0", "--no-nanny", "--no-dashboard", *where],
    ]
    with log.open("w") as output:
        processes = [
            subprocess.Popen(
                [sys.executable, "-c", f"from distributed.cli.{name} import main; main()", *options],
                stdout=output,
                stderr=output,
                cwd=tmp_path,
            )
            for name, *options in commands
        ]
    try:
        wait_for(file.exists)
        yield json.loads(file.read_text())["address"], log
    finally:
        for process in processes:
            process.kill()
            process.wait()


def test_a_driver_killed_at_a_scheduler_leaves_nobody_at_its_page(scheduler, tmp_path):
    address, log = scheduler
    pages, out = make_pages(tmp_path / "in", "wait", "ok", "ok"), tmp_path / "out"
    process = start_driver(tmp_path, address)
    wait_for((pages / "page-0.began").exists)
    process.kill()
    process.wait()
    pool = DaskPool(address, command=STUB)
    end = time.monotonic() + 60.0

    def in_time(counts: Counts) -> None:
        assert time.monotonic() < end, log.read_text()

    try:
        # Its child waits for ever: were it not killed, no page would be done.
        counts = measure_pages(jobs(pages), out, pool, progress=in_time)
    finally:
        pool.close()
    assert (counts.done, counts.kept, counts.failed) == (3, 0, 0)
    assert not list(out.glob("pages/*/*/.*"))


def status_of(pid: str) -> str:
    try:
        return Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return ""
