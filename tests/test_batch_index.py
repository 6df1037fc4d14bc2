"""The index and the tables of a batch say what its records say, and no more; damaged results are
named.
"""

import json
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import batch_example
import msgspec
import pandas as pd
import papermill
import pytest
from batch_example import (
    EVIL,
    a_job,
    html_of,
    jobs,
    make_batch,
    make_pages,
    put_page,
    renderer,
    statuses,
)
from example_run import make_run
from wording import says

from ocr_phases import PhaseRun
from ocr_phases.analyse.quality import Truth
from ocr_phases.batch import figures, measuring
from ocr_phases.batch.archive import LEFT_OUT, LISTING, list_pages, read_listing
from ocr_phases.batch.figures import FIGURES_FILE
from ocr_phases.batch.index import PAGE_COLUMNS, BatchIndex, build_index, write_index
from ocr_phases.batch.jobs import Job
from ocr_phases.cli import main
from ocr_phases.record import SPAN_COLUMNS
from ocr_phases.record.store import take

#: Pages of the example's batch that have no record, and what became of them.
UNMEASURED = {"failed.png": "failed", "waiting.png": "not finished", "damaged.png": "failed"}


@pytest.fixture(scope="module")
def batch_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three measured pages (one named twice), a failed one, one not finished, one with a damaged
    record.
    """
    folder = tmp_path_factory.mktemp("batch")
    make_batch(folder)
    (folder / "spans.csv").write_text("old")
    write_index(folder)
    return folder


@pytest.fixture(scope="module")
def index(batch_folder: Path) -> BatchIndex:
    return build_index(batch_folder)


@pytest.fixture
def copied_batch(batch_folder: Path, tmp_path: Path) -> Path:
    """A copy of the batch, which a test may change."""
    return Path(shutil.copytree(batch_folder, tmp_path / "out"))


def readable_records(out: Path) -> dict[str, PhaseRun]:
    """The records of a batch by their page, without the damaged one."""
    records = {}
    for path in out.glob("pages/*/*/run.json"):
        if path.read_text() != "{":
            run = PhaseRun.load(path)
            records[run.page.file] = run
    return records


def test_pages_say_what_their_records_say(batch_folder: Path, index: BatchIndex) -> None:
    names = [EVIL, "b.png", "c.pdf#2", *UNMEASURED, "b.png"]
    assert list(index.pages.columns) == list(PAGE_COLUMNS)
    assert list(index.pages["page"]) == names
    assert list(index.pages["status"]) == [UNMEASURED.get(name, "done") for name in names]

    pages = index.pages.drop_duplicates("page").set_index("page")
    assert says(pages.loc["failed.png", "reason"], "timeout", "More than 3 s")
    assert pages.loc["failed.png", "attempts"] == 2
    assert "damaged" in pages.loc["damaged.png", "reason"]
    for name, run in readable_records(batch_folder).items():
        page = pages.loc[name]
        summary = run.summary()
        for column in ("ttft_ms", "prefill_ms", "inter_token_ms", "decode_ms", "tokens"):
            assert page[column] == summary[column]
        assert "cut at the token limit" in page["warnings"]
        assert page["page_ms"] > page["ttft_ms"] + 0.9 * page["decode_ms"]


def test_the_table_of_pages_is_the_index(batch_folder: Path, index: BatchIndex) -> None:
    written = pd.read_csv(batch_folder / "pages.csv")
    assert written["page"].tolist() == index.pages["page"].tolist()
    assert written["ttft_ms"].equals(index.pages["ttft_ms"])


def read_table(path: Path) -> pd.DataFrame:
    """A table of a batch; texts such as ``nan``, which a page may hold, stay texts."""
    empty_numbers = {"step": "", "device_ms": "", "cache_len": ""}
    return pd.read_csv(path, keep_default_na=False, na_values=empty_numbers)


def test_the_table_of_spans_holds_those_of_every_record_once(batch_folder: Path) -> None:
    spans = read_table(batch_folder / "spans.csv")

    records = readable_records(batch_folder)
    assert set(spans["page"]) == set(records)
    for name, run in records.items():
        of_page = spans[spans["page"] == name][list(SPAN_COLUMNS)].reset_index(drop=True)
        pd.testing.assert_frame_equal(of_page, run.spans, check_dtype=False)
    assert not list(batch_folder.glob(".*.part"))


def test_the_table_of_tokens_holds_those_of_every_record_once(batch_folder: Path) -> None:
    tokens = read_table(batch_folder / "tokens.csv")

    records = readable_records(batch_folder)
    assert set(tokens["page"]) == set(records)
    for name, run in records.items():
        of_page = tokens[tokens["page"] == name].reset_index(drop=True)
        expected = run.token_table
        assert of_page["text"].tolist() == expected["text"].tolist()
        assert of_page["token_id"].tolist() == expected["id"].tolist()
        pd.testing.assert_series_equal(
            of_page["device_ms"], expected["device_ms"], check_dtype=False
        )


def test_the_page_shows_failures_first_escapes_all_counts_and_links_what_is_there(
    batch_folder: Path, index: BatchIndex
) -> None:
    text = (batch_folder / "index.html").read_text()

    assert "alert(1)</script>" not in text
    assert "&lt;script&gt;alert(1)" in text
    without_names = text.replace("http-equiv", "").replace("http://www.w3.org/2000/svg", "")
    assert "http" not in without_names  # no address
    folder = index.pages.set_index("page").loc["c.pdf#2", "folder"]
    assert f'href="{folder}/run.json"' in text

    cards, _, body = text.partition('id="Pages"')
    assert says(cards, "Pages", "7", "Listed twice", "1", "Left out", "2", ".txt")
    pages, _, _ = body.partition('id="Distributions"')
    assert pages.count("/report.html") == 2  # b.png, named twice
    assert pages.index("failed.png") < pages.index("c.pdf#2")


def test_loops_are_told_first(batch_folder: Path, index: BatchIndex) -> None:
    """That a noisy page is in no median is in the approved index."""
    assert "the decode time." not in (batch_folder / "index.html").read_text()
    shares = [0.5 if name == "c.pdf#2" else 0.0 for name in index.pages["page"]]

    text = html_of(index._replace(pages=index.pages.assign(repeated_share=shares)))

    cards, _, pages = text.partition('id="Pages"')
    assert says(cards, "1 of 4 pages loops", "% of the decode time")
    assert "repeated share" in pages


def test_a_long_table_is_cut_and_says_so(
    index: BatchIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ocr_phases.show.batch_page.MOST_ROWS", 4)
    assert says(html_of(index), "4 of 7 rows")


def test_every_page_has_its_price(batch_folder: Path) -> None:
    index = build_index(batch_folder, 3.6)

    done = index.pages[index.pages["status"] == "done"]
    expected = (done["page_ms"] / 1000).tolist()
    assert done["price_per_1000_pages"].tolist() == pytest.approx(expected)
    quiet = index._replace(pages=index.pages.assign(noisy=False, wh_per_1000_pages=12.0))
    assert says(html_of(quiet), "12.0 Wh", "Price of 1,000 pages", "at 3.6 per hour")
    assert "Price of" not in (batch_folder / "index.html").read_text()


def test_a_batch_in_which_nothing_was_measured_has_an_index_too(tmp_path: Path) -> None:
    list_pages([a_job("a.png", None)], tmp_path)
    (tmp_path / LEFT_OUT).write_bytes(b"{")  # a disk spoilt it

    pages = write_index(tmp_path)

    assert pages["status"].tolist() == ["not finished"]
    text = (tmp_path / "index.html").read_text()
    assert "No page was measured on a quiet machine." in text
    assert "files that are no pages" not in text


def test_reports_alone_are_rendered_tried_again_and_told(
    copied_batch: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("ocr_phases.batch.local_workers.LocalWorkers", renderer)
    monkeypatch.setattr("ocr_phases.show.batch_page.index_html", lambda *_, **__: "drawn elsewhere")
    command = ["batch", "--render", "only", "--out", str(copied_batch)]

    assert main(command) == 1
    said = capsys.readouterr().out
    assert says(said, "2 reports", "1 rendered", "1 failed")
    assert "damaged.png: " in said  # nothing is drawn of it
    pages = build_index(copied_batch).pages.set_index("page")
    assert pages.loc["c.pdf#2", ["report", "reason"]].tolist() == [False, "The notebook failed."]
    assert pages.loc[EVIL, "report"]
    assert (copied_batch / "index.html").read_text() == "drawn elsewhere"

    assert main(command) == 1  # what failed is tried again
    assert says(capsys.readouterr().out, "1 reports", "0 rendered", "1 failed")

    assert main([*command, "--price-per-hour", "7"]) == 1  # and what shows another price
    assert says(capsys.readouterr().out, "3 reports", "2 rendered", "1 failed")

    assert main(command) == 1  # no price is asked, so that each may stay
    assert says(capsys.readouterr().out, "1 reports", "0 rendered", "1 failed")

    assert main([*command, "--price-per-hour", "7"]) == 1
    assert says(capsys.readouterr().out, "1 reports", "0 rendered", "1 failed")


def test_a_report_shows_the_price_that_is_asked_and_its_notebook_runs_where_it_lies(
    tmp_path: Path,
) -> None:
    job = a_job("a.png")
    record = make_run().to_json()
    folder = put_page(tmp_path, job, record)
    (folder / "truth.json").write_bytes(msgspec.json.encode(Truth("A page with some words")))
    request = {"folder": str(folder), "price_per_hour": 7.0, "job": vars(job)}

    outcome = measuring.render_page(request, lambda: None)
    assert outcome.failure is None
    assert outcome.reason == ""
    take(folder, outcome.place)
    assert (folder / "run.json").read_bytes() == record
    assert "at 7.0 per hour" in (folder / "report.html").read_text()

    moved = folder.rename(tmp_path / "moved")
    files = sorted(path.name for path in moved.iterdir())
    notebook = papermill.execute_notebook(
        str(moved / "report.ipynb"),
        str(moved / "report.ipynb"),
        cwd=moved,
        engine_name="ocr_phases",
        progress_bar=False,
    )
    parameters = next(cell.source for cell in notebook.cells if "# Parameters" in cell.source)
    assert 'record = "run.json"' in parameters
    assert 'output_dir = "."' in parameters
    assert 'truth = "truth.json"' in parameters
    assert str(tmp_path) not in parameters
    assert (moved / "run.json").read_bytes() == record
    assert sorted(path.name for path in moved.iterdir()) == files


def test_an_index_is_made_of_the_kept_figures_and_reads_no_record_again(
    copied_batch: Path, index: BatchIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(figures, "page_figures", None)

    again = build_index(copied_batch)

    pd.testing.assert_frame_equal(again.pages, index.pages)
    pd.testing.assert_frame_equal(again.regions, index.regions)


def test_figures_that_are_damaged_or_of_another_page_are_made_again(
    copied_batch: Path, index: BatchIndex
) -> None:
    one, other, _ = sorted(copied_batch.glob(f"pages/*/*/{FIGURES_FILE}"))
    for content in (b"", b"{", b"[1]", b'{"schema": 1}', other.read_bytes()):
        one.write_bytes(content)
        pd.testing.assert_frame_equal(build_index(copied_batch).pages, index.pages)


@dataclass(frozen=True)
class Damage:
    """How a file of a finished page is spoilt: what becomes of its content, None where it is
    missing then.
    """

    file: str
    spoil: Callable[[bytes], bytes | None]


def emptied(content: bytes) -> bytes:
    return b""


def cut(content: bytes) -> bytes:
    return content[:-40]


def deleted(content: bytes) -> None:
    return None


def with_renamed_attempts(content: bytes) -> bytes:
    return content.replace(b'"attempts"', b'"tries"')


def with_entries(**entries: Any) -> Callable[[bytes], bytes]:
    """A JSON file that has these entries instead of its own."""

    def spoil(content: bytes) -> bytes:
        return json.dumps(json.loads(content) | entries).encode()

    return spoil


def replaced_by(other: bytes) -> Callable[[bytes], bytes]:
    """A file with a content that has nothing to do with it."""

    def spoil(content: bytes) -> bytes:
        return other

    return spoil


#: How a page is damaged, each in another way.
DAMAGES = [
    Damage("run.json", emptied),
    Damage("status.json", emptied),
    Damage("run.json", cut),
    Damage("status.json", cut),
    Damage("run.json", with_entries(memory={"peak_bytes": 5})),
    Damage("run.json", deleted),
    Damage("status.json", with_renamed_attempts),
    Damage("status.json", with_entries(attempts=[])),
    Damage("status.json", with_entries(attempts=[{"seconds": "x"}])),
    Damage("status.json", with_entries(settings=3)),
    Damage("status.json", replaced_by(b"[" * 100_000)),
    Damage("status.json", replaced_by(b'{"schema":1,"id":"\xff"}')),
]
#: A status that another version wrote: its page counts as not finished.
OTHER_VERSION = Damage("status.json", with_entries(schema=2))
#: How many damaged pages a verb names before it only counts them.
MOST_NAMED = 10


@pytest.fixture
def damaged_batch(tmp_path: Path) -> list[Job]:
    """The pages of a batch in ``out``: one for each kind of damage, one that is whole, and one
    whose line of the listing is spoilt.
    """
    out = tmp_path / "out"
    every_damage = [*DAMAGES, OTHER_VERSION]
    pages = make_pages(tmp_path / "in", *["ok"] * (len(every_damage) + 2))
    all_jobs = jobs(pages)
    assert batch_example.measure(pages, out).done == len(all_jobs)
    for job, damage in zip(all_jobs, every_damage, strict=False):
        path = out / job.folder / damage.file
        content = damage.spoil(path.read_bytes())
        path.unlink()
        if content is not None:
            path.write_bytes(content)
    *lines, _ = (out / LISTING).read_text().splitlines()
    (out / LISTING).write_text("\n".join([*lines, "[1]"]))
    return all_jobs


def test_damaged_pages_are_named_and_nothing_else_suffers(
    damaged_batch: list[Job],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "out"
    monkeypatch.setattr("ocr_phases.batch.local_workers.LocalWorkers", renderer)

    assert main(["batch", "--render", "only", "--out", str(out)]) == 1

    said = capsys.readouterr().out
    assert says(said, "1 reports", "1 rendered", "0 failed")
    damaged = len(DAMAGES) + 1
    is_named = [f"{job.name}: " in said for job in damaged_batch[:damaged]]
    assert is_named == [True] * MOST_NAMED + [False] * (damaged - MOST_NAMED)
    assert said.count("measures it again") == MOST_NAMED
    assert says(said, f"{damaged - MOST_NAMED} more")
    expected = ["failed"] * len(DAMAGES) + ["not finished", "done", "failed"]
    assert build_index(out).pages["status"].tolist() == expected
    assert (out / "index.html").exists()


def test_damaged_pages_are_measured_again(damaged_batch: list[Job], tmp_path: Path) -> None:
    counts = batch_example.measure(tmp_path / "in", tmp_path / "out")

    assert counts.kept == 2
    assert counts.done == len(DAMAGES) + 1
    assert counts.failed == 0
    states = [status["state"] for status in statuses(tmp_path / "out").values()]
    assert states == ["done"] * len(damaged_batch)


def test_a_listing_takes_its_place_when_it_is_whole(tmp_path: Path) -> None:
    def stopped_listing() -> Iterator[Job]:
        yield from map(a_job, "xyz")
        raise KeyboardInterrupt

    list_pages(map(a_job, "abc"), tmp_path)

    with pytest.raises(KeyboardInterrupt):
        list_pages(stopped_listing(), tmp_path)

    assert [entry["page"] for entry in read_listing(tmp_path)] == ["a", "b", "c"]


def test_a_listing_of_new_pages_has_none_that_is_finished_or_failed(tmp_path: Path) -> None:
    standing = list_pages(map(a_job, "abc"), tmp_path)
    assert standing == {"found": 3, "finished": 0, "failed": 0, "new": 3}


def test_a_listing_that_is_cut_names_its_line(tmp_path: Path) -> None:
    (tmp_path / LISTING).write_text('{"id": "')

    (row,) = build_index(tmp_path).pages.to_dict("records")

    assert row["page"] == "jobs.jsonl, line 1"
    assert row["status"] == "failed"
    assert says(row["reason"], "damaged")


@pytest.mark.parametrize("folder", ["..", "/etc", "pages/ab/..", "pages/ab/x/y", "pages/ab/x\n"])
def test_a_listing_leads_nowhere_out_of_the_batch(folder: str, tmp_path: Path) -> None:
    (tmp_path / LISTING).write_text(json.dumps({"id": "a", "page": "a.png", "folder": folder}))
    assert [entry["id"] for entry in read_listing(tmp_path)] == [""]


def test_no_cell_of_the_pages_is_a_formula(tmp_path: Path) -> None:
    names = [f"{first}cmd|' /C calc'!A0.png" for first in "=+-@\t\r"]
    listed = [a_job(name, preset=name) for name in names]
    list_pages(listed, tmp_path)
    for job in listed:
        attempts = [{"seconds": -1.5, "failure": "page"}]
        put_page(tmp_path, job, None, failure=job.name, reason="-1", attempts=attempts)

    assert build_index(tmp_path).pages["page"].tolist() == names
    rows = pd.read_csv(tmp_path / "pages.csv").to_dict("records")
    for name, row in zip(names, rows, strict=True):
        assert row["page"] == f"'{name}"
        assert row["preset"] == f"'{name}"
        assert row["reason"] == f"'{name}: -1"
        assert row["seconds"] == -1.5  # a number stays one


def test_rendering_alone_touches_a_batchs_folder_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    listing = tmp_path / LISTING
    listing.write_text('{"a": 1}\n')

    code = main(["batch", "--out", str(tmp_path), "--render", "only"])

    assert code == 2
    assert "holds no batch" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [listing]
