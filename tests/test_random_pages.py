"""Pages whose truth is known: random ones of benchmarks/pages, and the samples of data/pages."""

from __future__ import annotations

import hashlib
import json
import random
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from refusals import refused

from benchmarks.pages import (
    BOX_MAX,
    CHARACTERS,
    KINDS,
    FontFamily,
    PageSettings,
    SynthPage,
    family_characters,
    matplotlib_families,
    random_page,
)
from ocr_phases.analyse.grounding import parse_grounding

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


def test_a_random_page_follows_from_its_seed_and_an_unknown_kind_is_refused() -> None:
    first, second, other = drawn(5), drawn(5), drawn(6)
    assert first.image.tobytes() == second.image.tobytes()
    assert first.regions == second.regions != other.regions
    with refused():
        drawn(1, "poem")


# -- the samples -----------------------------------------------------------------------------------------


PAGES = Path(__file__).resolve().parents[1] / "data" / "pages"
SAMPLES = ("dense", "form", "invoice", "paper", "receipt", "slide")
#: Of all files in the order of their names: all ink is in tight boxes that lie apart, all boxes hold ink.
DRAWN = "f0a49085f64867d2ace6bc1c583a7e616ae78180859836f018804386cbe9156a"


def test_they_are_six_and_as_they_were_drawn() -> None:
    paths = sorted(PAGES.iterdir())
    assert [path.name for path in paths] == [f"{name}{end}" for name in SAMPLES for end in (".json", ".png")]
    assert hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest() == DRAWN


@pytest.mark.parametrize("name", SAMPLES)
def test_the_truth_reads_back_from_its_markdown(name: str) -> None:
    truth = json.loads((PAGES / f"{name}.json").read_text(encoding="utf-8"))
    read = parse_grounding(truth["markdown"])
    assert read.dropped == 0
    assert [(r.label, [list(box) for box in r.boxes], r.text) for r in read.regions] == [
        (region["label"], [region["box"]], region["text"]) for region in truth["regions"]
    ]
