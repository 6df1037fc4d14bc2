"""Many pages at once: what a server does under load, and how much of it is worth asking for."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ocr_phases.engines.answers import ask
from ocr_phases.engines.client import Server, ServerFailed
from ocr_phases.errors import public
from ocr_phases.files import write_into
from ocr_phases.record import Plots
from ocr_phases.show.figures import (
    FAINT,
    ORANGE,
    VIOLET,
    legend_below,
    name_axis,
    new_figure,
    sentence_figure,
)
from ocr_phases.show.results import Section, bundle
from ocr_phases.show.web import Html, document_html, element, note, table_html
from ocr_phases.text import count_text, ms_text

#: So many requests make a 99th percentile.
TAIL_FROM = 100
#: A level is worth it where it brings so many times the pages per minute of all before.
WORTH = 1.1
_MOST_ERRORS = 5  # told, each once
_FILES = r"load\.(html|json)"
_LATENCIES = {"ttft_p50_ms": (VIOLET, "first token"), "inter_token_p50_ms": (ORANGE, "between tokens")}


class LoadPlots(Plots):
    """The plots of a load: each is a matplotlib figure that shows itself, drawn on ``ax`` if given."""

    def throughput(self, *, ax: Axes | None = None) -> Figure:
        """Time to first token and inter-token latency over pages per minute, a point a level."""
        table = self._result.table.dropna(subset=["ttft_p50_ms"])
        if table.empty:
            return sentence_figure("No page was read, so there is no throughput to draw.", ax)
        _, (axes,) = new_figure(4.2, [self._result.verdict], ax)
        for paced, rows in table.groupby(table["level"].str.endswith("/min"), sort=False):
            for name, (colour, what) in _LATENCIES.items():
                look: dict[str, Any] = {"color": colour, "label": f"{what}{', paced' * bool(paced)}"}
                axes.plot(rows["pages_per_min"], rows[name], "o--" if paced else "o-", **look)
        for row in table.itertuples():
            place = row.pages_per_min, row.ttft_p50_ms
            axes.annotate(row.level, place, (4, 5), textcoords="offset points", fontsize=9)
        return _latency_axes(axes, "pages per minute")

    def stalls(self, *, ax: Axes | None = None) -> Figure:
        """The tokens of the page that waited longest for one, and when other pages were waiting."""
        asked = self._result.asked
        some = asked[asked["times"].map(len) > 1]
        if some.empty:
            return sentence_figure("No page has two timed tokens, so there is no stall to draw.", ax)
        page = some.loc[some["times"].map(lambda times: max(np.diff(times))).idxmax()]
        gaps, places = np.diff(page["times"]), page["begun"] + np.asarray(page["times"]) / 1e3
        worst, usual = ms_text(gaps.max()), ms_text(float(np.median(gaps)))
        title = f"One page's tokens: {usual} apart, {worst} while another page is prefilled"
        _, (axes,) = new_figure(3.4, [title], ax)
        axes.plot(places[1:], gaps, ".-", color=ORANGE, label="between this page's tokens")
        others = asked[(asked["level"] == page["level"]) & (asked["first"] > places[0])]
        for other in others[others["begun"] < places[-1]].itertuples():
            axes.axvspan(other.begun, other.first, color=FAINT, alpha=0.4, linewidth=0)
        axes.set_xlim(places[0], places[-1])
        about = f"seconds since {page['level']} began; grey: another page waits for its first token"
        return _latency_axes(axes, about)


def _latency_axes(axes: Axes, over: str) -> Figure:
    """A latency over something, with the keys of its lines."""
    axes.set_yscale("log")
    axes.set_xlabel(over)
    name_axis(axes.yaxis, "latency (ms)")
    return legend_below(axes)


@public
class LoadResult:
    """What a server did at each level: ``table``, ``verdict`` and ``plot``; ``asked`` has every page.

    A page's ``begun``, ``first`` and ``end`` are s since its level began, ``times`` those of its chunks in ms
    since it was asked for; ``tokens`` may be more than they are. ``error`` is empty where it ended.
    """

    def __init__(self, server: str, asked: list[dict[str, Any]]) -> None:
        pages: Any = pd.DataFrame(asked)
        self.server, self.plot = server, LoadPlots(self)
        ends = {name: pages["begun"] + pages["times"].str[n] / 1e3 for name, n in (("first", 0), ("end", -1))}
        self.asked = pages.assign(**ends)

    @cached_property
    def table(self) -> pd.DataFrame:
        """One row a level (``4 at once`` or ``30/min``); a p99 only from 100 requests on, else missing.

        Pages per minute and tokens per second are of what was read to its end, from the first request to the
        last token.
        """
        asked, read = self.asked, self.asked[self.asked["error"] == ""]
        levels, finished = asked.groupby("level", sort=False), read.groupby("level")
        seconds = finished["end"].max() - levels["begun"].min()
        table = pd.DataFrame({"requests": levels.size()})
        table["errors"] = table["requests"].sub(finished.size(), fill_value=0).astype(int)
        table["pages_per_min"] = 60 * finished.size() / seconds
        table["tokens_per_s"] = finished["tokens"].sum() / seconds
        gaps = read.loc[read["tokens"] == read["times"].map(len), "times"].map(np.diff).explode()
        for name, ms in (("ttft", 1e3 * (read["first"] - read["begun"])), ("inter_token", gaps.dropna())):
            times = ms.astype(float).groupby(ms.index.map(asked["level"]))
            table[f"{name}_p50_ms"] = times.quantile(0.5)
            table[f"{name}_p99_ms"] = times.quantile(0.99).where(finished.size() >= TAIL_FROM)
        return table.rename_axis("level").reset_index()

    @property
    def knee(self) -> str:
        """The last number at once that brought at least a tenth more pages per minute than any before."""
        closed = self.table[self.table["level"].str.endswith("at once")].dropna(subset="pages_per_min")
        gains = closed["pages_per_min"] / closed["pages_per_min"].cummax().shift()
        return closed["level"][gains.fillna(WORTH) >= WORTH].iloc[-1] if len(closed) else ""

    @property
    def verdict(self) -> str:
        """The knee, and what it brings, in one sentence."""
        failed = int(self.table["errors"].sum())
        lost = f" {count_text(failed, 'request')} failed." if failed else ""
        if not self.knee:
            return f"{count_text(len(self.asked) - failed, 'page')} read by {self.server}.{lost}"
        best: Any = self.table.set_index("level").loc[self.knee]
        rate, first = f"{best['pages_per_min']:,.1f} pages a minute", ms_text(best["ttft_p50_ms"])
        return f"The knee is {self.knee}: {rate}, the first token after {first} (median).{lost}"

    def _html(self) -> Html:
        about = f"p99 only from {TAIL_FROM} requests on, inter-token latency only where chunks are tokens"
        head = element("p", self.verdict, class_="op-headline")
        table = table_html(self.table, caption=f"Load on {self.server}", missing=about)
        errors = map(note, sorted({*self.asked["error"]} - {""})[:_MOST_ERRORS])
        return Html(Section(head, table, *errors, self.plot.throughput(), self.plot.stalls()).html())

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return bundle(self._html(), f"{self.verdict}\n{self.table.to_string(index=False)}")

    def save(self, folder: str | Path, *, overwrite: bool = False) -> Path:
        """Write ``load.html`` and ``load.json`` into ``folder``; the path of the HTML file.

        Raises `CannotWrite` where other files are in the way, unless ``overwrite``.
        """
        tables = {
            name: json.loads(getattr(self, name).to_json(orient="records")) for name in ("table", "asked")
        }
        data = json.dumps({"server": self.server, **tables}).encode()
        page = document_html("Load – ocr_phases", [], self._html()).encode()
        files = {"load.html": page, "load.json": data}
        return write_into(Path(folder), files, overwrite=overwrite, stale=_FILES)[0]


def ask_many(
    server: Server, level: str, bodies: Iterable[Callable[[], Any]], at_once: int, rate: float
) -> list[dict[str, Any]]:
    """Each of the ``bodies`` asked, as rows of `LoadResult.asked`; at random times where there is a rate."""
    with ThreadPoolExecutor(at_once) as pool:
        return [*pool.map(partial(_ask, server, level, time.monotonic()), _paced(bodies, rate))]


def _paced(pages: Iterable[Any], rate: float) -> Iterator[Any]:
    """The pages, at random times where there is a rate per minute: a pool takes each as it comes."""
    draw = random.Random(0)
    for page in pages:
        yield page
        time.sleep(draw.expovariate(rate / 60) if rate else 0.0)


def _ask(server: Server, level: str, begun: float, body: Callable[[], Any]) -> dict[str, Any]:
    page = {"level": level, "begun": time.monotonic() - begun, "times": [], "tokens": 0, "error": ""}
    try:
        answer = ask(server, body())
    except ServerFailed as error:
        return page | {"error": str(error)}
    return page | {"times": answer.times, "tokens": len(answer.tokens[0])}
