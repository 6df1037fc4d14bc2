"""Draws ``data/browser_pages`` from its HTML in Chromium, with truth in the form of OmniDocBench.

``python -m benchmarks.browser_pages``. An element with ``data-label`` is a block: its box comes from the DOM,
its text and its table from the same HTML.
"""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

from ocr_phases.files import write_atomic

FOLDER = Path(__file__).parents[1] / "data" / "browser_pages"
CHROMIUM = "/usr/bin/chromium"
_BLOCKS = """() => ({
  source: document.documentElement.dataset.source,
  language: document.documentElement.lang,
  blocks: [...document.querySelectorAll("[data-label]")].map(block => {
    // A paragraph is as wide as its column; what is printed are the lines of its text.
    const whole = ["TABLE", "FIGURE"].includes(block.tagName);
    const lines = whole ? [block.getBoundingClientRect()] : [];
    const texts = document.createTreeWalker(block, NodeFilter.SHOW_TEXT);
    while (!whole && texts.nextNode()) {
      const range = document.createRange();
      range.selectNodeContents(texts.currentNode);
      lines.push(...[...range.getClientRects()].filter(line => line.width > 0));
    }
    const edge = (name, of) => of(...lines.map(line => line[name]));
    const clean = table => { const copy = table.cloneNode(true);
      copy.querySelectorAll("*").forEach(cell => cell.removeAttribute("class"));
      return `<table>${copy.querySelector("tbody").innerHTML}</table>`; };
    return { label: block.dataset.label,
      box: [edge("left", Math.min), edge("top", Math.min), edge("right", Math.max), edge("bottom", Math.max)],
      text: block.dataset.label === "figure" ? "" : block.innerText,
      html: block.tagName === "TABLE" ? clean(block) : "" };
  }),
})"""


def draw(folder: Path = FOLDER) -> None:
    """Write ``images/*.png`` and ``pages.json`` into ``folder`` from its ``html/*.html``."""
    (folder / "images").mkdir(exist_ok=True)
    annotations = []
    with sync_playwright() as player:
        browser = player.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": 900, "height": 1200})
        for path in sorted((folder / "html").glob("*.html")):
            tab.goto(path.as_uri())
            found = tab.evaluate(_BLOCKS)
            with Image.open(io.BytesIO(tab.locator("body").screenshot())) as shot:
                image = shot.convert("RGB").quantize(64)
            buffer = io.BytesIO()
            image.save(buffer, "PNG", optimize=True)
            write_atomic(folder / "images" / f"{path.stem}.png", buffer.getvalue())
            annotations.append(_annotation(f"{path.stem}.png", image.size, found))
        browser.close()
    text = json.dumps(annotations, ensure_ascii=False, indent=1)
    write_atomic(folder / "pages.json", f"{text}\n".encode())


def _annotation(name: str, size: tuple[int, int], found: dict[str, Any]) -> dict[str, Any]:
    """A page as OmniDocBench describes one."""
    blocks = []
    for order, block in enumerate(found["blocks"]):
        left, top, right, bottom = block["box"]
        entry = {
            "category_type": block["label"],
            "poly": [left, top, right, top, right, bottom, left, bottom],
            "ignore": False,
            "order": order,
            "anno_id": order,
            "text": block["text"],
        }
        blocks.append({**entry, "html": block["html"]} if block["html"] else entry)
    attributes = {"data_source": found["source"], "language": found["language"]}
    info = {
        "page_no": 0,
        "height": size[1],
        "width": size[0],
        "image_path": name,
        "page_attribute": attributes,
    }
    return {"layout_dets": blocks, "page_info": info, "extra": {"relation": []}}


if __name__ == "__main__":
    draw()
