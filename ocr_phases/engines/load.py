"""Many pages at once: what a server does under load, and how much of it is worth asking for."""

from __future__ import annotations

import itertools
import json
import random
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ocr_phases.engines.answers import ask
from ocr_phases.engines.client import Server, ServerFailed
from ocr_phases.errors import public, require
from ocr_phases.files import write_into
from ocr_phases.record import Plots
from ocr_phases.show.figures import (
    FAINT,
    ORANGE,
    VIOLET,
    figure_svg,
    new_figure,
    sentence_figure,
)
from ocr_phases.show.results import bundle
from ocr_phases.show.web import Html, document_html, element, fragment, table_html
from ocr_phases.text import count_text, ms_text

LOAD_COLUMNS = (
    *("level", "requests", "errors", "pages_per_min", "tokens_per_s"),
    *("ttft_p50_ms", "ttft_p99_ms", "inter_token_p50_ms", "inter_token_p99_ms"),
)
#: So many requests make a 99th percentile.
TAIL_FROM = 100
#: A doubling is worth it where it brings so many times the pages per minute.
WORTH = 1.1
_FILES = r"load\.(html|json)"


@dataclass(frozen=True)
class Asked:
    """One page of a load: when it was asked for, in s since its level began, and when its chunks came, in ms.

    ``times`` are since the request; ``tokens`` may be more than they are. ``error`` is empty where it ended.
    """

    level: str
    begun: float
    times: list[float]
    tokens: int
    error: str = ""

    @property
    def end(self) -> float:
        """When the last chunk came, s since the level began."""
        return self.begun + (self.times[-1] / 1e3 if self.times else 0.0)


class LoadPlots(Plots):
    """The plots of a load: each is a matplotlib figure that shows itself, drawn on ``ax`` if given."""

    def throughput(self, *, ax: Axes | None = None) -> Figure:
        """Time to first token and inter-token latency over pages per minute, a point a level."""
        table = self._result.table.dropna(subset=["ttft_p50_ms"])
        if table.empty:
            return sentence_figure("No page was read, so there is no throughput to draw.", ax)
        figure, (axes,) = new_figure(4.2, [self._result.verdict], ax)
        for kind, rows in table.groupby(table["level"].str.contains("/min"), sort=False):
            for name, colour in (("ttft_p50_ms", VIOLET), ("inter_token_p50_ms", ORANGE)):
                what = "first token" if colour == VIOLET else "between tokens"
                (line,) = axes.plot(rows["pages_per_min"], rows[name], color=colour, marker="o")
                line.set(linestyle="--" if kind else "-", label=f"{what}{', paced' * bool(kind)}")
            for row in rows.to_dict("records"):
                place = row["pages_per_min"], row["ttft_p50_ms"]
                axes.annotate(row["level"], place, (4, 5), textcoords="offset points", fontsize=9)
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:,g}")
        axes.set_xlabel("pages per minute")
        axes.set_ylabel("median (ms)")
        axes.legend(frameon=False, fontsize=9)
        return figure

    def stalls(self, *, ax: Axes | None = None) -> Figure:
        """The tokens of the page that waited longest for one, and when other pages were waiting."""
        some = [each for each in self._result.asked if len(each.times) > 1]
        if not some:
            return sentence_figure("No page has two timed tokens, so there is no stall to draw.", ax)
        page = max(some, key=lambda each: float(np.diff(each.times).max()))
        gaps = np.diff(page.times)
        worst, usual = ms_text(float(gaps.max())), ms_text(float(np.median(gaps)))
        title = f"One page's tokens: {usual} apart, {worst} while another page is prefilled"
        figure, (axes,) = new_figure(3.4, [title], ax)
        axes.plot(page.begun + np.asarray(page.times[1:]) / 1e3, gaps, color=ORANGE, marker=".")
        for other in self._result.asked:
            began, first = other.begun, other.begun + (other.times[0] / 1e3 if other.times else 0.0)
            alike = other.level == page.level and other is not page
            if alike and first > page.begun + page.times[0] / 1e3 and began < page.end:
                axes.axvspan(began, first, color=FAINT, alpha=0.4, linewidth=0)
        axes.set_xlim(page.begun + page.times[0] / 1e3, page.end)
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:,g}")
        axes.set_xlabel(f"seconds since {page.level} began; grey: another page waits for its first token")
        axes.set_ylabel("between tokens (ms)")
        return figure


