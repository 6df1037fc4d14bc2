"""Floors, MFU, MBU and roofline numbers of a record.

A stage can be no faster than its arithmetic at the device's best rate, nor than its bytes at the
best bandwidth: its floor is the larger of the two (Williams, Waterman and Patterson 2009, the
roofline model). The bytes are the weights, once, and the KV cache; activations can stay on the
chip. Causal attention counts only the pairs of positions that its mask lets through (`masked_flops`
less than the cost tables). Stages follow one another, so the floor of a whole is the sum of its
stages'. MFU (Chowdhery et al. 2022, arXiv:2204.02311) is FLOPs over time and best rate, MBU the
same of bytes and bandwidth.

Ceilings come from the record (`ocr_phases.measure.ceilings`), else from a datasheet
(`ocr_phases.analyse.datasheets`); without either there is no floor.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from ocr_phases.analyse.cost import decode_cost, masked_flops, run_cost, run_shape, stage_cost
from ocr_phases.analyse.datasheets import Datasheet, find_datasheet
from ocr_phases.analyse.figures import summary
from ocr_phases.analyse.stages import (
    STAGE_KEYS,
    attended,
    cached,
    replayed_stage_ms,
    stage_medians,
    step_table,
)
from ocr_phases.errors import OcrPhasesError
from ocr_phases.record import Record
from ocr_phases.text import bytes_text, rate_text

FLOOR_COLUMNS = (
    *STAGE_KEYS,
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
DECODE_FLOOR_COLUMNS = ("step", "cache_len", "floor_ms")
#: A phase's whole: of decode the step, because the loop around it may be cut short.
WHOLES = {"prefill": "prefill", "decode": "decode_step"}


class Ceilings(NamedTuple):
    """A device's best rates in the run's dtype; ``source`` is ``measured`` or ``datasheet``."""

    bandwidth_bytes_per_s: float
    flops_per_s: float
    source: str
    name: str

    def floors(self, flops: Any, count: Any) -> tuple[np.ndarray, np.ndarray]:
        """The least time of ``flops`` operations over ``count`` bytes in ms, and what sets it.

        That is ``arithmetic`` or ``bandwidth``; both are arrays of the arguments' shape.
        """
        arithmetic = np.asarray(flops) / self.flops_per_s
        bandwidth = np.asarray(count) / self.bandwidth_bytes_per_s
        bound_by = np.where(arithmetic > bandwidth, "arithmetic", "bandwidth")
        return np.maximum(arithmetic, bandwidth) * 1e3, bound_by


def measured_ceilings(run: Record) -> Ceilings | None:
    """The ceilings measured on the record's device; None if missing or of another dtype."""
    known = run.device.ceilings
    if known is None:
        return None
    bandwidth = known.bandwidth_bytes_per_s
    flops = known.matmul_flops_per_s
    if not bandwidth or not flops or known.matmul_dtype != _product_dtype(run):
        return None
    return Ceilings(float(bandwidth), float(flops), "measured", "measured here")


def datasheet_ceilings(run: Record) -> Ceilings | None:
    """The datasheet's ceilings of the record's device and dtype; None for an unknown device."""
    sheet = find_datasheet(run.device.name)
    return None if sheet is None else sheet_ceilings(sheet, _product_dtype(run))


def sheet_ceilings(sheet: Datasheet, dtype: str) -> Ceilings | None:
    """What a datasheet says of products of this dtype; None where the GPU has none."""
    tera_flops_per_s = sheet.tera_flops_per_s(dtype)
    if tera_flops_per_s is None:
        return None
    bandwidth = sheet.bandwidth * 1e9
    return Ceilings(bandwidth, tera_flops_per_s * 1e12, "datasheet", sheet.source)


def ceilings_of(run: Record) -> Ceilings | None:
    """The measured ceilings, else the datasheet's, else None."""
    return measured_ceilings(run) or datasheet_ceilings(run)


@cached
def why_no_floor(run: Record) -> str | None:
    """Why this record has no floors, in one sentence; None if it has."""
    if summary(run)["prefill_ms"] is None:
        if run.is_server:
            return "A server does not show its stages, so there is nothing to compare with a floor."
        return "A one-shot generate() run has no stages to compare with a floor."
    if _costs(run) is None:
        return "The cost of this record's model is unknown, so there is no floor."
    if ceilings_of(run) is None:
        unknown = "The device's ceilings were not measured and its datasheet is unknown"
        return f"{unknown}, so there is no floor, MFU or MBU."
    return None


