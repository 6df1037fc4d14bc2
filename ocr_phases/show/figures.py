"""Figures: their colours, axes and common shapes; as PNG, and as inline SVG in the colours of its page.

No pyplot and no global state: a figure can be drawn in any thread and is freed with its last reference.
Figures are 10 inches wide, so that at the report's width type is as large as its points say; matplotlib's
constrained layout fits them to any other size. Colours mean one thing each and have a contrast of 3 to 1
with a light and with a dark page. Ink, lines and surfaces follow the page: in an SVG they are custom
properties, which ``page.css`` and ``notebook.css`` set.
"""

from __future__ import annotations

import base64
import io
import math
import re
import textwrap
import threading
import warnings
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import Any, NamedTuple, ParamSpec

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backend_bases import RendererBase
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.text import Text
from matplotlib.ticker import EngFormatter, FuncFormatter, MaxNLocator
from matplotlib.transforms import ScaledTranslation

from ocr_phases.show.web import SHARPNESS, Html, asset_text, data_address, element
from ocr_phases.text import plain

WIDTH = 10.0  # inches
FIGURE_DPI = 100

INK, MUTED, FAINT = "#222222", "#666666", "#d9d9d9"
REST = "#8c8c8c"
"""The colour of what has no meaning of its own: the time between stages, a device that waits."""
BLUE, SKY, GREEN, PURPLE = "#0072b2", "#4a96d2", "#009e73", "#c56ba0"
GOLD, ORANGE, VERMILLION, VIOLET, BROWN = "#b48c00", "#d9730d", "#d1373c", "#7568c8", "#8a6d5a"

PHASE_COLOURS = {"prepare": REST, "prefill": VIOLET, "decode": ORANGE, "generate": GREEN}
STAGE_COLOURS = {
    "load_image": "#6e6e6e",
    "tokenizer": "#7f7f7f",
    "transfer": REST,
    "sam": BLUE,
    "clip": SKY,
    "encoder": SKY,
    "projector": GREEN,
    "vision_fusion": PURPLE,
    "language_model": GOLD,
    "lm_head": VERMILLION,
    "sampling": BROWN,
}

STILL = '<div class="op-still">'
"""Begins what stands for a drawing where a viewer drops it: a report takes what is in front of it."""

_NO_DRAWING = "The drawing is in the HTML file beside this notebook. Trust or run the notebook to see it."
_LARGEST_SVG = 300_000  # characters; a report holds about eight figures
_DRAWING = threading.Lock()
# The first is what texts are measured with, Verdana is as wide. matplotlib says the lines' ends in a style
# sheet, which would reach the whole page, and leaves out the fill of what is black.
_LOOK = (
    "fill: var(--op-plot-ink, #000000); stroke-linejoin: round; stroke-linecap: butt; "
    "font-family: 'DejaVu Sans', Verdana, sans-serif"
)
#: What a figure draws with -> the property that stands for it; the colour itself stays its fallback.
_INKS = {
    "#000000": "ink",
    INK: "ink",
    "#444444": "ink",
    MUTED: "muted",
    "#999999": "axis",
    FAINT: "grid",
    "#e6e6e6": "grid",
    "#ffffff": "surface",
}
_INK = re.compile(rf"(fill|stroke): ({'|'.join(_INKS)})\b")

SMALL: dict[str, Any] = {"fontsize": 9, "color": INK}
_SENTENCE_LINE = 52  # characters
_LETTERS = 15.0  # of small type in an inch
_KEY_LETTERS = 8  # the room that a key takes beside its words
_BELOW_LABEL, _BESIDE = 0.42, 1.0  # inches of the labels under axes, and beside them
_MOST_MARKS = 1_000  # a figure is as many CSS pixels wide
_BAR = 0.7  # of the room of a row
_ROW, _AROUND = 0.3, 1.1  # inches of a row, and around a chart of bars

_Given = ParamSpec("_Given")


class LiteralFigure(Figure):
    """A figure that draws every text as it stands: dollar signs in a file's name begin no formula."""

    def draw(self, renderer: RendererBase) -> None:
        """Draw it, every text with mathematics off."""
        _literal(self)
        super().draw(renderer)

    @property
    def alt(self) -> str:
        """What the figure says: the titles of its axes, or the words on axes without one."""
        said = [
            axes.get_title("left") or " ".join(text.get_text() for text in axes.texts) for axes in self.axes
        ]
        return "; ".join(" ".join(text.split()) for text in said if text and not text.isspace())

    def _repr_mimebundle_(self, **_: Any) -> tuple[dict[str, str], dict[str, Any]]:
        return Picture(self, self.alt)._repr_mimebundle_()


