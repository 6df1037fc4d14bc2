"""A matplotlib figure as PNG, and as inline SVG that takes its colours from the page around it.

The report has a light and a dark face and a printed one, JupyterLab has themes: ink, lines and surfaces of a
figure become custom properties (``fragments.css`` sets them), so one drawing suits them all and stays sharp.
Draw on `plots.blank_figure`, in which no text becomes a formula, with `INK`, `MUTED` and white; type on a
light bar is `ON_LIGHT`.
"""

from __future__ import annotations

import base64
import hashlib
import io
import re
import threading
import warnings
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from xml.etree import ElementTree

import matplotlib
from matplotlib.backend_bases import RendererBase
from matplotlib.backends.backend_mixed import MixedModeRenderer
from matplotlib.backends.backend_svg import FigureCanvasSVG, RendererSVG
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.layout_engine import TightLayoutEngine
from matplotlib.text import Text
from matplotlib.textpath import text_to_path

from ocr_phases.show.web import SHARPNESS, Html, asset_text, data_address, element
from ocr_phases.text import plain

FIGURE_DPI = 100
_ABOVE_LEGEND = 0.1  # inches

STILL = '<div class="op-still">'
"""Begins what stands for a drawing where a viewer drops it: a report takes what is in front of it."""

_NO_DRAWING = "The drawing is in the HTML file beside this notebook. Trust or run the notebook to see it."
_LARGEST_SVG = 300_000  # characters; a report holds about eight figures
_DRAWING = threading.Lock()
_LINES = "stroke-linejoin: round; stroke-linecap: butt"
_FACES = "'DejaVu Sans', Verdana, sans-serif"  # the first is what texts are measured with, Verdana is as wide
_FACE = re.compile(r" font-family: [^;]*;?")
_HREF = "{http://www.w3.org/1999/xlink}href"

#: What a figure draws with -> the property that stands for it; the colour itself stays its fallback.
_INKS = {
    "#000000": "ink",
    "#222222": "ink",
    "#444444": "ink",
    "#666666": "muted",
    "#999999": "axis",
    "#cccccc": "grid",
    "#d9d9d9": "grid",
    "#e6e6e6": "grid",
}
_COLOUR = re.compile(r"(fill|stroke): (#[0-9a-f]{6})")


class Margins(TightLayoutEngine):
    """Room for what is written around axes, and under them for the figure's legend: measured once.

    Constrained layout measures all of it twice, which takes as long as the drawing.
    """

    def __init__(self) -> None:
        super().__init__(pad=0.35, h_pad=0.8, w_pad=1.2, rect=None)  # type: ignore[arg-type]

    def execute(self, fig: Any) -> None:
        """Set the places of the axes."""
        super().execute(fig)
        if fig.legends:
            room = fig.legends[0].get_window_extent().height / fig.bbox.height
            space = _ABOVE_LEGEND / fig.get_figheight()
            fig.subplots_adjust(bottom=fig.subplotpars.bottom + room + space)


class LiteralFigure(Figure):
    """A figure that draws every text as it stands: dollar signs in a file's name begin no formula."""

    def draw(self, renderer: RendererBase) -> None:
        """Draw it, every text with mathematics off."""
        for text in self.findobj(Text):
            text.set_parse_math(False)
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


def figure_png(figure: Figure) -> bytes:
    """A figure as a PNG of 200 dots per inch."""
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a character the font lacks is drawn as an empty box
        figure.savefig(buffer, format="png", dpi=FIGURE_DPI * SHARPNESS, metadata={"Software": None})
    return buffer.getvalue()


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
        drawn = figure_svg(self.figure, self.alt)
        frame = {"class_": "figure drawn", "role": "group", "aria_label": self.alt, "tabindex": 0}
        return element("div", Html(drawn), **frame)

    def bundle(self, *, still: bool = True) -> tuple[dict[str, str], dict[str, Any]]:
        """What a cell shows, by MIME type, and about it; without ``still`` words stand for the drawing."""
        alt, drawn = plain(self.alt), self.html()
        data = {"text/plain": alt}
        width = round(self.figure.get_size_inches()[0] * FIGURE_DPI)  # CSS pixels
        small = len(drawn) <= _LARGEST_SVG
        theme = f"<style>{asset_text('notebook.css')}</style>"
        if small and not still:
            data["text/html"] = f"{drawn}{STILL}{_NO_DRAWING}</div>{theme}"
            return data, {}
        png = figure_png(self.figure)
        data["image/png"] = base64.b64encode(png).decode()
        if small:
            image = element("img", src=data_address(png, "image/png"), alt=alt, width=width)
            data["text/html"] = f"{drawn}{STILL}{image}</div>{theme}"
        return data, {"image/png": {"width": width, "alt": alt}}

    def _repr_mimebundle_(self, **_: Any) -> tuple[dict[str, str], dict[str, Any]]:
        return self.bundle()


