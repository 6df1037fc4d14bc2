"""One record in words: headline, key figures, what limits it, findings, noise and checks.

Plain text, without any text of the model. Times are those of `PhaseRun.summary`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from ocr_phases.analyse.checks import EXPECTATIONS, Verdict, noisy_checks, with_verdict
from ocr_phases.analyse.floors import ceilings_of, floor_table, times_text
from ocr_phases.analyse.kernels import kernel_clauses
from ocr_phases.analyse.stages import (
    OUTLIER_FACTOR,
    UNCERTAIN_BELOW,
    decode_trend,
    end_to_end_ms,
    region_probabilities,
    step_table,
    typical_repeat,
)
from ocr_phases.record import PhaseRun
from ocr_phases.text import bytes_text, count_text, digits_text, ms_text, percent_text

UNCERTAIN_TEXT = f"uncertain: mean token probability below {percent_text(UNCERTAIN_BELOW)}"

# A smaller difference between the clocks does not show which side waits.
_CLEAR_GAP = 0.15
_CLEAR_TREND = 0.10


def subject(run: PhaseRun) -> str:
    """Model, device, dtype, strategy and date in one line."""
    how = ", ".join(str(run.model[name]) for name in ("dtype", "strategy") if run.model.get(name))
    taken = str(run.created).replace("T", " ").replace("+00:00", " UTC").replace("Z", " UTC")
    model, device = run.model.get("name") or "unknown model", run.device.get("name") or "unknown device"
    return " · ".join(filter(None, (str(model), str(device), how, taken)))


def headline(run: PhaseRun) -> str:
    """Where the time went: the larger of prefill and decode, and the vision stages' share of the prefill."""
    if _is_generate(run):
        return f"generate() read {_pages_text(run)} in {ms_text(run['generate_ms'])}."
    total, larger = run["page_ms"], _larger_phase(run)
    name = "Decode" if larger == "decode" else "The prefill"
    verb = "took" if len(run.results) == 1 and len(run.pages) == 1 else "took together"
    share = run["vision_share"]
    vision = f"; vision is {percent_text(share)} of the prefill" if share else ""
    share_of = f"{percent_text(run[f'{larger}_ms'] / total)} of the {ms_text(total)}"
    return f"{name} is {share_of} that {_pages_text(run)} {verb}{vision}."


def verdict(run: PhaseRun) -> str:
    """The result as a short paragraph: `headline` and `account`."""
    return f"{headline(run)} {account(run)}"


def account(run: PhaseRun) -> str:
    """What stands behind the headline: `limit_sentence`, `noise_warning` and `findings`."""
    return " ".join(filter(None, [limit_sentence(run), noise_warning(run), *findings(run)]))


def limit_sentence(run: PhaseRun) -> str:
    """What limits the larger phase, in one sentence: from the kernel view, else from the floors."""
    return next(iter(_limits(run)), "")


def findings(run: PhaseRun) -> list[str]:
    """What else is worth knowing, a sentence each: the other phase's limit and the floor's distance first."""
    return [each for each in [*_limits(run)[1:], *_phase_sentences(run), *_caveats(run)] if each]


def _limits(run: PhaseRun) -> list[str]:
    """What limits the times, a sentence each, of the larger phase first."""
    larger = _larger_phase(run)
    first = kernel_sentence(run, larger)
    other = kernel_sentence(run, "prefill" if larger == "decode" else "decode")
    floor = floor_sentence(run)
    ordered = [first, other, floor] if first else [floor, other]
    return list(dict.fromkeys(filter(None, ordered)))  # of a kernel view that failed, both say so


def noise_warning(run: PhaseRun) -> str:
    """Why the machine was too busy for these figures, and the remedy; empty for a record without noise."""
    checks = noisy_checks(run)
    if not checks:
        return ""
    remedies = dict.fromkeys(check.remedy for check in checks)
    return f"The machine was busy: {'; '.join(check.reason for check in checks)}. {' '.join(remedies)}"


# -- figures ------------------------------------------------------------------------------------------


def key_metrics(run: PhaseRun) -> list[tuple[str, str, str]]:
    """The key figures as ``(label, value, note)``, the four of a report's first screen first."""
    memory = _memory_metrics(run)
    timed = _generate_metrics(run) if _is_generate(run) else _phase_metrics(run)
    return [*timed[:3], *memory[:1], *timed[3:], *memory[1:], *_quality_metrics(run)]


def key_metrics_text(run: PhaseRun) -> str:
    """`key_metrics` as lines of a terminal."""
    metrics = key_metrics(run)
    widths = [max(len(figure[place]) for figure in metrics) for place in (0, 1)]
    return "\n".join(f"{label:{widths[0]}}  {value:>{widths[1]}}  {note}" for label, value, note in metrics)


