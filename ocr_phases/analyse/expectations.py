"""The published rules of thumb for the full model on any GPU, each beside what a record shows.

They are notes, and never fail. A new one is one `Expectation` in the list below.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ocr_phases.analyse.check_rules import NO_IMAGE, NO_TREND, TOO_BUSY, trend_text
from ocr_phases.analyse.figures import summary
from ocr_phases.analyse.kernels import has_kernels, kv_cache_share
from ocr_phases.analyse.noise import Verdict, is_noisy
from ocr_phases.analyse.stages import decode_trend
from ocr_phases.analyse.statistics import median_share
from ocr_phases.families import facts_of
from ocr_phases.record import Record
from ocr_phases.text import ms_text, percent_text

WHY = "A rule of thumb for the full model on any GPU."
_PUBLISHED_PARAMETERS = 3_000_000_000  # the three families have 3.3 to 3.4 billion


class Measured(NamedTuple):
    """What a record shows: a number to judge, and its text; of an unknown one None and why."""

    value: float | None
    text: str


_MISSING = Measured(None, "not in this record")


@dataclass(frozen=True)
class Expectation:
    """One rule of thumb: what ``measure`` finds in a record usually is from ``low`` to ``high``.

    ``name`` is its name in JSON, which never changes, ``title`` the same in words, ``expected`` the
    range in words, and ``fix`` says where to look if a record is out of it. ``is_of_page`` says
    that the range is of a prompt with a page in it.
    """

    name: str
    title: str
    expected: str
    fix: str
    low: float
    high: float
    measure: Callable[[Record], Measured]
    is_of_page: bool = False


def expectation_verdicts(run: Record) -> list[Verdict]:
    """The record beside each expectation; empty unless its model has the published size and ran on
    a GPU.
    """
    parameters = (run.model.parameters or {}).get("total", 0)
    if run.device.kind != "cuda" or parameters < _PUBLISHED_PARAMETERS:
        return []
    return [_verdict(run, expectation) for expectation in EXPECTATIONS.values()]


def _verdict(run: Record, expectation: Expectation) -> Verdict:
    verdict = "n/a"
    if facts_of(run.model.family).is_unknown:
        # The ranges were written down for DeepSeek-OCR, and say nothing of another model.
        text = "nothing is expected of a model of unknown family"
    elif expectation.is_of_page and not run.has_page:
        text = NO_IMAGE.measured
    else:
        measured = expectation.measure(run)
        text = measured.text
        if measured.value is not None:
            verdict = "note"
            in_range = expectation.low <= measured.value <= expectation.high
            text = f"{'in range' if in_range else 'out of range'}: {measured.text}"
    return Verdict(
        verdict,
        text,
        name=expectation.name,
        title=expectation.title,
        expected=expectation.expected,
        why=WHY,
        fix=expectation.fix,
    )


# -- what a record shows ------------------------------------------------------------------------


def _prefill(run: Record) -> Measured:
    ms = summary(run)["prefill_ms"]
    if _is_unknown(ms):
        return _MISSING
    return Measured(ms, ms_text(ms))


def _decode_step(run: Record) -> Measured:
    ms = summary(run)["inter_token_ms"]
    if _is_unknown(ms):
        return _MISSING
    return Measured(ms, ms_text(ms))


def _steps_of_prefill(run: Record) -> Measured:
    """The prefill's time in decode steps."""
    figures = summary(run)
    steps = _quotient(figures["prefill_ms"], figures["inter_token_ms"])
    if steps is None:
        return _MISSING
    return Measured(steps, f"{steps:.1f} steps")


def _vision_share(run: Record) -> Measured:
    return _share(summary(run)["vision_share"])


def _language_share(run: Record) -> Measured:
    figures = summary(run)
    return _share(_quotient(figures["prefill_language_model_ms"], figures["prefill_ms"]))


def _forward_share(run: Record) -> Measured:
    """The forward's share of decode; captured steps do not show it."""
    language = run.repeat_ms("language_model", "decode")
    head = run.repeat_ms("lm_head", "decode")
    if not (language.all() and head.all()):
        return _MISSING
    return _share(median_share(language + head, run.repeat_ms("decode", "decode")))


def _memory_share(run: Record) -> Measured:
    figures = summary(run)
    share = _quotient(figures["decode_peak_bytes"], figures["prefill_peak_bytes"])
    if share is None:
        return _MISSING
    return Measured(share, f"{percent_text(share)} of the prefill's peak")


def _growth(run: Record) -> Measured:
    """How much slower a step became over the run, where the check of the trend judges it."""
    trend = decode_trend(run)
    if trend is None:
        return Measured(None, NO_TREND)
    if is_noisy(run):
        return Measured(None, TOO_BUSY)
    return Measured(trend.shares[0], trend_text(trend))


