"""The picture of the panel that a saved notebook shows where no kernel runs."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import functools
import io
import math
import textwrap
from collections.abc import Sequence
from typing import Any

import ipywidgets
import pandas as pd
from IPython.core.getipython import get_ipython
from IPython.display import DisplayHandle, display
from matplotlib.figure import Figure
from matplotlib.transforms import Transform
from PIL import Image, ImageDraw

from ocr_phases.analyse.regions import regions_of
from ocr_phases.analyse.sentences import headline, subject
from ocr_phases.analyse.stages import grounding_of, tokens_of
from ocr_phases.record import Record
from ocr_phases.show.boxes import draw_marks, region_boxes
from ocr_phases.show.colours import VERMILLION
from ocr_phases.show.latency_plot import plot_latency
from ocr_phases.show.page import pages_of_row
from ocr_phases.show.run_overview import run_title
from ocr_phases.show.shown_figure import FIGURE_DPI, blank_figure, figure_png
from ocr_phases.show.vision_plot import plot_vision_stages
from ocr_phases.show.web import Html, data_address, element, fragment, jpeg_file, printable

_INCHES = (4.6, 6.3)  # of the figure, height first
_LETTERS = 78  # of its title in a line
_HEIGHT = 460  # pixels of a page beside it
_SOON_S = 0.02

# Without its kernel JupyterLab says "model not found" in the output before this one.
_STYLE = (
    ".jp-OutputArea-child:not(:has(.opx)):has(+ .jp-OutputArea-child .opx-still){display:none}"
    # With its kernel the widget shows, and not the picture.
    ".jp-OutputArea-child:has(.opx:not(.opx-gone))+.jp-OutputArea-child:has(.opx-still),"
    ".opx-gone:not(:has(.opx-dead)){display:none!important}"
    ".opx-still img{max-width:100%;height:auto}"
)


class BoxHandle:
    """The joined picture of the widgets of a box, below that box."""

    def __init__(self, handle: DisplayHandle, widgets: Sequence[Stilled]) -> None:
        self.handle = handle
        self.widgets = widgets

    def update(self, _: dict[str, Any], *, raw: bool) -> None:
        """Draw the picture anew, because that of one widget changed."""
        self.handle.update(joined_picture(self.widgets), raw=raw)


class Stilled:
    """A widget that leaves a picture below itself, which a saved notebook shows without a
    kernel.
    """

    _handle: DisplayHandle | BoxHandle | None = None  # once a cell has the picture
    _due: asyncio.TimerHandle | None = None

    def picture(self) -> dict[str, Any]:
        """What a saved notebook shows, by MIME type."""
        raise NotImplementedError

    def draw_still_soon(self) -> None:
        """Draw the picture soon: once for what changes together."""
        if self._due is not None:
            self._due.cancel()
        loop = running_loop()
        if loop is not None:
            self._due = loop.call_later(_SOON_S, self.draw_still)

    def draw_still(self) -> None:
        """Draw the picture now, where a cell shows it."""
        if self._handle is not None:
            self._handle.update(self.picture(), raw=True)

    def _ipython_display_(self) -> None:
        # No words for the widget itself: where it cannot be shown, the picture stands for it.
        view, facts = super()._repr_mimebundle_()  # type: ignore[misc]  # the widget's own
        display({**view, "text/plain": ""}, metadata=facts, raw=True)
        self._handle = display(self.picture(), raw=True, display_id=True)


def joined_picture(widgets: Sequence[Stilled]) -> dict[str, Any]:
    """What a saved notebook shows of several widgets, by MIME type; what is equal is there once."""
    pictures = [widget.picture() for widget in widgets]
    joined = dict(pictures[0])
    for kind, between in (("text/html", ""), ("text/plain", "\n")):
        joined[kind] = between.join(dict.fromkeys(picture[kind] for picture in pictures))
    return joined


def stilled_in(box: ipywidgets.Box) -> list[Stilled]:
    """The widgets with a picture that stand in a box, or in a box in it."""
    widgets: list[Stilled] = []
    for child in box.children:
        if isinstance(child, Stilled):
            widgets.append(child)
        elif isinstance(child, ipywidgets.Box):
            widgets += stilled_in(child)
    return widgets


def _show_box(box: ipywidgets.Box) -> None:
    """Show a box with our widgets, and their picture below it; any other box as IPython does."""
    widgets = stilled_in(box)
    if not widgets:
        raise NotImplementedError  # with which IPython goes on to what the box says of itself
    display({**box._repr_mimebundle_(), "text/plain": ""}, raw=True)
    handle = display(joined_picture(widgets), raw=True, display_id=True)
    for widget in widgets:
        widget._handle = BoxHandle(handle, widgets)


def show_pictures_of_boxes() -> None:
    """From now on a box of ipywidgets with our widgets in it leaves their picture, too."""
    shell = get_ipython()
    if shell is not None:
        shell.display_formatter.ipython_display_formatter.for_type(ipywidgets.Box, _show_box)


def running_loop() -> asyncio.AbstractEventLoop | None:
    """The loop that this thread runs; None in a plain script."""
    with contextlib.suppress(RuntimeError):
        return asyncio.get_running_loop()
    return None


def still_bundle(run: Record | None, row: int, token: int, color: str, view: str) -> dict[str, Any]:
    """A row at a token by MIME type, less than 300 kB: HTML, a JPEG for viewers that drop it, and
    text.

    It has all pages of the row, coloured by ``color``, beside the curve; in the view "stages"
    beside these. Without a record it is a sentence.
    """
    if run is None:
        sentence = "Run this cell to open the explorer."
        return {"text/html": _framed(element("p", sentence)), "text/plain": sentence}
    shown = tokens_of(run, row).iloc[token]
    pages = []
    for place in range(len(pages_of_row(run, row))):
        page = _page(run, row, place, color).copy()
        _outline_region(page, run, row, place, shown["region"])
        pages.append(page)
    plot = _stages(run).copy() if view == "stages" else _curve_at(run, shown, token)
    return _bundle(run, _side_by_side([*pages, plot], plot.height))


def _outline_region(page: Image.Image, run: Record, row: int, place: int, number: int) -> None:
    """Draw a frame around the boxes of the region that the token belongs to."""
    drawing = ImageDraw.Draw(page)
    for region in grounding_of(run, row).on_page(place).regions:
        if region.index == number:
            for box in region.pixel_boxes(*page.size):
                drawing.rectangle(box, outline=VERMILLION, width=3)


def _curve_at(run: Record, shown: pd.Series, token: int) -> Image.Image:
    """The curve with a line at a token, unless that has no step."""
    curve, place = _curve(run)
    picture = curve.copy()
    if place is None or pd.isna(shown["step"]):
        return picture
    ends = place.transform([(token + 1, 0.0), (token + 1, 1.0)])
    line = [(x, picture.height - y) for x, y in ends]
    ImageDraw.Draw(picture).line(line, VERMILLION, 2)
    return picture


def _side_by_side(pictures: Sequence[Image.Image], height: int) -> Image.Image:
    image = Image.new("RGB", (sum(picture.width for picture in pictures), height), "white")
    left = 0
    for picture in pictures:
        image.paste(picture, (left, 0))
        left += picture.width
    return image


def figure_bundle(run: Record, figure: Figure) -> dict[str, Any]:
    """A figure of a record by MIME type, as `still_bundle` gives the page."""
    image = Image.open(io.BytesIO(figure_png(figure, FIGURE_DPI))).convert("RGB")
    return _bundle(run, image)


def _bundle(run: Record, image: Image.Image) -> dict[str, Any]:
    jpeg = jpeg_file(image, *image.size)[1]
    words = f"{run_title(run)} · {subject(run)}\n{headline(run)}"
    picture = element("img", src=data_address(jpeg, "image/jpeg"), alt=words, width=image.width)
    return {
        "text/html": _framed(picture),
        "image/jpeg": base64.b64encode(jpeg).decode(),
        "text/plain": words,
    }


@functools.lru_cache(maxsize=2)
def _curve(run: Record) -> tuple[Image.Image, Transform | None]:
    """Headline and curve, and what puts a token, counted from 1, on the picture's curve."""
    figure = _titled_figure(run)
    axes = figure.axes[0]
    # The figure lays itself out: with an engine besides it would be laid out and drawn twice.
    plot_latency(run, ax=axes).set_layout_engine(None)
    image = Image.open(io.BytesIO(figure_png(figure, FIGURE_DPI))).convert("RGB")
    if not axes.lines:
        return image, None
    frozen: Any = axes.get_xaxis_transform().frozen()
    return image, frozen


