"""Cost beside quality: the frontier, a sweep, a batch over presets, a comparison, and their
verbs.
"""

import json

import numpy as np
import pandas as pd
import pytest
from batch_example import QUICK, a_job, html_of, make_batch, measured_here, put_page
from conftest import PAGES
from elements import Elements
from example_run import altered, failed_cells, make_run
from hypothesis import given
from hypothesis import strategies as st
from refusals import refused
from test_quality import TRUTH

from ocr_phases.analyse import cost_quality, sweep_table
from ocr_phases.analyse.compared_metrics import text_changes
from ocr_phases.analyse.comparison import in_units
from ocr_phases.analyse.cost_quality import cost_quality_sentence, preset_points
from ocr_phases.analyse.figure_rows import SHARE
from ocr_phases.batch.archive import list_pages, page_status, read_listing, waiting_reports
from ocr_phases.batch.figures import page_run
from ocr_phases.batch.index import PAGE_COLUMNS, REGION_COLUMNS, BatchIndex, add_truths, build_index
from ocr_phases.cli import main
from ocr_phases.record.parts import to_plain
from ocr_phases.record.schema import Truth
from ocr_phases.results.comparison import Comparison
from ocr_phases.results.sweep import SweepResult
from ocr_phases.show.sweep_overview import cost_quality_section

POINT = st.tuples(st.integers(1, 6), st.integers(0, 6))
HEAVY = Truth(TRUTH.text.replace("light", "heavy"), file="page.md")


@given(st.lists(POINT, min_size=1, max_size=12))
def test_the_frontier_is_what_nothing_beats(points):
    costs, lost = (pd.Series(values, dtype="float64") for values in zip(*points, strict=True))
    on = cost_quality.frontier(costs, lost)
    assert on.any()
    for place, (cost, loss) in enumerate(points):
        beaten = any(c <= cost and v <= loss and (c, v) != (cost, loss) for c, v in points)
        assert on[place] != beaten


def ended(run, **model):
    return altered(run, request={"ignore_eos": False}, model=model)


IGNORING = altered(make_run(), request={"ignore_eos": True})


def presets(truth=None):
    """A page read at two presets, worse by the smaller, and again by another strategy."""
    small = ended(make_run(crops=False, max_tokens=60))
    runs = {
        "small": small,
        "large": ended(make_run()),
        "captured": ended(make_run(), strategy="cuda_graph"),
    }
    return {name: run if truth is None else run.with_truth(truth) for name, run in runs.items()}


@pytest.mark.parametrize("truth", [TRUTH, None])
def test_a_sweep_says_what_its_cells_lose(truth):
    """By the truth, or by agreement with the richest."""
    found = SweepResult(presets(truth), failed_cells())
    points = found.cost_quality
    assert tuple(points.columns) == cost_quality.POINT_COLUMNS
    lost = points.set_index("name")["lost"]
    assert lost[["gundam, eager", "gundam, cuda_graph"]].tolist() == [0.0, 0.0]
    assert 0.1 < lost["base, eager"] < 1.0
    assert set(found.table["reference"]) == {None if truth else "large"}
    sentence = cost_quality_sentence(points)
    assert sentence in found.verdict
    assert ("not accuracy" in sentence) == (truth is None)
    assert ("loses least (edit distance 0 %)" in sentence) == (truth is not None)
    shown = Elements(cost_quality_section(found).html())
    assert {"h2", "svg", "table"} <= shown.tags()


def test_a_text_without_its_end_is_not_judged():
    for truth in (None, TRUTH):
        runs = {name: IGNORING if truth is None else IGNORING.with_truth(truth) for name in "ab"}
        assert sweep_table.losses(runs)[["edit_distance", "agreement"]].isna().all(axis=None)
    with refused():
        SweepResult({"a": IGNORING}, failed_cells()).with_truth("page.md")


