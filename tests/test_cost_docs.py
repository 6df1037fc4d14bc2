"""docs/cost.md says what the cost model computes."""

from __future__ import annotations

import runpy
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"


def test_the_tables_are_up_to_date() -> None:
    page = (DOCS / "cost.md").read_text(encoding="utf-8")
    made = runpy.run_path(str(DOCS / "make_cost.py"))
    for name, table in made["tables"]().items():
        assert f"<!-- {name} -->\n{table}\n<!-- end of {name} -->" in page, "run: python docs/make_cost.py"
    assert made["written"](page) == page
