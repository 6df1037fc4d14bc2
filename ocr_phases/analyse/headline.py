"""One record in sentences: the headline, and the paragraph that says what each phase cost."""

from __future__ import annotations

import math
from typing import Any

from ocr_phases.analyse.floors import floor_sentence, floor_table
from ocr_phases.analyse.kernels import kernel_sentence
from ocr_phases.analyse.noise import noise_warning
from ocr_phases.analyse.page_type import small_type_in
from ocr_phases.analyse.summary import OUTLIER_FACTOR, PHASES, repeat_table, step_table, vision_share
from ocr_phases.analyse.typical import typical_run, typical_sentence
from ocr_phases.record import PhaseRun
from ocr_phases.words import count_text, digits_text, ms_text, percent_text

# Clocks that differ by less say nothing about who waits for whom.
_CLEAR_GAP = 0.15
_TREND_STEPS = 40
_CLEAR_TREND = 0.10


def verdict(run: PhaseRun) -> str:
    """What this measurement says, as a short paragraph of plain text; first that it is not to be trusted.

    Nothing the model wrote is in it.
    """
    return " ".join(filter(None, [noise_warning(run), account(run)]))


def account(run: PhaseRun) -> str:
    """`verdict` for a place that has warned of noise already."""

    sentences = _generate_sentences(run) if _is_generate(run) else _phase_sentences(run)
    measured = [kernel_sentence(run, floor_table(run)), floor_sentence(run)]
    return " ".join(filter(None, [*sentences, *measured, *_caveats(run)]))


def headline(run: PhaseRun) -> str:
    """Where the time went, in one sentence: the larger of prefill and decode, and vision's part.

    Where the machine was too busy for these figures, a warning with its reasons comes first.
    """
    return " ".join(filter(None, [noise_warning(run), _where_time_went(run)]))


def _where_time_went(run: PhaseRun) -> str:
    figures = typical_run(run).summary()
    if _is_generate(run):
        return f"generate() read {_pages_text(run)} in {ms_text(figures['generate_ms'])}."
    prefill, decode = figures["prefill_ms"], figures["decode_ms"] or 0.0
    whole = figures["ttft_ms"] + decode
    name, part = ("Decode", decode) if decode > prefill else ("The prefill", prefill)
    verb = "took" if len(run.results) == 1 and len(run.pages) == 1 else "took together"
    sentence = (
        f"{name} is {percent_text(part / whole)} of the {ms_text(whole)} that {_pages_text(run)} {verb}"
    )
    share = vision_share(run)
    return f"{sentence}; vision is {percent_text(share)} of the prefill." if share else f"{sentence}."


def _is_generate(run: PhaseRun) -> bool:
    return not run.stage_ms("prefill", "prefill").size


def _generate_sentences(run: PhaseRun) -> list[str]:
    tokens = run.token_count
    whole = float(typical_run(run)["generate_ms"])
    each = f", {ms_text(whole / tokens)} a token with the prefill in it" if tokens else ""
    return [
        f"Reading {_pages_text(run)} through generate() took {ms_text(whole)} {_where(run)} "
        f"for {count_text(tokens, 'token')}{each}.",
        "This is the one-shot path: it does not tell prefill from decode.",
    ]


def _phase_sentences(run: PhaseRun) -> list[str]:
    figures = typical_run(run).summary()
    prefill_ms, decode_ms, steps = figures["prefill_ms"], figures["decode_ms"] or 0.0, figures["decode_steps"]
    whole = figures["ttft_ms"] + decode_ms
    prompt = f"{figures['prefill_len']:,} prompt tokens{_vision_clause(run, figures)}"
    sentences = [
        f"Reading {_pages_text(run)} took {ms_text(whole)} {_where(run)}: {ms_text(figures['prepare_ms'])} "
        f"to prepare, then a prefill of {ms_text(prefill_ms)} over {prompt}{_decode_clause(run, figures)}."
    ]
    if not steps:
        sentences.append("The only token came from the prefill, so there is no decode to speak of.")
        return [*sentences, *_clock_sentences(run), *_stage_coverage_sentence(figures)]
    ratio = prefill_ms / figures["inter_token_ms"]
    sentences.append(
        f"The first token was there after {ms_text(figures['ttft_ms'])}; one prefill costs as much as "
        f"{digits_text(ratio) if ratio < 9.95 else format(ratio, ',.0f')} decode steps, and decode takes "
        f"{percent_text(decode_ms / whole)} of the time."
    )
    return [
        *sentences,
        *_steps_sentences(run),
        *_clock_sentences(run),
        *_stage_coverage_sentence(figures),
    ]


