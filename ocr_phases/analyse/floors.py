"""Floors, MFU, MBU and roofline numbers of a record.

A stage can be no faster than its arithmetic at the device's best rate, nor than its bytes at the best
bandwidth: its floor is the larger of the two (Williams, Waterman and Patterson 2009, the roofline model). The
bytes are the weights, once, and the KV cache; activations can stay on the chip. Causal attention counts only
the pairs of positions that its mask lets through (`masked_flops` less than the cost tables). Stages follow
one another, so the floor of a whole is the sum of its stages'. MFU (Chowdhery et al. 2022, arXiv:2204.02311)
is FLOPs over time and best rate, MBU the same of bytes and bandwidth.

Ceilings come from the record (`ocr_phases.collectors.machine`), else from a datasheet
(`ocr_phases.analyse.datasheets`); without either there is no floor.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from ocr_phases.analyse.cost import decode_cost, masked_flops, run_cost, run_shape, stage_cost
from ocr_phases.analyse.datasheets import find_datasheet
from ocr_phases.analyse.kept import kept
from ocr_phases.analyse.summary import attended, step_table, typical_stage_ms
from ocr_phases.errors import OcrPhasesError
from ocr_phases.record import PhaseRun
from ocr_phases.text import bytes_text, ms_text

FLOOR_COLUMNS = (
    "phase",
    "stage",
    "view",
    "flops",
    "bytes",
    "intensity",
    "device_ms",
    "floor_ms",
    "bound_by",
    "times_floor",
    "mfu",
    "mbu",
    "source",
)
DECODE_FLOOR_COLUMNS = ("step", "cache_len", "floor_ms", "bound_by", "source")
_WHOLES = {"prefill": "prefill", "decode": "decode_step"}


@dataclass(frozen=True)
class Ceilings:
    """A device's best rates in the run's dtype; ``source`` is ``measured`` or ``datasheet``."""

    bandwidth_bytes_per_s: float
    flops_per_s: float
    source: str
    name: str

    def floor_ms(self, flops: float, count: float) -> float:
        """The least time of ``flops`` operations over ``count`` bytes, ms."""
        return max(flops / self.flops_per_s, count / self.bandwidth_bytes_per_s) * 1e3

    def bound_by(self, flops: float, count: float) -> str:
        """Which of the two it is: ``arithmetic`` or ``bandwidth``."""
        arithmetic = flops / self.flops_per_s > count / self.bandwidth_bytes_per_s
        return "arithmetic" if arithmetic else "bandwidth"


def measured_ceilings(run: PhaseRun) -> Ceilings | None:
    """The ceilings measured on the record's device; None if missing or of another dtype."""
    kept = run.device.get("ceilings") or {}
    bandwidth, flops = kept.get("bandwidth_bytes_per_s"), kept.get("matmul_flops_per_s")
    if not bandwidth or not flops or kept.get("matmul_dtype") != _product_dtype(run):
        return None
    return Ceilings(float(bandwidth), float(flops), "measured", "measured here")


def datasheet_ceilings(run: PhaseRun) -> Ceilings | None:
    """The datasheet's ceilings of the record's device and dtype; None for an unknown device."""
    sheet = find_datasheet(run.device.get("name"))
    rate = sheet.flops_per_s.get(_product_dtype(run)) if sheet else None
    if sheet is None or rate is None:
        return None
    return Ceilings(sheet.bandwidth_bytes_per_s, rate, "datasheet", sheet.source)


def ceilings_of(run: PhaseRun) -> Ceilings | None:
    """The measured ceilings, else the datasheet's, else None."""
    return measured_ceilings(run) or datasheet_ceilings(run)


@kept
def why_no_floor(run: PhaseRun) -> str | None:
    """Why this record has no floors, in one sentence; None if it has."""
    if not run.stage_ms("prefill", "prefill").size:
        return "A one-shot generate() run has no stages to compare with a floor."
    if _costs(run) is None:
        return "The cost of this record's model is unknown, so there is no floor."
    if ceilings_of(run) is None:
        return (
            "The device's ceilings were not measured and its datasheet is unknown, so there is no floor, "
            "MFU or MBU."
        )
    return None


