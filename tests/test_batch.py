"""A batch whatever happens: every page accounted for exactly once, and nothing half written."""

from __future__ import annotations

import errno
import json
import os

import pytest
from batch_example import (
    QUICK,
    jobs,
    make_pages,
    measure,
    statuses,
)
from conftest import PAGES
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused

from ocr_phases.batch import driver
from ocr_phases.batch.jobs import Job
from ocr_phases.batch.store import finished, read_listing
from ocr_phases.cli import main
from ocr_phases.errors import OcrPhasesError
from ocr_phases.files import only_writer


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
    assert "something nobody thought of" in found[2]["attempts"][0].stderr


def test_failures_are_retried_as_often_as_asked(tmp_path):
    pages = make_pages(tmp_path / "in", "kill 2", "bad", "ok")
    assert measure(pages, tmp_path / "out", retries=2).failed == 1
    attempts = [
        [attempt.failure for attempt in status["attempts"]] for status in statuses(tmp_path / "out").values()
    ]
    assert attempts == [["died", "died", None], ["page"], [None]]


def test_the_same_command_keeps_what_is_finished_and_tries_the_rest_again(tmp_path):
    pages, out = make_pages(tmp_path / "in", "ok", "bad", "ok", "ok"), tmp_path / "out"
    measure(pages, out)
    before = statuses(out)
    (pages / "page-1.png").write_text("ok now")  # mended
    (pages / "page-2.png").write_text("ok  and another page")
    (out / jobs(pages)[3].folder / "run.json").unlink()
    counts = measure(pages, out)
    assert (counts.kept, counts.done, counts.failed) == (1, 3, 0)
    after = statuses(out)
    assert after["page-0.png"] == before["page-0.png"]
    assert {status["state"] for status in after.values()} == {"done"}


@pytest.mark.parametrize("change", ["setting", "version", "content", "name"])
def test_a_job_is_known_by_all_it_depends_on_and_not_by_its_folder(change, tmp_path):
    page = make_pages(tmp_path / "in", "ok") / "page-0.png"
    (job,) = jobs(tmp_path / "in")
    assert Job(**json.loads(json.dumps(vars(job)))) == job
    (tmp_path / "in").rename(tmp_path / "moved")
    assert jobs(tmp_path / "moved")[0].id == job.id
    page = tmp_path / "moved" / page.name
    values = dict(vars(job))
    if change == "setting":
        other = jobs(tmp_path / "moved", max_new_tokens=9)[0]
    elif change == "version":
        other = Job(**{**values, "versions": {**job.versions, "torch": "0.1"}})
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


def test_pages_that_all_fail_alike_from_the_start_stop_the_batch(tmp_path, monkeypatch):
    monkeypatch.setattr(driver, "GIVE_UP_AFTER", 3)
    pages = make_pages(tmp_path / "in", *["memory"] * 5)
    with refused():
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
    with refused() as caught:
        measure(pages, out)
    assert "--timeout" not in str(caught.value)
    assert len(list(read_listing(out))) >= 4  # what is finished can be shown
    assert not list(out.glob(".*"))


def test_pages_that_take_too_long_one_after_another_say_what_would_help(tmp_path, monkeypatch):
    monkeypatch.setattr(driver, "GIVE_UP_AFTER", 2)
    pages = make_pages(tmp_path / "in", "ok", "sleep", "sleep")
    with refused():
        measure(pages, tmp_path / "out", retries=0, timeout=0.1)


def test_a_full_disk_ends_the_batch_and_keeps_what_is_finished(tmp_path):
    pages, out = make_pages(tmp_path / "in", "ok", "full", "ok"), tmp_path / "out"
    with pytest.raises(OcrPhasesError):
        measure(pages, out)
    assert finished(out / jobs(pages)[0].folder, jobs(pages)[0].id)
    (pages / "page-1.png").write_text("ok again")
    counts = measure(pages, out)
    assert (counts.kept + counts.done, counts.failed) == (3, 0)


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
