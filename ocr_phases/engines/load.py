"""Many pages at once: what a server does under load, and how much of it is worth asking for."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ocr_phases.analyse.cost import hours_per_1000_pages
from ocr_phases.engines.client import ServerFailed
from ocr_phases.engines.measurement import ServerMeasurement
from ocr_phases.errors import Hinted, OcrPhasesError, explain_wrong_calls
from ocr_phases.files import write_into
from ocr_phases.inputs.views import Pages
from ocr_phases.results.plots import Plots
from ocr_phases.settings import SamplingSettings, Strategy, Vision
from ocr_phases.show.figures import (
    FAINT,
    ORANGE,
    VIOLET,
    legend_below,
    name_axis,
    new_figure,
    sentence_figure,
)
from ocr_phases.show.results import Section, bundle, table_text
from ocr_phases.show.web import Html, document_html, element, note, table_html
from ocr_phases.text import count_text, filled, ms_text

#: So many requests make a 99th percentile.
TAIL_FROM = 100
#: A level is worth it where it brings so many times the pages per minute of every lower one.
WORTH = 1.1
_KNEE = "The knee is {level}: {pages_per_min:,.1f} pages a minute, {ttft_p50_ms:ms} to the first token (p50)."
_LATENCIES = {"ttft_p50_ms": "first token", "inter_token_p50_ms": "between tokens"}


class LoadPlots(Plots):
    """The plots of a load: each is a matplotlib figure that shows itself, drawn on ``ax`` if given."""

    def __init__(self, load: LoadResult) -> None:
        self._load = load

    def throughput(self, *, ax: Axes | None = None) -> Figure:
        """Time to first token and inter-token latency over pages per minute, a point a level."""
        table = self._load.table.dropna(subset=["ttft_p50_ms"])
        _, (axes,) = new_figure(4.2, [self._load.verdict], ax)
        axes.set_prop_cycle(color=[VIOLET, ORANGE])
        axes.plot(table["pages_per_min"], table[[*_LATENCIES]], "o", label=[*_LATENCIES.values()])
        for level, rate, ttft in table[["level", "pages_per_min", "ttft_p50_ms"]].itertuples(
            index=False
        ):
            axes.annotate(level, (rate, ttft), (4, 5), textcoords="offset points", fontsize=9)
        return _latency_axes(axes, "pages per minute")

    def stalls(self, *, ax: Axes | None = None) -> Figure:
        """The tokens of the page that waited longest for one, and when other pages were waiting."""
        asked = self._load.asked
        longest = (
            asked["times"]
            .map(lambda times: max(np.diff(times), default=0.0))
            .where(asked["timed"], 0.0)
        )
        if not longest.any():
            return sentence_figure(
                "No page has two timed tokens, so there is no stall to draw.", ax
            )
        page = asked.loc[longest.idxmax()]
        gaps = 1e3 * np.diff(page["times"])
        told = f"{ms_text(float(np.median(gaps)))} apart, {ms_text(gaps.max())} while another is prefilled"
        _, (axes,) = new_figure(3.4, [f"One page's tokens: {told}"], ax)
        axes.plot(page["times"][1:], gaps, ".-", color=ORANGE, label="between this page's tokens")
        others = asked[asked["level"] == page["level"]].dropna(subset="first")
        waits = list(zip(others["begun"], others["first"] - others["begun"], strict=True))
        axes.broken_barh(
            waits, (0, 1), transform=axes.get_xaxis_transform(), color=FAINT, alpha=0.4
        )
        axes.set_xlim(page["first"], page["end"])
        about = f"seconds since {page['level']} began; grey: another page waits for its first token"
        return _latency_axes(axes, about)


def _latency_axes(axes: Axes, over: str) -> Figure:
    """A latency over something, with the keys of its lines."""
    axes.set(yscale="log", xlabel=over)
    name_axis(axes.yaxis, "latency (ms)")
    return legend_below(axes)


class LoadResult(Hinted):
    """What a server did at each level: ``table``, ``verdict`` and ``plot``; ``asked`` has every
    page.

    A page's ``begun``, the ``times`` of its chunks, ``first`` and ``end`` are s since its level
    began; ``tokens`` are those that the server tells, missing where it does not. ``timed`` is
    whether each token has a time of its own; ``at_once`` that the whole answer came at once, so
    that it has no ``first``. ``error`` is empty where it ended.
    """

    def __init__(
        self, server: str, asked: list[dict[str, Any]], price_per_hour: float | None = None
    ) -> None:
        self.server, self.price_per_hour, self.plot = server, price_per_hour, LoadPlots(self)
        pages: Any = pd.DataFrame(asked)
        chunks = pages["times"].map(len)
        if "timed" not in pages:
            pages["timed"] = pages["tokens"] == chunks
        if "at_once" not in pages:
            pages["at_once"] = False
        pages["tokens"] = pages["tokens"].astype(float)
        pages["first"] = pages["times"].str[0].mask(pages["at_once"])
        self.asked = pages.assign(end=pages["times"].str[-1])

    @cached_property
    def table(self) -> pd.DataFrame:
        """One row a level (``4 at once`` or ``30/min``); a p99 only from 100 requests on, else
        missing.

        Pages per minute and tokens per second are of what was read to its end, from the first
        request to the last token; where the tokens of a page are unknown, so is the rate.
        Inter-token latency is that of pages whose tokens have times of their own. ``ntpot_p50_ms``
        (normalized time per output token) is a page's time over its tokens. With a price of an hour
        there is the price of 1,000 pages.
        """
        asked, levels = self.asked, self.asked.groupby("level", sort=False)
        pages, seconds = levels["end"].count(), levels["end"].max() - levels["begun"].min()
        table = pd.DataFrame({"requests": levels.size(), "errors": levels.size() - pages})
        table["pages_per_min"] = 60 * pages / seconds
        unknown = asked["tokens"].isna().groupby(asked["level"], sort=False).any()
        table["tokens_per_s"] = (levels["tokens"].sum() / seconds).mask(unknown)
        gaps = asked["times"][asked["timed"].astype(bool)].map(np.diff).explode()
        for name, waited in (("ttft", asked["first"] - asked["begun"]), ("inter_token", gaps)):
            each = (1e3 * waited.astype(float)).groupby(asked["level"])
            table[f"{name}_p50_ms"] = each.median()
            table[f"{name}_p99_ms"] = each.quantile(0.99).where(pages >= TAIL_FROM)
        each = 1e3 * (asked["end"] - asked["begun"]) / asked["tokens"].where(asked["tokens"] > 0)
        table["ntpot_p50_ms"] = each.groupby(asked["level"]).median()
        if self.price_per_hour is not None:
            hours = hours_per_1000_pages(60_000 / table["pages_per_min"])
            table["price_per_1000_pages"] = self.price_per_hour * hours
        return table.rename_axis("level").reset_index()

    @property
    def knee(self) -> str:
        """The level after which asking for more pages at once brought little; empty where none was
        found.

        It is the last level that brought at least a tenth more pages per minute than any lower one,
        and only where a higher level was tried and brought less than that. A level whose pages all
        failed has no pages per minute, so it shows nothing about a knee.
        """
        rising = self._last_that_rose()
        closed = self._closed_levels()
        if closed.empty or rising == closed["level"].iloc[-1]:
            return ""
        return rising

    def _closed_levels(self) -> pd.DataFrame:
        """The rows of levels with a number of pages at once that read any page, by that number."""
        table = self.table.dropna(subset="pages_per_min")
        at_once = pd.to_numeric(table["level"].str.extract(r"^(\d+) at once$", expand=False))
        return table.assign(at_once=at_once).dropna(subset="at_once").sort_values("at_once")

    def _last_that_rose(self) -> str:
        """The last level that brought a tenth more than any lower one; empty where none read a
        page.
        """
        closed = self._closed_levels()
        best = 0.0
        last = ""
        for level, rate in zip(closed["level"], closed["pages_per_min"], strict=True):
            if rate >= WORTH * best:
                last = level
            best = max(best, rate)
        return last

    @property
    def verdict(self) -> str:
        """The knee, or why there is none, in one sentence; and how many requests failed."""
        sentence = self._knee_sentence()
        failed = int(self.table["errors"].sum())
        return f"{sentence} {count_text(failed, 'request')} failed." if failed else sentence

    def _knee_sentence(self) -> str:
        closed = self._closed_levels()
        if closed.empty:
            return "There is no knee: no level of pages at once read a page."
        if len(closed) == 1:
            return f"There is no knee: {closed['level'].iloc[0]} is the only level of its kind that read a page."
        if self.knee:
            return filled(_KNEE, self.table.set_index("level").loc[self.knee], level=self.knee)
        highest = closed.iloc[-1]
        rate = f"{highest['pages_per_min']:,.1f} pages a minute"
        return f"Pages per minute were still rising at {highest['level']}, the highest level tried: {rate}."

    def _html(self) -> Html:
        about = f"p99 only from {TAIL_FROM} requests on, inter-token latency only where chunks are tokens"
        head = element("p", self.verdict, class_="op-headline")
        table = table_html(self.table, caption=f"Load on {self.server}", missing=about)
        errors = map(note, sorted({*self.asked["error"]} - {""})[:5])
        return Html(
            Section(head, table, *errors, self.plot.throughput(), self.plot.stalls()).html()
        )

    def __repr__(self) -> str:
        return f"<LoadResult of {self.server}: {count_text(len(self.table), 'level')}>"

    def __str__(self) -> str:
        return f"{self.verdict}\n{table_text(self.table)}"

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return bundle(self._html(), str(self))

    def save(self, folder: str | Path, *, overwrite: bool = False) -> Path:
        """Write ``load.html`` and ``load.json``, which is `asked`, into ``folder``; the path of the
        first.

        Raises `CannotWrite` where other files are in the way, unless ``overwrite``.
        """
        page = document_html("Load – ocr_phases", [], self._html()).encode()
        files = {"load.html": page, "load.json": self.asked.to_json(orient="records").encode()}
        return write_into(Path(folder), files, overwrite=overwrite)[0]


@explain_wrong_calls
def load_test(
    session: Any,
    pages: Pages,
    concurrency: Sequence[int] = (1, 2, 4, 8),
    *,
    rates: Sequence[float] = (),
    requests: int | None = None,
    progress: Callable[[str], None] | None = None,
    prompt: str | Sequence[str] = "markdown",
    preset: str | None = None,
    max_new_tokens: int | None = None,
    infer: SamplingSettings | Mapping[str, Any] | str | None = None,
    repeats: int = 3,
    warmup: int = 1,
    strategy: Strategy = "eager",
    vision: Vision = "eager",
    threads: int | None = None,
    grounding: bool | None = None,
    ignore_eos: bool | None = None,
    eos_check_every: int | None = None,
    first_token: Literal["prefill", "redecode"] = "prefill",
    seed: int = 0,
    autocast: bool | None = None,
    generate: bool = False,
    return_text: bool = True,
    embed_page: bool = True,
    verify: bool = False,
    token_probabilities: bool = True,
    ceilings: bool = True,
    kernels: bool = False,
    kernel_steps: int = 32,
    kernel_trace: str | Path | None = None,
    price_per_hour: float | None = None,
) -> LoadResult:
    """Ask for ``pages`` in turn: closed-loop, so many at once, and open-loop at ``rates`` a minute.

    Closed-loop sends a page as soon as one has ended, open-loop at random (Poisson) times. A level
    has ``requests`` of them, by default four for each at once, and at least each page. ``settings``
    are those of `RunSettings`. One page is read before, untimed. Raises as `run_inference` does.
    """
    # A level that is named twice is measured once: under one name both would count as one, at twice
    # the rate.
    levels = [(f"{number} at once", number, 0.0) for number in dict.fromkeys(concurrency)]
    levels += [(f"{rate:g}/min", 4, rate) for rate in dict.fromkeys(rates)]
    if min((*concurrency, *rates), default=0) <= 0:
        raise OcrPhasesError("Give a concurrency or a rate above 0.")
    each = pages if isinstance(pages, Sequence) and not isinstance(pages, str | bytes) else [pages]
    measurements = []
    for page in each:
        request = session.check_request(
            page,
            prompt,
            preset=preset,
            max_new_tokens=max_new_tokens,
            infer=infer,
            repeats=repeats,
            warmup=warmup,
            strategy=strategy,
            vision=vision,
            threads=threads,
            grounding=grounding,
            ignore_eos=ignore_eos,
            eos_check_every=eos_check_every,
            first_token=first_token,
            seed=seed,
            autocast=autocast,
            generate=generate,
            return_text=return_text,
            embed_page=embed_page,
            verify=verify,
            token_probabilities=token_probabilities,
            ceilings=ceilings,
            kernels=kernels,
            kernel_steps=kernel_steps,
            kernel_trace=kernel_trace,
            price_per_hour=price_per_hour,
        )
        measurements.append(ServerMeasurement(session, request))
    measurements[0].ask()
    rows: list[dict[str, Any]] = []
    for level, at_once, rate in levels:
        if progress is not None:
            progress(level)
        count = requests or max(4 * at_once, len(measurements))
        starts = np.random.default_rng(0).exponential(60 / rate if rate else 0.0, count).cumsum()
        with ThreadPoolExecutor(count if rate else at_once) as pool:
            row = partial(_row, level, time.monotonic())
            rows += pool.map(row, itertools.cycle(measurements), starts)
    return LoadResult(session.server.url, rows, price_per_hour)


def _row(level: str, zero: float, measurement: ServerMeasurement, start: float) -> dict[str, Any]:
    """A row of `LoadResult.asked`: a page asked for, at the earliest ``start`` seconds after
    ``zero``.
    """
    time.sleep(max(0.0, zero + start - time.monotonic()))
    row = {"level": level, "begun": time.monotonic() - zero, "times": [], "tokens": 0, "error": ""}
    row |= {"timed": False, "at_once": False}
    try:
        answer = measurement.ask()
    except ServerFailed as error:
        return row | {"error": str(error)}
    times = [answer.begun - zero + ms / 1e3 for ms in answer.times]
    tokens = answer.token_count
    return row | {
        "times": times,
        "tokens": tokens,
        "timed": answer.timed,
        "at_once": answer.at_once,
    }