def _literal(artist: Artist) -> None:
    for text in artist.findobj(lambda each: isinstance(each, Text)):
        text.set(parse_math=False)


def takes_axes(plot: Callable[_Given, Figure]) -> Callable[_Given, Figure]:
    """A plot that also draws on the caller's ``ax``: its texts stay literal there, as in a figure of ours."""

    @wraps(plot)
    def drawn(*args: _Given.args, **options: _Given.kwargs) -> Figure:
        figure, axes = plot(*args, **options), options.get("ax")
        if isinstance(axes, Axes):
            _literal(axes)
        return figure

    return drawn


# -- shown and saved ----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Picture:
    """A figure and its text alternative: in a cell, a panel or a report.

    A notebook and a report show the SVG, which follows their colours, unless thousands of marks made that
    too large. A viewer that takes no SVG within HTML shows a still.
    """

    figure: Figure
    alt: str

    def html(self) -> Html:
        """Inline SVG in a frame that a keyboard can scroll."""
        frame = {"class_": "figure drawn", "role": "group", "aria_label": self.alt, "tabindex": 0}
        return element("div", Html(figure_svg(self.figure, self.alt)), **frame)

    def bundle(self, *, still: bool = True) -> tuple[dict[str, str], dict[str, Any]]:
        """What a cell shows, by MIME type, and about it; without ``still`` words stand for the drawing."""
        alt, drawn = plain(self.alt), self.html()
        width = round(self.figure.get_size_inches()[0] * FIGURE_DPI)  # CSS pixels
        if len(drawn) > _LARGEST_SVG:
            data = {"image/png": base64.b64encode(figure_png(self.figure)).decode(), "text/plain": alt}
            return data, {"image/png": {"width": width, "alt": alt}}
        instead = Html(_NO_DRAWING)
        if still:
            png = data_address(figure_png(self.figure), "image/png")
            instead = element("img", src=png, alt=alt, width=width)
        theme = f"<style>{asset_text('notebook.css')}</style>"
        return {"text/html": f"{drawn}{STILL}{instead}</div>{theme}", "text/plain": alt}, {}

    def _repr_mimebundle_(self, **_: Any) -> tuple[dict[str, str], dict[str, Any]]:
        return self.bundle()


def figure_png(figure: Figure, dpi: float = FIGURE_DPI * SHARPNESS) -> bytes:
    """A figure as a PNG of so many dots per inch."""
    return _saved(figure, format="png", dpi=dpi, metadata={"Software": None})


def figure_svg(figure: Figure, alt: str) -> str:
    """The figure as one ``<svg>`` element of 100 CSS pixels an inch; ``alt`` is its text alternative.

    It holds no script, style sheet, comment or address. Ids are hashes of what they name, so two figures of
    one page share one only for the same thing. White is the page's own surface.
    """
    _literal(figure)
    layout = figure.get_layout_engine()
    # Without a fixed salt the ids would differ from run to run. Settings and filters are the whole process's.
    settings = matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "op"})
    with _DRAWING, warnings.catch_warnings(), settings:
        warnings.simplefilter("ignore")  # a character the font lacks is drawn as an empty box
        if layout is not None:
            layout.execute(figure)
        figure.set_layout_engine(None)  # else savefig draws all of it once more to lay it out
        try:
            drawn = plain(_saved(figure, format="svg", transparent=True, metadata={"Date": None}).decode())
        finally:
            figure.set_layout_engine(layout)
    # In front of the first group are metadata and a style sheet; comments hold the drawn texts.
    drawn = re.sub(r"<!--.*?-->", "", drawn[drawn.index("<g ") : drawn.rindex("</svg>")], flags=re.DOTALL)
    used = set(re.findall(r'(?:href="|url\()#(\w+)', drawn))
    drawn = re.sub(r"<[^>]+>", lambda tag: _cleaned(tag[0], used), drawn)
    inches = figure.get_size_inches()
    width, height = (round(FIGURE_DPI * side) for side in inches)
    return element(
        "svg",
        Html(re.sub(r"\s+", " ", drawn)),
        xmlns="http://www.w3.org/2000/svg",
        class_="op-svg",
        role="img",
        aria_label=alt,
        viewBox=" ".join(f"{value:g}" for value in (0, 0, *72 * inches)),
        width=width,
        height=height,
        style=_LOOK,
    )


