"""The index of a batch: one HTML file without requests that links to the reports."""

from __future__ import annotations

from urllib.parse import quote

import pandas as pd

from ocr_phases.analyse.cards import KeyFigure
from ocr_phases.analyse.cost import hours_per_1000_pages
from ocr_phases.analyse.figure_rows import Place, names_in
from ocr_phases.analyse.repetition import loops_sentence
from ocr_phases.files import RECORD
from ocr_phases.show.batch_plots import plot_distributions
from ocr_phases.show.batch_quality import batch_quality_section
from ocr_phases.show.html_table import Heading, table_html
from ocr_phases.show.section import Section, sections_document
from ocr_phases.show.web import block, element, fragment, note
from ocr_phases.text import count_text, digits_text, ms_text, percent_text

#: Rows of a table in the page: a browser sorts no million. pages.csv has them all.
MOST_ROWS = 2_000
# The table of pages has more columns than a report's tables.
_WIDER = "main, nav ul, footer { max-width: 1320px; }"
_TABLES = ("pages.csv", "spans.csv", "tokens.csv")
_PAGE_COLUMNS = ["page", "preset", "status", *names_in(Place.INDEX), "remarks"]
_HEADINGS: dict[str, Heading] = {
    "page_ms": ("time", "ms"),
    "inter_token_ms": ("per token", "ms"),
    "decode_ms": ("decode time", "ms"),
}


def index_html(
    pages: pd.DataFrame,
    regions: pd.DataFrame,
    *,
    title: str,
    facts: dict[str, str],
    left_out: dict[str, int],
) -> str:
    """The index of a batch as a whole HTML file.

    Everything in the arguments is escaped.

    Parameters
    ----------
    pages, regions : DataFrame
        Those of `ocr_phases.batch.index.BatchIndex`.
    title : str
        The heading of the page.
    facts : dict of str to str
        What is said of the whole batch in one line: each label with its value.
    left_out : dict of str to int
        The number of files that were no pages, by suffix.

    Returns
    -------
    str
        The file's text.
    """
    pages = _with_addresses(pages)
    measured = pages[pages["status"] == "done"]
    about = " · ".join(f"{label} {value}" for label, value in facts.items())
    loops = loops_sentence(measured, "page")
    head = block("head", picture="", title=title, about=about, headline=loops, lead="", below="")
    cards = block("cards", figures=_cards(pages, measured, left_out))
    sections = {
        "Pages": _pages_section(pages),
        "Quality": batch_quality_section(measured),
        "Distributions": _distributions_section(measured),
        "Slowest regions": _regions_section(regions, measured),
        "Tables": _tables_section(),
    }
    return sections_document(title, fragment(head, cards), sections, css=_WIDER)


def _with_addresses(pages: pd.DataFrame) -> pd.DataFrame:
    """The pages with two more columns, the addresses that their names and status link to.

    ``to_page`` is the report of a page, or its record where it has no report; ``to_status`` is its
    status file. An address is empty where there is nothing to link to.
    """
    folders = pages["folder"].fillna("").map(quote)
    to_record = folders + "/" + RECORD
    to_report = folders + "/report.html"
    to_status = folders + "/status.json"
    to_page = to_record.where(pages["status"] == "done", "").mask(pages["report"], to_report)
    return pages.assign(to_page=to_page, to_status=to_status.mask(folders == "", ""))


# -- cards -----------------------------------------------------------------------------------------


def _cards(
    pages: pd.DataFrame, measured: pd.DataFrame, left_out: dict[str, int]
) -> list[KeyFigure]:
    """The figures of the whole batch: how many pages, how fast, and what they cost."""
    quiet = measured[~measured["noisy"]]
    which_median = "median over pages"
    if len(quiet) < len(measured):
        which_median = f"median without {count_text(len(measured) - len(quiet), 'noisy page')}"
    first_token = ms_text(quiet["ttft_ms"].median())
    between_tokens = ms_text(quiet["inter_token_ms"].median())
    tokens = int(measured["tokens"].sum())
    return [
        *_count_cards(pages, measured, left_out),
        KeyFigure("Time to first token", first_token, which_median),
        KeyFigure("Inter-token latency", between_tokens, which_median),
        *_page_time_cards(quiet, which_median),
        KeyFigure("Tokens", f"{tokens:,}", "over all pages, one repeat"),
    ]