@functools.lru_cache(maxsize=2)
def _stages(run: Record) -> Image.Image:
    """Headline and the stages of the prefill."""
    figure = _titled_figure(run)
    plot_vision_stages(run, ax=figure.axes[0]).set_layout_engine(None)
    return Image.open(io.BytesIO(figure_png(figure, FIGURE_DPI))).convert("RGB")


def _titled_figure(run: Record) -> Figure:
    """A figure with one empty axes under the record's headline."""
    figure = blank_figure(*_INCHES)
    figure.subplots()
    about = f"{printable(run_title(run), 80)} · {printable(subject(run), 120)}"
    title = textwrap.fill(about, _LETTERS, max_lines=3, placeholder=" …")
    words = textwrap.fill(headline(run), _LETTERS, max_lines=4, placeholder=" …")
    figure.suptitle(f"{title}\n{words}", x=0.01, ha="left", fontsize=10)
    return figure


@functools.lru_cache(maxsize=32)
def _page(run: Record, row: int, place: int, color: str) -> Image.Image:
    """A page of a row under its boxes, the smaller the more there are; a white sheet for none."""
    numbers = pages_of_row(run, row)
    page = run.page_image(numbers[place])
    if page is None:
        facts = run.pages[numbers[place]]
        page = Image.new("RGB", (facts.width, facts.height), "white")
    page.thumbnail((_HEIGHT, int(_HEIGHT / math.sqrt(len(numbers)))))
    regions = grounding_of(run, row).on_page(place).regions
    marks = region_boxes(regions, page.size, regions_of(run, row), by_time=color == "time")
    return draw_marks(page, marks)


def _framed(content: Html) -> Html:
    return fragment(element("div", content, class_="opx-still"), Html(f"<style>{_STYLE}</style>"))