def _cache_write(run: Record) -> Measured:
    return _cache_share(run, "prefill", ("kv_update",))


def _cache_update(run: Record) -> Measured:
    return _cache_share(run, "decode", ("kv_update", "attention"))


def _cache_share(run: Record, phase: str, parts: Sequence[str]) -> Measured:
    """The cache's part of the device's work in a phase."""
    if not has_kernels(run):
        return Measured(None, "needs kernel times (kernels=True, on a CUDA device)")
    table = kv_cache_share(run)
    mine = table[(table["phase"] == phase) & table["part"].isin(parts)]
    if mine.empty:
        return Measured(None, "the profiler saw no such kernel")
    if set(mine["part"]) != set(parts):
        return Measured(None, "a captured graph does not show which kernels are attention")
    each = ", ".join(mine["part"].str.replace("_", " ") + " " + mine["of_busy"].map(percent_text))
    share = float(mine["of_busy"].sum())
    return Measured(share, f"{percent_text(share)} of the GPU's work ({each})")


def _share(value: float | None) -> Measured:
    """A share with its text as a percentage."""
    if value is None or _is_unknown(value):
        return _MISSING
    return Measured(value, percent_text(value))


def _quotient(numerator: float | None, denominator: float | None) -> float | None:
    """None where a part is unknown, or where nothing is there to divide by."""
    if numerator is None or not denominator:
        return None
    quotient = numerator / denominator
    return None if _is_unknown(quotient) else quotient


def _is_unknown(value: float | None) -> bool:
    return value is None or not np.isfinite(value)


_PUBLISHED = (
    Expectation(
        name="expected_prefill",
        title="expected prefill",
        expected="50 to 200 ms",
        fix="Look at the stages: the time depends on vision and on the length of the prompt.",
        low=50,
        high=200,
        measure=_prefill,
        is_of_page=True,
    ),
    Expectation(
        name="expected_decode_step",
        title="expected decode step",
        expected="5 to 20 ms per token",
        fix="Compare the times of device and host: launches often limit a step.",
        low=5,
        high=20,
        measure=_decode_step,
    ),
    Expectation(
        name="expected_ratio",
        title="expected ratio",
        expected="a prefill takes as long as 5 to 15 decode steps",
        fix="If the ratio is near 1, vision did not run, or ran in decode as well.",
        low=5,
        high=15,
        measure=_steps_of_prefill,
        is_of_page=True,
    ),
    Expectation(
        name="expected_vision_share",
        title="expected vision share",
        expected="vision is 30 to 50 % of the prefill",
        fix="A larger preset or more crops make this share larger.",
        low=0.3,
        high=0.5,
        measure=_vision_share,
        is_of_page=True,
    ),
    Expectation(
        name="expected_language_share",
        title="expected language share",
        expected="the language model is 40 to 60 % of the prefill",
        fix="A longer prompt makes this share larger.",
        low=0.4,
        high=0.6,
        measure=_language_share,
        is_of_page=True,
    ),
    Expectation(
        name="expected_cache_write",
        title="expected cache write",
        expected="writing the KV cache is 5 to 10 % of the prefill",
        fix="See the kernel view (--kernels).",
        low=0.05,
        high=0.1,
        measure=_cache_write,
        is_of_page=True,
    ),
    Expectation(
        name="expected_forward_share",
        title="expected forward share",
        expected="the forward is 90 to 95 % of decode",
        fix="The rest is sampling, reading tokens and the loop itself.",
        low=0.9,
        high=0.95,
        measure=_forward_share,
    ),
    Expectation(
        name="expected_cache_update",
        title="expected cache update",
        expected="reading and updating the cache is 5 to 10 % of decode",
        fix="See the kernel view (--kernels).",
        low=0.05,
        high=0.1,
        measure=_cache_update,
    ),
    Expectation(
        name="expected_constant_decode",
        title="expected constant decode",
        expected="the time of a step does not depend on the length of the text",
        fix="See the check 'decode trend', which says what the bytes of the cache cost.",
        low=-0.1,
        high=0.1,
        measure=_growth,
    ),
    Expectation(
        name="expected_memory",
        title="expected memory",
        expected="the peak of decode is no higher than that of the prefill",
        fix="See the check 'decode memory'.",
        low=0,
        high=1,
        measure=_memory_share,
        is_of_page=True,
    ),
)

#: The published rules of thumb by their names, in the order of the table.
EXPECTATIONS = {expectation.name: expectation for expectation in _PUBLISHED}
