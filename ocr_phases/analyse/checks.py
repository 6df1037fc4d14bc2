"""The verification checklist: may the times of a record be believed, and is anything odd about them?

What needs the live model was judged while measuring and is in the record; the rest follows from it here.
``fail`` means that the measurement is broken; ``noisy`` that it is sound, but that the machine was too busy
for its figures to be trusted; ``note`` that something is worth knowing; ``n/a`` that this record cannot say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import pandas as pd

from ocr_phases.analyse.check_texts import EXPECTATIONS, NOT_IN_RECORD, RULES, STOPPED, CheckText
from ocr_phases.analyse.kept import kept
from ocr_phases.analyse.kernels import has_kernels, kv_cache_share, vision_in_decode
from ocr_phases.analyse.noise import FINDINGS, is_noisy
from ocr_phases.analyse.steps import (
    Trend,
    cache_read_slope,
    decode_trend,
    outlier_causes,
    repetition_loop,
)
from ocr_phases.analyse.summary import vision_share
from ocr_phases.analyse.typical import one_repeat, typical_run
from ocr_phases.families import VISION_STAGES
from ocr_phases.record import PhaseRun
from ocr_phases.text import bytes_text, count_text, ms_text, percent_text

CHECK_COLUMNS = ("name", "verdict", "expected", "measured", "why", "fix")
VERDICTS = ("pass", "fail", "noisy", "note", "n/a")

STAGE_COVERAGE = 0.97
# Clocks read a little apart may add up to a little more than the whole.
_OVERLAP = 1.01
# Up to here two peaks of memory count as the same: they differ by an allocation or two.
_SAME_MEMORY = 1.01
# A growth of the step over the run, as a part of the median step, that a busy machine makes by itself,
# and one that it does not. The cache's bytes may be read this many times slower than a large copy.
_DRIFT = 0.10
_RUNAWAY = 0.50
_SLOW_READS = 4.0
_NAMED_STEPS = 3
_PUBLISHED_PARAMETERS = 3_000_000_000  # the three families have 3.3 to 3.4 billion


@dataclass(frozen=True)
class Check:
    """One item of the checklist with its verdict, one of `VERDICTS`."""

    name: str
    verdict: str
    expected: str
    measured: str
    why: str = ""
    fix: str = ""


Found = tuple[str, str]  # verdict and what was measured


@kept
def run_checks(run: PhaseRun) -> list[Check]:
    """Run every check on a record of any kind and age: the rules, then the published expectations.

    The expectations are for a model of the published size on a GPU: other records have none.
    """
    expected = EXPECTATIONS.items() if _of_published_size(run) else ()
    return run_rules(run) + [_check(name, text, _EXPECTED[name](run)) for name, text in expected]


def _of_published_size(run: PhaseRun) -> bool:
    parameters = run.model.get("parameters") or {}
    return run.device.get("kind") == "cuda" and parameters.get("total", 0) >= _PUBLISHED_PARAMETERS


def run_rules(run: PhaseRun) -> list[Check]:
    """The checks that say whether a record may be believed, without the expectations."""
    stored = {str(check.get("name")): check for check in run.live_checks}
    checks = []
    for name, text in RULES.items():
        compute = _FROM_RECORD.get(name)
        if compute is not None:
            checks.append(_check(name, text, compute(run)))
        elif name in stored:
            kept = stored[name]
            found = (str(kept.get("verdict", "n/a")), str(kept.get("measured", "")))
            checks.append(_check(name, text, found, kept.get("expected") or _expected_of(run, name)))
        else:
            checks.append(_check(name, text, ("n/a", _why_missing(run, name))))
    for name, kept in stored.items():
        if name not in RULES:
            found = (str(kept.get("verdict", "n/a")), str(kept.get("measured", "")))
            checks.append(
                _check(name, STOPPED.get(name, NOT_IN_RECORD), found, str(kept.get("expected", "")))
            )
    return checks


def checks_table(run: PhaseRun) -> pd.DataFrame:
    """`run_checks` as a table, columns `CHECK_COLUMNS`."""
    return pd.DataFrame([asdict(check) for check in run_checks(run)], columns=list(CHECK_COLUMNS))


def failed(checks: Iterable[Check]) -> list[Check]:
    """The checks that found the measurement broken."""
    return [check for check in checks if check.verdict == "fail"]


def noisy(checks: Iterable[Check]) -> list[Check]:
    """The checks that found the machine too busy to trust the figures."""
    return [check for check in checks if check.verdict == "noisy"]


def worst_verdict(checks: Sequence[Check]) -> str:
    """The overall verdict: fail, noisy or pass."""
    return "fail" if failed(checks) else "noisy" if noisy(checks) else "pass"


def checks_verdict(checks: Sequence[Check]) -> str:
    """The result of all checks, in one or two sentences of plain text."""
    broken = failed(checks)
    rules = [check for check in checks if check.name not in EXPECTATIONS]
    passed = sum(check.verdict == "pass" for check in rules)
    notes = [check.name.replace("_", " ") for check in rules if check.verdict == "note"]
    if broken:
        names = ", ".join(check.name.replace("_", " ") for check in broken)
        return f"Do not trust these times: {len(broken)} of {len(rules)} checks failed ({names})."
    silent = sum(check.verdict == "n/a" for check in rules)
    sentence = f"No check failed: {passed} of {len(rules)} passed"
    busy = [check.name.replace("_", " ") for check in noisy(checks)]
    if busy:
        sentence = (
            f"The machine was too busy ({', '.join(busy)}), so do not trust these figures. The measurement "
            f"itself is sound: {passed} of {len(rules)} checks passed"
        )
    sentence += f", {silent} had no data." if silent else "."
    return f"{sentence} Worth a look: {', '.join(notes)}." if notes else sentence


def _check(name: str, text: CheckText, found: Found, expected: str = "") -> Check:
    verdict, measured = found
    return Check(name, verdict, expected or text.expected, measured, text.why, text.fix)


def _expected_of(run: PhaseRun, name: str) -> str:
    """What a live check expects where that depends on the run; empty for the rule's own text."""
    if name == "host_syncs":
        return (
            f"one wait every {count_text(run.request.get('eos_check_every', 1), 'step')}, for the end token"
        )
    if name == "parity":
        low = run.request.get("autocast") or run.model["dtype"] != "float32"
        return RULES[name].expected + (", or a tie where they first differ" if low else ", all of them")
    return ""


