"""What a server did under load: from the pages that were asked for to a table and the knee."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from ocr_phases.analyse.cost import hours_per_1000_pages
from ocr_phases.text import count_text, ms_text

#: So many requests make a 99th percentile.
TAIL_FROM = 100
#: A level is worth it where it brings so many times the pages per minute of every lower one.
WORTH = 1.1


@dataclass(frozen=True, kw_only=True)
class AskedPage:
    """One request of a load.

    Attributes
    ----------
    level : str
        The load at the time: ``"4 at once"`` or ``"30/min"``.
    begun : float
        When the page was asked for, in seconds since its level began.
    times : sequence of float
        When each chunk of the answer came, in the same seconds; empty where the request failed.
    tokens : int or None
        The number of tokens of the answer; None where the server does not tell it.
    error : str
        Why the request failed; empty where it ended.
    timed : bool
        Whether each token has a time of its own.
    at_once : bool
        Whether the whole answer came at once, so that its first token has no time.
    """

    level: str
    begun: float
    times: Sequence[float] = ()
    tokens: int | None = 0
    error: str = ""
    timed: bool = False
    at_once: bool = False


def asked_table(pages: Sequence[AskedPage]) -> pd.DataFrame:
    """One row per request: the entries of `AskedPage`, and when the answer began and ended.

    ``first`` and ``end`` are seconds since the level began. ``first`` is missing where the whole
    answer came at once, both where the request failed.
    """
    table = pd.DataFrame([vars(page) for page in pages])
    times: pd.Series = table["times"].map(list)
    table["times"] = times
    table["tokens"] = table["tokens"].astype(float)
    table["first"] = times.str[0].mask(table["at_once"])
    table["end"] = times.str[-1]
    return table


def load_table(asked: pd.DataFrame, price_per_hour: float | None = None) -> pd.DataFrame:
    """One row per level of `asked_table`, in the order in which the levels were tried.

    Pages per minute and tokens per second are of what was read to its end, from the first request
    to the last token; where the tokens of a page are unknown, so is the rate. Inter-token latency
    is that of pages whose tokens have times of their own. ``ntpot_p50_ms`` (normalized time per
    output token) is a page's time over its tokens. A 99th percentile needs `TAIL_FROM` requests,
    and is missing below. With a price per hour there is the price of 1,000 pages.
    """
    levels = asked.groupby("level", sort=False)
    pages = levels["end"].count()
    seconds = levels["end"].max() - levels["begun"].min()
    requests = levels.size()
    table = pd.DataFrame({"requests": requests, "errors": requests - pages})
    table["pages_per_min"] = 60 * pages / seconds
    unknown = asked["tokens"].isna().groupby(asked["level"], sort=False).any()
    table["tokens_per_s"] = (levels["tokens"].sum() / seconds).mask(unknown)
    waits = {
        "ttft": asked["first"] - asked["begun"],
        "inter_token": asked["times"][asked["timed"].astype(bool)].map(np.diff).explode(),
    }
    for name, waited_s in waits.items():
        waited_ms = (1e3 * waited_s.astype(float)).groupby(asked["level"])
        table[f"{name}_p50_ms"] = waited_ms.median()
        table[f"{name}_p99_ms"] = waited_ms.quantile(0.99).where(pages >= TAIL_FROM)
    tokens = asked["tokens"].where(asked["tokens"] > 0)
    ms_per_token = 1e3 * (asked["end"] - asked["begun"]) / tokens
    table["ntpot_p50_ms"] = ms_per_token.groupby(asked["level"]).median()
    if price_per_hour is not None:
        hours = hours_per_1000_pages(60_000 / table["pages_per_min"])
        table["price_per_1000_pages"] = price_per_hour * hours
    return table.rename_axis("level").reset_index()


def closed_levels(table: pd.DataFrame) -> pd.DataFrame:
    """The rows of levels with a number of pages at once that read any page, by that number."""
    table = table.dropna(subset="pages_per_min")
    at_once = pd.to_numeric(table["level"].str.extract(r"^(\d+) at once$", expand=False))
    return table.assign(at_once=at_once).dropna(subset="at_once").sort_values("at_once")


def knee_of(table: pd.DataFrame) -> str:
    """The level of `load_table` after which asking for more pages at once brought little.

    It is the last level that brought at least a tenth more pages per minute than any lower one, and
    only where a higher level was tried and brought less than that; empty where none was found. A
    level whose pages all failed has no pages per minute, so it shows nothing about a knee.
    """
    closed = closed_levels(table)
    best = 0.0
    last_that_rose = ""
    for level, rate in zip(closed["level"], closed["pages_per_min"], strict=True):
        if rate >= WORTH * best:
            last_that_rose = level
        best = max(best, rate)
    if closed.empty or last_that_rose == closed["level"].iloc[-1]:
        return ""
    return last_that_rose


def load_verdict(table: pd.DataFrame) -> str:
    """The knee, or why there is none, in one sentence; and how many requests failed."""
    sentence = _knee_sentence(table)
    failed = int(table["errors"].sum())
    return f"{sentence} {count_text(failed, 'request')} failed." if failed else sentence


def _knee_sentence(table: pd.DataFrame) -> str:
    closed = closed_levels(table)
    if closed.empty:
        return "There is no knee: no level of pages at once read a page."
    if len(closed) == 1:
        only = closed["level"].iloc[0]
        return f"There is no knee: {only} is the only level of its kind that read a page."
    knee = knee_of(table)
    if knee:
        at_knee = closed[closed["level"] == knee].iloc[0]
        return (
            f"The knee is {knee}: {at_knee['pages_per_min']:,.1f} pages a minute, "
            f"{ms_text(at_knee['ttft_p50_ms'])} to the first token (p50)."
        )
    highest = closed.iloc[-1]
    return (
        f"Pages per minute were still rising at {highest['level']}, the highest level tried: "
        f"{highest['pages_per_min']:,.1f} pages a minute."
    )
