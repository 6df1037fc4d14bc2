"""Figures: their colours, axes and common shapes; as PNG, and as inline SVG in the colours of its
page.

No pyplot and no global state: a figure can be drawn in any thread and is freed with its last
reference. Figures are 10 inches wide, so that at the report's width type is as large as its points
say; matplotlib's constrained layout fits them to any other size. Colours mean one thing each and
have a contrast of 3 to 1 with a light and with a dark page. Ink, lines and surfaces follow the
page: in an SVG they are custom properties, which ``theme.css`` sets.
"""

from __future__ import annotations

import io
import re
import textwrap
import threading
import warnings
from collections.abc import Iterable, Sequence
from functools import lru_cache, partial
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.backend_bases import RendererBase
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.text import Text
from matplotlib.textpath import text_to_path
from matplotlib.ticker import (
    EngFormatter,
    MaxNLocator,
    PercentFormatter,
)
from matplotlib.transforms import Bbox, offset_copy

from ocr_phases.show.web import SHARPNESS, Html, asset_text, data_address, element
from ocr_phases.text import plain

WIDTH = 10.0  # inches
FIGURE_DPI = 100

INK, MUTED, AXIS, FAINT = "#222222", "#666666", "#999999", "#d9d9d9"
#: The colour of what has no meaning of its own: the time between stages, a device that waits.
REST = "#8c8c8c"
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

#: Begins what stands for a drawing where a viewer drops it: a report takes what is in front of it.
STILL = '<div class="op-still">'

_NO_DRAWING = (
    "The drawing is in the HTML file beside this notebook. Trust or run the notebook to see it."
)
_DRAWING = threading.Lock()
# The first is what texts are measured with, Verdana is as wide. matplotlib says the lines' ends in
# a style sheet, which would reach the whole page, and leaves out the fill of what is black.
_LOOK = (
    "fill: var(--op-ink, #000000); stroke-linejoin: round; stroke-linecap: butt; "
    "font-family: 'DejaVu Sans', Verdana, sans-serif"
)
#: What a figure draws with -> the property that stands for it; the colour itself stays its
#: fallback.
_INKS = {
    "#000000": "ink",
    INK: "ink",
    MUTED: "muted",
    AXIS: "axis",
    FAINT: "grid",
    "#ffffff": "card",
}
_INK = re.compile(rf"(fill|stroke): ({'|'.join(_INKS)})\b")

#: The look of words on axes: as they stand, dollar signs in a file's name begin no formula.
SMALL: dict[str, Any] = {"fontsize": 9, "color": INK, "parse_math": False}

_SENTENCE_LINE = 52  # characters
_LETTERS = 19.0  # of small type in an inch, and what axes leave beside them
_KEY_LETTERS = 8  # the room that a key takes beside its words
_BELOW_TICKS, _BELOW_LABEL = (
    0.285,
    0.46,
)  # inches under axes, of the ticks' text and of the label, too
_MOST_MARKS = 1_000  # a figure is as many CSS pixels wide
_FEW = 6  # points of a line, which are drawn, too; ticks that have a unit
_BAR = 0.7  # of the room of a row
_ROW, _AROUND, _KEYS = (
    0.3,
    1.1,
    0.5,
)  # inches of a row, around a chart of bars, and of the keys below


_text_size = lru_cache(4096)(text_to_path.get_text_width_height_descent)
_LAYOUT = ConstrainedLayoutEngine(h_pad=0.08)  # inches; a title stands clear of the axis above


# -- shown and saved ----------------------------------------------------------------------------------


