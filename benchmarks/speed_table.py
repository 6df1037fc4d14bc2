"""Writes the speed tables from the benchmarks in data/runs: ``python -m benchmarks.speed_table``.

Every ``*.json`` there that ``python -m benchmarks`` wrote gives one row for each preset; benchmarks
of other parts on the same device and model fill the same row.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from benchmarks import tables
from benchmarks.documents import markdown, rewrite
from ocr_phases.settings import STRATEGIES
from ocr_phases.text import ms_text

ROOT = Path(__file__).parents[1]
RUNS = ROOT / "data" / "runs"
DOCUMENT = ROOT / "benchmarks" / "README.md"
#: The mark of a table, and the folder of its benchmarks.
TABLES = {"speed table": RUNS, "families": RUNS / "families"}
STEPS = [f"{strategy}, per token" for strategy in STRATEGIES]
RATIOS = {"run / `generate()`": "two-phase", "collectors on / off": "collectors"}
COLUMNS = ("device, model", "preset", "prefill", *STEPS, "floor", *RATIOS, "stage coverage")
NONE = "–"


def speed_table(folder: Path) -> str:
    """The table in Markdown of the benchmarks among the JSON files of a folder, in order of their
    names.
    """
    rows: dict[tuple[str, ...], list[str]] = {}
    for path in sorted(folder.glob("*.json")):
        if json.loads(path.read_text()).get("kind") == tables.KIND:
            for name, row in _rows(tables.load_bench(path)):
                known = rows.setdefault(name, row)
                rows[name] = [
                    new if old == NONE else old for old, new in zip(known, row, strict=True)
                ]
    return markdown(COLUMNS, [(*name, *row) for name, row in rows.items()])


def _rows(bench: Mapping[str, Any]) -> Iterator[tuple[tuple[str, str], list[str]]]:
    """Device and preset of a row, and its other cells; a benchmark of other parts has none."""
    prefill, decode = tables.prefill_table(bench), tables.strategy_table(bench)
    ratios, coverage = tables.ratio_table(bench), tables.stage_coverage_table(bench)
    device = f"{bench['device']['name']}, `{bench['model']['name']}` {bench['model']['dtype']}"
    prompt = bench["settings"].get("prompt", "markdown")
    for preset in bench["settings"]["presets"]:
        steps = [
            _first(decode, "ms_per_token", preset=preset, strategy=strategy)
            for strategy in STRATEGIES
        ]
        times = [_first(prefill, "wall_ms", preset=preset, vision="eager"), *steps]
        times.append(_first(decode, "floor_ms", preset=preset))
        covered = _first(coverage, "stage_coverage", preset=preset)
        cells = [NONE if ms is None else ms_text(ms) for ms in times]
        cells += [
            _ratio(ratios[(ratios["preset"] == preset) & ratios["what"].str.startswith(what)])
            for what in RATIOS.values()
        ]
        cells.append(NONE if covered is None else f"{100.0 * covered:.1f} %")
        if set(cells) != {NONE}:
            yield (device, preset if prompt == "markdown" else f"{preset}, {prompt}"), cells


def _first(table: pd.DataFrame, column: str, **where: str) -> float | None:
    for name, value in where.items():
        table = table[table[name] == value]
    return None if table[column].isna().all() else float(table[column].iloc[0])


def _ratio(rows: pd.DataFrame) -> str:
    known = [
        f"{row.ratio:.2f} ({row.ratio_low:.2f} to {row.ratio_high:.2f})"
        for row in rows.itertuples()
    ]
    return "".join(known) or NONE


if __name__ == "__main__":
    rewrite(DOCUMENT, {mark: speed_table(folder) for mark, folder in TABLES.items()})
