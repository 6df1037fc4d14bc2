"""Cost beside quality: the frontier, a sweep, a batch over presets, a comparison, and their
verbs.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

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

from ocr_phases import OCRSession, PhaseRun
from ocr_phases.analyse import cost_quality, sweep_table
from ocr_phases.analyse.compared_metrics import text_changes
from ocr_phases.analyse.comparison import in_units
from ocr_phases.analyse.cost_quality import cost_quality_sentence, preset_points
from ocr_phases.analyse.figure_rows import SHARE
from ocr_phases.batch.archive import list_pages, page_status, read_listing, waiting_reports
from ocr_phases.batch.figures import page_run
from ocr_phases.batch.index import (
    INDEX_REGION_COLUMNS,
    PAGE_COLUMNS,
    BatchIndex,
    add_truths,
    build_index,
)
from ocr_phases.cli import main
from ocr_phases.measure.cells import CellOutcome
from ocr_phases.record.parts import to_plain
from ocr_phases.record.schema import Truth
from ocr_phases.results.comparison import Comparison
from ocr_phases.results.sweep import SweepResult
from ocr_phases.show.quality_plots import plot_compression
from ocr_phases.show.sweep_overview import cost_quality_section

#: Where the reference text of the example page says "heavy" instead of "light".
HEAVY = Truth(TRUTH.text.replace("light", "heavy"), file="page.md")

#: A point of a frontier: what it costs and what is lost.
POINT = st.tuples(st.integers(1, 6), st.integers(0, 6))


def beats(other: tuple[int, int], point: tuple[int, int]) -> bool:
    """Whether another point costs and loses no more, and one of both less."""
    other_cost, other_loss = other
    cost, loss = point
    return other_cost <= cost and other_loss <= loss and other != point


@given(st.lists(POINT, min_size=1, max_size=12))
def test_the_frontier_is_what_nothing_beats(points: list[tuple[int, int]]) -> None:
    costs = pd.Series([cost for cost, _ in points], dtype="float64")
    losses = pd.Series([loss for _, loss in points], dtype="float64")

    is_on_frontier = cost_quality.frontier(costs, losses)

    assert is_on_frontier.any()
    for place, point in enumerate(points):
        assert is_on_frontier[place] != any(beats(other, point) for other in points)


# -- a sweep ---------------------------------------------------------------------------------------


def ended_run(*, strategy: str = "eager", **shape: Any) -> PhaseRun:
    """A record whose text ends where the model ended it."""
    run = make_run(**shape)
    return altered(run, request={"ignore_eos": False}, model={"strategy": strategy})


def runs_of_two_presets() -> dict[str, PhaseRun]:
    """A page read at two presets, worse by the smaller, and again by another strategy."""
    return {
        "small": ended_run(crops=False, max_tokens=60),
        "large": ended_run(),
        "captured": ended_run(strategy="cuda_graph"),
    }


def with_truth(runs: dict[str, PhaseRun], truth: Truth) -> dict[str, PhaseRun]:
    """The records beside a reference text."""
    return {name: run.with_truth(truth) for name, run in runs.items()}


def losses(sweep: SweepResult) -> pd.Series:
    """What each point of a sweep loses, by its name."""
    assert tuple(sweep.cost_quality.columns) == cost_quality.POINT_COLUMNS
    return sweep.cost_quality.set_index("name")["lost"]


def assert_only_the_smaller_preset_loses(sweep: SweepResult) -> None:
    """Of the cells of `runs_of_two_presets` those of the larger preset lose nothing."""
    lost = losses(sweep)
    assert lost["gundam, eager"] == 0.0
    assert lost["gundam, cuda_graph"] == 0.0
    assert 0.1 < lost["base, eager"] < 1.0


def test_a_sweep_with_a_truth_says_what_its_cells_lose_of_it() -> None:
    sweep = SweepResult(with_truth(runs_of_two_presets(), TRUTH), failed_cells())

    assert_only_the_smaller_preset_loses(sweep)
    assert set(sweep.table["reference"]) == {None}
    sentence = cost_quality_sentence(sweep.cost_quality)
    assert sentence in sweep.verdict
    assert "loses least (edit distance 0 %)" in sentence
    assert "not accuracy" not in sentence


def test_a_sweep_without_a_truth_says_how_far_its_cells_agree_with_the_richest() -> None:
    sweep = SweepResult(runs_of_two_presets(), failed_cells())

    assert_only_the_smaller_preset_loses(sweep)
    assert set(sweep.table["reference"]) == {"large"}
    sentence = cost_quality_sentence(sweep.cost_quality)
    assert sentence in sweep.verdict
    assert "loses least (edit distance 0 %)" not in sentence
    assert "not accuracy" in sentence


@pytest.mark.parametrize("truth", [TRUTH, None], ids=["with a truth", "without one"])
def test_a_sweep_shows_cost_beside_quality_as_picture_and_table(truth: Truth | None) -> None:
    runs = runs_of_two_presets()
    if truth is not None:
        runs = with_truth(runs, truth)

    shown = Elements(cost_quality_section(SweepResult(runs, failed_cells())).html())

    assert {"h2", "svg", "table"} <= shown.tags()


def test_the_first_of_the_panels_beside_each_other_says_what_is_lost() -> None:
    figure = SweepResult(runs_of_two_presets(), failed_cells()).plot.cost_quality()
    first, *others = figure.axes
    assert first.get_ylabel().endswith("(%)")
    assert others
    assert [axes.get_ylabel() for axes in others] == [""] * len(others)


#: A record that goes on after the end token, so that its text has no end of its own.
ENDLESS_RUN = altered(make_run(), request={"ignore_eos": True})


@pytest.mark.parametrize(
    "run",
    [
        pytest.param(ENDLESS_RUN, id="by agreement"),
        pytest.param(ENDLESS_RUN.with_truth(TRUTH), id="by a truth"),
    ],
)
def test_a_text_without_its_end_is_not_judged(run: PhaseRun) -> None:
    found = sweep_table.losses({"a": run, "b": run})

    assert found["edit_distance"].isna().all()
    assert found["agreement"].isna().all()


def test_a_sweep_of_texts_without_an_end_refuses_a_truth() -> None:
    with refused():
        SweepResult({"a": ENDLESS_RUN}, failed_cells()).with_truth("page.md")


class SlideSweep:
    """Sweeps of one page with one cell, which notes whether that was measured or kept."""

    def __init__(self, session: OCRSession) -> None:
        self.session = session
        self.states: list[str] = []

    def measure(self, folder: Path, **options: Any) -> SweepResult:
        """The sweep that keeps its record in this folder."""
        return self.session.sweep(
            PAGES / "slide.png",
            folder=folder,
            presets=["tiny"],
            lengths=[3],
            repeats=1,
            warmup=0,
            progress=self.note,
            **options,
        )

    def note(self, outcome: CellOutcome) -> None:
        """What became of the cell."""
        self.states.append(outcome.state)


def test_a_sweep_with_a_truth_ends_at_the_end_token_and_keeps_the_truth(
    golden_session: OCRSession, tmp_path: Path
) -> None:
    (tmp_path / "slide.md").write_text("# A slide")
    sweep = SlideSweep(golden_session)

    sweep.measure(tmp_path / "kept", ignore_eos=False)
    found = sweep.measure(tmp_path / "kept", truth=tmp_path)
    sweep.measure(tmp_path / "kept")

    # What the page says is no setting of the measurement; whether a text goes on is one.
    assert sweep.states == ["measured", "kept", "measured"]
    (run,) = found.runs.values()
    assert run.truth_of() == Truth("# A slide", file="slide.md")
    assert run.request.ignore_eos is False
    assert found.table["edit_distance"].notna().all()


def test_a_sweep_with_a_truth_that_is_not_there_measures_nothing(
    golden_session: OCRSession, tmp_path: Path
) -> None:
    with refused():
        SlideSweep(golden_session).measure(tmp_path / "kept", truth=tmp_path / "no.md")

    assert not list((tmp_path / "kept").rglob("*.json"))


# -- a comparison ----------------------------------------------------------------------------------

TEXT_HEAVY = str(make_run().text).replace("light", "heavy")


@pytest.fixture
def right_run() -> PhaseRun:
    """A record whose text is what the page says."""
    return make_run().with_truth(TRUTH)


@pytest.fixture
def wrong_run() -> PhaseRun:
    """A record whose text has words that the page does not have."""
    return make_run(text=TEXT_HEAVY).with_truth(TRUTH)


def test_compare_says_that_a_change_made_the_text_worse(
    right_run: PhaseRun, wrong_run: PhaseRun
) -> None:
    comparison = Comparison([right_run, wrong_run], ["a", "b"])

    rows = comparison.headline.set_index("metric")
    assert rows.loc["agreement", "baseline"] == 1.0
    assert rows.loc["agreement", "verdict"] == "different"
    assert rows.loc["cer", "baseline"] == 0.0
    assert 0.0 < rows.loc["cer", "other"] < 0.1
    assert rows.loc["cer", "verdict"] == "worse"
    assert rows.loc["table_similarity", "verdict"] == "equal"
    assert "Its text agrees with the baseline's to" in comparison.verdict
    assert "its edit distance to the reference text is" in comparison.verdict


def test_a_comparison_shows_the_agreement_of_texts_in_per_cent(
    right_run: PhaseRun, wrong_run: PhaseRun
) -> None:
    comparison = Comparison([right_run, wrong_run], ["a", "b"])

    agreement = in_units(comparison.table, "a").set_index("metric").loc["agreement"]

    assert agreement["a"] == 100.0
    assert agreement["unit"] == "%"


def test_compare_says_that_a_change_made_the_text_better(
    right_run: PhaseRun, wrong_run: PhaseRun
) -> None:
    rows = Comparison([wrong_run, right_run], ["b", "a"]).headline.set_index("metric")

    assert rows.loc["cer", "verdict"] == "better"


def test_compare_says_nothing_of_a_text_that_stayed(right_run: PhaseRun) -> None:
    comparison = Comparison([right_run, right_run], ["a", "b"])

    assert "agrees" not in comparison.verdict
    shares = comparison.table[comparison.table["unit"] == SHARE]
    assert set(shares["verdict"]) == {"equal"}


def test_texts_are_not_measured_by_two_truths() -> None:
    changes = text_changes(
        make_run().with_truth(TRUTH), make_run(text=TEXT_HEAVY).with_truth(HEAVY)
    )

    assert changes["metric"].tolist() == ["agreement"]


def test_the_text_of_every_row_is_compared() -> None:
    base = make_run(rows=2)
    changed_row = to_plain(base.results[1]) | {"text": TEXT_HEAVY}
    other = altered(base, results=[base.results[0], changed_row])
    agreement_of_changed_row = text_changes(make_run(), make_run(text=TEXT_HEAVY))["other"].item()

    agreement = text_changes(base, other)["other"].item()

    assert agreement == pytest.approx((1.0 + agreement_of_changed_row) / 2)
    assert "row 2" in Comparison([base, other], ["a", "b"]).text_diff


def test_the_texts_of_two_pages_are_not_compared() -> None:
    run = make_run()
    other_page = altered(run, pages=[to_plain(run.page) | {"sha256": "0" * 64}])

    assert text_changes(run, other_page).empty


def test_a_record_without_its_text_is_not_compared_by_text() -> None:
    assert text_changes(make_run(), make_run(return_text=False)).empty


# -- a batch ---------------------------------------------------------------------------------------


@pytest.fixture
def measured_batch(tmp_path: Path) -> Path:
    """A batch with every outcome; ``b.png`` is listed twice."""
    out = tmp_path / "out"
    out.mkdir()
    make_batch(out)
    return out


@pytest.fixture
def truths(tmp_path: Path) -> Path:
    """What ``b.png`` says, and a file for ``c.pdf`` that is no truth."""
    folder = tmp_path / "truths"
    folder.mkdir()
    (folder / "b.md").write_text("# What b says")
    (folder / "c-2.json").write_text("{")
    return folder


def test_truths_are_added_to_the_pages_that_were_measured(
    measured_batch: Path, truths: Path
) -> None:
    added, without_truth, failures = add_truths(measured_batch, truths)

    assert added == 2  # b is listed twice
    assert without_truth == 1
    assert list(failures) == ["c.pdf#2"]
    entry = next(entry for entry in read_listing(measured_batch) if entry["page"] == "b.png")
    folder = measured_batch / entry["folder"]
    assert page_run(folder).truth_of() == Truth("# What b says", file="b.md")
    assert folder in list(waiting_reports(measured_batch))  # its report lacks the truth
    pages = build_index(measured_batch).pages.set_index("page")
    assert pages.loc["b.png", "cer"].iloc[0] > 0
    assert pages["cer"].notna().sum() == 2
    assert pages["compression"].notna().sum() == 4


def test_truths_that_are_added_again_change_nothing(measured_batch: Path, truths: Path) -> None:
    add_truths(measured_batch, truths)
    entry = next(entry for entry in read_listing(measured_batch) if entry["page"] == "b.png")
    before = page_status(measured_batch, entry)

    added, _, _ = add_truths(measured_batch, truths)

    assert added == 2
    assert page_status(measured_batch, entry) == before


def test_pages_of_one_name_are_not_one_page(tmp_path: Path) -> None:
    cut_run = ended_run(crops=False, max_tokens=40)
    whole_run = ended_run()
    jobs = []
    for sha256 in ("ab" * 32, "cd" * 32):
        for run in (cut_run, whole_run):
            job = a_job("p.png", sha256, run.request.preset)
            record = altered(run, pages=[to_plain(run.page) | {"sha256": sha256}])
            put_page(tmp_path, job, record.to_json())
            jobs.append(job)
    list_pages(jobs, tmp_path)

    pages = build_index(tmp_path).pages

    assert pages["page_id"].nunique() == 2
    agreement = pages.set_index("preset")["agreement"]
    assert agreement["gundam"].tolist() == [1.0, 1.0]
    assert (agreement["base"] < 1.0).all()


def batch_pages(**columns: Sequence[Any]) -> pd.DataFrame:
    """An index's pages: three pages at two presets, by hand, with these columns instead."""
    edit_distance = [0.1, 0.0, 0.2, 0.1, 0.3, 0.2]
    repeated_share = [0.0, 0.0, 0.0, 0.0, 0.9, 0.0]
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
        "edit_distance": edit_distance,
        "cer": edit_distance,
        "repeated_share": repeated_share,
        "category": ["book", "book", "slide", "slide", "slide", "slide"],
        "repetition": repeated_share,
        "box_recall": 1.0,
        "warnings": "",
        "noisy": False,
        "cut": False,
        "tokens": 10,
    }
    return pd.DataFrame(table | columns, index=range(6))


