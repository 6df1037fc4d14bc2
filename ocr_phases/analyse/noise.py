"""Whether a machine was quiet enough for its figures: the spread of the repeats, the machine, the ceilings.

Noise does not break a measurement: a finding is ``noisy`` if it makes the figures useless, ``note`` if it is
worth knowing, and never ``fail``. The conditions of the machine are in ``device["conditions"]``
(`ocr_phases.collectors.machine`); older records lack it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from ocr_phases.analyse.floors import (
    datasheet_ceilings,
    find_datasheet,
    floor_table,
    measured_ceilings,
    rate_text,
    times_text,
)
from ocr_phases.analyse.stages import cached, step_ms
from ocr_phases.analyse.statistics import spread
from ocr_phases.record import PhaseRun
from ocr_phases.text import bytes_text, ms_text, percent_text, stage_name

VERDICTS = ("pass", "fail", "noisy", "note", "n/a")

CONDITION_COLUMNS = (
    "repeat",
    "wall_s",
    "cpu_s",
    "other_threads_s",
    "waited_s",
    "others",
    "steal",
    "load_start",
    "load_end",
)

#: The standard deviation of the logarithms of the repeats' times. Quiet machines stay below 0.02 on a GPU and
#: 0.05 on a CPU; beyond 0.10 the median of a few repeats can be off by more than most changes of interest.
SPREAD_NOTE, SPREAD_NOISY = 0.05, 0.10

# Shares: waiting for a core over the CPU time needed; the hypervisor's part of all cores' time.
_WAITED_NOTE, _WAITED_NOISY = 0.03, 0.20
_STEAL_NOISY = 0.05
_OTHERS_NOTE = 0.10
# Of a core, by this process's other threads. The explorer's own drawing takes 0.01 to 0.02 on a slow CPU;
# holding its slider's arrow key took 0.05 to 0.12 and slowed decode steps by 40 to 60 %.
_PANEL_NOTE, _PANEL_NOISY = 0.025, 0.05
# A CPU run that computed for a smaller share of its time was probably preempted.
_LITTLE_CPU = 0.80
_SLOW_CLOCK = 0.70  # a power limit alone lowers an H200 to 0.75
_FOREIGN_USE = 20.0  # per cent of a GPU's time before the run began
_THROTTLED = {0x8: "hardware slowdown", 0x20: "heat", 0x40: "heat", 0x80: "power brake"}
_POWER_CAP = 0x4

# Clocks and ceilings are a few per cent apart by themselves.
_POSSIBLE = 1.05
# Weights that fit the last-level cache need not be read from memory. Assumed size if the record has none:
_CACHE_BYTES = 128_000_000
_CEILINGS_APART = 1.3
_CEILING_SPREAD = 1.5
_OF_DATASHEET = (0.5, 1.1)

_QUIET = "Close other programs, or pin this one to cores of its own (taskset), and measure again."
_ALONE = "Leave the panel and other cells alone until the run ends."
_COOL = "Leave the GPU to this program and let it cool."
_AGAIN = "Measure again with more repeats (--repeats 8)."


@dataclass(frozen=True)
class Verdict:
    """One check: its ``verdict``, one of `VERDICTS`, with what was measured beside what is expected.

    ``why`` says why it matters and ``fix`` what to do. Of noise, ``reason`` names what was found in a clause
    and ``remedy`` what to do about it.
    """

    verdict: str
    measured: str
    name: str = ""
    expected: str = ""
    why: str = ""
    fix: str = ""
    reason: str = ""
    remedy: str = ""

    @property
    def label(self) -> str:
        """The name in words."""
        return self.name.replace("_", " ")


@cached
def repeat_spread(run: PhaseRun) -> Verdict:
    """How far prefill, median decode step and generate() scatter over the repeats, as factors."""
    if len(run.repeats) < 2:
        return Verdict("n/a", "with one repeat the spread is unknown")
    whole = {phase: run.repeat_ms(phase, phase) for phase in ("prefill", "generate")}
    times = {"the prefill": whole["prefill"], "a decode step": step_ms(run), "generate()": whole["generate"]}
    spreads = {name: spread(each) for name, each in times.items() if (each > 0).all()}
    ranges = {name: f"{ms_text(times[name].min())} to {ms_text(times[name].max())}" for name in spreads}
    measured = "; ".join(f"{name} {ranges[name]} ({percent_text(share)})" for name, share in spreads.items())
    worst = max(spreads, key=lambda name: spreads[name], default="")
    most = spreads.get(worst, 0.0)
    verdict = "noisy" if most > SPREAD_NOISY else "note" if most > SPREAD_NOTE else "pass"
    reason = f"{worst} took {ranges[worst]} from repeat to repeat" if worst else ""
    return Verdict(verdict, measured, reason=reason, remedy=_QUIET)


@cached
def busy_host(run: PhaseRun) -> Verdict:
    """Whether this process had its cores and its GPU to itself, as far as the record shows."""
    if not run.device.get("conditions"):
        return Verdict("n/a", "this record has no conditions of the machine")
    findings = [*_host_findings(run), *_gpu_findings(run)]
    ordered = [each for verdict in ("noisy", "note", "pass") for each in findings if each.verdict == verdict]
    measured = "; ".join(each.measured for each in ordered) or "this system does not report them"
    noisy = [each for each in ordered if each.verdict == "noisy"]
    reason = " and ".join(each.measured for each in noisy)
    remedy = " ".join(dict.fromkeys(each.remedy for each in noisy))
    return Verdict(ordered[0].verdict if ordered else "n/a", measured, reason=reason, remedy=remedy)


@cached
def impossible_values(run: PhaseRun) -> Verdict:
    """MFU or MBU above 100 %, and implausible ceilings."""
    floors = floor_table(run).dropna(subset=["device_ms"])
    if floors.empty:
        return Verdict("n/a", "no floor is known")
    cache = run.device.get("cache_bytes") or _CACHE_BYTES
    above, saved = [], []
    for row in floors.to_dict("records"):
        name = " ".join(filter(None, (stage_name(row["stage"]), row["view"])))
        for ratio in ("mfu", "mbu"):
            if row[ratio] <= _POSSIBLE or math.isnan(row[ratio]):
                continue
            if ratio == "mbu" and row["bytes"] <= cache:
                fits = f"its {bytes_text(row['bytes'])} may stay in the processor's cache"
                saved.append(f"{name} ({row['phase']}) reaches {percent_text(row[ratio])} MBU: {fits}")
            else:
                exceeds = f"exceeds the measured ceiling {times_text(row[ratio])}, so that ceiling is wrong"
                above.append(f"{name} ({row['phase']}) {exceeds}")
            break
    above += _bad_ceilings(run)
    if above:
        return Verdict("noisy", "; ".join([*above, *saved]), reason=above[0], remedy=_QUIET)
    if saved:
        return Verdict("note", "; ".join(saved))
    highest = float(np.nanmax(floors[["mfu", "mbu"]].to_numpy(dtype=np.float64)))
    return Verdict("pass", f"no stage above {percent_text(highest)} of a ceiling")


NOISE = {"repeat_spread": repeat_spread, "busy_host": busy_host, "impossible_values": impossible_values}


def is_noisy(run: PhaseRun) -> bool:
    """Whether the machine was too busy for this record's times, by their spread or by its conditions."""
    return "noisy" in (repeat_spread(run).verdict, busy_host(run).verdict)


