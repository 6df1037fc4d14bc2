"""What the ways to run decode and vision take beside each other, in a sentence out of measured cells."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from ocr_phases.strategies import STRATEGIES, VISIONS
from ocr_phases.words import ms_text

_NAMES = {"eager": "eager", "cuda_graph": "captured in a graph", "compiled": "compiled"}
_ALLOWS = {"bandwidth": "memory bandwidth allows", "arithmetic": "arithmetic allows"}
_SOURCES = {"measured": "measured on this device", "datasheet": "by the maker's datasheet"}
#: What makes two cells of a sweep differ.
_CELL = [
    *("model", "dtype", "device"),
    *("preset", "prefill_len", "strategy", "vision", "batch", "max_new_tokens"),
]


def strategy_sentence(table: pd.DataFrame) -> str:
    """Decode by strategy and what the hardware allows, from `sweep_table`; empty for a single strategy.

    Only cells that differ in their strategy alone stand beside each other: of all such groups the one with
    the most strategies, then with eager vision, the fewest rows, the longest output. It is named by all that
    the table has others of. The floor is that of the group, from measured ceilings where there are any.
    """
    rows = _widest_group(table[table["inter_token_ms"].notna()], "strategy", STRATEGIES)
    if rows.empty:
        return ""
    batch = rows["batch"].iloc[0]
    unit = "a token" if batch == 1 else f"for a step of {batch} rows"
    floor = _floor(rows, "step_floor_ms")
    allows = "".join(_ALLOWS[bound_by] for bound_by in floor["step_bound_by"])
    times = _side_by_side(
        rows, "strategy", STRATEGIES, "inter_token_ms", unit, floor["step_floor_ms"], allows
    )
    return f"{_where(table, rows, 'decode', 'strategy')} takes {times}{_source(floor)}."


def vision_sentence(table: pd.DataFrame) -> str:
    """The prefill by how vision runs and its floor, from `sweep_table`; empty for a single way.

    Cells are chosen as in `strategy_sentence`: they differ in their vision alone.
    """
    rows = _widest_group(table[table["prefill_ms"].notna()], "vision", VISIONS)
    if rows.empty:
        return ""
    floor = _floor(rows, "prefill_floor_ms")
    times = _side_by_side(
        rows, "vision", VISIONS, "prefill_ms", "with vision", floor["prefill_floor_ms"], "its floor is"
    )
    return f"{_where(table, rows, 'the prefill', 'vision')} takes {times}{_source(floor)}."


def _widest_group(cells: pd.DataFrame, way: str, known: Sequence[str]) -> pd.DataFrame:
    """The cells that differ in ``way`` alone, of the group that has most of them; empty for no two."""
    groups = cells[cells[way].isin(known)].groupby([name for name in _CELL if name != way], sort=False)
    other = "vision" if way == "strategy" else "strategy"

    def rank(rows: pd.DataFrame) -> tuple[int, bool, int, int]:
        cell = rows.iloc[0]
        return -rows[way].nunique(), cell[other] != "eager", int(cell["batch"]), -int(cell["max_new_tokens"])

    several = [rows for _, rows in groups if rows[way].nunique() > 1]
    return min(several, key=rank, default=cells.head(0))


def _floor(rows: pd.DataFrame, column: str) -> pd.DataFrame:
    """One row with the floor, or none; measured ceilings come before a datasheet's."""
    return rows.dropna(subset=[column]).sort_values("floor_source", ascending=False).head(1)


def _side_by_side(
    rows: pd.DataFrame,
    way: str,
    known: Sequence[str],
    column: str,
    unit: str,
    floor: pd.Series,
    allows: str,
) -> str:
    """``"8.91 ms a token eager, 1.00 compiled; memory bandwidth allows 0.280"``."""
    times = rows.groupby(way)[column].first()
    measured = [name for name in known if name in times.index]
    first, *others = _with_one_unit([*times[measured], *floor])
    parts = [f"{first} {unit} {_NAMES[measured[0]]}"]
    parts += [f"{text} {_NAMES[name]}" for name, text in zip(measured[1:], others, strict=False)]
    return f"{', '.join(parts)}{f'; {allows} {others[-1]}' if len(floor) else ''}"


def cell_name(row: pd.Series, table: pd.DataFrame, but: str = "") -> str:
    """What tells a cell from the others of its table: preset and batch size together, then whatever differs.

    ``but`` is a column to leave out. Empty where nothing differs.
    """
    parts = []
    if len(table[["preset", "prefill_len", "batch"]].drop_duplicates()) > 1:
        parts += [str(row["preset"]), f"batch {row['batch']}"]
    for column, text in (
        ("strategy", "{} decode"),
        ("vision", "vision {}"),
        ("max_new_tokens", "{:,} tokens"),
    ):
        if column != but and table[column].nunique() > 1:
            parts.append(text.format(row[column]))
    return ", ".join(parts)


def _where(table: pd.DataFrame, rows: pd.DataFrame, what: str, way: str) -> str:
    """The sentence's subject, with whatever tells the group's cells from the others of the table."""
    named = cell_name(rows.iloc[0], table, but=way)
    return f"At {named}, {what}" if named else what[0].upper() + what[1:]


def _source(floor: pd.DataFrame) -> str:
    return "".join(f" ({_SOURCES[source]})" for source in floor["floor_source"])


def _with_one_unit(values: Sequence[float]) -> list[str]:
    """Times as text, the unit behind the first alone where all have the same."""
    texts = [ms_text(value) for value in values]
    first, *others = texts
    unit = first.rpartition(" ")[2]
    if any(text.rpartition(" ")[2] != unit for text in others):
        return texts
    return [first, *(text.rpartition(" ")[0] for text in others)]
