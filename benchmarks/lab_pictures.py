"""Takes docs/explorer-*.png and docs/notebook-*.png, light and dark, from a real JupyterLab.

``python -m benchmarks.lab_pictures``: the panel with the record that comes with the package, and what a
notebook of one's own shows. Needs Chromium and playwright, as the browser tests do: their `lab` drives it.
"""

from __future__ import annotations

import io
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from PIL import Image

from benchmarks.gallery import DOCS, in_a_row

sys.path.insert(0, str(DOCS.parent / "tests"))

import lab

THEMES = {"light": "JupyterLab Light", "dark": "JupyterLab Dark"}
TOKENS_ON = 90  # presses of the right arrow key, to somewhere in the table
COLUMNS = (
    (
        "from ocr_phases import OCRSession, compare\n\nsession = OCRSession.load('tiny')\nsession",
        "inputs = session.prepare('pages/paper.png', preset='gundam')\ninputs",
        "run = session.run_inference('pages/receipt.png', max_new_tokens=256)\nrun",
        "run.plot.latency()",
    ),
    (
        "run.plot.page(color='time')",
        "other = session.run_inference('pages/receipt.png', preset='base', max_new_tokens=256)\n"
        "compare(run, other)",
    ),
)
_ENDED = """() => jupyterapp.shell.currentWidget.content.widgets
  .every(cell => cell.model.executionCount && cell.prompt !== '*')"""
_CELL = "place => jupyterapp.shell.currentWidget.content.widgets[place].node"
_SHOW = "place => jupyterapp.shell.currentWidget.content.scrollToItem(place, 'start')"


def opened(browser: Any, address: str, name: str, height: int) -> Any:
    """A page on which all cells of a notebook run."""
    page = browser.new_page(viewport={"width": 1280, "height": height})
    page.set_default_timeout(120_000)
    lab.open_notebook(page, address, name)
    lab.run_all(page)
    return page


def explorer(page: Any) -> Image.Image:
    """The panel, its scrubber in the table."""
    if page.locator(f".opv-readout:has-text('Token {TOKENS_ON + 1} ')").count() == 0:
        page.wait_for_selector(".opx-headline")
        page.focus(".opv-scrubber")
        for _ in range(TOKENS_ON):
            page.keyboard.press("ArrowRight")
        page.wait_for_selector(f".opv-readout:has-text('Token {TOKENS_ON + 1} ')")
    page.mouse.move(0, 0)
    page.wait_for_timeout(500)  # colours change gradually
    return Image.open(io.BytesIO(page.locator(".opx").screenshot())).convert("RGB")


def notebook(page: Any) -> Image.Image:
    """All cells in two columns, at two thirds of their pixels."""
    page.wait_for_function(_ENDED)
    columns, place = [], 0
    for column in COLUMNS:
        shots = []
        for _ in column:
            page.evaluate(_SHOW, place)
            page.wait_for_timeout(500)
            cell = page.evaluate_handle(_CELL, place).as_element()
            shots.append(Image.open(io.BytesIO(cell.screenshot())).convert("RGB"))
            place += 1
        columns.append(in_a_row(shots, gap=0, down=True))
    picture = in_a_row(columns, gap=0)
    return picture.resize((picture.width * 2 // 3, picture.height * 2 // 3), Image.Resampling.LANCZOS)


def main() -> None:
    """Run both notebooks and take their pictures in both themes."""
    cells = [nbformat.v4.new_code_cell(source) for column in COLUMNS for source in column]
    kernel = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    with (
        tempfile.TemporaryDirectory() as folder,
        lab.jupyter_lab(Path(folder)) as address,
        lab.chromium() as browser,
    ):
        own = nbformat.v4.new_notebook(cells=cells, metadata=kernel)
        nbformat.write(own, Path(folder, "root", "own.ipynb"))
        for name, take, height in (("explorer", explorer, 900), ("own", notebook, 2400)):
            page = opened(browser, address, f"{name if name == 'own' else 'explore'}.ipynb", height)
            for theme, full in THEMES.items():
                lab.set_theme(page, full)
                # By coverage: else a small patch, such as a short phase of the bar, gets its neighbour's
                # colour; the further pass keeps greys grey.
                few = take(page).quantize(256, Image.Quantize.MAXCOVERAGE, kmeans=1, dither=Image.Dither.NONE)
                few.save(DOCS / f"{take.__name__}-{theme}.png", optimize=True)
            page.close()


if __name__ == "__main__":
    main()
