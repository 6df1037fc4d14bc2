"""Twelve pages with what a checkpoint reads on them, as one HTML file for a person to look at.

    python data/tiny/train/sheet.py --fonts FONTS --texts TEXTS --printed PAGES --out sheet.html

Six pages are the generator's with held-out sentences, six the browser's; a row shows one of each. Boxes are
the checkpoint's, words that it got wrong are marked.
"""

from __future__ import annotations

import argparse
import difflib
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import evaluate
from PIL import Image
from tokenizer import Codec

from ocr_phases.analyse.grounding import parse_grounding
from ocr_phases.families import PRESETS
from ocr_phases.models.load import load_checkpoint
from ocr_phases.settings import ModelSettings
from ocr_phases.show.page import draw_marks, region_boxes
from ocr_phases.show.web import Html, data_address, element, fragment, jpeg_file

SIDES = {"the generator": "sentences", "a browser": "browser"}
_SIZE = 420  # pixels of a page's longer side
_STYLE = """
body { font: 14px sans-serif; margin: 1em auto; max-width: 1500px }
table { table-layout: fixed; width: 100% }
td { vertical-align: top; width: 50%; padding: .6em; border-top: 1px solid #ccc }
.page { display: flex; gap: .8em }
pre { font: 12px monospace; white-space: pre-wrap; overflow-wrap: anywhere; margin: 0 }
mark { background: #f8b4b4 } ins { color: #07603a; text-decoration: none }
"""


def marked(answer: str, truth: str) -> Html:
    """The answer, its wrong words marked and the true ones in brackets behind them."""
    said, written = (re.findall(r"\s+|[^\s]+", text) for text in (answer, truth))
    parts: list[object] = []
    for kind, a, b, c, d in difflib.SequenceMatcher(None, said, written, autojunk=False).get_opcodes():
        wrong, right = "".join(said[a:b]), "".join(written[c:d])
        if kind == "equal":
            parts.append(wrong)
        else:
            parts += [element("mark", wrong), element("ins", f" [{right.strip()}] ")]
    return fragment(*parts)


def page_block(case: evaluate.Case, score: Any, answer: str) -> Html:
    """One page beside its text."""
    grounding, truth = parse_grounding(answer), parse_grounding(case.truth)
    page = Image.fromarray(case.views.global_view)
    boxes = [box._replace(text="") for box in region_boxes(grounding.regions, page.size)]
    picture = draw_marks(page, boxes)
    texts = ["\n\n".join(region.text for region in each.regions) for each in (grounding, truth)]
    head = f"CER {100 * score.edits / max(1, score.letters):.1f} %, type of {case.type_px:.0f} px in the view"
    address = data_address(jpeg_file(picture, _SIZE, _SIZE)[1], "image/jpeg")
    image = element("img", src=address, alt="the page")
    text = element("div", element("b", head), element("pre", marked(*texts)))
    return element("div", image, text, class_="page")


def main(arguments: Sequence[str] | None = None) -> None:
    """Read twelve pages and write the sheet."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--checkpoint", type=Path, default=Path("data/tiny"))
    parser.add_argument("--config", type=Path, default=Path(__file__).with_name("config.json"))
    parser.add_argument(
        "--fonts", type=Path, help="Debian's font files; without, matplotlib's families alone"
    )
    parser.add_argument("--texts", type=Path, required=True, help="of texts.py")
    parser.add_argument("--printed", type=Path, required=True, help="of browser.py --held-out")
    parser.add_argument("--preset", default="small", choices=list(PRESETS))
    parser.add_argument("--rows", type=int, default=6)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args(arguments)
    codec = Codec.load(args.checkpoint)
    config = json.loads(args.config.read_text(encoding="utf-8"))
    sources = evaluate.load_sources(args.fonts, args.texts, args.printed)
    checkpoint = load_checkpoint(
        ModelSettings(model=str(args.checkpoint), device=args.device), local_only=True
    )
    columns = []
    for condition in SIDES.values():
        tasks = evaluate.draw_tasks(config, args.preset, condition, args.rows)
        cases = [evaluate.draw_case(codec, sources, task) for task in tasks]
        results = evaluate.read_cases(checkpoint, codec, cases, args.device, args.rows)
        columns.append([page_block(case, *result) for case, result in zip(cases, results, strict=True)])
    head = element("tr", *(element("th", f"Drawn by {side}") for side in SIDES))
    rows = [element("tr", *(element("td", block) for block in row)) for row in zip(*columns, strict=True)]
    title = f"What {args.checkpoint} reads at {args.preset}"
    style = Html(f'<!doctype html><meta charset="utf-8"><style>{_STYLE}</style>')
    table = element("table", head, *rows)
    page = fragment(style, element("title", title), element("h1", title), table)
    args.out.write_text(page, encoding="utf-8")
    print(args.out)


if __name__ == "__main__":
    main()
