"""Takes explorer-light.png and explorer-dark.png from a real JupyterLab.

The picture is the panel with the record that comes with the package, the scrubber in its table. Needs
Chromium and playwright, as the browser tests do: their `lab` module drives it.
"""

from __future__ import annotations

import io
import sys
import tempfile
from pathlib import Path
from typing import Any

from PIL import Image

DOCS = Path(__file__).parents[1] / "docs"
sys.path.insert(0, str(DOCS.parent / "tests"))

import lab  # noqa: E402

THEMES = {"light": "JupyterLab Light", "dark": "JupyterLab Dark"}
VIEWPORT = {"width": 1280, "height": 900}
TOKENS_ON = 90  # presses of the right arrow key, to somewhere in the table


def take(page: Any, theme: str) -> bytes:
    """The panel in one theme as a PNG."""
    lab.set_theme(page, theme)
    page.mouse.move(0, 0)
    page.wait_for_timeout(500)  # colours change gradually
    shot = Image.open(io.BytesIO(page.locator(".opx").screenshot())).convert("RGB")
    buffer = io.BytesIO()
    # By coverage: else a small patch, such as a short phase of the bar, gets the colour of its neighbour.
    few = shot.quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    few.save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


def main() -> None:
    """Run the notebook and take both pictures."""
    with (
        tempfile.TemporaryDirectory() as folder,
        lab.jupyter_lab(Path(folder)) as address,
        lab.chromium() as browser,
    ):
        page = browser.new_page(viewport=VIEWPORT)
        page.set_default_timeout(120_000)
        lab.open_notebook(page, address)
        lab.run_all(page)
        page.wait_for_selector(".opx-headline")
        page.focus(".opv-scrubber")
        for _ in range(TOKENS_ON):
            page.keyboard.press("ArrowRight")
        start = f"Token {TOKENS_ON + 1} "
        page.wait_for_selector(f".opv-readout:has-text('{start}')")
        for name, theme in THEMES.items():
            (DOCS / f"explorer-{name}.png").write_bytes(take(page, theme))


if __name__ == "__main__":
    main()
