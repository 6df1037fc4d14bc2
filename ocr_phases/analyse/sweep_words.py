"""A sweep in words: noisy cells, the cell to take, models and ways side by side, the fastest."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd

from ocr_phases.analyse.stages import end_to_end_ms, step_ms
from ocr_phases.analyse.statistics import leaders
from ocr_phases.analyse.sweep_table import CELL_SETTINGS, cell_name, loaded_ways, widest_group
from ocr_phases.families import FAMILIES, UNLIMITED_OCR
from ocr_phases.record import Record
from ocr_phases.settings import STRATEGIES, VISIONS
from ocr_phases.text import count_text, ms_text, prompt_text

NOTHING_MEASURED = "No cell of this sweep could be measured."
_SINGLE_REPEAT = "A single repeat leaves the spread unknown, so nothing is called fastest."

_NEAR_BEST = 0.01  # a loss that is no reason against a cell


@dataclass(frozen=True)
class Leader:
    """The cell of the least times, and those that the repeats do not tell from it."""

    cell: str
    name: str
    tied: str  # ", though the repeats do not tell it from ..."; empty where no other cell is near
    row: pd.Series


class Recommendation(NamedTuple):
    """The cell to take and why."""

    cell: str
    reason: str


def quiet_cells(table: pd.DataFrame) -> pd.DataFrame:
    """The cells whose figures are to be trusted."""
    return table[table["noise"] == ""]


def noise_sentence(table: pd.DataFrame) -> str:
    """Which cells are too noisy, and by which checks; empty for none."""
    noisy = table[table["noise"] != ""]
    if noisy.empty:
        return ""
    reasons = ", ".join(dict.fromkeys(", ".join(noisy["noise"]).split(", ")))
    cells = "every cell" if len(noisy) == len(table) else ", ".join(noisy["cell"])
    return f"Too noisy to trust ({reasons}): {cells}. Measure again on a quiet machine."


# -- the cell to take ------------------------------------------------------------------------------


def recommendation(table: pd.DataFrame, records: Mapping[str, Record]) -> Recommendation | None:
    """The cell to take and why: the most pages per minute of those whose text is as good as any.

    Without a measure of the text, of the cells of one preset. None where fewer than two such cells
    have known spreads and no noise.
    """
    cells = quiet_cells(table)
    lost = cells["edit_distance"].fillna(1.0 - cells["agreement"])
    text_is_judged = bool(lost.notna().any())
    if text_is_judged:
        cells = cells[lost <= lost.min() + _NEAR_BEST]
    else:
        alike = ["model", "prefill_len", "preset", "max_new_tokens"]
        cells = widest_group(cells, alike, "cell")
    times = {cell: end_to_end_ms(run) / len(run.results) for cell, run in records.items()}
    leader = _leader(cells, times, table)
    if leader is None or len(cells) < 2:
        return None
    rate = f"the most pages per minute ({leader.row['pages_per_min']:,.1f})"
    if text_is_judged:
        of_cells = "of the cells whose text is within a point of the best"
    else:
        of_cells = f"at {leader.row['preset']} and {leader.row['max_new_tokens']:,} tokens"
    return Recommendation(leader.cell, f"{rate} {of_cells}{leader.tied}")


def recommendation_sentence(recommended: Recommendation | None, table: pd.DataFrame) -> str:
    """The cell to take, with the reason; empty for none."""
    if recommended is None:
        return ""
    return f"Take {_names([recommended.cell], table)}: {recommended.reason}."


def fastest_sentences(table: pd.DataFrame, records: Mapping[str, Record]) -> list[str]:
    """The least decode step and the highest rate, where the repeats tell them from the others."""
    cells = quiet_cells(table).dropna(subset=["inter_token_ms"])
    runs = {cell: records[cell] for cell in cells["cell"]}
    sentences = []
    if runs and all(len(run.repeats) == 1 for run in runs.values()):
        sentences.append(_SINGLE_REPEAT)
    step = _leader(cells, {cell: step_ms(run) for cell, run in runs.items()}, table)
    if step is not None:
        shortest = ms_text(step.row["inter_token_ms"])
        sentences.append(f"The shortest decode step is {shortest} ({step.name}){step.tied}.")
    ms_per_token = {
        cell: run.repeat_ms("decode", "decode") / run.decoded_tokens for cell, run in runs.items()
    }
    rate = _leader(cells, ms_per_token, table)
    if rate is not None:
        highest = f"{rate.row['tokens_per_s']:,.0f} tokens/s"
        sentences.append(f"The highest decode rate is {highest} ({rate.name}){rate.tied}.")
    return sentences


def _leader(
    cells: pd.DataFrame, times: Mapping[str, np.ndarray], table: pd.DataFrame
) -> Leader | None:
    """The cell of the least ``times``, each float64 [repeats]; None where no spread is known."""
    best = leaders({cell: times[cell] for cell in cells["cell"]})
    if not best:
        return None
    tied = ""
    if len(best) > 1:
        tied = f", though the repeats do not tell it from {_names(best[1:], table)}"
    row = cells.set_index("cell").loc[best[0]]
    return Leader(best[0], _names(best[:1], table), tied, row)


def _names(cells: Sequence[str], table: pd.DataFrame) -> str:
    """What cells are called by the settings that vary; of many the first and their number."""
    row = table[table["cell"] == cells[0]].iloc[0]
    name = cell_name(row, table) or str(row["preset"])
    if len(cells) == 1:
        return name
    return f"{name} and {count_text(len(cells) - 1, 'other')}"


# -- side by side ----------------------------------------------------------------------------------


def prefills_sentence(table: pd.DataFrame) -> str:
    """The shortest and the longest prefill of cells that are run alike; empty without one."""
    cells = table.dropna(subset=["prefill_ms"])
    cells = widest_group(cells, ["vision", "strategy", "max_new_tokens"], "cell")
    if cells.empty:
        return ""
    rows = cells.sort_values("prefill_ms")
    shortest = _prefill_text(rows.iloc[0], table)
    longest = _prefill_text(rows.iloc[-1], table)
    if shortest == longest:
        return f"The prefill takes {shortest}."
    return f"The prefill takes {shortest} to {longest}."


def _prefill_text(row: pd.Series, table: pd.DataFrame) -> str:
    """The prefill of one cell with the cell's name and the length of its prompt."""
    name = _names([row["cell"]], table)
    return f"{ms_text(row['prefill_ms'])} ({name}, {prompt_text(row['prefill_len'])})"


