"""Pages that a browser lays out: Chromium prints them to PDF, and says where every letter stands.

    python data/tiny/train/browser.py --fonts FONTS --texts TEXTS --out PAGES --pages 500

`FONTS` may be any folder with the font files, the packages' own too. Each PDF has pages of one shape; beside
it lies a JSON file with their regions, lines and letters. `printed.py` draws them at any size.
"""

from __future__ import annotations

import argparse
import gzip
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, sync_playwright

from synth import CHARACTERS
from synth.fonts.debian import TABLE
from synth.texts import HELD_OUT, any_texts, load_texts
from synth.web import STYLE, WebPage, page_html
from synth.words import Words

SHAPES = ((1000, 1000), (794, 1123), (794, 1123), (1123, 794), (1280, 720), (600, 1200))
"""Width and height of pages, CSS pixels."""
_SMALLEST, _LARGEST = 0.0095, 0.05  # body type, as a part of the longer side
_FAMILIES = 9  # of one PDF, which holds each face that it shows
_CHUNK = 120

MEASURE = Path(__file__).with_suffix(".js").read_text("utf-8")


def find_files(fonts: Path) -> dict[str, Path]:
    """Font files by name, wherever in the folder they lie."""
    return {path.name: path for path in sorted(fonts.rglob("*.[ot]tf"))}


def font_faces(files: dict[str, Path], rows: Sequence[Any]) -> str:
    """The families as CSS."""
    faces = []
    for row in rows:
        for name, style in (
            (row.regular, ""),
            (row.bold, "font-weight:700"),
            (row.italic, "font-style:italic"),
        ):
            if name:
                faces.append(
                    f"@font-face{{font-family:{row.name};src:url('{files[name].as_uri()}');{style}}}"
                )
    return "\n".join(faces)


def document(rng: random.Random, shape: tuple[int, int], count: int, files: dict[str, Path], texts: Path,
             held_out: bool) -> str:  # fmt: skip
    """So many random pages of one shape as one HTML document."""
    usable = [
        r for r in TABLE if (held_out or not r.held_out) and r.regular.endswith("ttf")
    ]  # else they are large
    rows = rng.sample(usable, _FAMILIES)
    fixed = rng.choice([row for row in usable if row.mono])
    sections = []
    for _ in range(count):
        family, display = rng.choice(rows), rng.choice(rows)
        chosen = load_texts(texts, HELD_OUT) if held_out else any_texts(texts, rng)
        words = Words(
            rng, frozenset(CHARACTERS) - frozenset("→≠≤≥µ"), rng.uniform(0.7, 1.0), chosen, rng.random() < 0.6
        )
        size = max(shape) * _SMALLEST * (_LARGEST / _SMALLEST) ** rng.random()
        room = 1.5 * shape[0] * shape[1] / size**2
        letters = round(min(2800, room * rng.uniform(0.2, 1.0)))
        page = WebPage(rng, words, *shape, size, letters)
        sections.append(page_html(page, family.name, rng.choice((family, display)).name, fixed.name))
    style = f"@page{{size:{shape[0]}px {shape[1]}px;margin:0}}{font_faces(files, {*rows, fixed})}{STYLE}"
    return f"<!doctype html><meta charset=utf-8><style>{style}</style>{''.join(sections)}"


def lay_out(browser: Page, source: str, shape: tuple[int, int], file: Path) -> list[dict[str, Any]]:
    """Open the document, drop what does not fit, and measure every page."""
    file.write_text(source, "utf-8")
    browser.set_viewport_size({"width": shape[0], "height": shape[1]})
    browser.goto(file.as_uri())
    browser.evaluate("document.fonts.ready.then(() => 0)")
    pages: list[dict[str, Any]] = browser.evaluate(MEASURE)
    return pages


def main(arguments: Sequence[str] | None = None) -> None:
    """Print random pages to PDF files."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--fonts", type=Path, required=True)
    parser.add_argument("--texts", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--pages", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--held-out", action="store_true", help="texts for evaluation, and all families")
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    args = parser.parse_args(arguments)
    args.out.mkdir(parents=True, exist_ok=True)
    files = find_files(args.fonts)
    with sync_playwright() as playwright:
        options = ["--font-render-hinting=none", "--no-sandbox"]
        browser = playwright.chromium.launch(executable_path=args.chromium, args=options).new_page()
        browser.emulate_media(media="print")
        chunk = min(_CHUNK, -(-args.pages // len(SHAPES)))
        for number, start in enumerate(range(0, args.pages, chunk)):
            rng = random.Random(f"browser {args.seed} {number}")
            shape = SHAPES[number % len(SHAPES)]
            count = min(chunk, args.pages - start)
            stem = args.out / f"{args.seed}-{number}"
            source = document(rng, shape, count, files, args.texts, args.held_out)
            pages = lay_out(browser, source, shape, stem.with_suffix(".html"))
            stem.with_suffix(".html").unlink()
            browser.pdf(
                path=stem.with_suffix(".pdf"),
                prefer_css_page_size=True,
                print_background=True,
                tagged=False,
            )
            with gzip.open(stem.with_suffix(".json.gz"), "wt", encoding="utf-8", compresslevel=9) as out:
                json.dump(pages, out, ensure_ascii=False, separators=(",", ":"))
            print(stem.name, shape, len(pages), flush=True)


if __name__ == "__main__":
    main()
