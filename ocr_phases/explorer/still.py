"""The picture of the panel that a saved notebook shows where no kernel runs."""

from __future__ import annotations

import base64
import io
import textwrap
from typing import Any, NamedTuple

from matplotlib.transforms import Transform
from PIL import Image, ImageDraw

from ocr_phases.analyse.sentences import headline, subject
from ocr_phases.record import PhaseRun
from ocr_phases.show.figures import FIGURE_DPI, VERMILLION, blank_figure, figure_png
from ocr_phases.show.page import pages_of_row, plot_page, printable
from ocr_phases.show.plots import plot_latency, plot_vision_stages
from ocr_phases.show.results import run_title
from ocr_phases.show.web import Html, data_address, element, fragment

_INCHES = (10.5, 4.6)
_COLOURS = 96
_BYTES = 100_000  # the bundle holds it twice, as base64
_OTHERS = 60_000  # of all further pages together

# Without its kernel JupyterLab says "model not found" in the output before this one.
_STYLE = (
    ".jp-OutputArea-child:not(:has(.opx)):has(+ .jp-OutputArea-child .opx-still){display:none}"
    ".opx-still img{max-width:100%;height:auto}"
)


class Scene(NamedTuple):
    """What is on screen of a record."""

    row: int = 0
    page: int = 0
    color: str = "type"
    view: str = "page"


class Still:
    """Draws a record; of the last scene the figure is at hand, so that another token is drawn at once."""

    def __init__(self) -> None:
        self._key: tuple[int, Scene] | None = None

    def bundle(self, run: PhaseRun | None, scene: Scene, token: int, data: dict[str, Any]) -> dict[str, Any]:
        """A scene at a token by MIME type, less than 300 kB: HTML, a PNG for viewers that drop it, and text.

        ``data`` is the row's `row_data`. Without a record it is a sentence. Further pages are folded below.
        """
        if run is None:
            said = "Run this cell to open the explorer."
            return {"text/html": _framed(element("p", said)), "text/plain": said}
        if self._key != (id(run), scene):
            self._image, self._curve, self._page = _drawn(run, scene)
            self._others = _other_pages(run, scene)
            self._key = id(run), scene
        image = self._image.copy()
        draw = ImageDraw.Draw(image)
        step, region = data["steps"][token], data["region"][token]
        if step and self._curve is not None:
            line = self._curve.transform([(step, 0.0), (step, 1.0)])
            draw.line([(x, image.height - y) for x, y in line], VERMILLION, 2)
        for box in data["pages"][scene.page]["boxes"]:
            if box["region"] == region and self._page is not None:
                ends = [(box["x"], box["y"]), (box["x"] + box["width"], box["y"] + box["height"])]
                corners = [(x, image.height - y) for x, y in self._page.transform(ends)]
                draw.rectangle(corners, outline=VERMILLION, width=3)
        png = _small(image, _BYTES)
        said = f"{run_title(run)} · {subject(run)}\n{headline(run)}"
        shown = element("img", src=data_address(png, "image/png"), alt=said, width=image.width)
        html = _framed(fragment(shown, *self._others))
        return {"text/html": html, "image/png": base64.b64encode(png).decode(), "text/plain": said}


def _drawn(run: PhaseRun, scene: Scene) -> tuple[Image.Image, Transform | None, Transform | None]:
    """Page, headline and a figure, with what puts a step's and a page's coordinates on the picture."""
    figure = blank_figure(_INCHES[1], _INCHES[0])
    page, plot = figure.subplots(1, 2, width_ratios=(2, 3))
    title = f"{printable(run_title(run), 80)} · {printable(subject(run), 120)}"
    words = textwrap.fill(headline(run), 115, max_lines=3, placeholder=" …")
    figure.suptitle(f"{title}\n{words}", x=0.01, ha="left", fontsize=10)
    plot_page(run, scene.page, scene.color, scene.row, ax=page)
    stages = scene.view == "stages"
    (plot_vision_stages if stages else plot_latency)(run, ax=plot)
    image = Image.open(io.BytesIO(figure_png(figure, FIGURE_DPI))).convert("RGB")
    curve = None if stages or not plot.lines else plot.get_xaxis_transform().frozen()
    return image, curve, page.transData.frozen() if page.images else None


def _other_pages(run: PhaseRun, scene: Scene) -> list[Html]:
    """The other pages of a prompt, each in a fold."""
    numbers = [number for number in range(len(pages_of_row(run, scene.row))) if number != scene.page]
    folds = []
    for number in numbers:
        image = Image.open(io.BytesIO(figure_png(plot_page(run, number, scene.color, scene.row), 50)))
        png = _small(image.convert("RGB"), _OTHERS // len(numbers))
        shown = element("img", src=data_address(png, "image/png"), alt=f"Page {number + 1}")
        folds.append(element("details", element("summary", f"Page {number + 1}"), shown))
    return folds


def _small(image: Image.Image, most: int) -> bytes:
    """A PNG of at most so many bytes."""
    while True:
        buffer = io.BytesIO()
        image.quantize(_COLOURS).save(buffer, "PNG")
        if buffer.tell() <= most or image.width < 2:
            return buffer.getvalue()
        image = image.resize((image.width * 4 // 5, image.height * 4 // 5), Image.Resampling.LANCZOS)


def _framed(content: Html) -> Html:
    return fragment(element("div", content, class_="opx-still"), Html(f"<style>{_STYLE}</style>"))