def _why_missing(run: PhaseRun, name: str) -> str:
    if run.request.get("generate"):
        return "a one-shot generate() run has no phases"
    if name == "parity":
        return "not requested: ocr-phases verify compares with generate()"
    if not _has_steps(run) and name in ("single_token_steps", "cache_reused", "mask_handed_over"):
        return "there was no decode step"
    if run.model["strategy"] != "eager":
        return f"{run.model['strategy']} steps do not call the model's forward"
    return "this record lacks it"


def _has_steps(run: PhaseRun) -> bool:
    return bool((run.spans["stage"] == "decode_step").any())


_NO_STEPS: Found = ("n/a", "there was no decode step")


# -- rules that follow from a saved record ------------------------------------------------------------


def _vision_in_prefill_only(run: PhaseRun) -> Found:
    spans = run.spans
    if not _has_steps(run):
        return _NO_STEPS
    vision = spans[spans["stage"].isin(VISION_STAGES) & (spans["phase"] == "decode")]
    if len(vision):
        steps = vision["step"].nunique()
        names = ", ".join(sorted(vision["stage"].unique()))
        return "fail", f"{names} ran in {steps} steps and took {ms_text(float(vision['device_ms'].sum()))}"
    ran, profiled = vision_in_decode(run) if has_kernels(run) else (None, "")
    if ran:
        return "fail", profiled
    if run.model["strategy"] != "eager":
        return ("n/a", f"{run.model['strategy']} steps show no stages") if ran is None else ("pass", profiled)
    spans_seen = f"no vision span among {int((spans['phase'] == 'decode').sum()):,} of decode"
    return "pass", f"{spans_seen}; {profiled}" if profiled else spans_seen


def _cache_linear(run: PhaseRun) -> Found:
    lengths, sizes = run.cache.get("entries") or run.cache.get("lengths") or [], run.cache.get("bytes") or []
    each = run.cache.get("bytes_per_token")
    if len(sizes) < 2 or not each:
        return "n/a", "the cache did not grow"
    good = [size == length * each for length, size in zip(lengths, sizes, strict=False)]
    text = f"{bytes_text(each)} a token, {bytes_text(sizes[0])} to {bytes_text(sizes[-1])}"
    off = good.count(False) + abs(len(lengths) - len(sizes))
    return ("fail", f"{text}; {off} of {len(sizes)} off the line") if off else ("pass", text)


