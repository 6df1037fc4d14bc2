"""How large a page's type is, which preset shows it large enough, and what is said where none does."""

from __future__ import annotations

import dataclasses
import random
from functools import cache
from pathlib import Path

import ipywidgets as widgets
import numpy as np
import pytest
from conftest import PAGES
from example_run import make_run
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from PIL import Image, ImageDraw, ImageOps
from wording import says

from ocr_phases import OcrPhasesError, OCRSession, PhaseRun
from ocr_phases.analyse.checks import run_checks
from ocr_phases.analyse.headline import verdict
from ocr_phases.cli import main
from ocr_phases.measure.inputs.packing import make_views
from ocr_phases.measure.inputs.type_size import type_height, type_warning
from ocr_phases.presets import PRESETS
from ocr_phases.settings import RunSettings
from ocr_phases.show import html, sections
from ocr_phases.show.explorer.form import Form
from ocr_phases.type_fit import fitting_preset, small_type, type_shown, view_scale
from synth import PageSettings, degrade, matplotlib_families, random_page

FAMILY = tuple(matplotlib_families())
WORDS = ("The", "house", "on", "the", "hill", "had", "been", "empty", "for", "eleven", "years", "when")
QUICK = {"max_new_tokens": 2, "repeats": 1, "warmup": 0, "ceilings": False}
A4 = (1240, 1754)  # 150 dpi


@cache
def text_page(px: float, size: tuple[int, int] = A4, columns: int = 1, ink: str = "black") -> Image.Image:
    """A page of words in DejaVu Sans."""
    from matplotlib import font_manager
    from PIL import ImageFont

    font = ImageFont.truetype(font_manager.findfont("DejaVu Sans"), px)
    page = Image.new("RGB", size, "white")
    draw = ImageDraw.Draw(page)
    margin, rng = size[0] // 12, random.Random(1)
    width = (size[0] - margin) // columns
    for column in range(columns):
        for line in range(int((size[1] - 2 * margin) / (1.35 * px))):
            text = ""
            while len(text) * 0.6 * px < width - margin - 6 * px:
                text += rng.choice(WORDS) + " "
            draw.text((margin + column * width, margin + line * 1.35 * px), text, font=font, fill=ink)
    return page


def ratio(page: Image.Image, px: float) -> float:
    found = type_height(page)
    assert found is not None
    return found / px


@pytest.mark.parametrize("points", [8, 11, 14, 18])
def test_an_a4_page_of_known_type(points: int) -> None:
    px = points * 150 / 72
    assert ratio(text_page(px), px) == pytest.approx(1, abs=0.12)


def test_inverted_grey_coloured_turned_and_two_columns() -> None:
    px = 24.0
    page = text_page(px)
    assert ratio(ImageOps.invert(page), px) == pytest.approx(1, abs=0.12)
    assert ratio(text_page(px, ink="#999999"), px) == pytest.approx(1, abs=0.12)
    assert ratio(text_page(px, ink="#a02010"), px) == pytest.approx(1, abs=0.12)
    assert ratio(text_page(px, columns=2), px) == pytest.approx(1, abs=0.12)
    assert ratio(page.rotate(1.5, fillcolor="white"), px) == pytest.approx(1, abs=0.15)


def test_rules_tables_and_photographs_are_no_type() -> None:
    px = 24.0
    page = text_page(px).copy()
    draw = ImageDraw.Draw(page)
    for place in range(150, 700, 60):
        draw.line((50, place, 1190, place), fill="black", width=3)
        draw.line((place * 1.5, 150, place * 1.5, 700), fill="black", width=3)
    noise = np.random.default_rng(0).normal(128, 60, (400, 600, 3)).clip(0, 255).astype(np.uint8)
    page.paste(Image.fromarray(noise).resize((600, 500)), (500, 1100))
    assert ratio(page, px) == pytest.approx(1, abs=0.15)


