"""Takes notebook-light.png and notebook-dark.png: what a notebook of one's own shows, in a real JupyterLab.

Needs Chromium and playwright, as the browser tests do, whose `lab` module drives it.
"""

from __future__ import annotations

import io
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from PIL import Image

DOCS = Path(__file__).parents[1] / "docs"
sys.path.insert(0, str(DOCS.parent / "tests"))

import lab  # noqa: E402

THEMES = {"light": "JupyterLab Light", "dark": "JupyterLab Dark"}
VIEWPORT = {"width": 1160, "height": 2400}
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


def take(page: Any, theme: str) -> bytes:
    """All cells in one theme, in two columns, as a PNG at half its pixels."""
    lab.set_theme(page, theme)
    page.wait_for_timeout(500)  # colours change gradually
    shots: list[list[Image.Image]] = []
    place = 0
    for column in COLUMNS:
        shots.append([])
        for _ in column:
            page.evaluate(_SHOW, place)
            page.wait_for_timeout(500)
            cell = page.evaluate_handle(_CELL, place).as_element()
            shots[-1].append(Image.open(io.BytesIO(cell.screenshot())).convert("RGB"))
            place += 1
    width = max(shot.width for column in shots for shot in column)
    height = max(sum(shot.height for shot in column) for column in shots)
    picture = Image.new("RGB", (len(shots) * width, height), shots[0][0].getpixel((2, 2)))
    for number, column in enumerate(shots):
        top = 0
        for shot in column:
            picture.paste(shot, (number * width, top))
            top += shot.height
    buffer = io.BytesIO()
    small = picture.resize((picture.width * 2 // 3, picture.height * 2 // 3), Image.Resampling.LANCZOS)
    # The usual method leaves out colours of few pixels, as the scale's; the further pass keeps greys grey.
    small.quantize(256, Image.Quantize.MAXCOVERAGE, kmeans=1).save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


def main() -> None:
    """Write the notebook, run it, and take both pictures."""
    cells = [nbformat.v4.new_code_cell(source) for column in COLUMNS for source in column]
    with (
        tempfile.TemporaryDirectory() as folder,
        lab.jupyter_lab(Path(folder)) as address,
        lab.chromium() as browser,
    ):
        kernel = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
        notebook = nbformat.v4.new_notebook(cells=cells, metadata=kernel)
        nbformat.write(notebook, Path(folder, "root", "own.ipynb"))
        page = browser.new_page(viewport=VIEWPORT)
        page.set_default_timeout(120_000)
        lab.open_notebook(page, address, "own.ipynb")
        lab.run_all(page)
        page.wait_for_function(_ENDED)
        for name, theme in THEMES.items():
            (DOCS / f"notebook-{name}.png").write_bytes(take(page, theme))


if __name__ == "__main__":
    main()
