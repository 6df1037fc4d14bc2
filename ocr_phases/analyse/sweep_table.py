"""Many records side by side, a row per cell: how prefill, decode and throughput scale."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from ocr_phases.analyse.checks import noisy_checks
from ocr_phases.analyse.figure_rows import Place, names_in
from ocr_phases.analyse.figures import summary
from ocr_phases.analyse.floors import decode_floor
from ocr_phases.analyse.grounding import parse_grounding
from ocr_phases.analyse.noise import ceilings_are_wrong, trusted_floors
from ocr_phases.analyse.quality import quality_of
from ocr_phases.analyse.repetition import repeated_share
from ocr_phases.analyse.stages import end_to_end_ms, step_table
from ocr_phases.analyse.text import missing_text_libraries, plain_text, text_measures
from ocr_phases.record import Record

SWEEP_COLUMNS = (
    "cell",
    "preset",
    "strategy",
    "vision",
    "batch",
    "max_new_tokens",
    "prefill_len",
    "tokens",
    "prefill_captured",
    *names_in(Place.SWEEP),
    "step_bound_by",
    "floor_source",
    "reference",
    "model",
    "attention",
    "dtype",
    "device",
    "noise",
)
FAILURE_COLUMNS = (
    "cell",
    "preset",
    "strategy",
    "vision",
    "batch",
    "max_new_tokens",
    "reason",
)
#: How a model was loaded, beside its name.
LOADED = ("attention", "dtype")
#: The settings that a cell is called by, where they vary in its table, in this order.
NAMING_SETTINGS = (
    "model",
    "preset",
    "batch",
    "strategy",
    "vision",
    "max_new_tokens",
    *LOADED,
)

#: What identifies a cell: cells that differ in one of these alone compare.
CELL_SETTINGS = (*NAMING_SETTINGS, "device", "prefill_len")

#: What tells the decode curves of two records apart.
_CURVE_SETTINGS = ["model", *LOADED, "preset", "strategy", "batch"]
_CURVE_TIMES = ["cache_len", "device_ms", "device_ms_p10", "device_ms_p90", "floor_ms"]
CURVE_COLUMNS = ("cell", *_CURVE_SETTINGS, *_CURVE_TIMES)
_CURVE_POINTS = 60  # single steps are noise here

_REPEATS_FOR_P90 = 10
_REPEATS_FOR_P99 = 100


def sweep_table(records: Mapping[str, Record]) -> pd.DataFrame:
    """One row a record, columns `SWEEP_COLUMNS`: figures of `summary`, ms on the device
    clock.

    ``batch`` rows run side by side: ``prefill_ms`` and ``inter_token_ms`` (one decode step) are the
    whole batch's, ``tokens_per_s`` counts the tokens of all its rows. ``prefill_len`` and
    ``tokens`` (generated) are a row's, ``peak_bytes`` the largest of any phase. ``page_ms`` is a
    page's time from its file to its last token (the whole batch's), with p90 from 10 repeats on and
    p99 from 100; ``pages_per_min`` counts all rows. The floors are what the hardware allows
    (`ocr_phases.analyse.floors`), that of a decode step in the middle of the run by
    ``step_bound_by``; their ceilings are ``measured`` or of a ``datasheet`` (``floor_source``).
    ``prefill_captured`` says whether a graph ran the prefill's language model. ``energy_j`` is of a
    repeat, ``repeated_share`` of the decode time, NaN where the end token was ignored.
    ``edit_distance``, ``cer``, ``agreement`` and ``reference`` are `losses`'; ``noise`` names the
    checks by which the cell's figures are not to be trusted. Sorted by prompt length, strategy,
    vision (eager first), batch and tokens.
    """
    lost = losses(records).to_dict("index")
    rows = [{"cell": cell, **_cell_figures(run), **lost[cell]} for cell, run in records.items()]
    table = pd.DataFrame(rows, columns=list(SWEEP_COLUMNS))
    table = table.astype(dict.fromkeys(names_in(Place.SWEEP), "float64"))
    table["prefill_len"] = pd.to_numeric(table["prefill_len"])  # NaN where a server did not tell
    order = ["prefill_len", "strategy", "vision", "batch", "tokens"]
    ascending = [name != "vision" for name in order]
    return table.sort_values(order, ascending=ascending, ignore_index=True)


def _cell_settings(run: Record) -> dict[str, Any]:
    """What tells a cell from others."""
    return {
        "attention": run.model.attention or "",
        "dtype": run.model.dtype or "",
        "strategy": run.model.strategy or "",
        "vision": run.request.vision,
        "max_new_tokens": run.request.max_new_tokens,
        "model": run.model.name,
        "preset": run.preset,
        "device": run.device.name,
        "batch": len(run.results),
        "tokens": run.token_count,
    }


def _cell_figures(run: Record) -> dict[str, Any]:
    """The settings and the figures of a cell, but for what follows from the text of others."""
    cell = {**summary(run), **_cell_settings(run)}
    times = end_to_end_ms(run)
    if len(times) >= _REPEATS_FOR_P90:
        cell["page_ms_p90"] = np.quantile(times, 0.9)
    if len(times) >= _REPEATS_FOR_P99:
        cell["page_ms_p99"] = np.quantile(times, 0.99)
    cell["pages_per_min"] = 60_000.0 * len(run.results) / cell["page_ms"]
    setup = run.model.strategy_setup
    cell["prefill_captured"] = setup is not None and bool(setup.prefill_capture_ms)
    for floor in trusted_floors(run).to_dict("records"):
        if floor["stage"] == "prefill":
            cell["prefill_floor_ms"] = floor["floor_ms"]
            cell["floor_source"] = floor["source"]
        if floor["stage"] == "decode_step":
            cell["step_floor_ms"] = floor["floor_ms"]
            cell["step_bound_by"] = floor["bound_by"]
    cell["noise"] = ", ".join(check.label for check in noisy_checks(run))
    if not run.request.ignore_eos:
        cell["repeated_share"] = repeated_share(run)
    return cell


def decode_curve_table(records: Mapping[str, Record]) -> pd.DataFrame:
    """Decode over the cache, columns `CURVE_COLUMNS`: up to 60 points a record, medians over their
    steps.

    Of records that differ in their output length alone the longest stands for all: the others are
    its start. One with eager vision comes before others, which decode alike.
    """
    rows = [{"cell": cell, **_cell_settings(run)} for cell, run in records.items()]
    columns = ["cell", *_CURVE_SETTINGS, "tokens", "vision"]
    cells = pd.DataFrame(rows, columns=columns).sort_values(["tokens", "vision"], kind="stable")
    longest = cells.drop_duplicates(_CURVE_SETTINGS, keep="last").sort_index()
    curves = []
    for cell in longest["cell"]:
        curve = _decode_curve(records[cell])
        if len(curve):
            curves.append(curve.assign(cell=cell, **_cell_settings(records[cell])))
    if not curves:
        return pd.DataFrame(columns=list(CURVE_COLUMNS))
    return pd.concat(curves, ignore_index=True)[list(CURVE_COLUMNS)]


def _decode_curve(run: Record) -> pd.DataFrame:
    """The steps of one record in up to 60 pieces of equal length: the medians of each."""
    steps = step_table(run).dropna(subset=["cache_len"])
    if ceilings_are_wrong(run):
        steps["floor_ms"] = np.nan
    else:
        steps["floor_ms"] = steps["step"].map(decode_floor(run).set_index("step")["floor_ms"])
    count = len(steps)
    piece = np.arange(count) * min(_CURVE_POINTS, count) // max(count, 1)
    return steps[_CURVE_TIMES].astype("float64").groupby(piece).median()


# -- texts of several records ----------------------------------------------------------------------


def losses(records: Mapping[str, Record]) -> pd.DataFrame:
    """What each record of one page lost: columns ``edit_distance``, ``cer``, ``agreement`` and
    ``reference``.

    The index is their names. ``edit_distance`` and ``cer`` are by the record's own truth. Where no
    record has one, ``agreement`` is with the record of the longest prompt, an eager one first;
    ``reference`` names that, or the record that is the truth. Records that ignored the end token
    are left out. All are of the first row.
    """
    measures = []
    references = []
    texts = {}
    for name, run in records.items():
        measures.append({} if run.request.ignore_eos else quality_of(run))
        truth = run.truth_of()
        references.append(truth.file if truth and truth.reference else None)
        text = ended_text(run)
        if text:
            texts[name] = text
    columns = ["edit_distance", "cer", "agreement"]
    table = pd.DataFrame(measures, list(records), columns, dtype="float64")
    table["reference"] = references
    if len(texts) > 1 and not any(measures):
        reference = max(texts, key=lambda name: richness(records[name]))
        table["agreement"] = pd.Series(agreements(texts, reference))
        table["reference"] = reference
    return table


def agreements(texts: Mapping[Any, str], reference: Any) -> dict[Any, float]:
    """Of each plain text with the one called ``reference``: 1 minus their edit distance.

    NaN for a text that differs where the libraries that measure it are missing.
    """
    true = texts[reference]
    can_measure = not missing_text_libraries()
    agreement = {}
    for name, text in texts.items():
        if text == true or can_measure:
            agreement[name] = 1.0 - text_measures(text, true)["edit_distance"][0]
        else:
            agreement[name] = math.nan
    return agreement


def own_text(run: Record, row: int = 0) -> str | None:
    """A row's text as plain text without marks; None where the record has none."""
    text = run.results[row].text
    if not text:
        return text
    return plain_text(parse_grounding(text, run.model.family).without_marks(text))


