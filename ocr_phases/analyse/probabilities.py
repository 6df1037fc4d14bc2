"""How sure the model was of what it wrote: of each token, and of each region's text."""

from __future__ import annotations

import numpy as np
import pandas as pd

from ocr_phases.analyse.grounding import parse_grounding
from ocr_phases.analyse.kept import kept
from ocr_phases.record import PROBABILITY_COLUMNS, PhaseRun
from ocr_phases.text import percent_text

UNCERTAIN_BELOW = 0.9
"""A region is uncertain where the mean probability of its text's tokens is below this (docs/quality.md)."""

UNCERTAIN_TEXT = f"uncertain: mean token probability below {percent_text(UNCERTAIN_BELOW)}"

REGION_PROBABILITY_COLUMNS = ("region", "text_tokens", "probability", "uncertain")


def token_probabilities(run: PhaseRun, row: int = 0) -> pd.DataFrame:
    """One row a generated token, columns `PROBABILITY_COLUMNS`, float64; NaN where not known.

    ``probability`` is the token's own, 0 to 1, ``margin`` its logit minus the highest other one.
    """
    unknown = [None] * len(run.results[row]["ids"])
    known = {} if run.probabilities is None else run.probabilities[row]
    logprobs, margins = (
        np.asarray(known.get(name, unknown), dtype=np.float64) for name in ("logprobs", "margins")
    )
    return pd.DataFrame(dict(zip(PROBABILITY_COLUMNS, (np.exp(logprobs), margins), strict=True)))


def text_tokens(run: PhaseRun, row: int = 0) -> dict[int, np.ndarray]:
    """The tokens of each region's stripped text, as int64 indices: no marks, box or white space around it."""
    result = run.results[row]
    grounding = parse_grounding(result["text"] or "", run.model.get("family"))
    lengths = np.asarray([len(text) for text in result["token_texts"]], dtype=np.int64)
    starts = np.cumsum(lengths) - lengths
    ends = starts + np.maximum(lengths, 1)  # a part of a character has no text, and a place
    found = {}
    for region in grounding.regions:
        inside = (result["text"] or "")[region.content_start : region.end]
        first = region.content_start + len(inside) - len(inside.lstrip())
        own = (starts < first + len(region.text)) & (ends > first) if region.text else starts < 0
        found[region.index] = np.flatnonzero(own)
    return found


@kept
def region_probabilities(run: PhaseRun, row: int = 0) -> pd.DataFrame:
    """One row a region, columns `REGION_PROBABILITY_COLUMNS`.

    ``probability`` is the mean over the tokens of its text (`text_tokens`), NaN for a region without text or
    with an unknown token; ``uncertain`` says whether it is below `UNCERTAIN_BELOW`.
    """
    known = token_probabilities(run, row)["probability"].to_numpy()
    rows = []
    for region, own in text_tokens(run, row).items():
        mean = float(known[own].mean()) if len(own) else float("nan")
        rows.append((region, len(own), mean, mean < UNCERTAIN_BELOW))
    table = pd.DataFrame(rows, columns=list(REGION_PROBABILITY_COLUMNS))
    return table.astype(
        {"region": "int64", "text_tokens": "int64", "probability": "float64", "uncertain": bool}
    )


def uncertain_sentence(run: PhaseRun) -> str:
    """How many of the regions are uncertain, over all rows; empty for none."""
    marked = pd.concat([region_probabilities(run, row)["uncertain"] for row in range(len(run.results))])
    count = int(marked.sum())
    if not count:
        return ""
    verb, whose = ("is", "its") if count == 1 else ("are", "their")
    below = percent_text(UNCERTAIN_BELOW)
    return (
        f"{count} of {len(marked)} regions {verb} uncertain: {whose} text has a mean token probability "
        f"below {below}."
    )
