"""What a notebook shows of the panel where no kernel runs: page, headline and latency as one picture."""

from __future__ import annotations

import base64
import io
import textwrap
from typing import Any

from IPython.display import DisplayHandle, display
from PIL import Image

from ocr_phases.analyse.sentences import headline, subject
from ocr_phases.record import PhaseRun
from ocr_phases.show.figures import blank_figure, figure_png
from ocr_phases.show.page import plot_page, printable
from ocr_phases.show.plots import plot_latency
from ocr_phases.show.results import run_title
from ocr_phases.show.web import Html, data_address, element, fragment

_INCHES = (10.5, 4.6)
_WIDTH = 1050  # pixels
_COLOURS = 128
_MOST_BYTES = 100_000  # the bundle holds it twice, as base64

# Without its kernel JupyterLab says "model not found" in the output before this one.
_STYLE = (
    ".jp-OutputArea-child:not(:has(.opx)):has(+ .jp-OutputArea-child .opx-still){display:none}"
    ".opx-still img{max-width:100%;height:auto}"
)


class StaticPicture:
    """An output beside the panel that a saved notebook keeps; the panel's style hides it."""

    def __init__(self) -> None:
        self._handle: DisplayHandle | None = None

    @property
    def displayed(self) -> bool:
        """Whether a cell has it."""
        return self._handle is not None

    def display(self, run: PhaseRun | None) -> None:
        """Show it in the cell that runs now."""
        self._handle = display(picture_bundle(run), raw=True, display_id=True)

    def update(self, bundle: dict[str, str]) -> None:
        """Replace it in that cell."""
        if self._handle is not None:
            self._handle.update(bundle, raw=True)


def picture_bundle(run: PhaseRun | None) -> dict[str, Any]:
    """``run`` by MIME type, less than 300 kB: HTML, a PNG for viewers that drop HTML, and text.

    Without a record it is a sentence.
    """
    if run is None:
        said = "Run this cell to open the explorer."
        return {"text/html": _framed(element("p", said)), "text/plain": said}
    png, said = picture_png(run), f"{run_title(run)} · {subject(run)}\n{headline(run)}"
    image = element("img", src=data_address(png, "image/png"), alt=said, width=_WIDTH)
    return {
        "text/html": _framed(image),
        "image/png": base64.b64encode(png).decode(),
        "text/plain": said,
    }


def picture_png(run: PhaseRun) -> bytes:
    """The page with its regions, the headline, and the latency of each decode step; at most 100 kB."""
    figure = blank_figure(_INCHES[1], _INCHES[0])
    page, curve = figure.subplots(1, 2, width_ratios=(2, 3))
    title = f"{printable(run_title(run), 80)} · {printable(subject(run), 120)}"
    words = textwrap.fill(headline(run), 115, max_lines=3, placeholder=" …")
    figure.suptitle(f"{title}\n{words}", x=0.01, ha="left", fontsize=10)
    plot_page(run, ax=page)
    plot_latency(run, ax=curve)
    drawn = Image.open(io.BytesIO(figure_png(figure))).convert("RGB")
    drawn.thumbnail((_WIDTH, _WIDTH))
    while True:
        buffer = io.BytesIO()
        drawn.quantize(_COLOURS).save(buffer, "PNG", optimize=True)
        if buffer.tell() <= _MOST_BYTES:
            return buffer.getvalue()
        drawn = drawn.resize((drawn.width * 4 // 5, drawn.height * 4 // 5), Image.Resampling.LANCZOS)


def _framed(content: Html) -> Html:
    return fragment(element("div", content, class_="opx-still"), Html(f"<style>{_STYLE}</style>"))
