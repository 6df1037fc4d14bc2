"""Random pages: drawn the same every time, and their truth is what is drawn."""

from __future__ import annotations

import dataclasses
import random
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from PIL import Image, ImageFilter
from refusals import refused

import synth
from ocr_phases.analyse.grounding import parse_grounding
from synth import effects
from synth.fonts import collect, family_characters
from synth.words import Words


def settings(side: int = 512, **more: Any) -> synth.PageSettings:
    """Pages in matplotlib's own type, the only one that is everywhere."""
    basic = {"type_px": (side / 36, side / 20), "max_characters": 400, "fonts": synth.matplotlib_families()}
    return synth.PageSettings(**{"width": side, "height": side, **basic, **more})


def random_page(seed: int, **more: Any) -> synth.SynthPage:
    return synth.random_page(random.Random(seed), settings(**more))


def fill(mask: np.ndarray, boxes: list[tuple[int, int, int, int]], value: bool) -> None:
    """Set the pixels of 0..999 boxes."""
    height, width = mask.shape
    for x1, y1, x2, y2 in boxes:
        rows = slice(int(y1 / synth.BOX_MAX * height), int(y2 / synth.BOX_MAX * height) + 1)
        mask[rows, int(x1 / synth.BOX_MAX * width) : int(x2 / synth.BOX_MAX * width) + 1] = value


def check_truth(page: synth.SynthPage) -> None:
    """Boxes lie on the page, apart, around ink; nothing else is drawn but what is called decoration."""
    pixels = np.asarray(page.image).astype(int)
    paper = pixels[0, 0]
    ink = (pixels != paper).any(axis=2)
    boxes = [region.box for region in page.regions]
    assert boxes
    for region in (*page.regions, *page.lines):
        x1, y1, x2, y2 = region.box
        assert 0 <= x1 < x2 <= synth.BOX_MAX, region
        assert 0 <= y1 < y2 <= synth.BOX_MAX, region
        spot = np.zeros_like(ink)
        fill(spot, [region.box], True)
        assert ink[spot].any(), region
    for i, a in enumerate(boxes):
        for b in boxes[i + 1 :]:
            assert a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1], (a, b)
    fill(ink, [*boxes, *page.decoration], False)
    assert not ink.any(), f"ink outside every box at {np.argwhere(ink)[:5].tolist()} (row, column)"


@given(
    seed=st.integers(0, 2**32),
    width=st.sampled_from((256, 512, 640, 900)),
    height=st.sampled_from((256, 512, 700)),
    kind=st.sampled_from(synth.KINDS),
    smallest=st.integers(9, 26),
    growth=st.integers(0, 12),
    characters=st.sampled_from((20, 64, 400, 3000)),
)
@hypothesis_settings(max_examples=250, deadline=None, derandomize=True)
def test_random_pages_tell_the_truth(
    seed: int, width: int, height: int, kind: str, smallest: int, growth: int, characters: int
) -> None:
    page = random_page(
        seed,
        width=width,
        height=height,
        kinds=(kind,),
        type_px=(smallest, smallest + growth),
        max_characters=characters,
    )
    assert page.image.size == (width, height)
    assert page.image.mode == "RGB"
    check_truth(page)
    assert len(page.free) < 1.3 * characters + 40 * len(page.regions) + 9 * page.free.count("<td>")


@pytest.mark.parametrize("kind", synth.KINDS)
def test_each_kind_can_be_read_back_from_its_markdown(kind: str) -> None:
    for seed in range(8):
        page = random_page(seed, kinds=(kind,))
        read = parse_grounding(page.markdown)
        assert read.dropped == 0
        assert [(r.label, r.boxes, r.text) for r in read.regions] == [
            (r.label, (r.box,), r.text) for r in page.regions
        ]
        assert page.free == "\n\n".join(r.text for r in page.regions if r.text)
        assert "\n\n" not in "".join(r.text for r in page.regions)


def test_text_holds_no_markup() -> None:
    words = Words(random.Random(1), frozenset(synth.CHARACTERS))
    tries = iter(("<table>", "</td>", "<|ref", "of <image>", "<tables>"))
    assert words.drawable(lambda: next(tries)) == "<tables>"


def test_a_random_page_follows_from_its_seed() -> None:
    first, second, other = random_page(5), random_page(5), random_page(6)
    assert first.image.tobytes() == second.image.tobytes()
    assert first.regions == second.regions != other.regions
    scans = [synth.degrade(first, random.Random(1), 0.8) for _ in range(2)]
    assert scans[0].image.tobytes() == scans[1].image.tobytes()
    assert scans[0].regions == scans[1].regions