def test_a_presets_point_is_the_median_cost_and_the_mean_loss_of_its_pages() -> None:
    points = preset_points(batch_pages())

    by_name = points.set_index("name")
    assert by_name.loc["small", "page_ms"] == pytest.approx(110.0)
    assert by_name.loc["small", "lost"] == pytest.approx(0.2)
    assert by_name.loc["large", "peak_bytes"] == pytest.approx(2e9)
    assert by_name.loc["large", "lost"] == pytest.approx(0.1)
    assert cost_quality_sentence(points) == (
        "large loses least (edit distance 10 %): small loses 10.0 points more and takes 0.28 of "
        "its time."
    )


def test_the_table_of_presets_counts_their_pages_and_loops() -> None:
    small = cost_quality.preset_table(batch_pages()).set_index("preset").loc["small"]

    assert small["pages"] == 3
    assert small["loops"] == 1
    assert small["compression"] == 4.0


def test_each_page_is_a_point_of_its_preset_in_a_plot_that_fits_a_screen() -> None:
    figure = plot_compression(batch_pages())

    (axes,) = figure.axes
    points = {line.get_label().split(":")[0]: len(line.get_xdata()) for line in axes.lines}
    assert points == {"small": 3, "large": 3}
    assert figure.get_figheight() < 8