@public
class LoadResult:
    """What a server did at each level: ``table``, ``verdict`` and ``plot``; ``asked`` has every page."""

    def __init__(self, server: str, asked: Sequence[Asked]) -> None:
        self.server, self.asked = server, list(asked)
        self.plot = LoadPlots(self)

    @cached_property
    def table(self) -> pd.DataFrame:
        """One row a level, columns `LOAD_COLUMNS`; a p99 only from 100 requests on, else missing.

        ``level`` is ``4 at once`` or ``30/min``; pages per minute and tokens per second are of what was read
        to its end, from the first request to the last token.
        """
        levels = itertools.groupby(self.asked, lambda each: each.level)
        rows = [self._row(level, list(some)) for level, some in levels]
        return pd.DataFrame(rows, columns=list(LOAD_COLUMNS)).astype({"ttft_p99_ms": float})

    @staticmethod
    def _row(level: str, asked: list[Asked]) -> tuple[Any, ...]:
        read = [each for each in asked if not each.error]
        seconds = max((each.end for each in read), default=np.nan) - min(each.begun for each in asked)
        firsts = [each.times[0] for each in read]
        gaps = [gap for each in read if len(each.times) == each.tokens for gap in np.diff(each.times)]
        tails = [
            float(np.quantile(values, part)) if values and (part < 0.9 or len(read) >= TAIL_FROM) else np.nan
            for values in (firsts, gaps)
            for part in (0.5, 0.99)
        ]
        made = sum(each.tokens for each in read)
        rates = 60 * len(read) / seconds, made / seconds
        return level, len(asked), len(asked) - len(read), *rates, *tails

    @property
    def knee(self) -> str:
        """The last number at once that brought at least a tenth more pages per minute than any before."""
        closed = self.table[self.table["level"].str.endswith("at once")]
        gains = closed["pages_per_min"] / closed["pages_per_min"].cummax().shift()
        worth = closed["level"][(gains >= WORTH).to_numpy() | (np.arange(len(closed)) == 0)]
        return worth.iloc[-1] if len(worth) else ""

    @property
    def verdict(self) -> str:
        """The knee, and what it brings, in one sentence."""
        table: Any = self.table.set_index("level")
        failed = int(table["errors"].sum())
        lost = f" {count_text(failed, 'request')} failed." if failed else ""
        if not self.knee:
            return f"{count_text(len(self.asked), 'page')} asked of {self.server}.{lost}"
        best = table.loc[self.knee]
        if np.isnan(best["pages_per_min"]) or len(table) == failed:
            return f"No page was read by {self.server}.{lost}"
        first = ms_text(best["ttft_p50_ms"])
        rate = f"{best['pages_per_min']:,.1f} pages a minute"
        return f"The knee is {self.knee}: {rate}, the first token after {first} (median).{lost}"

    def _html(self) -> Html:
        about = f"p99 only from {TAIL_FROM} requests on, inter-token latency only where chunks are tokens"
        shown = table_html(self.table, caption=f"Load on {self.server}", missing=about)
        errors = {each.error for each in self.asked if each.error}
        told = [element("p", error) for error in sorted(errors)[:5]]
        drawn = {"throughput": self.plot.throughput(), "stalls": self.plot.stalls()}
        figures = [Html(figure_svg(figure, name)) for name, figure in drawn.items()]
        return fragment(element("p", self.verdict, class_="op-headline"), shown, *told, *figures)

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return bundle(str(self._html()), f"{self.verdict}\n{self.table.to_string(index=False)}")

    def save(self, folder: str | Path, *, overwrite: bool = False) -> Path:
        """Write ``load.html`` and ``load.json`` into ``folder``; the path of the HTML file.

        Raises `CannotWrite` where other files are in the way, unless ``overwrite``.
        """
        plain = {"server": self.server, "table": json.loads(self.table.to_json(orient="records"))}
        data = json.dumps({**plain, "asked": [vars(each) for each in self.asked]}).encode()
        page = document_html("Load – ocr_phases", [], self._html()).encode()
        Path(folder).mkdir(parents=True, exist_ok=True)
        write_into(Path(folder), {"load.html": page, "load.json": data}, overwrite=overwrite, stale=_FILES)
        return Path(folder, "load.html")


def load_test(
    server: Server,
    bodies: Sequence[Callable[[], dict[str, Any]]],
    concurrency: Sequence[int],
    rates: Sequence[float],
    requests: int | None,
    progress: Callable[[str], None] = lambda level: None,
) -> LoadResult:
    """Ask for the pages of ``bodies``, in turn: closed-loop at each ``concurrency``, open-loop at each rate.

    Closed-loop sends a page as soon as one has ended, open-loop at random (Poisson) times, ``rates`` in pages
    per minute. A level has ``requests`` of them, by default four for each at once, and at least each page.
    """
    require([("Name a concurrency or a rate to load the server with.", [*concurrency, *rates])])
    require((f"{each!r} is no load: give a number above 0.", each > 0) for each in [*concurrency, *rates])
    asked: list[Asked] = []
    for at_once, rate in [*((number, None) for number in concurrency), *((0, each) for each in rates)]:
        level = f"{at_once} at once" if rate is None else f"{rate:g}/min"
        progress(level)
        count = requests or max(4 * (at_once or 4), len(bodies))
        turn, draw, begun = itertools.cycle(bodies), random.Random(0), time.monotonic()
        one = partial(_ask, server, level, begun)
        with ThreadPoolExecutor(at_once or count) as pool:
            futures = []
            for body in itertools.islice(turn, count):
                futures.append(pool.submit(one, body))
                time.sleep(draw.expovariate(rate / 60) if rate else 0.0)
            try:
                asked += [future.result() for future in futures]
            except KeyboardInterrupt:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
    return LoadResult(server.url, asked)


def _ask(server: Server, level: str, begun: float, body: Callable[[], dict[str, Any]]) -> Asked:
    sent = time.monotonic() - begun
    try:
        answer = ask(server, body())
    except ServerFailed as error:
        return Asked(level, sent, [], 0, str(error))
    return Asked(level, answer.begun - begun, answer.times, len(answer.tokens[0]))
