"""The picture of a record that a saved notebook shows: its pages beside a figure."""

from __future__ import annotations

import base64
import functools
import io
import json
import math
import textwrap
from collections.abc import Sequence
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.transforms import Transform
from PIL import Image, ImageDraw

from ocr_phases.analyse.regions import regions_of
from ocr_phases.analyse.sentences import headline, subject
from ocr_phases.analyse.stages import grounding_of, tokens_of
from ocr_phases.record import Record
from ocr_phases.show.axes import legend_below, name_axis, style_axes
from ocr_phases.show.boxes import draw_marks, region_boxes
from ocr_phases.show.colours import BLUE, INK, VERMILLION
from ocr_phases.show.latency_plot import plot_latency
from ocr_phases.show.page import pages_of_row
from ocr_phases.show.run_overview import run_title
from ocr_phases.show.shown_figure import FIGURE_DPI, blank_figure, figure_png
from ocr_phases.show.vision_plot import plot_vision_stages
from ocr_phases.show.web import Html, data_address, element, fragment, jpeg_file, printable
from ocr_phases.view.overlay import OverlaidCurve

#: Inches of the figure.
_FIGURE_HEIGHT = 4.6
_FIGURE_WIDTH = 6.3
_TITLE_LETTERS = 78  # in a line
_PAGE_HEIGHT = 460  # pixels of a page beside the figure

#: The looks of overlaid curves, which are those of view.css: the record's own, and the others'.
_OWN_LOOK: dict[str, Any] = {"color": BLUE, "linewidth": 2.0}
_OTHER_LOOKS: list[dict[str, Any]] = [
    {"color": "#007a5a", "linewidth": 1.4, "linestyle": (0, (5, 2))},
    {"color": "#a23b78", "linewidth": 2.0, "linestyle": (0, (1.5, 1))},
    {"color": "#946300", "linewidth": 1.4, "linestyle": (0, (6.4, 2, 1.4, 2))},
    {"color": "#5b5fc7", "linewidth": 1.4, "linestyle": (0, (10, 3))},
    {"color": INK, "linewidth": 1.4, "linestyle": (0, (2, 4))},
]

# Without its kernel JupyterLab says "model not found" in the output before this one.
_STYLE = (
    ".jp-OutputArea-child:not(:has(.opx)):has(+ .jp-OutputArea-child .opx-still){display:none}"
    # With its kernel the widget shows, and not the picture.
    ".jp-OutputArea-child:has(.opx:not(.opx-gone))+.jp-OutputArea-child:has(.opx-still),"
    ".opx-gone:not(:has(.opx-dead)){display:none!important}"
    ".opx-still img{max-width:100%;height:auto}"
)


def still_bundle(
    run: Record | None,
    row: int,
    token: int,
    color: str,
    view: str,
    curves: Sequence[OverlaidCurve] = (),
) -> dict[str, Any]:
    """What a saved notebook shows of a record: its pages beside a figure, at a token.

    Parameters
    ----------
    run : Record or None
        The record; without one it is a sentence.
    row : int
        The row of a batch, counted from 0, of which all pages are shown.
    token : int
        The token, counted from 0, whose region is framed and whose place is marked.
    color : {"type", "time"}
        What the boxes' colours mean.
    view : str
        ``"stages"`` shows the stages of the prefill beside the pages, any other view the curve.
    curves : sequence of OverlaidCurve, optional
        The record's curve and those of other records (`overlaid_curves`), which are then drawn over
        one another.

    Returns
    -------
    dict
        HTML, a JPEG for viewers that drop HTML, and words, by MIME type; less than 300 kB.
    """
    if run is None:
        sentence = "Run this cell to open the explorer."
        return {"text/html": _still_html(element("p", sentence)), "text/plain": sentence}
    shown = tokens_of(run, row).iloc[token]
    pages = []
    for place in range(len(pages_of_row(run, row))):
        page = _page_picture(run, row, place, color).copy()
        _outline_region(page, run, row, place, shown["region"])
        pages.append(page)
    if view == "stages":
        figure = _stages_picture(run)
    else:
        figure = _curve_picture_at(run, shown, token, curves)
    return _bundle(run, _side_by_side([*pages, figure], figure.height))


def _outline_region(page: Image.Image, run: Record, row: int, place: int, number: int) -> None:
    """Draw a frame around the boxes of the region that the token belongs to."""
    drawing = ImageDraw.Draw(page)
    for region in grounding_of(run, row).on_page(place).regions:
        if region.index == number:
            for box in region.pixel_boxes(*page.size):
                drawing.rectangle(box, outline=VERMILLION, width=3)


def _curve_picture_at(
    run: Record, shown: pd.Series, token: int, curves: Sequence[OverlaidCurve]
) -> Image.Image:
    """The curve, or several, with an upright line at a token, unless the token has no step.

    ``shown`` is the token's row of `tokens_of`; ``token`` counts from 0.
    """
    # As text, by which the picture is kept: it stays the same while another token is chosen.
    curve, to_pixels = _curve_picture(run, json.dumps(curves))
    picture = curve.copy()  # the curve is kept without a line
    if to_pixels is None or pd.isna(shown["step"]):
        return picture
    number = token + 1  # the curve counts tokens from 1
    ends = to_pixels.transform([(number, 0.0), (number, 1.0)])
    line = [(x, picture.height - y) for x, y in ends]  # a figure counts from its lower edge
    ImageDraw.Draw(picture).line(line, VERMILLION, 2)
    return picture


