"""One record in words: headline, key figures, what limits it, findings, noise and checks.

Plain text, without any text of the model. Times are those of `PhaseRun.summary`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd

from ocr_phases.analyse.checks import EXPECTATIONS, VERDICTS, Verdict, noisy_checks, with_verdict
from ocr_phases.analyse.floors import ceilings_of, floor_table, times_text
from ocr_phases.analyse.grounding import PREAMBLE
from ocr_phases.analyse.kernels import kernel_sentences
from ocr_phases.analyse.regions import UNCERTAIN_BELOW, regions_of
from ocr_phases.analyse.repetition import repeated_share
from ocr_phases.analyse.stages import (
    OUTLIER_FACTOR,
    decode_trend,
    end_to_end_ms,
    step_table,
    typical_repeat,
)
from ocr_phases.record import PhaseRun
from ocr_phases.text import bytes_text, count_text, digits_text, ms_text, percent_text

UNCERTAIN_TEXT = f"uncertain: mean token probability below {percent_text(UNCERTAIN_BELOW)}"

# A smaller difference between the clocks does not show which side waits.
_CLEAR_GAP = 0.15
_CLEAR_TREND = 0.10
_MUCH_REPEATED = 0.10
_PHASES = ("prefill", "decode")
#: What happened once, before the timed runs, by its name among the model's facts.
_ONCE = {
    "compile_ms": "compiling the decode step",
    "capture_ms": "capturing it",
    "prefill_capture_ms": "capturing the prefill",
    "vision_compile_ms": "compiling the vision encoders",
}


def subject(run: PhaseRun) -> str:
    """Model, device, dtype, strategy and date in one line."""
    how, taken = f"{run.model['dtype']}, {run.model['strategy']}", run.created.replace("T", " ")
    taken = taken.replace("+00:00", " UTC").replace("Z", " UTC")
    return " · ".join((run.model["name"], run.device["name"], how, taken))


def headline(run: PhaseRun) -> str:
    """Where the time went: the larger of prefill and decode, and the vision stages' share of the prefill."""
    pages, total, share = _pages_text(run), run["page_ms"], run["vision_share"]
    if _is_generate(run):
        return f"generate() read {pages} in {ms_text(run['generate_ms'])}."
    larger = _larger_phase(run)
    name = "Decode" if larger == "decode" else "The prefill"
    took = "took" if len(run.results) == len(run.pages) == 1 else "took together"
    vision = f"; vision is {percent_text(share)} of the prefill" if share else ""
    part = percent_text(run[f"{larger}_ms"] / total)
    loops = repeated_share(run)
    loop = f" Repeated text is {percent_text(loops)} of the decode." if loops > _MUCH_REPEATED else ""
    return f"{name} is {part} of the {ms_text(total)} that {pages} {took}{vision}.{loop}"


def verdict(run: PhaseRun) -> str:
    """The result as a short paragraph: `headline`, `limit_sentence`, `noise_warning` and `findings`."""
    return " ".join(filter(None, [headline(run), limit_sentence(run), noise_warning(run), *findings(run)]))


def limit_sentence(run: PhaseRun) -> str:
    """What limits the larger phase, in one sentence: from the kernel view, else from the floors."""
    return next(iter(_limits(run)), "")


def findings(run: PhaseRun) -> list[str]:
    """What else is worth knowing, a sentence each: the other phase's limit and the floor's distance first."""
    return [*_limits(run)[1:], *_phase_sentences(run), *_clock_sentences(run), *_caveats(run)]


def _limits(run: PhaseRun) -> list[str]:
    """What limits the times, a sentence each, of the larger phase first."""
    larger, floor = _larger_phase(run), [floor_sentence(run)]
    first = kernel_sentences(run, larger)
    other = kernel_sentences(run, *(phase for phase in _PHASES if phase != larger))
    ordered = [*first, *other, *floor] if first else [*floor, *other]
    return list(dict.fromkeys(filter(None, ordered)))  # of a kernel view that failed, both say so


def noise_warning(run: PhaseRun) -> str:
    """Why the machine was too busy for these figures, and the remedy; empty for a record without noise."""
    checks = noisy_checks(run)
    if not checks:
        return ""
    remedies = dict.fromkeys(check.remedy for check in checks)
    return f"The machine was busy: {'; '.join(check.reason for check in checks)}. {' '.join(remedies)}"


# -- figures ------------------------------------------------------------------------------------------

