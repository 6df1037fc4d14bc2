"""The generated tokens of a record, each with its time and region."""

from __future__ import annotations

import numpy as np
import pandas as pd

from ocr_phases.analyse.grounding import parse_grounding, token_regions
from ocr_phases.analyse.kept import kept
from ocr_phases.analyse.probabilities import token_probabilities
from ocr_phases.record import TOKEN_COLUMNS, PhaseRun

# Sums of up to 2^33 ms of multiples of 2^-20 ms fit into a double without rounding.
_SUMMABLE = 2.0**20


@kept
def tokens_of(run: PhaseRun, row: int) -> pd.DataFrame:
    """`PhaseRun.tokens_of`: one row a generated token of batch row ``row``, columns `TOKEN_COLUMNS`."""
    result = run.results[row]
    ids, texts = result["ids"], result["token_texts"]
    redecode = run.request.get("first_token") == "redecode"
    index = np.arange(len(ids))
    step = pd.array(index if redecode else index - 1, dtype="Int64")
    if not redecode:
        step[:1] = pd.NA
    # Objects, because pandas hands text to pyarrow where that is installed, and a token may be a lone
    # surrogate, which pyarrow refuses.
    table = pd.DataFrame({"index": index, "id": ids, "text": pd.Series(texts, dtype=object)})
    table["source"] = np.where(step.isna(), "prefill", "decode")
    table["step"] = step
    lengths = run.cache.get("lengths", [])
    # After the prefill the cache holds lengths[0]; step s leaves lengths[s + 1].
    after = [0 if number is pd.NA else int(number) + 1 for number in step]
    table["cache_len"] = pd.array(
        [lengths[number] if number < len(lengths) else pd.NA for number in after], dtype="Int64"
    )
    table["region"] = token_regions(parse_grounding("".join(texts), run.model.get("family")), texts)
    spans = run.spans[run.spans["stage"] == "decode_step"]
    grouped = spans.groupby("step")
    for column, values in {
        "device_ms": grouped["device_ms"].median(),
        "device_ms_p10": grouped["device_ms"].quantile(0.1),
        "device_ms_p90": grouped["device_ms"].quantile(0.9),
        "host_ms": grouped["host_ms"].median(),
    }.items():
        times = table["step"].map(values).astype("float64")
        table[column] = (times * _SUMMABLE).round() / _SUMMABLE
    return pd.concat([table, token_probabilities(run, row)], axis=1)[list(TOKEN_COLUMNS)]