@pytest.mark.parametrize(
    "page",
    [
        Image.new("RGB", (640, 480), "white"),
        Image.new("RGB", (1, 1)),
        Image.new("RGB", (3, 2_000), "grey"),
        Image.linear_gradient("L").convert("RGB"),
        Image.effect_noise((500, 500), 80).convert("RGB"),
    ],
    ids=["blank", "a pixel", "a strip", "a gradient", "noise"],
)
def test_a_page_without_type_has_none(page: Image.Image) -> None:
    assert type_height(page) is None
    assert type_warning(page, "tiny", "small") == ""


@settings(max_examples=10, deadline=None)
@given(st.sampled_from([18, 26, 40]), st.floats(0.6, 1.7))
def test_scaling_a_page_scales_its_type(px: int, factor: float) -> None:
    page = text_page(px, (600, 600))
    size = (round(600 * factor), round(600 * factor))
    scaled = page.resize(size, Image.Resampling.BICUBIC)
    before, after = type_height(page), type_height(scaled)
    assert before and after
    assert after / before == pytest.approx(factor, rel=0.15)


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10_000), st.booleans())
def test_random_pages_with_and_without_scanning(seed: int, scanned: bool) -> None:
    rng = random.Random(seed)
    settings_of_pages = PageSettings(
        width=700, height=700, type_px=(20, 34), max_characters=400, fonts=FAMILY, colour=0.5
    )
    page = random_page(rng, settings_of_pages)
    assume(page.letters)  # a page of unreadable text alone has no true size
    counts = [len(piece.text) for piece in page.letters]
    true = float(np.median(np.repeat([piece.size for piece in page.letters], counts)))
    if scanned:
        page = degrade(page, rng, 0.4)
    found = type_height(page.image)
    assert found is None or 0.5 < found / true < 1.6


@settings(max_examples=25, deadline=None)
@given(st.integers(100, 1_500), st.integers(100, 1_500), st.sampled_from(list(PRESETS)))
def test_the_scale_is_that_of_the_views(width: int, height: int, name: str) -> None:
    views = make_views(Image.new("1", (width, height)), PRESETS[name])
    area = views.crops.shape[0] * 640**2
    if not area:
        side, padded = PRESETS[name].base_size, not PRESETS[name].squeezes
        area = side**2 * (min(width, height) / max(width, height) if padded else 1)
    assert view_scale(PRESETS[name], (width, height)) ** 2 * width * height == pytest.approx(area)


def test_the_cheapest_preset_that_fits_else_the_largest() -> None:
    size = (1024, 1024)
    assert fitting_preset([size], [33.0], 20.0) == "small"
    assert fitting_preset([size], [21.0], 20.0) == "base"
    assert fitting_preset([size], [17.0], 20.0) == "large"
    assert fitting_preset([A4], [23.0], 20.0) == "gundam"
    assert fitting_preset([A4], [9.0], 20.0) == "gundam"
    assert fitting_preset([size, size], [33.0, 21.0], 20.0) == "base"  # one preset for the batch
    assert fitting_preset([size], [None], 20.0) is None


def test_the_sentence_names_type_preset_and_cure() -> None:
    assert small_type("gundam", [A4], [23.0], 20.0) == ""
    assert small_type("small", [A4], [23.0], 20.0) == (
        "Type is about 10 px high in the view of small; the model reads 20 px and more: use gundam."
    )
    assert says(small_type("small", [A4], [9.0], 20.0), "gundam", "10 px")
    assert "cut the page into parts" in small_type("gundam", [A4], [9.0], 20.0)
    assert small_type("small", [A4], [None], 20.0) == ""


