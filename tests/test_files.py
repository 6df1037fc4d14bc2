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
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from example_run import make_run
from refusals import refused

from ocr_phases import PhaseRun, files
from ocr_phases.cli import main
from ocr_phases.errors import CannotWrite


@pytest.fixture
def odd_files(tmp_path: Path) -> dict[str, Path]:
    """What has a name and is no regular file, each also through a link, by its kind."""
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as unix:
        unix.bind(str(tmp_path / "socket"))
    (tmp_path / "folder").mkdir()
    paths = {
        "pipe": tmp_path / "pipe",
        "socket": tmp_path / "socket",
        "folder": tmp_path / "folder",
        "device": Path("/dev/zero"),
    }
    with contextlib.suppress(PermissionError):  # only root makes device nodes
        os.mknod(tmp_path / "node", stat.S_IFCHR | 0o666, os.makedev(1, 3))
        paths["node"] = tmp_path / "node"
    links = {}
    for name, path in paths.items():
        link = tmp_path / f"to-{name}"
        link.symlink_to(path)
        links[f"{name} link"] = link
    return paths | links


# -- what is read ----------------------------------------------------------------------------------


def test_only_regular_files_are_read(odd_files: dict[str, Path]) -> None:
    for path in odd_files.values():
        with refused():
            files.read_regular(path)


def test_a_file_beyond_the_limit_is_refused(tmp_path: Path) -> None:
    sparse = tmp_path / "sparse.png"
    with sparse.open("wb") as file:
        file.truncate(300 * 10**9)
    three_bytes = tmp_path / "three"
    three_bytes.write_bytes(b"abc")

    assert files.read_regular(three_bytes, limit=3) == b"abc"
    with refused():
        files.read_regular(sparse)
    with refused():
        files.read_regular(three_bytes, limit=2)


#: A regular file of 0 bytes that gives terabytes.
ENDLESS = Path("/proc/self/pagemap")


@pytest.mark.skipif(not ENDLESS.exists(), reason="needs Linux's /proc")
def test_a_file_without_an_end_is_refused() -> None:
    with refused():
        files.read_regular(ENDLESS)


def test_a_range_names_each_of_its_pages() -> None:
    assert files.each_page("a b.PDF#9-11") == ["a b.PDF#9", "a b.PDF#10", "a b.PDF#11"]


@pytest.mark.parametrize(
    "page", ["a.png", "a.png#1-2", "a.pdf", "a.pdf#3", "a.pdf#x-2", "a.pdf#-2", "a.pdf#1-"]
)
def test_any_other_name_is_one_page(page: str) -> None:
    assert files.each_page(page) == [page]


@pytest.mark.parametrize("numbers", ["3-2", "1-999999999"])
def test_a_range_without_pages_or_with_too_many_is_refused(numbers: str) -> None:
    with refused():
        files.each_page(f"a.pdf#{numbers}")


# -- what is written -------------------------------------------------------------------------------


def write_whole(path: Path) -> None:
    files.write_atomic(path, b"new")


def test_only_regular_files_are_written(odd_files: dict[str, Path], tmp_path: Path) -> None:
    # A device of the system's own would be missed if it broke.
    paths = [path for name, path in odd_files.items() if not name.startswith("device")]
    modes = {path: path.lstat().st_mode for path in paths}

    for path in paths:
        for write in (files.output_file, make_run().save, write_whole):
            with refused(CannotWrite):
                write(path)

    for path, mode in modes.items():
        assert path.lstat().st_mode == mode
    assert not list(tmp_path.glob(".ocr-*"))


def test_links_are_written_through(tmp_path: Path) -> None:
    real = tmp_path / "real"
    real.mkdir()
    links = {"run.json": "real/run.json", "again.json": "run.json", "new.json": "real/new.json"}
    for name, target in links.items():
        (tmp_path / name).symlink_to(target)
    (real / "run.json").write_bytes(b"old")

    for name in links:
        path = tmp_path / name
        assert files.output_file(path, overwrite=True) == path
        assert files.write_atomic(path, name.encode()) == path

    for name, target in links.items():
        assert str((tmp_path / name).readlink()) == target
    contents = {path.name: path.read_bytes() for path in real.iterdir()}
    assert contents == {"run.json": b"again.json", "new.json": b"new.json"}


def test_the_longest_name_is_written(tmp_path: Path) -> None:
    """The table of wrong commands has names that are too long."""
    target = files.output_file(tmp_path / ("a" * 250 + ".json"))
    assert not target.exists()  # the probe leaves nothing

    assert make_run().save(target) == target

    written = target.read_bytes()
    assert written
    assert files.output_file(target).read_bytes() == written


@pytest.mark.parametrize("name", ["ring", "nul\0.json", "\ud800"])
@pytest.mark.parametrize("probe", [files.output_file, files.output_folder])
def test_a_name_that_the_file_system_refuses_is_not_written(
    probe: Callable[[Path], Path], name: str, tmp_path: Path
) -> None:
    (tmp_path / "ring").symlink_to("ring")
    with pytest.raises(CannotWrite):
        probe(tmp_path / name)


#: What a user may keep under the name of a record or a trace.
FOREIGN_CONTENTS = [
    b"mine",
    b'{"traceEvents": []}',
    b"\x1f\x8bmine",
    b'{"schema": 1, "kind": "other"}',
]