class ShownFigure(Figure):
    """A figure that a notebook shows as an SVG in the colours of its page, with constrained layout.

    A viewer that takes no SVG within HTML shows a still.
    """

    def draw(self, renderer: RendererBase) -> None:
        """Lay it out, and draw it: with a layout engine of its own ``savefig`` would draw all of it
        twice.
        """
        # Texts are measured once, for the layout and for the drawing; in an SVG for all figures.
        setattr(self.canvas, "get_renderer", lambda: renderer)  # noqa: B010
        if isinstance(self.canvas, FigureCanvasSVG):
            setattr(renderer, "get_text_width_height_descent", _text_size)  # noqa: B010
        for axes in self.axes:
            setattr(axes, "get_tightbbox", partial(_usual_room, axes))  # noqa: B010
        _LAYOUT.execute(self)
        super().draw(renderer)

    def bundle(self, *, still: bool = True) -> dict[str, str]:
        """What a cell shows, by MIME type; without ``still`` words stand for the drawing."""
        alt, instead = plain(alt_text(self)), Html(_NO_DRAWING)
        if still:
            png = data_address(figure_png(self), "image/png")
            instead = element(
                "img", src=png, alt=alt, width=round(FIGURE_DPI * self.get_figwidth())
            )
        theme = f"<style>{asset_text('theme.css')}</style>"
        return {"text/html": f"{figure_html(self)}{STILL}{instead}</div>{theme}", "text/plain": alt}

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return self.bundle()


def _usual_room(axes: Axes, *_: Any, **__: Any) -> Bbox:
    """About what axes take: the layout asks twice, as ticks change with the size, and measures
    once.
    """
    delattr(axes, "get_tightbbox")
    return axes.bbox.padded(26, 32)  # points


def alt_text(figure: Figure) -> str:
    """What a figure says: the titles of its axes, or the words on axes without one."""
    said = [
        axes.get_title("left") or " ".join(map(Text.get_text, axes.texts)) for axes in figure.axes
    ]
    return "; ".join(" ".join(text.split()) for text in said if text.strip())


def figure_html(figure: Figure) -> Html:
    """A figure as inline SVG, in a frame that a keyboard can scroll."""
    frame = {
        "class_": "figure drawn",
        "role": "group",
        "aria_label": alt_text(figure),
        "tabindex": 0,
    }
    return element("div", Html(figure_svg(figure)), **frame)


def figure_png(figure: Figure, dpi: float = FIGURE_DPI * SHARPNESS) -> bytes:
    """A figure as a PNG of so many dots per inch."""
    return _saved(figure, format="png", dpi=dpi, metadata={"Software": None})


def figure_svg(figure: Figure) -> str:
    """A figure as one ``<svg>`` element of 100 CSS pixels an inch, with `alt_text`.

    It holds no script, style sheet, comment or address. Ids are hashes of what they name, so two
    figures of one page share one only for the same thing. White is the page's own surface.
    """
    # Without a fixed salt the ids would differ from run to run. Settings are the whole process's.
    with _DRAWING, matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "op"}):
        drawn = plain(
            _saved(figure, format="svg", transparent=True, metadata={"Date": None}).decode()
        )
    # In front of the first group are metadata and a style sheet; comments hold the drawn texts.
    drawn = re.sub(
        r"<!--.*?-->", "", drawn[drawn.index("<g ") : drawn.rindex("</svg>")], flags=re.DOTALL
    )
    drawn = re.sub(r"<[^>]+>", _cleaned, drawn)
    width, height = figure.get_size_inches()
    look = {
        "xmlns": "http://www.w3.org/2000/svg",
        "class_": "op-svg",
        "role": "img",
        "style": _LOOK,
    }
    look |= {"viewBox": f"0 0 {72 * width:g} {72 * height:g}", "width": round(FIGURE_DPI * width)}
    look["height"] = round(FIGURE_DPI * height)
    return element("svg", Html(re.sub(r"\s+", " ", drawn)), aria_label=alt_text(figure), **look)


def _cleaned(tag: re.Match[str]) -> str:
    """A tag of a drawing without what serves nobody, its inks as properties.

    Groups have numbers for ids, what is used elsewhere has hashes.
    """
    text = re.sub(r' id="[^"]*_\d{1,6}"| font-family: [^;"]*;?| xmlns\S*|\bxlink:', "", tag[0])
    return _INK.sub(lambda ink: f"{ink[1]}: var(--op-{_INKS[ink[2]]}, {ink[2]})", text)


def _saved(figure: Figure, **given: Any) -> bytes:
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a character the font lacks is drawn as an empty box
        figure.savefig(buffer, **given)
    return buffer.getvalue()


# -- figures and axes ---------------------------------------------------------------------------------