def test_tiny_takes_the_preset_that_fits(tiny_session: OCRSession) -> None:
    page = text_page(26.0, (800, 1_000))
    run = tiny_session.run_inference(page, preset="auto", **QUICK)
    assert (run.request["preset"], run.request["preset_choice"]) == ("base", "auto")
    assert run.page["preset"] == "base"
    assert run.request["type_px"][0] == pytest.approx(26, rel=0.15)
    assert tiny_session.prepare(page).views[0].preset.name == "base"

    def chosen(asked: str | None, *pages: Image.Image) -> tuple[str, str]:
        found = tiny_session._choose_preset(asked, [[page] for page in pages])
        return found["preset"], found["preset_choice"]

    assert chosen(None, page) == ("base", "auto")  # however it is spelled
    assert chosen(None, page, text_page(17.0, (800, 1_000))) == ("large", "auto")  # one preset for a batch
    assert chosen("tiny", page) == ("tiny", "asked")
    assert chosen(None, Image.new("RGB", (300, 300), "white")) == ("small", "default")
    RunSettings(preset="auto")
    with pytest.raises(OcrPhasesError, match="huge"):
        tiny_session.run_inference(page, preset="huge", **QUICK)


def test_other_models_keep_their_own_preset_and_nothing_is_said(golden_session: OCRSession) -> None:
    page = text_page(10.0, (600, 600))
    run = golden_session.run_inference(page, preset="auto", ignore_eos=True, **QUICK)
    assert (run.request["preset"], run.request["preset_choice"]) == ("gundam", "default")
    assert run.model["least_type_px"] is None
    assert type_warning(page, "deepseek-ai/DeepSeek-OCR", "tiny") == ""
    assert "invented" not in verdict(run)


def small_type_run(least: float | None = 20.0) -> PhaseRun:
    run = make_run()
    request = {**run.request, "type_px": [3.0], "preset_choice": "asked"}
    return dataclasses.replace(run, request=request, model={**run.model, "least_type_px": least})


def test_small_type_is_a_note_in_the_checks_and_stands_beside_the_text() -> None:
    run = small_type_run()
    (check,) = (check for check in run_checks(run) if check.name == "type_size")
    size = (run.page["width"], run.page["height"])
    sentence = small_type(run.request["preset"], [size], [3.0], 20.0)
    assert (check.verdict, check.measured) == ("note", sentence)
    for shown in (verdict(run), html.text_doubt_html(run), sections.text(run).html()):
        assert "may be invented" in shown
        assert sentence in shown
    large = small_type_run(least=2.0)
    (check,) = (check for check in run_checks(large) if check.name == "type_size")
    shown_px = type_shown(large.request["preset"], [size], [3.0])
    assert (check.verdict, check.measured) == ("pass", f"about {shown_px:.0f} px")
    for other in (large, small_type_run(least=None), make_run()):
        assert html.text_doubt_html(other) == ""


def test_the_command_line_warns_before_it_measures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "small.png"
    text_page(12.0, (800, 1_000)).save(page)
    command = ["profile", str(page), "--model", "tiny", "--preset", "small", "--device", "nowhere"]
    assert main(command) == 2
    told = capsys.readouterr().err.splitlines()
    assert says(told[0], "small.png", "px", "small")
    assert "nowhere" in told[1]
    command[command.index(str(page))] = str(PAGES / "receipt.png")
    assert main(command) == 2
    assert "Type" not in capsys.readouterr().err


def test_the_explorer_warns_before_run_is_pressed(tmp_path: Path) -> None:
    page = tmp_path / "small.png"
    text_page(17.0, (800, 1_000)).save(page)
    form = Form(page, "tiny", lambda handler: handler, widgets.HTML())
    assert form.warning.value == ""  # what fits is taken
    form.fields["preset"].value = "small"
    assert "in the view of small" in form.warning.value
    form.fields["model"].known.value = "dummy"
    assert form.warning.value == ""


def test_both_compression_ratios_are_named() -> None:
    run = make_run()
    assert run["generated_compression_ratio"] == run["tokens"] / run["valid_image_tokens"]
    result = {**run.result, "text_tokens": run["tokens"] + 90}
    shown = html.compression_html(dataclasses.replace(run, results=[result]))
    assert f"{run['tokens']:,} generated tokens" in shown
    assert f"tokenised again: {run['tokens'] + 90:,} tokens" in shown