def _side_by_side(pictures: Sequence[Image.Image], height: int) -> Image.Image:
    width = sum(picture.width for picture in pictures)
    image = Image.new("RGB", (width, height), "white")
    left = 0
    for picture in pictures:
        image.paste(picture, (left, 0))
        left += picture.width
    return image


def figure_bundle(run: Record, figure: Figure) -> dict[str, Any]:
    """A figure of a record by MIME type, as `still_bundle` gives the page."""
    return _bundle(run, _figure_picture(figure))


def _figure_picture(figure: Figure) -> Image.Image:
    png = figure_png(figure, FIGURE_DPI)
    return Image.open(io.BytesIO(png)).convert("RGB")


def _bundle(run: Record, image: Image.Image) -> dict[str, Any]:
    """A picture by MIME type, with the record's title and headline in words."""
    _, jpeg = jpeg_file(image, *image.size)
    words = f"{run_title(run)} · {subject(run)}\n{headline(run)}"
    picture = element("img", src=data_address(jpeg, "image/jpeg"), alt=words, width=image.width)
    return {
        "text/html": _still_html(picture),
        "image/jpeg": base64.b64encode(jpeg).decode(),
        "text/plain": words,
    }


@functools.lru_cache(maxsize=2)
def _curve_picture(run: Record, curves: str) -> tuple[Image.Image, Transform | None]:
    """The record's headline over its latency curve, as a picture.

    ``curves`` is the JSON of a list of `OverlaidCurve`; if there are any, these are drawn instead.
    Also the transform from a place on the curve's axes to pixels of the picture: the token, counted
    from 1, and the height from 0 to 1. It is None where nothing is drawn on the axes.
    """
    figure = _titled_figure(run)
    axes = figure.axes[0]
    overlaid: list[OverlaidCurve] = json.loads(curves)
    if overlaid:
        _draw_overlaid(axes, overlaid)
    else:
        plot_latency(run, ax=axes)
    # The figure lays itself out when it is drawn. With an engine it would be drawn twice.
    figure.set_layout_engine(None)
    image = _figure_picture(figure)
    if not axes.lines:
        return image, None
    frozen: Any = axes.get_xaxis_transform().frozen()
    return image, frozen


def _draw_overlaid(axes: Axes, curves: Sequence[OverlaidCurve]) -> None:
    """The curves over one another, as the linked view draws them: the record's own first, on top.

    What is higher than the usual steps of all of them is cut off.
    """
    style_axes(axes, "Each decode step, of several records")
    looks = [_OWN_LOOK, *_OTHER_LOOKS]
    for place, curve in enumerate(curves):
        points = pd.DataFrame(curve["points"], columns=["token", "ms"])
        label = curve["name"]
        if curve["median"]:
            label = f"{label}, {curve['median']}"
        look = looks[place]
        axes.plot(points["token"] + 1, points["ms"], label=label, zorder=9 - place, **look)
    longest = max(curve["tokens"] for curve in curves)
    top = max(curve["top"] for curve in curves)
    axes.set(xlim=(0.5, longest + 0.5), ylim=(0.0, top))
    name_axis(axes.xaxis, "token that the step made", "")
    name_axis(axes.yaxis, "time (ms)")
    legend_below(axes)


@functools.lru_cache(maxsize=2)
def _stages_picture(run: Record) -> Image.Image:
    """The record's headline over the stages of its prefill, as a picture."""
    figure = _titled_figure(run)
    plot_vision_stages(run, ax=figure.axes[0]).set_layout_engine(None)
    return _figure_picture(figure)


def _titled_figure(run: Record) -> Figure:
    """A figure with one empty axes under the record's headline."""
    figure = blank_figure(_FIGURE_HEIGHT, _FIGURE_WIDTH)
    figure.subplots()
    about = f"{printable(run_title(run), 80)} · {printable(subject(run), 120)}"
    title = textwrap.fill(about, _TITLE_LETTERS, max_lines=3, placeholder=" …")
    words = textwrap.fill(headline(run), _TITLE_LETTERS, max_lines=4, placeholder=" …")
    figure.suptitle(f"{title}\n{words}", x=0.01, ha="left", fontsize=10)
    return figure


@functools.lru_cache(maxsize=32)
def _page_picture(run: Record, row: int, place: int, color: str) -> Image.Image:
    """A page of a row under its boxes, or a white sheet where its picture is not in the record.

    The more pages the row has, the smaller each of them is.
    """
    numbers = pages_of_row(run, row)
    page = run.page_image(numbers[place])
    if page is None:
        facts = run.pages[numbers[place]]
        page = Image.new("RGB", (facts.width, facts.height), "white")
    height = int(_PAGE_HEIGHT / math.sqrt(len(numbers)))
    page.thumbnail((_PAGE_HEIGHT, height))
    regions = grounding_of(run, row).on_page(place).regions
    marks = region_boxes(regions, page.size, regions_of(run, row), by_time=color == "time")
    return draw_marks(page, marks)


def _still_html(content: Html) -> Html:
    return fragment(element("div", content, class_="opx-still"), Html(f"<style>{_STYLE}</style>"))
