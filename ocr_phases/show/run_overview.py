"""The first screen of a record: its page, headline, phases, checks and figures."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from ocr_phases.analyse.cards import key_metrics
from ocr_phases.analyse.checks import run_checks, worst_verdict
from ocr_phases.analyse.figures import summary
from ocr_phases.analyse.sentences import (
    checks_verdict,
    findings,
    headline,
    limit_sentence,
    noise_warning,
    subject,
)
from ocr_phases.record import Record
from ocr_phases.show.colours import BLUE, GOLD, GREEN, ORANGE, REST
from ocr_phases.show.html_table import table_html
from ocr_phases.show.page import pages_of_row
from ocr_phases.show.section import Bundle, Section, bundle
from ocr_phases.show.web import (
    Html,
    badge,
    block,
    element,
    fold,
    fragment,
    image_html,
    note,
    printable,
)
from ocr_phases.text import count_text, ms_text, plain

_FIRST_CARDS = 4  # of the first screen
_CLOSE_SUM = 0.005  # of the page's time: what three digits do not show
_LONGEST_NAME = 80
_ENDS = {"eos": "end token", "length": "token limit"}


def overview_section(run: Record) -> Section:
    """The first screen: the page, headline, limit, phases, checks and four figures; then the rest,
    folded.
    """
    figures = key_metrics(run)
    first, rest = (
        block("cards", figures=some) for some in (figures[:_FIRST_CARDS], figures[_FIRST_CARDS:])
    )
    more = fold("Further figures and findings", rest, lines_html(findings(run)))
    shown = fold("Each row", table_html(row_table(run))) if len(run.results) > 1 else ""
    return Section(head_html(run), first, more, shown)


def cards_section(run: Record) -> Section:
    """The key figures."""
    return Section(block("cards", figures=key_metrics(run)))


def head_html(run: Record, title: str = "", said: Sequence[str] = (), about: str = "") -> Html:
    """The head of a report: the page's thumbnail (if the record has it), headline, limit, phases
    and checks.

    ``said`` are sentences in place of these, the headline first and the others folded; ``about``
    replaces the line that says of what it is.
    """
    page = run.page_image()
    thumb = "" if page is None else image_html(page, "The page", width=180)
    title, about = title or run_title(run), about or subject(run)
    if said:
        lead, below = "", fold("Further findings", lines_html(said[1:])) if said[1:] else ""
    else:
        said, lead, below = [headline(run)], limit_sentence(run), phase_bar(run) + status_html(run)
    return block(
        "head", picture=thumb, title=title, about=about, headline=said[0], lead=lead, below=below
    )


def status_html(run: Record) -> Html:
    """The checks' verdict as a badge and a sentence; what made a record noisy is folded below."""
    checks, noise = run_checks(run), noise_warning(run)
    status = element(
        "p", badge(worst_verdict(checks)), " ", checks_verdict(checks), class_="op-status"
    )
    return status + (
        fold("reasons and remedies", element("p", noise), classes="op-why") if noise else fragment()
    )


def lines_html(sentences: Sequence[str]) -> Html:
    """Sentences, a line each."""
    return element(
        "ul", *(element("li", sentence) for sentence in sentences), class_="op op-findings"
    )


def phase_bar(run: Record) -> Html:
    """A bar cut into the phases' times, vision separate from the rest of the prefill, above what
    they are.

    Its whole length is the page's time, which the headline's share is of; medians of phases may
    leave a part of it empty, or exceed it, which a sentence then says. The key is the bar's text
    alternative. What takes no time is left out.
    """
    figures = summary(run)
    vision = figures["vision_ms"] or 0.0
    prefill = float(np.median(run.phase_ms("prefill")))
    names = [
        "prepare",
        "vision",
        "rest of the prefill" if vision else "prefill",
        "decode",
        "generate()",
    ]
    if run.waits_for_first_token:
        names[2] = "first token"
    if run.is_server:
        names[4] = "whole answer"
    times = [
        figures["prepare_ms"],
        vision,
        max(prefill - vision, 0.0),
        figures["decode_ms"],
        figures["generate_ms"],
    ]
    bar = pd.DataFrame({"name": names, "colour": [REST, BLUE, GOLD, ORANGE, GREEN], "ms": times})
    together, page = float(bar["ms"].sum()), figures["page_ms"]
    bar["width"] = 1000 * bar["ms"] / max(together, page)
    bar = bar.assign(left=bar["width"].cumsum() - bar["width"], time=bar["ms"].map(ms_text))
    drawn = block("bar", pieces=list(bar[bar["width"] > 0].itertuples()))
    if abs(together - page) <= _CLOSE_SUM * page:
        return drawn
    return drawn + note(
        f"Medians of repeats add up to {ms_text(together)}, not to {ms_text(page)}."
    )


def run_title(run: Record) -> str:
    """The page's file; for several pages the first and the number of others."""
    name, more = str(run.page.file), len(run.pages) - 1
    return f"{name} and {count_text(more, 'more page')}" if more else name


def row_table(run: Record) -> pd.DataFrame:
    """One line per row of a batch: number from 1, files, tokens, finish and the text."""
    rows = []
    for row, result in enumerate(run.results):
        files = ", ".join(run.pages[page].file for page in pages_of_row(run, row))
        ended = _ENDS.get(result.finish_reason or "", "unknown")
        tokens = result.known_tokens or len(result.ids)
        rows.append((row + 1, files, tokens, ended, result.text or ""))
    return pd.DataFrame(rows, columns=["row", "file", "tokens", "end", "text"])


def run_bundle(run: Record) -> Bundle:
    """A record's first screen, and `run_text`."""
    return bundle(overview_section(run).html(), run_text(run))


def run_text(run: Record) -> str:
    """A record in words: its subject, headline, checks and, of a batch, a line a row."""
    rows = row_table(run).itertuples(index=False, name=None) if len(run.results) > 1 else ()
    lines = [
        f"  row {row}: {printable(files, _LONGEST_NAME)}, {count_text(tokens, 'token')}, {ended}"
        for row, files, tokens, ended, _ in rows
    ]
    first = f"{printable(run_title(run), _LONGEST_NAME)} · {subject(run)}"
    return plain("\n".join([first, headline(run), checks_verdict(run_checks(run)), *lines]))
