"""Only regular files are read and written, links are followed, and nothing temporary is left behind."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from ocr_phases.errors import OcrPhasesError
from ocr_phases.files import read_regular


@pytest.fixture
def odd(tmp_path: Path) -> dict[str, Path]:
    """What has a name and is no regular file, each also through a link."""
    os.mkfifo(tmp_path / "pipe")
    with socket.socket(socket.AF_UNIX) as unix:
        unix.bind(str(tmp_path / "socket"))
    (tmp_path / "folder").mkdir()
    found = {name: tmp_path / name for name in ("pipe", "socket", "folder")} | {"device": Path("/dev/zero")}
    for name, path in list(found.items()):
        found[f"{name} link"] = tmp_path / f"to-{name}"
        found[f"{name} link"].symlink_to(path)
    return found


def test_only_regular_files_are_read(odd: dict[str, Path]) -> None:
    for path in odd.values():
        with pytest.raises(OcrPhasesError, match="name a regular file"):
            read_regular(path)


def test_a_file_beyond_the_limit_is_refused_before_it_is_read(tmp_path: Path) -> None:
    sparse = tmp_path / "sparse.png"
    with sparse.open("wb") as file:
        file.truncate(300 * 10**9)
    with pytest.raises(OcrPhasesError, match=r"has 286,102.3 MiB: give a file of at most 1,024.0 MiB"):
        read_regular(sparse)
    (tmp_path / "three").write_bytes(b"abc")
    assert read_regular(tmp_path / "three", limit=3) == b"abc"
    with pytest.raises(OcrPhasesError, match="at most 0.0 MiB"):
        read_regular(tmp_path / "three", limit=2)


def test_a_file_without_an_end_is_refused() -> None:
    endless = Path("/proc/self/pagemap")  # a regular file of 0 bytes that gives terabytes
    if not endless.exists():
        pytest.skip("needs Linux's /proc")
    with pytest.raises(OcrPhasesError, match="grows while it is read"):
        read_regular(endless)


def test_a_missing_file_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        read_regular(tmp_path / "none")