def conditions_table(run: PhaseRun) -> pd.DataFrame:
    """The machine's conditions in each repeat, columns `CONDITION_COLUMNS`; empty for a record without them.

    Seconds; ``others`` (CPU time of other processes) and ``steal`` as shares of all cores' time; the
    one-minute load average. NaN for values that the system did not report.
    """
    rows = (run.device.get("conditions") or {}).get("repeats") or []
    table = pd.DataFrame(rows, columns=list(CONDITION_COLUMNS))
    return table.astype(dict.fromkeys(CONDITION_COLUMNS[1:], "float64"))


def ceilings_apart(base: PhaseRun, other: PhaseRun) -> str:
    """A warning if the ceilings of two records of one device disagree; else empty."""
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
        f"The two measured ceilings of this device disagree ({'; '.join(apart)}). Other programs may have "
        "slowed one measurement, so a difference may come from the machine."
    )


def _host_findings(run: PhaseRun) -> Iterator[Verdict]:
    """Findings about the host; the worst repeat counts."""
    table = conditions_table(run)
    on_cpu = run.device.get("kind") != "cuda"
    waits = table["waited_s"] / (table["cpu_s"] + table["waited_s"]).where(lambda total: total > 0)
    waited, steal, others = (_worst(values) for values in (waits, table["steal"], table["others"]))
    if math.isfinite(waited):
        verdict = "noisy" if waited > _WAITED_NOISY else "note" if waited > _WAITED_NOTE else "pass"
        text = f"this program waited for a core for {percent_text(waited)} of the CPU time it needed"
        yield Verdict(verdict, text, remedy=_QUIET)
    panel = _worst(table["other_threads_s"] / table["wall_s"])
    if panel > _PANEL_NOTE:
        text = f"the panel or other cells used {percent_text(panel)} of a core during the run"
        yield Verdict("noisy" if panel > _PANEL_NOISY else "note", text, remedy=_ALONE)
    if steal > _STEAL_NOISY:
        yield Verdict("noisy", f"the hypervisor took {percent_text(steal)} of the cores' time", remedy=_AGAIN)
    if others > _OTHERS_NOTE:
        # Other programs do no harm while enough cores stay free for these threads.
        cores = run.device.get("host_cores") or math.nan
        wanted = (run.device.get("threads") or 1) if on_cpu else 1
        crowded = others * cores + wanted > cores + 0.1 * wanted
        unknown = crowded and not math.isfinite(waited)
        verdict = "noisy" if unknown else "note" if crowded else "pass"
        yield Verdict(verdict, f"other programs took {percent_text(others)} of all cores", remedy=_QUIET)
    used = float((table["cpu_s"] / table["wall_s"]).min()) if len(table) else math.nan
    if on_cpu and used < _LITTLE_CPU:
        verdict = "note" if math.isfinite(waited) else "noisy"
        yield Verdict(verdict, f"it computed for only {percent_text(used)} of the time", remedy=_QUIET)


