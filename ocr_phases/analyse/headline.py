"""One record in words: headline, key figures and findings."""

from __future__ import annotations

from typing import Any

from ocr_phases.analyse.floors import floor_sentence
from ocr_phases.analyse.kernels import kernel_sentence
from ocr_phases.analyse.noise import noise_warning
from ocr_phases.analyse.probabilities import uncertain_sentence
from ocr_phases.analyse.steps import decode_trend
from ocr_phases.analyse.summary import OUTLIER_FACTOR, PHASES, repeat_table, step_table, vision_share
from ocr_phases.analyse.typical import typical_run, typical_sentence
from ocr_phases.record import PhaseRun
from ocr_phases.text import bytes_text, count_text, digits_text, ms_text, percent_text

# A smaller difference between the clocks does not show which side waits.
_CLEAR_GAP = 0.15
_CLEAR_TREND = 0.10


def verdict(run: PhaseRun) -> str:
    """The result as a short paragraph of plain text: `headline` and `account`.

    It contains no text of the model.
    """
    return " ".join(filter(None, [headline(run), account(run)]))


def account(run: PhaseRun) -> str:
    """Findings beside the key figures, what limits the times, and caveats."""
    found = _phase_sentences(run)
    measured = [kernel_sentence(run), floor_sentence(run)]
    return " ".join(filter(None, [*found, *measured, *_caveats(run)]))


def subject(run: PhaseRun) -> str:
    """Model, device, dtype, strategy and date in one line."""
    how = ", ".join(str(run.model[name]) for name in ("dtype", "strategy") if run.model.get(name))
    taken = str(run.created).replace("T", " ").replace("+00:00", " UTC").replace("Z", " UTC")
    model, device = run.model.get("name") or "unknown model", run.device.get("name") or "unknown device"
    return " · ".join(filter(None, (str(model), str(device), how, taken)))


def key_metrics(run: PhaseRun) -> list[tuple[str, str, str]]:
    """The typical repeat's key figures as ``(label, value, note)``."""
    metrics = typical_run(run).summary()
    shown = _generate_metrics(metrics) if _is_generate(run) else _phase_metrics(run, metrics)
    peaks = {phase: max(values) for phase, values in run.memory.get("peak_bytes", {}).items() if values}
    if peaks:
        highest = max(peaks, key=lambda phase: peaks[phase])
        shown.append(("Peak memory", bytes_text(peaks[highest]), f"in {highest}"))
    if metrics["kv_cache_bytes"]:
        each = run.cache.get("bytes_per_token")
        note = f"{bytes_text(each)} a token" if each else "at its largest"
        if run.cache.get("allocated_bytes"):
            note += f"; static, room for {bytes_text(run.cache['allocated_bytes'])}"
        shown.append(("KV cache", bytes_text(metrics["kv_cache_bytes"]), note))
    return shown + _quality_metrics(run)


def _quality_metrics(run: PhaseRun) -> list[tuple[str, str, str]]:
    if run.truths is None:
        return []
    from ocr_phases.analyse.quality import quality_of  # most records need none of its libraries

    found = quality_of(run)
    if "cer" in found:
        return [("Character error rate", percent_text(found["cer"]), "against the truth of the page")]
    return [("Agreement", percent_text(found["agreement"]), "with a reference run")] if found else []


def key_metrics_text(run: PhaseRun) -> str:
    """`key_metrics` as lines of a terminal."""
    shown = key_metrics(run)
    widths = [max(len(figure[place]) for figure in shown) for place in (0, 1)]
    return "\n".join(f"{label:{widths[0]}}  {value:>{widths[1]}}  {note}" for label, value, note in shown)


def _generate_metrics(metrics: dict[str, Any]) -> list[tuple[str, str, str]]:
    total, tokens = metrics["generate_ms"], metrics["tokens"]
    each = f", {ms_text(total / tokens)} each, prefill included" if tokens else ""
    return [("generate()", ms_text(total), f"{count_text(tokens, 'token')}{each}")]


def _phase_metrics(run: PhaseRun, metrics: dict[str, Any]) -> list[tuple[str, str, str]]:
    share = vision_share(run)
    shown = [
        ("Time to first token", ms_text(metrics["ttft_ms"]), "prepare + prefill"),
        ("Prefill", ms_text(metrics["prefill_ms"]), f"{metrics['prefill_len']:,} prompt tokens"),
        ("Vision share", percent_text(share), f"{ms_text(metrics['vision_ms'])} of the prefill"),
    ]
    steps, rate, rows = metrics["decode_steps"], metrics["tokens_per_s"], len(run.results)
    if steps:
        tail = f"p90 {ms_text(metrics['inter_token_ms_p90'])}, p99 {ms_text(metrics['inter_token_ms_p99'])}"
        speed = "n/a" if rate is None else f"{rate:,.1f}"
        shown += [
            ("Inter-token latency", ms_text(metrics["inter_token_ms"]), f"median; {tail}"),
            ("Tokens per second", speed, "decode only" if rows == 1 else f"decode, {rows} rows together"),
            ("Decode", ms_text(metrics["decode_ms"]), count_text(steps, "step")),
        ]
    return shown


