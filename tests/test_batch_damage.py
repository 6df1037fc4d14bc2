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
def index_without_pictures() -> Iterator[None]:
    """Two thirds of a command's time are the histograms of the index, which no test here reads."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("ocr_phases.show.batch_page.plot_distributions", lambda pages: Figure())
        yield


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with pages, their reference texts, and the finished batch of them."""
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
    return place


@pytest.fixture
def place(finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the batch's folder; its pages lie where they were."""
    monkeypatch.setattr(local_workers, "LocalWorkers", in_this_process)
    monkeypatch.setattr(batch_stub, "RECORD", finished / "short.json")
    shutil.copytree(finished / "out", tmp_path / "out")
    for name in ("in", "truth"):
        (tmp_path / name).symlink_to(finished / name)
    return tmp_path


def command(place: Path) -> list[str]:
    """The command that made the batch."""
    options = ["--truth", str(place / "truth"), "--device", "cpu"]
    return ["batch", str(place / "in"), "--out", str(place / "out"), *options]


def table(out: Path) -> pd.DataFrame:
    return pd.read_csv(out / "pages.csv").drop(columns=TIMES)


def with_changed_digit(data: bytes) -> bytes:
    """The first digit of a decimal fraction changed, as in ``831.6``; else the byte in the
    middle.
    """
    found = re.search(rb"(\d)\.\d", data)
    at = found.start(1) if found else len(data) // 2
    return data[:at] + (b"7" if data[at : at + 1] != b"7" else b"8") + data[at + 1 :]


def without_a_key(data: bytes) -> bytes:
    """The last key of the innermost object that is last."""
    return re.sub(rb'"(warnings|attempts|folder|text|spans|hash)":', b'"x\\1":', data, count=1)


def of_wrong_type(data: bytes) -> bytes:
    return re.sub(rb'":\s*"[^"]*"', b'": [{}]', data)


def with_nan(data: bytes) -> bytes:
    return re.sub(rb":\s*-?\d+(\.\d+)?", b": NaN", data, count=1)


DATA: dict[str, Callable[[bytes], bytes]] = {
    "changed digit": with_changed_digit,
    "missing key": without_a_key,
    "wrong type": of_wrong_type,
    "empty": lambda data: b"",
    "truncated": lambda data: data[: len(data) // 2],
    "NaN": with_nan,
    "infinite": lambda data: re.sub(rb":\s*-?\d+", b": 1e999", data, count=1),
    "no UTF-8": lambda data: data.replace(b"a", b"\xff", 1),
    "foreign JSON": lambda data: (
        b'{"schema": 5, "id": "x", "page": "", "state": "done", "row": {}}\n'
    ),
    "a number": lambda data: b"7",
    "deep": lambda data: b"[" * 100_000,
    "no line end": lambda data: b"x" * (3 * 2**20),
    "zeros": lambda data: bytes(len(data)),
}


def fifo(path: Path) -> None:
    os.mkfifo(path)


def huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(2**34)  # sparse


def link_to_another(path: Path) -> None:
    precious = path.parent / "precious.txt"
    precious.write_text("a text of the user's own")
    path.symlink_to(precious)


KINDS: dict[str, Callable[[Path], None]] = {
    "missing": lambda path: None,
    "pipe": fifo,
    "folder": Path.mkdir,
    "full folder": lambda path: (path / "in it").mkdir(parents=True),
    "link": link_to_another,
    "link to itself": lambda path: path.symlink_to(path.name),
    "huge": huge,
}


def damage(path: Path, kind: str) -> None:
    data = path.read_bytes()
    path.unlink()
    if kind in DATA:
        path.write_bytes(DATA[kind](data))
    else:
        KINDS[kind](path)


def check_outcome(place: Path, whole: pd.DataFrame, code: int, said: str) -> None:
    """A sentence, or a table in which every page that is ``done`` says what it did before."""
    assert "Traceback" not in said
    assert code in (0, 1, 2), said
    for precious in (place / "out").rglob("precious.txt"):
        assert precious.read_text() == "a text of the user's own"
    if code == 2:
        assert said.strip().splitlines()[-1].endswith(".")
        return
    now = table(place / "out")
    done = now[now["status"] == "done"]
    expected = whole[whole["id"].isin(done["id"])]
    pd.testing.assert_frame_equal(
        done.reset_index(drop=True), expected.reset_index(drop=True), check_dtype=False
    )


#: What can be moved out of the way, so that the page is made anew. What stays is a folder with
#: something in it, and what is no regular file, which the user may have put there.
MENDED = (*DATA, "missing", "huge")


def damages() -> Iterator[tuple[str, tuple[str, ...]]]:
    """A file's name, and how it is damaged: in each of the pages in another way, where all of
    these ways can be mended, else in one page; a file of the batch in one way at a time.
    """
    for name in OF_PAGE:
        yield from ((name, MENDED[at : at + PAGES]) for at in range(0, len(MENDED), PAGES))
        yield from ((name, (kind,)) for kind in KINDS if kind not in MENDED)
    for name in OF_BATCH:
        contents = DATA if name in READ_OF_BATCH else ("empty",)
        yield from ((name, (kind,)) for kind in (*contents, *KINDS))


def apply(kinds: tuple[str, ...], name: str, out: Path) -> None:
    """Damage the file of this name: of the batch, or of as many pages as there are kinds."""
    folders = [out] if name in OF_BATCH else [out / entry["folder"] for entry in read_listing(out)]
    for folder, kind in zip(folders, kinds, strict=False):
        damage(folder / name, kind)


every_damage = pytest.mark.parametrize(
    ("name", "kinds"), list(damages()), ids=lambda it: it if isinstance(it, str) else ", ".join(it)
)


@every_damage
def test_a_damaged_file_is_made_anew_or_named(name, kinds, place, capsys):
    out = place / "out"
    whole = table(out)
    apply(kinds, name, out)

    code = main(command(place))

    check_outcome(place, whole, code, capsys.readouterr().err)
    if name in OF_PAGE and set(kinds) <= set(MENDED):
        assert code == 0
        assert list(table(out)["status"]) == ["done"] * PAGES
        assert table(out)["report"].all()


@every_damage
def test_an_archive_that_is_only_shown_never_shows_what_was_damaged(name, kinds, place, capsys):
    out = place / "out"
    whole = table(out)
    apply(kinds, name, out)

    code = main(["batch", "--render", "only", "--out", str(out)])

    check_outcome(place, whole, code, capsys.readouterr().err)
    if len(kinds) > 1:  # no page's damage hides another's
        assert code in (0, 1)


@pytest.mark.parametrize("seed", range(4))
def test_many_mutations_at_once_bring_no_false_result(seed, place, capsys):
    """Every file of the archive gets several changed bytes, three times over."""
    out, draw = place / "out", random.Random(seed)
    whole = table(out)
    for _ in range(3):
        folders = [entry["folder"] for entry in read_listing(out)]
        for folder in filter(None, folders):
            for name in draw.sample(OF_PAGE, 3):
                path = out / folder / name
                data = bytearray(path.read_bytes())
                for _ in range(draw.randint(1, 3) * bool(data)):
                    data[draw.randrange(len(data))] = draw.randrange(256)
                path.write_bytes(data)
        assert main(command(place)) == 0
        check_outcome(place, whole, 0, capsys.readouterr().err)
        assert list(table(out)["status"]) == ["done"] * PAGES


def test_an_archive_of_version_0_2_is_taken_and_its_figures_made_anew(place):
    out = place / "out"
    whole = table(out)
    for path in out.glob("pages/*/*/status.json"):
        status = json.loads(path.read_bytes())
        del status["sha256"], status["truth"], status["report"]["sha256"]
        path.write_text(json.dumps(status))
        figures = json.loads(path.with_name("figures.json").read_bytes())
        del figures["sha256"]
        figures["row"]["prefill_ms"] = 1.5
        path.with_name("figures.json").write_text(json.dumps({**figures, "schema": 4}))
    assert main(["batch", "--render", "only", "--out", str(out)]) == 0
    pd.testing.assert_frame_equal(table(out), whole)


@pytest.mark.parametrize("page", ["", ".", "..", "/", "a/..", "#1", "a\0b", "x" * 5000])
def test_a_page_without_a_name_has_no_truth(page, tmp_path):
    assert find_truth(page, tmp_path) is None


@pytest.mark.parametrize("page", ["", "..", "/", "other.png"])
def test_a_line_of_the_listing_that_does_not_follow_from_its_job_is_damaged(page, place, capsys):
    lines = [json.loads(line) for line in (place / "out" / LISTING).read_text().splitlines()]
    lines[1]["page"] = page
    (place / "out" / LISTING).write_text("".join(json.dumps(line) + "\n" for line in lines))
    truth = ["--truth", str(place / "truth")]
    assert main(["batch", "--render", "only", "--out", str(place / "out"), *truth]) == 1
    assert "jobs.jsonl, line 2: " in capsys.readouterr().out
    assert list(table(place / "out")["status"]) == ["done", "failed", "done"]


def test_a_clock_that_is_set_back_changes_no_duration(tmp_path, monkeypatch):
    times = iter(range(10**9, 0, -(10**6)))
    monkeypatch.setattr(worker_process.time, "time", lambda: float(next(times)))
    pages = make_pages(tmp_path / "in", "ok", "ok")
    batch_example.measure(pages, tmp_path / "out")
    for status in batch_example.statuses(tmp_path / "out").values():
        (attempt,) = status["attempts"]
        assert attempt.load_s >= 0.0 < attempt.seconds