def _gpu_findings(run: PhaseRun) -> Iterator[Verdict]:
    """Findings about the GPU before and after the repeats."""
    gpu: Mapping[str, Any] = run.device["conditions"].get("gpu") or {}
    states = [state for state in (gpu.get("before"), gpu.get("after")) if state]
    if not states:
        return
    reasons = 0
    for state in states:
        reasons |= state.get("throttle_reasons") or 0
    slowed = dict.fromkeys(word for bit, word in _THROTTLED.items() if reasons & bit)
    if slowed:
        yield Verdict("noisy", f"the GPU was slowed down ({', '.join(slowed)})", remedy=_COOL)
    if reasons & _POWER_CAP:
        yield Verdict("note", "the GPU was at its power limit")
    clock, most = states[-1].get("sm_mhz"), states[-1].get("max_sm_mhz")
    if clock and most:
        verdict = "note" if clock < _SLOW_CLOCK * most else "pass"
        yield Verdict(verdict, f"the GPU's clock was {clock:,} of {most:,} MHz after the last repeat")
    others = max(state.get("other_processes") or 0 for state in states)
    if others:
        used = states[0].get("utilization") or 0.0
        busy = f", busy {used:.0f} % of the time" if used > _FOREIGN_USE else ""
        held = f"{others} other program{'' if others == 1 else 's'} held the GPU{busy}"
        yield Verdict("noisy" if busy else "note", held, remedy=_COOL)


def _bad_ceilings(run: PhaseRun) -> list[str]:
    """Faults of the measured ceilings, a clause each."""
    faults, sheet, measured = [], datasheet_ceilings(run), measured_ceilings(run)
    if measured is not None and sheet is not None and find_datasheet(run.device.get("name")) is not None:
        for name, ours, theirs in (
            ("bandwidth", measured.bandwidth_bytes_per_s, sheet.bandwidth_bytes_per_s),
            ("arithmetic", measured.flops_per_s, sheet.flops_per_s),
        ):
            low, high = _OF_DATASHEET
            if not low * theirs <= ours <= high * theirs:
                faults.append(f"the measured {name} is {percent_text(ours / theirs)} of the {sheet.name}'s")
    taken = (run.device.get("ceilings") or {}).get("taken") or {}
    for name, what in (("copy_ms", "a copy"), ("matmul_ms", "a matrix product")):
        times = taken.get(name) or [1.0]
        ratio = float(np.median(times)) / min(times)
        if measured is not None and ratio > _CEILING_SPREAD:
            faults.append(f"{what} for a ceiling took {times_text(ratio)} its best time")
    return faults


def _worst(values: pd.Series) -> float:
    return float(values.max()) if values.notna().any() else math.nan
