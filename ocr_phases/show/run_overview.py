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
    image_html,
    note,
    printable,
)
from ocr_phases.text import count_text, ms_text, plain

#: Cards on the first screen; the others are folded.
_FIRST_CARDS = 4
_THUMBNAIL_WIDTH = 180  # CSS pixels
#: A share of the page's time that is too small to be said: three digits do not show it.
_CLOSE_SUM = 0.005
_LONGEST_NAME = 80
#: The reason why a row ended -> what it is called.
_ENDS = {"eos": "end token", "length": "token limit"}


def overview_section(run: Record) -> Section:
    """The first screen: the page, headline, limit, phases, checks and the first figures.

    Further figures, findings and the rows of a batch are folded below.
    """
    figures = key_metrics(run)
    first = block("cards", figures=figures[:_FIRST_CARDS])
    rest = block("cards", figures=figures[_FIRST_CARDS:])
    more = fold("Further figures and findings", rest, lines_html(findings(run)))
    rows = ""
    if len(run.results) > 1:
        rows = fold("Each row", table_html(row_table(run)))
    return Section(head_html(run), first, more, rows)


def cards_section(run: Record) -> Section:
    """The key figures."""
    return Section(block("cards", figures=key_metrics(run)))


def head_html(run: Record, title: str = "", sentences: Sequence[str] = (), about: str = "") -> Html:
    """The head of a report: the page's thumbnail, headline, limit, phases and checks.

    Parameters
    ----------
    run : Record
        Whose page it is.
    title : str
        By default the name of the page's file.
    sentences : sequence of str
        Stand in place of headline, limit, phases and checks: the first is the headline, the others
        are folded.
    about : str
        What was measured; by default what the record says.

    Returns
    -------
    Html
        One fragment.
    """
    page = run.page_image() if run.has_page else None
    thumbnail = Html("")
    if page is not None:
        thumbnail = image_html(page, "The page", width=_THUMBNAIL_WIDTH)
    lead = ""
    below: str = ""
    if sentences:
        first = sentences[0]
        if sentences[1:]:
            below = fold("Further findings", lines_html(sentences[1:]))
    else:
        first = headline(run)
        lead = limit_sentence(run)
        below = phase_bar(run) + status_html(run)
    return block(
        "head",
        picture=thumbnail,
        title=title or run_title(run),
        about=about or subject(run),
        headline=first,
        lead=lead,
        below=below,
    )


def status_html(run: Record) -> Html:
    """The checks' verdict as a badge and a sentence; what made a record noisy is folded below."""
    checks = run_checks(run)
    verdict = badge(worst_verdict(checks))
    status = element("p", verdict, " ", checks_verdict(checks), class_="op-status")
    noise = noise_warning(run)
    if not noise:
        return status
    return status + fold("reasons and remedies", element("p", noise), classes="op-why")


def lines_html(sentences: Sequence[str]) -> Html:
    """A list of sentences."""
    items = [element("li", sentence) for sentence in sentences]
    return element("ul", *items, class_="op op-findings")


def phase_bar(run: Record) -> Html:
    """A bar with a piece for each phase that takes time, above the names and times of them all.

    Vision has a piece of its own, and the rest of the prefill another one. The bar is as long as
    the page's time, so that a piece is as large as the share that the headline tells. Its pieces
    are medians, which need not add up to that time: they may leave the end of the bar empty, or
    need a longer bar. Then a sentence says so. The names and times are the bar's text alternative.
    """
    page_ms = summary(run)["page_ms"]
    pieces = _phases_in_bar(run)
    together_ms = float(pieces["ms"].sum())
    # The template draws a bar that is 1,000 units long.
    pieces["width"] = 1000 * pieces["ms"] / max(together_ms, page_ms)
    pieces["left"] = pieces["width"].cumsum() - pieces["width"]
    pieces["time"] = pieces["ms"].map(ms_text)
    with_time = pieces[pieces["width"] > 0]
    drawn = block("bar", pieces=list(with_time.itertuples()))
    if abs(together_ms - page_ms) <= _CLOSE_SUM * page_ms:
        return drawn
    return drawn + note(
        f"The medians of these parts add up to {ms_text(together_ms)}, but the median of the whole "
        f"page is {ms_text(page_ms)}."
    )


def _phases_in_bar(run: Record) -> pd.DataFrame:
    """The phases in their order, with names, colours and median times in ms."""
    figures = summary(run)
    vision_ms = figures["vision_ms"] or 0.0
    prefill_ms = float(np.median(run.phase_ms("prefill")))
    rest_of_prefill_ms = max(prefill_ms - vision_ms, 0.0)
    prefill_name = "prefill"
    if run.waits_for_first_token:
        prefill_name = "first token"
    elif vision_ms > 0:
        prefill_name = "rest of the prefill"
    one_shot_name = "generate()"
    if run.is_server:
        one_shot_name = "whole answer"
    rows = [
        ("prepare", REST, figures["prepare_ms"]),
        ("vision", BLUE, vision_ms),
        (prefill_name, GOLD, rest_of_prefill_ms),
        ("decode", ORANGE, figures["decode_ms"]),
        (one_shot_name, GREEN, figures["generate_ms"]),
    ]
    return pd.DataFrame(rows, columns=["name", "colour", "ms"])


def run_title(run: Record) -> str:
    """The page's file; for several pages the first and the number of others.

    Of a prompt without an image it says that it is one.
    """
    name = str(run.page_file)
    others = len(run.pages) - 1
    if others < 1:
        return name
    return f"{name} and {count_text(others, 'more page')}"


def row_table(run: Record) -> pd.DataFrame:
    """A line for each row of a batch.

    Columns: ``row``, counted from 1, ``file``, the names of its pages, ``tokens``, ``end``, why it
    ended, and ``text``.
    """
    rows = []
    for row, result in enumerate(run.results):
        files = ", ".join(run.pages[page].file for page in pages_of_row(run, row))
        ended = _ENDS.get(result.finish_reason or "", "unknown")
        rows.append((row + 1, files, result.least_tokens, ended, result.text or ""))
    return pd.DataFrame(rows, columns=["row", "file", "tokens", "end", "text"])


def run_bundle(run: Record) -> Bundle:
    """A record's first screen, and `run_text`."""
    return bundle(overview_section(run).html(), run_text(run))


def run_text(run: Record) -> str:
    """A record in words: its subject, headline, checks and, of a batch, a line for each row."""
    title = printable(run_title(run), _LONGEST_NAME)
    lines = [f"{title} · {subject(run)}", headline(run), checks_verdict(run_checks(run))]
    if len(run.results) > 1:
        for row, files, tokens, end, _ in row_table(run).itertuples(index=False, name=None):
            names = printable(files, _LONGEST_NAME)
            lines.append(f"  row {row}: {names}, {count_text(tokens, 'token')}, {end}")
    return plain("\n".join(lines))