def _cleaned(tag: str, used: Collection[str]) -> str:
    """A tag of a drawing without what serves nobody, its inks as properties."""
    tag = re.sub(r" id=\"([^\"]*)\"", lambda name: name[0] if name[1] in used else "", tag)
    tag = re.sub(r" font-family: [^;\"]*;?| xmlns\S*", "", tag).replace("xlink:", "")
    return _INK.sub(lambda ink: f"{ink[1]}: var(--op-plot-{_INKS[ink[2]]}, {ink[2]})", tag)


def _saved(figure: Figure, **given: Any) -> bytes:
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a character the font lacks is drawn as an empty box
        figure.savefig(buffer, **given)
    return buffer.getvalue()


# -- figures and axes ---------------------------------------------------------------------------------


def blank_figure(height: float, width: float = WIDTH) -> Figure:
    """A figure of the report's width that draws every text as it stands; sizes in inches."""
    layout = ConstrainedLayoutEngine(h_pad=0.08)  # inches; a title stands clear of the axis above
    return LiteralFigure(figsize=(width, height), layout=layout, facecolor="white")


def new_figure(height: float, ax: Axes | None = None) -> tuple[Figure, Axes]:
    """A figure of the report's width with one pair of axes, in inches; or ``ax``, dressed, and its figure.

    A figure of the caller that nothing lays out gets constrained layout: words beside the axes need room.
    """
    axes = blank_figure(height).subplots() if ax is None else ax
    figure = figure_of(axes)
    if figure.get_layout_engine() is None and axes.get_subplotspec() is not None:
        figure.set_layout_engine("constrained")
    style_axes(axes)
    return figure, axes


def figure_of(axes: Axes) -> Figure:
    """The figure that axes belong to, also where they lie in a part of it."""
    return axes.figure.figure


def style_axes(axes: Axes) -> None:
    """The look that every plot here shares."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#999999")
    axes.grid(visible=True, color="#e6e6e6", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=9.5, colors="#444444", labelcolor=INK)
    axes.xaxis.label.set(fontsize=10, color=INK)
    axes.yaxis.label.set(fontsize=10, color=INK)


def title_axes(axes: Axes, text: str) -> None:
    """Set a plot's title, which states the finding; a long one takes several lines."""
    # Its place given, matplotlib need not look for it above what is drawn: nothing is.
    axes.set_title(text, loc="left", y=1.0, fontsize=11.5, fontweight="bold", color=INK, pad=9, wrap=True)


def sentence_figure(text: str, ax: Axes | None = None) -> Figure:
    """A figure with one sentence in place of a plot; or ``ax`` with that sentence."""
    axes = blank_figure(1.0).subplots() if ax is None else ax
    # On the left and in short lines, for a screen that shows no more of it.
    lines = "\n".join(textwrap.wrap(text, _SENTENCE_LINE))
    axes.set_axis_off()
    axes.text(0, 0.5, lines, va="center", fontsize=10, color=MUTED, transform=axes.transAxes)
    return figure_of(axes)


def legend_below(figure: Figure, keys: Sequence[Artist], columns: int, ax: Axes | None = None) -> None:
    """The keys of a whole figure, under it; or under the caller's ``ax``, which may stand among others.

    In ``columns`` at most: in as many as their words leave room for.
    """
    inches = figure.get_figwidth() if ax is None else ax.bbox.width / figure.dpi + _BESIDE
    words = [len(str(key.get_label())) + _KEY_LETTERS for key in keys]
    fitting = [
        number
        for number in range(1, min(columns, len(keys)) + 1)
        if sum(max(part) for part in np.array_split(words, number)) <= _LETTERS * inches
    ]
    look: dict[str, Any] = {"fontsize": 9, "frameon": False, "labelcolor": INK, "labelspacing": 0.35}
    look |= {"ncols": max([1, *fitting]), "columnspacing": 1.2}
    if ax is None:
        figure.legend(handles=keys, loc="outside lower center", **look)
        return
    below = ax.transAxes + ScaledTranslation(0, -_BELOW_LABEL, figure.dpi_scale_trans)
    look |= {"loc": "upper center", "bbox_to_anchor": (0.5, 0), "bbox_transform": below}
    ax.legend(handles=keys, borderaxespad=0, **look)


def time_axis(axis: Axis, label: str = "", note: str = "") -> None:
    """Name an axis of ms in the unit that suits its size, as `ms_text` would; after its limits are set.

    ``note`` comes behind the unit. Without a label each tick has its unit.
    """
    low, high = sorted(axis.get_view_interval())
    size = math.sqrt(low * high) if axis.get_scale() == "log" else high
    scale, unit = (1e3, "s") if size >= 1e3 else (1.0, "ms")
    behind = "" if label else f" {unit}"
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / scale:,g}{behind}"))
    if label:
        axis.set_label_text(f"{label} ({unit}){note}")


