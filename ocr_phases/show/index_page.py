"""The index of a batch: one HTML file without requests that links to the reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import Any
from urllib.parse import quote

import pandas as pd

from ocr_phases.show.blocks import Html, cards_block, element, title_block
from ocr_phases.show.distributions import plot_distributions
from ocr_phases.show.figures import Picture
from ocr_phases.show.html import note_html, table_html
from ocr_phases.show.index_quality import quality_section
from ocr_phases.show.overlay import printable
from ocr_phases.show.web import document_html
from ocr_phases.text import ms_text, percent_text

#: Rows of a table in the page: a browser sorts no million. pages.csv has them all.
MOST_ROWS = 2_000

# The table of pages has more columns than a report's tables.
_WIDER = "main, nav ul, footer { max-width: 1320px; }"

_ORDER = ": failures, pages with warnings, then the slowest decode"
_SHOWN_TEXT = 60
_LONGEST_REASON = 240
_HEADINGS = {
    "page_ms": ("time", "ms"),
    "ttft_ms": ("TTFT", "ms"),
    "inter_token_ms": ("per token", "ms"),
    "vision_share": ("vision", "%"),
    "decode_ms": ("decode time", "ms"),
    "text": ("begins with", ""),
}


def index_html(
    pages: pd.DataFrame, regions: pd.DataFrame, *, title: str, facts: Mapping[str, str], tables: Sequence[str]
) -> str:
    """The index of a batch.

    ``pages`` and ``regions`` are `ocr_phases.batch.index.BatchIndex`'s, ``facts`` one line about the whole
    each (label to value), ``tables`` the names of the files beside it. Everything in them is escaped.
    """
    failed = pages[pages["status"] != "done"]
    measured = pages[pages["status"] == "done"]
    quality = quality_section(measured, _address)
    sections = [
        ("Failures", _failures(failed)) if len(failed) else None,
        ("Quality", quality) if quality else None,
        ("Pages", _pages(pages)),
        ("Distributions", _distributions(measured)),
        ("Slowest regions", _regions(regions, set(measured.loc[measured["report"], "folder"]))),
        ("Tables", _tables(tables)),
    ]
    shown = [(heading, heading.replace(" ", "-"), content) for heading, content in filter(None, sections)]
    body = "".join(
        f'<section id="{anchor}"><div class="prose"><h2>{heading}</h2></div>{content}</section>'
        for heading, anchor, content in shown
    )
    head = title_block(title, [f"{label} {value}" for label, value in facts.items()])
    contents = [(heading, anchor) for heading, anchor, _ in shown]
    return document_html(title, contents, Html(head + _cards(pages, measured, failed) + body), css=_WIDER)


def _cards(pages: pd.DataFrame, measured: pd.DataFrame, failed: pd.DataFrame) -> str:
    warned = int((measured["warnings"].fillna("") != "").sum())
    cards = [
        ("Pages", f"{len(pages):,}", f"{len(measured):,} measured, {warned:,} with warnings"),
        ("Failed", f"{len(failed):,}", f"{percent_text(len(failed) / len(pages) if len(pages) else None)}"),
        ("Time to first token", _median(measured, "ttft_ms"), "median over pages"),
        ("Inter-token latency", _median(measured, "inter_token_ms"), "median over pages"),
        *_end_to_end(measured),
        ("Tokens", f"{int(measured['tokens'].sum()):,}", "over all pages, one repeat"),
    ]
    return cards_block(cards)


def _end_to_end(measured: pd.DataFrame) -> list[tuple[str, str, str]]:
    times = measured["page_ms"].dropna()
    if times.empty:
        return []
    middle, *tail = (ms_text(float(times.quantile(q))) for q in (0.5, 0.9, 0.99))
    rate = f"{60_000.0 / times.mean():,.1f}"
    return [
        ("Time per page", middle, f"median; p90 {tail[0]}, p99 {tail[1]}, from file to last token"),
        ("Pages per minute", rate, "on one device, one page after another"),
    ]


def _median(measured: pd.DataFrame, column: str) -> str:
    values = measured[column].dropna()
    return ms_text(float(values.median())) if len(values) else "n/a"


def _failures(failed: pd.DataFrame) -> str:
    shown = failed.head(MOST_ROWS)
    table = shown[["page", "status", "attempts", "reason"]].copy()
    table["reason"] = [printable(str(reason), _LONGEST_REASON) for reason in shown["reason"]]
    status = [_address(folder, "status.json") for folder in shown["folder"]]
    return table_html(table, caption="Failed pages and their reasons", links={"status": status}) + _cut(
        len(failed)
    )


def _pages(pages: pd.DataFrame) -> str:
    """Failures first, then the pages in their order, with links to report and record.

    Where there is no room for all, those with warnings and the slowest come before the rest.
    """
    ordered = pages.assign(late=pages["status"] == "done", calm=pages["warnings"].fillna("") == "")
    keys, rising = ["late"], [True]
    if len(pages) > MOST_ROWS:
        keys, rising = ["late", "calm", "decode_ms"], [True, True, False]
    shown = ordered.sort_values(keys, ascending=rising, kind="stable").head(MOST_ROWS)
    done = shown["status"] == "done"
    names = ["page", "preset", "status", "page_ms", "ttft_ms", "inter_token_ms", "tokens", "vision_share"]
    table = shown[names].copy()
    table["record"] = ["run.json" if is_done else "" for is_done in done]
    table["warnings"] = shown["warnings"].fillna("")
    reports = [
        _address(folder, "report.html") if report else ""
        for folder, report in zip(shown["folder"], shown["report"], strict=True)
    ]
    records = [
        _address(folder, "run.json") if is_done else ""
        for folder, is_done in zip(shown["folder"], done, strict=True)
    ]
    links = {
        "page": reports,
        "record": records,
        "status": [_address(folder, "status.json") for folder in shown["folder"]],
    }
    lead = note_html("A page links to its report, its status to all attempts.") if any(reports) else ""
    shown_pages = table_html(table, caption="All pages, failures first", headings=_HEADINGS, links=links)
    return lead + shown_pages + _cut(len(pages), _ORDER)


def _cut(rows: int, order: str = "") -> str:
    if rows <= MOST_ROWS:
        return ""
    return note_html(f"The first {MOST_ROWS:,} of {rows:,} rows{order}; pages.csv has all.")


def _distributions(measured: pd.DataFrame) -> str:
    if measured.empty:
        return note_html("No page was measured.")
    alt = "Histograms of time to first token, inter-token latency, tokens and vision share over the pages"
    return Picture(plot_distributions(measured), alt).html()


def _regions(regions: pd.DataFrame, reported: Set[str]) -> str:
    if regions.empty:
        return note_html("The outputs mark no region.")
    table = regions.drop(columns="folder").assign(
        label=[printable(str(label)) for label in regions["label"]],
        text=[printable(str(text), _SHOWN_TEXT) for text in regions["text"]],
    )
    reports = [
        _address(folder, "report.html" if folder in reported else "run.json") for folder in regions["folder"]
    ]
    caption = "The regions with the longest decode time"
    return table_html(table, caption=caption, headings=_HEADINGS, links={"page": reports})


def _tables(names: Sequence[str]) -> str:
    items = [element("li", element("a", name, href=quote(name))) for name in names]
    return element("ul", *items, class_="op")


def _address(folder: Any, name: str) -> str:
    return quote(f"{folder}/{name}") if folder else ""
