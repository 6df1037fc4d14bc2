"""A record and its repetition, figure by figure."""

from __future__ import annotations

import pandas as pd

from ocr_phases.record import PhaseRun

THEN_NOW_COLUMNS = ("figure", "then", "now", "ratio")

_FIGURES = (
    "prepare_ms",
    "prefill_ms",
    "vision_ms",
    "sam_ms",
    "clip_ms",
    "projector_ms",
    "vision_fusion_ms",
    "prefill_decoder_ms",
    "ttft_ms",
    "decode_ms",
    "inter_token_ms",
    "inter_token_ms_p90",
    "inter_token_ms_p99",
    "tokens_per_s",
    "generate_ms",
    "tokens",
    "prefill_peak_bytes",
    "decode_peak_bytes",
    "kv_cache_bytes",
)


def then_and_now(then: PhaseRun, now: PhaseRun) -> pd.DataFrame:
    """Every headline figure that both have, columns `THEN_NOW_COLUMNS`; ``ratio`` is now over then."""
    before, after = then.summary(), now.summary()
    rows = [
        (name, float(before[name]), float(after[name]), after[name] / before[name] if before[name] else None)
        for name in _FIGURES
        if before.get(name) is not None and after.get(name) is not None
    ]
    return pd.DataFrame(rows, columns=list(THEN_NOW_COLUMNS))


def same_tokens(then: PhaseRun, now: PhaseRun) -> bool:
    """Whether every row generated the same tokens."""
    return [row["ids"] for row in then.results] == [row["ids"] for row in now.results]


def what_differs(then: PhaseRun, now: PhaseRun) -> list[str]:
    """What the two were not measured alike with: device and versions, one ``name: then -> now`` each."""
    pairs = [("device", then.device.get("name"), now.device.get("name"))]
    pairs += [(name, then.versions.get(name), now.versions.get(name)) for name in now.versions]
    return [f"{name}: {old or 'none'} -> {new or 'none'}" for name, old, new in pairs if old != new]
