"""docs/cost.md and the example of docs/how-it-works.md say what the cost model computes."""

from __future__ import annotations

from pathlib import Path

from benchmarks import cost_tables
from benchmarks.documents import with_parts
from ocr_phases.analyse.cost import decode_cost, prefill_cost, stage_cost, vision_calls
from ocr_phases.record import PhaseRun

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"


def test_the_tables_are_up_to_date() -> None:
    page = (DOCS / "cost.md").read_text(encoding="utf-8")
    assert with_parts(page, cost_tables.tables()) == page, "run: python -m benchmarks.cost_tables"


def test_the_worked_example_is_computed_and_measured() -> None:
    page = (DOCS / "how-it-works.md").read_text(encoding="utf-8")
    run = PhaseRun.load(ROOT / "data/runs/h200-dummy-base.json")
    config, length, tokens = run.model["config"], int(run["prefill_len"]), int(run["tokens"])
    views = vision_calls("base", [(1, 1)])
    table = stage_cost(prefill_cost(config, prompt_len=length, views=views)).set_index("stage")
    prefill = int(table["flops"].sum())
    ends = [decode_cost(config, cache_len=length + step) for step in (1, tokens - 1)]
    steps = (tokens - 1) * sum(int(end["flops"].sum()) for end in ends) // 2  # linear in the cache's length
    one = int(decode_cost(config, cache_len=1)["kv_bytes"].sum())
    expected = [
        *(f"| {flops / 1e9:,.1f} |" for flops in (prefill, steps, prefill + steps)),
        *(
            f"| {table['flops'][stage] / 1e9:.1f} | {run[f'{stage}_ms']:.1f} ms |"
            for stage in ("sam", "clip")
        ),
        " to ".join(f"{end['flops'].sum() / 1e9:.3f}" for end in ends),
        f"| {ends[0]['weight_bytes'].sum():,} |",
        f"| {one:,} |",
        f"| {length * one:,} |",
        f"x [1, 10, {length + tokens - 1}, 128] | {int(run['kv_cache_bytes']):,} |",
        f"| {run['prefill_ms']:.1f} ms |",
        f"| {run['inter_token_ms']:.1f} ms |",
        f"| {run['decode_ms']:,.0f} ms |",
    ]
    assert [text for text in expected if text not in page] == []
