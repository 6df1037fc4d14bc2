"""Draws the pictures of reports and plots in docs: ``python -m benchmarks.gallery [RECORDS]``.

Pages are read by the built-in model, here and now, or earlier in a quiet hour where a folder RECORDS holds
``receipt.json`` and so on; what a GPU took comes from ``data/runs``. The picture of a report is taken with
Chromium and left as it is without it.
"""

from __future__ import annotations

import io
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from matplotlib.figure import Figure
from PIL import Image

from ocr_phases import OCRSession, PhaseRun
from ocr_phases.analyse.comparison import Comparison
from ocr_phases.analyse.grounding import parse_grounding
from ocr_phases.analyse.regions import region_table
from ocr_phases.analyse.scaling import decode_curves
from ocr_phases.files import write_atomic
from ocr_phases.report.render import page_report
from ocr_phases.show import page as page_view
from ocr_phases.show import plots
from ocr_phases.show.page import draw_boxes
from ocr_phases.show.plots_many import plot_cells_decode, plot_prefill_stages, plot_ratios
from ocr_phases.versions import asset

DOCS = Path(__file__).parents[1] / "docs"
GPU_RECORD, OTHER_RECORD = "h200-dummy-gundam", "h200-dummy-base"
PAGES = ("receipt", "invoice", "form")
PAGE_HEIGHT = 700  # pixels
OVERVIEW_INCHES = (6.2, 3.6)  # small, so that letters stay legible where the picture is shown at half size
GAP = 24  # pixels


def drawn(figure: Figure, dpi: int = 100) -> Image.Image:
    """A figure as an RGB picture."""
    buffer = io.BytesIO()
    figure.savefig(buffer, dpi=dpi)
    return Image.open(buffer).convert("RGB")


def timed_page(run: PhaseRun, height: int = PAGE_HEIGHT) -> Image.Image:
    """The page of a run coloured by decode time, ``height`` pixels high."""
    grounding = parse_grounding(run.text or "")
    page = draw_boxes(run.page_image(), grounding, region_table(grounding, run.token_table), by_time=True)
    return page.resize((round(page.width * height / page.height), height), Image.Resampling.LANCZOS)


def overview(run: PhaseRun) -> Image.Image:
    """The page coloured by decode time beside the decode latency and the prefill's stages."""
    drawings = [plots.plot_token_latency(run), plots.plot_vision_stages(run)]
    for figure in drawings:
        figure.set_size_inches(*OVERVIEW_INCHES)
    right = [drawn(figure, dpi=120) for figure in drawings]
    left = timed_page(run, right[0].height + GAP + right[1].height)
    canvas = Image.new("RGB", (left.width + GAP + right[0].width, left.height), "white")
    canvas.paste(left, (0, 0))
    canvas.paste(right[0], (left.width + GAP, 0))
    canvas.paste(right[1], (left.width + GAP, right[0].height + GAP))
    return canvas


def side_by_side(pictures: Sequence[Image.Image]) -> Image.Image:
    """Pictures of one height in a row."""
    width = sum(picture.width for picture in pictures) + GAP * (len(pictures) - 1)
    canvas, left = Image.new("RGB", (width, pictures[0].height), "white"), 0
    for picture in pictures:
        canvas.paste(picture, (left, 0))
        left += picture.width + GAP
    return canvas


def screen(record: Path) -> Image.Image:
    """The first screen of a record's report."""
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        html = page_report(PhaseRun.load(record), folder)
        chromium = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = chromium.new_page(viewport={"width": 1400, "height": 900}, color_scheme="light")
        page.goto(html.as_uri())
        shot = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
        chromium.close()
    return shot


def save(name: str, picture: Image.Image, *, flat: bool = True) -> None:
    """A PNG; ``flat`` ones have few colours and keep 256 of them, the others (a colour bar) all."""
    buffer = io.BytesIO()
    kept = picture.quantize(256, dither=Image.Dither.NONE) if flat else picture
    kept.save(buffer, "PNG", optimize=True)
    write_atomic(DOCS / f"{name}.png", buffer.getvalue())
    print(f"{name}.png {len(buffer.getvalue()) / 1000:.0f} kB")


def measured() -> dict[str, PhaseRun]:
    """The pages, read by the built-in model."""
    session = OCRSession.load("tiny", device="cpu")
    pages = {name: asset("data", "pages", f"{name}.png") for name in PAGES}
    return {
        name: session.run_inference(page, max_new_tokens=512, repeats=3, warmup=1)
        for name, page in pages.items()
    }


def families() -> dict[str, Image.Image]:
    """The three families on an H200: a long decode with and without a window, and the prefill's stages."""
    long = {"deepseek-ocr": "DeepSeek-OCR", "unlimited-ocr": "Unlimited-OCR (window 128)"}
    curves = decode_curves(
        {title: recorded(f"families/h200-{name}-8000-cuda-graph.json.gz") for name, title in long.items()}
    )
    curves["model"] = curves["cell"]
    at_base = {
        "DeepSeek-OCR, base": OTHER_RECORD,
        "DeepSeek-OCR-2, base1024": "families/h200-deepseek-ocr-2-base1024",
        "Unlimited-OCR, base": "families/h200-unlimited-ocr-base",
        "DeepSeek-OCR, gundam": GPU_RECORD,
        "DeepSeek-OCR-2, crop": "families/h200-deepseek-ocr-2-crop",
        "Unlimited-OCR, gundam": "families/h200-unlimited-ocr-gundam",
    }
    runs = [recorded(f"{name}.json") for name in at_base.values()]
    return {
        "window": drawn(plot_cells_decode(curves)),
        "families": drawn(plot_prefill_stages(runs, list(at_base))),
    }


def recorded(name: str) -> PhaseRun:
    """A record of ``data/runs``."""
    return PhaseRun.load(asset("data", "runs", name))


def main(records: str | None = None) -> None:
    """Draw everything; ``records`` is a folder of records to reuse."""
    runs = {name: PhaseRun.load(Path(records, f"{name}.json")) for name in PAGES} if records else measured()
    gpu, other = recorded(f"{GPU_RECORD}.json"), recorded(f"{OTHER_RECORD}.json")
    receipt = runs["receipt"]
    save("receipt", overview(receipt), flat=False)
    pictures = {
        "pages": side_by_side([timed_page(runs["invoice"]), timed_page(runs["form"])]),
        "types": drawn(page_view.plot_region_types(runs["invoice"])),
        "latency": drawn(plots.plot_latency(gpu)),
        "vision": drawn(plots.plot_vision_stages(gpu)),
        "timeline": drawn(plots.plot_phase_timeline(gpu)),
        "roofline": drawn(plots.plot_roofline(gpu)),
        "kernels": drawn(plots.plot_kernels(gpu)),
        "compare": drawn(plot_ratios(Comparison([other, gpu]).headline)),
        "sweep": drawn(plot_cells_decode(decode_curves({"base": other, "gundam": gpu}))),
        "memory": drawn(plots.plot_memory(gpu)),
        **families(),
    }
    for name, picture in pictures.items():
        save(f"gallery/{name}", picture, flat=name != "pages")
    if shutil.which("chromium"):
        with tempfile.TemporaryDirectory() as folder:
            save("report", screen(receipt.save(Path(folder, "run.json"))))


if __name__ == "__main__":
    main(*sys.argv[1:])
