"""The sample pages: drawn the same every time, and their truth is what is drawn."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from ocr_phases import synth
from ocr_phases.errors import OcrPhasesError

PAGES = Path(__file__).resolve().parents[1] / "data" / "pages"


def ink_mask(page: synth.SynthPage) -> np.ndarray:
    """True where a pixel is not paper."""
    return (np.asarray(page.image) != np.array(synth.PAPER, dtype=np.uint8)).any(axis=2)


def pixel_box(box: tuple[int, int, int, int], side: int) -> tuple[slice, slice]:
    """Rows and columns of a 0..999 box; the first pixel is int(v / 999 * side), the last one counts."""
    x1, y1, x2, y2 = (int(v / synth.BOX_MAX * side) for v in box)
    return slice(y1, y2 + 1), slice(x1, x2 + 1)


@pytest.mark.parametrize("kind", synth.SAMPLES)
def test_drawing_twice_gives_the_same_pixels_and_truth(kind: str) -> None:
    first, second = synth.draw_page(kind), synth.draw_page(kind)
    assert first.image.tobytes() == second.image.tobytes()
    assert synth.truth_bytes(first) == synth.truth_bytes(second)


@pytest.mark.parametrize("size", [512, 640, 1024])
@pytest.mark.parametrize("kind", synth.SAMPLES)
def test_every_box_holds_ink_and_all_ink_is_in_a_box(kind: str, size: int) -> None:
    page = synth.draw_page(kind, size)
    assert page.image.size == (size, size)
    grey, rest = np.asarray(page.image.convert("L")), ink_mask(page)
    for region in page.regions:
        x1, y1, x2, y2 = region.box
        assert 0 <= x1 < x2 <= synth.BOX_MAX
        assert 0 <= y1 < y2 <= synth.BOX_MAX
        spot = pixel_box(region.box, size)
        assert grey[spot].min() < 100, region
        rest[spot] = False
    assert not rest.any(), f"ink outside every box at {np.argwhere(rest)[:5].tolist()} (row, column)"


@pytest.mark.parametrize("kind", synth.SAMPLES)
def test_boxes_are_tight_and_apart(kind: str) -> None:
    page = synth.draw_page(kind)
    ink, side = ink_mask(page), page.image.width
    for region in page.regions:
        rows, columns = np.nonzero(ink[pixel_box(region.box, side)])
        height, width = ink[pixel_box(region.box, side)].shape
        slack = 0.03 * side
        assert columns.min() < slack, region
        assert width - columns.max() < slack, region
        assert rows.min() < slack, region
        assert height - rows.max() < slack, region
    boxes = [region.box for region in page.regions]
    for i, a in enumerate(boxes):
        for b in boxes[i + 1 :]:
            assert a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1], (a, b)


@pytest.mark.parametrize("kind", synth.SAMPLES)
def test_markdown_is_in_the_models_format(kind: str) -> None:
    page = synth.draw_page(kind)
    block = r"<\|ref\|>(\w+)<\|/ref\|><\|det\|>\[\[(\d+), (\d+), (\d+), (\d+)\]\]<\|/det\|>(?:\n(.+))?"
    found = [re.fullmatch(block, text, re.DOTALL) for text in page.markdown.split("\n\n")]
    assert [m and (m[1], tuple(map(int, m.groups()[1:5])), m[6] or "") for m in found] == [
        (r.label, r.box, r.text) for r in page.regions
    ]


def test_labels_carry_their_markdown() -> None:
    canvas = synth.Canvas(512)
    for label in synth.STYLES.keys() - {"table"}:
        canvas.write(label, "Words", gap=10)
    canvas.table([("a", "b"), ("c", "d")], gap=10)
    canvas.bullets(["one", "two"], gap=10)
    canvas.picture(synth.bars, 60, gap=10)
    texts = {region.label: region.text for region in canvas.page().regions}
    assert texts == {
        "title": "# Words",
        "sub_title": "## Words",
        "text": "- one\n- two",
        "image_caption": "Words",
        "header": "Words",
        "footer": "Words",
        "table": "<table><tr><td>a</td><td>b</td></tr><tr><td>c</td><td>d</td></tr></table>",
        "image": "",
    }


def test_lines_break_at_spaces_and_newlines() -> None:
    font = synth.load_font(synth.MONO, 20)
    cell = font.getlength("x")
    assert synth.wrap("one two three\nfour", font, 7.5 * cell) == ["one two", "three", "four"]
    assert synth.wrap("unbreakable", font, cell) == ["unbreakable"]


def test_an_unknown_page_is_refused_by_name() -> None:
    with pytest.raises(OcrPhasesError, match="'poster'.*paper, invoice"):
        synth.draw_page("poster")


def test_the_command_writes_every_sample(tmp_path: Path) -> None:
    synth.main([str(tmp_path / "pages")])
    names = sorted(path.name for path in (tmp_path / "pages").iterdir())
    assert names == sorted(f"{name}{end}" for name in synth.SAMPLES for end in (".png", ".json"))


@pytest.mark.parametrize("kind", synth.SAMPLES)
def test_the_shipped_truth_is_what_the_code_draws(kind: str) -> None:
    shipped = (PAGES / f"{kind}.json").read_bytes()
    assert shipped == synth.truth_bytes(synth.draw_page(kind))
    assert json.loads(shipped).keys() == {"size", "regions", "markdown"}


@pytest.mark.parametrize("kind", synth.SAMPLES)
def test_the_shipped_pixels_are_what_the_code_draws(kind: str) -> None:
    path = PAGES / f"{kind}.png"
    assert path.stat().st_size < 150_000
    with Image.open(path) as image:
        drawn_by = image.info["Software"]
        pixels = image.convert("RGB").tobytes()
    if drawn_by != synth.renderer():
        pytest.skip(f"the page was drawn by {drawn_by}, this is {synth.renderer()}")
    assert pixels == synth.draw_page(kind).image.tobytes()
