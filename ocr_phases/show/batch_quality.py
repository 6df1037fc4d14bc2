"""What the pages of a batch lost, as a section of its index."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from ocr_phases.analyse.cost_quality import (
    category_table,
    cost_quality_sentence,
    measure_of,
    preset_points,
    preset_table,
)
from ocr_phases.show.html_table import Heading, table_html
from ocr_phases.show.quality_plots import plot_compression, plot_cost_quality
from ocr_phases.show.section import Section
from ocr_phases.show.web import Html, note
from ocr_phases.text import count_text

#: The pages that the table of the worst ones shows.
_WORST_PAGES = 25
_HEADINGS: dict[str, Heading] = {
    "page_ms": ("time per page", "ms"),
    "inter_token_ms": ("per token", "ms"),
    "decode_ms": ("decode time", "ms"),
}


def batch_quality_section(measured: pd.DataFrame) -> Section:
    """What the measured pages lost: by preset, over compression, by category, and the worst pages.

    The time of a noisy page is not used. A page whose text was cut at the token limit is counted in
    a sentence and not judged.

    Parameters
    ----------
    measured : DataFrame
        The pages with a record, with the columns of `ocr_phases.batch.index.BatchIndex.pages` and
        ``to_page``, the address that a page links to.

    Returns
    -------
    Section
        Empty where no page has a reference text or a page to agree with.
    """
    measure = measure_of(measured)
    if measure is None:
        return Section()
    sentences = [note(_reference_sentence(measured, measure)), note(_cut_sentence(measured))]
    judged = measured[~measured["cut"]]
    if judged[measure].isna().all():
        return Section(*sentences)
    time_of_quiet_pages = judged["page_ms"].mask(judged["noisy"])
    judged = judged.assign(page_ms=time_of_quiet_pages)
    return Section(
        *sentences,
        *_cost_against_quality(judged),
        table_html(preset_table(judged), caption="Each preset", headings=_HEADINGS),
        plot_compression(judged, measure),
        _categories(judged, measure),
        _worst_pages(judged, measure),
    )


def _reference_sentence(pages: pd.DataFrame, measure: str) -> str:
    """What the texts of the pages were compared with."""
    references = sorted(set(pages["reference"].dropna()))
    if references:
        return (
            f"Compared with what another run wrote ({', '.join(references)}): agreement with it, "
            "not accuracy."
        )
    if measure == "agreement":
        return (
            "No page has a reference text. Agreement is with the same page's text at the longest "
            "prompt: it says what a preset changes, not what is right."
        )
    known = pages[measure].notna().sum()
    return (
        f"{known:,} of {len(pages):,} records have a reference text. Means are over pages, as "
        "OmniDocBench's are."
    )


def _cut_sentence(pages: pd.DataFrame) -> str:
    """How many pages are left out because their text was cut; empty for none."""
    cut = int(pages["cut"].sum())
    if not cut:
        return ""
    return (
        f"Left out, as the token limit cut the text: {count_text(cut, 'page')}. Raise "
        "max_new_tokens to judge it."
    )


def _cost_against_quality(pages: pd.DataFrame) -> list[Html | Figure]:
    """The presets by cost and quality as a sentence and a figure; nothing for a single preset."""
    points = preset_points(pages)
    if len(points) < 2:
        return []
    return [note(cost_quality_sentence(points)), plot_cost_quality(points)]


def _categories(pages: pd.DataFrame, measure: str) -> Html:
    """The mean of the measure for each category of pages and each preset."""
    table = category_table(pages)
    headings: dict[str, Heading] = {}
    for preset in table.columns[2:]:  # behind the category and its number of pages
        headings[preset] = (str(preset), "%")
    caption = f"Mean {measure.replace('_', ' ')} by category and preset"
    return table_html(table, caption=caption, headings=headings, empty="")


def _worst_pages(pages: pd.DataFrame, measure: str) -> Html:
    """The pages that lost most, each with a link."""
    more_is_better = measure == "agreement"
    known = pages.dropna(subset=[measure])
    worst_first = known.sort_values(measure, ascending=more_is_better, kind="stable")
    worst = worst_first.head(_WORST_PAGES)
    columns = ["page", "preset", "category", measure, "cer", "repetition", "compression", "tokens"]
    return table_html(
        worst[columns],
        caption="The worst pages first",
        headings=_HEADINGS,
        links={"page": worst["to_page"]},
    )
