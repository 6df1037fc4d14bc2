"""The store: what a status says of the record beside it."""

from __future__ import annotations

import pytest
from refusals import refused

from ocr_phases.store import Status, asked_id, fail, file_hash, finished, read_status, take, write_status


def test_a_record_is_finished_while_it_is_as_it_was_measured_for_what_is_asked(tmp_path):
    record, path = tmp_path / "run.json", tmp_path / "status.json"
    asked = asked_id({"page": "a", "repeats": 3})
    assert asked == asked_id({"repeats": 3, "page": "a"}) != asked_id({"repeats": 4, "page": "a"})
    assert read_status(path, Status) is None and not finished(None, record, asked)
    record.write_text("measured")
    write_status(path, {"id": asked, "state": "done", "reason": "", "record": file_hash(record)})
    status = read_status(path, Status)
    assert finished(status, record, asked) and not finished(status, record, "another")
    record.write_text("measured and cut")
    assert not finished(status, record, asked)
    record.unlink()
    assert not finished(status, record, asked)
    fail(path, "No room.", {"id": asked})
    status = read_status(path, Status)
    assert status["reason"] == "No room." and not finished(status, record, asked)


@pytest.mark.parametrize("damage", ["", "[", "[1]", '{"schema": 1, "id": 3}', "[" * 100_000])
def test_a_damaged_status_is_told_and_one_of_another_version_is_none(damage, tmp_path):
    path = tmp_path / "status.json"
    path.write_text(damage)
    with refused():
        read_status(path, Status)
    path.write_text('{"schema": 2}')
    assert read_status(path, Status) is None


def test_the_files_of_an_attempt_take_the_place_of_older_ones(tmp_path):
    for place, text in ((tmp_path, "old"), (tmp_path / ".attempt-1", "new")):
        (place / "images").mkdir(parents=True)
        for name in ("run.json", "images/0.jpg"):
            (place / name).write_text(text)
    (tmp_path / "images" / "1.jpg").touch()
    take(tmp_path, ".attempt-1")
    found = {path.relative_to(tmp_path).as_posix(): path for path in tmp_path.rglob("*")}
    assert sorted(found) == ["images", "images/0.jpg", "run.json"]
    assert found["run.json"].read_text() == found["images/0.jpg"].read_text() == "new"
    with refused():
        take(tmp_path, ".attempt-1")
