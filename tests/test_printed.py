"""`print()` of every public result is text that a person reads: no address, no dump of an object's
fields.
"""

import re

import pandas as pd
import pytest
import torch
from conftest import GPU_RECORD, PAGES, RECORD
from example_run import SHAPES, altered, make_run
from surface import tables_in

from ocr_phases import PhaseRun, SweepResult, Timeline, compare
from ocr_phases.analyse.load import AskedPage
from ocr_phases.analyse.sentences import preset_text, subject
from ocr_phases.analyse.sweep_table import FAILURE_COLUMNS
from ocr_phases.explorer import Explorer
from ocr_phases.results.load import LoadResult

ADDRESS = re.compile(r" at 0x[0-9a-f]+|object at|<bound method|Part\(|array\(")
NO_FAILURES = pd.DataFrame(columns=list(FAILURE_COLUMNS))


def load_result():
    page = AskedPage(level="1 at once", begun=0.0, times=[0.5, 0.6], tokens=2, timed=True)
    return LoadResult("http://localhost:8000", [page])


def timeline_of_a_step():
    timeline = Timeline("cpu")
    with timeline.in_phase("prefill"), timeline.span("sam"):
        pass
    return timeline


RESULTS = {
    **{f"run: {name}": lambda shape=shape: make_run(**shape) for name, shape in SHAPES.items()},
    "comparison": lambda: compare(RECORD, GPU_RECORD),
    "sweep": lambda: SweepResult({"base": make_run()}, NO_FAILURES),
    "sweep without a record": lambda: SweepResult({}, NO_FAILURES),
    "load": load_result,
    "timeline": timeline_of_a_step,
    "timeline without spans": lambda: Timeline("cpu"),
    "page": lambda: make_run().page,
}
TABLES = tables_in(PhaseRun.load(RECORD))


@pytest.mark.parametrize("name", RESULTS)
def test_a_printed_result_is_what_a_terminal_shows(name):
    result = RESULTS[name]()
    assert not ADDRESS.search(str(result)) and not ADDRESS.search(repr(result))
    assert str(result) == result._repr_mimebundle_()["text/plain"]
    assert len(repr(result)) < 300


@pytest.mark.parametrize("name", TABLES)
def test_a_printed_table_has_all_of_its_columns_and_is_no_longer_than_a_screen(name):
    table = getattr(PhaseRun.load(RECORD), name)
    text = str(table)
    assert all(column in text for column in table.columns)
    assert "\N{HORIZONTAL ELLIPSIS}" not in text.splitlines()[0]
    assert " ... " not in text
    assert len(text.splitlines()) <= 62


def test_what_a_session_makes_is_printed_as_its_facts(golden_session):
    inputs = golden_session.prepare(PAGES / "slide.png", preset="tiny")
    timeline = Timeline("cpu")
    state = golden_session.run_prefill(inputs, timeline)
    for made in (golden_session, inputs, state, timeline):
        assert not ADDRESS.search(str(made)) and not ADDRESS.search(repr(made))
        assert str(made) == made._repr_mimebundle_()["text/plain"]
    assert isinstance(state.token, torch.Tensor)


def test_an_explorer_is_printed_without_its_traits():
    for made in (Explorer(make_run()), Explorer()):
        assert not ADDRESS.search(str(made)) and len(repr(made)) < 1000


@pytest.mark.parametrize(
    ("choice", "strategy", "said"),
    [
        ("default", "eager", "preset gundam (the model's default)"),
        ("asked", "eager", "preset gundam"),
        ("default", "compiled", "preset gundam (the model's default)"),
        (None, "eager", "preset gundam"),  # an old record does not say
    ],
)
def test_the_first_screen_names_the_preset_and_whose_choice_it_was(choice, strategy, said):
    run = make_run()
    run = altered(run, request={"preset_choice": choice}, model={"strategy": strategy})
    assert preset_text(run) == said
    line = subject(run)
    assert f"{said}, float32, {strategy}" in line
    bundle = run._repr_mimebundle_()
    assert line in bundle["text/plain"]
    assert said in bundle["text/html"].replace("&#39;", "'")
