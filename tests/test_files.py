"""Only regular files are read and written, links are followed, and nothing temporary is left
behind.
"""

import contextlib
import itertools
import os
import re
import shutil
import socket
import stat
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from example_run import make_run
from refusals import refused

from ocr_phases import PhaseRun, files
from ocr_phases.cli import main
from ocr_phases.errors import CannotWrite


@pytest.fixture
def odd(tmp_path):
    """What has a name and is no regular file, each also through a link."""
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as unix:
        unix.bind(str(tmp_path / "socket"))
    (tmp_path / "folder").mkdir()
    found = {name: tmp_path / name for name in ("pipe", "socket", "folder")} | {
        "device": Path("/dev/zero")
    }
    with contextlib.suppress(PermissionError):  # only root makes device nodes
        os.mknod(tmp_path / "node", stat.S_IFCHR | 0o666, os.makedev(1, 3))
        found["node"] = tmp_path / "node"
    for name, path in list(found.items()):
        found[f"{name} link"] = tmp_path / f"to-{name}"
        found[f"{name} link"].symlink_to(path)
    return found


def test_only_regular_files_are_read_and_written(odd, tmp_path):
    for path in odd.values():
        with refused():
            files.read_regular(path)
    mine = [
        path for name, path in odd.items() if not name.startswith("device")
    ]  # one that breaks is missed
    before = {path: path.lstat().st_mode for path in mine}
    for path in mine:
        for write in (
            files.output_file,
            make_run().save,
            lambda path: files.write_atomic(path, b"new"),
        ):
            with refused(CannotWrite):
                write(path)
    assert {path: path.lstat().st_mode for path in mine} == before
    assert not list(tmp_path.glob(".ocr-*"))


def test_a_file_beyond_the_limit_or_without_an_end_is_refused(tmp_path):
    sparse, three = tmp_path / "sparse.png", tmp_path / "three"
    with sparse.open("wb") as file:
        file.truncate(300 * 10**9)
    three.write_bytes(b"abc")
    assert files.read_regular(three, limit=3) == b"abc"
    endless = Path("/proc/self/pagemap")  # a regular file of 0 bytes that gives terabytes
    for path, limit in (
        (sparse, {}),
        (three, {"limit": 2}),
        *([(endless, {})] if endless.exists() else []),
    ):
        with refused():
            files.read_regular(path, **limit)


def test_a_range_names_each_of_its_pages_and_any_other_name_is_one():
    assert files.each_page("a b.PDF#9-11") == [f"a b.PDF#{number}" for number in (9, 10, 11)]
    for page in ("a.png", "a.png#1-2", "a.pdf", "a.pdf#3", "a.pdf#x-2", "a.pdf#-2", "a.pdf#1-"):
        assert files.each_page(page) == [page]
    for numbers in ("3-2", "1-999999999"):
        with refused():
            files.each_page(f"a.pdf#{numbers}")


def test_links_are_written_through(tmp_path):
    (tmp_path / "real").mkdir()
    links = {"run.json": "real/run.json", "again.json": "run.json", "new.json": "real/new.json"}
    for name, leads_to in links.items():
        (tmp_path / name).symlink_to(leads_to)
    (tmp_path / "real" / "run.json").write_bytes(b"old")
    for name in links:
        assert files.output_file(tmp_path / name, overwrite=True) == tmp_path / name
        assert files.write_atomic(tmp_path / name, name.encode()) == tmp_path / name
    assert {name: str((tmp_path / name).readlink()) for name in links} == links
    found = {path.name: path.read_bytes() for path in (tmp_path / "real").iterdir()}
    assert found == {"run.json": b"again.json", "new.json": b"new.json"}


def test_the_longest_name_is_written_and_one_that_the_file_system_refuses_is_not(tmp_path):
    """The table of wrong commands has names that are too long."""
    target = files.output_file(tmp_path / ("a" * 250 + ".json"))
    assert not target.exists()  # the probe leaves nothing
    assert make_run().save(target) == target
    assert files.output_file(target).read_bytes() == target.read_bytes() != b""
    (tmp_path / "ring").symlink_to("ring")
    for name in ("ring", "nul\0.json", "\ud800"):
        for make in (files.output_file, files.output_folder):
            with pytest.raises(CannotWrite):
                make(tmp_path / name)


