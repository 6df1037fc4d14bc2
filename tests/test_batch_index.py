"""The index and the tables of a batch say what its records say, and no more; damaged results are
named.
"""

import json
import shutil
from collections.abc import Callable, Iterator
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
from ocr_phases.batch.figures import FIGURES
from ocr_phases.batch.index import PAGE_COLUMNS, BatchIndex, build_index, write_index
from ocr_phases.batch.jobs import Job
from ocr_phases.cli import main
from ocr_phases.record import SPAN_COLUMNS
from ocr_phases.record.store import take


@pytest.fixture(scope="module")
def batch(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, BatchIndex]:
    """Three measured pages (one named twice), a failed one, one not finished, one with a damaged
    record.
    """
    folder = tmp_path_factory.mktemp("batch")
    make_batch(folder)
    (folder / "spans.csv").write_text("old")
    write_index(folder)
    return folder, build_index(folder)


@pytest.fixture
def own(batch: tuple[Path, BatchIndex], tmp_path: Path) -> Path:
    """A copy of the batch."""
    return Path(shutil.copytree(batch[0], tmp_path / "out"))


def records(out: Path) -> dict[str, PhaseRun]:
    paths = [path for path in out.glob("pages/*/*/run.json") if path.read_text() != "{"]
    return {run.page.file: run for run in map(PhaseRun.load, paths)}


def test_pages_say_what_their_records_say(batch):
    folder, index = batch
    assert list(index.pages.columns) == list(PAGE_COLUMNS)
    ends = {"failed.png": "failed", "waiting.png": "not finished", "damaged.png": "failed"}
    names = [EVIL, "b.png", "c.pdf#2", *ends, "b.png"]
    assert list(index.pages["page"]) == names
    assert list(index.pages["status"]) == [ends.get(name, "done") for name in names]
    pages = index.pages.drop_duplicates("page").set_index("page")
    assert says(pages.loc["failed.png", "reason"], "timeout", "More than 3 s")
    assert pages.loc["failed.png", "attempts"] == 2
    assert "damaged" in pages.loc["damaged.png", "reason"]
    for name, run in records(folder).items():
        row, found = pages.loc[name], run.summary()
        for column in ("ttft_ms", "prefill_ms", "inter_token_ms", "decode_ms", "tokens"):
            assert row[column] == found[column]
        assert "cut at the token limit" in row["warnings"]
        assert row["page_ms"] > row["ttft_ms"] + 0.9 * row["decode_ms"]
    written = pd.read_csv(folder / "pages.csv")
    assert written["page"].tolist() == names and written["ttft_ms"].equals(index.pages["ttft_ms"])


def test_tables_hold_every_span_and_token_of_every_record_once(batch):
    folder, _ = batch
    numbers, runs = {"step": "", "device_ms": "", "cache_len": ""}, records(folder)
    spans, tokens = (
        pd.read_csv(folder / f"{name}.csv", keep_default_na=False, na_values=numbers)
        for name in ("spans", "tokens")
    )
    assert set(spans["page"]) == set(tokens["page"]) == set(runs)
    for name, run in runs.items():
        own = spans[spans["page"] == name][list(SPAN_COLUMNS)].reset_index(drop=True)
        pd.testing.assert_frame_equal(own, run.spans, check_dtype=False)
        own, expected = tokens[tokens["page"] == name].reset_index(drop=True), run.token_table
        assert own["text"].tolist() == expected["text"].tolist()
        assert own["token_id"].tolist() == expected["id"].tolist()
        pd.testing.assert_series_equal(own["device_ms"], expected["device_ms"], check_dtype=False)
    assert not list(folder.glob(".*.part"))


def test_the_page_shows_failures_first_escapes_all_counts_and_links_what_is_there(batch):
    folder, index = batch
    text = (folder / "index.html").read_text()
    assert "alert(1)</script>" not in text and "&lt;script&gt;alert(1)" in text
    names = ("http-equiv", "http://www.w3.org/2000/svg")  # which are no addresses
    assert "http" not in text.replace(names[0], "").replace(names[1], "")
    assert f'href="{index.pages.set_index("page").loc["c.pdf#2", "folder"]}/run.json"' in text
    cards, body = text[: text.index('id="Pages"')], text[text.index('id="Pages"') :]
    assert says(cards, "Pages", "7", "Listed twice", "1", "Left out", "2", ".txt")
    body = body[: body.index('id="Distributions"')]
    assert body.count("/report.html") == 2  # b.png, named twice
    assert body.index("failed.png") < body.index("c.pdf#2")


