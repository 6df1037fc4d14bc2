"""The page that shows a whole batch, as one HTML file that fetches nothing and links to its reports."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence, Set
from importlib import resources
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pandas as pd

from ocr_phases.show.blocks import safe as _safe
from ocr_phases.show.distributions import plot_distributions
from ocr_phases.show.figures import figure_svg
from ocr_phases.show.html import fragments_css, note_html, table_html
from ocr_phases.show.overlay import printable
from ocr_phases.words import ms_text, percent_text

#: Rows of a table in the page: a browser sorts no million. pages.csv has them all.
MOST_ROWS = 2_000

# The table of pages has more columns than a report's tables.
_WIDER = "main, nav ul, footer { max-width: 1320px; }"

_ORDER = ": failures, then pages with warnings, then the others, the slowest decode first"
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
    sections = [
        ("Failures", _failures(failed)) if len(failed) else None,
        ("Pages", _pages(pages)),
        ("Distributions", _distributions(measured)),
        ("Slowest regions", _regions(regions, set(measured.loc[measured["report"], "folder"]))),
        ("Tables", _tables(tables)),
    ]
    body = "".join(
        f'<section id="{heading.replace(" ", "-")}">'
        f'<div class="prose"><h2>{heading}</h2></div>{content}</section>'
        for heading, content in filter(None, sections)
    )
    names = [heading for heading, _ in filter(None, sections)]
    line = " · ".join(f"{label} {value}" for label, value in facts.items())
    head = (
        f'<header class="op op-header"><div class="op-lead"><h1>{_safe(title)}</h1>'
        f'<p class="op-sub">{_safe(line)}</p></div></header>{_cards(pages, measured, failed)}'
    )
    return _document(title, names, head + body)


def _cards(pages: pd.DataFrame, measured: pd.DataFrame, failed: pd.DataFrame) -> str:
    warned = int((measured["warnings"].fillna("") != "").sum())
    cards = [
        ("Pages", f"{len(pages):,}", f"{len(measured):,} measured, {warned:,} with warnings"),
        ("Failed", f"{len(failed):,}", f"{percent_text(len(failed) / len(pages) if len(pages) else None)}"),
        ("Time to first token", _median(measured, "ttft_ms"), "median over pages"),
        ("Inter-token latency", _median(measured, "inter_token_ms"), "median over pages"),
        *_end_to_end(measured),
        ("Tokens", f"{int(measured['tokens'].sum()):,}", "of all pages, written once"),
    ]
    items = "".join(
        f'<div class="op-card"><dt>{_safe(label)}</dt><dd><strong>{_safe(value)}</strong> '
        f"<small>{_safe(note)}</small></dd></div>"
        for label, value, note in cards
    )
    return f'<dl class="op op-cards">{items}</dl>'


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
    return table_html(table, caption="Pages without a record, and why", links={"status": status}) + _cut(
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
    lead = (
        note_html("A page's name opens its report, its status what happened to it.") if any(reports) else ""
    )
    shown_pages = table_html(table, caption="All pages, failures first", headings=_HEADINGS, links=links)
    return lead + shown_pages + _cut(len(pages), _ORDER)


def _cut(rows: int, order: str = "") -> str:
    if rows <= MOST_ROWS:
        return ""
    return note_html(f"The first {MOST_ROWS:,} of {rows:,} rows{order}; all of them are in pages.csv.")


def _distributions(measured: pd.DataFrame) -> str:
    if measured.empty:
        return note_html("No page was measured, so there is nothing to draw.")
    figure = plot_distributions(measured)
    alt = "Histograms of time to first token, inter-token latency, tokens and vision share over the pages"
    svg = figure_svg(figure, alt)
    return f'<div class="figure drawn" role="group" aria-label="{alt}" tabindex="0">{svg}</div>'


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
    caption = "The regions that took longest to write"
    return table_html(table, caption=caption, headings=_HEADINGS, links={"page": reports})


def _tables(names: Sequence[str]) -> str:
    items = "".join(f'<li><a href="{_safe(quote(name))}">{_safe(name)}</a></li>' for name in names)
    return f'<ul class="op">{items}</ul>'


def _address(folder: Any, name: str) -> str:
    return quote(f"{folder}/{name}") if folder else ""


def _document(title: str, sections: Sequence[str], body: str) -> str:
    folder = Path(str(resources.files("ocr_phases.report").joinpath("template")))
    script = (folder / "sort.js").read_text(encoding="utf-8")
    css = fragments_css() + (folder / "page.css").read_text(encoding="utf-8") + _WIDER
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; "
        "base-uri 'none'; form-action 'none'"
    )
    contents = "".join(f'<li><a href="#{name.replace(" ", "-")}">{name}</a></li>' for name in sections)
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta name="color-scheme" content="light dark"><title>{_safe(title)}</title>'
        f'<link rel="icon" href="data:,"><style>{css}</style></head><body>'
        '<a class="skip" href="#report">Skip to the index</a>'
        f'<nav aria-label="Contents"><ul>{contents}</ul></nav><main id="report" tabindex="-1">{body}</main>'
        "<footer>Made with ocr_phases. This file fetches nothing and runs only its own table sorting."
        f"</footer><script>{script}</script></body></html>\n"
    )
