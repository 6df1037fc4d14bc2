"""What the ways to run decode and vision take beside each other, in a sentence out of measured cells."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from ocr_phases.strategies import STRATEGIES, VISIONS
from ocr_phases.words import ms_text

_NAMES = {"eager": "eager", "cuda_graph": "captured in a graph", "compiled": "compiled"}
_ALLOWS = {"bandwidth": "memory bandwidth allows", "arithmetic": "arithmetic allows"}
_SOURCES = {"measured": "measured on this device", "datasheet": "by the maker's datasheet"}
#: How a way is told: its values in their order, of what, its time and its floor.
_WAYS = {
    "strategy": (STRATEGIES, "decode", "inter_token_ms", "step_floor_ms"),
    "vision": (VISIONS, "the prefill", "prefill_ms", "prefill_floor_ms"),
}
#: What makes two cells of a sweep differ.
_CELL = [
    *("model", "dtype", "device"),
    *("preset", "prefill_len", "strategy", "vision", "batch", "max_new_tokens"),
]


def ways_sentence(table: pd.DataFrame, way: str) -> str:
    """Decode by ``"strategy"``, or the prefill by ``"vision"``, from `sweep_table`; empty for a single way.

    Only cells that differ in that way alone stand beside each other: of all such groups the one with the most
    ways, then with the other way eager, the fewest rows, the longest output. It is named by all that the
    table has others of. The floor is that of the group, from measured ceilings where there are any.
    """
    known, what, column, floor_column = _WAYS[way]
    rows = _widest_group(table[table[column].notna()], way, known)
    if rows.empty:
        return ""
    floor = rows.dropna(subset=[floor_column]).sort_values("floor_source", ascending=False).head(1)
    batch = rows["batch"].iloc[0]
    unit, allows = "with vision", "its floor is"
    if way == "strategy":
        unit = "a token" if batch == 1 else f"for a step of {batch} rows"
        allows = "".join(_ALLOWS[bound_by] for bound_by in floor["step_bound_by"])
    times = rows.groupby(way)[column].first()
    measured = [name for name in known if name in times.index]
    first, *others = _with_one_unit([*times[measured], *floor[floor_column]])
    parts = [f"{first} {unit} {_NAMES[measured[0]]}"]
    parts += [f"{text} {_NAMES[name]}" for name, text in zip(measured[1:], others, strict=False)]
    least = f"; {allows} {others[-1]} ({_SOURCES[floor['floor_source'].iloc[0]]})" if len(floor) else ""
    named = cell_name(rows.iloc[0], table, but=way)
    subject = f"At {named}, {what}" if named else what[0].upper() + what[1:]
    return f"{subject} takes {', '.join(parts)}{least}."


def _widest_group(cells: pd.DataFrame, way: str, known: Sequence[str]) -> pd.DataFrame:
    """The cells that differ in ``way`` alone, of the group that has most of them; empty for no two."""
    groups = cells[cells[way].isin(known)].groupby([name for name in _CELL if name != way], sort=False)
    other = "vision" if way == "strategy" else "strategy"

    def rank(rows: pd.DataFrame) -> tuple[int, bool, int, int]:
        cell = rows.iloc[0]
        return -rows[way].nunique(), cell[other] != "eager", int(cell["batch"]), -int(cell["max_new_tokens"])

    several = [rows for _, rows in groups if rows[way].nunique() > 1]
    return min(several, key=rank, default=cells.head(0))


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


def _with_one_unit(values: Sequence[float]) -> list[str]:
    """Times as text, the unit behind the first alone where all have the same."""
    texts = [ms_text(value) for value in values]
    first, *others = texts
    unit = first.rpartition(" ")[2]
    if any(text.rpartition(" ")[2] != unit for text in others):
        return texts
    return [first, *(text.rpartition(" ")[0] for text in others)]