def _generate_metrics(run: PhaseRun) -> list[tuple[str, str, str]]:
    total, tokens = run["generate_ms"], run["tokens"]
    each = f", {ms_text(total / tokens)} each, prefill included" if tokens else ""
    return [("generate()", ms_text(total), f"{count_text(tokens, 'token')}{each}")]


def _phase_metrics(run: PhaseRun) -> list[tuple[str, str, str]]:
    first = ("Time to first token", ms_text(run["ttft_ms"]), "prepare + prefill")
    prefill = [
        ("Prefill", ms_text(run["prefill_ms"]), f"{run['prefill_len']:,} prompt tokens"),
        ("Vision share", percent_text(run["vision_share"]), f"{ms_text(run['vision_ms'])} of the prefill"),
    ]
    steps, rate, rows = run["decode_steps"], run["tokens_per_s"], len(run.results)
    if not steps:
        return [first, *prefill]
    tail = f"p90 {ms_text(run['inter_token_ms_p90'])}, p99 {ms_text(run['inter_token_ms_p99'])}"
    speed = "n/a" if rate is None else f"{rate:,.1f}"
    whole = "tokens over the whole decode" if rows == 1 else f"{rows} rows together, over the whole decode"
    return [
        first,
        ("Inter-token latency", ms_text(run["inter_token_ms"]), f"median; {tail}"),
        ("Tokens per second", speed, f"mean: {whole}"),
        *prefill,
        ("Decode", ms_text(run["decode_ms"]), count_text(steps, "step")),
    ]


def _memory_metrics(run: PhaseRun) -> list[tuple[str, str, str]]:
    peaks = {phase: max(values) for phase, values in run.memory.get("peak_bytes", {}).items() if values}
    metrics = []
    if peaks:
        highest = max(peaks, key=lambda phase: peaks[phase])
        metrics.append(("Peak memory", bytes_text(peaks[highest]), f"in {highest}"))
    if run["kv_cache_bytes"]:
        each = run.cache.get("bytes_per_token")
        note = f"{bytes_text(each)} a token" if each else "at its largest"
        if run.cache.get("allocated_bytes"):
            note += f"; static, room for {bytes_text(run.cache['allocated_bytes'])}"
        metrics.append(("KV cache", bytes_text(run["kv_cache_bytes"]), note))
    return metrics


def _quality_metrics(run: PhaseRun) -> list[tuple[str, str, str]]:
    if run.truths is None:
        return []
    from ocr_phases.analyse.quality import quality_of  # most records need none of its libraries

    quality = quality_of(run)
    if "cer" in quality:
        cut = f"; cut at {count_text(run['tokens'], 'token')}" if _is_cut(run) else ""
        return [("Character error rate", percent_text(quality["cer"]), f"against the page's truth{cut}")]
    return [("Agreement", percent_text(quality["agreement"]), "with a reference run")] if quality else []


# -- sentences ----------------------------------------------------------------------------------------


def kernel_sentence(run: PhaseRun, phase: str) -> str:
    """What limits ``prefill`` or ``decode`` by the kernel view; empty without one."""
    if run.kernels is None:
        return ""
    if "error" in run.kernels:
        return f"The kernel view failed: {str(run.kernels['error']).rstrip('.')}."
    text = "; ".join(kernel_clauses(run, phase))
    return f"{text[:1].upper()}{text[1:]}." if text else ""


def kernel_account(run: PhaseRun) -> str:
    """What limits both phases by the kernel view; empty without one."""
    return " ".join(
        dict.fromkeys(filter(None, (kernel_sentence(run, phase) for phase in ("prefill", "decode"))))
    )


def floor_sentence(run: PhaseRun) -> str:
    """The decode step's distance from its floor; empty without a floor."""
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


def uncertain_sentence(run: PhaseRun) -> str:
    """How many of the regions are uncertain, over all rows; empty for none."""
    marked = pd.concat([region_probabilities(run, row)["uncertain"] for row in range(len(run.results))])
    count = int(marked.sum())
    if not count:
        return ""
    verb, whose = ("is", "its") if count == 1 else ("are", "their")
    return (
        f"{count} of {len(marked)} regions {verb} uncertain: {whose} text has a mean token probability "
        f"below {percent_text(UNCERTAIN_BELOW)}."
    )


def typical_sentence(run: PhaseRun) -> str:
    """Which repeat a timeline shows; empty for a record of one repeat."""
    count = len(run.repeats)
    place = run.repeats.index(typical_repeat(run)) + 1
    return "" if count == 1 else f"This is repeat {place} of {count}, the most typical one."