def blank_figure(height: float, width: float = WIDTH) -> ShownFigure:
    """A figure of the report's width that shows itself; sizes in inches."""
    return ShownFigure(figsize=(width, height), facecolor="white")


def new_figure(
    height: float,
    titles: Sequence[str] = ("",),
    ax: Axes | None = None,
    columns: int = 1,
    **grid: Any,
) -> tuple[Figure, list[Axes]]:
    """A figure of the report's width with axes for each title, in inches; or its figure and ``ax``,
    dressed.

    ``grid`` is what `matplotlib.figure.Figure.subplots` takes. A figure of the caller that nothing
    lays out gets constrained layout: words beside the axes need room.
    """
    figure: Figure = blank_figure(height) if ax is None else figure_of(ax)
    rows = -(-len(titles) // columns)
    drawn = [ax] if ax else figure.subplots(rows, columns, squeeze=False, **grid).ravel().tolist()
    if ax and figure.get_layout_engine() is None and drawn[0].get_subplotspec() is not None:
        figure.set_layout_engine("constrained")
    for axes, title in zip(drawn, titles, strict=True):
        style_axes(axes, title)
    return figure, drawn


def figure_of(axes: Axes) -> Figure:
    """The figure that axes belong to, also where they lie in a part of it."""
    return axes.figure.figure


def style_axes(axes: Axes, title: str = "") -> None:
    """The look that every plot here shares, and its title, which states the finding, in bold on the
    left.
    """
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set(color=AXIS, in_layout=False)
    axes.grid(visible=True, color=FAINT, linewidth=0.5)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=9.5, colors=MUTED, labelcolor=INK)
    # Places given, matplotlib need not look for them below the ticks' text and above what is drawn.
    axes.xaxis.set_label_coords(
        0.5, 0, offset_copy(axes.transAxes, figure_of(axes), y=-_BELOW_TICKS)
    )
    look: Any = {"y": 1.0, "fontweight": "bold", "pad": 9, "wrap": True, **SMALL, "fontsize": 11.5}
    axes.set_title(title, loc="left", **look)


def sentence_figure(text: str, ax: Axes | None = None) -> Figure:
    """A figure with one sentence in place of a plot; or ``ax`` with that sentence."""
    axes = blank_figure(1.0).subplots() if ax is None else ax
    # On the left and in short lines, for a screen that shows no more of it.
    look: Any = {
        "transform": axes.transAxes,
        "va": "center",
        **SMALL,
        "fontsize": 10,
        "color": MUTED,
    }
    axes.text(0, 0.5, textwrap.fill(text, _SENTENCE_LINE), **look)
    axes.set_axis_off()
    return figure_of(axes)


def legend_below(axes: Axes, keys: Sequence[Artist] = ()) -> Figure:
    """Keys under the axes, in as many columns as their words leave room for; by default of what is
    drawn.
    """
    figure, keys = figure_of(axes), keys or axes.get_legend_handles_labels()[0]
    room = _LETTERS * axes.bbox.width / figure.dpi
    words = [len(str(key.get_label())) + _KEY_LETTERS for key in keys]
    fits = [n for n in range(1, len(keys) + 1) if sum(map(max, np.array_split(words, n))) <= room]
    look: Any = {
        "loc": "upper center",
        "bbox_to_anchor": (0.5, 0),
        "fontsize": 9,
        "labelcolor": INK,
    }
    look |= {
        "bbox_transform": offset_copy(axes.transAxes, figure, y=-_BELOW_LABEL),
        "frameon": False,
    }
    look |= {"labelspacing": 0.35, "columnspacing": 1.2}
    legend = axes.legend(handles=keys, ncols=max(fits, default=1), borderaxespad=0, **look)
    for text in legend.get_texts():
        text.set_parse_math(False)
    return figure


def name_axis(axis: Axis, label: str, unit: str = "ms") -> None:
    """Name an axis, after its scale is set, of ms, bytes, a share in % or, without a unit, whole
    numbers.

    Each tick of bytes has its decimal unit.
    """
    ticks: dict[str, Any] = {"bytes": EngFormatter("B"), "%": PercentFormatter(1.0, 0, " %")}
    axis.set_major_formatter(ticks.get(unit, "{x:,g}"))
    if axis.get_scale() == "linear":
        most: Any = _FEW if unit in ticks else "auto"
        axis.set_major_locator(MaxNLocator(most, steps=[1, 2, 2.5, 5, 10], integer=not unit))
    axis.set_label_text(label)


