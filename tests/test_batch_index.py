"""The index and the tables of a batch say what its records say, and no more."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from batch_example import (
    EVIL,
    Renderer,
    html_of,
    make_batch,
)
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
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("batch")
    make_batch(folder)
    return folder


@pytest.fixture(scope="module")
def batch(made: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, BatchIndex]:
    """Three measured pages (one named twice), a failed one, one not finished, one with a damaged record."""
    folder = shutil.copytree(made, tmp_path_factory.mktemp("built") / "batch")
    (folder / "spans.csv").write_text("old")
    return folder, build_index(folder)


@pytest.fixture(scope="module")
def index(made: Path) -> BatchIndex:
    return build_index(made)


def records(out: Path) -> dict[str, PhaseRun]:
    found = {}
    for path in out.glob("pages/*/*/run.json"):
        if path.read_text() != "{":
            run = PhaseRun.load(path)
            found[run.page["file"]] = run
    return found


def read_table(out: Path, name: str) -> pd.DataFrame:
    numbers = {"step": "", "device_ms": "", "cache_len": ""}
    return pd.read_csv(out / f"{name}.csv", keep_default_na=False, na_values=numbers)


def test_pages_say_what_their_records_say(batch):
    folder, index = batch
    assert list(index.pages.columns) == list(PAGE_COLUMNS)
    done = index.pages[index.pages["status"] == "done"]
    assert (done["page_ms"] > done["ttft_ms"] + 0.9 * done["decode_ms"]).all()
    pages = index.pages.set_index("page")
    assert list(index.pages["page"]) == [
        EVIL,
        "b.png",
        "c.pdf#2",
        "failed.png",
        "waiting.png",
        "damaged.png",
        "b.png",
    ]
    assert list(index.pages["status"]) == ["done"] * 3 + ["failed", "not finished", "failed", "done"]
    assert says(pages.loc["failed.png", "reason"], "timeout", "More than 3 s")
    assert pages.loc["failed.png", "attempts"] == 2
    assert "damaged" in pages.loc["damaged.png", "reason"]
    for name, run in records(folder).items():
        row = index.pages[index.pages["page"] == name].iloc[0]
        figures = run.summary()
        for column in ("ttft_ms", "prefill_ms", "inter_token_ms", "decode_ms", "tokens"):
            assert row[column] == figures[column]
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


def test_pages_that_loop_are_told_first(index: BatchIndex) -> None:
    done = index.pages[index.pages["status"] == "done"]
    assert "the decode time." not in html_of(index)
    looping = done.assign(repeated_share=[0.5, *[0.0] * (len(done) - 1)], decode_ms=100.0)
    text = html_of(index._replace(pages=looping))
    assert says(text[: text.index('id="Pages"')], "1 of 4 pages loops", "12 % of the decode time")
    assert "repeated share" in text


def test_a_noisy_page_is_marked_and_in_no_median(index: BatchIndex) -> None:
    done = index.pages["status"] == "done"
    slow = index.pages["page"] == "c.pdf#2"
    pages = index.pages.assign(noisy=slow, warnings="", page_ms=np.where(slow, 9e6, 1e3))
    text = html_of(index._replace(pages=pages[done]))
    cards = text[: text.index('id="Pages"')]
    assert says(cards, "1.00 s", "median without 1 noisy page")
    assert "9,000" not in cards


def test_the_page_shows_failures_first_escapes_all_and_links_what_is_there(index):
    text = html_of(index)
    assert text.index('id="Pages"') < text.index('id="Slowest-regions"')
    assert "alert(1)</script>" not in text
    assert "&lt;script&gt;alert(1)" in text
    names = ("http-equiv", "http://www.w3.org/2000/svg")  # which are no addresses
    assert "http" not in text.replace(names[0], "").replace(names[1], "")
    assert "Time per page" in text and "Pages per minute" in text
    folder = index.pages.set_index("page").loc["c.pdf#2", "folder"]
    assert f'href="{folder}/run.json"' in text
    body = text[text.index('id="Pages"') : text.index('id="Distributions"')]
    assert body.count("/report.html") == 2  # b.png, named twice
    assert body.index("failed.png") < body.index("c.pdf#2")


def test_a_long_table_is_cut_and_says_so(index, monkeypatch):
    monkeypatch.setattr("ocr_phases.show.index.MOST_ROWS", 2)
    text = html_of(index)
    assert says(text, "2 of 7 rows")


def test_a_batch_in_which_everything_failed_has_an_index_too(tmp_path):
    list_pages([Job("a.png", "/in/a.png", None, {"model": "tiny", "preset": None}, {}, None)], tmp_path)
    index = build_index(tmp_path)
    assert index.pages["status"].tolist() == ["not finished"]
    assert "No page was measured on a quiet machine." in html_of(index)


def test_a_listing_takes_its_place_when_it_is_whole(tmp_path: Path) -> None:
    def stopped(names: str) -> Iterator[Job]:
        for name in names:
            yield Job(f"{name}.png", f"/in/{name}.png", None, {"model": "tiny"}, {}, None)
        raise KeyboardInterrupt

    list_pages(itertools.islice(stopped("abc"), 3), tmp_path)
    with pytest.raises(KeyboardInterrupt):
        list_pages(stopped("xyz"), tmp_path)
    assert [entry["page"][0] for entry in read_listing(tmp_path)] == list("abc")


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
    assert titles == [
        "Time to first token: 20.0 ms",
        "Inter-token latency: 4.00 ms",
        "Tokens: 6",
        "Vision in the prefill: none",
    ]


def test_reports_alone_are_rendered_tried_again_and_told(tmp_path, monkeypatch, capsys):
    make_batch(tmp_path)
    monkeypatch.setattr("ocr_phases.batch.child.LocalPool", Renderer)
    assert main(["batch", "--render", "only", "--out", str(tmp_path)]) == 1
    said = capsys.readouterr()
    assert says(said.out, "2 reports", "1 rendered", "1 failed")
    assert "damaged.png: " in said.out  # nothing is drawn of it
    pages = build_index(tmp_path).pages.set_index("page")
    assert pages.loc["c.pdf#2", ["report", "reason"]].tolist() == [False, "The notebook failed."]
    assert pages.loc[EVIL, "report"]
    assert (tmp_path / "index.html").exists()
    assert main(["batch", "--render", "only", "--out", str(tmp_path)]) == 1  # it is tried again
    assert says(capsys.readouterr().out, "1 reports", "0 rendered", "1 failed")


def test_a_listing_that_is_cut_names_its_line(tmp_path):
    (tmp_path / "jobs.jsonl").write_text(json.dumps({"id": "a"})[:-3])
    (row,) = build_index(tmp_path).pages.to_dict("records")
    assert (row["page"], row["status"]) == ("jobs.jsonl, line 1", "failed")
    assert says(row["reason"], "damaged")


def test_an_index_made_again_reads_no_record(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = shutil.copytree(made, tmp_path / "out")
    first = build_index(out)
    monkeypatch.setattr(figures, "page_figures", None)
    again = build_index(out)
    pd.testing.assert_frame_equal(again.pages, first.pages)
    pd.testing.assert_frame_equal(again.regions, first.regions)


@pytest.mark.parametrize("damage", ["", "{", "[1]", '{"schema": 1}', None])
def test_damaged_or_foreign_figures_are_made_anew(made: Path, tmp_path: Path, damage: str | None) -> None:
    out = shutil.copytree(made, tmp_path / "out")
    first = build_index(out)
    paths = sorted(out.glob(f"pages/*/*/{FIGURES}"))
    assert len(paths) == 3
    if damage is None:  # of another record
        paths[0].write_bytes(paths[1].read_bytes())
    else:
        paths[0].write_text(damage)
    pd.testing.assert_frame_equal(build_index(out).pages, first.pages)