def checks_verdict(checks: Sequence[Verdict]) -> str:
    """The result of all checks, in one or two sentences."""
    rules = [check for check in checks if check.name not in EXPECTATIONS]
    names = {
        verdict: ", ".join(check.label for check in with_verdict(rules, verdict))
        for verdict in ("fail", "noisy", "note")
    }
    passed, silent = (len(with_verdict(rules, verdict)) for verdict in ("pass", "n/a"))
    if names["fail"]:
        broken = len(with_verdict(checks, "fail"))
        return f"Do not trust these times: {broken} of {len(rules)} checks failed ({names['fail']})."
    sentence = f"No check failed: {passed} of {len(rules)} passed"
    if names["noisy"]:
        busy = f"Measured correctly, but on a busy machine ({names['noisy']})"
        sentence = f"{busy}: {passed} of {len(rules)} passed"
    sentence += f", {silent} had no data." if silent else "."
    return f"{sentence} Worth a look: {names['note']}." if names["note"] else sentence


def _phase_sentences(run: PhaseRun) -> list[str]:
    """Findings about prefill and decode."""
    if _is_generate(run):
        return ["One-shot runs do not separate prefill and decode."]
    if not run["decode_steps"]:
        return ["The prefill gave the only token, so no decode step ran.", *_clock_sentences(run)]
    ratio = run["prefill_ms"] / run["inter_token_ms"]
    steps = digits_text(ratio) if ratio < 9.95 else format(ratio, ",.0f")
    return [
        f"One prefill takes as long as {steps} decode steps.",
        *_steps_sentences(run),
        *_clock_sentences(run),
    ]


def _steps_sentences(run: PhaseRun) -> list[str]:
    """Findings about decode: slow single steps, and drift over the run."""
    table = step_table(run)
    sentences = []
    slow = table[table["outlier"]]
    if len(slow):
        worst = slow.nlargest(1, "device_ms").iloc[0]
        sentences.append(
            f"{count_text(len(slow), 'step')} took more than {OUTLIER_FACTOR} times the median; the "
            f"slowest is step {worst['step']} with a median of {ms_text(worst['device_ms'])}."
        )
    trend = decode_trend(run)
    if trend is not None and trend.interval[0] * trend.interval[1] > 0:
        share = trend.shares[0]
        if abs(share) > _CLEAR_TREND:
            way = "slower" if share > 0 else "faster"
            sentences.append(f"Decode steps became {percent_text(abs(share))} {way} over the run.")
    return sentences


def _clock_sentences(run: PhaseRun) -> list[str]:
    """Whether host or device limits a phase, if their clocks clearly differ."""
    if run.device.get("kind") != "cuda":
        return []
    sentences = []
    for phase in ("prefill", "decode"):
        device_ms, host_ms = (
            float(np.median(run.repeat_ms(phase, phase, clock))) for clock in ("device_ms", "host_ms")
        )
        if not device_ms:
            continue
        times = f"{ms_text(host_ms)} on the host's clock and {ms_text(device_ms)} on the device's"
        if host_ms < (1.0 - _CLEAR_GAP) * device_ms:
            sentences.append(f"The {phase} took {times}: the host ran ahead, so the device sets the time.")
        elif host_ms > (1.0 + _CLEAR_GAP) * device_ms:
            sentences.append(f"The {phase} took {times}: the host was busy while the device was idle.")
    return sentences


def _caveats(run: PhaseRun) -> list[str]:
    caveats = [uncertain_sentence(run)]
    if run.request.get("ignore_eos"):
        caveats.append("The end token was ignored, so the run made the requested number of tokens.")
    elif _is_cut(run):
        limit = count_text(run.request.get("max_new_tokens", run.token_count), "token")
        caveats.append(f"It stopped at the limit of {limit}, so the text may be incomplete.")
    totals = end_to_end_ms(run)
    if len(totals) == 1:
        caveats.append("A single repeat shows no spread between runs.")
    else:
        low, high = ms_text(totals.min()), ms_text(totals.max())
        caveats.append(f"Times are medians of {len(totals)} repeats, which took {low} to {high}.")
    if run.request.get("warmup") == 0:
        caveats.append("There was no warm-up, so these times include one-time set-up.")
    step, vision = run.model.get("strategy_setup") or {}, run.model.get("vision_setup") or {}
    once = {
        "compiling the decode step": step.get("compile_ms"),
        "capturing it": step.get("capture_ms"),
        "capturing the prefill": step.get("prefill_capture_ms"),
        "compiling the vision encoders": vision.get("compile_ms"),
    }
    spent = [f"{name} {ms_text(ms)}" for name, ms in once.items() if ms is not None]
    if spent:
        caveats.append(f"Compile and capture time is not included: {', '.join(spent)}.")
    return caveats


def _larger_phase(run: PhaseRun) -> str:
    return "decode" if (run["decode_ms"] or 0.0) > (run["prefill_ms"] or 0.0) else "prefill"


def _is_generate(run: PhaseRun) -> bool:
    return not run.stage_ms("prefill", "prefill").size


def _is_cut(run: PhaseRun) -> bool:
    return run.result.get("finish_reason") == "length"


def _pages_text(run: PhaseRun) -> str:
    rows = len(run.results)
    if rows > 1:
        return f"a batch of {rows} rows"
    return "this page" if len(run.pages) == 1 else f"these {len(run.pages)} pages"