def test_loops_are_told_first_and_a_long_table_is_cut(batch, monkeypatch):
    """That a noisy page is in no median is in the approved index."""
    folder, index = batch
    assert "the decode time." not in (folder / "index.html").read_text()
    monkeypatch.setattr("ocr_phases.show.batch_page.MOST_ROWS", 4)
    loops = (index.pages["page"] == "c.pdf#2") * 0.5
    text = html_of(index._replace(pages=index.pages.assign(repeated_share=loops)))
    assert says(text[: text.index('id="Pages"')], "1 of 4 pages loops", "% of the decode time")
    assert says(text, "4 of 7 rows") and "repeated share" in text


def test_every_page_has_its_price(batch):
    folder, _ = batch
    index = build_index(folder, 3.6)
    done = index.pages[index.pages["status"] == "done"]
    assert done["price_per_1000_pages"].tolist() == pytest.approx((done["page_ms"] / 1000).tolist())
    quiet = index._replace(pages=index.pages.assign(noisy=False, wh_per_1000_pages=12.0))
    assert says(html_of(quiet), "12.0 Wh", "Price of 1,000 pages", "at 3.6 an hour")
    assert "Price of" not in (folder / "index.html").read_text()


def test_a_batch_in_which_everything_failed_has_an_index_too(tmp_path):
    list_pages([a_job("a.png", None)], tmp_path)
    (tmp_path / LEFT_OUT).write_bytes(b"{")  # a disk spoilt it
    assert write_index(tmp_path)["status"].tolist() == ["not finished"]
    text = (tmp_path / "index.html").read_text()
    assert (
        "No page was measured on a quiet machine." in text and "files that are no pages" not in text
    )


def test_reports_alone_are_rendered_tried_again_and_told(own, monkeypatch, capsys):
    monkeypatch.setattr("ocr_phases.batch.local_workers.LocalWorkers", renderer)
    monkeypatch.setattr("ocr_phases.show.batch_page.index_html", lambda *_, **__: "drawn elsewhere")
    assert main(["batch", "--render", "only", "--out", str(own)]) == 1
    said = capsys.readouterr().out
    assert says(said, "2 reports", "1 rendered", "1 failed")
    assert "damaged.png: " in said  # nothing is drawn of it
    pages = build_index(own).pages.set_index("page")
    assert pages.loc["c.pdf#2", ["report", "reason"]].tolist() == [False, "The notebook failed."]
    assert pages.loc[EVIL, "report"] and (own / "index.html").read_text() == "drawn elsewhere"
    # What failed is tried again, and what shows another price than the one that is asked.
    seven = ["--price-per-hour", "7"]
    for price, told in (([], (1, 0)), (seven, (3, 2)), ([], (1, 0)), (seven, (1, 0))):
        assert main(["batch", "--render", "only", "--out", str(own), *price]) == 1
        assert says(
            capsys.readouterr().out, f"{told[0]} reports", f"{told[1]} rendered", "1 failed"
        )


def test_a_report_shows_the_price_that_is_asked_and_its_notebook_runs_where_it_lies(tmp_path):
    job, record = a_job("a.png"), make_run().to_json()
    folder = put_page(tmp_path, job, record)
    (folder / "truth.json").write_bytes(msgspec.json.encode(Truth("A page with some words")))
    request = {"folder": str(folder), "price_per_hour": 7.0, "job": vars(job)}
    outcome = measuring.render_page(request, lambda: None)
    assert (outcome.failure, outcome.reason) == (None, "")
    take(folder, outcome.place)
    assert (folder / "run.json").read_bytes() == record
    assert "at 7.0 an hour" in (folder / "report.html").read_text()
    moved = folder.rename(tmp_path / "moved")
    before = sorted(path.name for path in moved.iterdir())
    notebook = papermill.execute_notebook(
        str(moved / "report.ipynb"),
        str(moved / "report.ipynb"),
        cwd=moved,
        engine_name="ocr_phases",
        progress_bar=False,
    )
    injected = next(cell.source for cell in notebook.cells if "# Parameters" in cell.source)
    assert 'record = "run.json"' in injected and 'output_dir = "."' in injected
    assert 'truth = "truth.json"' in injected and str(tmp_path) not in injected
    assert (moved / "run.json").read_bytes() == record
    assert sorted(path.name for path in moved.iterdir()) == before


