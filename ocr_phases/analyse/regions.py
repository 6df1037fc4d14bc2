"""What each region of a record's output cost to write."""

from __future__ import annotations

import pandas as pd

from ocr_phases.analyse.grounding import parse_grounding, region_table
from ocr_phases.analyse.probabilities import region_probabilities
from ocr_phases.analyse.typical import typical_run
from ocr_phases.record import PhaseRun


def regions_of(run: PhaseRun, row: int = 0) -> pd.DataFrame:
    """`region_table` of batch row ``row``, with the times of the typical repeat.

    Before ``text`` are ``probability`` (0 to 1) and ``uncertain`` of `region_probabilities`; NaN and false
    where the record has none. Without a text all tokens belong to the first row, ``preamble``.
    """
    grounding = parse_grounding(run.results[row]["text"] or "", run.model.get("family"))
    table = region_table(grounding, typical_run(run).tokens_of(row))
    known = region_probabilities(run, row).set_index("region")
    text = table.pop("text")
    table["probability"] = table["region"].map(known["probability"]).astype("float64")
    table["uncertain"] = table["region"].isin(known.index[known["uncertain"]])
    return table.assign(text=text)
