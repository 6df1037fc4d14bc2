"""One record as tables: times of each phase, stage and decode step.

Everything here copes with every shape of record: without crops, without decode steps, of one repeat, of a
batch, or of a one-shot ``generate`` run that has no phases to tell apart.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable

import numpy as np
import pandas as pd

from ocr_phases.analyse.kept import kept
from ocr_phases.analyse.typical import typical_run
from ocr_phases.families import VISION_STAGES
from ocr_phases.record import PhaseRun

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


def typical_stage_ms(run: PhaseRun, steps: Collection[int] | None = None) -> dict[Hashable, float]:
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


@kept
def stage_table(run: PhaseRun) -> pd.DataFrame:
    """One row a phase, stage and view, columns `STAGE_COLUMNS`; a phase's whole comes first.

    Times are ms. ``device_ms`` and ``host_ms`` are sums over the ``calls`` of the typical repeat
    (`ocr_phases.analyse.typical`), so that stages add up to their phase; ``device_ms_p10`` and ``_p90`` are
    over all repeats. ``share`` is what ``device_ms`` is of the phase's own. In decode ``language_model``,
    ``lm_head`` and ``sampling`` lie inside ``decode_step``.
    """
    rows = []
    sums, shown = _repeat_sums(run), typical_run(run)
    totals = {phase: float(shown.repeat_ms(phase, phase)[0]) for phase in PHASES}
    for key, spans in shown.spans.groupby([*STAGE_KEYS], sort=False):
        phase, stage, view = map(str, key)
        low, high = np.quantile(sums.loc[(phase, stage, view), :].to_numpy(dtype=np.float64), (0.1, 0.9))
        ms, host = (float(spans[clock].sum()) for clock in ("device_ms", "host_ms"))
        share = ms / totals[phase] if totals[phase] else math.nan
        row = (phase, stage, view, len(spans), ms, float(low), float(high), host, share)
        rows.append(((PHASES.index(phase), stage != phase, spans["host_start_ms"].min(), -ms), row))
    rows.sort(key=lambda row: row[0])
    return pd.DataFrame([row for _, row in rows], columns=list(STAGE_COLUMNS))


@kept
def repeat_table(run: PhaseRun) -> pd.DataFrame:
    """One row a repeat, columns `REPEAT_COLUMNS`, times in ms on the device clock; NaN for a phase it lacks.

    ``ttft_ms`` is prepare plus prefill, ``steps`` the decode steps, ``tokens_per_s``
    `PhaseRun.decoded_tokens` over the whole decode phase.
    """
    table = pd.DataFrame({"repeat": run.repeats})
    for phase in PHASES:
        total = run.repeat_ms(phase, phase)
        table[f"{phase}_ms"] = np.where(total > 0, total, math.nan)
    steps = run.spans[run.spans["stage"] == "decode_step"].groupby("repeat").size()
    table["steps"] = table["repeat"].map(steps).fillna(0).astype("int64")
    table["ttft_ms"] = table["prepare_ms"].fillna(0.0) + table["prefill_ms"]
    rate = run.decoded_tokens / table["decode_ms"] * 1000.0
    table["tokens_per_s"] = rate.where(table["steps"] > 0)
    return table[list(REPEAT_COLUMNS)]


@kept
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
    median = times.median()
    limit = median + OUTLIER_DEVIATIONS * (times - median).abs().median()
    table["outlier"] = (times > limit) & (times > OUTLIER_FACTOR * median)
    return table[list(STEP_COLUMNS)]


def attended(run: PhaseRun, lengths: np.ndarray) -> np.ndarray:
    """The cache entries that a step sees after so many tokens: all, or those of the prompt and the window."""
    window = run.cache.get("window")
    return lengths if window is None else np.minimum(lengths, run.request["prefill_len"] + window)


def step_ms(run: PhaseRun, quantile: float = 0.5) -> np.ndarray:
    """Each repeat's quantile of its decode steps, ms, float64 [repeats]; NaN for a repeat without steps."""
    steps = run.spans[run.spans["stage"] == "decode_step"].groupby("repeat")["device_ms"]
    return steps.quantile(quantile).reindex(run.repeats).to_numpy(dtype=np.float64)


def end_to_end_ms(run: PhaseRun) -> np.ndarray:
    """Each repeat from the page's file to the last token, ms, float64 [repeats]; a batch's rows together."""
    return np.sum([run.repeat_ms(phase, phase) for phase in PHASES], axis=0)


def peak_bytes(run: PhaseRun) -> int | None:
    """The largest memory of any phase and repeat, bytes; None where it was not measured."""
    peaks = [max(values) for values in run.memory.get("peak_bytes", {}).values() if values]
    return max(peaks, default=None)


def vision_share(run: PhaseRun) -> float | None:
    """The vision stages as a part of the prefill, in the typical repeat; None without a prefill."""
    shown = typical_run(run)
    total = float(shown.repeat_ms("prefill", "prefill")[0])
    return (
        sum(float(shown.repeat_ms(stage, "prefill")[0]) for stage in VISION_STAGES) / total if total else None
    )


def _repeat_sums(run: PhaseRun) -> pd.DataFrame:
    """Sum of each stage's calls in one repeat, device ms: a row a phase, stage and view, a column a repeat.

    Zero where a repeat lacks the stage.
    """
    sums = run.spans.groupby([*STAGE_KEYS, "repeat"])["device_ms"].sum().unstack("repeat")
    return sums.reindex(columns=run.repeats).fillna(0.0)