#: The key figures, the four of a report's first screen first: label, name of the figure, and its note.
_METRICS = (
    ("generate()", "generate_ms", "{tokens}, {each_ms} each, prefill included"),
    ("Time to first token", "ttft_ms", "prepare + prefill"),
    ("Inter-token latency", "inter_token_ms", "median; p90 {inter_token_ms_p90}, p99 {inter_token_ms_p99}"),
    ("Tokens per second", "tokens_per_s", "mean: {rows} over the whole decode"),
    ("Peak memory", "peak_bytes", "in {peak_phase}"),
    ("Prefill", "prefill_ms", "{prefill_len} prompt tokens"),
    ("Vision share", "vision_share", "{vision_ms} of the prefill"),
    ("Decode", "decode_ms", "{steps}"),
    ("KV cache", "kv_cache_bytes", "{cache}"),
    ("Character error rate", "cer", "against the page's truth{cut}"),
    ("Agreement", "agreement", "with a reference run"),
)


def key_metrics(run: PhaseRun) -> list[tuple[str, str, str]]:
    """The known key figures as ``(label, value, note)``, the four of a report's first screen first."""
    words = _words(run)
    return [(label, words[name], note.format_map(words)) for label, name, note in _METRICS if words.get(name)]


def key_metrics_text(run: PhaseRun) -> str:
    """`key_metrics` as lines of a terminal."""
    metrics = key_metrics(run)
    widths = [max(len(figure[place]) for figure in metrics) for place in (0, 1)]
    return "\n".join(f"{label:{widths[0]}}  {value:>{widths[1]}}  {note}" for label, value, note in metrics)


def _words(run: PhaseRun) -> dict[str, str]:
    """What fills the notes of `_METRICS`; a figure that is unknown has no words."""
    figures, rows, each = run.summary() | _quality(run), len(run.results), run.cache.get("bytes_per_token")
    peaks = {phase: max(values) for phase, values in run.memory.get("peak_bytes", {}).items() if values}
    room = run.cache.get("allocated_bytes")
    known = {name: value for name, value in figures.items() if value is not None and name != "text"}
    words = {name: _figure_text(name, value) for name, value in known.items()}
    return words | {
        "tokens": count_text(figures["tokens"], "token"),
        "each_ms": ms_text((figures["generate_ms"] or 0.0) / figures["tokens"]),
        "rows": "tokens" if rows == 1 else f"{rows} rows together,",
        "peak_phase": max(peaks, key=lambda phase: peaks[phase], default=""),
        "decode_ms": words.get("decode_ms", "") if figures["decode_steps"] else "",
        "steps": count_text(figures["decode_steps"], "step"),
        "cache": (f"{bytes_text(each)} a token" if each else "at its largest")
        + (f"; static, room for {bytes_text(room)}" if room else ""),
        "cut": f"; cut at {count_text(figures['tokens'], 'token')}" if _is_cut(run) else "",
    }


def _figure_text(name: str, value: Any) -> str:
    """A figure of the summary in the unit that its name tells."""
    if "_ms" in name:
        return ms_text(value)
    if name.endswith("_bytes"):
        return bytes_text(value)
    if name == "tokens_per_s":
        return f"{value:,.1f}"
    return percent_text(value) if isinstance(value, float) else f"{value:,}"


def _quality(run: PhaseRun) -> dict[str, float]:
    """The error rate, else the agreement with a reference, where a truth is known."""
    if run.truths is None:
        return {}
    from ocr_phases.analyse.quality import quality_of  # most records need none of its libraries

    quality = quality_of(run)
    name = "cer" if "cer" in quality else "agreement"
    return {name: quality[name]} if quality else {}


# -- sentences ----------------------------------------------------------------------------------------


def kernel_account(run: PhaseRun) -> str:
    """What limits both phases by the kernel view; empty without one."""
    return " ".join(kernel_sentences(run, *_PHASES))


def floor_sentence(run: PhaseRun) -> str:
    """The decode step's distance from its floor; empty without a floor."""
    ceilings, table = ceilings_of(run), floor_table(run).dropna(subset=["times_floor"])
    steps = table[table["stage"] == "decode_step"]
    if ceilings is None or steps.empty:
        return ""
    row = steps.iloc[0]
    allows = "memory bandwidth" if row["bound_by"] == "bandwidth" else "arithmetic"
    source = "measured on this device" if ceilings.source == "measured" else f"from the {ceilings.name}"
    times = f"{times_text(row['times_floor'])} its floor of {ms_text(row['floor_ms'])}"
    return f"A decode step takes {ms_text(row['device_ms'])}, {times} by {allows} ({source})."


def uncertain_sentence(run: PhaseRun) -> str:
    """How many of the regions are uncertain, over all rows; empty for none."""
    tables = [regions_of(run, row)[["region", "uncertain"]] for row in range(len(run.results))]
    marked = pd.concat(tables).query(f"region != {PREAMBLE}")["uncertain"]
    count, limit = int(marked.sum()), percent_text(UNCERTAIN_BELOW)
    verb, whose = ("is", "its") if count == 1 else ("are", "their")
    why = f"{whose} text has a mean token probability below {limit}"
    return f"{count} of {len(marked)} regions {verb} uncertain: {why}." if count else ""


