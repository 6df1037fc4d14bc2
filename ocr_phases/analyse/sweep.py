"""A folder of records as one table: how prefill, decode and throughput scale."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np
import pandas as pd

from ocr_phases.analyse.cost_quality import POINT_COLUMNS, cost_quality_sentence, losses, sweep_points
from ocr_phases.analyse.floors import decode_floor, floor_table
from ocr_phases.analyse.noise import noisy_findings
from ocr_phases.analyse.strategy_text import cell_name, models_sentence, ways_sentence
from ocr_phases.analyse.summary import end_to_end_ms, peak_bytes, step_table
from ocr_phases.errors import OcrPhasesError, public
from ocr_phases.record import PhaseRun
from ocr_phases.store import CELL_STATUS, CellStatus, read_status
from ocr_phases.text import count_text, ms_text

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
    "prefill_ms",
    "vision_ms",
    "vision_share",
    "ttft_ms",
    "inter_token_ms",
    "inter_token_ms_p90",
    "decode_ms",
    "page_ms",
    "page_ms_p90",
    "page_ms_p99",
    "pages_per_min",
    "prefill_floor_ms",
    "step_floor_ms",
    "tokens_per_s",
    "kv_cache_bytes",
    "peak_bytes",
    "edit_distance",
    "agreement",
    "step_bound_by",
    "floor_source",
    "reference",
    "model",
    "dtype",
    "device",
    "noise",
)
FAILURE_COLUMNS = ("cell", "preset", "strategy", "vision", "batch", "max_new_tokens", "reason")
CURVE_COLUMNS = (
    "cell",
    "model",
    "preset",
    "strategy",
    "batch",
    "cache_len",
    "device_ms",
    "device_ms_p10",
    "device_ms_p90",
    "floor_ms",
)

_POINTS = 60  # of a curve: single steps are noise here


@public
@dataclass(frozen=True)
class Sweep:
    """The records of a folder by cell, and the cells that could not be measured (`FAILURE_COLUMNS`)."""

    runs: dict[str, PhaseRun]
    failures: pd.DataFrame

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """The records in ``folder`` or its ``runs``, or in the ``runs`` of each model's folder in it.

        Raises `OcrPhasesError` where none is or one is damaged.
        """
        path = Path(folder)
        path = path / "runs" if (path / "runs").is_dir() else path
        files = {file.name: file for file in sorted(path.glob("*.json"))}
        files = files or {
            f"{file.parts[-3]}/{file.name}": file for file in sorted(path.glob("*/runs/*.json"))
        }
        if not files:
            raise OcrPhasesError(f"{path} holds no records: name the folder that a sweep wrote.")
        statuses = {name: file for name, file in files.items() if name.endswith(CELL_STATUS)}
        runs = {
            name.removesuffix(".json"): PhaseRun.load(file)
            for name, file in files.items()
            if name not in statuses
        }
        rows = [_failure(name.removesuffix(CELL_STATUS), file) for name, file in statuses.items()]
        failures = [row for row in rows if row is not None]
        return cls(runs, pd.DataFrame(failures, columns=list(FAILURE_COLUMNS)))

    def with_truth(self, truth: str | Path) -> Self:
        """The same sweep with what its page says: `PhaseRun.with_truth` of every record."""
        if all(run.request.get("ignore_eos") for run in self.runs.values()):
            raise OcrPhasesError(
                "These records ignored the end token, so their texts have no end to compare: sweep again "
                "with --truth."
            )
        runs = {cell: run.with_truth(truth) for cell, run in self.runs.items()}
        return replace(self, runs=runs)

    @cached_property
    def table(self) -> pd.DataFrame:
        """`sweep_table` of the records."""
        return sweep_table(self.runs)

    @cached_property
    def cost_quality(self) -> pd.DataFrame:
        """What each cell costs and loses, columns `POINT_COLUMNS`: `sweep_points`; empty without a text."""
        return _points(self.table)

    @property
    def verdict(self) -> str:
        """`sweep_verdict`: the sweep's result as plain text."""
        return sweep_verdict(self.table, self.failures)