def ended_text(run: Record) -> str:
    """A run's plain text, for others to agree with; empty where the end token was ignored."""
    if run.request.ignore_eos:
        return ""
    return own_text(run) or ""


def richness(run: Record) -> tuple[int, bool, bool]:
    """By what a record becomes the reference of others: its prompt's length, then eager steps."""
    return (
        run.request.prefill_len or 0,
        run.model.strategy == "eager",
        run.request.vision == "eager",
    )


# -- what cells are called, and which of them compare ----------------------------------------------


def setting_text(name: str, value: Any) -> str:
    """A cell's setting in words."""
    match name:
        case "batch":
            return f"batch {value}"
        case "strategy":
            return f"{value} decode"
        case "vision":
            return f"vision {value}"
        case "max_new_tokens":
            return f"{value:,} tokens"
        case "attention":
            return f"{value} attention"
    return str(value)


def cell_name(row: pd.Series, table: pd.DataFrame, but: str = "") -> str:
    """A cell's settings that vary in its table: preset and batch size together, then the others.

    ``but`` is a column to leave out. Empty if nothing varies.
    """
    candidates = set(CELL_SETTINGS) - {but, *LOADED}
    varied = {name for name in candidates if table[name].nunique() > 1}
    varied.update(loaded_ways(table))
    if varied & {"preset", "prefill_len", "batch"}:
        varied.update({"preset", "batch"})
    return ", ".join(setting_text(name, row[name]) for name in NAMING_SETTINGS if name in varied)


def loaded_ways(table: pd.DataFrame) -> list[str]:
    """Which of `LOADED` a model of the table has several of: models may differ in them by
    themselves.
    """
    return [name for name in LOADED if table.groupby("model")[name].nunique().max() > 1]


def widest_group(cells: pd.DataFrame, alike: Sequence[str], differ: str) -> pd.DataFrame:
    """Of the groups of cells that are ``alike`` the one with the most values of ``differ``.

    Then one of eager ways, of the fewest rows, the longest output and the longest prompt.
    """

    def rank(rows: pd.DataFrame) -> tuple[int, ...]:
        cell = rows.iloc[0]
        ways = [cell[way] != "eager" for way in ("strategy", "vision") if way in alike]
        longest = rows["prefill_len"].fillna(0).max()
        return -rows[differ].nunique(), *ways, cell["batch"], -cell["max_new_tokens"], -longest

    groups = [rows for _, rows in cells.groupby([*alike], sort=False, dropna=False)]
    if not groups:
        return cells.head(0)
    return min(groups, key=rank)