def test_lines_are_the_regions_text_line_by_line() -> None:
    for seed in range(30):
        page = random_page(seed)
        for label in ("title", "sub_title", "text", "image_caption", "header", "footer"):
            wanted = [
                line for r in page.regions if r.label == label and r.text for line in r.text.split("\n")
            ]
            found = [line.text for line in page.lines if line.label == label]
            mark = {"title": "# ", "sub_title": "## "}.get(label, "")
            assert found == [line.removeprefix(mark) for line in wanted]


@pytest.mark.parametrize("seed", range(20))
def test_letters_stand_in_their_lines_on_ink(seed: int) -> None:
    page = random_page(seed)
    ink = (np.asarray(page.image) != np.asarray(page.image)[0, 0]).any(axis=2)
    for piece in page.letters:
        assert (np.diff(piece.middles[:, 0]) > 0).all()
        for letter, (x, y) in zip(piece.text, piece.middles.astype(int), strict=True):
            assert not letter.isalnum() or ink[y - 5 : y + 6, x - 5 : x + 6].any(), (letter, x, y)
    if not any(region.label == "equation" for region in page.regions):  # whose lines are in TeX
        drawn, told = ("".join(part.text for part in parts) for parts in (page.letters, page.lines))
        assert Counter(drawn.replace(" ", "")) == Counter(told.replace(" ", ""))
    for shown in (page, synth.degrade(page, random.Random(seed), 1.0)):
        boxes = np.array([line.box for line in shown.lines]) / synth.BOX_MAX * 512
        for piece in shown.letters:
            for spot in piece.middles:
                assert ((boxes[:, :2] <= spot + 1) & (spot - 1 <= boxes[:, 2:])).all(axis=1).any(), piece


@pytest.mark.parametrize("seed", range(24))
def test_degraded_pages_keep_their_boxes_on_the_ink(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    page = random_page(seed)
    blocks = np.full((512, 512), 255, dtype=np.uint8)
    mask = np.zeros((512, 512), dtype=bool)
    fill(mask, [region.box for region in page.regions], True)
    blocks[mask] = 0
    solid = dataclasses.replace(page, image=Image.fromarray(blocks).convert("RGB"))
    monkeypatch.setattr(effects, "_surround", lambda image, rng: (255, 255, 255))
    scan = synth.degrade(solid, random.Random(seed), 1.0)
    assert scan.image.size == page.image.size
    assert [(r.label, r.text) for r in scan.regions] == [(r.label, r.text) for r in page.regions]
    grey = np.asarray(scan.image.convert("L").filter(ImageFilter.BoxBlur(1))).astype(float)
    dark = grey < (grey[mask].min() + grey.max()) / 2
    for region in scan.regions:
        x1, y1, x2, y2 = region.box
        assert 0 <= x1 < x2 <= synth.BOX_MAX
        assert 0 <= y1 < y2 <= synth.BOX_MAX
        inside = np.zeros_like(mask)
        fill(inside, [region.box], True)
        assert dark[inside].mean() > 0.6, region
    outside = np.ones_like(mask)
    fill(outside, [r.box for r in scan.regions], False)
    assert dark[outside].mean() < 0.02


@pytest.mark.parametrize("family", synth.matplotlib_families(), ids=lambda family: family.name)
def test_pages_show_only_what_their_font_has(family: synth.FontFamily) -> None:
    has = family_characters(family)
    assert set("Aa0 .") <= has <= set(synth.CHARACTERS)
    for seed in range(40):
        page = random_page(seed, fonts=(family,), width=300, height=300)
        assert set(page.free) <= {*synth.CHARACTERS, "\n"}
        for line in page.lines:
            if line.label != "equation":
                assert set(line.text) <= has, line.text


def test_a_character_under_another_glyphs_name_is_not_trusted() -> None:
    by_name = {family.name: family_characters(family) for family in synth.matplotlib_families()}
    assert "<" not in by_name["Computer Modern"]
    assert "<" in by_name["Computer Modern Typewriter"]
    assert by_name["DejaVu Sans"] == set(synth.CHARACTERS)


def test_unknown_kinds_and_missing_fonts_are_refused_by_name(tmp_path: Path) -> None:
    with refused():
        random_page(1, kinds=("poem",))
    with refused():
        synth.debian_families(tmp_path)
    assert collect(tmp_path, [str(tmp_path)]) == synth.DEBIAN_PACKAGES
