"""Drawing regions and their decode time on a page."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from conftest import GOLDEN
from grounding_texts import CASE, fuzzed, marked
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image, ImageColor

from ocr_phases.analyse.grounding import Grounding, parse_grounding, token_regions
from ocr_phases.analyse.regions import region_table
from ocr_phases.show.page import LABEL_COLOURS, draw_marks, label_colour, printable, region_boxes

PAGE_TEXT = "Sure: " + "".join(
    marked(label, boxes) + "words " * 5
    for label, boxes in [
        ("title", "[[80, 40, 900, 90]]"),
        ("image", "[[520, 120, 900, 300], [520, 320, 900, 600]]"),
        ("broken", "[[1, 2"),
        ("a label made up by a user", "[[0, 700, 999, 999]]"),
    ]
)


def draw_boxes(page: Image.Image, grounding: Grounding, **shown: Any) -> Image.Image:
    return draw_marks(page, region_boxes(grounding.regions, page.size, **shown))


def timed(text: str) -> tuple[Grounding, pd.DataFrame]:
    """Regions of a text and their table, when every character is a token of a millisecond."""
    grounding = parse_grounding(text)
    regions = np.array(token_regions(grounding, list(text)), dtype=np.int64)
    tokens = pd.DataFrame({"region": regions, "text": list(text), "device_ms": np.ones(len(text))})
    return grounding, region_table(grounding, tokens)


def test_golden_boxes_are_outlined_at_their_pixels() -> None:
    page = Image.open(GOLDEN / "pages" / CASE["page"])
    grounding = parse_grounding(CASE["model_text"])
    boxes = region_boxes(grounding.regions, page.size)
    drawn = draw_marks(page, [box._replace(text="") for box in boxes])
    colours = [label_colour(region.label) for region in grounding.regions for _ in region.boxes]
    right, bottom = page.width - 1, page.height - 1
    for (x1, y1, x2, y2), colour in zip(CASE["boxes_px"], colours, strict=True):
        for corner in [(x1, y1), (min(x2, right), min(y2, bottom))]:
            assert drawn.getpixel(corner) == ImageColor.getrgb(colour)
    outside = np.ones((page.height, page.width), dtype=bool)
    for x1, y1, x2, y2 in CASE["boxes_px"]:
        outside[y1 : y2 + 1, x1 : x2 + 1] = False
    assert (np.asarray(drawn)[outside] == np.asarray(page.convert("RGB"))[outside]).all()


def test_tags_are_drawn_beside_each_other() -> None:
    """Two tiny boxes at the same place: the second tag must not cover the first."""
    listing = "[[400, 400, 410, 410]]"
    first = parse_grounding(marked("title", listing))
    both = parse_grounding(marked("title", listing) + marked("table", listing))
    white = Image.new("RGB", (800, 800), "white")
    tagged, twice = (np.asarray(draw_boxes(white, grounding)) for grounding in (first, both))
    title, other = (ImageColor.getrgb(LABEL_COLOURS[label]) for label in ("title", "table"))
    solid = (tagged == title).all(axis=2)
    solid[318:332, 318:332] = False  # the boxes themselves
    assert solid.sum() > 100
    assert (twice[solid] == title).all()
    assert (twice == other).all(axis=2).sum() > 100


def test_label_colours_are_the_same_in_every_process() -> None:
    spare = {
        "stamp": "#cc6677",
        "seal": "#19823c",
        "chart": "#8f8f2f",
        "签名": "#cc6677",
        "\ud800": "#cc6677",
    }
    assert {label: label_colour(label) for label in spare} == spare
    assert label_colour("title") == LABEL_COLOURS["title"]


def test_printable() -> None:
    assert printable(" a\n\tb\x00\ud800 c ") == "a b c"
    assert printable("x" * 100, longest=5) == "xxxx…"
    assert len(printable("\u202e" * 10**6 + "x")) <= 24


@settings(max_examples=40, deadline=None)
@given(
    fuzzed,
    st.sampled_from([(1, 1), (20, 20), (211, 97), (3, 400)]),
    st.sampled_from(["RGB", "L", "RGBA", "1", "P"]),
)
@example(PAGE_TEXT, (50, 4000), "RGBA")
@example(PAGE_TEXT, (20000, 50), "1")
@example(PAGE_TEXT, (1, 1), "L")
@example(PAGE_TEXT, (300, 400), "P")
def test_any_text_can_be_drawn_on_any_page(text: str, size: tuple[int, int], mode: str) -> None:
    grounding, table = timed(text)
    page = Image.new(mode, size, 1)
    for drawn in (draw_boxes(page, grounding), draw_boxes(page, grounding, table=table, by_time=True)):
        assert (drawn.size, drawn.mode) == (size, "RGB")