def _decode_memory(run: PhaseRun) -> Found:
    """Above the prefill's peak by more than the cache's own growth, something is kept that should not be."""
    metrics = run.summary()
    prefill, decode = metrics["prefill_peak_bytes"], metrics["decode_peak_bytes"]
    if prefill is None or decode is None:
        return "n/a", "memory was not counted"
    text = f"{bytes_text(decode)} in decode, {bytes_text(prefill)} in the prefill"
    of_model = run.memory.get("source") == "cuda_peak_allocated"
    sizes = run.cache.get("bytes") or [0]
    # While a cache is copied to a larger one, the old one is still there.
    explained = not of_model or decode <= prefill + 2 * (sizes[-1] - sizes[0])
    if decode <= prefill * (_SAME_MEMORY if explained else 1):
        return "pass", text
    if not explained:
        return "fail", f"{text}; the cache grew by {bytes_text(sizes[-1] - sizes[0])} only"
    why = "the growing cache explains it" if of_model else "the whole process is counted, not the model alone"
    return "note", f"{text}; {why}"


def _stage_coverage(run: PhaseRun) -> Found:
    metrics = typical_run(run).summary()  # beside the stages of that repeat
    coverage = metrics["stage_coverage"]
    if coverage is None or metrics["prefill_ms"] is None:
        return "n/a", "there is no prefill"
    if coverage > _OVERLAP:
        return "fail", f"{coverage * 100:.1f} %: stages overlap, so one is counted twice"
    return ("pass" if coverage >= STAGE_COVERAGE else "note"), f"{coverage * 100:.1f} %"


def _decode_trend(run: PhaseRun) -> Found:
    trend = decode_trend(run)
    if trend is None:
        return "n/a", "too few steps for a trend"
    text = f"{trend.slope * 1e3:+.3f} µs a cached token, {trend.text}"
    if is_noisy(run):
        return "n/a", f"{text}; the machine was too busy to judge it"
    due = cache_read_slope(run)
    if due is None:
        clear = "beyond" if abs(trend.share) > _DRIFT else "within"
        return "note", f"{text}, {clear} the usual drift of a machine; no measured bandwidth to compare with"
    text += f"; its bytes alone cost {due * 1e3:.3f} µs"
    excess = _excess(trend, due)
    if excess <= _RUNAWAY:
        return ("pass" if excess <= _DRIFT else "note"), text
    # The model's own growth is in every repeat; one repeat alone cannot be told from a neighbour's start.
    each = [decode_trend(one_repeat(run, number)) for number in run.repeats]
    held = [trend is not None and _excess(trend, due) > _RUNAWAY for trend in each]
    if len(held) > 1 and all(held):
        return "fail", text
    return "note", f"{text}; in {sum(held)} of {len(held)} repeat{'s' if len(held) > 1 else ''}"


def _excess(trend: Trend, due: float) -> float:
    """The growth over the run beyond what slow reads of the cache explain, as a part of the median step."""
    return (trend.growth - _SLOW_READS * due * trend.span) / trend.step_ms


def _outlier_steps(run: PhaseRun) -> Found:
    if not _has_steps(run):
        return _NO_STEPS
    causes = outlier_causes(run)
    if not causes:
        return "pass", "none"
    named = "; ".join(f"step {step}: {cause}" for step, cause in causes[:_NAMED_STEPS])
    more = f"; and {len(causes) - _NAMED_STEPS} more" if len(causes) > _NAMED_STEPS else ""
    return "note", named + more


def _repetition_loop(run: PhaseRun) -> Found:
    found = []
    for row, result in enumerate(run.results):
        ids = result["ids"][:-1] if result.get("finish_reason") == "eos" else result["ids"]
        loop = repetition_loop(ids)
        if loop is not None:
            period, covered = loop
            where = f"row {row}: " if len(run.results) > 1 else ""
            what = count_text(period, "token")
            found.append(f"{where}{what} repeated over the last {covered} of {len(ids)} tokens")
    if not found:
        return "pass", "none"
    ignored = "; the end token was ignored, which makes this likely" if run.request.get("ignore_eos") else ""
    return "note", f"{'; '.join(found)}{ignored}"


def _noise(name: str) -> Callable[[PhaseRun], Found]:
    def found(run: PhaseRun) -> Found:
        finding = FINDINGS[name](run)
        return finding.verdict, finding.measured

    return found


_FROM_RECORD: dict[str, Callable[[PhaseRun], Found]] = {
    **{name: _noise(name) for name in FINDINGS},
    "vision_in_prefill_only": _vision_in_prefill_only,
    "cache_linear": _cache_linear,
    "decode_memory": _decode_memory,
    "stage_coverage": _stage_coverage,
    "decode_trend": _decode_trend,
    "outlier_steps": _outlier_steps,
    "repetition_loop": _repetition_loop,
}