@kept
def floor_table(run: PhaseRun) -> pd.DataFrame:
    """One row a stage and view of the prefill and of a decode step, columns `FLOOR_COLUMNS`.

    ``prefill`` and ``decode_step`` are the wholes, the last row of each phase. ``flops`` (without
    `masked_flops`) and ``bytes`` are int64, ``intensity`` FLOPs a byte, times ms: ``device_ms`` that of the
    typical repeat (of a decode step: the median of its steps), ``floor_ms`` at the cache length in the middle
    of the run. ``bound_by`` is ``arithmetic`` or ``bandwidth``, ``times_floor`` measured over floor, ``mfu``
    and ``mbu`` shares of one, ``source`` that of the ceilings. Empty where `why_no_floor` says so. A stage
    that was not timed has NaN.
    """
    ceilings, costs = ceilings_of(run), _costs(run)
    if why_no_floor(run) is not None or ceilings is None or costs is None:
        return pd.DataFrame(columns=list(FLOOR_COLUMNS))
    # A stage too short for the clock says nothing.
    measured = {place: ms for place, ms in typical_stage_ms(run).items() if ms > 0}
    rows = []
    for phase, stages in costs.groupby("phase", sort=False):
        key, floors = (str(phase), _WHOLES[str(phase)], ""), 0.0
        for stage, view, flops, count in stages[["stage", "view", *_WORK]].itertuples(index=False, name=None):
            floor = ceilings.floor_ms(flops, count)
            place = (str(phase), stage, view)
            rows.append(_floor_row(place, ceilings, flops, count, floor, measured.get(place, np.nan)))
            floors += floor
        flops, count = (float(stages[name].sum()) for name in _WORK)
        rows.append(_floor_row(key, ceilings, flops, count, floors, measured.get(key, np.nan)))
    return pd.DataFrame(rows, columns=list(FLOOR_COLUMNS))


@kept
def decode_floor(run: PhaseRun) -> pd.DataFrame:
    """The floor of every decode step as the cache grows: columns `DECODE_FLOOR_COLUMNS`, one row a step.

    ``cache_len`` is the length that the step leaves, ``floor_ms`` that of all rows of the batch. Empty
    where there is no floor, no decode step or no known cache length.
    """
    ceilings = ceilings_of(run)
    steps = step_table(run).dropna(subset=["cache_len"])
    if why_no_floor(run) is not None or ceilings is None or steps.empty:
        return pd.DataFrame(columns=list(DECODE_FLOOR_COLUMNS))
    lengths = steps["cache_len"].to_numpy(dtype=np.int64)
    seen = attended(run, lengths)
    ends = sorted({int(seen.min()), int(seen.max())})
    shape = run_shape(run)
    del shape["prompt_len"]
    at_ends = [_with_bytes(decode_cost(run.model["config"], cache_len=end, **shape)) for end in ends]
    floor = np.zeros(len(lengths))
    flops, counts = np.zeros(len(lengths)), np.zeros(len(lengths))
    for place in range(len(at_ends[0])):
        # FLOPs and bytes are linear in the cache's length.
        work = [np.interp(seen, ends, [table[name].iloc[place] for table in at_ends]) for name in _WORK]
        floor += [ceilings.floor_ms(*pair) for pair in zip(*work, strict=True)]
        flops, counts = flops + work[0], counts + work[1]
    return pd.DataFrame(
        {
            "step": steps["step"].to_numpy(),
            "cache_len": lengths,
            "floor_ms": floor,
            "bound_by": [ceilings.bound_by(*pair) for pair in zip(flops, counts, strict=True)],
            "source": ceilings.source,
        }
    )


