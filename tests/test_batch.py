"""A batch whatever happens: every page accounted for exactly once, and nothing half written."""

from __future__ import annotations

import errno
import json
import os

import pytest
from batch_example import QUICK, jobs, make_pages, measure, statuses
from conftest import PAGES
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused

from ocr_phases.batch import driver
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