def test_a_name_that_was_given_replaces_records_and_traces_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(max_tokens=4)
    writers = {
        "a.json": run.save,
        "a.json.gz": run.save,
        "empty": run.save,
        "trace.json": run.chrome_trace,
    }
    for name, write in writers.items():
        path = tmp_path / name
        path.touch()

        write(path)  # an empty file is nobody's
        assert capsys.readouterr().err == ""

        write(path)
        for content in FOREIGN_CONTENTS:
            path.write_bytes(content)
            with refused(CannotWrite):
                write(path)
            assert path.read_bytes() == content
        write(path, overwrite=True)
        assert capsys.readouterr().err == f"Replaced {path}.\n" * 2

    assert len(list(tmp_path.iterdir())) == len(writers)


def test_what_a_kill_leaves_of_an_output_is_known_as_the_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "x").touch()  # another's
    files.write_into(tmp_path, {"a": b"1", "b": b"1", "c": b"1"})
    replace = os.replace
    calls = itertools.count()

    def killed_at_third(*paths: Any) -> None:
        if next(calls) == 2:  # after the manifest and one file
            raise KeyboardInterrupt
        replace(*paths)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(os, "replace", killed_at_third)
        files.write_into(tmp_path, {"a": b"2", "b": b"2", "d": b"2"}, stale="c")
    assert files.check_names(tmp_path, "[abcd]") == ["a", "b", "c"]

    files.write_into(tmp_path, {"a": b"3", "b": b"3"}, stale="[abcd]")
    assert files.check_names(tmp_path, "[abcd]") == ["a", "b"]


def test_a_folder_whose_manifest_is_the_users_is_not_written_into(tmp_path: Path) -> None:
    (tmp_path / files.MANIFEST_NAME).write_text("mine")
    with refused(CannotWrite):
        files.write_into(tmp_path, {"a": b"4"})


def test_many_at_once_leave_as_many_whole_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run = make_run(repeats=1)
    start = threading.Barrier(8)

    def save_five(_: int) -> list[Path]:
        """One file that all threads write, and the four that this one makes."""
        start.wait()
        run.save("given.json")
        return [files.save_new(run.save, "run.json") for _ in range(4)]

    saved: list[Path] = []
    with ThreadPoolExecutor(8) as pool:
        for paths in pool.map(save_five, range(8)):
            saved += paths

    assert len(set(saved)) == 32
    assert {path.name for path in tmp_path.iterdir()} == {"given.json", *map(str, saved)}
    for path in tmp_path.iterdir():
        assert path.read_bytes() == run.to_json()


# -- what is temporary -----------------------------------------------------------------------------


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A system's folder for temporary files of this test alone."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def test_what_cannot_be_saved_in_its_place_is_saved_elsewhere(
    tmp_path: Path,
    temporary: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    run = make_run()

    def measure(*_: Any, **__: Any) -> PhaseRun:
        shutil.rmtree(tmp_path / "out")  # the folder goes while the page is measured
        return run

    monkeypatch.setattr("ocr_phases.cli.measuring.load_session", lambda arguments: None)
    monkeypatch.setattr("ocr_phases.cli.measuring.measure", measure)

    code = main(["profile", "page.png", "--save", str(tmp_path / "out" / "run.json")])

    assert code == 2
    said = re.fullmatch(
        r"ocr-phases: The record is saved as (\S+): "
        r"\S+/out/run.json cannot be written \(No such file or directory\)\.\n",
        capsys.readouterr().err,
    )
    assert said
    files.TemporaryFolder().cleanup()  # which removes what others left, but no record
    assert Path(said[1]).is_relative_to(temporary)
    assert PhaseRun.load(said[1]).to_dict() == run.to_dict()


def test_the_home_folder_takes_what_the_temporary_folder_cannot(
    tmp_path: Path, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary.rmdir()

    monkeypatch.setenv("HOME", str(tmp_path))
    with refused(CannotWrite), files.rescued(make_run().save):
        make_run().save(tmp_path / "none" / "run.json")

    monkeypatch.setenv("HOME", str(tmp_path / "none"))
    with refused(CannotWrite):
        files.TemporaryFolder()


#: A process that is killed while it has a temporary folder.
KILLED = """
import os, signal, sys
from ocr_phases.files import TemporaryFolder
folder = TemporaryFolder()
open(os.path.join(folder.name, "left"), "w").close()
os.kill(os.getpid(), signal.SIGKILL)"""


def test_the_private_folder_of_a_killed_process_goes_with_the_next_one(temporary: Path) -> None:
    of_others = {temporary / "ocr-1-other-abc", temporary / "ocr-mine"}
    for folder in of_others:
        folder.mkdir()
    environment = {**os.environ, "TMPDIR": str(temporary)}

    with files.TemporaryFolder() as kept:
        subprocess.run([sys.executable, "-c", KILLED], env=environment, check=False)
        (killed,) = set(temporary.iterdir()) - {Path(kept)} - of_others
        assert (killed / "left").exists()

        with files.TemporaryFolder() as new:
            assert set(temporary.iterdir()) == {Path(kept), Path(new)} | of_others
            assert stat.S_IMODE(Path(new).stat().st_mode) == 0o700

    assert set(temporary.iterdir()) == of_others
