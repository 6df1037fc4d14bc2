"""Every file that a batch trusts, damaged in every way: no traceback, no hang, and never a false
result.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import batch_example
import batch_stub
import pandas as pd
import pytest
from batch_example import Here, make_pages
from example_run import make_run
from matplotlib.figure import Figure

from ocr_phases.analyse.quality import find_truth
from ocr_phases.batch import local_workers, worker_process
from ocr_phases.batch.archive import LISTING, read_listing
from ocr_phases.batch.outcome import Outcome
from ocr_phases.cli import main

#: The files of a finished page, and those of the batch.
OF_PAGE = ("run.json", "status.json", "figures.json", "truth.json", "report.html")
OF_BATCH = (LISTING, "left_out.json", "pages.csv", "index.html")
#: Those of the batch that are read; the others are only replaced, whatever they hold.
READ_OF_BATCH = (LISTING, "left_out.json")
PAGES = 3

#: Columns that differ between two honest measurements, or that tell of the damage.
TIMES = ["seconds", "attempts", "reason"]


def in_this_process(*_: object) -> Here:
    """A pool of this process, in which the stub measures and renders."""

    def answer(request: dict[str, object]) -> Outcome:
        return batch_stub.handler(request, lambda: None)

    return Here(answer)


@pytest.fixture(autouse=True, scope="module")
def quick_commands() -> Iterator[None]:
    """Two thirds of a command's time are the histograms of the index, which no test here reads, and
    a tenth is the wait for the disk, which only matters where the power fails.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ocr_phases.show.batch_page.plot_distributions", lambda pages: Figure())
        patch.setattr(os, "fsync", lambda _: None)
        yield


def contents(folder: Path) -> dict[Path, bytes]:
    """What each file of a folder holds."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with pages, their reference texts, and the finished batch of them.

    Its files are shared with the tests' own folders: nothing may write into one, neither a test nor
    a command, which put a new file in its place.
    """
    place = tmp_path_factory.mktemp("finished")
    make_pages(place / "in", *["ok"] * PAGES)
    (place / "truth").mkdir()
    for number in range(PAGES):
        (place / "truth" / f"page-{number}.md").write_text("# A page\n\nwith some words")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(local_workers, "LocalWorkers", in_this_process)
        patch.setattr(batch_stub, "RECORD", place / "short.json")
        make_run(max_tokens=4, repeats=1, embed=False).save(place / "short.json")
        assert main(command(place)) == 0
    made = contents(place)
    yield place
    assert contents(place) == made


