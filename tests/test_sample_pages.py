"""The sample pages of ``data/pages``: files whose truth beside them says what stands where."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from ocr_phases.analyse.grounding import parse_grounding

PAGES = Path(__file__).resolve().parents[1] / "data" / "pages"
SAMPLES = ("dense", "form", "invoice", "paper", "receipt", "slide")


@pytest.fixture(params=SAMPLES)
def sample(request: pytest.FixtureRequest) -> tuple[Image.Image, dict[str, Any]]:
    with Image.open(PAGES / f"{request.param}.png") as image:
        page = image.convert("RGB")
    return page, json.loads((PAGES / f"{request.param}.json").read_text(encoding="utf-8"))


def ink_of(page: Image.Image) -> np.ndarray:
    """True where a pixel is not paper."""
    pixels = np.asarray(page)
    return (pixels != pixels[0, 0]).any(axis=2)


def pixel_box(box: list[int], side: int) -> tuple[slice, slice]:
    """Rows and columns of a 0..999 box; the first pixel is int(v / 999 * side), the last one counts."""
    x1, y1, x2, y2 = (int(v / 999 * side) for v in box)
    return slice(y1, y2 + 1), slice(x1, x2 + 1)


def test_there_are_six_small_files_and_no_others() -> None:
    names = {path.name for path in PAGES.iterdir()}
    assert names == {f"{name}{end}" for name in SAMPLES for end in (".png", ".json")}
    assert all((PAGES / f"{name}.png").stat().st_size < 150_000 for name in SAMPLES)


def test_every_box_holds_ink_and_all_ink_is_in_a_box(sample: tuple[Image.Image, dict[str, Any]]) -> None:
    page, truth = sample
    assert list(page.size) == truth["size"] == [1024, 1024]
    grey, rest = np.asarray(page.convert("L")), ink_of(page)
    for region in truth["regions"]:
        x1, y1, x2, y2 = region["box"]
        assert 0 <= x1 < x2 <= 999
        assert 0 <= y1 < y2 <= 999
        spot = pixel_box(region["box"], page.width)
        assert grey[spot].min() < 100, region
        rest[spot] = False
    assert not rest.any(), f"ink outside every box at {np.argwhere(rest)[:5].tolist()} (row, column)"


def test_boxes_are_tight_and_apart(sample: tuple[Image.Image, dict[str, Any]]) -> None:
    page, truth = sample
    ink, slack = ink_of(page), 0.03 * page.width
    for region in truth["regions"]:
        inside = ink[pixel_box(region["box"], page.width)]
        rows, columns = np.nonzero(inside)
        assert max(columns.min(), inside.shape[1] - columns.max()) < slack, region
        assert max(rows.min(), inside.shape[0] - rows.max()) < slack, region
    boxes = [region["box"] for region in truth["regions"]]
    for i, a in enumerate(boxes):
        for b in boxes[i + 1 :]:
            assert a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1], (a, b)


def test_the_truth_reads_back_from_its_markdown(sample: tuple[Image.Image, dict[str, Any]]) -> None:
    _, truth = sample
    read = parse_grounding(truth["markdown"])
    assert read.dropped == 0
    assert [(r.label, [list(box) for box in r.boxes], r.text) for r in read.regions] == [
        (region["label"], [region["box"]], region["text"]) for region in truth["regions"]
    ]
