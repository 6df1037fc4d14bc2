"""What a server did under load, as pictures and as HTML."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator

from ocr_phases.analyse.load import TAIL_FROM, lag_sentence, load_verdict
from ocr_phases.show.axes import legend_below, name_axis, new_figure, sentence_figure
from ocr_phases.show.colours import FAINT, ORANGE, VIOLET
from ocr_phases.show.html_table import table_html
from ocr_phases.show.section import Bundle, Section, bundle, sections_document
from ocr_phases.show.terminal_table import table_text
from ocr_phases.show.web import Html, block, element, fragment, note
from ocr_phases.text import ms_text

_LATENCIES = {"ttft_p50_ms": "first token", "inter_token_p50_ms": "between tokens"}
_MOST_ERRORS = 5
#: Heading and unit of the columns whose names say less.
_HEADINGS = {
    "goodput_per_min": ("goodput", "pages/min"),
    "ttft_p50_ms": ("first token p50", "ms"),
    "ttft_p99_ms": ("first token p99", "ms"),
    "inter_token_p50_ms": ("between tokens p50", "ms"),
    "inter_token_p99_ms": ("between tokens p99", "ms"),
    "ntpot_p50_ms": ("per token p50", "ms"),
}
_TAILS = ("ttft_p99_ms", "inter_token_p99_ms")
_LEVELS_NOTE = (
    "A level called 4 at once keeps four pages in flight; one called 30/min sends 30 pages per "
    "minute at random times, however long the server takes. p50 is the median; per token is the "
    f"time of a whole page divided by its tokens; a p99 needs {TAIL_FROM} requests."
)
#: What the parts of an objective are called.
_OBJECTIVES = {"ttft": "first token", "itl": "between tokens"}
#: Above the points of closed-loop levels stand their names, below those of the open loop.
_NAME_ABOVE = (4, 5)
_NAME_BELOW = (4, -13)


def plot_load_throughput(table: pd.DataFrame, *, ax: Axes | None = None) -> Figure:
    """Time to first token and inter-token latency over pages per minute, a point per level."""
    _, (axes,) = new_figure(4.2, [load_verdict(table)], ax)
    timed = table.dropna(subset=["ttft_p50_ms"])
    axes.set_prop_cycle(color=[VIOLET, ORANGE])
    latencies = timed[list(_LATENCIES)]
    axes.plot(timed["pages_per_min"], latencies, "o", label=list(_LATENCIES.values()))
    points = timed[["level", "pages_per_min", "ttft_p50_ms"]]
    for level, rate, ttft in points.itertuples(index=False):
        place = _NAME_BELOW if level.endswith("/min") else _NAME_ABOVE
        axes.annotate(level, (rate, ttft), place, textcoords="offset points", fontsize=9)
    return _latency_axes(axes, "pages per minute")


def plot_load_stalls(asked: pd.DataFrame, *, ax: Axes | None = None) -> Figure:
    """The tokens of the page that waited longest for one, and when other pages were waiting."""
    longest_gaps = asked["times"].map(_longest_gap).where(asked["timed"], 0.0)
    if not longest_gaps.any():
        return sentence_figure("No page has two timed tokens, so there is no stall to draw.", ax)
    place = int(longest_gaps.argmax())
    page = asked.iloc[place]
    others = asked.drop(index=asked.index[place])
    beside = others[others["level"] == page["level"]].dropna(subset="first")
    gaps_ms = 1e3 * np.diff(page["times"])
    _, (axes,) = new_figure(3.4, [_stall_title(page["times"], gaps_ms, beside)], ax)
    axes.plot(page["times"][1:], gaps_ms, ".-", color=ORANGE, label="between this page's tokens")
    waits = list(zip(beside["begun"], beside["first"] - beside["begun"], strict=True))
    # As high as the axes, and as wide as the waits.
    axes.broken_barh(waits, (0, 1), transform=axes.get_xaxis_transform(), color=FAINT, alpha=0.4)
    axes.set_xlim(page["first"], page["end"])
    about = f"seconds since the level {page['level']} began"
    if waits:
        about = f"{about}; grey: another page waits for its first token"
    return _latency_axes(axes, about)


def _stall_title(times: list[float], gaps_ms: np.ndarray, beside: pd.DataFrame) -> str:
    """The usual and the longest time between the tokens of a page, and whether another waited then.

    ``times`` are those of the tokens in s, ``beside`` the other pages that were asked for.
    """
    usual = ms_text(float(np.median(gaps_ms)))
    longest = ms_text(gaps_ms.max())
    when = "at most"
    place = int(gaps_ms.argmax())
    if _any_waits(beside, times[place], times[place + 1]):
        when = "while another waits for its first"
    return f"One page's tokens: {usual} apart, {longest} {when}"


def _any_waits(pages: pd.DataFrame, start: float, end: float) -> bool:
    """Whether one of the pages waits for its first token somewhere between two times in s."""
    waits = (pages["begun"] < end) & (pages["first"] > start)
    return bool(waits.any())


def _longest_gap(times: list[float]) -> float:
    """The longest time between two tokens of a page; 0 for fewer than two."""
    return max(np.diff(times), default=0.0)


def _latency_axes(axes: Axes, over: str) -> Figure:
    """Axes of a latency over what ``over`` says, with the keys of their lines.

    The scale is logarithmic, since the first token takes many times as long as the next one.
    """
    axes.set(yscale="log", xlabel=over)
    low, high = axes.yaxis.get_data_interval()
    if 0 < low <= high < np.inf:
        # So wide that there are numbers on the axis, and room for the names of points.
        axes.set_ylim(low / 1.6, high * 1.6)
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(FuncFormatter(_tick_text))
    axes.minorticks_off()
    name_axis(axes.yaxis, "latency (ms)")
    return legend_below(axes)


def _tick_text(ms: float, _: int | None = None) -> str:
    """A number of the axis, without powers of ten."""
    return f"{ms:,g}"


def load_html(server: str, table: pd.DataFrame, asked: pd.DataFrame) -> Html:
    """The verdict, the table of levels, the first errors and both plots."""
    section = Section(
        element("p", load_verdict(table), class_="op-headline"),
        _levels_table(server, table),
        *map(note, _errors(asked)),
        plot_load_throughput(table),
        plot_load_stalls(asked),
    )
    return Html(section.html())


def _levels_table(server: str, table: pd.DataFrame) -> Html:
    missing = (
        f"p99 only from {TAIL_FROM} requests on, times between tokens only where chunks are tokens"
    )
    # A percentile that no level has would only make the table wider.
    all_missing = [name for name in _TAILS if table[name].isna().all()]
    levels = table_html(
        table.drop(columns=all_missing),
        caption=f"Load on {server}",
        missing=missing,
        headings=_HEADINGS,
    )
    return fragment(levels, note(_LEVELS_NOTE))


def _errors(asked: pd.DataFrame) -> list[str]:
    """The first errors of requests, and a sentence where the client itself was late."""
    errors = sorted(set(asked["error"]) - {""})
    sentences = errors[:_MOST_ERRORS]
    lag = lag_sentence(asked)
    if lag:
        sentences.append(lag)
    return sentences


def load_document(
    server: str,
    table: pd.DataFrame,
    asked: pd.DataFrame,
    *,
    engine: str = "",
    model: str = "",
    page: str = "",
    created: str = "",
    slo: Mapping[str, float] | None = None,
) -> str:
    """A load as a whole page, with what was measured, contents and a link to its data."""
    facts = [model, engine, page, created.replace("T", " ").replace("+00:00", " UTC")]
    if slo:
        limits = [f"{_OBJECTIVES[name]} within {ms_text(ms)}" for name, ms in slo.items()]
        facts.append(f"objective: {', '.join(limits)}")
    title = f"Load on {server}"
    head = block(
        "head",
        picture="",
        title=title,
        about=" · ".join(fact for fact in facts if fact),
        headline=load_verdict(table),
        lead="",
        below="",
    )
    data = element(
        "p",
        "Each request, with the time of each of its chunks, is in ",
        element("a", "load.json", href="load.json"),
        ".",
    )
    sections = {
        "Levels": Section(_levels_table(server, table), *map(note, _errors(asked))),
        "Latency over throughput": Section(plot_load_throughput(table)),
        "Stalls": Section(plot_load_stalls(asked)),
        "Data": Section(data),
    }
    return sections_document(f"{title} – ocr_phases", head, sections)


def load_bundle(server: str, table: pd.DataFrame, asked: pd.DataFrame) -> Bundle:
    """`load_html` for a cell of a notebook, and `load_text`."""
    return bundle(load_html(server, table, asked), load_text(table))


def load_text(table: pd.DataFrame) -> str:
    """A load for a terminal: its verdict and a line per level."""
    return f"{load_verdict(table)}\n{table_text(table)}"