def floor_sentence(run: PhaseRun) -> str:
    """The decode step's distance from its floor, in one sentence; empty without a floor."""
    table = floor_table(run)
    ceilings = ceilings_of(run)
    step = table[table["stage"] == "decode_step"]
    if ceilings is None or step.empty or not np.isfinite(step["times_floor"].iloc[0]):
        return ""
    row = step.iloc[0]
    allows = "memory bandwidth" if row["bound_by"] == "bandwidth" else "arithmetic"
    source = "measured on this device" if ceilings.source == "measured" else f"from the {ceilings.name}"
    return (
        f"A decode step takes {ms_text(row['device_ms'])}, {times_text(row['times_floor'])} its floor of "
        f"{ms_text(row['floor_ms'])} by {allows} ({source})."
    )


def ceilings_text(run: PhaseRun) -> str | None:
    """The ceilings of a record in words: rates, source, how measured ones were taken; None for none."""
    ceilings = ceilings_of(run)
    if ceilings is None:
        return None
    bandwidth = f"{rate_text(ceilings.bandwidth_bytes_per_s)}B/s"
    flops = f"{rate_text(ceilings.flops_per_s)}FLOP/s"
    dtype = _product_dtype(run)
    if ceilings.source == "datasheet":
        return f"{bandwidth} and {flops} in {dtype}, from the {ceilings.name}; not measured on this device"
    kept = run.device["ceilings"]
    taken, launch = kept.get("taken") or {}, kept.get("launch_us")
    if taken:
        bandwidth += f" (copying {bytes_text(taken['copied_bytes'])})"
        flops += f" (a {dtype} product {taken['matmul_size']:,} wide)"
    launches = f"; launching a small operation takes {launch:.1f} µs" if launch else ""
    return f"{bandwidth} and {flops}, measured on this device{launches}"


def times_text(factor: float) -> str:
    """A factor with two digits (``"1.4 times"``, ``"32 times"``); ``"n/a"`` for none."""
    if not np.isfinite(factor):
        return "n/a"
    return f"{factor:.1f} times" if factor < 9.95 else f"{factor:,.0f} times"


def rate_text(value: float) -> str:
    """Three digits with a decimal prefix: ``4.3 T``."""
    for size, prefix in _PREFIXES:
        if value >= size:
            return f"{value / size:.3g} {prefix}"
    return f"{value:.3g} "


_WORK = ("flops", "bytes")
_PREFIXES = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))


@kept
def _costs(run: PhaseRun) -> pd.DataFrame | None:
    """Least cost by phase, stage and view with ``bytes``; None for a model whose cost is unknown.

    Stages without arithmetic are left out: their bytes are a few kilobytes.
    """
    try:
        table, shape = _with_bytes(run_cost(run)), run_shape(run)
    except OcrPhasesError:
        return None
    prefill = (table["phase"] == "prefill") & (table["stage"] == "language_model")
    table.loc[prefill, "flops"] -= masked_flops(
        run.model["config"], prompt_len=shape["prompt_len"], batch=shape["batch"]
    )
    return table[table["flops"] > 0]


def _with_bytes(cost: pd.DataFrame) -> pd.DataFrame:
    table = stage_cost(cost)
    return table.assign(bytes=table["weight_bytes"] + table["kv_bytes"])


def _product_dtype(run: PhaseRun) -> str:
    """The dtype that matrix products ran in: autocast makes it bfloat16."""
    return "bfloat16" if run.request.get("autocast") else str(run.model.get("dtype"))


def _floor_row(
    place: tuple[str, str, str], ceilings: Ceilings, flops: float, count: float, floor: float, ms: float
) -> tuple:
    seconds = ms / 1e3
    return (
        *place,
        int(flops),
        int(count),
        flops / count,
        ms,
        floor,
        ceilings.bound_by(flops, count),
        ms / floor,
        flops / seconds / ceilings.flops_per_s,
        count / seconds / ceilings.bandwidth_bytes_per_s,
        ceilings.source,
    )