@cached
def floor_table(run: Record) -> pd.DataFrame:
    """One row a stage and view of the prefill and of a decode step, columns `FLOOR_COLUMNS`.

    ``prefill`` and ``decode_step`` are the wholes, the last row of each phase. ``flops`` (without
    `masked_flops`) and ``bytes`` are int64, ``intensity`` FLOPs a byte, times ms: ``device_ms``
    that of the summary (of a decode step: the median over all steps), ``floor_ms`` at the cache
    length in the middle of the run. A stage within a replayed graph has its time
    from the kernel view. ``bound_by`` is ``arithmetic`` or ``bandwidth``,
    ``times_floor`` measured over floor, ``mfu`` and ``mbu`` shares of one, ``source`` that of the
    ceilings. Empty where `why_no_floor` says so. A stage that was not timed has NaN.
    """
    ceilings = ceilings_of(run)
    costs = _costs(run)
    if ceilings is None or costs is None:
        return pd.DataFrame(columns=list(FLOOR_COLUMNS))
    costs["floor_ms"], costs["bound_by"] = ceilings.floors(costs["flops"], costs["bytes"])
    wholes = costs.groupby("phase", sort=False)[["flops", "bytes", "floor_ms"]].sum().reset_index()
    wholes = wholes.assign(stage=wholes["phase"].map(WHOLES), view="")
    wholes["bound_by"] = ceilings.floors(wholes["flops"], wholes["bytes"])[1]
    table = pd.concat([costs, wholes])
    table = table.sort_values("phase", ascending=False, kind="stable", ignore_index=True)
    times = stage_medians(run)
    times = times[times > 0]  # one too short for the clock says nothing
    replayed = replayed_stage_ms(run)
    if len(replayed):
        times = times.combine_first(replayed).rename("device_ms")
    table = table.join(times, on=[*STAGE_KEYS])
    seconds = table["device_ms"] / 1e3
    table["intensity"] = table["flops"] / table["bytes"]
    table["times_floor"] = table["device_ms"] / table["floor_ms"]
    table["mfu"] = table["flops"] / seconds / ceilings.flops_per_s
    table["mbu"] = table["bytes"] / seconds / ceilings.bandwidth_bytes_per_s
    table["source"] = ceilings.source
    return table[list(FLOOR_COLUMNS)]


@cached
def decode_floor(run: Record) -> pd.DataFrame:
    """The floor of every decode step as the cache grows: columns `DECODE_FLOOR_COLUMNS`, one row a
    step.

    ``cache_len`` is the length that the step leaves, ``floor_ms`` that of all rows of the batch.
    Empty where there is no floor, no decode step or no known cache length.
    """
    ceilings = ceilings_of(run)
    steps = step_table(run).dropna(subset=["cache_len"])
    if ceilings is None or _costs(run) is None or steps.empty:
        return pd.DataFrame(columns=list(DECODE_FLOOR_COLUMNS))
    lengths = steps["cache_len"].to_numpy(dtype=np.int64)
    seen = attended(run, lengths)[:, None, None]
    # FLOPs and bytes of each stage are linear in the cache's length.
    with_one = _decode_costs(run, 1)
    with_two = _decode_costs(run, 2)
    flops, moved = (with_one + (with_two - with_one) * (seen - 1)).T  # each [stages, steps]
    floor_ms = ceilings.floors(flops, moved)[0].sum(axis=0)
    return steps[["step"]].assign(cache_len=lengths, floor_ms=floor_ms).reset_index(drop=True)


def _decode_costs(run: Record, cache_len: int) -> np.ndarray:
    """FLOPs and bytes of each stage of a decode step at a length of the cache, [stages, 2]."""
    cost = decode_cost(run.model.config, cache_len=cache_len, **run_shape(run))
    return stage_cost(cost)[["flops", "bytes"]].to_numpy()


def ceilings_text(run: Record) -> str | None:
    """The ceilings of a record in words: rates, source, how measured ones were taken; None for
    none.
    """
    ceilings = ceilings_of(run)
    if ceilings is None:
        return None
    bandwidth = f"{rate_text(ceilings.bandwidth_bytes_per_s)}B/s"
    flops = f"{rate_text(ceilings.flops_per_s)}FLOP/s"
    dtype = _product_dtype(run)
    if ceilings.source == "datasheet":
        rates = f"{bandwidth} and {flops} in {dtype}"
        return f"{rates}, from the {ceilings.name}; not measured on this device"
    known = run.device.ceilings
    launches = ""
    if known is not None and known.taken is not None:
        bandwidth += f" (copying {bytes_text(known.taken.copied_bytes)})"
        flops += f" (multiplying {dtype} matrices {known.taken.matmul_size:,} wide)"
    if known is not None and known.launch_us:
        launches = f"; launching a small operation takes {known.launch_us:.1f} µs"
    return f"{bandwidth} and {flops}, measured on this device{launches}"


def times_text(factor: float) -> str:
    """A factor with two digits (``"1.4 times"``, ``"32 times"``); ``"n/a"`` for none."""
    if not np.isfinite(factor):
        return "n/a"
    return f"{factor:.1f} times" if factor < 9.95 else f"{factor:,.0f} times"


@cached
def _costs(run: Record) -> pd.DataFrame | None:
    """Least cost by phase, stage and view (`stage_cost`); None where it is unknown, or of a
    one-shot run.

    Stages without arithmetic are left out: their bytes are a few kilobytes.
    """
    prompt_tokens = run.request.prefill_len
    if summary(run)["prefill_ms"] is None or prompt_tokens is None:
        return None
    try:
        table = stage_cost(run_cost(run))
    except OcrPhasesError:
        return None
    language = (table["phase"] == "prefill") & (table["stage"] == "language_model")
    table.loc[language, "flops"] -= masked_flops(
        run.model.config, prompt_len=prompt_tokens, batch=len(run.results)
    )
    return table[table["flops"] > 0]


def _product_dtype(run: Record) -> str:
    """The dtype that matrix products ran in: autocast makes it bfloat16."""
    return "bfloat16" if run.request.autocast else str(run.model.dtype)
