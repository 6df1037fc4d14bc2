"""docs/cost.md says what the cost model computes."""

from __future__ import annotations

from pathlib import Path

from benchmarks import cost_tables

DOCS = Path(__file__).parents[1] / "docs"


def test_the_tables_are_up_to_date() -> None:
    page = (DOCS / "cost.md").read_text(encoding="utf-8")
    for name, table in cost_tables.tables().items():
        assert f"<!-- {name} -->\n{table}\n<!-- end of {name} -->" in page, (
            "run: python -m benchmarks.cost_tables"
        )
    assert cost_tables.written(page) == page
