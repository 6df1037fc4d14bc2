"""The stages of a record as rows of a picture: their order, their names and the least share."""

from __future__ import annotations

import pandas as pd

from ocr_phases.analyse.stages import PREFILL_STAGES
from ocr_phases.text import stage_name

SMALL_SHARE = 0.01  # of a whole: what is smaller is drawn with others
_WHOLES = {"prefill": "whole prefill", "decode_step": "decode step"}


def in_prefill_order(table: pd.DataFrame) -> pd.DataFrame:
    """Rows of stages in the order of the prefill, a phase's whole first; ``name`` says stage and
    view.
    """
    order = {stage: place for place, stage in enumerate((*_WHOLES, *PREFILL_STAGES))}
    table = with_names(table[table["stage"].isin(order)])
    return table.sort_values(
        "stage", key=lambda names: names.map(order), kind="stable", ignore_index=True
    )


def with_names(table: pd.DataFrame) -> pd.DataFrame:
    """The table with a column ``name``: the stage in words, and its view."""
    stages = table["stage"].map(lambda stage: _WHOLES.get(stage) or stage_name(stage))
    return table.assign(name=(stages + " " + table["view"]).str.strip())