def sweep_table(records: Mapping[str, PhaseRun]) -> pd.DataFrame:
    """One row a record, columns `SWEEP_COLUMNS`: medians over repeats, ms on the device clock.

    ``batch`` rows run side by side: ``prefill_ms`` and ``inter_token_ms`` (one decode step) are the whole
    batch's, ``tokens_per_s`` counts the tokens of all its rows. ``prefill_len`` and ``tokens`` (generated)
    are a row's, ``peak_bytes`` the largest of any phase. ``page_ms`` is a page's time from its file to its
    last token (the whole batch's), with p90 and p99 over the repeats; ``pages_per_min`` counts all rows. The
    floors are what the hardware allows
    (`ocr_phases.analyse.floors`), that of a decode step in the middle of the run by ``step_bound_by``; their
    ceilings are ``measured`` or of a ``datasheet`` (``floor_source``). ``prefill_captured`` says whether a
    graph ran the prefill's language model. ``vision_share`` is ``vision_ms`` over
    ``prefill_ms``; ``edit_distance``, ``agreement`` and ``reference`` are `losses`';
    ``noise`` names the checks by which the cell's figures are not to be trusted. Sorted by prompt length,
    strategy, vision (eager first), batch and tokens.
    """
    rows = []
    for cell, run in records.items():
        metrics = run.summary()
        known = {name: metrics[name] for name in SWEEP_COLUMNS if name in metrics}
        rows.append(
            {
                "cell": cell,
                "preset": run.page["preset"],
                "strategy": run.model["strategy"],
                "vision": run.request["vision"],
                "batch": len(run.results),
                "max_new_tokens": run.request["max_new_tokens"],
                "prefill_captured": bool((run.model.get("strategy_setup") or {}).get("prefill_capture_ms")),
                "vision_share": metrics["vision_ms"] / metrics["prefill_ms"]
                if metrics["prefill_ms"]
                else None,
                "peak_bytes": peak_bytes(run),
                "model": run.model["name"],
                "dtype": run.model["dtype"],
                "device": run.device["name"],
                "noise": ", ".join(name.replace("_", " ") for name in noisy_findings(run)),
                **_end_to_end(run),
                **_floors(run),
                **known,
            }
        )
    table = pd.DataFrame(rows, columns=list(SWEEP_COLUMNS))
    if any(run.truths or not run.request.get("ignore_eos") for run in records.values()):
        lost = losses(records).reindex(table["cell"])
        table[list(lost.columns)] = lost.to_numpy()
    numbers = list(SWEEP_COLUMNS[SWEEP_COLUMNS.index("prefill_ms") : SWEEP_COLUMNS.index("step_bound_by")])
    table[numbers] = table[numbers].astype("float64")
    order = ["prefill_len", "strategy", "vision", "batch", "tokens"]
    return table.sort_values(
        order, key=lambda values: values != "eager" if values.name == "vision" else values
    ).reset_index(drop=True)


def _end_to_end(run: PhaseRun) -> dict[str, float]:
    median, *tail = np.quantile(end_to_end_ms(run), (0.5, 0.9, 0.99))
    names = ("page_ms", "page_ms_p90", "page_ms_p99", "pages_per_min")
    return dict(zip(names, (median, *tail, 60_000.0 * len(run.results) / median), strict=True))


def _floors(run: PhaseRun) -> dict[str, Any]:
    """The floors of the prefill and of a decode step, ms, and by what; nothing where they are not known."""
    floors = floor_table(run).set_index("stage")
    known: dict[str, Any] = {}
    if "prefill" in floors.index:
        prefill = floors.loc["prefill"]
        known |= {"prefill_floor_ms": prefill["floor_ms"], "floor_source": prefill["source"]}
    if "decode_step" in floors.index:
        step = floors.loc["decode_step"]
        known |= {"step_floor_ms": step["floor_ms"], "step_bound_by": step["bound_by"]}
    return known