def _vision_clause(run: PhaseRun, figures: dict[str, Any]) -> str:
    share = vision_share(run)
    if not share:
        return ""
    parts = [f"{stage.upper()} {ms_text(figures[f'{stage}_ms'])}" for stage in ("sam", "clip")]
    return f" ({percent_text(share)} of it vision: {', '.join(parts)})"


def _decode_clause(run: PhaseRun, figures: dict[str, Any]) -> str:
    steps = figures["decode_steps"]
    if not steps:
        return ""
    tail = f", p99 {ms_text(figures['inter_token_ms_p99'])}" if steps > 1 else ""
    rate = figures["tokens_per_s"]
    speed = f"; {digits_text(rate) if rate < 99.95 else format(rate, ',.0f')} tokens/s" if rate else ""
    each = "each " if steps > 1 else ""
    step = ms_text(figures["inter_token_ms"])
    return f", then {count_text(steps, 'decode step')} at {step} {each}(median{tail}{speed})"


def _steps_sentences(run: PhaseRun) -> list[str]:
    """What stands out along the decode: single slow steps, and a drift with the length."""
    table = step_table(run)
    sentences = []
    slow = table[table["outlier"]]
    if len(slow):
        worst = slow.nlargest(1, "device_ms").iloc[0]
        stand = "stands" if len(slow) == 1 else "stand"
        sentences.append(
            f"{count_text(len(slow), 'step')} {stand} out above {OUTLIER_FACTOR} times the median, the "
            f"slowest (step {worst['step']}) with {ms_text(worst['device_ms'])}."
        )
    quarter = len(table) // 4
    if len(table) >= _TREND_STEPS:
        start, end = table["device_ms"][:quarter].median(), table["device_ms"][-quarter:].median()
        change = end / start - 1.0
        if abs(change) > _CLEAR_TREND:
            moved = "slower" if change > 0 else "faster"
            sentences.append(
                f"The last quarter of the steps is {percent_text(abs(change))} {moved} than the first."
            )
    return sentences


def _clock_sentences(run: PhaseRun) -> list[str]:
    """Who waits for whom, where a device with a clock of its own clearly differs from the host."""
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
            sentences.append(
                f"The {phase} took {times}: the host ran ahead and the device is what takes the time."
            )
        elif host_ms > (1.0 + _CLEAR_GAP) * device_ms:
            sentences.append(
                f"The {phase} took {times}: the host was busy while the device had nothing to do."
            )
    return sentences


def _stage_coverage_sentence(figures: dict[str, Any]) -> list[str]:
    coverage = figures["stage_coverage"]
    if coverage is None or not math.isfinite(coverage):
        return []
    return [f"The stages account for {100 * coverage:.1f} % of the prefill."]


def text_doubt(run: PhaseRun) -> str:
    """A sentence or two where the text may be invented, because the page's type is too small; else empty."""
    reason = small_type_in(run)
    return f"Do not rely on the text, which may be invented. {reason}" if reason else ""


def _caveats(run: PhaseRun) -> list[str]:
    caveats = list(filter(None, [text_doubt(run)]))
    if run.request.get("ignore_eos"):
        caveats.append("The end token was ignored, so the number of tokens is the one that was asked for.")
    elif run.result.get("finish_reason") == "length":
        limit = run.request.get("max_new_tokens", run.token_count)
        caveats.append(
            f"It stopped at the limit of {count_text(limit, 'token')}, so the text may be cut short."
        )
    if len(run.repeats) == 1:
        caveats.append("This was a single repeat, so nothing is known about the spread between runs.")
    else:
        table = repeat_table(run)
        totals = table[[f"{phase}_ms" for phase in PHASES]].sum(axis=1)
        caveats.append(
            f"{typical_sentence(run)} The repeats took {ms_text(totals.min())} to {ms_text(totals.max())}."
        )
    if run.request.get("warmup") == 0:
        caveats.append("Nothing was warmed up, so these times contain what only a first run pays.")
    step, vision = run.model.get("strategy_setup") or {}, run.model.get("vision_setup") or {}
    once = {
        "compiling the decode step": step.get("compile_ms"),
        "capturing it": step.get("capture_ms"),
        "compiling the vision encoders": vision.get("compile_ms"),
    }
    spent = [f"{name} {ms_text(ms)}" for name, ms in once.items() if ms is not None]
    if spent:
        caveats.append(f"Not in these times is what was set up once before: {', '.join(spent)}.")
    return caveats


def _pages_text(run: PhaseRun) -> str:
    rows = len(run.results)
    if rows > 1:
        return f"a batch of {rows} rows"
    return "this page" if len(run.pages) == 1 else f"these {len(run.pages)} pages"


def _where(run: PhaseRun) -> str:
    details = [run.model.get("dtype"), run.model["strategy"]]
    named = ", ".join(str(detail) for detail in details if detail)
    return f"on {run.device.get('name') or 'an unnamed device'}{f' ({named})' if named else ''}"
