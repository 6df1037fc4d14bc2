"""One sentence over several strategies: only measured cells stand in it, and only those that compare."""

from __future__ import annotations

import dataclasses
import re

import pandas as pd
from conftest import PAGES
from example_run import make_run
from hypothesis import given, settings
from hypothesis import strategies as st
from wording import says

from ocr_phases.analyse.comparison import Comparison
from ocr_phases.analyse.scaling import ways_sentence
from ocr_phases.record import PhaseRun
from ocr_phases.text import ms_text

RUNS = PAGES.parent / "runs"
NAMES = {"eager": "eager", "cuda_graph": "captured in a graph", "compiled": "compiled"}


def cell(strategy: str, ms: float | None, **others: object) -> dict[str, object]:
    usual = {"preset": "base", "prefill_len": 291, "vision": "eager", "batch": 1, "max_new_tokens": 128}
    floor = {"step_floor_ms": 0.28, "step_bound_by": "bandwidth", "floor_source": "measured"}
    usual |= {"model": "dummy", "attention": "sdpa", "dtype": "bfloat16", "device": "NVIDIA H200"}
    return {**usual, **floor, "strategy": strategy, "inter_token_ms": ms, **others}


def said(*cells: dict[str, object]) -> str:
    return ways_sentence(pd.DataFrame(list(cells)).astype({"inter_token_ms": float}), "strategy")


def test_strategies_and_floor_are_one_sentence() -> None:
    # In the order of the strategies, not of the cells.
    cells = [cell("compiled", 1.0), cell("eager", 8.91), cell("cuda_graph", 2.7)]
    told = ("8.91 ms", "eager", "2.70", NAMES["cuda_graph"], "1.00", "compiled", "memory bandwidth", "0.280")
    assert says(said(*cells), *told, "measured")
    cells = [
        cell("eager", 2500.0, floor_source="datasheet", step_bound_by="arithmetic"),
        cell("compiled", 999.0),
    ]
    assert says(said(*cells), "eager", "999 ms", "compiled", "memory bandwidth", "0.280 ms", "measured")
    assert says(said(cells[0], {**cells[1], "step_floor_ms": None}), "arithmetic", "0.280 ms", "datasheet")


def test_what_is_missing_is_not_named() -> None:
    assert said(cell("eager", 8.9)) == ""
    assert said(cell("eager", 8.9), cell("compiled", None)) == ""
    assert said(cell("eager", 8.9), cell("compiled", 1.0, batch=4)) == ""
    assert said(cell("eager", 8.9), cell("compiled", 1.0, device="another")) == ""
    assert said(cell("eager", 8.9), cell("compiled", 1.0, max_new_tokens=32)) == ""
    unknown = {"step_floor_ms": None, "step_bound_by": None, "floor_source": None}
    without = said(cell("eager", 8.9, **unknown), cell("compiled", 1.0, **unknown))
    assert says(without, "8.90 ms", "eager", "1.00", "compiled")
    assert re.findall(r"[0-9.]*[0-9]", without) == ["8.90", "1.00"]


def test_vision_is_told_of_the_eager_step_first() -> None:
    prefills = {"eager": 32.7, "compiled": 21.3}
    cells = [
        cell(strategy, 5.0, vision=vision, prefill_ms=ms * factor, prefill_floor_ms=10.0)
        for strategy, factor in (("compiled", 2.0), ("eager", 1.0))
        for vision, ms in prefills.items()
    ]
    told = ("eager", "32.7 ms", "eager", "21.3", "compiled", "10.0", "measured")
    assert says(ways_sentence(pd.DataFrame(cells), "vision"), *told)
    assert ways_sentence(pd.DataFrame(cells[::2]), "vision") == ""
    unlike = [cells[2], {**cells[3], "batch": 4}]
    assert ways_sentence(pd.DataFrame(unlike), "vision") == ""


@given(
    st.dictionaries(
        st.tuples(st.sampled_from(list(NAMES)), st.sampled_from([1, 4]), st.sampled_from([32, 128])),
        st.floats(0.01, 5e4),
        min_size=1,
    )
)
@settings(max_examples=60, deadline=None)
def test_every_figure_is_a_cells(measured: dict[tuple[str, int, int], float]) -> None:
    cells = [cell(name, ms, batch=rows, max_new_tokens=count) for (name, rows, count), ms in measured.items()]
    sentence = said(*cells)
    groups = [{key[0] for key in measured if key[1:] == place} for place in {key[1:] for key in measured}]
    most = max(groups, key=len)
    assert bool(sentence) == (len(most) > 1)
    named = [words for words in NAMES.values() if f" {words}" in sentence]
    assert not sentence or len(named) == len(most)
    figures = {ms_text(ms).split()[0] for ms in (*measured.values(), 0.28)}
    pieces = sentence.split(" takes ")[-1].replace(";", ",").split(", ")
    numbers = [piece.removeprefix("memory bandwidth allows ").split()[0] for piece in pieces if sentence]
    assert set(numbers) <= figures


def test_a_comparison_of_strategies_says_it_too_and_others_do_not() -> None:
    runs = [PhaseRun.load(RUNS / f"h200-dummy-{name}.json") for name in ("gundam", "gundam-compiled", "base")]
    labels = ["eager", "compiled", "base"]
    said = Comparison(runs, labels).verdict
    assert says(said, "8.85 ms", "eager", "0.928", "compiled", "memory bandwidth", "0.289", "measured")
    eager = make_run()
    compiled = dataclasses.replace(eager, model={**eager.model, "strategy": "compiled"})
    elsewhere = dataclasses.replace(compiled, device={**eager.device, "name": "another"})
    for other, told in ((compiled, True), (elsewhere, False), (eager, False)):
        verdict = Comparison([eager, other]).verdict
        assert ("a token eager" in verdict) == told