@pytest.fixture
def place(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The batch's folder anew, with hard links to its files; its pages lie where they were."""
    monkeypatch.setattr(local_workers, "LocalWorkers", in_this_process)
    monkeypatch.setattr(batch_stub, "RECORD", finished / "short.json")
    shutil.copytree(finished / "out", tmp_path / "out", copy_function=os.link)
    for name in ("in", "truth"):
        (tmp_path / name).symlink_to(finished / name)
    return tmp_path


def command(place: Path) -> list[str]:
    """The command that made the batch."""
    options = ["--truth", str(place / "truth"), "--device", "cpu"]
    return ["batch", str(place / "in"), "--out", str(place / "out"), *options]


@pytest.fixture(scope="module")
def whole(finished: Path) -> pd.DataFrame:
    """The table of pages of the finished batch, which no test changes."""
    return read_pages(finished / "out")


def read_pages(out: Path) -> pd.DataFrame:
    """The table of pages, without what differs between two honest measurements."""
    return pd.read_csv(out / "pages.csv").drop(columns=TIMES)


# -- the kinds of damage ---------------------------------------------------------------------------


def with_changed_digit(data: bytes) -> bytes:
    """The first digit of a decimal fraction changed, as in ``831.6``; else the byte in the
    middle.
    """
    found = re.search(rb"(\d)\.\d", data)
    place = found.start(1) if found else len(data) // 2
    digit = b"8" if data[place : place + 1] == b"7" else b"7"
    return data[:place] + digit + data[place + 1 :]


def without_a_key(data: bytes) -> bytes:
    """The first of the keys that a reader asks for has another name."""
    return re.sub(rb'"(warnings|attempts|folder|text|spans|hash)":', b'"x\\1":', data, count=1)


def of_wrong_type(data: bytes) -> bytes:
    """Every text is a list."""
    return re.sub(rb'":\s*"[^"]*"', b'": [{}]', data)


def emptied(data: bytes) -> bytes:
    return b""


def truncated(data: bytes) -> bytes:
    return data[: len(data) // 2]


def with_nan(data: bytes) -> bytes:
    """The first number is none."""
    return re.sub(rb":\s*-?\d+(\.\d+)?", b": NaN", data, count=1)


def with_infinity(data: bytes) -> bytes:
    """The first number is larger than a float can be."""
    return re.sub(rb":\s*-?\d+", b": 1e999", data, count=1)


def no_utf8(data: bytes) -> bytes:
    return data.replace(b"a", b"\xff", 1)


def foreign_json(data: bytes) -> bytes:
    return b'{"schema": 5, "id": "x", "page": "", "state": "done", "row": {}}\n'


def a_number(data: bytes) -> bytes:
    return b"7"


def deeply_nested(data: bytes) -> bytes:
    return b"[" * 100_000


def without_line_end(data: bytes) -> bytes:
    return b"x" * (3 * 2**20)


def all_zeros(data: bytes) -> bytes:
    return bytes(len(data))


#: What becomes of a file's content.
CONTENTS: dict[str, Callable[[bytes], bytes]] = {
    "changed digit": with_changed_digit,
    "missing key": without_a_key,
    "wrong type": of_wrong_type,
    "empty": emptied,
    "truncated": truncated,
    "NaN": with_nan,
    "infinite": with_infinity,
    "no UTF-8": no_utf8,
    "foreign JSON": foreign_json,
    "a number": a_number,
    "deep": deeply_nested,
    "no line end": without_line_end,
    "zeros": all_zeros,
}

USERS_TEXT = "a text of the user's own"


def leave_missing(path: Path) -> None:
    pass


def make_pipe(path: Path) -> None:
    os.mkfifo(path)


def make_full_folder(path: Path) -> None:
    (path / "in it").mkdir(parents=True)


def link_to_another(path: Path) -> None:
    """A link to a file that must not be written."""
    precious = path.parent / "precious.txt"
    precious.write_text(USERS_TEXT)
    path.symlink_to(precious)


def link_to_itself(path: Path) -> None:
    path.symlink_to(path.name)


def make_huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(2**34)  # sparse


#: What stands in a file's place.
REPLACEMENTS: dict[str, Callable[[Path], None]] = {
    "missing": leave_missing,
    "pipe": make_pipe,
    "folder": Path.mkdir,
    "full folder": make_full_folder,
    "link": link_to_another,
    "link to itself": link_to_itself,
    "huge": make_huge,
}
#: What can be moved out of the way, so that the page is made anew. What stays is a folder with
#: something in it, and what is no regular file, which the user may have put there.
MENDED = (*CONTENTS, "missing", "huge")


def damage(path: Path, kind: str) -> None:
    """Damage a file in one of these ways."""
    data = path.read_bytes()
    path.unlink()
    if kind in CONTENTS:
        path.write_bytes(CONTENTS[kind](data))
    else:
        REPLACEMENTS[kind](path)


def all_damages() -> Iterator[tuple[str, tuple[str, ...]]]:
    """A file's name, and the ways in which it is damaged.

    A file of a page is damaged in another way in each page, where all of these ways can be mended,
    else in one page. A file of the batch is damaged in one way at a time.
    """
    for name in OF_PAGE:
        for first in range(0, len(MENDED), PAGES):
            yield name, MENDED[first : first + PAGES]
        for kind in REPLACEMENTS:
            if kind not in MENDED:
                yield name, (kind,)
    for name in OF_BATCH:
        contents = CONTENTS if name in READ_OF_BATCH else ["empty"]
        for kind in (*contents, *REPLACEMENTS):
            yield name, (kind,)


def damage_files(name: str, kinds: tuple[str, ...], out: Path) -> None:
    """Damage the file of this name: of the batch, or of as many pages as there are kinds."""
    folders = [out]
    if name in OF_PAGE:
        folders = [out / entry["folder"] for entry in read_listing(out)]
    for folder, kind in zip(folders, kinds, strict=False):
        damage(folder / name, kind)


def check_outcome(place: Path, whole: pd.DataFrame, code: int, said: str) -> None:
    """A sentence, or a table in which every page that is ``done`` says what it did before."""
    assert "Traceback" not in said
    assert code in (0, 1, 2), said
    for precious in (place / "out").rglob("precious.txt"):
        assert precious.read_text() == USERS_TEXT
    if code == 2:
        assert said.strip().splitlines()[-1].endswith(".")
        return
    pages = read_pages(place / "out")
    done = pages[pages["status"] == "done"]
    expected = whole[whole["id"].isin(done["id"])]
    pd.testing.assert_frame_equal(
        done.reset_index(drop=True), expected.reset_index(drop=True), check_dtype=False
    )


# -- what becomes of it ----------------------------------------------------------------------------

EVERY_DAMAGE = [
    pytest.param(name, kinds, id=f"{name}-{', '.join(kinds)}") for name, kinds in all_damages()
]


@pytest.mark.parametrize(("name", "kinds"), EVERY_DAMAGE)
def test_a_damaged_file_is_made_anew_or_named(
    name: str,
    kinds: tuple[str, ...],
    place: Path,
    whole: pd.DataFrame,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = place / "out"
    damage_files(name, kinds, out)

    code = main(command(place))

    check_outcome(place, whole, code, capsys.readouterr().err)
    if name in OF_PAGE and set(kinds) <= set(MENDED):
        assert code == 0
        pages = read_pages(out)
        assert list(pages["status"]) == ["done"] * PAGES
        assert pages["report"].all()


@pytest.mark.parametrize(("name", "kinds"), EVERY_DAMAGE)
def test_an_archive_that_is_only_shown_never_shows_what_was_damaged(
    name: str,
    kinds: tuple[str, ...],
    place: Path,
    whole: pd.DataFrame,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = place / "out"
    damage_files(name, kinds, out)

    code = main(["batch", "--render", "only", "--out", str(out)])

    check_outcome(place, whole, code, capsys.readouterr().err)
    if len(kinds) > 1:  # no page's damage hides another's
        assert code in (0, 1)


def write_anew(path: Path, data: bytes) -> None:
    """A file in place of this one, which other folders share."""
    path.unlink()
    path.write_bytes(data)


def change_some_bytes(path: Path, draw: random.Random) -> None:
    """One to three bytes of a file get other values; an empty one stays so."""
    data = bytearray(path.read_bytes())
    if data:
        for _ in range(draw.randint(1, 3)):
            data[draw.randrange(len(data))] = draw.randrange(256)
    write_anew(path, data)


@pytest.mark.parametrize("seed", range(4))
def test_many_mutations_at_once_bring_no_false_result(
    seed: int, place: Path, whole: pd.DataFrame, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three files of every page get several changed bytes, three times over."""
    out = place / "out"
    draw = random.Random(seed)
    for _ in range(3):
        folders = [entry["folder"] for entry in read_listing(out) if entry["folder"]]
        for folder in folders:
            for name in draw.sample(OF_PAGE, 3):
                change_some_bytes(out / folder / name, draw)

        assert main(command(place)) == 0

        check_outcome(place, whole, 0, capsys.readouterr().err)
        assert list(read_pages(out)["status"]) == ["done"] * PAGES


def age_status(path: Path) -> None:
    """The status of a page as version 0.2 wrote it."""
    status = json.loads(path.read_bytes())
    del status["sha256"]
    del status["truth"]
    del status["report"]["sha256"]
    write_anew(path, json.dumps(status).encode())


def age_figures(path: Path) -> None:
    """The figures of a page as version 0.2 wrote them, with a wrong one."""
    figures = json.loads(path.read_bytes())
    del figures["sha256"]
    figures["schema"] = 4
    figures["row"]["prefill_ms"] = 1.5
    write_anew(path, json.dumps(figures).encode())


def test_an_archive_of_version_0_2_is_taken_and_its_figures_made_anew(
    place: Path, whole: pd.DataFrame
) -> None:
    out = place / "out"
    for path in out.glob("pages/*/*/status.json"):
        age_status(path)
        age_figures(path.with_name("figures.json"))

    assert main(["batch", "--render", "only", "--out", str(out)]) == 0

    pd.testing.assert_frame_equal(read_pages(out), whole)


@pytest.mark.parametrize("page", ["", ".", "..", "/", "a/..", "#1", "a\0b", "x" * 5000])
def test_a_page_without_a_name_has_no_truth(page: str, tmp_path: Path) -> None:
    assert find_truth(page, tmp_path) is None


@pytest.mark.parametrize("page", ["", "..", "/", "other.png"])
def test_a_line_of_the_listing_that_does_not_follow_from_its_job_is_damaged(
    page: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = place / "out"
    listing = out / LISTING
    entries = [json.loads(line) for line in listing.read_text().splitlines()]
    entries[1]["page"] = page
    write_anew(listing, "".join(json.dumps(entry) + "\n" for entry in entries).encode())

    truth = str(place / "truth")
    code = main(["batch", "--render", "only", "--out", str(out), "--truth", truth])

    assert code == 1
    assert "jobs.jsonl, line 2: " in capsys.readouterr().out
    assert list(read_pages(out)["status"]) == ["done", "failed", "done"]


def test_a_clock_that_is_set_back_changes_no_duration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    falling_times = iter(range(10**9, 0, -(10**6)))
    monkeypatch.setattr(worker_process.time, "time", lambda: float(next(falling_times)))
    pages = make_pages(tmp_path / "in", "ok", "ok")

    batch_example.measure(pages, tmp_path / "out")

    for status in batch_example.statuses(tmp_path / "out").values():
        (attempt,) = status["attempts"]
        assert attempt.load_s >= 0.0
        assert attempt.seconds > 0.0
