"""Whether a machine was quiet enough for its figures to be trusted: three findings and one warning.

Noise is no fault of the measurement: a finding is ``noisy`` where it makes the figures worthless, ``note``
where it is worth knowing, and never ``fail``. What the machine did meanwhile is in ``device["conditions"]``
(`ocr_phases.measure.collectors.conditions`); older records lack it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from ocr_phases.analyse.datasheets import find_datasheet
from ocr_phases.analyse.floors import (
    datasheet_ceilings,
    floor_table,
    measured_ceilings,
    rate_text,
    times_text,
)
from ocr_phases.analyse.summary import PHASES, repeat_table
from ocr_phases.record import PhaseRun
from ocr_phases.words import bytes_text, ms_text, percent_text, stage_name

CONDITION_COLUMNS = (
    "repeat",
    "wall_s",
    "cpu_s",
    "waited_s",
    "others",
    "steal",
    "load_start",
    "load_end",
)

#: The slowest repeat over the fastest. Quiet machines stay below 1.1 (the records that come with the package:
#: 1.00 to 1.04 on a GPU, 1.10 on a CPU). Beyond 1.2 the median of a few repeats can be off by more than most
#: changes that one looks for; beyond 1.5 it says little.
SPREAD_NOTE = 1.2
SPREAD_NOISY = 1.5
_CLEAR_MS = 2.0  # less between two repeats is a tick of the scheduler

# Shares of one: of the CPU time wanted, what the process waited for a core; of all cores' time, what a
# hypervisor took. A step that is stopped for a tenth of its time is that much too long.
_WAITED_NOTE, _WAITED_NOISY = 0.03, 0.10
_STEAL_NOISY = 0.05
_OTHERS_NOTE = 0.10
# Of the time that a run on a CPU took, it computed for less: where nothing tells why, others did.
_LITTLE_CPU = 0.80
_SLOW_CLOCK = 0.70  # a power limit alone turns an H200 down to 0.75
_FOREIGN_USE = 20.0  # per cent of a GPU's time before the run began
_THROTTLED = {0x8: "hardware slowdown", 0x20: "heat", 0x40: "heat", 0x80: "power brake"}
_POWER_CAP = 0x4

# Clocks and ceilings are a few per cent apart by themselves.
_POSSIBLE = 1.05
# Weights up to the last cache's size need not be read from memory. Where a record does not say, this much.
_CACHE_BYTES = 128_000_000
_CEILINGS_APART = 1.3
_CEILING_SPREAD = 1.5
_OF_DATASHEET = (0.5, 1.1)

_QUIET = "close other programs (or pin this one to cores of its own, as taskset does)"
_REPEAT = "measure again, with 5 repeats or more"


@dataclass(frozen=True)
class Finding:
    """``verdict`` and what was ``measured``, as in a check; for noise a clause ``why`` and ``what`` to do."""

    verdict: str
    measured: str
    why: str = ""
    what: str = ""


def repeat_spread(run: PhaseRun) -> Finding:
    """How far apart the repeats of each phase lie."""
    if len(run.repeats) < 2:
        return Finding("n/a", "a single repeat says nothing about the spread")
    table = repeat_table(run)
    ranges, worst, why, most = [], 1.0, "", 0.0
    for phase in PHASES[1:]:
        times = table[f"{phase}_ms"]
        if times.isna().any():
            continue
        low, high = float(times.min()), float(times.max())
        ranges.append(f"{phase} {ms_text(low)} to {ms_text(high)}")
        ratio = high / low if high - low > _CLEAR_MS else 1.0
        worst = max(worst, ratio)
        if ratio > SPREAD_NOISY and high - low > most:  # named is the phase that the most time went astray in
            took = "generate()" if phase == "generate" else f"the {phase}"
            most, why = high - low, f"{took} took {ms_text(low)} in one repeat and {ms_text(high)} in another"
    verdict = "noisy" if worst > SPREAD_NOISY else "note" if worst > SPREAD_NOTE else "pass"
    return Finding(verdict, "; ".join(ranges), why, f"{_QUIET}; {_REPEAT}")


def busy_host(run: PhaseRun) -> Finding:
    """Whether this process had the cores and the GPU that it wanted, as far as the record can say."""
    if not run.device.get("conditions"):
        return Finding("n/a", "this record does not say what else the machine did")
    found = [*_host_findings(run), *_gpu_findings(run)]
    noisy, notes, passed = (
        [text for verdict, text in found if verdict == kind] for kind in ("noisy", "note", "pass")
    )
    verdict = "noisy" if noisy else "note" if notes else "pass" if passed else "n/a"
    what = (
        _QUIET
        if any("GPU" not in text for text in noisy)
        else "leave the GPU to this program and let it cool"
    )
    measured = "; ".join([*noisy, *notes, *passed]) or "this system does not tell"
    return Finding(verdict, measured, " and ".join(noisy), f"{what}; {_REPEAT}" if noisy else "")


def impossible_values(run: PhaseRun) -> Finding:
    """Shares of the hardware's best above 1, and ceilings that cannot be right."""
    floors = floor_table(run).dropna(subset=["device_ms"])
    if floors.empty:
        return Finding("n/a", "no floor is known, so nothing can lie below it")
    cache = run.device.get("cache_bytes") or _CACHE_BYTES
    over, cached = [], []
    for row in floors.to_dict("records"):
        name = " ".join(filter(None, (stage_name(row["stage"]), row["view"])))
        if row["mfu"] > _POSSIBLE:
            over.append(f"{name} ({row['phase']}) would be at {percent_text(row['mfu'])} MFU")
        elif row["mbu"] > _POSSIBLE and row["bytes"] > cache:
            over.append(f"{name} ({row['phase']}) would be at {percent_text(row['mbu'])} MBU")
        elif row["mbu"] > _POSSIBLE:
            fits = f"its {bytes_text(row['bytes'])} may stay in the processor's cache"
            cached.append(f"{name} ({row['phase']}) at {percent_text(row['mbu'])} MBU: {fits}")
    over = [f"{text}, which cannot be" for text in over] + _bad_ceilings(run)
    if over:
        return Finding("noisy", "; ".join([*over, *cached]), over[0], f"{_QUIET}; measure again")
    if cached:
        return Finding("note", "; ".join(cached))
    highest = float(np.nanmax(floors[["mfu", "mbu"]].to_numpy(dtype=np.float64)))
    return Finding("pass", f"no stage above {percent_text(highest)} of a ceiling")


