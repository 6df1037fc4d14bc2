"""Pages whose truth is known: random ones of benchmarks/random_pages, and the samples of
data/pages.
"""

import random
from itertools import combinations

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


Box = tuple[int, int, int, int]


def small_page(seed: int, kind: str, family: FontFamily) -> SynthPage:
    """A page of this kind that is quickly drawn."""
    settings = PageSettings(
        512, 640, type_px=(14, 24), max_characters=400, fonts=(family,), kinds=(kind,)
    )
    return random_page(random.Random(seed), settings)


def pixels_of(image: np.ndarray, box: Box) -> np.ndarray:
    """The pixels of a 0..999 box, as a view."""
    height, width = image.shape
    x1, y1, x2, y2 = box
    rows = slice(int(y1 / BOX_MAX * height), int(y2 / BOX_MAX * height) + 1)
    columns = slice(int(x1 / BOX_MAX * width), int(x2 / BOX_MAX * width) + 1)
    return image[rows, columns]


def lie_apart(one: Box, other: Box) -> bool:
    """Whether two boxes have nothing in common."""
    beside = one[2] <= other[0] or other[2] <= one[0]
    above = one[3] <= other[1] or other[3] <= one[1]
    return beside or above


def ink_of(page: SynthPage) -> np.ndarray:
    """Where a page has another colour than its ground."""
    pixels = np.asarray(page.image).astype(int)
    return (pixels != pixels[0, 0]).any(axis=2)


@given(st.integers(0, 2**32), st.sampled_from(KINDS), st.sampled_from(FAMILIES))
@settings(max_examples=30, deadline=None, derandomize=True)
def test_boxes_lie_apart_around_all_ink_and_text_is_what_the_font_has(
    seed: int, kind: str, family: FontFamily
) -> None:
    page = small_page(seed, kind, family)
    ink = ink_of(page)
    boxes = [region.box for region in page.regions]
    assert boxes
    for x1, y1, x2, y2 in boxes:
        assert 0 <= x1 < x2 <= BOX_MAX
        assert 0 <= y1 < y2 <= BOX_MAX
    for box in boxes:
        assert pixels_of(ink, box).any()
    for one, other in combinations(boxes, 2):
        assert lie_apart(one, other)
    for box in boxes:
        pixels_of(ink, box)[:] = False
    assert not ink.any(), "ink outside every box"

    texts = {region.label: region.text for region in page.regions if region.label != "equation"}
    written = set("".join(texts.values()))
    drawable = family_characters(family) | {"\n", *"#<table></tr></td>"}
    assert written <= drawable
    assert drawable <= {*CHARACTERS, "\n"}