def headline(run: PhaseRun) -> str:
    """Where the time went, in one sentence: the larger of prefill and decode, and the share of vision.

    A noise warning comes first.
    """
    return " ".join(filter(None, [noise_warning(run), _where_time_went(run)]))


def _where_time_went(run: PhaseRun) -> str:
    metrics = typical_run(run).summary()
    if _is_generate(run):
        return f"generate() read {_pages_text(run)} in {ms_text(metrics['generate_ms'])}."
    prefill, decode = metrics["prefill_ms"], metrics["decode_ms"] or 0.0
    total = metrics["ttft_ms"] + decode
    name, part = ("Decode", decode) if decode > prefill else ("The prefill", prefill)
    verb = "took" if len(run.results) == 1 and len(run.pages) == 1 else "took together"
    sentence = (
        f"{name} is {percent_text(part / total)} of the {ms_text(total)} that {_pages_text(run)} {verb}"
    )
    share = vision_share(run)
    return f"{sentence}; vision is {percent_text(share)} of the prefill." if share else f"{sentence}."


def _is_generate(run: PhaseRun) -> bool:
    return not run.stage_ms("prefill", "prefill").size


def _phase_sentences(run: PhaseRun) -> list[str]:
    """Findings about prefill and decode."""
    if _is_generate(run):
        return ["One-shot runs do not separate prefill and decode."]
    metrics = typical_run(run).summary()
    if not metrics["decode_steps"]:
        return [
            "The prefill gave the only token, so no decode step ran.",
            *_clock_sentences(run),
        ]
    ratio = metrics["prefill_ms"] / metrics["inter_token_ms"]
    steps = digits_text(ratio) if ratio < 9.95 else format(ratio, ",.0f")
    return [
        f"One prefill takes as long as {steps} decode steps.",
        *_steps_sentences(run),
        *_clock_sentences(run),
    ]


def _steps_sentences(run: PhaseRun) -> list[str]:
    """Findings about decode: slow single steps, and drift with the cache length."""
    table = step_table(run)
    sentences = []
    slow = table[table["outlier"]]
    if len(slow):
        worst = slow.nlargest(1, "device_ms").iloc[0]
        takes = "takes" if len(slow) == 1 else "take"
        sentences.append(
            f"{count_text(len(slow), 'step')} {takes} more than {OUTLIER_FACTOR} times the median; the "
            f"slowest is step {worst['step']} with {ms_text(worst['device_ms'])}."
        )
    trend = decode_trend(run)
    if trend is not None and abs(trend.share) > _CLEAR_TREND and trend.interval[0] * trend.interval[1] > 0:
        sentences.append(f"Step time changes with the cache length: {trend.text}.")
    return sentences


def _clock_sentences(run: PhaseRun) -> list[str]:
    """Whether host or device limits a phase, if their clocks clearly differ."""
    if run.device.get("kind") != "cuda":
        return []
    sentences = []
    shown = typical_run(run)
    for phase in ("prefill", "decode"):
        device_ms, host_ms = (
            float(shown.repeat_ms(phase, phase, clock)[0]) for clock in ("device_ms", "host_ms")
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
    caveats = list(filter(None, [uncertain_sentence(run)]))
    if run.request.get("ignore_eos"):
        caveats.append("The end token was ignored, so the run made the requested number of tokens.")
    elif run.result.get("finish_reason") == "length":
        limit = run.request.get("max_new_tokens", run.token_count)
        caveats.append(
            f"It stopped at the limit of {count_text(limit, 'token')}, so the text may be incomplete."
        )
    if len(run.repeats) == 1:
        caveats.append("A single repeat shows no spread between runs.")
    else:
        table = repeat_table(run)
        totals = table[[f"{phase}_ms" for phase in PHASES]].sum(axis=1)
        caveats.append(
            f"{typical_sentence(run)} The repeats took {ms_text(totals.min())} to {ms_text(totals.max())}."
        )
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


def _pages_text(run: PhaseRun) -> str:
    rows = len(run.results)
    if rows > 1:
        return f"a batch of {rows} rows"
    return "this page" if len(run.pages) == 1 else f"these {len(run.pages)} pages"