def test_a_name_that_was_given_replaces_records_and_traces_alone(tmp_path, capsys):
    run = make_run(max_tokens=4)
    writers = dict.fromkeys(("a.json", "a.json.gz", "empty"), run.save) | {
        "trace.json": run.chrome_trace
    }
    for name, write in writers.items():
        path = tmp_path / name
        path.touch()
        write(path)
        assert capsys.readouterr().err == ""
        write(path)
        for other in (
            b"mine",
            b'{"traceEvents": []}',
            b"\x1f\x8bmine",
            b'{"schema": 1, "kind": "other"}',
        ):
            path.write_bytes(other)
            with refused(CannotWrite):
                write(path)
            assert path.read_bytes() == other
        write(path, overwrite=True)
        assert capsys.readouterr().err == f"Replaced {path}.\n" * 2
    assert len(list(tmp_path.iterdir())) == 4


def test_what_a_kill_leaves_of_an_output_is_known_as_the_packages(tmp_path, monkeypatch):
    (tmp_path / "x").touch()  # another's
    files.write_into(tmp_path, {"a": b"1", "b": b"1", "c": b"1"})
    replace, calls = os.replace, itertools.count()

    def killed(*paths):
        if next(calls) == 2:  # after the manifest and one file
            raise KeyboardInterrupt
        replace(*paths)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(os, "replace", killed)
        files.write_into(tmp_path, {"a": b"2", "b": b"2", "d": b"2"}, stale="c")
    assert files.check_names(tmp_path, "[abcd]") == ["a", "b", "c"]
    files.write_into(tmp_path, {"a": b"3", "b": b"3"}, stale="[abcd]")
    assert files.check_names(tmp_path, "[abcd]") == ["a", "b"]
    (tmp_path / files.MANIFEST_NAME).write_text("mine")
    with refused(CannotWrite):
        files.write_into(tmp_path, {"a": b"4"})


def test_many_at_once_leave_as_many_whole_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    run, start = make_run(repeats=1), threading.Barrier(8)

    def race(_):
        start.wait()
        run.save("given.json")
        return [files.save_new(run.save, "run.json") for _ in range(4)]

    with ThreadPoolExecutor(8) as pool:
        saved = [path for paths in pool.map(race, range(8)) for path in paths]
    assert {path.name for path in tmp_path.iterdir()} == {"given.json", *map(str, saved)}
    assert len(set(saved)) == 32
    assert {path.read_bytes() for path in tmp_path.iterdir()} == {run.to_json()}


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """A system's folder for temporary files of this test alone."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    return tmp_path / "tmp"


def test_what_cannot_be_saved_in_its_place_is_saved_elsewhere(
    tmp_path, temporary, monkeypatch, capsys
):
    run = make_run()

    def measure(*_, **__):
        shutil.rmtree(tmp_path / "out")  # the folder goes while the page is measured
        return run

    monkeypatch.setattr("ocr_phases.cli.measuring.load_session", lambda arguments: None)
    monkeypatch.setattr("ocr_phases.cli.measuring.measure", measure)
    assert main(["profile", "page.png", "--save", str(tmp_path / "out" / "run.json")]) == 2
    reason = r"\S+/out/run.json cannot be written \(No such file or directory\)\."
    said = re.fullmatch(
        rf"ocr-phases: The record is saved as (\S+): {reason}\n", capsys.readouterr().err
    )
    assert said
    files.TemporaryFolder().cleanup()  # sweeps
    assert Path(said[1]).is_relative_to(temporary)
    assert PhaseRun.load(said[1]).to_dict() == run.to_dict()


def test_the_home_folder_takes_what_the_temporary_folder_cannot(tmp_path, temporary, monkeypatch):
    temporary.rmdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    with refused(CannotWrite), files.rescued(make_run().save):
        make_run().save(tmp_path / "none" / "run.json")
    monkeypatch.setenv("HOME", str(tmp_path / "none"))
    with refused(CannotWrite):
        files.TemporaryFolder()


def test_the_private_folder_of_a_killed_process_goes_with_the_next_one(temporary):
    program = """
import os, signal, sys
from ocr_phases.files import TemporaryFolder
folder = TemporaryFolder()
open(os.path.join(folder.name, "left"), "w").close()
os.kill(os.getpid(), signal.SIGKILL)"""
    environment = {**os.environ, "TMPDIR": str(temporary)}
    others = [temporary / name for name in ("ocr-1-other-abc", "ocr-mine")]
    for other in others:
        other.mkdir()
    with files.TemporaryFolder() as kept:
        subprocess.run([sys.executable, "-c", program], env=environment, check=False)
        (killed,) = set(temporary.iterdir()) - {Path(kept), *others}
        assert (killed / "left").exists()
        with files.TemporaryFolder() as new:
            assert set(temporary.iterdir()) == {Path(kept), Path(new), *others}
            assert stat.S_IMODE(Path(new).stat().st_mode) == 0o700
    assert set(temporary.iterdir()) == set(others)
