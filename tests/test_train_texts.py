"""Where the built-in model's training text and browser pages come from."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest

# isort: split
import metrics
import pages
import printed

import synth
from ocr_phases.families import PRESETS
from synth.texts import HELD_OUT, LANGUAGES, PASSAGES, WORDS

CHROMIUM = Path("/usr/bin/chromium")
STAGE = {
    "type_px": [18, 24],
    "characters": 400,
    "plain": [1.0, 1.0],
    "reshape": 0.0,
    "colour": 0.0,
    "degrade": 0.0,
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Texts of every language, two words and two passages each."""
    place = tmp_path_factory.mktemp("texts")
    for name in (*LANGUAGES, HELD_OUT):
        (place / WORDS.format(name)).write_text(f"one{name[:2]}\ntwo{name[:2]}")
        (place / PASSAGES.format(name)).write_text(f"Some words in {name[:2]}.\nMore words in {name[:2]}.")
    return place


def test_pages_say_what_the_texts_hold(folder: Path) -> None:
    page = pages.make_page(
        random.Random(1),
        pages.Bucket(PRESETS["small"], (1, 1), 1, 1.0, 1.0, long=900),
        STAGE | {"wide": 1.0, "texts": HELD_OUT, "prose": 1.0},
        pages.load_sources(None, folder),
    )
    running = [word for r in page.regions if r.label == "text" for word in r.text.split()]
    known = {*["Some", "More", "words", "in", "he."], "oneheldout"}
    assert sum(word in known for word in running) > 0.6 * len(running) > 30
    own = pages.make_page(
        random.Random(1),
        pages.Bucket(PRESETS["small"], (1, 1), 1, 1.0, 1.0),
        STAGE,
        pages.load_sources(None, folder),
    )
    assert "onehe" not in own.free


def test_what_cannot_be_read_has_a_box_and_no_text() -> None:
    fonts = synth.matplotlib_families()
    settings = synth.PageSettings(512, 512, (18, 24), 400, fonts, kinds=("unreadable",))
    drawn = [synth.random_page(random.Random(seed), settings) for seed in range(6)]
    blank = [
        region for page in drawn for region in page.regions if region.label == "text" and not region.text
    ]
    assert len(blank) >= 6
    for page in drawn:
        shown = "".join(piece.text for piece in page.letters)
        assert set(shown) <= set(synth.CHARACTERS)
        for region in page.regions:
            if not region.text:
                assert region.markdown.endswith("<|/det|>")


def test_a_text_where_none_can_be_read_is_invented() -> None:
    head = "<|ref|>text<|/ref|><|det|>[[0, {}, 100, {}]]<|/det|>"
    blank = "\n\n".join((head.format(0, 100), head.format(200, 300) + "\nabc"))
    for answer, share in ((blank, 0.0), (blank.replace("\n\n", "\nhello\n\n"), 1.0)):
        score = metrics.score(answer, blank, ended=True, tokens=1)
        assert score.blank == 1
        assert metrics.summary([score])["invented"] == share


@pytest.mark.skipif(not CHROMIUM.exists(), reason="needs Chromium")
def test_a_browser_s_page_is_drawn_where_its_boxes_are(folder: Path, tmp_path: Path) -> None:
    pytest.importorskip("playwright")
    pytest.importorskip("pypdfium2")
    import browser

    from synth.fonts.debian import DebianFamily

    source = Path(synth.matplotlib_families()[0].regular).parent
    row = DebianFamily("none", "Test", "DejaVuSans.ttf", "DejaVuSans-Bold.ttf", mono=True)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(browser, "TABLE", (row,))
        patch.setattr(browser, "_FAMILIES", 1)
        browser.main(["--fonts", str(source), "--texts", str(folder), "--out", str(tmp_path), "--pages", "8"])
    found = printed.load_printed(tmp_path)
    assert len(found) >= 6
    assert {region[0] for page in found for region in page.regions} >= {"title", "text"}
    rng = random.Random(0)
    for name in ("small", "base"):
        page = printed.printed_page(rng, found, PRESETS[name], (1, 1), 6, 3000)
        assert page is not None
        pixels = np.asarray(page.image).astype(int).min(axis=2)
        height, width = pixels.shape
        for region in page.regions:
            x1, y1, x2, y2 = (
                v * side // synth.BOX_MAX for v, side in zip(region.box, (width, height) * 2, strict=True)
            )
            assert np.ptp(pixels[y1 : y2 + 1, x1 : x2 + 1]) > 60, region
        assert pages.character_map(page, PRESETS[name]).any()
        text = "".join(piece.text for piece in page.letters).replace(" ", "")
        assert text[:5] in page.free.replace(" ", "").replace("#", "").replace("\n", "")
