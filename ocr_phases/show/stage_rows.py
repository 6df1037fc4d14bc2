"""The stages of a record as rows of a picture: their order, their names and the least share."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd

from ocr_phases.stages import Stage, stage_title

SMALL_SHARE = 0.01  # of a whole: what is smaller is drawn with others
_WHOLES = {"prefill": "whole prefill", "decode_step": "decode step"}


def in_prefill_order(table: pd.DataFrame, stages: Mapping[str, Stage]) -> pd.DataFrame:
    """The rows of stages in the order of the prefill, a whole phase before its stages.

    ``stages`` are those of the record (`ocr_phases.analyse.stages.stages_of`). The new column
    ``name`` says stage and view.
    """
    order = list(_WHOLES)
    for name, stage in stages.items():
        if stage.role != "prepare":
            order.append(name)
    places = {name: place for place, name in enumerate(order)}
    rows = with_names(table[table["stage"].isin(places)])
    return rows.sort_values(
        "stage", key=lambda names: names.map(places), kind="stable", ignore_index=True
    )


def with_names(table: pd.DataFrame) -> pd.DataFrame:
    """The table with a column ``name``: the stage in words, and its view."""
    stages = table["stage"].map(_stage_name)
    return table.assign(name=(stages + " " + table["view"]).str.strip())


def _stage_name(stage: str) -> str:
    return _WHOLES.get(stage) or stage_title(stage)
