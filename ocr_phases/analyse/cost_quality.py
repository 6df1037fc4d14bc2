"""What each way to read a page costs beside what it loses: the frontier of both, over a sweep or a batch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd

from ocr_phases.analyse.grounding import parse_grounding
from ocr_phases.analyse.quality import quality_of, text_measures
from ocr_phases.analyse.read_text import plain_text
from ocr_phases.record import PhaseRun
from ocr_phases.text import percent_text

#: One row a way to read a page: ``lost`` is its distance to the truth, or from agreement with the reference,
#: a share of one; ``frontier`` whether no other costs and loses less.
POINT_COLUMNS = ("name", "page_ms", "prompt_tokens", "peak_bytes", "lost", "measure", "reference", "frontier")

_TOLD = 3  # points beside the best


def losses(records: Mapping[str, PhaseRun]) -> pd.DataFrame:
    """What each record of one page lost: columns ``edit_distance``, ``agreement`` and ``reference``.

    The index is their names. ``edit_distance`` is by the record's own truth. Where no record has one,
    ``agreement`` is with the record of the longest prompt, an eager one first; ``reference`` names that, or
    the record that is the truth. Records that ignored the end token are left out. All are of the first row.
    """
    table = pd.DataFrame(index=list(records), columns=["edit_distance", "agreement", "reference"])
    found = {name: {} if run.request.get("ignore_eos") else quality_of(run) for name, run in records.items()}
    for column in ("edit_distance", "agreement"):
        table[column] = [found[name].get(column, np.nan) for name in records]
    truths = {name: run.truth_of() for name, run in records.items()}
    table["reference"] = [truth.file if truth and truth.reference else None for truth in truths.values()]
    if not any(found.values()):
        texts = {name: text for name, run in records.items() if (text := ended_text(run))}
        reference = max(texts, key=lambda name: richness(records[name]), default=None)
        if reference is not None and len(texts) > 1:
            table["agreement"] = agreements(texts, reference)
            table["reference"] = reference
    return table.astype({"edit_distance": "float64", "agreement": "float64"})


def agreements(texts: Mapping[Any, str], reference: Any) -> dict[Any, float]:
    """Of each plain text with the one called ``reference``: 1 minus their edit distance."""
    return {
        name: 1.0 - text_measures(text, texts[reference])["edit_distance"][0] for name, text in texts.items()
    }


def frontier(costs: pd.Series, lost: pd.Series) -> pd.Series:
    """Whether no other point has at most this cost and this loss, and less of one: the Pareto frontier."""
    beaten = [
        bool((((costs <= cost) & (lost <= loss)) & ((costs < cost) | (lost < loss))).any())
        for cost, loss in zip(costs, lost, strict=True)
    ]
    return ~pd.Series(beaten, index=costs.index, dtype=bool) & costs.notna() & lost.notna()


def sweep_points(table: pd.DataFrame, names: pd.Series) -> pd.DataFrame:
    """The cells of a sweep as points, columns `POINT_COLUMNS`: the smallest batch, the longest output.

    ``table`` is `ocr_phases.analyse.sweep.sweep_table`'s, ``names`` what its cells are called.
    """
    known = table[(table["batch"] == table["batch"].min())].assign(name=names)
    measure = "edit_distance" if known["edit_distance"].notna().any() else "agreement"
    known = known[known[measure].notna() & known["page_ms"].notna()]
    known = known.sort_values("max_new_tokens").drop_duplicates("name", keep="last")
    lost = known[measure] if measure == "edit_distance" else 1.0 - known[measure]
    called = dict(zip(known["cell"], known["name"], strict=True))
    reference = known["reference"].map(lambda name: called.get(name, name))
    points = known.assign(lost=lost, measure=measure, reference=reference)
    points["prompt_tokens"] = points["prefill_len"].astype("float64")
    points["frontier"] = frontier(points["page_ms"], points["lost"])
    return points[list(POINT_COLUMNS)].sort_values("page_ms").reset_index(drop=True)


def preset_points(pages: pd.DataFrame) -> pd.DataFrame:
    """The presets of a batch as points, columns `POINT_COLUMNS`, over the pages that all of them read.

    ``pages`` are `ocr_phases.batch.index.BatchIndex`'s. Time and prompt are medians over pages, memory is the
    largest, and ``lost`` the mean over pages, as OmniDocBench's edit distance is. Empty without a measure.
    """
    measure = measure_of(pages)
    if measure is None:
        return pd.DataFrame(columns=list(POINT_COLUMNS))
    known = _read_by_all(pages.dropna(subset=[measure, "page_ms"]))
    lost = known[measure] if measure == "edit_distance" else 1.0 - known[measure]
    groups = known.assign(lost=lost).groupby("preset", sort=False)
    points = groups.agg(
        page_ms=("page_ms", "median"),
        prompt_tokens=("prompt_tokens", "median"),
        peak_bytes=("peak_bytes", "max"),
        lost=("lost", "mean"),
    ).reset_index(names="name")
    # Without one of its own a page's reference is its longest prompt.
    longest = points.sort_values("prompt_tokens")["name"].tolist()[-1:]
    reference = [*known["reference"].dropna(), *longest, None][0]
    points = points.assign(measure=measure, reference=reference if measure == "agreement" else None)
    points["frontier"] = frontier(points["page_ms"], points["lost"])
    return points[list(POINT_COLUMNS)].sort_values("page_ms").reset_index(drop=True)


def measure_of(pages: pd.DataFrame) -> str | None:
    """What a batch's pages are judged by: ``edit_distance`` where any has a truth, else ``agreement``."""
    return next((name for name in ("edit_distance", "agreement") if pages[name].notna().any()), None)


