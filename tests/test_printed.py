"""`print()` of every public result is text that a person reads: no address, no dump of an object's
fields.
"""

import re
from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest
import torch
from conftest import GPU_RECORD, PAGES, RECORD
from example_run import SHAPES, altered, make_run
from surface import tables_in

from ocr_phases import Comparison, OCRSession, PhaseRun, SweepResult, Timeline, compare
from ocr_phases.analyse.load import AskedPage
from ocr_phases.analyse.sentences import preset_text, subject
from ocr_phases.analyse.sweep_table import FAILURE_COLUMNS
from ocr_phases.explorer import Explorer
from ocr_phases.results.load import LoadResult

#: What Python prints of an object that has no text of its own.
DUMP = re.compile(r" at 0x[0-9a-f]+|object at|<bound method|Part\(|array\(")
TABLES = tables_in(PhaseRun.load(RECORD))


def assert_printed_for_people(result: Any) -> None:
    """Neither `str` nor `repr` of a result shows an address or an object's fields."""
    assert not DUMP.search(str(result))
    assert not DUMP.search(repr(result))


def assert_printed_as_shown(result: Any, longest: int) -> None:
    """A result is printed as a terminal shows it, in so many characters at most."""
    assert_printed_for_people(result)
    assert str(result) == result._repr_mimebundle_()["text/plain"]
    assert len(repr(result)) < longest


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_a_printed_record_is_what_a_terminal_shows(shape: dict[str, Any]) -> None:
    assert_printed_as_shown(make_run(**shape), 300)


def two_records_compared() -> Comparison:
    return compare(RECORD, GPU_RECORD)


def sweep_of_one_cell() -> SweepResult:
    return SweepResult({"base": make_run()}, pd.DataFrame(columns=list(FAILURE_COLUMNS)))


def sweep_without_a_record() -> SweepResult:
    return SweepResult({}, pd.DataFrame(columns=list(FAILURE_COLUMNS)))


def load_of_one_page() -> LoadResult:
    page = AskedPage(level="1 at once", begun=0.0, times=[0.5, 0.6], tokens=2, timed=True)
    return LoadResult("http://localhost:8000", [page])


def timeline_of_a_prefill() -> Timeline:
    timeline = Timeline("cpu")
    with timeline.in_phase("prefill"), timeline.span("sam"):
        pass
    return timeline


def timeline_without_spans() -> Timeline:
    return Timeline("cpu")


def page_of_a_record() -> Any:
    return make_run().page


@pytest.mark.parametrize(
    "make_result",
    [
        two_records_compared,
        sweep_of_one_cell,
        sweep_without_a_record,
        load_of_one_page,
        timeline_of_a_prefill,
        timeline_without_spans,
        page_of_a_record,
    ],
)
def test_a_printed_result_is_what_a_terminal_shows(make_result: Callable[[], Any]) -> None:
    assert_printed_as_shown(make_result(), 300)


@pytest.mark.parametrize("name", TABLES)
def test_a_printed_table_has_all_of_its_columns_and_is_no_longer_than_a_screen(name: str) -> None:
    table = getattr(PhaseRun.load(RECORD), name)

    text = str(table)

    lines = text.splitlines()
    for column in table.columns:
        assert column in text
    assert "\N{HORIZONTAL ELLIPSIS}" not in lines[0]
    assert " ... " not in text
    assert len(lines) <= 62


def test_what_a_session_makes_is_printed_as_its_facts(golden_session: OCRSession) -> None:
    inputs = golden_session.prepare(PAGES / "slide.png", preset="tiny")
    timeline = Timeline("cpu")
    state = golden_session.run_prefill(inputs, timeline)

    for made in (golden_session, inputs, state, timeline):
        assert_printed_for_people(made)
        assert str(made) == made._repr_mimebundle_()["text/plain"]
    assert isinstance(state.token, torch.Tensor)


def test_an_explorer_is_printed_without_its_traits() -> None:
    for explorer in (Explorer(make_run()), Explorer()):
        assert not DUMP.search(str(explorer))
        assert len(repr(explorer)) < 1000


@pytest.mark.parametrize(
    ("choice", "strategy", "preset"),
    [
        pytest.param("default", "eager", "preset gundam (the model's default)", id="default"),
        pytest.param("asked", "eager", "preset gundam", id="asked for"),
        pytest.param("default", "compiled", "preset gundam (the model's default)", id="compiled"),
        pytest.param(None, "eager", "preset gundam", id="an old record, which does not say"),
    ],
)
def test_the_first_screen_names_the_preset_and_whose_choice_it_was(
    choice: str | None, strategy: str, preset: str
) -> None:
    run = altered(make_run(), request={"preset_choice": choice}, model={"strategy": strategy})

    assert preset_text(run) == preset
    line = subject(run)
    assert f"{preset}, float32, {strategy}" in line
    shown = run._repr_mimebundle_()
    assert line in shown["text/plain"]
    assert preset in shown["text/html"].replace("&#39;", "'")


def test_a_printed_timeline_has_its_stages_in_the_order_of_a_page() -> None:
    stages = ("sam", "clip", "projector", "language_model")
    timeline = Timeline("cpu")
    with timeline.in_phase("prefill"):
        for stage in stages:
            with timeline.span(stage):
                pass

    text = str(timeline)

    places = [text.index(stage) for stage in stages]
    assert places == sorted(places)
