"""Draws the README's picture from a record: ``python docs/make_pictures.py RUN.json OUT.png``."""

from __future__ import annotations

import io
import sys
from pathlib import Path

from matplotlib.figure import Figure
from PIL import Image

from ocr_phases import PhaseRun
from ocr_phases.analyse.grounding import parse_grounding, region_table
from ocr_phases.files import write_atomic
from ocr_phases.show.overlay import draw_decode_time
from ocr_phases.show.plots import plot_token_latency, plot_vision_stages

PLOT_INCHES = (6.2, 3.6)  # small, so that the letters stay legible where the picture is shown at half size
DPI = 160
GAP = 24  # pixels


def as_image(figure: Figure) -> Image.Image:
    """A figure as an RGB picture."""
    buffer = io.BytesIO()
    figure.set_size_inches(*PLOT_INCHES)
    figure.savefig(buffer, dpi=DPI)
    return Image.open(buffer).convert("RGB")


def overview(run: PhaseRun) -> Image.Image:
    """The page coloured by decode time beside the decode latency and the prefill's stages."""
    grounding = parse_grounding(run.text or "")
    page = draw_decode_time(run.page_image(), grounding, region_table(grounding, run.token_table))
    right = [as_image(plot(run)) for plot in (plot_token_latency, plot_vision_stages)]
    height = sum(image.height for image in right) + GAP
    left = page.resize((round(page.width * height / page.height), height), Image.Resampling.LANCZOS)
    canvas = Image.new("RGB", (left.width + GAP + right[0].width, height), "white")
    canvas.paste(left, (0, 0))
    canvas.paste(right[0], (left.width + GAP, 0))
    canvas.paste(right[1], (left.width + GAP, right[0].height + GAP))
    return canvas


if __name__ == "__main__":
    record, target = sys.argv[1:]
    buffer = io.BytesIO()
    overview(PhaseRun.load(record)).save(buffer, "PNG", optimize=True)
    write_atomic(Path(target), buffer.getvalue())
