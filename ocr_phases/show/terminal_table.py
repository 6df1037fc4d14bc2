"""A DataFrame as a table for a terminal."""

from __future__ import annotations

import math

import pandas as pd

from ocr_phases.text import digits_text

#: Columns of ratios near 1, where three digits would hide a change.
_RATIO_COLUMNS = ("ratio", "ratio_low", "ratio_high")


def table_text(table: pd.DataFrame) -> str:
    """A table for a terminal, without its index.

    A number has three digits, a ratio three decimals.
    """
    ratios = {name: _ratio_text for name in _RATIO_COLUMNS if name in table}
    return table.to_string(index=False, float_format=_float_text, formatters=ratios, na_rep="")


def _float_text(value: float) -> str:
    return digits_text(value) if math.isfinite(value) else str(value)


def _ratio_text(value: float) -> str:
    return "" if math.isnan(value) else f"{value:,.3f}"
