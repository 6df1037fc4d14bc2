"""The verification checklist: may the times of a record be believed, and is anything odd about
them?

What needs the live model was judged while measuring and is in the record; the rest follows from it
here. ``fail`` means that the measurement is broken; ``noisy`` that it is sound, but that the
machine was too busy for its figures to be trusted; ``note`` that something is worth knowing;
``n/a`` that this record cannot say.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, zip_longest
from operator import or_
from typing import Any

import numpy as np
import pandas as pd

from ocr_phases.analyse.figures import summary
from ocr_phases.analyse.kernels import has_kernels, kv_cache_share, vision_in_decode
from ocr_phases.analyse.noise import NOISE, TEXTS, has_untimed_tokens, is_noisy
from ocr_phases.analyse.noise import VERDICTS as VERDICTS
from ocr_phases.analyse.noise import Verdict as Verdict
from ocr_phases.analyse.repetition import repetition_table
from ocr_phases.analyse.stages import (
    OUTLIER_FACTOR,
    SPIKE_FACTOR,
    Trend,
    attended,
    cached,
    decode_trend,
    overlapping_stages,
    step_repeats,
    step_table,
    token_of_step,
    undeclared_stages,
    vision_stages,
)
from ocr_phases.analyse.statistics import median_share
from ocr_phases.families import facts_of
from ocr_phases.record import Record
from ocr_phases.text import (
    bytes_text,
    count_text,
    digits_text,
    digits_within,
    filled,
    ms_text,
    percent_text,
    percent_within,
)

CHECK_COLUMNS = ("name", "verdict", "expected", "measured", "why", "fix")
RULES: dict[str, dict[str, Any]] = TEXTS["rules"]
_ROWS = RULES | TEXTS["stopped"]
#: What a rule does not say of itself is said above it.
_RULE_TEXTS = dict(zip(_ROWS, accumulate(_ROWS.values(), or_), strict=True))
EXPECTATIONS: dict[str, dict[str, Any]] = TEXTS["expectations"]
_UNKNOWN = {"expected": "", "why": "", "fix": "Measure again with this version of ocr_phases."}
_NO_STEPS = Verdict("n/a", "there was no decode step")
_NO_TREND = "too few steps for a trend"
_TOO_BUSY = "the machine was too busy to judge it"

STAGE_COVERAGE = 0.97
# Clocks read a little apart may add up to a little more than the whole.
_OVERLAP = 1.01
# Up to here two peaks of memory count as the same: they differ by an allocation or two.
_SAME_MEMORY = 1.01
# A growth of the step over the run, as a part of the median step, that a busy machine makes by
# itself, and one that it does not. The cache's bytes may be read this many times slower than a
# large copy.
_DRIFT = 0.10
_RUNAWAY = 0.50
_SLOW_READS = 4.0
_CACHE_BLOCK = 256
_NAMED = 3
_PUBLISHED_PARAMETERS = 3_000_000_000  # the three families have 3.3 to 3.4 billion


@cached
def run_checks(run: Record) -> list[Verdict]:
    """Run every check on a record of any kind and age: the rules, then the published expectations.

    The expectations are for a model of the published size on a GPU: other records have none.
    """
    parameters = (run.model.parameters or {}).get("total", 0)
    published = run.device.kind == "cuda" and parameters >= _PUBLISHED_PARAMETERS
    return run_rules(run) + (_expectations(run) if published else [])


def run_rules(run: Record) -> list[Verdict]:
    """The checks that say whether a record may be believed, without the expectations."""
    live = {check.name: check for check in run.live_checks}
    checks = []
    for name in dict.fromkeys([*RULES, *live]):
        if name in _FROM_RECORD:
            check = _FROM_RECORD[name](run)
        elif name in live:
            found = live[name]
            check = Verdict(
                found.verdict or "n/a", found.measured or "", expected=found.expected or ""
            )
        else:
            check = Verdict("n/a", _why_missing(run, name))
        checks.append(_worded(run, name, check))
    return checks


def noisy_checks(run: Record) -> list[Verdict]:
    """The checks that found the machine too busy to trust the figures."""
    return with_verdict((_worded(run, name, check(run)) for name, check in NOISE.items()), "noisy")


def checks_table(run: Record) -> pd.DataFrame:
    """`run_checks` as a table, columns `CHECK_COLUMNS`."""
    return pd.DataFrame(run_checks(run))[list(CHECK_COLUMNS)]


def with_verdict(checks: Iterable[Verdict], verdict: str) -> list[Verdict]:
    """The checks of one verdict: ``fail`` for what broke the measurement."""
    return [check for check in checks if check.verdict == verdict]


def worst_verdict(checks: Sequence[Verdict]) -> str:
    """The overall verdict: fail, noisy or pass."""
    return next((verdict for verdict in ("fail", "noisy") if with_verdict(checks, verdict)), "pass")


def _worded(run: Record, name: str, check: Verdict) -> Verdict:
    """The check with the texts of its row in ``checks.toml``, of which some depend on the run."""
    texts = (_RULE_TEXTS | EXPECTATIONS).get(name, _UNKNOWN)
    low = run.request.autocast or run.model.dtype != "float32"
    rest = "or a tie where they first differ" if low else "all of them"
    every = count_text((run.request.eos_check_every or 1), "step")
    expected = check.expected or texts["expected"].format(every=every, rest=rest)
    why = texts.get("why", "A rule of thumb for the full model on any GPU.")
    return check._replace(name=name, expected=expected, why=why, fix=texts["fix"])


def _why_missing(run: Record, name: str) -> str:
    if (
        name == "finite_logits" and run.model.implementation != "server"
    ):  # any way of running has it
        return "this record lacks it"
    of_steps = name in ("single_token_steps", "cache_reused", "mask_handed_over")
    reasons = {
        "a one-shot generate() run has no phases": run.request.generate,
        "not requested: ocr-phases verify compares with generate()": name == "parity",
        "a server does not show it": run.is_server,
        _NO_STEPS.measured: of_steps and not summary(run)["decode_steps"],
        f"{run.model.strategy} steps do not call the model's forward": run.model.strategy
        != "eager",
    }
    return next((reason for reason, holds in reasons.items() if holds), "this record lacks it")


# -- rules that follow from a saved record ------------------------------------------------------------


def _without_steps(run: Record) -> Verdict:
    """The verdict of a check of decode steps on a record that has none."""
    if run.is_server and (has_untimed_tokens(run) or not run.knows_tokens):
        return Verdict("n/a", "the tokens have no times of their own")
    return _NO_STEPS


def _vision_in_prefill_only(run: Record) -> Verdict:
    if not summary(run)["decode_steps"]:
        return _without_steps(run)
    decode = run.spans[run.spans["phase"] == "decode"]
    vision = decode[decode["stage"].isin(vision_stages(run))]
    if len(vision):
        names, took = (
            ", ".join(sorted(vision["stage"].unique())),
            ms_text(vision["device_ms"].sum()),
        )
        return Verdict("fail", f"{names} ran in {vision['step'].nunique()} steps and took {took}")
    ran, profiled = vision_in_decode(run) if has_kernels(run) else (None, "")
    if ran:
        return Verdict("fail", profiled)
    eager = run.model.strategy == "eager"
    if ran is None and not eager:
        return Verdict("n/a", f"{run.model.strategy} steps show no stages")
    seen = f"no vision span among {len(decode):,} of decode" if eager else ""
    return Verdict("pass", "; ".join(filter(None, (seen, profiled))))


def _cache_linear(run: Record) -> Verdict:
    held, sizes = run.cache.entries or run.cache.lengths or [], run.cache.bytes or []
    each = run.cache.bytes_per_token
    if len(sizes) > 1 and not each:
        grew = f"{bytes_text(sizes[0])} to {bytes_text(sizes[-1])}"
        return Verdict("n/a", f"{grew}, in layers of several kinds, each of which has its own rule")
    if len(sizes) < 2 or not each:
        return Verdict("n/a", "no growing cache was seen")
    text = f"{bytes_text(each)} a token, {bytes_text(sizes[0])} to {bytes_text(sizes[-1])}"
    off = sum(size != (count or 0) * each for count, size in zip_longest(held, sizes))
    return (
        Verdict("fail", f"{text}; {off} of {len(sizes)} off the line")
        if off
        else Verdict("pass", text)
    )


def _decode_memory(run: Record) -> Verdict:
    """Above the prefill's peak by more than the cache's own growth, something is kept that should
    not be.
    """
    figures = summary(run)
    prefill = figures["prefill_peak_bytes"]
    decode = figures["decode_peak_bytes"]
    if prefill is None or decode is None:
        return Verdict("n/a", "memory was not counted")
    text = f"{bytes_text(decode)} in decode, {bytes_text(prefill)} in the prefill"
    of_model, sizes = run.memory.source == "cuda_peak_allocated", run.cache.bytes or [0]
    grew = sizes[-1] - sizes[0]
    # While a cache is copied to a larger one, the old one is still there.
    explained = not of_model or decode <= prefill + 2 * grew
    if decode <= prefill * (_SAME_MEMORY if explained else 1):
        return Verdict("pass", text)
    if not explained:
        return Verdict("fail", f"{text}; the cache grew by {bytes_text(grew)} only")
    why = (
        "the growing cache explains it"
        if of_model
        else "the whole process is counted, not the model alone"
    )
    return Verdict("note", f"{text}; {why}")


def _stage_coverage(run: Record) -> Verdict:
    coverage = summary(run)["stage_coverage"]
    if coverage is None:
        return Verdict("n/a", "there is no prefill, or nobody timed its stages")
    overlap = ": stages overlap, so one is counted twice" if coverage > _OVERLAP else ""
    verdict = "fail" if overlap else "pass" if coverage >= STAGE_COVERAGE else "note"
    return Verdict(verdict, f"{coverage * 100:.1f} %{overlap}{_undeclared(run)}")


def _undeclared(run: Record) -> str:
    """What to know of stages that nobody declared: which sums they are in."""
    text = ""
    overlapping = overlapping_stages(run)
    added = [name for name in undeclared_stages(run) if name not in overlapping]
    if added:
        text += f"; nobody said what {', '.join(added)} is: it is in this sum, in no time of vision"
    if overlapping:
        text += f"; {', '.join(overlapping)} overlaps other stages, so it is in no sum"
    return text


def _decode_trend(run: Record) -> Verdict:
    trend = decode_trend(run)
    if trend is None:
        return Verdict("n/a", _NO_TREND)
    reach = (trend.interval[1] - trend.interval[0]) / 2
    text = (
        f"{digits_within(trend.slope * 1e3, reach * 1e3)} µs per cached token, {_trend_text(trend)}"
    )
    if is_noisy(run):
        return Verdict("n/a", f"{text}; {_TOO_BUSY}")
    ceilings = run.device.ceilings
    bandwidth = None if ceilings is None else ceilings.bandwidth_bytes_per_s
    if not bandwidth or not run.cache.bytes_per_token:
        place = "beyond" if abs(trend.shares[0]) > _DRIFT else "within"
        drift = f"{place} the usual drift of a machine; no measured bandwidth to compare with"
        return Verdict("note", f"{text}, {drift}")
    due = run.cache.bytes_per_token / bandwidth * 1e3
    # The growth beyond what slow reads of the cache explain, as a part of the median step. One
    # repeat alone cannot be told from a neighbour's start; repeats that differ are noisy.
    excess = trend.shares[0] - _SLOW_READS * due * trend.growth
    runaway = excess > _RUNAWAY and len(run.repeats) > 1
    verdict = "fail" if runaway else "pass" if excess <= _DRIFT else "note"
    return Verdict(verdict, f"{text}; its bytes alone cost {digits_text(due * 1e3)} µs")


def _trend_text(trend: Trend) -> str:
    """``"12 % of a step over the run (95 % interval 10 % to 14 %)"``."""
    reach = (trend.shares[2] - trend.shares[1]) / 2
    share, low, high = (percent_within(each, reach) for each in trend.shares)
    return f"{share} of a step over the run (95 % interval {low} to {high})"


def _outlier_steps(run: Record) -> Verdict:
    if not summary(run)["decode_steps"]:
        return _without_steps(run)
    return _noted(
        [f"token {token_of_step(run, step)}: {cause}" for step, cause in outlier_causes(run)]
    )


def _noted(found: Sequence[str], more: str = "") -> Verdict:
    """A note of the first few that were found, with ``more`` to say of them; a pass of none."""
    rest = [f"and {len(found) - _NAMED} more"] if len(found) > _NAMED else []
    return (
        Verdict("note", "; ".join([*found[:_NAMED], *rest]) + more)
        if found
        else Verdict("pass", "none")
    )


def outlier_causes(run: Record) -> list[tuple[int, str]]:
    """The outlier steps, each with its likely cause."""
    table, host, found = step_table(run), step_repeats(run, "host_ms"), []
    every, cuda = run.request.eos_check_every or 1, run.device.kind == "cuda"
    times = step_repeats(run) / table["device_ms"].median()
    late = host > OUTLIER_FACTOR * host.median(axis="columns").median()
    slow = table[table["outlier"]].fillna({"cache_len": 0})
    for step, held in slow[["step", "cache_len"]].astype(int).itertuples(index=False, name=None):
        over = times.loc[step] > OUTLIER_FACTOR
        some = not over.all() and (over.mean() <= 0.5 or times.loc[step].max() > SPIKE_FACTOR)
        # The step that made as many entries is the first to hold one more than a full block.
        grew = held > 0 and held % _CACHE_BLOCK <= 1 and attended(run, np.array(held)) == held
        other = "something else ran on this machine"
        causes = {
            "the first step, which sets up what the others reuse": step == 0,
            f"in {over.sum()} of {count_text(len(over), 'repeat')}: {other}": some,
            "the end token is read here, which waits for the device": every > 1
            and (step + 1) % every == 0,
            f"the cache reached {held} entries: it moves to larger memory or another kernel": grew,
            "the host was held up": not cuda,
            "the host was late, so the device waited": late.loc[step].all(),
            "the device itself took longer": True,
        }
        found.append((step, next(cause for cause, holds in causes.items() if holds)))
    return found


def _visible_page(run: Record) -> Verdict:
    """A page of which the vendor's formula leaves no image token is so long and narrow that it
    vanishes.
    """
    counts = [page.valid_image_tokens for page in run.pages]
    if not counts or None in counts:
        return Verdict("n/a", "how the page was cut is unknown")
    invisible = []
    for number, page in enumerate(run.pages, 1):
        if page.valid_image_tokens == 0:
            where = f"page {number}: " if len(run.pages) > 1 else ""
            size = f"{page.width:,} x {page.height:,} pixels"
            invisible.append(f"{where}{size} at {page.preset}, so nothing on it can be read")
    return _noted(invisible)


def _repetition_loop(run: Record) -> Verdict:
    found = []
    for each in repetition_table(run).to_dict("records"):
        where = f"row {each['row'] + 1}: " if len(run.results) > 1 else ""
        place = f"from token {each['start'] + 1}"
        if each["measure"] == "exact":
            what = f"{count_text(each['period'], 'token')} {each['times']} times {place}"
        else:
            what = f"{count_text(each['repeated'], 'token')} that say nothing new (an inexact loop) {place}"
        end = " on, up to the limit" if each["to_limit"] else " on"
        time = (
            "" if np.isnan(each["share"]) else f", {percent_text(each['share'])} of the decode time"
        )
        found.append(f"{where}{what}{end}{time}")
    ignored = (
        "; the end token was ignored, which makes this likely" if run.request.ignore_eos else ""
    )
    return _noted(found, ignored)


_RULES = (
    *(_vision_in_prefill_only, _cache_linear, _decode_memory, _stage_coverage),
    *(_decode_trend, _outlier_steps, _visible_page, _repetition_loop),
)
_FROM_RECORD = NOISE | {rule.__name__.removeprefix("_"): rule for rule in _RULES}


# -- the published expectations: notes, never more ---------------------------------------------------


def _expectations(run: Record) -> list[Verdict]:
    """The published rules of thumb, each beside the value that its row names."""
    figures = {name: np.nan if value is None else value for name, value in summary(run).items()}
    language, head = (run.repeat_ms(stage, "decode") for stage in ("language_model", "lm_head"))
    forward_share = median_share(language + head, run.repeat_ms("decode", "decode"))
    if not (language.all() and head.all()):  # captured steps show neither
        forward_share = None
    values = figures | {
        "steps": figures["prefill_ms"] / figures["inter_token_ms"],
        "language_share": figures["prefill_language_model_ms"] / figures["prefill_ms"],
        "forward_share": np.nan if forward_share is None else forward_share,
        "memory_share": figures["decode_peak_bytes"] / figures["prefill_peak_bytes"],
    }
    own = {
        "cache_write": _cache_share(run, "prefill", ("kv_update",)),
        "cache_update": _cache_share(run, "decode", ("kv_update", "attention")),
        "growth": _growth(run),
    }
    checks = []
    if facts_of(run.model.family).is_unknown:
        # The ranges were written down for DeepSeek-OCR, and say nothing of another model.
        foreign = Verdict("n/a", "nothing is expected of a model of unknown family")
        return [_worded(run, name, foreign) for name in EXPECTATIONS]
    for name, row in EXPECTATIONS.items():
        value, text = own.get(row["value"]) or (values[row["value"]], "not in this record")
        known, (low, high) = np.isfinite(value), row["range"]
        text = filled(row["text"], value=value) if known and "text" in row else text
        place = "in range" if low <= value <= high else "out of range"
        check = Verdict("note", f"{place}: {text}") if known else Verdict("n/a", text)
        checks.append(_worded(run, name, check))
    return checks


def _growth(run: Record) -> tuple[float, str]:
    """How much slower a step became over the run; NaN where the check of the trend does not judge
    it.
    """
    trend = decode_trend(run)
    if trend is None:
        return np.nan, _NO_TREND
    if is_noisy(run):
        return np.nan, _TOO_BUSY
    return trend.shares[0], _trend_text(trend)


def _cache_share(run: Record, phase: str, parts: Sequence[str]) -> tuple[float, str]:
    """The cache's part of the device's work in a phase."""
    if not has_kernels(run):
        return np.nan, "needs kernel times (kernels=True, on a CUDA device)"
    table = kv_cache_share(run)
    mine = table[(table["phase"] == phase) & table["part"].isin(parts)]
    if set(mine["part"]) != set(parts):
        hidden = "a captured graph does not show which kernels are attention"
        return np.nan, hidden if len(mine) else "the profiler saw no such kernel"
    each = ", ".join(mine["part"].str.replace("_", " ") + " " + mine["of_busy"].map(percent_text))
    share = float(mine["of_busy"].sum())
    return share, f"{percent_text(share)} of the GPU's work ({each})"
