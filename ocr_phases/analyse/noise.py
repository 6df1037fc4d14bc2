"""Whether a machine was quiet enough for its figures: the spread of the repeats, the machine, the
ceilings.

Noise does not break a measurement: a finding is ``noisy`` if it makes the figures useless, ``note``
if it is worth knowing, and never ``fail``. The conditions of the machine are in
``record.device.conditions`` (`ocr_phases.collectors.conditions`); older records lack it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pandas as pd

from ocr_phases.analyse.figure_rows import FIGURE_ROWS
from ocr_phases.analyse.figures import figure_repeats
from ocr_phases.analyse.floors import (
    datasheet_ceilings,
    floor_table,
    measured_ceilings,
    times_text,
)
from ocr_phases.analyse.stages import cached
from ocr_phases.analyse.statistics import spread
from ocr_phases.record import Record
from ocr_phases.record.parts import to_plain
from ocr_phases.stages import stage_title
from ocr_phases.text import bytes_text, count_text, ms_text, percent_text

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
#: What a record is judged by, in its own figures and beside others.
JUDGED = ("prefill_ms", "inter_token_ms", "generate_ms")
#: The same of a server, whose prefill a client does not see: the waits for the first token and for
#: each next one; where tokens came together, the whole answer.
JUDGED_OF_SERVER = ("ttft_ms", "inter_token_ms")
JUDGED_OF_ANSWER = ("ntpot_ms",)
JUDGED_OF_PAGE = ("page_ms",)
#: The standard deviation of the logarithms of the repeats' times. Quiet machines stay below 0.02 on
#: a GPU and 0.05 on a CPU; beyond 0.10 the median of a few repeats can be off by more than most
#: changes of interest.
SPREAD_NOTE = 0.05
SPREAD_NOISY = 0.10

_QUIET = (
    "Close other programs, or pin this one to cores that they do not use (taskset), and measure "
    "again."
)
_QUIET_THREADS = (
    "Close other programs, compute with one thread (threads=1, --threads 1), or pin this one to "
    "cores that they do not use (taskset), and measure again."
)
_QUIET_CORE = (
    "This program may use one core only, and shares it: close other programs, or give it a core "
    "that they do not use, and measure again."
)
_QUIET_CORE_THREADS = (
    "This program may use one core only: compute with one thread (threads=1, --threads 1), close "
    "other programs or give it more cores, and measure again."
)
_ALONE = "Leave the panel and other cells alone until the run ends."
_COOL = "Leave the GPU to this program and let it cool."
_AGAIN = "Measure again with more repeats (--repeats 8)."

# From which share on a finding is worth a note, and from which it makes the figures useless.
_WAITED_NOTE = 0.03
_WAITED_NOISY = 0.20
# Of a core, by this process's other threads. The explorer's own drawing takes 0.01 to 0.02 on a
# slow CPU; holding its slider's arrow key took 0.05 to 0.12 and slowed decode steps by 40 to 60 %.
_PANEL_NOTE = 0.025
_PANEL_NOISY = 0.05
_STEAL_NOISY = 0.05
_OTHERS_NOTE = 0.10
# A CPU run that computed for a smaller share of its time was probably preempted.
_IDLE_NOTE = 0.20
# A power limit alone lowers an H200's clock by 0.25.
_CLOCK_NOTE = 0.30
# Clocks and ceilings are a few per cent apart by themselves.
_ABOVE_CEILING = 1.05
# A plausible ceiling, over the datasheet's.
_LEAST_OF_DATASHEET = 0.5
_MOST_OF_DATASHEET = 1.1
# The median time of what a ceiling is measured by, over its best time.
_CEILING_SCATTER = 1.5

_THROTTLED = {0x8: "hardware slowdown", 0x20: "heat", 0x40: "heat", 0x80: "power brake"}
_POWER_CAP = 0x4
_FOREIGN_USE = 20.0  # per cent of a GPU's time before the run began
#: Of the last level, where the record does not say: weights that fit may stay there.
_CACHE_BYTES = 128_000_000


class Verdict(NamedTuple):
    """One check: its ``verdict``, one of `VERDICTS`, with what was measured beside what is
    expected.

    ``why`` says why it matters and ``fix`` what to do. Of noise, ``reason`` names what was found in
    a clause and ``remedy`` what to do about it.
    """

    verdict: str
    measured: str
    name: str = ""
    expected: str = ""
    why: str = ""
    fix: str = ""
    reason: str = ""
    remedy: str = ""
    title: str = ""

    @property
    def label(self) -> str:
        """The title of its rule; without one its name in words."""
        return self.title or self.name.replace("_", " ")


def judged_figures(runs: Sequence[Record]) -> tuple[str, ...]:
    """The names of the figures that these records are judged by, beside each other or alone.

    A server sends several tokens in a chunk or one, as it is set: then neither its first chunk nor
    the time between chunks says how fast it is, and only the whole answer does, for each token
    where their number is known.
    """
    servers = [run for run in runs if run.is_server]
    if not servers:
        return JUDGED
    if not all(run.knows_tokens for run in servers):
        return JUDGED_OF_PAGE
    if any(has_untimed_tokens(run) for run in runs):
        return JUDGED_OF_ANSWER
    return JUDGED_OF_SERVER


def has_untimed_tokens(run: Record) -> bool:
    """Whether a record has tokens after the first, and no time of its own for each of them."""
    steps = (run.spans["stage"] == "decode_step").any()
    return not steps and run.decoded_tokens > 0


@cached
def repeat_spread(run: Record) -> Verdict:
    """How far the figures that are judged (`judged_figures`) scatter over the repeats."""
    if len(run.repeats) < 2:
        return Verdict("n/a", "with one repeat the spread is unknown")
    spreads = []
    for name, ms in figure_repeats(run)[list(judged_figures([run]))].items():
        if (ms > 0).all():
            range_text = f"{ms_text(ms.min())} to {ms_text(ms.max())}"
            spreads.append(_Spread(FIGURE_ROWS[str(name)].words, range_text, spread(ms)))
    if not spreads:
        return Verdict("pass", "")
    widest = max(spreads, key=lambda each: each.share)
    return Verdict(
        _level(widest.share, SPREAD_NOTE, SPREAD_NOISY),
        "; ".join(f"{each.name} {each.range} ({percent_text(each.share)})" for each in spreads),
        reason=f"{widest.name} took {widest.range} from repeat to repeat",
        remedy=_quiet_remedy(run),
    )


@dataclass(frozen=True)
class _Spread:
    """How far one figure scatters: its name in words, its range, and `statistics.spread`."""

    name: str
    range: str
    share: float


def busy_warning(waited: float | None, kind: str, cores: int, threads: int) -> str:
    """What is said before a measurement on a busy machine; empty where it is quiet.

    Parameters
    ----------
    waited : float, optional
        How long this program waited for a core in the warm-up, over the CPU time that it needed.
        None where the system does not say.
    kind : str
        The kind of the device: cpu, cuda or mps.
    cores : int
        How many cores this program may use.
    threads : int
        How many CPU threads compute.
    """
    if waited is None or waited <= _WAITED_NOISY:
        return ""
    return (
        "These times will be too noisy: in the warm-up this program waited for a core for "
        f"{percent_text(waited)} of the CPU time it needed. {_remedy(kind, cores, threads)}"
    )


def _quiet_remedy(run: Record) -> str:
    """What makes the machine of this record quiet."""
    return _remedy(run.device.kind, run.device.host_cores, run.device.threads or 1)


def _remedy(kind: str, cores: int | None, threads: int) -> str:
    """What makes a machine quiet, by the cores that a program may use and its threads.

    Threads that wait for each other are as slow as the one that was held up longest, so several CPU
    threads are told to be one. A program that has one core is not told to be pinned: it probably
    was.
    """
    has_one_core = cores == 1
    has_several_threads = kind == "cpu" and threads > 1
    if has_one_core and has_several_threads:
        return _QUIET_CORE_THREADS
    if has_one_core:
        return _QUIET_CORE
    if has_several_threads:
        return _QUIET_THREADS
    return _QUIET


@cached
def busy_host(run: Record) -> Verdict:
    """Whether this process had its cores and its GPU to itself, as far as the record shows."""
    if not run.device.conditions:
        return Verdict("n/a", "this record has no conditions of the machine")
    unknown = Verdict("n/a", "this system does not report them")
    return _worst_first([*_host_findings(run), *_gpu_findings(run)], unknown)


@cached
def impossible_values(run: Record) -> Verdict:
    """MFU or MBU above 100 %, and implausible ceilings."""
    floors = floor_table(run).dropna(subset=["device_ms"])
    if floors.empty:
        return Verdict("n/a", "no floor is known")
    highest = percent_text(floors[["mfu", "mbu"]].max().max())
    possible = Verdict("pass", f"no stage above {highest} of a ceiling")
    findings = [*_ceiling_findings(run, floors)]
    for text in _bad_ceilings(run):
        findings.append(Verdict("noisy", text, remedy=_quiet_remedy(run)))
    return _worst_first(findings, possible, reasons=1)


def ceilings_are_wrong(run: Record) -> bool:
    """Whether `impossible_values` found a ceiling that cannot be right: then no floor says
    anything.
    """
    return impossible_values(run).verdict == "noisy"


@cached
def trusted_floors(run: Record) -> pd.DataFrame:
    """`floor_table` for what is said of a record: without a row where `ceilings_are_wrong`."""
    table = floor_table(run)
    return table.head(0) if ceilings_are_wrong(run) else table


NOISE = {
    "repeat_spread": repeat_spread,
    "busy_host": busy_host,
    "impossible_values": impossible_values,
}


def is_noisy(run: Record) -> bool:
    """Whether the machine was too busy for this record's times, by their spread or by its
    conditions.
    """
    return "noisy" in (repeat_spread(run).verdict, busy_host(run).verdict)


def conditions_table(run: Record) -> pd.DataFrame:
    """The machine's conditions in each repeat, columns `CONDITION_COLUMNS`; empty for a record
    without them.

    Repeats are counted from 0. Seconds; ``others`` (CPU time of other processes) and ``steal`` as
    shares of all cores' time; the one-minute load average. NaN for values that the system did not
    report.
    """
    conditions = run.device.conditions
    rows = [] if conditions is None else to_plain(conditions.repeats)
    table = pd.DataFrame(rows, columns=list(CONDITION_COLUMNS)).set_index("repeat")
    return table.astype("float64").reset_index()


# -- findings: what is noisy or worth a note -------------------------------------------------------


def _level(value: float, note: float, noisy: float) -> str:
    if value > noisy:
        return "noisy"
    if value > note:
        return "note"
    return "pass"


def _worst_first(findings: list[Verdict], none: Verdict, reasons: int | None = None) -> Verdict:
    """The findings as one, the noisy ones first: these, or the first ``reasons`` of them, are its
    reason.
    """
    if not findings:
        return none
    ordered = sorted(findings, key=lambda each: ("noisy", "note", "pass").index(each.verdict))
    noisy = [each for each in ordered if each.verdict == "noisy"][:reasons]
    return Verdict(
        ordered[0].verdict,
        "; ".join(each.measured for each in ordered),
        reason=" and ".join(each.measured for each in noisy),
        remedy=" ".join(dict.fromkeys(each.remedy for each in noisy)),
    )


def _host_findings(run: Record) -> Iterator[Verdict]:
    """Findings about the host; the worst repeat counts. What the system did not report is NaN."""
    quiet = _quiet_remedy(run)
    table = conditions_table(run)
    waited = (table["waited_s"] / (table["cpu_s"] + table["waited_s"])).max()
    if not math.isnan(waited):
        text = (
            f"this program waited for a core for {percent_text(waited)} of the CPU time it needed"
        )
        yield Verdict(_level(waited, _WAITED_NOTE, _WAITED_NOISY), text, remedy=quiet)
    panel = (table["other_threads_s"] / table["wall_s"]).max()
    if panel > _PANEL_NOTE:
        text = f"the panel or other cells used {percent_text(panel)} of a core during the run"
        yield Verdict(_level(panel, _PANEL_NOTE, _PANEL_NOISY), text, remedy=_ALONE)
    steal = table["steal"].max()
    if steal > _STEAL_NOISY:
        text = f"the hypervisor took {percent_text(steal)} of the cores' time"
        yield Verdict("noisy", text, remedy=_AGAIN)
    # Where the time that this program waited is known, it says more than what others used.
    unsure = "noisy" if math.isnan(waited) else "note"
    others = table["others"].max()
    if others > _OTHERS_NOTE:
        text = f"other programs took {percent_text(others)} of all cores"
        yield Verdict(unsure if _is_crowded(run, others) else "pass", text, remedy=quiet)
    computed = (table["cpu_s"] / table["wall_s"]).min()
    if run.device.kind != "cuda" and 1.0 - computed > _IDLE_NOTE:
        text = f"it computed for only {percent_text(computed)} of the time"
        yield Verdict(unsure, text, remedy=quiet)


def _is_crowded(run: Record, others: float) -> bool:
    """Whether other programs, which took this share of all cores, left too few for this one.

    They do no harm while enough cores stay free for its threads.
    """
    if run.device.host_cores is None:
        return False
    wanted = 1 if run.device.kind == "cuda" else run.device.threads or 1
    return others * run.device.host_cores + wanted > run.device.host_cores + 0.1 * wanted


def _gpu_findings(run: Record) -> Iterator[Verdict]:
    """Findings about the GPU before and after the repeats."""
    conditions = run.device.conditions
    gpu = None if conditions is None else conditions.gpu
    if gpu is None:
        return
    if gpu.missing:
        yield Verdict("pass", f"the GPU's clocks are n/a ({gpu.missing})")
    states = [state for state in (gpu.before, gpu.after) if state is not None]
    if not states:
        return
    reasons = 0
    for state in states:
        reasons |= state.throttle_reasons or 0
    slowed = dict.fromkeys(word for bit, word in _THROTTLED.items() if bit & reasons)
    if slowed:
        text = f"the GPU was slowed down ({', '.join(slowed)})"
        yield Verdict("noisy", text, remedy=_COOL)
    if reasons & _POWER_CAP:
        yield Verdict("note", "the GPU was at its power limit")
    clock = states[-1].sm_mhz
    highest = states[-1].max_sm_mhz
    if clock and highest:
        text = f"the GPU's clock was {clock:,} of {highest:,} MHz after the last repeat"
        yield Verdict(_level(1.0 - clock / highest, _CLOCK_NOTE, math.inf), text)
    others = max(state.other_processes or 0 for state in states)
    if others > 0:
        held = f"{count_text(others, 'other program')} held the GPU"
        used = states[0].utilization or 0.0
        if used > _FOREIGN_USE:
            text = f"{held}, busy {used:.0f} % of the time"
            yield Verdict("noisy", text, remedy=_COOL)
        else:
            yield Verdict("note", held, remedy=_COOL)


def _ceiling_findings(run: Record, floors: pd.DataFrame) -> Iterator[Verdict]:
    """Stages that are faster than a ceiling allows, unless their bytes fit the cache."""
    cache_bytes = run.device.cache_bytes or _CACHE_BYTES
    for row in floors.to_dict("records"):
        parts = (stage_title(row["stage"]), row["view"], f"({row['phase']})")
        name = " ".join(part for part in parts if part)
        fits_cache = row["bytes"] <= cache_bytes
        above = math.nan
        if row["mfu"] > _ABOVE_CEILING:
            above = row["mfu"]
        elif row["mbu"] > _ABOVE_CEILING and not fits_cache:
            above = row["mbu"]
        if not math.isnan(above):
            exceeds = f"{name} exceeds the measured ceiling {times_text(above)}"
            wrong = f"{exceeds}, so that ceiling is wrong"
            yield Verdict("noisy", wrong, remedy=_quiet_remedy(run))
        elif row["mbu"] > _ABOVE_CEILING:
            reached = f"{name} reaches {percent_text(row['mbu'])} MBU"
            held = f"its {bytes_text(row['bytes'])} may stay in the processor's cache"
            yield Verdict("note", f"{reached}: {held}")


def _bad_ceilings(run: Record) -> Iterator[str]:
    """Faults of the measured ceilings."""
    measured = measured_ceilings(run)
    if measured is None:
        return
    sheet = datasheet_ceilings(run)
    if sheet is not None:
        yield from _beside_sheet(
            "bandwidth", measured.bandwidth_bytes_per_s, sheet.bandwidth_bytes_per_s, sheet.name
        )
        yield from _beside_sheet("arithmetic", measured.flops_per_s, sheet.flops_per_s, sheet.name)
    ceilings = run.device.ceilings
    if ceilings is not None and ceilings.taken is not None:
        yield from _scattered("a copy", ceilings.taken.copy_ms)
        yield from _scattered("a matrix product", ceilings.taken.matmul_ms)


def _beside_sheet(rate: str, measured: float, of_sheet: float, sheet: str) -> Iterator[str]:
    """What was found where a measured rate is far from the datasheet's."""
    if _LEAST_OF_DATASHEET * of_sheet <= measured <= _MOST_OF_DATASHEET * of_sheet:
        return
    yield f"the measured {rate} is {percent_text(measured / of_sheet)} of the {sheet}'s"


def _scattered(what: str, times_ms: Sequence[float] | None) -> Iterator[str]:
    """What was found where the times that a ceiling was measured by are far above their best."""
    if not times_ms:
        return
    ratio = float(np.median(times_ms)) / min(times_ms)
    if ratio > _CEILING_SCATTER:
        yield f"{what} for a ceiling took {times_text(ratio)} its best time"
