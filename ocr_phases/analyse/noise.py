"""Whether a machine was quiet enough for its figures: the spread of the repeats, the machine, the
ceilings.

Noise does not break a measurement: a finding is ``noisy`` if it makes the figures useless, ``note``
if it is worth knowing, and never ``fail``. The conditions of the machine are in
``record.device.conditions`` (`ocr_phases.collectors.conditions`); older records lack it. Limits, words
and remedies are in ``checks.toml``.
"""

from __future__ import annotations

import math
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

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
from ocr_phases.record.parts import GpuState, to_plain
from ocr_phases.stages import stage_title
from ocr_phases.text import bytes_text, count_text, ms_text, percent_text

VERDICTS = ("pass", "fail", "noisy", "note", "n/a")
_OF_REPEAT = "repeat wall_s cpu_s other_threads_s waited_s others steal load_start load_end"
CONDITION_COLUMNS = tuple(_OF_REPEAT.split())
#: What a record is judged by, in its own figures and beside others.
JUDGED = {
    "prefill_ms": "the prefill",
    "inter_token_ms": "a decode step",
    "generate_ms": "generate()",
}
#: The same of a server, whose prefill a client does not see: the waits for the first token and for
#: each next one; where tokens came together, the whole answer.
JUDGED_OF_SERVER = {"ttft_ms": "the wait for the first token", "inter_token_ms": "a decode step"}
JUDGED_OF_ANSWER = {"ntpot_ms": "the mean time per token over the answer"}
JUDGED_OF_PAGE = {"page_ms": "the whole answer"}
#: The standard deviation of the logarithms of the repeats' times. Quiet machines stay below 0.02 on
#: a GPU and 0.05 on a CPU; beyond 0.10 the median of a few repeats can be off by more than most
#: changes of interest.
SPREAD_NOTE, SPREAD_NOISY = 0.05, 0.10

#: The words of every check.
TEXTS = tomllib.loads(Path(__file__).with_name("checks.toml").read_text(encoding="utf-8"))
_FINDINGS: dict[str, dict[str, Any]] = TEXTS["noise"]
_REMEDIES: dict[str, str] = TEXTS["remedies"]
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

    @property
    def label(self) -> str:
        """The name in words."""
        return self.name.replace("_", " ")