FINDINGS: dict[str, Callable[[PhaseRun], Finding]] = {
    "repeat_spread": repeat_spread,
    "busy_host": busy_host,
    "impossible_values": impossible_values,
}


def is_noisy(run: PhaseRun) -> bool:
    """Whether the machine was too busy for the times of this record: by their spread, or by what it did."""
    return "noisy" in (repeat_spread(run).verdict, busy_host(run).verdict)


def noisy_findings(run: PhaseRun) -> dict[str, Finding]:
    """The findings, by check, for which the figures of a record are not to be trusted."""
    found = {name: judge(run) for name, judge in FINDINGS.items()}
    return {name: finding for name, finding in found.items() if finding.verdict == "noisy"}


def noise_warning(run: PhaseRun) -> str:
    """That the figures are not to be trusted, why, and what to do; empty for a record without noise."""
    found = list(noisy_findings(run).values())
    if not found:
        return ""
    steps = dict.fromkeys(step for finding in found for step in finding.what.split("; "))
    if _REPEAT in steps:  # one way of measuring again is enough, and it comes last
        steps = dict.fromkeys([*(step for step in steps if not step.startswith("measure again")), _REPEAT])
    todo = ", then ".join(steps)
    why = "; ".join(finding.why for finding in found)
    return f"These figures are not to be trusted: {why}. {todo[:1].upper()}{todo[1:]}."


def conditions_table(run: PhaseRun) -> pd.DataFrame:
    """What the machine did in each repeat, columns `CONDITION_COLUMNS`; empty for a record that lacks it.

    Seconds, ``others`` (CPU time of other processes) and ``steal`` as shares of all cores' time, the
    one-minute load average; NaN for what the system did not tell.
    """
    rows = (run.device.get("conditions") or {}).get("repeats") or []
    table = pd.DataFrame(rows, columns=list(CONDITION_COLUMNS))
    return table.astype(dict.fromkeys(CONDITION_COLUMNS[1:], "float64"))


def ceilings_apart(base: PhaseRun, other: PhaseRun) -> str:
    """A sentence where the ceilings that two records measured on one device disagree; else empty."""
    ours, theirs = measured_ceilings(base), measured_ceilings(other)
    same = [base.device.get(name) == other.device.get(name) for name in ("name", "threads")]
    if ours is None or theirs is None or not all(same):
        return ""
    pairs = (
        (ours.bandwidth_bytes_per_s, theirs.bandwidth_bytes_per_s, "B/s"),
        (ours.flops_per_s, theirs.flops_per_s, "FLOP/s"),
    )
    apart = [
        f"{rate_text(a)}{unit} and {rate_text(b)}{unit}"
        for a, b, unit in pairs
        if max(a, b) > _CEILINGS_APART * min(a, b)
    ]
    if not apart:
        return ""
    return (
        f"The ceilings measured for this one device disagree ({'; '.join(apart)}): it was not equally free "
        "both times, so a difference may be the machine's."
    )