def models_sentence(table: pd.DataFrame) -> str:
    """Compare prefill and decode step by model, from `sweep_table`; empty for one model.

    Told are the cells that most models have: strategies, batch size, output length and the preset's
    job alike, the smallest batch, eager, the longest output and the longest prompt first.
    """
    cells = table.dropna(subset=["prefill_ms", "inter_token_ms"])
    if cells["model"].nunique() < 2:
        return ""
    # Its presets are named by the job for which they stand.
    jobs = cells["preset"].replace(dict(FAMILIES[UNLIMITED_OCR].stands_for))
    alike = ["job", "strategy", "vision", "batch", "max_new_tokens", *loaded_ways(cells)]
    shown = widest_group(cells.assign(job=jobs), alike, "model")
    shown = shown.sort_values("prefill_len").drop_duplicates("model", keep="last")
    shown = shown.sort_values("prefill_ms")
    models = "; ".join(_model_text(row) for _, row in shown.iterrows())
    return f"Prefill and {shown.iloc[0]['strategy']} decode step by model: {models}."


def _model_text(row: pd.Series) -> str:
    """One model's prefill and decode step, with the preset and the length of its prompt."""
    prefill = ms_text(row["prefill_ms"])
    step = ms_text(row["inter_token_ms"])
    prompt = f"{row['preset']}, {prompt_text(row['prefill_len'])}"
    return f"{row['model']} {prefill} and {step} ({prompt})"