# -- bars and lines -----------------------------------------------------------------------------------

#: A part of a bar: where it starts, how long it is, its colour.
Piece = tuple[float, float, Any]
#: A bar: its name, its pieces, and words at the right end of the axes.
Row = tuple[str, Sequence[Piece], str]


def hbars(axes: Axes, rows: Sequence[Row]) -> None:
    """Horizontal bars from above, between their names and words.

    A piece of `FAINT` is hollow; an outline keeps one in sight that is as thin as itself.
    """
    parts = [(place, *piece) for place, (_, pieces, _) in enumerate(rows) for piece in pieces]
    corners = np.array([(0, -0.5), (0, 0.5), (1, 0.5), (1, -0.5)])
    boxes = [corners * (length, _BAR) + (start, place) for place, start, length, _ in parts]
    colours = [colour for *_, colour in parts]
    edges = [REST if colour == FAINT else colour for colour in colours]
    axes.add_collection(PolyCollection(boxes, facecolors=colours, edgecolors=edges, linewidths=0.8))
    look: Any = {"xycoords": axes.get_yaxis_transform(), "textcoords": "offset points", **SMALL}
    for place, (name, _, text) in enumerate(rows):
        axes.annotate(
            name, (0, place), (-7, 0), ha="right", va="center", **look | {"fontsize": 9.5}
        )
        axes.annotate(text, (1, place), (6, 0), va="center", **look)
    axes.set(ylim=(len(rows) - 0.5, -0.5), xlim=(0, 1.02 * axes.dataLim.xmax or 1.0))
    axes.yaxis.set_visible(False)


def bar_charts(
    charts: Sequence[tuple[str, Sequence[Row], str]],
    ax: Axes | None = None,
    keys: Sequence[Artist] = (),
) -> tuple[Figure, list[Axes]]:
    """Charts of bars under each other in one figure, or a single one on ``ax``; and the axes of
    each.

    A chart is a title, its rows, and the name of the axis, with its unit ms.
    """
    heights = [_AROUND + _ROW * len(rows) for _, rows, _ in charts]
    titles = [title for title, _, _ in charts]
    figure, drawn = new_figure(sum(heights) + _KEYS * bool(keys), titles, ax, height_ratios=heights)
    for axes, (_, rows, label) in zip(drawn, charts, strict=True):
        hbars(axes, rows)
        name_axis(axes.xaxis, label)
    return legend_below(drawn[-1], keys) if keys else figure, drawn


def stacked(parts: Iterable[tuple[float, str]]) -> list[Piece]:
    """The pieces of a bar, given as lengths and colours, end to end; none for what has no length."""
    parts = [part for part in parts if part[0] > 0]
    ends = np.cumsum([length for length, _ in parts]).tolist()
    return [
        (end - length, length, colour) for end, (length, colour) in zip(ends, parts, strict=True)
    ]


def bunches(count: int) -> np.ndarray:
    """The bunch of each of so many marks: one each, or as many bunches as a figure has room for."""
    places = np.arange(count)
    return places if count <= 2 * _MOST_MARKS else places * _MOST_MARKS // count


def lines(
    axes: Axes, at: pd.Series, times: pd.Series, *ends: pd.Series, band: str = "", **look: Any
) -> None:
    """Times at their places as a line, and a band between the ``ends`` of their spread, which has a
    name.

    Of thousands the medians of bunches are drawn, and a band from the least to the greatest.
    """
    bunch = bunches(len(times))
    at = at.astype("float64").groupby(bunch).first()
    low, high = (each.groupby(bunch) for each in ends or (times, times))
    if (high.max() > low.min()).any():
        axes.fill_between(
            at, low.min(), high.max(), color=look["color"], alpha=0.22, linewidth=0, label=band
        )
    look = {"linewidth": 1.4, "marker": "o" if len(at) < _FEW else "", **look}
    axes.plot(at, times.groupby(bunch).median(), **look)
