"""Writes the speed tables from the benchmarks in data/runs: ``python -m benchmarks.speed_table``.

Every ``*.json`` there that ``python -m benchmarks`` wrote gives a row a preset; benchmarks of other parts
on the same device and model fill the same row. A table stands between two markers in its document; without
a benchmark there is nothing between them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks.tables import (
    KIND,
    load_bench,
    prefill_table,
    ratio_table,
    stage_coverage_table,
    strategy_table,
)
from ocr_phases.files import write_atomic
from ocr_phases.settings import STRATEGIES
from ocr_phases.text import ms_text

ROOT = Path(__file__).parents[1]
RUNS = ROOT / "data" / "runs"
#: A document with a table, and the folder of its benchmarks.
TABLES = {ROOT / "benchmarks" / "README.md": RUNS, ROOT / "docs" / "models.md": RUNS / "families"}
BEGIN, END = "<!-- speed table -->", "<!-- end of speed table -->"
COLUMNS = (
    "device, model",
    "preset",
    "prefill",
    *(f"{strategy}, a token" for strategy in STRATEGIES),
    "floor",
    "run / `generate()`",
    "collectors on / off",
    "stage coverage",
)
NONE = "–"


def find_benches(folder: Path) -> list[dict[str, Any]]:
    """The benchmarks among the JSON files of a folder, in order of their names."""
    paths = [
        path for path in sorted(folder.glob("*.json")) if json.loads(path.read_text()).get("kind") == KIND
    ]
    return [load_bench(path) for path in paths]


def speed_rows(bench: Mapping[str, Any]) -> list[list[str]]:
    """The cells of one benchmark's rows, a preset each, in the order of `COLUMNS`."""
    prefill, decode = prefill_table(bench), strategy_table(bench)
    ratios, coverage = ratio_table(bench), stage_coverage_table(bench)
    rows, prompt = [], bench["settings"].get("prompt", "markdown")
    for preset in bench["settings"]["presets"]:
        here = decode[decode["preset"] == preset].set_index("strategy")
        eager = prefill[(prefill["preset"] == preset) & (prefill["vision"] == "eager")]
        covered = coverage[coverage["preset"] == preset]["stage_coverage"]
        rows.append(
            [
                f"{bench['device']['name']}, `{bench['model']['name']}` {bench['model']['dtype']}",
                preset if prompt == "markdown" else f"{preset}, {prompt}",
                ms_text(_first(eager["wall_ms"])),
                *(
                    ms_text(_first(here.loc[here.index == strategy, "ms_per_token"]))
                    for strategy in STRATEGIES
                ),
                ms_text(_first(here["floor_ms"])),
                *(_ratio(ratios[ratios["preset"] == preset], what) for what in ("two-phase", "collectors")),
                NONE if covered.empty else f"{100.0 * covered.iloc[0]:.1f} %",
            ]
        )
    shown = [[NONE if cell == "n/a" else cell for cell in row] for row in rows]
    return [row for row in shown if set(row[2:]) != {NONE}]  # a benchmark may be of other parts alone


def speed_table(benches: list[dict[str, Any]]) -> str:
    """The table in Markdown; empty where there is no benchmark."""
    rows: dict[tuple[str, ...], list[str]] = {}
    for row in (row for bench in benches for row in speed_rows(bench)):
        known = rows.setdefault(tuple(row[:2]), row)
        rows[tuple(row[:2])] = [new if old == NONE else old for old, new in zip(known, row, strict=True)]
    if not rows:
        return ""
    lines = [list(COLUMNS), ["---"] * len(COLUMNS), *rows.values()]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def with_table(text: str, table: str) -> str:
    """``text`` with the table between its markers."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"The document has no {BEGIN} and {END} to write between.")
    middle = f"\n\n{table}\n\n" if table else "\n"
    return f"{before}{BEGIN}{middle}{END}{after}"


def _first(values: pd.Series) -> float | None:
    return None if values.empty else float(values.iloc[0])


def _ratio(rows: pd.DataFrame, begins: str) -> str:
    found = rows[rows["what"].str.startswith(begins)]
    if found.empty:
        return NONE
    row = found.iloc[0]
    return f"{row['ratio']:.2f} ({row['ratio_low']:.2f} to {row['ratio_high']:.2f})"


if __name__ == "__main__":
    for document, folder in TABLES.items():
        table = speed_table(find_benches(folder))
        write_atomic(document, with_table(document.read_text(encoding="utf-8"), table).encode())
