"""The index and the tables of a batch say what its records say, and no more."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from batch_example import EVIL, html_of, make_batch, renderer
from wording import says

from ocr_phases import PhaseRun
from ocr_phases.batch import figures
from ocr_phases.batch.figures import FIGURES
from ocr_phases.batch.index import PAGE_COLUMNS, BatchIndex, build_index
from ocr_phases.batch.jobs import Job
from ocr_phases.batch.store import list_pages, read_listing
from ocr_phases.cli import main
from ocr_phases.record import SPAN_COLUMNS
from ocr_phases.show.plots_many import plot_distributions


@pytest.fixture(scope="module")
def batch(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, BatchIndex]:
    """Three measured pages (one named twice), a failed one, one not finished, one with a damaged record."""
    folder = tmp_path_factory.mktemp("batch")
    make_batch(folder)
    (folder / "spans.csv").write_text("old")
    return folder, build_index(folder)


@pytest.fixture
def own(batch: tuple[Path, BatchIndex], tmp_path: Path) -> Path:
    """A copy of the batch."""
    return Path(shutil.copytree(batch[0], tmp_path / "out"))


def records(out: Path) -> dict[str, PhaseRun]:
    paths = [path for path in out.glob("pages/*/*/run.json") if path.read_text() != "{"]
    return {run.page["file"]: run for run in map(PhaseRun.load, paths)}


def read_table(out: Path, name: str) -> pd.DataFrame:
    numbers = {"step": "", "device_ms": "", "cache_len": ""}
    return pd.read_csv(out / f"{name}.csv", keep_default_na=False, na_values=numbers)


def test_pages_say_what_their_records_say(batch):
    folder, index = batch
    assert list(index.pages.columns) == list(PAGE_COLUMNS)
    done = index.pages[index.pages["status"] == "done"]
    assert (done["page_ms"] > done["ttft_ms"] + 0.9 * done["decode_ms"]).all()
    ends = {"failed.png": "failed", "waiting.png": "not finished", "damaged.png": "failed"}
    names = [EVIL, "b.png", "c.pdf#2", *ends, "b.png"]
    assert list(index.pages["page"]) == names
    assert list(index.pages["status"]) == [ends.get(name, "done") for name in names]
    pages = index.pages.set_index("page")
    assert says(pages.loc["failed.png", "reason"], "timeout", "More than 3 s")
    assert pages.loc["failed.png", "attempts"] == 2
    assert "damaged" in pages.loc["damaged.png", "reason"]
    for name, run in records(folder).items():
        row, found = index.pages[index.pages["page"] == name].iloc[0], run.summary()
        for column in ("ttft_ms", "prefill_ms", "inter_token_ms", "decode_ms", "tokens"):
            assert row[column] == found[column]
        assert "cut at the token limit" in row["warnings"]
    written = pd.read_csv(folder / "pages.csv")
    assert written["page"].tolist() == index.pages["page"].tolist()
    assert written["ttft_ms"].equals(index.pages["ttft_ms"])


def test_tables_hold_every_span_and_token_of_every_record_once(batch):
    folder, _ = batch
    spans, tokens = read_table(folder, "spans"), read_table(folder, "tokens")
    runs = records(folder)
    assert set(spans["page"]) == set(tokens["page"]) == set(runs)
    for name, run in runs.items():
        own = spans[spans["page"] == name][list(SPAN_COLUMNS)].reset_index(drop=True)
        pd.testing.assert_frame_equal(own, run.spans, check_dtype=False)
        own = tokens[tokens["page"] == name].reset_index(drop=True)
        assert own["text"].tolist() == run.token_table["text"].tolist()
        assert own["token_id"].tolist() == run.token_table["id"].tolist()
        pd.testing.assert_series_equal(own["device_ms"], run.token_table["device_ms"], check_dtype=False)
    assert not list(folder.glob(".*.part"))


def test_pages_that_loop_are_told_first(batch):
    _, index = batch
    done = index.pages[index.pages["status"] == "done"]
    assert "the decode time." not in html_of(index)
    looping = done.assign(repeated_share=[0.5, *[0.0] * (len(done) - 1)], decode_ms=100.0)
    text = html_of(index._replace(pages=looping))
    assert says(text[: text.index('id="Pages"')], "1 of 4 pages loops", "12 % of the decode time")
    assert "repeated share" in text


def test_a_noisy_page_is_marked_and_in_no_median_and_a_long_table_is_cut(batch, monkeypatch):
    _, index = batch
    monkeypatch.setattr("ocr_phases.show.index.MOST_ROWS", 2)
    noisy = index.pages["page"] == "c.pdf#2"
    pages = index.pages.assign(noisy=noisy, warnings="", page_ms=np.where(noisy, 9e6, 1e3))
    text = html_of(index._replace(pages=pages))
    cards = text[: text.index('id="Pages"')]
    assert says(cards, "1.00 s", "median without 1 noisy page")
    assert "9,000" not in cards
    assert says(text, "2 of 7 rows")


def test_the_page_shows_failures_first_escapes_all_and_links_what_is_there(batch):
    _, index = batch
    text = html_of(index)
    assert "alert(1)</script>" not in text
    assert "&lt;script&gt;alert(1)" in text
    names = ("http-equiv", "http://www.w3.org/2000/svg")  # which are no addresses
    assert "http" not in text.replace(names[0], "").replace(names[1], "")
    folder = index.pages.set_index("page").loc["c.pdf#2", "folder"]
    assert f'href="{folder}/run.json"' in text
    body = text[text.index('id="Pages"') : text.index('id="Distributions"')]
    assert body.count("/report.html") == 2  # b.png, named twice
    assert body.index("failed.png") < body.index("c.pdf#2")


def test_a_batch_in_which_everything_failed_has_an_index_too(tmp_path):
    list_pages([Job("a.png", "/in/a.png", None, {"model": "tiny", "preset": None}, {}, None)], tmp_path)
    index = build_index(tmp_path)
    assert index.pages["status"].tolist() == ["not finished"]
    assert "No page was measured on a quiet machine." in html_of(index)


def test_a_listing_takes_its_place_when_it_is_whole_and_one_that_is_cut_names_its_line(tmp_path):
    def stopped(names: str) -> Iterator[Job]:
        for name in names:
            yield Job(f"{name}.png", f"/in/{name}.png", None, {"model": "tiny"}, {}, None)
        raise KeyboardInterrupt

    list_pages(itertools.islice(stopped("abc"), 3), tmp_path)
    with pytest.raises(KeyboardInterrupt):
        list_pages(stopped("xyz"), tmp_path)
    assert [entry["page"][0] for entry in read_listing(tmp_path)] == list("abc")
    (tmp_path / "jobs.jsonl").write_text('{"id": "')
    (row,) = build_index(tmp_path).pages.to_dict("records")
    assert (row["page"], row["status"]) == ("jobs.jsonl, line 1", "failed")
    assert says(row["reason"], "damaged")


def test_distributions_have_a_panel_a_figure_with_its_median():
    pages = pd.DataFrame(
        {
            "ttft_ms": [10.0, 20.0, 30.0],
            "inter_token_ms": [4.0, 4.0, 4.0],
            "tokens": pd.array([5, None, 7], dtype="Int64"),
            "vision_share": [None, None, None],
        }
    )
    titles = [axes.get_title(loc="left") for axes in plot_distributions(pages).axes]
    medians = ("Time to first token: 20.0 ms", "Inter-token latency: 4.00 ms", "Tokens: 6")
    assert titles == [*medians, "Vision in the prefill: none"]


def test_reports_alone_are_rendered_tried_again_and_told(own, monkeypatch, capsys):
    monkeypatch.setattr("ocr_phases.batch.child.LocalPool", renderer)
    assert main(["batch", "--render", "only", "--out", str(own)]) == 1
    said = capsys.readouterr()
    assert says(said.out, "2 reports", "1 rendered", "1 failed")
    assert "damaged.png: " in said.out  # nothing is drawn of it
    pages = build_index(own).pages.set_index("page")
    assert pages.loc["c.pdf#2", ["report", "reason"]].tolist() == [False, "The notebook failed."]
    assert pages.loc[EVIL, "report"]
    assert (own / "index.html").exists()
    assert main(["batch", "--render", "only", "--out", str(own)]) == 1  # it is tried again
    assert says(capsys.readouterr().out, "1 reports", "0 rendered", "1 failed")


def test_an_index_made_again_reads_no_record_but_for_figures_that_are_damaged_or_of_another(
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
