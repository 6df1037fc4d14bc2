"""One sentence over several strategies: only measured cells stand in it, and only those that compare."""

from __future__ import annotations

import re

import pandas as pd
import pytest
from example_run import altered, make_run
from wording import says

from ocr_phases.analyse.comparison import Comparison
from ocr_phases.analyse.scaling import ways_sentence


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
    told = ("8.91 ms", "eager", "2.70", "captured in a graph", "1.00", "compiled", "memory bandwidth")
    assert says(said(*cells), *told, "0.280", "measured")
    slow = cell("eager", 2500.0, floor_source="datasheet", step_bound_by="arithmetic")
    fast = cell("compiled", 999.0)
    assert says(said(slow, fast), "eager", "999 ms", "compiled", "memory bandwidth", "0.280 ms", "measured")
    assert says(said(slow, {**fast, "step_floor_ms": None}), "arithmetic", "0.280 ms", "datasheet")


@pytest.mark.parametrize(
    "other", [None, {"inter_token_ms": None}, {"batch": 4}, {"device": "another"}, {"max_new_tokens": 32}]
)
def test_what_is_missing_or_unlike_is_not_named(other: dict[str, object] | None) -> None:
    eager = cell("eager", 8.9)
    assert said(eager, *([] if other is None else [cell("compiled", 1.0) | other])) == ""
    unknown = dict.fromkeys(("step_floor_ms", "step_bound_by", "floor_source"))
    without = said(eager | unknown, cell("compiled", 1.0, **unknown))
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
    for unlike in (cells[::2], [cells[2], cells[3] | {"batch": 4}]):
        assert ways_sentence(pd.DataFrame(unlike), "vision") == ""


def test_a_comparison_of_strategies_says_it_too_and_others_do_not() -> None:
    """Of records from a GPU it is held by the approved comparison of strategies."""
    eager = make_run()
    compiled = altered(eager, model={"strategy": "compiled"})
    elsewhere = altered(compiled, device={"name": "another"})
    for other, told in ((compiled, True), (elsewhere, False), (eager, False)):
        assert ("a token eager" in Comparison([eager, other]).verdict) == told
