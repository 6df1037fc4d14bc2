"""What the ways to run a step cost beside each other, in one sentence out of measured cells."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from ocr_phases.analyse.summary import ms_text
from ocr_phases.strategies import STRATEGIES

_NAMES = {"eager": "eager", "cuda_graph": "captured in a graph", "compiled": "compiled"}
_LIMITS = {"bandwidth": "memory bandwidth", "arithmetic": "arithmetic"}
_SOURCES = {"measured": "measured on this device", "datasheet": "by the maker's datasheet"}


def strategy_sentence(table: pd.DataFrame) -> str:
    """Decode by strategy and what the hardware allows, from `sweep_table`; empty for a single strategy.

    Only cells that differ in their strategy alone stand beside each other: of all such groups the one with
    the most strategies, then with the fewest rows, then with the longest output. It is named where the table
    has others. The floor is that of the group, from measured ceilings where there are any.
    """
    cells = table[table["inter_token_ms"].notna() & table["strategy"].isin(STRATEGIES)]
    groups = cells.groupby(["preset", "prefill_len", "batch", "max_new_tokens"], sort=False)
    several = [rows for _, rows in groups if rows["strategy"].nunique() > 1]
    if not several:
        return ""
    rows = min(several, key=_rank)
    cell, times = rows.iloc[0], rows.groupby("strategy")["inter_token_ms"].first()
    measured = [strategy for strategy in STRATEGIES if strategy in times.index]
    # Measured ceilings come before a datasheet's.
    floors = rows.dropna(subset=["step_floor_ms"]).sort_values("floor_source", ascending=False).head(1)
    texts = _with_one_unit([*times[measured], *floors["step_floor_ms"]])
    parts = [f"{text} {_NAMES[strategy]}" for strategy, text in zip(measured, texts, strict=False)]
    unit = f"for a step of {cell['batch']} rows" if cell["batch"] > 1 else "a token"
    parts[0] = f"{texts[0]} {unit} {_NAMES[measured[0]]}"
    alone = len(cells[["preset", "prefill_len", "batch"]].drop_duplicates()) == 1
    begin = "Decode" if alone else f"At {cell['preset']}, batch {cell['batch']}, decode"
    sentence = f"{begin} takes {', '.join(parts)}"
    for _, floor in floors.iterrows():
        source = _SOURCES[floor["floor_source"]]
        sentence += f"; {_LIMITS[floor['step_limit']]} allows {texts[-1]} ({source})"
    return f"{sentence}."


def _rank(rows: pd.DataFrame) -> tuple[int, int, int]:
    cell = rows.iloc[0]
    return -rows["strategy"].nunique(), int(cell["batch"]), -int(cell["max_new_tokens"])


def _with_one_unit(values: Sequence[float]) -> list[str]:
    """Times as text, the unit behind the first alone where all have the same."""
    texts = [ms_text(value) for value in values]
    first, *others = texts
    unit = first.rpartition(" ")[2]
    if any(text.rpartition(" ")[2] != unit for text in others):
        return texts
    return [first, *(text.rpartition(" ")[0] for text in others)]
