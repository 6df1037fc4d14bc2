"""One record as tables and as a paragraph: what each phase, stage and decode step cost.

Everything here copes with every shape of record: without crops, without decode steps, of one repeat, of a
batch, or of a one-shot ``generate`` run that has no phases to tell apart.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable
from typing import Any

import numpy as np
import pandas as pd

from ocr_phases.analyse.typical import typical_run, typical_sentence
from ocr_phases.record import VISION_STAGES, PhaseRun

PHASES = ("prepare", "prefill", "decode", "generate")

#: A step is an outlier above the median by this many median absolute deviations and by this factor.
OUTLIER_DEVIATIONS = 5.0
OUTLIER_FACTOR = 1.5

STAGE_KEYS = ("phase", "stage", "view")
STAGE_COLUMNS = (
    *STAGE_KEYS,
    "calls",
    "device_ms",
    "device_ms_p10",
    "device_ms_p90",
    "host_ms",
    "share",
)
REPEAT_COLUMNS = (
    "repeat",
    "prepare_ms",
    "prefill_ms",
    "ttft_ms",
    "decode_ms",
    "generate_ms",
    "steps",
    "tokens_per_s",
)
STEP_COLUMNS = (
    "step",
    "index",
    "text",
    "cache_len",
    "device_ms",
    "device_ms_p10",
    "device_ms_p90",
    "host_ms",
    "outlier",
)

_STAGE_NAMES = {
    "load_image": "load image",
    "sam": "SAM",
    "clip": "CLIP",
    "vision_fusion": "fusion",
    "decoder": "language model",
    "lm_head": "LM head",
}

# Clocks that differ by less say nothing about who waits for whom.
_CLEAR_GAP = 0.15
_TREND_STEPS = 40
_CLEAR_TREND = 0.10


def ms_text(ms: float | None) -> str:
    """Milliseconds with three digits and a fitting unit (``"4.02 ms"``, ``"1.25 s"``); ``"n/a"`` for none."""
    if ms is None or not math.isfinite(ms):
        return "n/a"
    # The limits lie where rounding to three digits would show four.
    if abs(ms) >= 999.5:
        seconds = ms / 1000.0
        return f"{seconds:,.0f} s" if abs(seconds) >= 99.95 else f"{_digits(seconds)} s"
    return f"{_digits(ms)} ms"


def bytes_text(count: float | None) -> str:
    """Bytes in decimal units with three digits (``"1.90 GB"``); ``"n/a"`` for none."""
    if count is None or not math.isfinite(count):
        return "n/a"
    value = float(count)
    for unit in ("B", "kB", "MB"):
        if value < 999.5:
            return f"{value:.0f} B" if unit == "B" else f"{_digits(value)} {unit}"
        value /= 1000.0
    return f"{_digits(value)} GB"


def percent_text(share: float | None) -> str:
    """A share of one as per cent (``"62 %"``, ``"0.4 %"``); ``"n/a"`` for none."""
    if share is None or not math.isfinite(share):
        return "n/a"
    value = share * 100.0
    return f"{value:.1f} %" if 0 < abs(value) < 9.95 else f"{value:.0f} %"


def stage_name(stage: str) -> str:
    """What a stage is called in a picture or a table."""
    return _STAGE_NAMES.get(stage, stage.replace("_", " "))


def stage_ms(run: PhaseRun, steps: Collection[int] | None = None) -> dict[Hashable, float]:
    """Time of each stage in the typical repeat on the device clock in ms, by phase, stage and view.

    The sum over its calls; of decode's stages the median over its steps, or over ``steps`` of them. The loop
    around the steps has none.
    """
    spans = typical_run(run).spans
    decode = spans[(spans["phase"] == "decode") & spans["step"].notna()]
    if steps is not None:
        decode = decode[decode["step"].isin(steps)]
    each_step = decode.groupby([*STAGE_KEYS])["device_ms"].median()
    sums = spans[spans["phase"] != "decode"].groupby([*STAGE_KEYS])["device_ms"].sum()
    return {**sums.to_dict(), **each_step.to_dict()}


def stage_table(run: PhaseRun) -> pd.DataFrame:
    """One row a phase, stage and view, columns `STAGE_COLUMNS`; a phase's whole comes first.

    Times are ms. ``device_ms`` and ``host_ms`` are sums over the ``calls`` of the typical repeat
    (`ocr_phases.analyse.typical`), so that stages add up to their phase; ``device_ms_p10`` and ``_p90`` are
    over all repeats. ``share`` is what ``device_ms`` is of the phase's own. In decode ``decoder``,
    ``lm_head`` and ``sampling`` lie inside ``decode_step``.
    """
    rows = []
    sums, shown = _repeat_sums(run), typical_run(run)
    wholes = {phase: float(shown.repeat_ms(phase, phase)[0]) for phase in PHASES}
    for key, spans in shown.spans.groupby([*STAGE_KEYS], sort=False):
        phase, stage, view = map(str, key)
        low, high = np.quantile(sums.loc[(phase, stage, view), :].to_numpy(dtype=np.float64), (0.1, 0.9))
        ms, host = (float(spans[clock].sum()) for clock in ("device_ms", "host_ms"))
        share = ms / wholes[phase] if wholes[phase] else math.nan
        row = (phase, stage, view, len(spans), ms, float(low), float(high), host, share)
        rows.append(((PHASES.index(phase), stage != phase, spans["host_start_ms"].min(), -ms), row))
    rows.sort(key=lambda row: row[0])
    return pd.DataFrame([row for _, row in rows], columns=list(STAGE_COLUMNS))


def repeat_table(run: PhaseRun) -> pd.DataFrame:
    """One row a repeat, columns `REPEAT_COLUMNS`, times in ms on the device clock; NaN for a phase it lacks.

    ``ttft_ms`` is prepare plus prefill, ``steps`` the decode steps, ``tokens_per_s``
    `PhaseRun.decoded_tokens` over the whole decode phase.
    """
    table = pd.DataFrame({"repeat": run.repeats})
    for phase in PHASES:
        whole = run.repeat_ms(phase, phase)
        table[f"{phase}_ms"] = np.where(whole > 0, whole, math.nan)
    steps = run.spans[run.spans["stage"] == "decode_step"].groupby("repeat").size()
    table["steps"] = table["repeat"].map(steps).fillna(0).astype("int64")
    table["ttft_ms"] = table["prepare_ms"].fillna(0.0) + table["prefill_ms"]
    rate = run.decoded_tokens / table["decode_ms"] * 1000.0
    table["tokens_per_s"] = rate.where(table["steps"] > 0)
    return table[list(REPEAT_COLUMNS)]


def step_table(run: PhaseRun) -> pd.DataFrame:
    """One row a decode step, columns `STEP_COLUMNS`; ms are medians over repeats (p10 and p90 beside them).

    ``index`` and ``text`` are of the first row's token that the step made (missing for steps past its end),
    ``cache_len`` is the length the step leaves. ``outlier`` marks steps above both `OUTLIER_FACTOR` times
    the median step and the median plus `OUTLIER_DEVIATIONS` median absolute deviations.
    """
    spans = run.spans[run.spans["stage"] == "decode_step"]
    grouped = spans.groupby("step")
    table = pd.DataFrame(
        {
            "device_ms": grouped["device_ms"].median(),
            "device_ms_p10": grouped["device_ms"].quantile(0.1),
            "device_ms_p90": grouped["device_ms"].quantile(0.9),
            "host_ms": grouped["host_ms"].median(),
        }
    ).reset_index()
    tokens = run.token_table[["step", "index", "text"]].dropna(subset=["step"])
    table = table.merge(tokens, on="step", how="left").astype({"index": "Int64", "step": "int64"})
    lengths = run.cache.get("lengths") or []
    # After the prefill the cache holds lengths[0]; step s leaves lengths[s + 1].
    known = [lengths[step + 1] if step + 1 < len(lengths) else pd.NA for step in table["step"]]
    table["cache_len"] = pd.array(known, dtype="Int64")
    times = table["device_ms"]
    middle = times.median()
    limit = middle + OUTLIER_DEVIATIONS * (times - middle).abs().median()
    table["outlier"] = (times > limit) & (times > OUTLIER_FACTOR * middle)
    return table[list(STEP_COLUMNS)]


def vision_share(run: PhaseRun) -> float | None:
    """SAM, CLIP and projector as a part of the prefill, in the typical repeat; None without a prefill."""
    shown = typical_run(run)
    whole = float(shown.repeat_ms("prefill", "prefill")[0])
    return (
        sum(float(shown.repeat_ms(stage, "prefill")[0]) for stage in VISION_STAGES) / whole if whole else None
    )


def verdict(run: PhaseRun) -> str:
    """What this measurement says, as a short paragraph of plain text; first that it is not to be trusted.

    Nothing the model wrote is in it.
    """
    return " ".join(filter(None, [_warning(run), account(run)]))


def account(run: PhaseRun) -> str:
    """`verdict` for a place that has warned of noise already."""
    from ocr_phases.analyse.floors import floor_sentence, floor_table  # which read this module's tables
    from ocr_phases.analyse.kernels import kernel_sentence

    sentences = _generate_sentences(run) if _is_generate(run) else _phase_sentences(run)
    measured = [kernel_sentence(run, floor_table(run)), floor_sentence(run)]
    return " ".join(filter(None, [*sentences, *measured, *_caveats(run)]))


def headline(run: PhaseRun) -> str:
    """Where the time went, in one sentence: the larger of prefill and decode, and vision's part.

    Where the machine was too busy for these figures, a warning with its reasons comes first.
    """
    return " ".join(filter(None, [_warning(run), _where_time_went(run)]))


def _warning(run: PhaseRun) -> str:
    from ocr_phases.analyse.noise import noise_warning  # which reads this module's tables

    return noise_warning(run)


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
        f"for {_count(tokens, 'token')}{each}.",
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
        return [*sentences, *_clock_sentences(run), *_closure_sentence(figures)]
    ratio = prefill_ms / figures["inter_token_ms"]
    sentences.append(
        f"The first token was there after {ms_text(figures['ttft_ms'])}; one prefill costs as much as "
        f"{_digits(ratio) if ratio < 9.95 else format(ratio, ',.0f')} decode steps, and decode takes "
        f"{percent_text(decode_ms / whole)} of the time."
    )
    return [
        *sentences,
        *_steps_sentences(run),
        *_clock_sentences(run),
        *_closure_sentence(figures),
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
    speed = f"; {_digits(rate) if rate < 99.95 else format(rate, ',.0f')} tokens/s" if rate else ""
    each = "each " if steps > 1 else ""
    step = ms_text(figures["inter_token_ms"])
    return f", then {_count(steps, 'decode step')} at {step} {each}(median{tail}{speed})"


def _steps_sentences(run: PhaseRun) -> list[str]:
    """What stands out along the decode: single slow steps, and a drift with the length."""
    table = step_table(run)
    sentences = []
    slow = table[table["outlier"]]
    if len(slow):
        worst = slow.nlargest(1, "device_ms").iloc[0]
        stand = "stands" if len(slow) == 1 else "stand"
        sentences.append(
            f"{_count(len(slow), 'step')} {stand} out above {OUTLIER_FACTOR} times the median, the slowest "
            f"(step {worst['step']}) with {ms_text(worst['device_ms'])}."
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


def _closure_sentence(figures: dict[str, Any]) -> list[str]:
    closure = figures["closure"]
    if closure is None or not math.isfinite(closure):
        return []
    return [f"The stages account for {100 * closure:.1f} % of the prefill."]


def _caveats(run: PhaseRun) -> list[str]:
    caveats = []
    if run.request.get("ignore_eos"):
        caveats.append("The end token was ignored, so the number of tokens is the one that was asked for.")
    elif run.result.get("finish") == "length":
        limit = run.request.get("max_new_tokens", run.token_count)
        caveats.append(f"It stopped at the limit of {_count(limit, 'token')}, so the text may be cut short.")
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
    details = [run.model.get("dtype"), run.model.get("strategy")]
    named = ", ".join(str(detail) for detail in details if detail)
    return f"on {run.device.get('name') or 'an unnamed device'}{f' ({named})' if named else ''}"


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def _digits(value: float) -> str:
    """Three significant digits, without an exponent and never fewer than the integer part has."""
    if value == 0:
        return "0"
    decimals = max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{value:.{min(decimals, 3)}f}"
    # 9.996 rounds up to 10.00: one digit too many.
    return text[:-1].rstrip(".") if "." in text and len(text.lstrip("-0.").replace(".", "")) > 3 else text


def _repeat_sums(run: PhaseRun) -> pd.DataFrame:
    """Sum of each stage's calls in one repeat, device ms: a row a phase, stage and view, a column a repeat.

    Zero where a repeat lacks the stage.
    """
    sums = run.spans.groupby([*STAGE_KEYS, "repeat"])["device_ms"].sum().unstack("repeat")
    return sums.reindex(columns=run.repeats).fillna(0.0)
