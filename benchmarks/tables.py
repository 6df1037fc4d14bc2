"""A benchmark's raw times as tables: ratios of alternating pairs, stage coverage, time a token.

Times are medians in ms. Intervals are 95 % t intervals of the logarithms over the pairs or repeats
(`ocr_phases.analyse.statistics`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from ocr_phases.analyse.statistics import LEAST_REPEATS, log_mean
from ocr_phases.errors import OcrPhasesError

KIND = "ocr_phases bench"
BENCH_SCHEMA = 2

_INTERVAL = "ratio ratio_low ratio_high"
_PAIRS = {
    "overhead": ("two-phase run over generate()", "two_phase_ms", "generate_ms"),
    "collectors": ("collectors on over off", "on_ms", "off_ms"),
}


def load_bench(path: str | Path) -> dict[str, Any]:
    """Read what ``python -m benchmarks`` wrote; `OcrPhasesError` for anything else."""
    try:
        bench = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise OcrPhasesError(f"The benchmark {path} cannot be read ({error}).") from error
    if not isinstance(bench, dict) or (bench.get("kind"), bench.get("schema")) != (
        KIND,
        BENCH_SCHEMA,
    ):
        raise OcrPhasesError(f"{path} is not what this version's python -m benchmarks writes.")
    return bench


def ratio_table(bench: Mapping[str, Any]) -> pd.DataFrame:
    """What measuring costs: both medians and the median of the paired ratios."""
    rows = []
    for part, (what, ours, theirs) in _PAIRS.items():
        for preset, found in _results(bench, part):
            ratio = _interval(np.divide(found[ours], found[theirs]))
            medians = _median(found[ours]), _median(found[theirs])
            rows.append((preset, what, len(found[ours]), *medians, *ratio))
    return _table(rows, f"preset what pairs ours_ms theirs_ms {_INTERVAL}")


def stage_coverage_table(bench: Mapping[str, Any]) -> pd.DataFrame:
    """How much of the prefill its stages account for; shares of one.

    ``stage_coverage`` leaves out ``vision_fusion``, which runs from one stage to another and holds
    what lies between (``fusion_share``): it is the stages' sum over the whole without it.
    """
    rows = []
    for preset, found in _results(bench, "stage_coverage"):
        stages = {stage: np.asarray(times) for stage, times in found["stages_ms"].items()}
        whole, fusion = np.asarray(found["prefill_ms"]), stages.pop("vision_fusion")
        share = sum(stages.values()) / (whole - fusion)
        figures = (_median(whole), _median(share), float(share.min()), _median(fusion / whole))
        rows.append((preset, found["prefill_len"], len(whole), *figures))
    covered = "stage_coverage stage_coverage_least fusion_share"
    return _table(rows, f"preset prefill_len repeats prefill_ms {covered}")


def prefill_table(bench: Mapping[str, Any]) -> pd.DataFrame:
    """The prefill by how vision runs.

    ``busy_ms`` is how long the GPU works in it (`ocr_phases.analyse.kernels`), ``ratio`` that of
    the wall times over the eager ones, taken in turns; none for eager itself.
    """
    rows = []
    for preset, found in _results(bench, "prefill"):
        eager = found["ways"].get("eager")
        for vision, times in found["ways"].items():
            wall, device, seen = (
                _median(times[name]) for name in ("host_ms", "device_ms", "vision_ms")
            )
            ratio = (np.nan, np.nan, np.nan)
            if eager is not None and vision != "eager":
                ratio = _interval(np.divide(times["host_ms"], eager["host_ms"]))
            rows.append(
                (preset, vision, wall, device, times.get("busy_ms") or np.nan, seen, *ratio)
            )
    return _table(rows, f"preset vision wall_ms device_ms busy_ms vision_ms {_INTERVAL}")


def strategy_table(bench: Mapping[str, Any]) -> pd.DataFrame:
    """Decode by strategy.

    ``ms_per_token`` is the whole decode on the host's clock over its steps, ``step_ms`` the median
    step on the device clock of all rounds, ``busy_ms`` how long the GPU works in one. ``floor_ms``
    is what the hardware allows a step in the middle of the run, by ``bound_by`` (bandwidth or
    arithmetic), ``times_floor`` ``ms_per_token`` over it. ``setup_s`` is compilation and capture.
    ``equal_tokens`` counts those equal to eager's before the first that is not.
    """
    rows = []
    for preset, found in _results(bench, "strategies"):
        for strategy, way in found["ways"].items():
            low, middle, high = np.quantile(np.concatenate(way["step_ms"]), (0.1, 0.5, 0.9))
            ms = _median(np.divide(way["decode_ms"], [len(times) for times in way["step_ms"]]))
            floor, setup = way.get("floor_ms") or np.nan, way["setup"] or {}
            seconds = sum(setup.get(name) or 0.0 for name in ("compile_ms", "capture_ms")) / 1e3
            times = (ms, middle, low, high, way.get("busy_ms") or np.nan, floor)
            figures = (
                int(np.mean(way["cache_len"])),
                *times,
                way.get("floor_bound_by"),
                ms / floor,
                seconds,
            )
            rows.append((preset, strategy, *figures, way["equal_tokens"], way["tokens"]))
    columns = (
        "preset strategy cache_len ms_per_token step_ms step_ms_p10 step_ms_p90 busy_ms floor_ms"
    )
    return _table(rows, f"{columns} bound_by times_floor setup_s equal_tokens tokens")


def failure_table(bench: Mapping[str, Any]) -> pd.DataFrame:
    """What could not be measured and why; ``way`` is empty for a whole part."""
    rows = []
    for result in bench["results"]:
        found = {"": result.get("failed")}
        ways, failed = result.get("ways", {}), result.get("ways_failed") or {}
        found |= {f"{way}, kernel view": kept.get("busy_failed") for way, kept in ways.items()}
        told = [(way, reason) for way, reason in (found | failed).items() if reason]
        rows += [(result["preset"], result["part"], way, reason) for way, reason in told]
    return _table(rows, "preset part way reason")


#: Heading and table of each part, in the order of a printout.
TABLES = {
    "What measuring costs": ratio_table,
    "What the prefill's stages account for": stage_coverage_table,
    "Prefill": prefill_table,
    "Decode": strategy_table,
    "Not measured": failure_table,
}


def bench_text(bench: Mapping[str, Any]) -> str:
    """The whole benchmark as plain text: where it was measured, then every table that has a row."""
    settings = bench["settings"]
    lines = [
        f"{bench['model']['name']}, {bench['model']['dtype']}, on {bench['device']['name']}; "
        f"{bench['page']['file']}, {settings['max_new_tokens']} new tokens, {settings['pairs']} "
        f"pairs",
    ]
    for title, make in TABLES.items():
        table = make(bench).dropna(axis="columns", how="all")
        if len(table):
            lines += [
                "",
                title,
                table.to_string(index=False, float_format="{:,.3f}".format, na_rep=""),
            ]
    if settings["pairs"] < LEAST_REPEATS:
        lines += ["", "So few pairs leave small differences untold. Measure with --pairs 15."]
    return "\n".join(lines)


def _median(values: Any) -> float:
    return float(np.median(values))


def _interval(values: Any) -> tuple[float, float, float]:
    """The median of values above 0, float64 [n], and the ends of its 95 % interval, which
    hold it.
    """
    median, (low, high) = _median(values), log_mean(values).interval()
    return median, min(low, median), max(high, median)


def _results(bench: Mapping[str, Any], part: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The preset and data of each finished run of a part."""
    for result in bench["results"]:
        if result["part"] == part and "failed" not in result:
            yield result["preset"], result


def _table(rows: list[tuple[Any, ...]], columns: str) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=columns.split())
