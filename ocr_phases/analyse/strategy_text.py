"""One sentence that compares the measured models, or strategies of decode or vision."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from ocr_phases.families import FAMILIES, UNLIMITED_OCR
from ocr_phases.settings import STRATEGIES, VISIONS
from ocr_phases.text import ms_text

_NAMES = {"eager": "eager", "cuda_graph": "captured in a graph", "compiled": "compiled"}
_ALLOWS = {"bandwidth": "memory bandwidth allows", "arithmetic": "arithmetic allows"}
_SOURCES = {"measured": "measured on this device", "datasheet": "from the datasheet"}
#: By kind of strategy: its values in order, what they run, the columns of time and floor.
_WAYS = {
    "strategy": (STRATEGIES, "decode", "inter_token_ms", "step_floor_ms"),
    "vision": (VISIONS, "the prefill", "prefill_ms", "prefill_floor_ms"),
}
#: The columns that identify a cell of a sweep.
_CELL = [
    *("model", "dtype", "device"),
    *("preset", "prefill_len", "strategy", "vision", "batch", "max_new_tokens"),
]


def ways_sentence(table: pd.DataFrame, way: str) -> str:
    """Compare decode by ``"strategy"`` or prefill by ``"vision"``, from `sweep_table`; empty for one value.

    Compared cells differ in that column alone. Of several such groups the one with the most values is taken,
    then the one with the other column eager, the fewest rows and the longest output. The sentence names the
    settings that vary in the table. The floor is the group's, from measured ceilings if there are any.
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


def models_sentence(table: pd.DataFrame) -> str:
    """Compare prefill and decode step by model, from `sweep_table`; empty for one model.

    Told are the cells that most models have: strategies, batch size, output length and the preset's job
    alike, the smallest batch, eager, the longest output and the longest prompt first.
    """
    cells = table.dropna(subset=["prefill_ms", "inter_token_ms"])
    if cells["model"].nunique() < 2:
        return ""
    # Its presets are named by the job for which they stand.
    jobs = cells["preset"].replace(dict(FAMILIES[UNLIMITED_OCR].stands_for))
    groups = [
        rows for _, rows in cells.groupby([jobs, "strategy", "vision", "batch", "max_new_tokens"], sort=False)
    ]

    def rank(rows: pd.DataFrame) -> tuple[int, int, bool, bool, int, int]:
        cell = rows.iloc[0]
        ways = cell["strategy"] != "eager", cell["vision"] != "eager"
        longest = -int(cell["max_new_tokens"]), -int(rows["prefill_len"].max())
        return -rows["model"].nunique(), int(cell["batch"]), *ways, *longest

    told = min(groups, key=rank).sort_values("prefill_len").drop_duplicates("model", keep="last")
    each = [
        f"{row['model']} {ms_text(row['prefill_ms'])} and {ms_text(row['inter_token_ms'])} "
        f"({row['preset']}, {row['prefill_len']:,} prompt tokens)"
        for _, row in told.sort_values("prefill_ms").iterrows()
    ]
    return f"Prefill and {told['strategy'].iloc[0]} decode step by model: {'; '.join(each)}."


def _widest_group(cells: pd.DataFrame, way: str, known: Sequence[str]) -> pd.DataFrame:
    """The largest group of cells that differ in ``way`` alone; empty if there is no pair."""
    groups = cells[cells[way].isin(known)].groupby([name for name in _CELL if name != way], sort=False)
    other = "vision" if way == "strategy" else "strategy"

    def rank(rows: pd.DataFrame) -> tuple[int, bool, int, int]:
        cell = rows.iloc[0]
        return -rows[way].nunique(), cell[other] != "eager", int(cell["batch"]), -int(cell["max_new_tokens"])

    several = [rows for _, rows in groups if rows[way].nunique() > 1]
    return min(several, key=rank, default=cells.head(0))


def cell_name(row: pd.Series, table: pd.DataFrame, but: str = "") -> str:
    """A cell's settings that vary in its table: preset and batch size together, then the others.

    ``but`` is a column to leave out. Empty if nothing varies.
    """
    parts = [str(row["model"])] if table["model"].nunique() > 1 else []
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
    """Times as text; a common unit follows the first only."""
    texts = [ms_text(value) for value in values]
    first, *others = texts
    unit = first.rpartition(" ")[2]
    if any(text.rpartition(" ")[2] != unit for text in others):
        return texts
    return [first, *(text.rpartition(" ")[0] for text in others)]
