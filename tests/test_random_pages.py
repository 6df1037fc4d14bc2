"""Pages whose truth is known: random ones of benchmarks/random_pages, and the samples of
data/pages.
"""

import random

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.random_pages.faces import (
    CHARACTERS,
    FontFamily,
    family_characters,
    matplotlib_families,
)
from benchmarks.random_pages.page import KINDS, PageSettings, random_page
from benchmarks.random_pages.sheet import BOX_MAX, SynthPage

FAMILIES = matplotlib_families()


def drawn(seed: int, kind: str = "report", fonts: tuple[FontFamily, ...] = FAMILIES) -> SynthPage:
    asked = PageSettings(512, 640, type_px=(14, 24), max_characters=400, fonts=fonts, kinds=(kind,))
    return random_page(random.Random(seed), asked)


def inside(image: np.ndarray, box: tuple[int, int, int, int]) -> np.ndarray:
    """The pixels of a 0..999 box."""
    (height, width), (x1, y1, x2, y2) = image.shape[:2], box
    rows = slice(int(y1 / BOX_MAX * height), int(y2 / BOX_MAX * height) + 1)
    return image[rows, int(x1 / BOX_MAX * width) : int(x2 / BOX_MAX * width) + 1]


@given(st.integers(0, 2**32), st.sampled_from(KINDS), st.sampled_from(FAMILIES))
@settings(max_examples=30, deadline=None, derandomize=True)
def test_boxes_lie_apart_around_all_ink_and_text_is_what_the_font_has(
    seed: int, kind: str, family: FontFamily
) -> None:
    page = drawn(seed, kind, (family,))
    pixels = np.asarray(page.image).astype(int)
    ink = (pixels != pixels[0, 0]).any(axis=2)
    boxes = [region.box for region in page.regions]
    assert boxes
    for number, (x1, y1, x2, y2) in enumerate(boxes):
        assert 0 <= x1 < x2 <= BOX_MAX
        assert 0 <= y1 < y2 <= BOX_MAX
        assert inside(ink, boxes[number]).any()
        for a in boxes[:number]:
            assert a[2] <= x1 or x2 <= a[0] or a[3] <= y1 or y2 <= a[1]
    for box in boxes:
        inside(ink, box)[:] = False
    assert not ink.any(), "ink outside every box"
    texts = {region.label: region.text for region in page.regions if region.label != "equation"}
    has = family_characters(family) | {"\n", *"#<table></tr></td>"}
    assert set("".join(texts.values())) <= has <= {*CHARACTERS, "\n"}