def test_a_sweep_with_a_truth_ends_at_the_end_token_and_keeps_it(golden_session, tmp_path):
    (tmp_path / "slide.md").write_text("# A slide")
    quick = {"repeats": 1, "warmup": 0}
    page, folder, states = PAGES / "slide.png", tmp_path / "s", []
    quick |= {
        "presets": ["tiny"],
        "lengths": [3],
        "progress": lambda outcome: states.append(outcome.state),
    }
    golden_session.sweep(page, folder=folder, ignore_eos=False, **quick)
    found = golden_session.sweep(page, folder=folder, truth=tmp_path, **quick)
    assert states == ["measured", "kept"]  # what the page says is no setting of the measurement
    (run,) = found.runs.values()
    assert run.truth_of() == Truth("# A slide", file="slide.md") and run.request.ignore_eos is False
    assert found.table["edit_distance"].notna().all()
    golden_session.sweep(page, folder=folder, **quick)
    assert states[2:] == ["measured"]
    with refused():
        golden_session.sweep(page, folder=tmp_path / "t", truth=tmp_path / "no.md", **quick)
    assert not list((tmp_path / "t").rglob("*.json"))


def test_compare_tells_what_a_change_does_to_the_text():
    base, other = make_run().with_truth(TRUTH), make_run(text=TEXT_HEAVY).with_truth(TRUTH)
    compared = Comparison([base, other], ["a", "b"])
    rows = compared.headline.set_index("metric")
    assert rows.loc["agreement", ["baseline", "verdict"]].tolist() == [1.0, "different"]
    assert rows.loc["cer", "baseline"] == 0.0 < rows.loc["cer", "other"] < 0.1
    assert (
        rows.loc["cer", "verdict"] == "worse" and rows.loc["table_similarity", "verdict"] == "equal"
    )
    assert "Its text agrees with the baseline's to" in compared.verdict
    assert "its edit distance to the reference text is" in compared.verdict
    shown = in_units(compared.table, "a").set_index("metric")
    assert shown.loc["agreement", ["a", "unit"]].tolist() == [100.0, "%"]
    better = Comparison([other, base], ["b", "a"]).headline.set_index("metric")
    assert better.loc["cer", "verdict"] == "better"
    same = Comparison([base, base], ["a", "b"])
    assert "agrees" not in same.verdict
    assert set(same.table.loc[same.table["unit"] == SHARE, "verdict"]) == {"equal"}


TEXT_HEAVY = make_run().text.replace("light", "heavy")  # type: ignore[union-attr]


def test_the_text_of_every_row_is_compared_of_one_page_and_by_one_truth():
    base, alone = make_run(rows=2), make_run()
    other = altered(
        base, results=[base.results[0], to_plain(base.results[1]) | {"text": TEXT_HEAVY}]
    )
    (agreement,) = text_changes(base, other)["other"]
    found = text_changes(alone.with_truth(TRUTH), make_run(text=TEXT_HEAVY).with_truth(HEAVY))
    assert found["metric"].tolist() == ["agreement"]
    assert agreement == pytest.approx((1.0 + found["other"].item()) / 2)
    assert "row 2" in Comparison([base, other], ["a", "b"]).text_diff
    assert text_changes(
        alone, altered(alone, pages=[to_plain(alone.page) | {"sha256": "0" * 64}])
    ).empty
    assert text_changes(alone, make_run(return_text=False)).empty


def test_truths_are_added_to_what_was_measured(tmp_path):
    out, truths = tmp_path / "out", tmp_path / "truths"
    for folder in (out, truths):
        folder.mkdir()
    make_batch(out)
    (truths / "b.md").write_text("# What b says")
    (truths / "c-2.json").write_text("{")
    found = add_truths(out, truths)
    assert found[:2] == (2, 1) and list(found[2]) == ["c.pdf#2"]  # b is named twice
    entry = next(entry for entry in read_listing(out) if entry["page"] == "b.png")
    assert page_run(out / entry["folder"]).truth_of() == Truth("# What b says", file="b.md")
    assert out / entry["folder"] in list(waiting_reports(out))  # its report lacks the truth
    before = page_status(out, entry)
    assert add_truths(out, truths)[0] == 2 and page_status(out, entry) == before
    pages = build_index(out).pages.set_index("page")
    assert pages.loc["b.png", "cer"].iloc[0] > 0 and pages["cer"].notna().sum() == 2
    assert pages["compression"].notna().sum() == 4


