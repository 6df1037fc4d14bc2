"""What is drawn of a curve of times, and up to where its axis reaches."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pandas as pd

#: The share of all steps that are usual: those that take longer share the end of a scale.
USUAL_SHARE = 0.98
_HEIGHT_OF_USUAL = 1.3  # a curve's height, in heights of its slowest usual step


def curve_top(times: Sequence[float] | pd.Series) -> float:
    """Up to how many ms a curve of times in ms is drawn; what is higher is cut off."""
    return _HEIGHT_OF_USUAL * time_below(times, USUAL_SHARE)


def time_below(times: Sequence[float] | pd.Series, share: float) -> float:
    """The time in ms that this share of the times stays below; 1 for no times."""
    if len(times) == 0:
        return 1.0
    return float(np.quantile(times, share))


def slowest_points(
    times: Sequence[float] | pd.Series, length: int, most: int
) -> list[tuple[int, float]]:
    """Points of a curve that has no more of them than can be seen, and every slow token.

    Parameters
    ----------
    times : sequence of float, or Series
        The ms of each token; a missing one has no point.
    length : int
        Tokens that the axis is long.
    most : int
        How many points an axis of that length has at most.

    Returns
    -------
    list of (int, float)
        The token, counted from 0, and its ms: the slowest of each few tokens.

    Examples
    --------
    >>> slowest_points([2.0, 9.0, 3.0, 1.0], 4, 2)
    [(1, 9.0), (2, 3.0)]
    """
    known = pd.Series(times, dtype=float).dropna()
    tokens_per_point = max(math.ceil(length / most), 1)
    slowest_tokens = known.groupby(known.index // tokens_per_point).idxmax()
    slowest = known[slowest_tokens].round(4)
    return list(zip(slowest.index.tolist(), slowest.tolist(), strict=True))
