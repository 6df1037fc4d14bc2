"""The index of a batch: one HTML file without requests that links to the reports."""

from __future__ import annotations

from collections.abc import Iterator
from urllib.parse import quote

import pandas as pd
from matplotlib.figure import Figure

from ocr_phases.analyse.cost import hours_per_1000_pages
from ocr_phases.analyse.cost_quality import (
    category_table,
    cost_quality_sentence,
    measure_of,
    preset_points,
    preset_table,
)
from ocr_phases.analyse.figure_rows import Place, names_in
from ocr_phases.analyse.repetition import loops_sentence
from ocr_phases.files import RECORD
from ocr_phases.show.batch_plots import plot_distributions
from ocr_phases.show.html_table import table_html
from ocr_phases.show.quality_plots import plot_compression, plot_cost_quality
from ocr_phases.show.section import Section
from ocr_phases.show.web import Html, block, document_html, element, fragment, note, section_heading
from ocr_phases.text import count_text, digits_text, ms_text, percent_text

#: Rows of a table in the page: a browser sorts no million. pages.csv has them all.
MOST_ROWS = 2_000
# The table of pages has more columns than a report's tables.
_WIDER = "main, nav ul, footer { max-width: 1320px; }"
_WORST = 25
_PAGES = ["page", "preset", "status", *names_in(Place.INDEX), "remarks"]
_COMPARED = {
    "edit_distance": "{} records have a reference text. Means are over pages, as OmniDocBench's "
    "are.",
    "agreement": "No page has a reference text. Agreement is with the same page's text at the "
    "longest prompt: it says what a preset changes, not what is right.",
}
_HEADINGS = {
    "page_ms": ("time", "ms"),
    "inter_token_ms": ("per token", "ms"),
    "decode_ms": ("decode time", "ms"),
}
_MEANS = {**_HEADINGS, "page_ms": ("time per page", "ms")}
_CUT = "Left out, as the token limit cut the text: {}. Raise max_new_tokens to judge it."
_LINKED = "A page links to its report, else to its record; its status links to all attempts."


def index_html(
    pages: pd.DataFrame,
    regions: pd.DataFrame,
    *,
    title: str,
    facts: dict[str, str],
    left_out: dict[str, int],
) -> str:
    """The index of a batch.

    ``pages`` and ``regions`` are `ocr_phases.batch.index.BatchIndex`'s, ``facts`` one line about
    the whole each (label to value), ``left_out`` the number of files by suffix that were no pages.
    Everything in them is escaped.
    """
    pages = _with_addresses(pages)
    measured = pages[pages["status"] == "done"]
    quiet = measured[~measured["noisy"]]
    drawn = (
        note("No page was measured on a quiet machine.")
        if quiet.empty
        else plot_distributions(quiet)
    )
    files = [
        element("li", element("a", csv, href=csv))
        for csv in ("pages.csv", "spans.csv", "tokens.csv")
    ]
    sections = {
        "Pages": _pages(pages),
        "Quality": Section(*_quality(measured)),
        "Distributions": Section(drawn),
        "Slowest regions": _regions(regions, measured),
        "Tables": Section(element("ul", *files, class_="op")),
    }
    shown = {
        heading: Html(section.html()) for heading, section in sections.items() if section.parts
    }
    contents = [(heading, heading.replace(" ", "-")) for heading in shown]
    about = " · ".join(f"{label} {value}" for label, value in facts.items())
    loops = loops_sentence(measured, "page")
    body = fragment(
        block("head", picture="", title=title, about=about, headline=loops, lead="", below=""),
        block("cards", figures=list(_cards(pages, measured, left_out))),
        *(
            element("section", section_heading(heading), content)
            for heading, content in shown.items()
        ),
    )
    return document_html(title, contents, body, css=_WIDER)


def _with_addresses(pages: pd.DataFrame) -> pd.DataFrame:
    """The pages with the addresses of what is in their folders, empty for none."""
    at = pages["folder"].fillna("").map(quote) + "/"
    best = (
        (at + RECORD).where(pages["status"] == "done", "").mask(pages["report"], at + "report.html")
    )
    return pages.assign(to_page=best, to_status=(at + "status.json").where(at != "/", ""))


