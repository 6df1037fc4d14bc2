"""How sure the model was of its tokens, by token and by region."""

from __future__ import annotations

import numpy as np
import pandas as pd

from ocr_phases.analyse.grounding import parse_grounding
from ocr_phases.record import PhaseRun

REGION_PROBABILITIES = ("region", "label", "tokens", "probability", "least_probability", "least_margin")


def probability_table(run: PhaseRun, row: int = 0) -> pd.DataFrame:
    """One row a generated token: ``index``, ``logprob``, ``probability``, ``margin``; empty without them."""
    kept: dict[str, list[float | None]] = {"logprobs": [], "margins": []}
    if run.probabilities is not None:
        kept = run.probabilities[row]
    logprob, margin = (np.asarray(kept[name], dtype=np.float64) for name in ("logprobs", "margins"))
    table = {"logprob": logprob, "probability": np.exp(logprob), "margin": margin}
    return pd.DataFrame({"index": np.arange(len(logprob)), **table})


def region_probabilities(run: PhaseRun, row: int = 0) -> pd.DataFrame:
    """One row a region, columns `REGION_PROBABILITIES`, over the tokens that begin in its text.

    ``probability`` is the geometric mean. Marks and coordinates do not count: a box is unsure by a pixel
    where its text is not. Of a region without text, or with unknown tokens only, figures are NaN.
    """
    grounding = parse_grounding(run.results[row]["text"] or "", run.model.get("family"))
    known = probability_table(run, row)
    texts = run.results[row]["token_texts"][: len(known)]
    starts = np.cumsum([0, *map(len, texts)])[:-1]
    rows = []
    for region in grounding.regions:
        own = known[(starts >= region.content_start) & (starts < region.end)]
        mean = float(np.exp(own["logprob"].mean()))
        rows.append(
            (region.index, region.label, len(own), mean, own["probability"].min(), own["margin"].min())
        )
    return pd.DataFrame(rows, columns=list(REGION_PROBABILITIES))
