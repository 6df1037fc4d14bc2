"""Time on the page: what regions add up to in real runs, the chart by type, the part of a report."""

from __future__ import annotations

import dataclasses

import pytest
from conftest import PAGES
from example_run import make_run
from hypothesis import given, settings
from hypothesis import strategies as st

from ocr_phases import OCRSession, PhaseRun
from ocr_phases.analyse.grounding import parse_grounding
from ocr_phases.analyse.regions import region_table, type_table
from ocr_phases.show import page as page_view
from ocr_phases.show import results
from ocr_phases.show.figures import figure_png


@pytest.fixture(scope="module")
def three_pages(tiny_session: OCRSession, tmp_path_factory: pytest.TempPathFactory) -> list[PhaseRun]:
    """Records of three pages, read back from their files."""
    folder = tmp_path_factory.mktemp("pages")
    runs = []
    for name in ("receipt", "form", "slide"):
        run = tiny_session.run_inference(PAGES / f"{name}.png", max_new_tokens=160, repeats=2, warmup=0)
        runs.append(PhaseRun.load(run.save(folder / f"{name}.json")))
    return runs


def test_regions_and_preamble_sum_to_the_token_table_exactly(three_pages: list[PhaseRun]) -> None:
    for run in three_pages:
        tokens = run.token_table
        grounding = parse_grounding(run.text or "")
        assert len(grounding.regions) > 1
        table = region_table(grounding, tokens)
        types = type_table(table)
        assert table["decode_ms"].sum() == tokens["device_ms"].sum() == types["decode_ms"].sum()
        assert table["tokens"].sum() == len(tokens) == types["tokens"].sum()
        assert table["share"].sum() == pytest.approx(1.0)
        steps = run.spans[run.spans["stage"] == "decode_step"].groupby("step")["device_ms"].median()
        assert table["decode_ms"].sum() == pytest.approx(steps.sum(), abs=1e-6 * len(steps))


@settings(deadline=None, max_examples=20)
@given(
    text=st.text(max_size=200),
    repeats=st.integers(1, 3),
    preamble=st.booleans(),
    seed=st.integers(0, 1000),
)
def test_any_text_in_a_record_adds_up_exactly(text: str, repeats: int, preamble: bool, seed: int) -> None:
    marked = "<|ref|>text<|/ref|><|det|>[[1, 2, 300, 400]]<|/det|>"
    run = make_run(text=("Well: " if preamble else "") + marked + text + marked, repeats=repeats, seed=seed)
    tokens = run.token_table
    table = region_table(parse_grounding("".join(tokens["text"])), tokens)
    assert table["decode_ms"].sum() == tokens["device_ms"].sum()
    assert (table["region"].iloc[0] == -1) == preamble


def test_the_chart_names_types_as_text() -> None:
    text = "".join(
        f"<|ref|>${kind}_$x^2<|/ref|><|det|>[[1, 2, 3, 4]]<|/det|>text {kind}" for kind in range(20)
    )
    figure = page_view.plot_region_types(make_run(text="Sure. " + text))
    names = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert len(names) == 12
    assert all("$" in name or name == "preamble" for name in names)
    figure_png(figure)


def test_no_page_of_an_unmarked_prompt_vanishes() -> None:
    run = make_run()
    document = results.page(dataclasses.replace(run, pages=run.pages * 2)).html()
    assert "Page 2 of 2" in document
    assert "marks no pages: all boxes are on the first" in document