def _cards(
    pages: pd.DataFrame, measured: pd.DataFrame, others: dict[str, int]
) -> Iterator[tuple[str, ...]]:
    failed = len(pages) - len(measured)
    warned, again = (measured["warnings"].fillna("") != "").sum(), (pages["attempts"] > 1).sum()
    yield "Pages", f"{len(pages):,}", f"{len(measured):,} measured, {warned:,} with warnings"
    yield (
        "Failed",
        f"{failed:,}",
        f"{percent_text(failed / max(1, len(pages)))}; {again:,} tried again",
    )
    if twice := pages.loc[pages["id"] != "", "id"].duplicated().sum():
        yield "Listed twice", f"{twice:,}", "pages that were named before, measured once"
    if others:
        yield (
            "Left out",
            f"{sum(others.values()):,}",
            f"files that are no pages: {', '.join(sorted(others))}",
        )
    quiet, noisy = (
        measured[~measured["noisy"]],
        count_text(int(measured["noisy"].sum()), "noisy page"),
    )
    over = "median over pages" if len(quiet) == len(measured) else f"median without {noisy}"
    yield "Time to first token", ms_text(quiet["ttft_ms"].median()), over
    yield "Inter-token latency", ms_text(quiet["inter_token_ms"].median()), over
    times = quiet["page_ms"].dropna()
    if len(times):
        middle, *tail = map(ms_text, times.quantile([0.5, 0.9, 0.99]))
        yield (
            "Time per page",
            middle,
            f"{over}; p90 {tail[0]}, p99 {tail[1]}, from file to last token",
        )
        after = "one page after another"
        yield "Pages per minute", f"{60_000.0 / times.mean():,.1f}", f"on one device, {after}"
        joules, price = quiet["wh_per_1000_pages"].mean(), quiet["price_per_1000_pages"].mean()
        if joules == joules:  # is known
            yield "Energy of 1,000 pages", f"{digits_text(joules)} Wh", after
        if price == price:
            hour = price / hours_per_1000_pages(times.mean())
            yield "Price of 1,000 pages", digits_text(price), f"at {hour:,.6g} an hour, {after}"
    yield "Tokens", f"{int(measured['tokens'].sum()):,}", "over all pages, one repeat"


def _pages(pages: pd.DataFrame) -> Section:
    """Failures first, then pages with warnings, then the slowest, with links to what is in their
    folders.
    """
    warnings = pages["warnings"].fillna("")
    remarks = pages["reason"].where(pages["reason"].fillna("") != "", warnings)
    ordered = pages.assign(late=pages["status"] == "done", calm=warnings == "", remarks=remarks)
    worst = ordered.sort_values(
        ["late", "calm", "decode_ms"], ascending=[True, True, False], kind="stable"
    )
    shown = worst.head(MOST_ROWS)
    columns = [name for name in _PAGES if name != "repeated_share" or (shown[name] > 0).any()]
    links = {name: shown[f"to_{name}"] for name in ("page", "status")}
    caption = "Failures first, pages with warnings, then the slowest decode"
    table = table_html(shown[columns], caption=caption, links=links, headings=_HEADINGS)
    more = f"The first {MOST_ROWS:,} of {len(pages):,} rows; pages.csv has all."
    return Section(note(_LINKED), table, note(more if len(pages) > MOST_ROWS else ""))


def _regions(regions: pd.DataFrame, measured: pd.DataFrame) -> Section:
    if regions.empty:
        return Section(note("The outputs mark no region."))
    best = dict(zip(measured["folder"], measured["to_page"], strict=True))
    links, caption = (
        {"page": regions["folder"].map(best)},
        "The regions with the longest decode time",
    )
    table = regions.drop(columns="folder")
    return Section(
        table_html(table, caption=caption, links=links, headings=_HEADINGS, missing="no text")
    )


def _quality(pages: pd.DataFrame) -> Iterator[Html | Figure]:
    """What the measured pages lost: by preset, over compression, by category, page by page; or
    nothing.

    Noisy pages have no time here, and those that were cut at the token limit are named, not judged.
    """
    measure = measure_of(pages)
    if measure is None:
        return
    yield note(_compared_with(pages, measure))
    cut = int(pages["cut"].sum())
    yield note(_CUT.format(count_text(cut, "page")) if cut else "")
    pages = pages[~pages["cut"]].assign(page_ms=pages["page_ms"].mask(pages["noisy"]))
    if pages[measure].isna().all():
        return
    points = preset_points(pages)
    if len(points) > 1:
        yield note(cost_quality_sentence(points))
        yield plot_cost_quality(points)
    yield table_html(preset_table(pages), caption="Each preset", headings=_MEANS)
    yield plot_compression(pages, measure)
    categories = category_table(pages)
    percent = {name: (str(name), "%") for name in categories.columns[2:]}
    caption = f"Mean {measure.replace('_', ' ')} by category and preset"
    yield table_html(categories, caption=caption, headings=percent, empty="")
    worst = pages.dropna(subset=[measure])
    worst = worst.sort_values(measure, ascending=measure == "agreement", kind="stable").head(_WORST)
    columns = ["page", "preset", "category", measure, "cer", "repetition", "compression", "tokens"]
    links = {"page": worst["to_page"]}
    yield table_html(worst[columns], caption="The worst pages first", headings=_MEANS, links=links)


def _compared_with(pages: pd.DataFrame, measure: str) -> str:
    known, references = (
        pages[measure].notna().sum(),
        ", ".join(sorted(set(pages["reference"].dropna()))),
    )
    if references:
        return (
            f"Compared with what another run wrote ({references}): agreement with it, not accuracy."
        )
    return _COMPARED[measure].format(f"{known:,} of {len(pages):,}")