def judged_figures(runs: Sequence[Record]) -> dict[str, str]:
    """The figures that these records are judged by, beside each other or alone, with what they are
    called.

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
    judged = judged_figures([run])
    rows = [
        (spread(ms), judged[str(name)], f"{ms_text(ms.min())} to {ms_text(ms.max())}")
        for name, ms in figure_repeats(run)[list(judged)].items()
        if (ms > 0).all()
    ]
    measured = "; ".join(f"{name} {took} ({percent_text(share)})" for share, name, took in rows)
    worst, name, took = max(rows, default=(0.0, "", ""))
    verdict, reason = (
        _level(worst, SPREAD_NOTE, SPREAD_NOISY),
        f"{name} took {took} from repeat to repeat",
    )
    return _for_threads(run, Verdict(verdict, measured, reason=reason, remedy=_REMEDIES["quiet"]))


def _for_threads(run: Record, verdict: Verdict) -> Verdict:
    """The verdict; its remedy names one thread where several CPU threads had to share a busy
    machine.

    Threads that wait for each other are as slow as the one that was held up longest.
    """
    several = run.device.kind == "cpu" and (run.device.threads or 1) > 1
    if not several:
        return verdict
    remedy = verdict.remedy.replace(_REMEDIES["quiet"], _REMEDIES["quiet_threads"])
    return verdict._replace(remedy=remedy)


@cached
def busy_host(run: Record) -> Verdict:
    """Whether this process had its cores and its GPU to itself, as far as the record shows."""
    if not run.device.conditions:
        return Verdict("n/a", "this record has no conditions of the machine")
    unknown = Verdict("n/a", "this system does not report them")
    return _for_threads(run, _worst_first([*_host_findings(run), *_gpu_findings(run)], unknown))


@cached
def impossible_values(run: Record) -> Verdict:
    """MFU or MBU above 100 %, and implausible ceilings."""
    floors = floor_table(run).dropna(subset=["device_ms"])
    if floors.empty:
        return Verdict("n/a", "no floor is known")
    highest = percent_text(floors[["mfu", "mbu"]].max().max())
    possible = Verdict("pass", f"no stage above {highest} of a ceiling")
    found = _worst_first(
        [*_ceiling_findings(run, floors), *_bad_ceilings(run)], possible, reasons=1
    )
    return _for_threads(run, found)


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


# -- findings: what is noisy or worth a note, the rows of checks.toml -----------------------------------


def _level(value: float, note: float, noisy: float) -> str:
    return "noisy" if value > noisy else "note" if value > note else "pass"


def _told(name: str, value: float, *words: str, verdict: str = "") -> Iterator[Verdict]:
    """The finding of a row where the value is worth telling; NaN is not.

    Its words are the value as a share, and its verdict is by the row's limits, unless they are
    given.
    """
    row = _FINDINGS[name]
    if value > row["told"]:
        verdict = verdict or _level(value, row.get("note", row["told"]), row.get("noisy", math.inf))
        measured = row["text"].format(*words or [percent_text(value)])
        yield Verdict(verdict, measured, remedy=_REMEDIES.get(row.get("remedy", ""), ""))


def _worst_first(findings: list[Verdict], none: Verdict, reasons: int | None = None) -> Verdict:
    """The findings as one, the noisy ones first: these, or the first ``reasons`` of them, are its
    reason.
    """
    ordered = sorted(findings, key=lambda each: ("noisy", "note", "pass").index(each.verdict))
    noisy = [each for each in ordered if each.verdict == "noisy"][:reasons]
    reason = " and ".join(each.measured for each in noisy)
    remedy = " ".join(dict.fromkeys(each.remedy for each in noisy))
    measured = "; ".join(each.measured for each in ordered)
    return Verdict(ordered[0].verdict, measured, reason=reason, remedy=remedy) if ordered else none


def _host_findings(run: Record) -> Iterator[Verdict]:
    """Findings about the host; the worst repeat counts."""
    table = conditions_table(run)
    waited = (table["waited_s"] / (table["cpu_s"] + table["waited_s"])).max()
    others, steal = table["others"].max(), table["steal"].max()
    idle = 1.0 - (table["cpu_s"] / table["wall_s"]).min()
    on_cpu, unsure = run.device.kind != "cuda", "note" if math.isfinite(waited) else "noisy"
    # Other programs do no harm while enough cores stay free for these threads.
    cores = run.device.host_cores or math.nan
    wanted = (run.device.threads or 1) if on_cpu else 1
    crowded = others * cores + wanted > cores + 0.1 * wanted
    yield from _told("waited", waited)
    yield from _told("panel", (table["other_threads_s"] / table["wall_s"]).max())
    yield from _told("steal", steal)
    yield from _told("others", others, verdict=unsure if crowded else "pass")
    yield from _told("idle", idle if on_cpu else 0.0, percent_text(1.0 - idle), verdict=unsure)


def _gpu_findings(run: Record) -> Iterator[Verdict]:
    """Findings about the GPU before and after the repeats."""
    conditions = run.device.conditions
    gpu = None if conditions is None else conditions.gpu
    observed = [] if gpu is None else [gpu.before, gpu.after]
    states = [state for state in observed if state is not None] or [GpuState()]
    reasons = [state.throttle_reasons or 0 for state in states]
    others = max(state.other_processes or 0 for state in states)
    slowed = {word: 1 for bit, word in _THROTTLED.items() if any(bit & each for each in reasons)}
    yield from _told("slowed", len(slowed), ", ".join(slowed))
    yield from _told("power_cap", sum(_POWER_CAP & each for each in reasons))
    clock = states[-1].sm_mhz or math.nan
    most = states[-1].max_sm_mhz or math.nan
    yield from _told("clock", 1.0 - clock / most, f"{clock:,} of {most:,} MHz")
    used = states[0].utilization or 0.0
    busy = f", busy {used:.0f} % of the time" if used > _FOREIGN_USE else ""
    held = count_text(others, "other program")
    yield from _told("on_gpu", others, held, busy, verdict="noisy" if busy else "note")


def _ceiling_findings(run: Record, floors: pd.DataFrame) -> Iterator[Verdict]:
    """Stages that are faster than a ceiling allows, unless their bytes fit the cache."""
    fits = floors["bytes"] <= (run.device.cache_bytes or _CACHE_BYTES)
    above = floors["mfu"].where(
        floors["mfu"] > _FINDINGS["above"]["told"], floors["mbu"].mask(fits)
    )
    cached = floors["mbu"].where(fits & above.isna())
    for row in floors.assign(above=above, cached=cached).to_dict("records"):
        name = " ".join(filter(None, (stage_title(row["stage"]), row["view"], f"({row['phase']})")))
        yield from _told("above", row["above"], name, times_text(row["above"]))
        yield from _told(
            "in_cache", row["cached"], name, percent_text(row["mbu"]), bytes_text(row["bytes"])
        )


def _bad_ceilings(run: Record) -> Iterator[Verdict]:
    """Faults of the measured ceilings."""
    sheet, measured = datasheet_ceilings(run), measured_ceilings(run)
    low, high = _FINDINGS["datasheet"]["range"]
    rates = zip(("bandwidth", "arithmetic"), (measured or ())[:2], (sheet or ())[:2], strict=False)
    for name, ours, theirs in rates:
        off = ours if not low * theirs <= ours <= high * theirs else 0.0
        yield from _told(
            "datasheet", off, name, percent_text(ours / theirs), getattr(sheet, "name", "")
        )
    ceilings = run.device.ceilings
    taken = None
    if measured and ceilings is not None:
        taken = ceilings.taken
    for name, what in (("copy_ms", "a copy"), ("matmul_ms", "a matrix product")):
        times = np.asarray(getattr(taken, name, None) or [1.0])
        ratio = float(np.median(times) / times.min())
        yield from _told("ceiling", ratio, what, times_text(ratio))
