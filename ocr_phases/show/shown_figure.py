"""Figures as a notebook or a page shows them: as PNG, and as inline SVG in the page's colours.

No pyplot and no global state: a figure can be drawn in any thread and is freed with its last
reference. Figures are 10 inches wide, so that at the report's width type is as large as its points
say; matplotlib's constrained layout fits them to any other size. Colours mean one thing each and
have a contrast of 3 to 1 with a light and with a dark page. Ink, lines and surfaces follow the
page: in an SVG they are custom properties, which ``theme.css`` sets.
"""

from __future__ import annotations

import io
import re
import threading
import warnings
from functools import lru_cache, partial
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backend_bases import RendererBase
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.text import Text
from matplotlib.textpath import text_to_path
from matplotlib.transforms import Bbox

from ocr_phases.show.colours import AXIS, FAINT, INK, MUTED
from ocr_phases.show.web import SHARPNESS, Html, asset_text, data_address, element
from ocr_phases.text import plain

WIDTH = 10.0  # inches
FIGURE_DPI = 100
#: Begins what stands for a drawing where a viewer drops it: a report takes what is in front of it.
STILL = '<div class="op-still">'
_NO_DRAWING = (
    "The drawing is in the HTML file beside this notebook. Trust or run the notebook to see it."
)
_DRAWING = threading.Lock()
#: The style of every drawing. Texts are measured in the first font; Verdana is as wide. matplotlib
#: gives the ends of lines in a style sheet, which would reach the whole page, and does not say that
#: what is black is black.
_LOOK = (
    "fill: var(--op-ink, #000000); stroke-linejoin: round; stroke-linecap: butt; "
    "font-family: 'DejaVu Sans', Verdana, sans-serif"
)
#: A colour that a figure draws with -> the property of the page that stands for it.
_INKS = {
    "#000000": "ink",
    INK: "ink",
    MUTED: "muted",
    AXIS: "axis",
    FAINT: "grid",
    "#ffffff": "card",
}
_INK = re.compile(rf"(fill|stroke): ({'|'.join(_INKS)})\b")
#: What a drawing in a page does not need: ids that only number a group (those that something refers
#: to end in a hash), fonts, which `_LOOK` has, and namespaces.
_NEEDLESS = re.compile(r' id="[^"]*_\d{1,6}"| font-family: [^;"]*;?| xmlns\S*|\bxlink:')
_text_size = lru_cache(4096)(text_to_path.get_text_width_height_descent)
_LAYOUT = ConstrainedLayoutEngine(h_pad=0.08)  # inches; a title stands clear of the axis above


class ShownFigure(Figure):
    """A figure that a notebook shows as an SVG in the colours of its page, with constrained layout.

    A viewer that takes no SVG within HTML shows a still.
    """

    def draw(self, renderer: RendererBase) -> None:
        """Lay it out, and draw it.

        With a layout engine of its own ``savefig`` would draw all of it twice.
        """
        # Three methods of matplotlib's own objects are replaced for this drawing. As SVG, six plots
        # of a record take 0.32 s of CPU time with them and 0.70 s without (median of 4 alternating
        # turns in one process); without any one of them they take about 0.1 s more.
        # The layout measures texts with the renderer that draws them, so that each is measured
        # once. An SVG's renderer also shares the sizes of texts with those of other figures.
        setattr(self.canvas, "get_renderer", lambda: renderer)  # noqa: B010
        if isinstance(self.canvas, FigureCanvasSVG):
            setattr(renderer, "get_text_width_height_descent", _text_size)  # noqa: B010
        for axes in self.axes:
            setattr(axes, "get_tightbbox", partial(_usual_room, axes))  # noqa: B010
        _LAYOUT.execute(self)
        super().draw(renderer)

    def bundle(self, *, still: bool = True) -> dict[str, str]:
        """What a cell shows, by MIME type; without ``still`` words stand for the drawing."""
        alt = plain(alt_text(self))
        instead = Html(_NO_DRAWING)
        if still:
            png = data_address(figure_png(self), "image/png")
            width = round(FIGURE_DPI * self.get_figwidth())
            instead = element("img", src=png, alt=alt, width=width)
        theme = f"<style>{asset_text('theme.css')}</style>"
        html = f"{figure_html(self)}{STILL}{instead}</div>{theme}"
        return {"text/html": html, "text/plain": alt}

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        return self.bundle()


