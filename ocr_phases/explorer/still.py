"""The picture of the panel that a saved notebook shows where no kernel runs."""

from __future__ import annotations

import base64
import io
import math
import textwrap
from collections import defaultdict
from collections.abc import Callable
from typing import Any, NamedTuple

from matplotlib.transforms import Transform
from PIL import Image, ImageDraw

from ocr_phases.analyse.sentences import headline, subject
from ocr_phases.analyse.stages import grounding_of
from ocr_phases.record import PhaseRun
from ocr_phases.show.figures import FIGURE_DPI, VERMILLION, blank_figure, figure_png
from ocr_phases.show.page import draw_marks, pages_of_row, printable, region_boxes
from ocr_phases.show.plots import plot_latency, plot_vision_stages
from ocr_phases.show.results import run_title
from ocr_phases.show.web import Html, data_address, element, fragment, jpeg_file

_INCHES = (4.6, 6.3)  # of the figure, height first
_PAGE = (420, 460)  # pixels of the page beside it

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
    """Draws a record, part by part: what a change leaves as it was is not drawn again."""

    def __init__(self) -> None:
        self._of: tuple[PhaseRun, int] | None = None
        self._parts: dict[tuple[object, ...], Any] = {}

    def _once(self, key: tuple[object, ...], draw: Callable[..., Any], *given: object) -> Any:
        if key not in self._parts:
            self._parts[key] = draw(*given)
        return self._parts[key]

    def bundle(self, run: PhaseRun | None, scene: Scene, token: int, data: dict[str, Any]) -> dict[str, Any]:
        """A scene at a token by MIME type, less than 300 kB: HTML, a JPEG for viewers that drop it, and text.

        ``data`` is the row's `row_data`. Without a record it is a sentence. Further pages are folded below.
        """
        if run is None:
            self._of, self._parts = None, {}
            said = "Run this cell to open the explorer."
            return {"text/html": _framed(element("p", said)), "text/plain": said}
        if self._of is None or self._of[0] is not run or self._of[1] != scene.row:
            self._of, self._parts = (run, scene.row), {}
        stages = scene.view == "stages"
        drawn, curve = self._once(("plot", stages), _plot, run, stages)
        count = len(pages_of_row(run, scene.row))
        pages = [
            self._once((scene.color, number), _page, run, scene._replace(page=number), data)
            for number in range(count)
        ]
        page, plot = pages[scene.page].copy(), drawn.copy()
        if (step := data["steps"][token]) and curve is not None:
            line = [(x, plot.height - y) for x, y in curve.transform([(step, 0.0), (step, 1.0)])]
            ImageDraw.Draw(plot).line(line, VERMILLION, 2)
        for region in grounding_of(run, scene.row).on_page(scene.page).regions:
            for box in region.pixel_boxes(*page.size) if region.index == data["region"][token] else ():
                ImageDraw.Draw(page).rectangle(box, outline=VERMILLION, width=3)
        image = Image.new("RGB", (page.width + plot.width, max(page.height, plot.height)), "white")
        image.paste(page)
        image.paste(plot, (page.width, 0))
        jpeg = jpeg_file(image, *image.size)[1]
        said = f"{run_title(run)} · {subject(run)}\n{headline(run)}"
        side = int(_PAGE[1] / math.sqrt(count))
        others = [
            element("details", element("summary", f"Page {number + 1}"), _shown(jpeg_file(page, side, side)[1]))
            for number, page in enumerate(pages)
            if number != scene.page
        ]
        html = _framed(fragment(_shown(jpeg, alt=said, width=image.width), *others))
        return {"text/html": html, "image/jpeg": base64.b64encode(jpeg).decode(), "text/plain": said}


def _plot(run: PhaseRun, stages: bool) -> tuple[Image.Image, Transform | None]:
    """Headline and curve, or the stages, and what puts a step on the picture's curve."""
    figure = blank_figure(*_INCHES)
    axes = figure.subplots()
    title = textwrap.shorten(f"{printable(run_title(run), 80)} · {printable(subject(run), 120)}", 95)
    words = textwrap.fill(headline(run), 95, max_lines=3, placeholder=" …")
    figure.suptitle(f"{title}\n{words}", x=0.01, ha="left", fontsize=10)
    (plot_vision_stages if stages else plot_latency)(run, ax=axes)
    image = Image.open(io.BytesIO(figure_png(figure, FIGURE_DPI))).convert("RGB")
    return image, None if stages or not axes.lines else axes.get_xaxis_transform().frozen()


def _page(run: PhaseRun, scene: Scene, data: dict[str, Any]) -> Image.Image:
    """A page under its boxes; an empty sheet where the record has none."""
    number = pages_of_row(run, scene.row)[scene.page]
    facts = run.pages[number]
    page = run.page_image(number) or Image.new("RGB", (facts["width"], facts["height"]), "white")
    page.thumbnail(_PAGE)
    times = defaultdict(float, {region["region"]: region["ms"] for region in data["regions"]})
    regions = grounding_of(run, scene.row).on_page(scene.page).regions
    timed = times if scene.color == "time" else None
    return draw_marks(page, region_boxes(regions, page.size, timed, data["uncertain"]["regions"]))


def _shown(jpeg: bytes, **more: object) -> Html:
    return element("img", src=data_address(jpeg, "image/jpeg"), **{"alt": "A further page", **more})


def _framed(content: Html) -> Html:
    return fragment(element("div", content, class_="opx-still"), Html(f"<style>{_STYLE}</style>"))