def test_pages_of_one_name_are_not_one_page(tmp_path):
    jobs = [a_job("p.png", n * 32, preset) for n in ("ab", "cd") for preset in ("small", "large")]
    list_pages(jobs, tmp_path)
    for number, job in enumerate(jobs):
        run = ended(make_run(crops=number % 2 == 1, max_tokens=None if number % 2 else 40))
        put_page(
            tmp_path,
            job,
            altered(run, pages=[to_plain(run.page) | {"sha256": job.sha256}]).to_json(),
        )
    pages = build_index(tmp_path).pages
    assert pages["page_id"].nunique() == 2
    assert pages["agreement"].tolist()[1::2] == [1.0, 1.0] and (pages["agreement"][::2] < 1.0).all()


def batch_pages(**columns):
    """An index's pages: three pages at two presets, by hand."""
    table = dict.fromkeys(PAGE_COLUMNS, np.nan) | {
        "page": [*"aabbcc"],
        "page_id": [*"aabbcc"],
        "reference": None,
        "preset": ["small", "large"] * 3,
        "status": "done",
        "report": False,
        "folder": "pages/00/x",
        "page_ms": [100.0, 300.0, 120.0, 400.0, 110.0, 500.0],
        "peak_bytes": [1e9, 2e9] * 3,
        "compression": [4.0, 1.0, 3.0, 0.8, 8.0, 2.0],
        "edit_distance": [0.1, 0.0, 0.2, 0.1, 0.3, 0.2],
        "cer": [0.1, 0.0, 0.2, 0.1, 0.3, 0.2],
        "repeated_share": [0.0, 0.0, 0.0, 0.0, 0.9, 0.0],
        "category": ["book", "book", "slide", "slide", "slide", "slide"],
        "repetition": [0.0, 0.0, 0.0, 0.0, 0.9, 0.0],
        "box_recall": 1.0,
        "warnings": "",
        "noisy": False,
        "cut": False,
        "tokens": 10,
    }
    return pd.DataFrame(table | columns, index=range(6))


def test_presets_and_categories_by_hand():
    pages = batch_pages()
    points = preset_points(pages).set_index("name")
    assert points.loc["small", ["page_ms", "lost"]].tolist() == pytest.approx([110.0, 0.2])
    assert points.loc["large", ["peak_bytes", "lost"]].tolist() == pytest.approx([2e9, 0.1])
    assert cost_quality_sentence(points.reset_index()) == (
        "large loses least (edit distance 10 %): small loses 10.0 points more and takes 0.28 of "
        "its time."
    )
    table = cost_quality.preset_table(pages).set_index("preset")
    assert table.loc["small", ["pages", "loops", "compression"]].tolist() == [3, 1, 4.0]
    categories = cost_quality.category_table(pages).set_index("category")
    assert categories.loc["slide", ["pages", "small", "large"]].tolist() == pytest.approx(
        [2, 0.25, 0.15]
    )
    # A page that one preset could not read counts in no preset's mean.
    failed = pages.assign(edit_distance=[0.1, 0.0, 0.2, 0.1, np.nan, 0.2])
    assert preset_points(failed).set_index("name").loc["large", "lost"] == pytest.approx(0.05)
    assert cost_quality.category_table(pages.assign(category="")).empty


def test_the_index_shows_quality_worst_pages_first():
    """Without a truth it is approved."""

    def index(**columns):
        return html_of(BatchIndex(batch_pages(**columns), pd.DataFrame(columns=[*REGION_COLUMNS])))

    shown, cut = index(), index(cut=[False] * 4 + [True] * 2)
    assert "6 of 6 records have a reference text" in shown
    assert "Tokens: 10" in shown and "Vision in the prefill: none" in shown
    worst, left = (each[each.index("The worst pages first") :] for each in (shown, cut))
    assert worst.index(">c<") < worst.index(">b<") < worst.index(">a<") and ">c<" not in left


def test_batch_measures_every_page_at_every_preset(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("ocr_phases.batch.local_workers.LocalWorkers", measured_here)
    out = tmp_path / "out"
    command = [
        "batch",
        str(PAGES / "slide.png"),
        "--presets",
        "tiny,small",
        "--out",
        str(out),
        *QUICK,
    ]
    command += ["--render", "none", "--no-ceilings"]
    assert main([*command, "--truth", str(PAGES), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["truths_failed"] == 0
    pages = pd.read_csv(out / "pages.csv")
    assert pages["preset"].tolist() == ["tiny", "small"] and pages["cer"].notna().all()