def _count_cards(
    pages: pd.DataFrame, measured: pd.DataFrame, left_out: dict[str, int]
) -> list[KeyFigure]:
    """How many pages were measured, failed, were named twice and were left out."""
    with_warnings = (measured["warnings"].fillna("") != "").sum()
    outcomes = f"{len(measured):,} measured, {with_warnings:,} with warnings"
    cards = [KeyFigure("Pages", f"{len(pages):,}", outcomes)]
    failed = len(pages) - len(measured)
    share = percent_text(failed / max(1, len(pages)))
    tried_again = (pages["attempts"] > 1).sum()
    cards.append(KeyFigure("Failed", f"{failed:,}", f"{share}; {tried_again:,} tried again"))
    ids = pages.loc[pages["id"] != "", "id"]
    repeated = ids.duplicated().sum()
    if repeated:
        explanation = "pages that were named before, measured once"
        cards.append(KeyFigure("Listed twice", f"{repeated:,}", explanation))
    if left_out:
        files = sum(left_out.values())
        suffixes = ", ".join(sorted(left_out))
        cards.append(KeyFigure("Left out", f"{files:,}", f"files that are no pages: {suffixes}"))
    return cards


def _page_time_cards(quiet: pd.DataFrame, which_median: str) -> list[KeyFigure]:
    """The time of a page, and what 1,000 pages take; nothing where no page has its time.

    ``which_median`` says over which pages the median is.
    """
    times_ms = quiet["page_ms"].dropna()
    if times_ms.empty:
        return []
    median, p90, p99 = [ms_text(ms) for ms in times_ms.quantile([0.5, 0.9, 0.99])]
    pages_per_minute = 60_000.0 / times_ms.mean()
    in_turn = "one page after another"
    cards = [
        KeyFigure(
            "Time per page",
            median,
            f"{which_median}; p90 {p90}, p99 {p99}, from file to last token",
        ),
        KeyFigure("Pages per minute", f"{pages_per_minute:,.1f}", f"on one device, {in_turn}"),
    ]
    energy_wh = quiet["wh_per_1000_pages"].mean()
    if pd.notna(energy_wh):
        cards.append(KeyFigure("Energy of 1,000 pages", f"{digits_text(energy_wh)} Wh", in_turn))
    price = quiet["price_per_1000_pages"].mean()
    if pd.notna(price):
        price_per_hour = price / hours_per_1000_pages(times_ms.mean())
        basis = f"at {price_per_hour:,.6g} per hour, {in_turn}"
        cards.append(KeyFigure("Price of 1,000 pages", digits_text(price), basis))
    return cards


# -- sections --------------------------------------------------------------------------------------


def _pages_section(pages: pd.DataFrame) -> Section:
    """A table of the pages with remarks: failures, then pages with warnings, then the slowest.

    A page links to its report or record, and its status to the file that lists all attempts.
    """
    ordered = _failures_first(pages.assign(remarks=_remarks(pages)))
    shown = ordered.head(MOST_ROWS)
    columns = list(_PAGE_COLUMNS)
    if not (shown["repeated_share"] > 0).any():
        columns.remove("repeated_share")
    table = table_html(
        shown[columns],
        caption="Failed pages first, then pages with warnings, then the slowest decode",
        links={"page": shown["to_page"], "status": shown["to_status"]},
        headings=_HEADINGS,
    )
    links = (
        "A page links to its report, or to its record if it has none; its status links to all "
        "attempts."
    )
    cut = ""
    if len(pages) > MOST_ROWS:
        cut = f"The first {MOST_ROWS:,} of {len(pages):,} rows; pages.csv has all."
    return Section(note(links), table, note(cut))


def _remarks(pages: pd.DataFrame) -> pd.Series:
    """The reason why each page failed, or else its warnings; empty for neither."""
    reasons = pages["reason"].fillna("")
    warnings = pages["warnings"].fillna("")
    return reasons.mask(reasons == "", warnings)


def _failures_first(pages: pd.DataFrame) -> pd.DataFrame:
    """The failed pages, then those with warnings, then the others; the slowest decode first."""
    is_measured = pages["status"] == "done"
    has_no_warning = pages["warnings"].fillna("") == ""
    return pages.assign(is_measured=is_measured, has_no_warning=has_no_warning).sort_values(
        ["is_measured", "has_no_warning", "decode_ms"],
        ascending=[True, True, False],  # False, which is a failure or a warning, comes first
        kind="stable",
    )


def _distributions_section(measured: pd.DataFrame) -> Section:
    """Histograms over the pages that were measured on a quiet machine."""
    quiet = measured[~measured["noisy"]]
    if quiet.empty:
        return Section(note("No page was measured on a quiet machine."))
    return Section(plot_distributions(quiet))


def _regions_section(regions: pd.DataFrame, measured: pd.DataFrame) -> Section:
    """The slowest regions of all pages, each with a link to its page."""
    if regions.empty:
        return Section(note("The outputs mark no region."))
    addresses = dict(zip(measured["folder"], measured["to_page"], strict=True))
    table = table_html(
        regions.drop(columns="folder"),
        caption="The regions with the longest decode time",
        links={"page": regions["folder"].map(addresses)},
        headings=_HEADINGS,
        missing="no text",
    )
    return Section(table)


def _tables_section() -> Section:
    """Links to the tables that stand beside the index."""
    items = [element("li", element("a", file, href=file)) for file in _TABLES]
    return Section(element("ul", *items, class_="op"))