# -- the published expectations: notes, never more ---------------------------------------------------


def _in_range(value: float | None, low: float, high: float, text: str) -> Found:
    if value is None or not np.isfinite(value):
        return "n/a", "not in this record"
    return "note", f"{'in range' if low <= value <= high else 'out of range'}: {text}"


def _expected_prefill(run: PhaseRun) -> Found:
    total = typical_run(run)["prefill_ms"]
    return _in_range(total, 50.0, 200.0, ms_text(total))


def _expected_decode_step(run: PhaseRun) -> Found:
    step = typical_run(run)["inter_token_ms"]
    return _in_range(step, 5.0, 20.0, ms_text(step))


def _expected_ratio(run: PhaseRun) -> Found:
    metrics = typical_run(run).summary()
    prefill, step = metrics["prefill_ms"], metrics["inter_token_ms"]
    ratio = prefill / step if prefill and step else None
    return _in_range(ratio, 5.0, 15.0, f"{ratio or 0:.1f} steps")


def _expected_vision_share(run: PhaseRun) -> Found:
    share = vision_share(run)
    return _in_range(share, 0.30, 0.50, percent_text(share))


def _expected_language_share(run: PhaseRun) -> Found:
    metrics = typical_run(run).summary()
    total, language_model = metrics["prefill_ms"], metrics["prefill_language_model_ms"]
    share = language_model / total if total and language_model is not None else None
    return _in_range(share, 0.40, 0.60, percent_text(share))


def _expected_forward_share(run: PhaseRun) -> Found:
    spans = typical_run(run).spans
    spans = spans[spans["phase"] == "decode"]
    sums = spans.groupby("stage")["device_ms"].sum()
    total = float(sums.get("decode", 0.0))
    if not total or "language_model" not in sums:
        return "n/a", "not in this record"
    share = float(sums["language_model"] + sums.get("lm_head", 0.0)) / total
    return _in_range(share, 0.90, 0.95, percent_text(share))


def _expected_constant_decode(run: PhaseRun) -> Found:
    trend = decode_trend(run)
    if trend is None:
        return "n/a", "too few steps for a trend"
    return _in_range(trend.share, -_DRIFT, _DRIFT, trend.text)


def _expected_memory(run: PhaseRun) -> Found:
    metrics = run.summary()
    prefill, decode = metrics["prefill_peak_bytes"], metrics["decode_peak_bytes"]
    ratio = decode / prefill if prefill and decode is not None else None
    return _in_range(ratio, 0.0, 1.0, f"{percent_text(ratio)} of the prefill's peak")


def _expected_cache_write(run: PhaseRun) -> Found:
    return _cache_share(run, "prefill", ("kv_update",))


def _expected_cache_update(run: PhaseRun) -> Found:
    return _cache_share(run, "decode", ("kv_update", "attention"))


def _cache_share(run: PhaseRun, phase: str, parts: Sequence[str]) -> Found:
    """The cache's part of the device's work in a phase."""
    if not has_kernels(run):
        return "n/a", "needs kernel times (kernels=True, on a CUDA device)"
    table = kv_cache_share(run)
    mine = table[(table["phase"] == phase) & table["part"].isin(parts)]
    if mine.empty:
        return "n/a", "the profiler saw no such kernel"
    if set(mine["part"]) != set(parts):
        return "n/a", "a captured graph does not show which kernels are attention"
    shares = zip(mine["part"], mine["of_busy"], strict=True)
    each = [f"{str(part).replace('_', ' ')} {percent_text(share)}" for part, share in shares]
    share = float(mine["of_busy"].sum())
    return _in_range(share, 0.05, 0.10, f"{percent_text(share)} of the GPU's work ({', '.join(each)})")


_EXPECTED: dict[str, Callable[[PhaseRun], Found]] = {
    "expected_prefill": _expected_prefill,
    "expected_decode_step": _expected_decode_step,
    "expected_ratio": _expected_ratio,
    "expected_vision_share": _expected_vision_share,
    "expected_language_share": _expected_language_share,
    "expected_cache_write": _expected_cache_write,
    "expected_forward_share": _expected_forward_share,
    "expected_cache_update": _expected_cache_update,
    "expected_constant_decode": _expected_constant_decode,
    "expected_memory": _expected_memory,
}
