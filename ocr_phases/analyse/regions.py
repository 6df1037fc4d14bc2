"""What each region of a record's output cost to write."""

from __future__ import annotations

import pandas as pd

from ocr_phases.analyse.grounding import parse_grounding, region_table
from ocr_phases.analyse.typical import typical_run
from ocr_phases.record import PhaseRun


def regions_of(run: PhaseRun, row: int = 0) -> pd.DataFrame:
    """`region_table` of batch row ``row``, with the times of the typical repeat.

    Without a text all tokens belong to the first row, ``preamble``.
    """
    grounding = parse_grounding(run.results[row]["text"] or "", run.model.get("family"))
    return region_table(grounding, typical_run(run).tokens_of(row))