def preset_table(pages: pd.DataFrame) -> pd.DataFrame:
    """Each preset over the pages that all read: medians of cost, means of the measures, a row a preset.

    Columns: ``preset``, ``pages``, ``page_ms``, ``image_tokens``, ``compression`` (medians), the measures,
    and ``loops``, the pages that end in a loop.
    """
    measure = measure_of(pages)
    known = _read_by_all(pages.dropna(subset=[measure])) if measure else pages.head(0)
    groups = known.assign(loops=known["repetition"] > 0).groupby("preset", sort=False)
    means = ("edit_distance", "cer", "table_similarity", "box_recall", "agreement")
    table = groups.agg(
        pages=("page", "size"),
        **{name: (name, "median") for name in ("page_ms", "image_tokens", "compression")},
        **{name: (name, "mean") for name in means},
        loops=("loops", "sum"),
    )
    return table.reset_index().dropna(axis="columns", how="all")


def category_table(pages: pd.DataFrame) -> pd.DataFrame:
    """The mean measure by category (rows) and preset (columns); empty for a single category."""
    measure = measure_of(pages)
    if measure is None or pages["category"].fillna("").replace("", np.nan).nunique() < 2:
        return pd.DataFrame()
    known = pages.dropna(subset=[measure])
    table = known.pivot_table(index="category", columns="preset", values=measure, sort=False)
    table.insert(0, "pages", known.groupby("category")["page_id"].nunique())
    return table.reset_index()


def _read_by_all(pages: pd.DataFrame) -> pd.DataFrame:
    """The pages that were judged at every preset: else one that fails hard pages would look better."""
    presets = pages.groupby("page_id")["preset"].nunique()
    return pages[pages["page_id"].isin(presets.index[presets == pages["preset"].nunique()])]


def cost_quality_sentence(points: pd.DataFrame) -> str:
    """What the ways on the frontier of time lose against the best, and what they save; empty for one way."""
    if len(points) < 2:
        return ""
    by_agreement = points["measure"].iloc[0] == "agreement"
    reference = points["reference"].iloc[0]
    best = points.sort_values(["lost", "page_ms"]).iloc[0]
    if by_agreement and reference in set(points["name"]):
        best = points[points["name"] == reference].iloc[0]
    others = points[points["frontier"] & (points["name"] != best["name"])].sort_values("lost").head(_TOLD)
    told = []
    for name, lost, ms in others[["name", "lost", "page_ms"]].itertuples(index=False, name=None):
        what = f"agrees to {percent_text(1.0 - lost)}"
        if not by_agreement:
            what = f"loses {100.0 * (lost - best['lost']):.1f} points more"
        told.append(f"{name} {what} and takes {ms / best['page_ms']:.2f} of its time")
    sentence = f"Compared with the text of {reference} (agreement, not accuracy)"
    if best["name"] != reference:
        sentence += f", {best['name']} agrees to {percent_text(1.0 - best['lost'])}"
    if not by_agreement:
        sentence = f"{best['name']} loses least (edit distance {percent_text(best['lost'])})"
    return f"{sentence}: {'; '.join(told) or 'no other way is quicker'}."


def ended_text(run: PhaseRun) -> str:
    """A run's plain text, for others to agree with; empty where the end token was ignored."""
    text = run.result["text"]
    if run.request.get("ignore_eos") or not text:
        return ""
    return plain_text(parse_grounding(text, run.model.get("family")).without_marks(text))


def richness(run: PhaseRun) -> tuple[int, bool, bool]:
    """By what a record becomes the reference of others: its prompt's length, then eager steps."""
    eager = run.model["strategy"] == "eager", run.request["vision"] == "eager"
    return run.request["prefill_len"], *eager
