"""What a server did under load: from the pages that were asked for to a table and the knee."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from ocr_phases.analyse.cost import hours_per_1000_pages
from ocr_phases.errors import OcrPhasesError
from ocr_phases.text import count_text, ms_text

#: What an objective may be of: the time to the first token, and the mean time between tokens.
OBJECTIVES = ("ttft", "itl")
#: From so many streams on the client's own lag is watched for, and a lag of so many ms is told.
MANY_STREAMS = 64
MOST_LAG_MS = 5.0

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
    client_lag_ms : float or None
        How late threads of the client woke while the level ran, p99; None where nobody watched.
    """

    level: str
    begun: float
    times: Sequence[float] = ()
    tokens: int | None = 0
    error: str = ""
    timed: bool = False
    at_once: bool = False
    client_lag_ms: float | None = None


def read_slo(slo: Mapping[str, float] | str | None) -> dict[str, float]:
    """The objective that a page has to meet, in ms by name; empty without one.

    Parameters
    ----------
    slo : mapping or str, optional
        ``{"ttft": 500, "itl": 30}``, or the same as text: ``ttft=500,itl=30``.

    Returns
    -------
    dict of str to float
        Any of ``ttft`` and ``itl``.

    Raises
    ------
    OcrPhasesError
        For another name, and for a time that is not above 0.

    Examples
    --------
    >>> read_slo("ttft=500,itl=30")
    {'ttft': 500.0, 'itl': 30.0}
    """
    if not slo:
        return {}
    if isinstance(slo, str):
        entries: list[tuple[str, object]] = []
        for part in slo.split(","):
            name, _, text = part.partition("=")
            entries.append((name.strip(), text.strip()))
    else:
        entries = [*slo.items()]
    objective: dict[str, float] = {}
    for name, value in entries:
        if name not in OBJECTIVES:
            raise OcrPhasesError(
                f"An objective is of ttft or itl, not of {name!r}: write ttft=500,itl=30, in ms."
            )
        try:
            ms = float(str(value))
        except ValueError:
            ms = math.nan
        if not 0 < ms < math.inf:
            raise OcrPhasesError(f"The objective {name}={value} is no time above 0 ms.")
        objective[name] = ms
    return objective


def meets(asked: pd.DataFrame, slo: Mapping[str, float]) -> pd.Series:
    """Whether each page of `asked_table` meets an objective; a failed request does not.

    A page meets ``itl`` by the mean time between its tokens; one whose first token or whose number
    of tokens is unknown does not meet an objective that needs it.
    """
    met = asked["end"].notna()
    first_s = asked["first"] - asked["begun"]
    if "ttft" in slo:
        met &= 1e3 * first_s <= slo["ttft"]
    if "itl" in slo:
        after_first = asked["tokens"] - 1
        mean_s = (asked["end"] - asked["first"]) / after_first.where(after_first > 0)
        # A page of one token has no time between tokens that could be too long.
        met &= (1e3 * mean_s <= slo["itl"]) | (after_first == 0)
    return met


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


def load_table(
    asked: pd.DataFrame,
    price_per_hour: float | None = None,
    slo: Mapping[str, float] | None = None,
) -> pd.DataFrame:
    """One row per level of `asked_table`, in the order in which the levels were tried.

    Pages per minute and tokens per second are of what was read to its end, from the first request
    to the last token; where the tokens of a page are unknown, so is the rate. Inter-token latency
    is that of pages whose tokens have times of their own. ``ntpot_p50_ms`` (normalized time per
    output token) is a page's time over its tokens. A 99th percentile needs `TAIL_FROM` requests,
    and is missing below. With a price per hour there is the price of 1,000 pages, and with an
    objective (`read_slo`) the goodput: the pages per minute that meet all of it.
    """
    levels = asked.groupby("level", sort=False)
    pages = levels["end"].count()
    seconds = levels["end"].max() - levels["begun"].min()
    requests = levels.size()
    table = pd.DataFrame({"requests": requests, "errors": requests - pages})
    table["pages_per_min"] = 60 * pages / seconds
    if slo:
        good = meets(asked, slo).groupby(asked["level"], sort=False).sum()
        table["goodput_per_min"] = 60 * good / seconds
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
    """The knee, or why there is none, in one sentence; the best goodput, where an objective was
    given; and how many requests failed.
    """
    sentences = [_knee_sentence(table)]
    if "goodput_per_min" in table and table["goodput_per_min"].notna().any():
        best = table.sort_values("goodput_per_min", ascending=False).iloc[0]
        sentences.append(
            f"Most pages met the objective at {best['level']}: "
            f"{best['goodput_per_min']:,.1f} of {best['pages_per_min']:,.1f} pages per minute."
        )
    failed = int(table["errors"].sum())
    if failed:
        sentences.append(f"{count_text(failed, 'request')} failed.")
    return " ".join(sentences)


def lag_sentence(asked: pd.DataFrame) -> str:
    """What the client's own lag does to the figures above `MANY_STREAMS` streams; else empty.

    A level has at most as many streams as pages overlapped in time.
    """
    if "client_lag_ms" not in asked:
        return ""
    worst = 0.0
    level_of_worst = ""
    for level, pages in asked.groupby("level", sort=False):
        lag = pages["client_lag_ms"].max()
        if _most_streams(pages) > MANY_STREAMS and lag > max(worst, MOST_LAG_MS):
            worst = float(lag)
            level_of_worst = str(level)
    if not level_of_worst:
        return ""
    return (
        f"The client itself was up to {ms_text(worst)} late at {level_of_worst} (p99): its times "
        "there are not the server's alone. Ask from several processes, or with fewer at once."
    )


def _most_streams(pages: pd.DataFrame) -> int:
    """How many pages of a level were being read at the same time at most."""
    ended = pages["end"].fillna(pages["begun"])
    changes = [(moment, 1) for moment in pages["begun"]]
    changes += [(moment, -1) for moment in ended]
    # Of a moment at which one page ends and another begins, the end counts first.
    changes.sort()
    return int(np.cumsum([change for _, change in changes]).max())


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
            f"The knee is {knee}: {at_knee['pages_per_min']:,.1f} pages per minute, "
            f"{ms_text(at_knee['ttft_p50_ms'])} to the first token (p50)."
        )
    highest = closed.iloc[-1]
    return (
        f"Pages per minute were still rising at {highest['level']}, the highest level tried: "
        f"{highest['pages_per_min']:,.1f} pages per minute."
    )
