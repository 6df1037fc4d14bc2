"""A batch of files that attack it, of damaged results, and of a driver that is stopped: the rest goes on."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from batch_example import (
    a_job,
    children,
    jobs,
    make_pages,
    measure,
    put_page,
    renderer,
    start_driver,
    statuses,
    wait_for,
    watched_sockets,
)
from refusals import refused
from wording import says

from ocr_phases.batch import jobs as batch_jobs
from ocr_phases.batch.child import Child
from ocr_phases.batch.index import build_index
from ocr_phases.batch.jobs import Page, find_pages, make_jobs
from ocr_phases.batch.store import LISTING, list_pages, read_listing
from ocr_phases.cli import main
from ocr_phases.files import LARGEST_FILE

# -- files that are none, or too much ---------------------------------------------------------------


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="needs named pipes")
def test_pipes_devices_sockets_and_huge_files_are_failed_pages_and_nothing_waits_for_them(tmp_path):
    pages, out = make_pages(tmp_path / "in", "ok"), tmp_path / "out"
    os.mkfifo(pages / "pipe.png")
    os.mkfifo(pages / "pipe.pdf")
    (pages / "zero.png").symlink_to("/dev/zero")
    (pages / "zero.pdf").symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as server:
        os.chdir(pages)  # a socket's path is short
        server.bind("socket.png")
    with (pages / "huge.png").open("wb") as file:
        file.truncate(LARGEST_FILE + 1)  # sparse
    counts = measure(pages, out)
    assert (counts.done, counts.failed) == (1, 6)
    found = statuses(out)
    assert found.pop("page-0.png")["state"] == "done"
    assert says(found.pop("huge.png")["reason"], "1,024.0 MiB")
    for status in found.values():
        assert "a regular file" in status["reason"]
        assert status["failure"] == "the page cannot be read"
    os.mkfifo(pages / "list.csv")
    with refused():
        list(find_pages([str(pages / "list.csv")], []))


def test_a_file_that_claims_no_size_is_not_read_on_and_on():
    (job,) = make_jobs([Page("kmsg.png", "/proc/self/status")], {"model": "tiny"})  # /proc/kmsg would wait
    assert job.sha256 is None and not job.problem  # measuring it says why


def bomb(claimed: int) -> bytes:
    """A PDF of one page that claims more."""
    objects = (
        b"<</Type/Catalog/Pages 2 0 R>>",
        b"<</Type/Pages/Kids[3 0 R]/Count %d>>" % claimed,
        b"<</Type/Page/Parent 2 0 R/MediaBox[0 0 9 9]>>",
    )
    data, table = b"%PDF-1.4\n", b"0000000000 65535 f \n"
    for number, content in enumerate(objects, 1):
        table += b"%010d 00000 n \n" % len(data)
        data += b"%d 0 obj%sendobj\n" % (number, content)
    end = b"xref\n0 4\n%strailer<</Size 4/Root 1 0 R>>\nstartxref\n%d\n%%%%EOF"
    return data + end % (table, len(data))


def test_a_pdf_that_claims_a_million_pages_is_one_failed_page(tmp_path):
    pytest.importorskip("pypdfium2")
    (tmp_path / "bomb.pdf").write_bytes(bomb(1_000_000))
    (tmp_path / "two.pdf").write_bytes(bomb(2))
    named = tmp_path / "bomb.pdf#1"
    pages = list(find_pages([str(tmp_path), str(named)], []))
    assert [page.name for page in pages] == ["bomb.pdf", "two.pdf#1", "two.pdf#2", "bomb.pdf#1"]
    assert says(pages[0].problem, "bomb.pdf", "10,000 pages", "bomb.pdf#3")
    assert not any(page.problem for page in pages[1:])


@pytest.mark.parametrize(("program", "reason"), [("os.abort()", "SIGABRT"), ("pipe.recv_bytes()", "0.2 s")])
def test_a_pdf_that_crashes_or_hangs_its_reader_is_a_failed_page(program, reason, tmp_path, monkeypatch):
    start = (
        "import os; from multiprocessing.connection import Connection; pipe = Connection(os.dup(0)); "
        "pipe.recv_bytes(); pipe.send_bytes(b'ready'); "
    )
    command = [sys.executable, "-c", start + program]
    monkeypatch.setattr(batch_jobs, "Child", lambda: Child(command=command))
    monkeypatch.setattr(batch_jobs, "COUNT_SECONDS", 0.2)
    (tmp_path / "evil.pdf").write_bytes(b"%PDF")
    (tmp_path / "good.png").touch()
    good, evil = sorted(find_pages([str(tmp_path)], []), key=lambda page: bool(page.problem))
    assert good.name == "good.png"
    assert says(evil.problem, "evil.pdf", reason)


def test_folders_within_folders_without_end_are_one_failed_page(tmp_path):
    (tmp_path / "a.png").touch()
    deep = [tmp_path]
    try:
        for _ in range(1300):
            deep.append(deep[-1] / "d")
            deep[-1].mkdir()
        for depth in (50, 100):
            (deep[depth] / "b.png").touch()
        found = list(find_pages([str(tmp_path)], []))
        assert [Path(page.name).name for page in found] == ["a.png", "b.png", "b.png", "d"]
        assert [bool(page.problem) for page in found] == [False, False, False, True]
        assert says(found[-1].problem, str(deep[101]), "100 folders")
        with refused():
            list(find_pages([f"{tmp_path}/**/*.png"], []))
    finally:
        for folder in reversed(deep[1:]):  # pytest's own removal recurses
            (folder / "b.png").unlink(missing_ok=True)
            folder.rmdir()


# -- results that were damaged since ----------------------------------------------------------------


def edited(**entries: Any) -> Callable[[bytes], bytes]:
    """A JSON file with other entries."""
    return lambda data: json.dumps(json.loads(data) | entries).encode()


#: A file of a finished page, and what becomes of it.
DAMAGE: list[tuple[str, Callable[[bytes], bytes | None]]] = [
    *((name, lambda data: b"") for name in ("run.json", "status.json")),
    *((name, lambda data: data[:-40]) for name in ("run.json", "status.json")),
    ("run.json", edited(memory={"peak_bytes": 5})),
    ("run.json", lambda data: None),
    ("status.json", lambda data: data.replace(b'"attempts"', b'"tries"')),
    ("status.json", edited(attempts=[])),
    ("status.json", edited(attempts=[{"seconds": "x"}])),
    ("status.json", edited(settings=3)),
    ("status.json", lambda data: b"[" * 100_000),
    ("status.json", lambda data: b'{"schema":1,"id":"\xff"}'),
]


def test_damaged_pages_are_named_and_measured_again_and_nothing_else_suffers(tmp_path, monkeypatch, capsys):
    pages, out = make_pages(tmp_path / "in", *["ok"] * (len(DAMAGE) + 2)), tmp_path / "out"
    all_jobs = jobs(pages)
    assert measure(pages, out).done == len(all_jobs)
    for job, (name, damage) in zip(all_jobs, DAMAGE, strict=False):
        path = out / job.folder / name
        data = damage(path.read_bytes())
        path.unlink()
        if data is not None:
            path.write_bytes(data)
    lines = (out / LISTING).read_text().splitlines()
    lines[-1] = "[1]"
    (out / LISTING).write_text("\n".join(lines))

    monkeypatch.setattr("ocr_phases.batch.child.LocalPool", renderer)
    assert main(["batch", "--render", "only", "--out", str(out)]) == 1
    said = capsys.readouterr()
    assert says(said.out, "1 reports", "1 rendered", "0 failed")
    told = [f"{job.name}: " for job in all_jobs[: len(DAMAGE)]]
    assert all((name in said.out) == (place < 10) for place, name in enumerate(told))
    assert said.out.count("measures it again") == 10
    assert says(said.out, f"{len(DAMAGE) + 1 - 10} more")
    index = build_index(out).pages
    assert index["status"].tolist() == ["failed"] * len(DAMAGE) + ["done", "failed"]
    assert (out / "index.html").exists()

    counts = measure(pages, out)
    assert (counts.kept, counts.done, counts.failed) == (2, len(DAMAGE), 0)
    assert {status["state"] for status in statuses(out).values()} == {"done"}


def test_a_listing_never_leads_out_of_the_batch(tmp_path):
    for folder in ("..", "/etc", "pages/ab/..", "pages/ab/x/y", "pages/ab/x\n"):
        (tmp_path / LISTING).write_text(json.dumps({"id": "a", "page": "a.png", "folder": folder}))
        assert [entry["id"] for entry in read_listing(tmp_path)] == [""]


def test_no_cell_of_the_pages_is_a_formula(tmp_path):
    names = [f"{first}cmd|' /C calc'!A0.png" for first in "=+-@\t\r"]
    listed = [a_job(name, preset=name) for name in names]
    list_pages(listed, tmp_path)
    for job in listed:
        tries = [{"seconds": -1.5, "failure": "page"}]
        put_page(tmp_path, job, None, failure=job.name, reason="-1", attempts=tries)
    assert build_index(tmp_path).pages["page"].tolist() == names
    for name, row in zip(names, pd.read_csv(tmp_path / "pages.csv").to_dict("records"), strict=True):
        assert (row["page"], row["preset"], row["reason"]) == (f"'{name}", f"'{name}", f"'{name}: -1")
        assert row["seconds"] == -1.5  # a number stays one


def test_several_workers_listen_nowhere_and_ctrl_c_is_one_line_and_an_index(tmp_path):
    pages, out = make_pages(tmp_path / "in", "ok", "wait", "sleep", *["ok"] * 5), tmp_path / "out"
    process = start_driver(tmp_path, "--workers", "2")
    with watched_sockets(process.pid) as found:
        wait_for((pages / "page-1.began").exists)
        wait_for(lambda: list(out.rglob("status.json")))
        wait_for(lambda: any("batch_stub" in one for one in list(found)))
    workers = children(process.pid)
    assert len(workers) == 2 and not any(found.values())
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    *progress, stopped = said.splitlines()
    assert len(progress) <= 1 and all(line.startswith("Measuring: ") for line in progress)
    assert stopped == "ocr-phases: stopped."
    assert "stopped early" in (out / "index.html").read_text()
    assert not any(Path(f"/proc/{pid}").exists() for pid in workers)


def test_rendering_alone_touches_a_batch_s_folder_only(tmp_path, capsys):
    (tmp_path / "jobs.jsonl").write_text('{"a": 1}\n')
    (tmp_path / "index.html").write_text("mine")
    assert main(["batch", "--out", str(tmp_path), "--render", "only"]) == 2
    assert "holds no batch" in capsys.readouterr().err
    assert (tmp_path / "index.html").read_text() == "mine"