def decode_curves(records: Mapping[str, PhaseRun]) -> pd.DataFrame:
    """Decode over the cache, columns `CURVE_COLUMNS`: up to 60 points a record, each a median over its steps.

    Of records that differ in their output length alone the longest stands for all: the others are its start.
    One with eager vision comes before others, which decode alike.
    """
    longest: dict[tuple[Any, ...], tuple[str, PhaseRun]] = {}
    eager_first = sorted(records.items(), key=lambda item: item[1].request["vision"] != "eager")
    for cell, run in eager_first:
        key = (run.model["name"], run.page["preset"], run.model["strategy"], len(run.results))
        if key not in longest or run.token_count > longest[key][1].token_count:
            longest[key] = (cell, run)
    pieces = []
    for key, (cell, run) in longest.items():
        steps = step_table(run).dropna(subset=["cache_len"])
        if steps.empty:
            continue
        piece = np.arange(len(steps)) * min(_POINTS, len(steps)) // len(steps)
        steps["floor_ms"] = decode_floor(run).set_index("step")["floor_ms"].reindex(steps["step"]).to_numpy()
        columns = ["cache_len", "device_ms", "device_ms_p10", "device_ms_p90", "floor_ms"]
        curve = steps[columns].astype("float64").groupby(piece).median()
        for name, value in zip(CURVE_COLUMNS[4::-1], (*reversed(key), cell), strict=True):
            curve.insert(0, name, value)
        pieces.append(curve)
    if not pieces:
        return pd.DataFrame(columns=list(CURVE_COLUMNS))
    return pd.concat(pieces, ignore_index=True)[list(CURVE_COLUMNS)]


def sweep_verdict(table: pd.DataFrame, failures: pd.DataFrame) -> str:
    """A sweep's result as a short paragraph of plain text, models and strategies first."""
    by_model = models_sentence(table)
    sentences = list(
        filter(None, [cost_quality_sentence(_points(table)), by_model, ways_sentence(table, "strategy")])
    )
    prefills = table.dropna(subset=["prefill_ms"])
    if len(prefills) and not by_model:
        rows = _one_way(prefills).sort_values("prefill_ms")
        ends = [f"{ms_text(row['prefill_ms'])} ({_prompt(row, table)})" for _, row in rows.iterrows()]
        sentences.append(f"The prefill takes {' to '.join(dict.fromkeys((ends[0], ends[-1])))}.")
    sentences += filter(None, [ways_sentence(table, "vision")])
    for _, fast in table.dropna(subset=["inter_token_ms"]).nsmallest(1, "inter_token_ms").iterrows():
        took = ms_text(fast["inter_token_ms"])
        sentences.append(f"The fastest decode step is {took} ({_cell(fast, table)}).")
    for _, most in table.dropna(subset=["tokens_per_s"]).nlargest(1, "tokens_per_s").iterrows():
        sentences.append(
            f"The highest decode rate is {most['tokens_per_s']:,.0f} tokens/s ({_cell(most, table)})."
        )
    loud = table[table["noise"] != ""]
    if len(loud):
        reasons = dict.fromkeys(reason for noise in loud["noise"] for reason in noise.split(", "))
        which = "every cell" if len(loud) == len(table) else ", ".join(loud["cell"])
        sentences.append(
            f"Too noisy to trust ({', '.join(reasons)}): {which}. Measure again on a quiet machine."
        )
    if len(failures):
        sentences.append(f"{count_text(len(failures), 'cell')} could not be measured.")
    return " ".join(sentences) or "No cell of this sweep could be measured."


def _points(table: pd.DataFrame) -> pd.DataFrame:
    if table.empty:
        return pd.DataFrame(columns=list(POINT_COLUMNS))
    told = [name for name in ("model", "strategy", "vision") if table[name].nunique() > 1]
    names = table["preset"].str.cat(table[told].astype(str), sep=", ") if told else table["preset"]
    return sweep_points(table, names)


def _one_way(table: pd.DataFrame) -> pd.DataFrame:
    """The cells that differ in preset and batch size alone: the largest such group, eager before others."""
    groups = [rows for _, rows in table.groupby(["vision", "strategy", "max_new_tokens"], sort=False)]

    def rank(rows: pd.DataFrame) -> tuple[int, bool, bool, int]:
        cell = rows.iloc[0]
        return len(rows), cell["vision"] == "eager", cell["strategy"] == "eager", int(cell["max_new_tokens"])

    return max(groups, key=rank)


def _prompt(row: pd.Series, table: pd.DataFrame) -> str:
    return f"{_cell(row, table)}, {row['prefill_len']:,} prompt tokens"


def _cell(row: pd.Series, table: pd.DataFrame) -> str:
    return cell_name(row, table) or str(row["preset"])


def _failure(cell: str, path: Path) -> tuple[Any, ...] | None:
    """The row of a cell that could not be measured; None for one that was."""
    status = read_status(path, CellStatus)
    if status is None or status["state"] == "done":
        return None
    return (cell, *(status["cell"].get(name) for name in FAILURE_COLUMNS[1:-1]), status["reason"])