def test_an_index_is_made_again_from_figures_but_for_those_damaged_or_of_another(
    batch, own, monkeypatch
):
    _, first = batch
    with monkeypatch.context() as patch:
        patch.setattr(figures, "page_figures", None)
        again = build_index(own)
    pd.testing.assert_frame_equal(again.pages, first.pages)
    pd.testing.assert_frame_equal(again.regions, first.regions)
    one, other, _ = sorted(own.glob(f"pages/*/*/{FIGURES}"))
    for damage in (b"", b"{", b"[1]", b'{"schema": 1}', other.read_bytes()):
        one.write_bytes(damage)
        pd.testing.assert_frame_equal(build_index(own).pages, first.pages)


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
    ("status.json", edited(schema=2)),  # of another version: not finished
]


def test_damaged_pages_are_named_and_measured_again_and_nothing_else_suffers(
    tmp_path, monkeypatch, capsys
):
    pages, out = make_pages(tmp_path / "in", *["ok"] * (len(DAMAGE) + 2)), tmp_path / "out"
    all_jobs = jobs(pages)
    assert batch_example.measure(pages, out).done == len(all_jobs)
    for job, (name, damage) in zip(all_jobs, DAMAGE, strict=False):
        path = out / job.folder / name
        data = damage(path.read_bytes())
        path.unlink()
        if data is not None:
            path.write_bytes(data)
    *lines, _ = (out / LISTING).read_text().splitlines()
    (out / LISTING).write_text("\n".join([*lines, "[1]"]))

    monkeypatch.setattr("ocr_phases.batch.local_workers.LocalWorkers", renderer)
    assert main(["batch", "--render", "only", "--out", str(out)]) == 1
    said = capsys.readouterr().out
    assert says(said, "1 reports", "1 rendered", "0 failed")
    told = [f"{job.name}: " in said for job in all_jobs[: len(DAMAGE)]]
    assert told == [True] * 10 + [False] * (len(DAMAGE) - 10)
    assert said.count("measures it again") == 10 and says(said, f"{len(DAMAGE) - 10} more")
    ends = [*["failed"] * (len(DAMAGE) - 1), "not finished", "done", "failed"]
    assert build_index(out).pages["status"].tolist() == ends
    assert (out / "index.html").exists()

    counts = batch_example.measure(pages, out)
    assert (counts.kept, counts.done, counts.failed) == (2, len(DAMAGE), 0)
    assert {status["state"] for status in statuses(out).values()} == {"done"}


def test_a_listing_takes_its_place_when_it_is_whole_and_one_that_is_cut_names_its_line(tmp_path):
    def stopped(names: str) -> Iterator[Job]:
        yield from map(a_job, names)
        raise KeyboardInterrupt

    list_pages(map(a_job, "abc"), tmp_path)
    with pytest.raises(KeyboardInterrupt):
        list_pages(stopped("xyz"), tmp_path)
    assert [entry["page"] for entry in read_listing(tmp_path)] == [*"abc"]
    (tmp_path / LISTING).write_text('{"id": "')
    (row,) = build_index(tmp_path).pages.to_dict("records")
    assert (row["page"], row["status"]) == ("jobs.jsonl, line 1", "failed") and says(
        row["reason"], "damaged"
    )
    for folder in ("..", "/etc", "pages/ab/..", "pages/ab/x/y", "pages/ab/x\n"):  # out of the batch
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
    for name, row in zip(
        names, pd.read_csv(tmp_path / "pages.csv").to_dict("records"), strict=True
    ):
        assert (row["page"], row["preset"], row["reason"]) == (
            f"'{name}",
            f"'{name}",
            f"'{name}: -1",
        )
        assert row["seconds"] == -1.5  # a number stays one


def test_rendering_alone_touches_a_batch_s_folder_only(tmp_path, capsys):
    (tmp_path / LISTING).write_text('{"a": 1}\n')
    assert main(["batch", "--out", str(tmp_path), "--render", "only"]) == 2
    assert "holds no batch" in capsys.readouterr().err and list(tmp_path.iterdir()) == [
        tmp_path / LISTING
    ]
