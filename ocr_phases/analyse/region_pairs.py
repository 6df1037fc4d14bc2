"""The regions of several records of a page beside each other, matched by where they lie on it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from ocr_phases.analyse.grounding import (
    PREAMBLE,
    Box,
    Grounding,
    Region,
    box_array,
    intersection_over_union,
    parse_grounding,
)
from ocr_phases.analyse.stages import regions_of
from ocr_phases.record import PhaseRun

LEAST_OVERLAP = 0.5
"""Regions are the same if what both cover is this part of what either covers, or more."""


def region_pairs(runs: Sequence[PhaseRun], labels: Sequence[str]) -> pd.DataFrame:
    """The first record's regions (of its first row), one row each, with what each record spent on them.

    Columns ``region``, ``label``, ``text``, then a column a record with its decode time in ms, under its
    label from ``labels`` (all different). NaN where a record has no such region on the page.
    """
    base, *others = runs
    grounding = _grounding(base)
    table = regions_of(base).set_index("region")
    pairs = table[["label", "text"]].assign(**{labels[0]: table["decode_ms"]})
    for run, label in zip(others, labels[1:], strict=True):
        mine = matched_regions(grounding, _grounding(run))
        cost = regions_of(run).set_index("region")["decode_ms"]
        pairs[label] = [float(cost.get(mine.get(region, -2), np.nan)) for region in pairs.index]
    return pairs.reset_index()


def matched_regions(base: Grounding, other: Grounding) -> dict[int, int]:
    """Each region of ``base`` with the one of ``other`` that lies in its place; those without are left out.

    A region takes the free one of its page that it overlaps most. The preambles belong together.
    """
    others = [region for region in other.regions if region.boxes]
    outlines, pages = box_array(map(_outline, others)), np.array([region.page for region in others])
    free = np.ones(len(others), dtype=bool)
    found = {PREAMBLE: PREAMBLE}
    for region in base.regions:
        if not region.boxes or not others:
            continue
        overlaps = intersection_over_union(_outline(region), outlines, ends=1)
        overlaps *= free & (pages == region.page)
        best = int(overlaps.argmax())
        if overlaps[best] >= LEAST_OVERLAP:
            found[region.index] = others[best].index
            free[best] = False
    return found


def _outline(region: Region) -> Box:
    left, top, right, bottom = zip(*region.boxes, strict=True)
    return min(left), min(top), max(right), max(bottom)


def _grounding(run: PhaseRun) -> Grounding:
    return parse_grounding(run.text or "", run.model.get("family"))