def test_the_table_of_categories_has_what_each_preset_loses_of_their_pages() -> None:
    slide = cost_quality.category_table(batch_pages()).set_index("category").loc["slide"]

    assert slide["pages"] == 2
    assert slide["small"] == pytest.approx(0.25)
    assert slide["large"] == pytest.approx(0.15)


def test_a_page_that_one_preset_could_not_read_counts_in_no_presets_mean() -> None:
    pages = batch_pages(edit_distance=[0.1, 0.0, 0.2, 0.1, np.nan, 0.2])

    assert preset_points(pages).set_index("name").loc["large", "lost"] == pytest.approx(0.05)


def test_pages_without_a_category_have_no_table_of_categories() -> None:
    assert cost_quality.category_table(batch_pages(category=[""] * 6)).empty


def index_page(pages: pd.DataFrame) -> str:
    """The HTML of an index with these pages and no regions."""
    return html_of(BatchIndex(pages, pd.DataFrame(columns=list(INDEX_REGION_COLUMNS))))


def worst_pages(html: str) -> str:
    """What an index shows from its list of the worst pages on."""
    return html[html.index("The worst pages first") :]


def test_the_index_shows_quality_and_the_worst_pages_first() -> None:
    """The index without a truth is an approved output."""
    html = index_page(batch_pages())

    assert "6 of 6 records have a reference text" in html
    assert "Tokens: 10" in html
    assert "Vision in the prefill: none" in html
    worst = worst_pages(html)
    assert worst.index(">c<") < worst.index(">b<") < worst.index(">a<")


def test_a_text_that_was_cut_is_not_among_the_worst() -> None:
    html = index_page(batch_pages(cut=[False, False, False, False, True, True]))

    assert ">c<" not in worst_pages(html)


def test_batch_measures_every_page_at_every_preset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("ocr_phases.batch.local_workers.LocalWorkers", measured_here)
    page = str(PAGES / "slide.png")
    presets = ["--presets", "tiny,small"]
    output = ["--out", str(tmp_path / "out"), "--render", "none", "--json"]
    truth = ["--truth", str(PAGES)]

    assert main(["batch", page, *presets, *truth, *output, "--no-ceilings", *QUICK]) == 0

    assert json.loads(capsys.readouterr().out)["truths_failed"] == 0
    pages = pd.read_csv(tmp_path / "out" / "pages.csv")
    assert pages["preset"].tolist() == ["tiny", "small"]
    assert pages["cer"].notna().all()