def _usual_room(axes: Axes, *_: Any, **__: Any) -> Bbox:
    """About the room that axes take with their words, in the place of the first measurement.

    The layout measures axes twice, because ticks change with the size. Its first answer need not be
    exact, and this one costs nothing; the second time it measures.
    """
    delattr(axes, "get_tightbbox")
    return axes.bbox.padded(26, 32)  # points


def alt_text(figure: Figure) -> str:
    """What a figure says: the titles of its axes, or the words on axes without one."""
    sentences: list[str] = []
    for axes in figure.axes:
        text = axes.get_title("left") or " ".join(map(Text.get_text, axes.texts))
        text = " ".join(text.split())
        if text:
            sentences.append(text)
    return "; ".join(sentences)


def figure_html(figure: Figure) -> Html:
    """A figure as inline SVG, in a frame that a keyboard can scroll."""
    return element(
        "div",
        Html(figure_svg(figure)),
        class_="figure drawn",
        role="group",
        aria_label=alt_text(figure),
        tabindex=0,
    )


def figure_png(figure: Figure, dpi: float = FIGURE_DPI * SHARPNESS) -> bytes:
    """A figure as a PNG of so many dots per inch."""
    return _save(figure, format="png", dpi=dpi, metadata={"Software": None})


def figure_svg(figure: Figure) -> str:
    """A figure as one ``<svg>`` element of 100 CSS pixels an inch, with `alt_text`.

    It holds no script, style sheet, comment or address. An id that the drawing refers to is a hash
    of what it names, so that figures of one page have an id in common only for the same thing.
    White is the page's own surface.
    """
    # Without a fixed salt the ids would differ from run to run. These settings are the whole
    # process's, so one thread at a time draws with them.
    with _DRAWING, matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "op"}):
        saved = _save(figure, format="svg", transparent=True, metadata={"Date": None})
    width, height = figure.get_size_inches()
    return element(
        "svg",
        Html(_drawing_of(plain(saved.decode()))),
        aria_label=alt_text(figure),
        xmlns="http://www.w3.org/2000/svg",
        class_="op-svg",
        role="img",
        style=_LOOK,
        viewBox=f"0 0 {72 * width:g} {72 * height:g}",
        width=round(FIGURE_DPI * width),
        height=round(FIGURE_DPI * height),
    )


def _drawing_of(svg_file: str) -> str:
    """What an SVG file of matplotlib draws, without what a page does not need."""
    start = svg_file.index("<g ")  # before it are metadata and a style sheet
    end = svg_file.rindex("</svg>")
    drawing = svg_file[start:end]
    drawing = re.sub(r"<!--.*?-->", "", drawing, flags=re.DOTALL)  # they repeat the drawn texts
    drawing = re.sub(r"<[^>]+>", _clean_tag, drawing)
    return re.sub(r"\s+", " ", drawing)


def _clean_tag(tag: re.Match[str]) -> str:
    """A tag of a drawing without what is `_NEEDLESS`, and with the page's colours."""
    text = _NEEDLESS.sub("", tag[0])
    return _INK.sub(_ink_as_property, text)


def _ink_as_property(ink: re.Match[str]) -> str:
    """A colour as the page's own; the colour itself is drawn where there is no theme."""
    use, colour = ink.groups()
    return f"{use}: var(--op-{_INKS[colour]}, {colour})"


def _save(figure: Figure, **options: Any) -> bytes:
    """What ``savefig`` writes with these options."""
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a character the font lacks is drawn as an empty box
        figure.savefig(buffer, **options)
    return buffer.getvalue()


def blank_figure(height: float, width: float = WIDTH) -> ShownFigure:
    """A figure of the report's width that shows itself; sizes in inches."""
    return ShownFigure(figsize=(width, height), facecolor="white")
