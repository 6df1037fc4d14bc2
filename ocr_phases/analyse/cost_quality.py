"""What each way to read a page costs and what it loses: the ways of a sweep, the presets of a
batch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from ocr_phases.analyse.sweep_table import loaded_ways
from ocr_phases.text import percent_text

#: One row a way to read a page: ``lost`` is its distance to the truth, or from agreement with the
#: reference, a share of one; ``noisy`` whether its times are not to be trusted, ``frontier``
#: whether it is not and no other costs and loses less.
POINT_COLUMNS = (
    "name",
    "page_ms",
    "prompt_tokens",
    "peak_bytes",
    "lost",
    "measure",
    "reference",
    "noisy",
    "frontier",
)

#: How the figures of a preset follow from those of its pages.
_OVER_PAGES = {
    "pages": "count",
    "page_ms": "median",
    "prompt_tokens": "median",
    "image_tokens": "median",
    "compression": "median",
    "edit_distance": "mean",
    "cer": "mean",
    "table_similarity": "mean",
    "box_recall": "mean",
    "agreement": "mean",
    "peak_bytes": "max",
    "loops": "sum",
}
_MOST_OTHERS = 3  # points that the sentence tells beside the best


def cell_points(table: pd.DataFrame) -> pd.DataFrame:
    """What each cell of `sweep_table` costs and loses, columns `POINT_COLUMNS`: of the smallest
    batch and the longest output.

    A point is called by its preset and what else varies. Empty where no text can be judged.
    """
    varies = [name for name in ("model", "strategy", "vision") if table[name].nunique() > 1]
    names = table[["preset", *varies, *loaded_ways(table)]].agg(", ".join, axis="columns")
    cells = table.assign(name=names, noisy=table["noise"] != "", prompt_tokens=table["prefill_len"])
    cells = cells[cells["batch"] == cells["batch"].min()].sort_values("max_new_tokens")
    name_of_cell = cells.set_index("cell")["name"]
    return _points(cells.assign(reference=cells["reference"].replace(name_of_cell)))


def preset_points(pages: pd.DataFrame) -> pd.DataFrame:
    """The presets of a batch as points, columns `POINT_COLUMNS`, over the pages that all of them
    read.

    ``pages`` are `ocr_phases.batch.index.BatchIndex`'s. Time and prompt are medians over pages,
    memory is the largest, and ``lost`` the mean over pages, as OmniDocBench's edit distance is.
    Empty without a measure.
    """
    presets = _presets(pages).rename(columns={"preset": "name"})
    # Without one of its own a page's reference is its longest prompt.
    longest = presets.nlargest(1, "prompt_tokens")["name"]
    references = [*pages["reference"].dropna(), *longest, None]
    return _points(presets.assign(reference=references[0], noisy=False))


def _points(cells: pd.DataFrame) -> pd.DataFrame:
    """What was judged of the cells, with cost and loss, as `POINT_COLUMNS`, the quickest first.

    Of several cells of one name the last stands for all.
    """
    measure = measure_of(cells) or "agreement"
    measured = cells[measure].astype("float64")
    if measure == "agreement":
        points = cells.assign(lost=1.0 - measured, measure=measure)
    else:
        points = cells.assign(lost=measured, measure=measure, reference=None)
    points = points.dropna(subset=["lost", "page_ms"]).drop_duplicates("name", keep="last")
    points["frontier"] = frontier(points["page_ms"].mask(points["noisy"]), points["lost"])
    return points[list(POINT_COLUMNS)].sort_values("page_ms", ignore_index=True)


def frontier(costs: pd.Series, lost: pd.Series) -> pd.Series:
    """Whether no other point has at most this cost and this loss, and less of one: the Pareto
    frontier.
    """
    least = lost.dropna().groupby(costs).min().cummin()
    cheaper = least.shift(fill_value=np.inf)
    return (lost <= costs.map(least)) & (lost < costs.map(cheaper))


def measure_of(pages: pd.DataFrame) -> str | None:
    """What a batch's pages are judged by: ``edit_distance`` where any has a truth, else
    ``agreement``; None where no page has either.
    """
    for measure in ("edit_distance", "agreement"):
        if pages[measure].notna().any():
            return measure
    return None


def preset_table(pages: pd.DataFrame) -> pd.DataFrame:
    """Each preset over the pages that all read: medians of cost, means of the measures, a row a
    preset.

    Columns: ``preset``, ``pages``, ``page_ms``, ``image_tokens``, ``compression`` (medians), the
    measures, and ``loops``, the pages that end in a loop.
    """
    table = _presets(pages).drop(columns=["prompt_tokens", "peak_bytes"])
    return table.dropna(axis="columns", how="all")


def _presets(pages: pd.DataFrame) -> pd.DataFrame:
    """Cost, measures and loops of each preset over the pages that were judged at every one.

    Over others, one that fails hard pages would look better.
    """
    known = pages.dropna(subset=[measure_of(pages) or "agreement"])
    presets_of_page = known.groupby("page_id")["preset"].transform("nunique")
    known = known[presets_of_page == known["preset"].nunique()]
    known = known.assign(pages=1, loops=known["repetition"] > 0)
    return known.groupby("preset", sort=False).agg(_OVER_PAGES).reset_index()


def category_table(pages: pd.DataFrame) -> pd.DataFrame:
    """The mean measure by category (rows) and preset (columns); empty for a single category."""
    measure = measure_of(pages)
    if measure is None or pages["category"].fillna("").replace("", np.nan).nunique() < 2:
        return pd.DataFrame()
    known = pages.dropna(subset=[measure])
    table = known.pivot_table(index="category", columns="preset", values=measure, sort=False)
    table.insert(0, "pages", known.groupby("category")["page_id"].nunique())
    return table.reset_index()


def cost_quality_sentence(points: pd.DataFrame) -> str:
    """What the ways on the frontier of time lose against the best, and what they save; empty for
    one way.
    """
    points = points[~points["noisy"].astype(bool)]
    if len(points) < 2:
        return ""
    is_reference = points["name"] == points["reference"]
    ranked = points.assign(away=~is_reference).sort_values(["away", "lost", "page_ms"])
    # The reference agrees with itself, and is the first where it is one of the points.
    best = ranked.iloc[0]
    others = points[points["frontier"] & (points["name"] != best["name"])]
    others = others.sort_values("lost").head(_MOST_OTHERS)
    if others.empty:
        return f"{_best_text(best)}: no other way is quicker."
    texts = [_other_text(row, best) for row in others.to_dict("records")]
    return f"{_best_text(best)}: {'; '.join(texts)}."


def _best_text(best: pd.Series) -> str:
    """What the best way loses, or what all others are compared with."""
    if best["measure"] == "edit_distance":
        return f"{best['name']} loses least (edit distance {percent_text(best['lost'])})"
    compared = f"Compared with the text of {best['reference']} (agreement, not accuracy)"
    if best["name"] == best["reference"]:
        return compared
    return f"{compared}, {best['name']} agrees to {percent_text(1.0 - best['lost'])}"


def _other_text(row: Mapping[Any, Any], best: pd.Series) -> str:
    """What another way than the best loses, and the part of its time that it takes."""
    takes = f"takes {row['page_ms'] / best['page_ms']:.2f} of its time"
    if row["measure"] == "edit_distance":
        points_more = 100.0 * (row["lost"] - best["lost"])
        return f"{row['name']} loses {points_more:.1f} points more and {takes}"
    return f"{row['name']} agrees to {percent_text(1.0 - row['lost'])} and {takes}"