def _host_findings(run: PhaseRun) -> Iterator[tuple[str, str]]:
    """What the host's figures say, as (verdict, text); of each figure the worst repeat counts."""
    table = conditions_table(run)
    on_cpu = run.device.get("kind") != "cuda"
    waits = table["waited_s"] / (table["cpu_s"] + table["waited_s"]).where(lambda total: total > 0)
    waited, steal, others = (_worst(values) for values in (waits, table["steal"], table["others"]))
    if math.isfinite(waited):
        verdict = "noisy" if waited > _WAITED_NOISY else "note" if waited > _WAITED_NOTE else "pass"
        yield verdict, f"this program waited for a core for {percent_text(waited)} of the CPU time it wanted"
    if steal > _STEAL_NOISY:
        yield "noisy", f"the hypervisor took {percent_text(steal)} of the cores' time"
    if others > _OTHERS_NOTE:
        # Cores that stay free for as many threads as run here are not missed.
        cores = run.device.get("host_cores") or math.nan
        wanted = (run.device.get("threads") or 1) if on_cpu else 1
        crowded = others * cores + wanted > cores + 0.1 * wanted
        unknown = crowded and not math.isfinite(waited)
        taken = f"other programs took {percent_text(others)} of all cores"
        yield ("noisy" if unknown else "note" if crowded else "pass"), taken
    used = float((table["cpu_s"] / table["wall_s"]).min()) if len(table) else math.nan
    if on_cpu and used < _LITTLE_CPU:
        verdict = "note" if math.isfinite(waited) else "noisy"
        yield verdict, f"it computed for {percent_text(used)} of the time only"


def _gpu_findings(run: PhaseRun) -> Iterator[tuple[str, str]]:
    """What `nvidia-smi` said before and after the repeats, as (verdict, text)."""
    gpu: Mapping[str, Any] = run.device["conditions"].get("gpu") or {}
    seen = [state for state in (gpu.get("before"), gpu.get("after")) if state]
    reasons = 0
    for state in seen:
        reasons |= state.get("throttle_reasons") or 0
    slowed = dict.fromkeys(word for bit, word in _THROTTLED.items() if reasons & bit)
    clocks = [(state.get("sm_mhz"), state.get("max_sm_mhz")) for state in seen[-1:]]
    if slowed:
        yield "noisy", f"the GPU was slowed down ({', '.join(slowed)})"
    if reasons & _POWER_CAP:
        yield "note", "the GPU was at its power limit"
    for clock, most in clocks:
        if clock and most:
            verdict = "note" if clock < _SLOW_CLOCK * most else "pass"
            yield verdict, f"the GPU's clock was {clock:,} of {most:,} MHz after the last repeat"
    others = max((state.get("other_processes") or 0 for state in seen), default=0)
    if others:
        used = max((state.get("utilization") or 0.0 for state in seen[:1]), default=0.0)
        held = f"{others} other program{'' if others == 1 else 's'} held the GPU"
        busy = used > _FOREIGN_USE
        yield ("noisy" if busy else "note"), held + (f", at work {used:.0f} % of the time" if busy else "")


def _bad_ceilings(run: PhaseRun) -> list[str]:
    """What is wrong with the measured ceilings, a clause each."""
    found, sheet, measured = [], datasheet_ceilings(run), measured_ceilings(run)
    if measured is not None and sheet is not None and find_datasheet(run.device.get("name")) is not None:
        for name, ours, theirs in (
            ("bandwidth", measured.bandwidth_bytes_per_s, sheet.bandwidth_bytes_per_s),
            ("arithmetic", measured.flops_per_s, sheet.flops_per_s),
        ):
            low, high = _OF_DATASHEET
            if not low * theirs <= ours <= high * theirs:
                found.append(f"the measured {name} is {percent_text(ours / theirs)} of the {sheet.name}'s")
    taken = (run.device.get("ceilings") or {}).get("taken") or {}
    for name, what in (("copy_ms", "a copy"), ("matmul_ms", "a matrix product")):
        times = taken.get(name) or [1.0]
        spread = float(np.median(times)) / min(times)
        if measured is not None and spread > _CEILING_SPREAD:
            found.append(f"{what} that a ceiling is made of took {times_text(spread)} its best time")
    return found


def _worst(values: pd.Series) -> float:
    return float(values.max()) if values.notna().any() else math.nan
