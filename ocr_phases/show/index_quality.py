"""What the pages of a batch lost, in its index: by preset, by category, page by page, over compression."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd

from ocr_phases.analyse.scaling import (
    category_table,
    cost_quality_sentence,
    measure_of,
    preset_points,
    preset_table,
)
from ocr_phases.show.blocks import Html, fragment
from ocr_phases.show.cost_quality import plot_compression, plot_cost_quality
from ocr_phases.show.figures import Picture
from ocr_phases.show.html import note_html, table_html

_WORST = 25
_HEADINGS = {
    "page_ms": ("time per page", "ms"),
    "image_tokens": ("image tokens", ""),
    "edit_distance": ("edit distance", "%"),
    "cer": ("CER", "%"),
    "table_similarity": ("tables (TEDS)", "%"),
    "box_recall": ("boxes found", "%"),
    "agreement": ("agreement", "%"),
    "loops": ("end in a loop", ""),
}


def quality_section(pages: pd.DataFrame, address: Callable[[Any, str], str]) -> Html | None:
    """What the measured pages lost; None where none can be judged.

    ``pages`` are `ocr_phases.batch.index.BatchIndex`'s, ``address`` makes a link of a page's folder and file.
    """
    measure = measure_of(pages)
    if measure is None:
        return None
    points = preset_points(pages)
    parts = [note_html(_lead(pages, measure))]
    if len(points) > 1:
        parts.append(note_html(cost_quality_sentence(points)))
        alt = "What each preset loses over its time, its prompt and its memory"
        parts.append(Picture(plot_cost_quality(points), alt).html())
    parts.append(table_html(preset_table(pages), caption="Each preset", headings=_HEADINGS))
    alt = "What each page loses over its compression"
    parts.append(Picture(plot_compression(pages, measure), alt).html())
    parts.append(note_html(_counted(pages)))
    categories = category_table(pages)
    if len(categories):
        percent = {name: (str(name), "%") for name in categories.columns[2:]}
        caption = f"Mean {_HEADINGS[measure][0]} by category and preset"
        parts.append(table_html(categories, caption=caption, headings=percent))
    return fragment(*parts, _worst(pages, measure, address))


def _lead(pages: pd.DataFrame, measure: str) -> str:
    known = int(pages[measure].notna().sum())
    references = ", ".join(sorted(set(pages["reference"].dropna())))
    if references:
        return f"Compared with what another run wrote ({references}): agreement with it, not accuracy."
    if measure == "agreement":
        return (
            "No page has a truth. Agreement is with the same page's text at the longest prompt: it says what "
            "a preset changes, not what is right."
        )
    return f"{known:,} of {len(pages):,} records have a truth. Means are over pages, as OmniDocBench's are."


def _counted(pages: pd.DataFrame) -> str:
    counted = "Compression counts the tokens that were generated"
    vendor = (pages["vendor_compression"] / pages["compression"]).median()
    if pd.isna(vendor):
        return f"{counted}."
    return (
        f"{counted}. The vendor counts the text tokenised again, which gives {vendor:.2f} times as many here "
        "(vendor_compression in pages.csv)."
    )


def _worst(pages: pd.DataFrame, measure: str, address: Callable[[Any, str], str]) -> Html:
    rising = measure == "agreement"
    rows = pages.dropna(subset=[measure]).sort_values(measure, ascending=rising, kind="stable").head(_WORST)
    names = ["page", "preset", "category", measure, "cer", "repetition", "compression", "tokens"]
    table = rows[[name for name in names if rows[name].replace("", pd.NA).notna().any()]]
    reports = [
        address(folder, "report.html" if report else "run.json")
        for folder, report in zip(rows["folder"], rows["report"], strict=True)
    ]
    headings = {**_HEADINGS, "repetition": ("in a final loop", "%")}
    return table_html(table, caption="The worst pages first", headings=headings, links={"page": reports})