def figure_svg(figure: Figure, alt: str) -> str:
    """The figure as one ``<svg>`` element of 100 CSS pixels an inch; ``alt`` is its text alternative.

    It holds no script, style sheet, comment or address. White fills (type on a bar) stay white; white
    outlines and half-transparent white grounds become the surface they stand on.
    """
    drawn = _drawn(figure)
    # The parser leaves out comments, which hold the drawn texts.
    root = ElementTree.fromstring(plain(drawn))
    # Figures of one page must not share their clip paths.
    mark = hashlib.sha256(drawn.encode("utf-8", "replace")).hexdigest()[:8]
    _clean(root, mark, _references(root))
    width, height = (round(FIGURE_DPI * inches) for inches in figure.get_size_inches())
    root.attrib = {
        "xmlns": "http://www.w3.org/2000/svg",
        "class": "op-svg",
        "role": "img",
        "aria-label": plain(alt),
        "viewBox": root.attrib["viewBox"],
        "width": str(width),
        "height": str(height),
        # matplotlib says this in a style sheet, which would reach the whole page.
        # And it leaves out the fill of what is black.
        "style": f"fill: var(--op-plot-ink, #000000); {_LINES}; font-family: {_FACES}",
    }
    return re.sub(r"\s+", " ", ElementTree.tostring(root, encoding="unicode"))


def _drawn(figure: Figure) -> str:
    """The figure on no ground as matplotlib writes it; `Figure.savefig` would draw it twice."""
    canvas, dpi = figure.canvas, figure.dpi
    grounds = [(patch, patch.get_facecolor()) for patch in (figure.patch, *(ax.patch for ax in figure.axes))]
    # Without a fixed salt the ids would differ from run to run. Settings and filters are the whole process's.
    with (
        _DRAWING,
        warnings.catch_warnings(),
        matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "op"}),
    ):
        warnings.simplefilter("ignore")  # a character the font lacks is drawn as an empty box
        try:
            for patch, _ in grounds:
                patch.set_facecolor("none")
            return _Canvas(figure).drawn()
        finally:
            figure.set_canvas(canvas)
            figure.dpi = dpi
            for patch, colour in grounds:
                patch.set_facecolor(colour)


class _Renderer(RendererSVG):
    """Measures a text once: many stand in several figures, and in those of the next record."""

    def get_text_width_height_descent(
        self, s: str, prop: FontProperties, ismath: Any
    ) -> tuple[float, float, float]:
        return _text_size(s, prop.copy(), ismath)


@lru_cache(maxsize=4096)
def _text_size(text: str, font: FontProperties, math: Any) -> tuple[float, float, float]:
    return text_to_path.get_text_width_height_descent(text, font, math)


class _Canvas(FigureCanvasSVG):
    """As its `print_svg`, but what draws the figure lays it out too."""

    def drawn(self) -> str:
        buffer, image_dpi = io.StringIO(), self.figure.dpi
        self.figure.dpi = self.fixed_dpi
        width, height = (float(inches) for inches in self.figure.get_size_inches())
        size = (width * self.fixed_dpi, height * self.fixed_dpi)
        svg = _Renderer(*size, buffer, image_dpi=image_dpi, metadata={"Date": None})
        renderer: Any = MixedModeRenderer(self.figure, width, height, image_dpi, svg)
        self.renderer: RendererBase = renderer
        self.figure.draw(renderer)
        renderer.finalize()
        return buffer.getvalue()

    def get_renderer(self) -> RendererBase:
        """What the layout measures texts with."""
        return self.renderer


def _references(root: ElementTree.Element) -> set[str]:
    """The ids that something in the drawing refers to."""
    values = (value for element in root.iter() for value in element.attrib.values())
    return {match.group(1) for value in values if (match := re.fullmatch(r"(?:url\()?#([^)]+)\)?", value))}


def _clean(element: ElementTree.Element, mark: str, wanted: set[str]) -> None:
    """Drop metadata, style sheets and ids that serve nobody; mark the other ids, and free the colours."""
    element.tag = element.tag.rpartition("}")[2]
    attributes = {}
    for key, value in element.attrib.items():
        if key == "id":
            if value in wanted:
                attributes["id"] = f"{mark}-{value}"
        elif key == _HREF:
            attributes["href"] = f"#{mark}-{value[1:]}" if value.startswith("#") else value
        elif key == "style":
            attributes[key] = _recolour(_FACE.sub("", value))
        else:
            attributes[key] = value.replace("url(#", f"url(#{mark}-")
    element.attrib = attributes
    for child in list(element):
        if child.tag.endswith(("}metadata", "}style")):
            element.remove(child)
        else:
            _clean(child, mark, wanted)


def _recolour(style: str) -> str:
    """A style with its colours as properties: lines and half-transparent grounds have some of their own."""
    ground = "opacity" in style
    line = "fill: none" in style

    def colour(match: re.Match[str]) -> str:
        kind, value = match.groups()
        name = _INKS.get(value)
        if value == "#ffffff" and (ground or kind == "stroke"):
            name = "surface"
        elif value == "#0072b2" and (ground or line):
            name = "blue"
        return match.group() if name is None else f"{kind}: var(--op-plot-{name}, {value})"

    return _COLOUR.sub(colour, style)