def typical_sentence(run: PhaseRun) -> str:
    """Which repeat a timeline shows; empty for a record of one repeat."""
    count = len(run.repeats)
    place = run.repeats.index(typical_repeat(run)) + 1
    return "" if count == 1 else f"This is repeat {place} of {count}, the most typical one."


def checks_verdict(checks: Sequence[Verdict]) -> str:
    """The result of all checks, in one or two sentences."""
    rules = [check for check in checks if check.name not in EXPECTATIONS]
    names = {verdict: [check.label for check in with_verdict(rules, verdict)] for verdict in VERDICTS}
    failed, noisy, notes = (", ".join(names[verdict]) for verdict in ("fail", "noisy", "note"))
    if failed:
        return f"Do not trust these times: {len(names['fail'])} of {len(rules)} checks failed ({failed})."
    sentence = f"Measured correctly, but on a busy machine ({noisy})" if noisy else "No check failed"
    sentence += f": {len(names['pass'])} of {len(rules)} passed"
    sentence += f", {len(names['n/a'])} had no data." if names["n/a"] else "."
    return f"{sentence} Worth a look: {notes}." if notes else sentence


def _phase_sentences(run: PhaseRun) -> list[str]:
    """Findings about prefill and decode: slow single steps, and drift over the run."""
    if _is_generate(run):
        return ["One-shot runs do not separate prefill and decode."]
    if not run["decode_steps"]:
        return ["The prefill gave the only token, so no decode step ran."]
    ratio = run["prefill_ms"] / run["inter_token_ms"]
    steps = digits_text(ratio) if ratio < 9.95 else format(ratio, ",.0f")
    sentences = [f"One prefill takes as long as {steps} decode steps."]
    table, trend = step_table(run), decode_trend(run)
    slow = table[table["outlier"]]
    for step, ms in slow.nlargest(1, "device_ms")[["step", "device_ms"]].itertuples(index=False, name=None):
        sentences.append(
            f"{count_text(len(slow), 'step')} took more than {OUTLIER_FACTOR} times the median; the "
            f"slowest is step {step} with a median of {ms_text(ms)}."
        )
    share, *ends = trend.shares if trend else (0.0, 0.0, 0.0)
    if ends[0] * ends[1] > 0 and abs(share) > _CLEAR_TREND:
        way = "slower" if share > 0 else "faster"
        sentences.append(f"Decode steps became {percent_text(abs(share))} {way} over the run.")
    return sentences


def _clock_sentences(run: PhaseRun) -> list[str]:
    """Whether host or device limits a phase, if their clocks clearly differ."""
    sentences = []
    for phase in _PHASES if run.device.get("kind") == "cuda" else ():
        device, host = (np.median(run.repeat_ms(phase, phase, clock)) for clock in ("device_ms", "host_ms"))
        ahead = "the host ran ahead, so the device sets the time"
        says = ahead if host < device else "the host was busy while the device was idle"
        if abs(host - device) > _CLEAR_GAP * device:
            times = f"{ms_text(host)} on the host's clock and {ms_text(device)} on the device's"
            sentences.append(f"The {phase} took {times}: {says}.")
    return sentences


def _caveats(run: PhaseRun) -> list[str]:
    request, totals, uncertain = run.request, end_to_end_ms(run), uncertain_sentence(run)
    limit, ignored = count_text(request["max_new_tokens"], "token"), bool(request.get("ignore_eos"))
    spread, many = f"{ms_text(totals.min())} to {ms_text(totals.max())}", len(totals) > 1
    vision = (run.model.get("vision_setup") or {}).get("compile_ms")
    once = {**(run.model.get("strategy_setup") or {}), "vision_compile_ms": vision}
    spent = [f"{text} {ms_text(once[name])}" for name, text in _ONCE.items() if once.get(name) is not None]
    caveats = {
        uncertain: bool(uncertain),
        "The end token was ignored, so the run made the requested number of tokens.": ignored,
        f"It stopped at the limit of {limit}, so the text may be incomplete.": _is_cut(run) and not ignored,
        "A single repeat shows no spread between runs.": not many,
        f"Times are medians of {len(totals)} repeats, which took {spread}.": many,
        "There was no warm-up, so these times include one-time set-up.": request["warmup"] == 0,
        f"Compile and capture time is not included: {', '.join(spent)}.": bool(spent),
    }
    return [sentence for sentence, holds in caveats.items() if holds]


def _larger_phase(run: PhaseRun) -> str:
    return "decode" if (run["decode_ms"] or 0.0) > (run["prefill_ms"] or 0.0) else "prefill"


def _is_generate(run: PhaseRun) -> bool:
    return run["prefill_ms"] is None


def _is_cut(run: PhaseRun) -> bool:
    return run.result.get("finish_reason") == "length"


def _pages_text(run: PhaseRun) -> str:
    rows = len(run.results)
    if rows > 1:
        return f"these {rows} rows"
    return "this page" if len(run.pages) == 1 else f"these {len(run.pages)} pages"
