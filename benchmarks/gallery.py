"""Draws the pictures of reports and plots and writes gallery.md: ``python -m benchmarks.gallery [RECORDS]``.

Pages are read by the built-in model, here and now, or earlier in a quiet hour where a folder RECORDS holds
``receipt.json`` and so on; what a GPU took comes from ``data/runs``. The pictures of reports are taken with
Chromium and left as they are without it.
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


def latency(run: PhaseRun) -> Figure:
    """The decode latency over its floor."""
    return plots.plot_latency(run)


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


def screens(record: Path) -> dict[str, Image.Image]:
    """The first screen of a record's report: wide, wide and dark, and on a phone."""
    from playwright.sync_api import sync_playwright

    found = {}
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        html = page_report(PhaseRun.load(record), folder)
        chromium = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        for name, width, scheme in (
            ("report", 1400, "light"),
            ("report-dark", 1400, "dark"),
            ("report-phone", 400, "light"),
        ):
            view = {"width": width, "height": 900}
            page = chromium.new_page(viewport=view, color_scheme=scheme)
            page.goto(html.as_uri())
            found[name] = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
        chromium.close()
    return found


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


def families() -> dict[str, tuple[str, str, Image.Image]]:
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
        "window": (
            "8,000 tokens: growing cache against window",
            "NVIDIA H200, full size, random weights, bfloat16, batch 1, decode captured in CUDA graphs. "
            "DeepSeek-OCR's cache grows; a captured step reads its first 512, 1,024, ... entries. "
            "Unlimited-OCR keeps the prompt and the last 128 tokens.",
            drawn(plot_cells_decode(curves)),
        ),
        "families": (
            "Prefill of three families",
            "NVIDIA H200, one A4 page, eager, batch 1: one global view, and with crops. DeepSeek-OCR was "
            "measured on a quieter host; in all of them launches set most of the time.",
            drawn(plot_prefill_stages(runs, list(at_base))),
        ),
    }


def recorded(name: str) -> PhaseRun:
    """A record of ``data/runs``."""
    return PhaseRun.load(asset("data", "runs", name))


def main(records: str | None = None) -> None:
    """Draw everything and write gallery.md; ``records`` is a folder of records to reuse."""
    runs = {name: PhaseRun.load(Path(records, f"{name}.json")) for name in PAGES} if records else measured()
    gpu, other = recorded(f"{GPU_RECORD}.json"), recorded(f"{OTHER_RECORD}.json")
    ratios = Comparison([other, gpu]).headline
    receipt = runs["receipt"]
    save("receipt", overview(receipt), flat=False)
    here, there = "Built-in model", gpu.device["name"]
    sources = (
        f"The built-in model ran on {receipt.device['name']}. Pictures of {there} show the full-size model "
        f"with random weights (`data/runs/{GPU_RECORD}.json`)."
    )
    # File name -> title, caption, picture.
    pictures = {
        "pages": (
            "Time on the page",
            f"{here}: an invoice and a form, each region coloured by its decode time.",
            side_by_side([timed_page(runs["invoice"]), timed_page(runs["form"])]),
        ),
        "types": (
            "Time by type of region",
            f"{here}: the same invoice.",
            drawn(page_view.plot_region_types(runs["invoice"])),
        ),
        "latency": (
            "Decode latency",
            f"{there}: device and host, spread over repeats, floor.",
            drawn(latency(gpu)),
        ),
        "vision": ("Vision", f"{there}: page and crops.", drawn(plots.plot_vision_stages(gpu))),
        "timeline": ("Timeline", f"{there}: one repeat.", drawn(plots.plot_phase_timeline(gpu))),
        "roofline": (
            "Roofline",
            f"{there}: each stage under the measured ceilings.",
            drawn(plots.plot_roofline(gpu)),
        ),
        "kernels": (
            "Kernels",
            f"{there}: how long the GPU is busy in each stage, and what limits it.",
            drawn(plots.plot_kernels(gpu)),
        ),
        "compare": (
            "Two runs compared",
            f"The same against `data/runs/{OTHER_RECORD}.json`, with 95 % intervals.",
            drawn(plot_ratios(ratios)),
        ),
        "sweep": (
            "A sweep",
            "The same two records as a sweep over presets.",
            drawn(plot_cells_decode(decode_curves({"base": other, "gundam": gpu}))),
        ),
        "memory": ("Memory", f"{there}: peaks and KV cache.", drawn(plots.plot_memory(gpu))),
        **families(),
    }
    for name, (_, _, picture) in pictures.items():
        save(f"gallery/{name}", picture, flat=name != "pages")
    if shutil.which("chromium"):
        with tempfile.TemporaryDirectory() as folder:
            shots = screens(receipt.save(Path(folder, "run.json")))
        save("report", shots.pop("report"))
        for name, picture in shots.items():
            save(f"gallery/{name}", picture)
    sections = [
        f"## {title}\n\n{caption}\n\n![{title}](gallery/{name}.png)"
        for name, (title, caption, _) in pictures.items()
    ]
    text = "\n\n".join([HEAD, sources, *sections]) + "\n"
    write_atomic(DOCS / "gallery.md", text.encode())


HEAD = """# Gallery

Drawn by `python -m benchmarks.gallery`.

## A report

The first screen of a page report: light, dark, and on a phone.

![First screen of a report](report.png)

![The same in a dark browser](gallery/report-dark.png)

![The same 400 pixels wide](gallery/report-phone.png)"""


if __name__ == "__main__":
    main(*sys.argv[1:])
