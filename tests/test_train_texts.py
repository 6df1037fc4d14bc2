"""Where the built-in model's training text and browser pages come from."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from training import CODE

# isort: split
import evaluate
import metrics
import pages
import printed
import sheet
import texts

import synth
from ocr_phases.families import PRESETS, crop_grid
from synth.texts import HELD_OUT, LANGUAGES, PASSAGES, WORDS, Texts, load_texts
from synth.words import Words

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


def test_passages_are_the_prose_of_html_manuals_and_fortunes(tmp_path: Path) -> None:
    page = tmp_path / "usr" / "share" / "doc" / "a.html"
    manual = tmp_path / "usr" / "share" / "man" / "man1" / "a.1.gz"
    fortune = tmp_path / "usr" / "share" / "games" / "fortunes" / "wit"
    for file in (page, manual, fortune):
        file.parent.mkdir(parents=True)
    page.write_text("<p>The <b>quick</b> brown fox jumps over the lazy dog &amp; rests.</p><p>Short.</p>")
    source = ".SH NAME\nThe option \\fB\\-\\-quiet\\fP leaves\n.B all\nof these messages out.\n.PP\nNo.\n"
    manual.write_bytes(gzip.compress(source.encode()))
    fortune.write_text(
        "A fortune that is long enough to be kept as one.\n%\n漢字 is unknown here, so all of it is left out."
    )
    assert list(texts.passages(tmp_path)) == [
        "The quick brown fox jumps over the lazy dog & rests.",
        "A fortune that is long enough to be kept as one.",
        "The option --quiet leaves all of these messages out.",
    ]


def test_a_long_text_is_cut_after_a_sentence() -> None:
    sentence = "This sentence has a little more than forty letters in it. "
    parts = list(texts._cut((sentence * 30).strip()))
    assert len(parts) > 1
    assert all(part.endswith(".") and len(part) <= texts._LONGEST for part in parts)
    assert " ".join(parts) == (sentence * 30).strip()


def test_whole_families_of_words_are_held_out_but_no_frequent_one(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(0)
    listed = tuple(
        {"".join(rng.choices("abcdefgh", k=5)) + end for _ in range(2000) for end in ("", "s", "ing")}
    )
    monkeypatch.setattr(texts, "_top", lambda language, count: listed[:count])
    for cached in (texts.is_held_out_word, texts._frequent):
        cached.cache_clear()
        monkeypatch.setattr(texts, cached.__name__, cached)
    apart = {word for word in listed if texts.is_held_out_word(word)}
    assert 0.005 < len(apart) / len(listed) < 0.04
    assert {word[:5] for word in apart}.isdisjoint(word[:5] for word in set(listed) - apart)
    assert apart.isdisjoint(listed[: texts._FREQUENT])
    texts.is_held_out_word.cache_clear()
    texts._frequent.cache_clear()


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


def test_frequent_words_come_often_unless_they_are_held_out(folder: Path) -> None:
    listed = tuple(f"w{number}" for number in range(10_000))
    rng = random.Random(0)
    for even, low, high in ((False, 0.15, 0.5), (True, 0.0, 0.03)):
        source = Texts(listed, (), even)
        drawn = [int(source.word(rng)[1:]) for _ in range(4000)]
        assert low < sum(rank < 100 for rank in drawn) / len(drawn) < high
        assert max(drawn) > 9_900
    assert load_texts(folder, HELD_OUT).even


@pytest.mark.parametrize("prose", [True, False])
def test_words_are_drawn_from_the_texts(prose: bool) -> None:
    source = Texts(("lemon", "paper"), ("Zitronen <table> sind gelb.",))
    words = Words(random.Random(3), frozenset(synth.CHARACTERS), 1.0, source, prose)
    said = {words.token() for _ in range(300)}
    assert ({"Zitronen", "sind", "gelb."} == said) if prose else ("lemon" in said and "gelb." not in said)


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


def test_a_stage_has_its_share_of_unreadable_pages_but_full_ones() -> None:
    config = json.loads((CODE / "config.json").read_text())
    short, full = (pages.make_buckets(config["buckets"])[name] for name in ("small", "small long"))
    stage = config["stages"][-1] | {"unreadable": 1.0, "browser": 0, "degrade": 0, "colour": 0}
    sources = pages.load_sources(None)
    for bucket, blank in ((short, True), (full, False)):
        drawn = [pages.make_page(random.Random(seed), bucket, stage, sources) for seed in range(2)]
        assert all(any(r.label == "text" and not r.text for r in page.regions) == blank for page in drawn)


def test_full_pages_are_set_in_type_as_large_as_the_stage_says() -> None:
    config = json.loads((CODE / "config.json").read_text())
    bucket = pages.make_buckets(config["buckets"])["small long"]
    stage = config["stages"][-1] | {"reshape": 0, "browser": 0, "degrade": 0, "colour": 0}
    sources = pages.load_sources(None)

    def largest(**changes: float) -> float:
        drawn = [pages.make_page(random.Random(seed), bucket, stage | changes, sources) for seed in range(6)]
        return max(pages.type_shown(page, bucket) for page in drawn)

    del stage["long_type"]
    assert largest() < 1.5 * stage["type_px"][0] < largest(long_type=2.0)


def test_a_browser_s_page_has_the_grid_it_is_drawn_for(monkeypatch: pytest.MonkeyPatch) -> None:
    laid = printed.PrintedPage(Path("none"), 0, 1000, 1000, 20, (("text", (0, 0, 9, 9), "abc", ()),))
    sizes = [(1358, 1358), (1300, 1300)]  # a pixel too many, as pdfium may round, and a fitting one
    drawn = [synth.SynthPage(Image.new("RGB", size), (), (), (), ()) for size in sizes]
    grids = [crop_grid(*size, PRESETS["gundam"].image_size) for size in sizes]
    assert grids == [(3, 3), (2, 2)]
    monkeypatch.setattr(printed, "_drawn", lambda *_: drawn.pop(0))
    page = printed.printed_page(random.Random(0), [laid], PRESETS["gundam"], (2, 2), 10, 3000)
    assert page is not None and page.image.size == (1300, 1300)


def test_a_text_where_none_can_be_read_is_invented() -> None:
    head = "<|ref|>text<|/ref|><|det|>[[0, {}, 100, {}]]<|/det|>"
    blank = "\n\n".join((head.format(0, 100), head.format(200, 300) + "\nabc"))
    for answer, share in ((blank, 0.0), (blank.replace("\n\n", "\nhello\n\n"), 1.0)):
        score = metrics.score(answer, blank, ended=True, tokens=1)
        assert score.blank == 1
        assert metrics.summary([score])["invented"] == share


def test_full_pages_have_rows_and_buckets_of_their_own() -> None:
    config = json.loads((CODE / "config.json").read_text())
    for preset, condition in (("small", "long"), ("base", "long"), ("gundam", "A4 11 pt")):
        assert all(task.bucket.long for task in evaluate.draw_tasks(config, preset, condition, 8))
    assert {t.bucket.grid for t in evaluate.draw_tasks(config, "gundam", "A4 18 pt", 8)} == {(2, 3)}
    for condition in ("clean", "words", "browser", "unreadable"):
        assert not any(task.bucket.long for task in evaluate.draw_tasks(config, "base", condition, 8))
    known = evaluate.draw_tasks(config, "base", "clean", 1)[0].stage
    assert set(known["kinds"]) < set(synth.KINDS)
    assert "wide" not in known


def test_the_sheet_marks_what_is_wrong() -> None:
    assert sheet.marked("a <b> c", "a <b> d") == "a &lt;b&gt; <mark>c</mark><ins> [d] </ins>"


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