def byte_axis(axis: Axis, label: str) -> None:
    """Name an axis of bytes; each tick has its decimal unit."""
    axis.set_major_formatter(EngFormatter("B"))
    axis.set_major_locator(MaxNLocator(nbins=5, steps=[1, 2, 2.5, 5, 10]))
    axis.set_label_text(label)


# -- bars and lines -----------------------------------------------------------------------------------

Piece = tuple[float, float, Any]
"""A part of a bar: where it starts, how long it is, its colour."""

Row = tuple[str, Sequence[Piece], str]
"""A bar: its name, its pieces, and words at the right end of the axes."""


def hbars(axes: Axes, rows: Sequence[Row]) -> None:
    """Horizontal bars from above.

    A piece of `FAINT` is hollow; an outline keeps one in sight that is as thin as itself.
    """
    right: dict[str, Any] = {"xycoords": axes.get_yaxis_transform(), "textcoords": "offset points", **SMALL}
    for place, (_, pieces, text) in enumerate(rows):
        starts, lengths, colours = zip(*pieces, strict=True)
        parts, lane = list(zip(starts, lengths, strict=True)), (place - _BAR / 2, _BAR)
        edges = [REST if colour == FAINT else colour for colour in colours]
        axes.broken_barh(parts, lane, facecolors=colours, edgecolors=edges, linewidth=0.8)
        axes.annotate(text, (1, place), (6, 0), va="center", **right)
    axes.set_yticks(range(len(rows)), [name for name, _, _ in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    end = max(start + length for _, pieces, _ in rows for start, length, _ in pieces)
    axes.set_xlim(0, 1.02 * end or 1.0)
    axes.grid(visible=False, axis="y")


class Chart(NamedTuple):
    """Bars of time in ms: a title, rows of `hbars`, and what the axis says, with a note behind the unit."""

    title: str
    rows: Sequence[Row]
    label: str = ""
    note: str = ""


def bar_charts(charts: Sequence[Chart], ax: Axes | None = None) -> tuple[Figure, list[Axes]]:
    """Charts of bars under each other in one figure, or a single one on ``ax``; and the axes of each."""
    heights = [_AROUND + _ROW * len(chart.rows) for chart in charts]
    figure = blank_figure(sum(heights)) if ax is None else new_figure(0, ax)[0]
    drawn = [ax] if ax else figure.subplots(len(charts), height_ratios=heights, squeeze=False)[:, 0].tolist()
    for axes, chart in zip(drawn, charts, strict=True):
        style_axes(axes)
        hbars(axes, chart.rows)
        time_axis(axes.xaxis, chart.label, chart.note)
        title_axes(axes, chart.title)
    return figure, drawn


def stacked(parts: Sequence[tuple[float, str]]) -> list[Piece]:
    """The pieces of a bar, given as lengths and colours, end to end."""
    ends = np.cumsum([length for length, _ in parts]).tolist()
    return [(end - length, length, colour) for end, (length, colour) in zip(ends, parts, strict=True)]


def label_bar(axes: Axes, end: float, place: int, text: str) -> None:
    """Words behind a horizontal bar that ends at ``end``."""
    axes.annotate(text, (end, place), (7, 0), textcoords="offset points", va="center", **SMALL)


def bunches(count: int) -> np.ndarray:
    """The bunch of each of so many marks: one each, or as many bunches as a figure has room for."""
    places = np.arange(count)
    return places if count <= 2 * _MOST_MARKS else places * _MOST_MARKS // count


def lines(
    axes: Axes,
    places: pd.Series,
    times: pd.Series,
    ends: tuple[pd.Series, pd.Series] | None = None,
    spread: str = "",
    **look: Any,
) -> None:
    """Times at their places as a line, and a band between the ``ends`` of their spread, which has a name.

    Of thousands the medians of bunches are drawn, and a band from the least to the greatest.
    """
    bunch = bunches(len(times))
    at = places.astype("float64").groupby(bunch).first()
    low, high = (each.groupby(bunch) for each in ends or (times, times))
    if (high.max() > low.min()).any():
        shade = {"color": look["color"], "alpha": 0.22, "linewidth": 0, "label": spread}
        axes.fill_between(at, low.min(), high.max(), **shade)
    look = {"linewidth": 1.4, "marker": "o" if len(times) == 1 else "", **look}
    axes.plot(at, times.groupby(bunch).median(), **look)
