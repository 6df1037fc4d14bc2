"""The headline figures of a record, each defined once: `summary`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from ocr_phases.analyse.cost import page_cost
from ocr_phases.analyse.stages import (
    cached,
    end_to_end_ms,
    prefill_stages,
    repeat_table,
    step_repeats,
    vision_stages,
)
from ocr_phases.analyse.statistics import median_share, part_ms
from ocr_phases.record import Record
from ocr_phases.stages import VISION_STAGES

#: The figures that are quantiles of the decode steps.
STEP_QUANTILES = {"inter_token_ms": 0.5, "inter_token_ms_p90": 0.9, "inter_token_ms_p99": 0.99}


@cached
def summary(record: Record) -> dict[str, Any]:
    """Headline figures; times are milliseconds on the device clock, medians over repeats.

    ``page_ms`` is from the page's file to the last token, ``ttft_ms`` (time to first token) prepare
    plus prefill in each repeat, of a server the client's wait; medians of phases need not add up.
    ``ntpot_ms`` (normalized time per output token) is ``page_ms`` over the first row's tokens, None
    where their number is unknown. ``vision_share`` is of the prefill: the median of the repeats'
    shares. The times of the prefill's stages, ``vision_ms`` among them, are drawn to such shares
    (`part_ms`). Inter-token latency pools the decode steps of all repeats: with N tokens, N-1 steps
    (N with ``first_token="redecode"``). ``tokens_per_s`` counts the tokens decode made for all
    rows, over the whole decode phase, in the repeats that have steps (`repeat_table`).
    ``stage_coverage`` is the sum of the prefill's stages over the whole prefill.
    ``compression_ratio`` is text tokens over valid image tokens, as the vendor counts both, of the
    first row: the text is tokenised anew, and may then have more tokens than were generated.
    ``generated_compression_ratio`` is of the generated ones. What pages cost is
    `ocr_phases.analyse.cost.page_cost`. Of a prompt without an image all figures of vision, of
    image tokens and of pages are None; ``page_ms`` is then the whole run.
    """
    page_ms = float(np.median(end_to_end_ms(record)))
    parts = _prefill_parts(record)
    return {
        "prefill_ms": _whole_ms(record, "prefill"),
        "decode_ms": _whole_ms(record, "decode"),
        "tokens": record.token_count,
        "prefill_len": record.request.prefill_len,
        "page_ms": page_ms,
        **_vision_figures(record, parts),
        "text": record.text,
        "prepare_ms": _whole_ms(record, "prepare"),
        "ttft_ms": _first_token_ms(record),
        "vision_fusion_ms": parts.get("vision_fusion"),
        "prefill_language_model_ms": parts.get("language_model"),
        "stage_coverage": _stage_coverage(record),
        **_decode_figures(record),
        "ntpot_ms": page_ms / record.token_count if record.knows_tokens else None,
        "generate_ms": _whole_ms(record, "generate"),
        **_memory_figures(record),
        **_text_figures(record),
        **page_cost(record, page_ms),
    }


def _whole_ms(record: Record, phase: str) -> float | None:
    """The median of a whole phase in ms; None for a phase that the record lacks."""
    times = record.sums["device_ms"].get((phase, phase))
    return None if times is None else float(times.median())


def _prefill_parts(record: Record) -> dict[str, float]:
    """The time of each stage of the prefill in ms, by its name."""
    prefill = record.repeat_ms("prefill", "prefill")
    return {
        stage: part_ms(record.repeat_ms(stage, "prefill"), prefill)
        for stage in prefill_stages(record)
    }


def _vision_figures(record: Record, parts: Mapping[str, float]) -> dict[str, float | None]:
    """Vision as a whole, then each of its stages, which are among the ``parts`` of the prefill.

    The stages are those that some family has, and those that this record has besides. Vision as a
    whole is None where a repeat lacks it.
    """
    vision = _sum_of_stages(record, vision_stages(record))
    figures: dict[str, float | None] = {"vision_ms": None, "vision_share": None}
    if vision.all():
        prefill = record.repeat_ms("prefill", "prefill")
        figures["vision_ms"] = part_ms(vision, prefill)
        figures["vision_share"] = median_share(vision, prefill)
    for stage in (*VISION_STAGES, *vision_stages(record)):
        figures[f"{stage}_ms"] = parts.get(stage)
    return figures


def _first_token_ms(record: Record) -> float | None:
    """The time to the first token in ms; None where a repeat lacks it."""
    waited = record.phase_ms("prefill")
    if not waited.all():
        return None
    return _quantile(record.repeat_ms("prepare", "prepare") + waited)


def _stage_coverage(record: Record) -> float | None:
    """The stages of the prefill over all of it; None where a repeat has none of them."""
    stages = _sum_of_stages(record, prefill_stages(record))
    if not stages.all():
        return None
    return median_share(stages, record.repeat_ms("prefill", "prefill"))


def _decode_figures(record: Record) -> dict[str, float | None]:
    """The number of decode steps, quantiles of their times in ms, and the rate of tokens."""
    steps = record.spans[record.spans["stage"] == "decode_step"]
    figures: dict[str, float | None] = {"decode_steps": 0}
    if len(steps):
        figures["decode_steps"] = int(steps["step"].max()) + 1  # steps are counted from 0
    for name, quantile in STEP_QUANTILES.items():
        figures[name] = _quantile(steps["device_ms"].to_numpy(), quantile)
    figures["tokens_per_s"] = _quantile(repeat_table(record)["tokens_per_s"].dropna())
    return figures


def _memory_figures(record: Record) -> dict[str, int | None]:
    """The largest peaks of memory over the repeats, and the largest size of the KV cache."""
    peaks = record.memory.peak_bytes or {}
    peaks_of_all_phases = [peak for repeats in peaks.values() for peak in repeats]
    return {
        "prefill_peak_bytes": max(peaks.get("prefill", []), default=None),
        "decode_peak_bytes": max(peaks.get("decode", []), default=None),
        "peak_bytes": max(peaks_of_all_phases, default=None),
        "kv_cache_bytes": max(record.cache.bytes or [], default=None),
    }


def _text_figures(record: Record) -> dict[str, float | None]:
    """How many tokens the text and the page of the first row have, and their ratios."""
    text_tokens = record.result.text_tokens
    of_pages = [page.valid_image_tokens for page in record.pages if page.row == 0]
    known = [tokens for tokens in of_pages if tokens is not None]
    valid_tokens = None
    if of_pages and len(known) == len(of_pages):
        valid_tokens = sum(known)
    return {
        "text_tokens": text_tokens,
        "valid_image_tokens": valid_tokens,
        "compression_ratio": _ratio(text_tokens, valid_tokens),
        "generated_compression_ratio": _ratio(record.result.known_tokens, valid_tokens),
    }


@cached
def figure_repeats(run: Record) -> pd.DataFrame:
    """What the figures of `summary` that follow a clock were in each repeat: a row per repeat.

    Those of `repeat_table`, the steps' quantiles, vision and the whole page; NaN where a repeat has
    none.
    """
    quantiles = step_repeats(run).quantile([*STEP_QUANTILES.values()])
    steps = dict(zip(STEP_QUANTILES, quantiles.to_numpy(dtype=np.float64), strict=True))
    vision = _sum_of_stages(run, vision_stages(run))
    page_ms = end_to_end_ms(run)
    ntpot_ms = np.full(len(page_ms), np.nan)
    if run.knows_tokens:
        ntpot_ms = page_ms / run.token_count
    return repeat_table(run).assign(
        page_ms=page_ms,
        ntpot_ms=ntpot_ms,
        vision_ms=np.where(vision > 0, vision, np.nan),  # an engine may not tell
        **steps,
    )


def _sum_of_stages(record: Record, stages: Sequence[str]) -> np.ndarray:
    """The prefill's time in these stages in each repeat, ms, float64 [repeats]."""
    total = np.zeros(len(record.repeats))
    for stage in stages:
        total = total + record.repeat_ms(stage, "prefill")
    return total


def _quantile(values: Any, q: float = 0.5) -> float | None:
    """A quantile of some values; None where there is none."""
    if len(values) == 0:
        return None
    return float(np.quantile(values, q))


def _ratio(part: float | None, total: float | None) -> float | None:
    """A part over its total; None where either is unknown or the total is 0."""
    if part is None or not total:
        return None
    return part / total
