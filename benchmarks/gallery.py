"""Draws docs/gallery, the receipt and a report's first screen: ``python -m benchmarks.gallery``.

All of it comes from the records in ``data/runs``. The picture of a report is taken with Chromium
and left as it is without it.
"""

from __future__ import annotations

import io
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure
from PIL import Image

from ocr_phases import PhaseRun, compare
from ocr_phases.analyse.grounding import parse_grounding
from ocr_phases.analyse.regions import region_table
from ocr_phases.files import write_atomic
from ocr_phases.report.render import page_report
from ocr_phases.results.sweep import SweepResult
from ocr_phases.show.boxes import TIME_OPACITY, draw_marks, region_boxes
from ocr_phases.show.comparison_plots import plot_prefill_stages
from ocr_phases.show.shown_figure import blank_figure
from ocr_phases.show.sweep_plots import plot_cells_decode
from ocr_phases.versions import asset

DOCS = Path(__file__).parents[1] / "docs"
GPU, OTHER = "h200-dummy-gundam", "h200-dummy-base"
TINY = "tiny-receipt"
ENERGY = "h100-energy-deepseek-ocr-cuda-graph"
REPLAYED = "h100-energy-deepseek-ocr-compiled"
GAP = 24  # pixels
LONG = {"DeepSeek-OCR": "deepseek-ocr", "Unlimited-OCR (window 128)": "unlimited-ocr"}
PREFILLS = {
    "DeepSeek-OCR, base": OTHER,
    "DeepSeek-OCR-2, base1024": "families/h200-deepseek-ocr-2-base1024",
    "Unlimited-OCR, base": "families/h200-unlimited-ocr-base",
    "DeepSeek-OCR, gundam": GPU,
    "DeepSeek-OCR-2, crop": "families/h200-deepseek-ocr-2-crop",
    "Unlimited-OCR, gundam": "families/h200-unlimited-ocr-gundam",
}


def drawn(figure: Figure, dpi: int = 100) -> Image.Image:
    """A figure as an RGB picture."""
    buffer = io.BytesIO()
    figure.savefig(buffer, dpi=dpi)
    return Image.open(buffer).convert("RGB")


def in_a_row(pictures: Sequence[Image.Image], *, down: bool = False) -> Image.Image:
    """Pictures from left to right or, ``down``, from top to bottom, on white."""
    sizes = [picture.size[::-1] if down else picture.size for picture in pictures]
    size = sum(long for long, _ in sizes) + GAP * (len(sizes) - 1), max(short for _, short in sizes)
    canvas, at = Image.new("RGB", size[::-1] if down else size, "white"), 0
    for picture, (long, _) in zip(pictures, sizes, strict=True):
        canvas.paste(picture, (0, at) if down else (at, 0))
        at += long + GAP
    return canvas


def marked_page(run: PhaseRun, height: int = 700, *, by_time: bool = True) -> Image.Image:
    """The page of a run coloured by decode time or by label, ``height`` pixels high."""
    grounding = parse_grounding(run.text or "")
    page, table = run.page_image(), region_table(grounding, run.token_table)
    boxes = region_boxes(grounding.regions, page.size, table, by_time=by_time)
    page = draw_marks(page, boxes, TIME_OPACITY) if by_time else draw_marks(page, boxes)
    return page.resize((round(page.width * height / page.height), height), Image.Resampling.LANCZOS)


def overview(run: PhaseRun) -> Image.Image:
    """The page coloured by decode time beside the decode latency and the prefill's stages."""
    # Small, so that letters stay legible at half size, from the start: keys are laid out for their
    # figure.
    plots = run.plot.latency, run.plot.vision
    drawings = [plot(ax=blank_figure(3.6, 6.2).subplots()) for plot in plots]
    right = in_a_row([drawn(figure, dpi=120) for figure in drawings], down=True)
    return in_a_row([marked_page(run, right.height), right])


def screen(run: PhaseRun) -> Image.Image:
    """The first screen of a record's report."""
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=shutil.which("chromium"), args=["--no-sandbox"]
        )
        page = chromium.new_page(viewport={"width": 1400, "height": 900}, color_scheme="light")
        page.goto(page_report(run, folder).as_uri())
        shot = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
        chromium.close()
    return shot


def save(name: str, picture: Image.Image) -> None:
    """A PNG of 256 colours."""
    buffer = io.BytesIO()
    picture.quantize(256, dither=Image.Dither.NONE).save(buffer, "PNG", optimize=True)
    write_atomic(DOCS / f"{name}.png", buffer.getvalue())
    print(f"{name}.png {len(buffer.getvalue()) / 1000:.0f} kB")


def recorded(name: str) -> PhaseRun:
    """A record of ``data/runs``."""
    return PhaseRun.load(asset("data", "runs", f"{name}.json.gz"))


def pictures(tiny: PhaseRun, gpu: PhaseRun, other: PhaseRun) -> dict[str, Image.Image]:
    """The gallery's pictures by file."""
    figures = {
        name: getattr(gpu.plot, name)() for name in ("latency", "vision", "timeline", "roofline")
    }
    figures |= {name: getattr(gpu.plot, name)() for name in ("kernels", "memory")}
    long = {
        title: recorded(f"families/h100-{name}-8000-cuda-graph") for title, name in LONG.items()
    }
    curves = SweepResult(long, pd.DataFrame()).curves
    prefills = [recorded(name) for name in PREFILLS.values()]
    figures |= {
        "types": tiny.plot.regions(),
        "compare": compare(other, gpu).plot.ratios(),
        "sweep": SweepResult({"base": other, "gundam": gpu}, pd.DataFrame()).plot.decode(),
        "window": plot_cells_decode(curves.assign(model=curves["cell"])),
        "energy": recorded(ENERGY).plot.energy(),
        "replayed": recorded(REPLAYED).plot.kernels(),
        "families": plot_prefill_stages(prefills, list(PREFILLS)),
    }
    pages = in_a_row([marked_page(tiny, by_time=by_time) for by_time in (False, True)])
    return {"pages": pages, **{name: drawn(figure) for name, figure in figures.items()}}


def main() -> None:
    """Draw everything."""
    tiny, gpu, other = map(recorded, (TINY, GPU, OTHER))
    save("receipt", overview(tiny))
    for name, picture in pictures(tiny, gpu, other).items():
        save(f"gallery/{name}", picture)
    if shutil.which("chromium"):
        save("report", screen(tiny))


if __name__ == "__main__":
    main()