def strategies_sentence(table: pd.DataFrame) -> str:
    """Compare the decode step by strategy, from `sweep_table`; empty for one strategy.

    Compared cells differ in that column alone. Of several such groups the one with the most values
    is taken, then the one with eager vision, the fewest rows and the longest output. The sentence
    names the settings that vary in the table. The floor is the group's, from measured ceilings if
    there are any.
    """
    cells = _ways_alike(table, "strategy", STRATEGIES, "inter_token_ms")
    if cells["strategy"].nunique() < 2:
        return ""
    times = cells.groupby("strategy")["inter_token_ms"].first().reindex(STRATEGIES).dropna()
    batch = cells["batch"].iloc[0]
    unit = f"for a step of {batch} rows" if batch > 1 else "per token"
    floor = _floor_of(cells, "step_floor_ms")
    ways = _way_texts(times, unit, floor)
    text = ways.times
    if floor is not None:
        resource = "memory bandwidth" if floor.bound_by == "bandwidth" else "arithmetic"
        text += f"; the floor, which the {resource} sets, is {ways.floor}"
    return _at_cell(cells, table, "strategy", f"decode takes {text}.")


def visions_sentence(table: pd.DataFrame) -> str:
    """Compare the prefill by how vision runs, from `sweep_table`; as `strategies_sentence` does."""
    cells = _ways_alike(table, "vision", VISIONS, "prefill_ms")
    if cells["vision"].nunique() < 2:
        return ""
    times = cells.groupby("vision")["prefill_ms"].first().reindex(VISIONS).dropna()
    floor = _floor_of(cells, "prefill_floor_ms")
    ways = _way_texts(times, "with vision", floor)
    text = ways.times
    if floor is not None:
        text += f"; its floor is {ways.floor}"
    return _at_cell(cells, table, "vision", f"the prefill takes {text}.")


def _ways_alike(table: pd.DataFrame, way: str, known: Sequence[str], column: str) -> pd.DataFrame:
    """The largest group of cells that differ in ``way`` alone, where ``column`` is known."""
    cells = table[table[column].notna() & table[way].isin(known)]
    return widest_group(cells, [name for name in CELL_SETTINGS if name != way], way)


@dataclass(frozen=True)
class _Floor:
    """What the hardware allows: ms, what bounds a decode step, and where the ceilings are from."""

    ms: float
    bound_by: str
    source: str


def _floor_of(cells: pd.DataFrame, column: str) -> _Floor | None:
    """The floor of a cell, by measured ceilings if there are any; None where no cell has one."""
    known = cells.dropna(subset=[column]).sort_values("floor_source", ascending=False)
    if known.empty:
        return None
    cell = known.iloc[0]
    return _Floor(cell[column], cell["step_bound_by"], cell["floor_source"])


@dataclass(frozen=True)
class _WayTexts:
    """The time of each way, ``13.8 ms a token eager, 2.40 captured in a graph``, and the floor."""

    times: str
    floor: str


def _way_texts(times: pd.Series, unit: str, floor: _Floor | None) -> _WayTexts:
    """The times in ms by way, and the floor, as text; a unit that all share is said once."""
    texts = [ms_text(ms) for ms in times]
    if floor is not None:
        texts.append(ms_text(floor.ms))
    if len({text.partition(" ")[2] for text in texts}) == 1:
        texts = [texts[0], *(text.partition(" ")[0] for text in texts[1:])]
    floor_text = ""
    if floor is not None:
        source = "measured on this device" if floor.source == "measured" else "datasheet"
        floor_text = f"{texts.pop()} ({source})"
    texts[0] += f" {unit}"
    ways = ["captured in a graph" if way == "cuda_graph" else str(way) for way in times.index]
    return _WayTexts(
        ", ".join(f"{text} {way}" for text, way in zip(texts, ways, strict=True)), floor_text
    )


def _at_cell(cells: pd.DataFrame, table: pd.DataFrame, way: str, sentence: str) -> str:
    """The sentence, with the settings that vary in the table in front."""
    name = cell_name(cells.iloc[0], table, but=way)
    if name:
        return f"At {name}, {sentence}"
    return sentence[0].upper() + sentence[1:]
