"""A figure as SVG: nothing that reaches beyond it, text as text, colours that the page sets."""

from __future__ import annotations

import dataclasses
import re
from xml.etree import ElementTree

import numpy as np
import pytest
from example_run import SHAPES, make_run
from matplotlib.figure import Figure

from ocr_phases.record import PhaseRun
from ocr_phases.show import page as page_view
from ocr_phases.show import plots
from ocr_phases.show.figures import PHASE_COLOURS, STAGE_COLOURS, STILL, Picture, figure_svg

PLOTS = (
    plots.plot_token_latency,
    plots.plot_vision_stages,
    plots.plot_phase_timeline,
    plots.plot_memory,
    page_view.plot_region_types,
)


@pytest.mark.parametrize("plot", PLOTS)
@pytest.mark.parametrize("shape", ["crops", "cuda", "batch", "generate"])
def test_an_svg_stands_alone(plot: object, shape: str) -> None:
    text = figure_svg(plot(make_run(**SHAPES[shape])), 'A "figure" <of> time')
    root = ElementTree.fromstring(text)
    assert root.attrib["role"] == "img"
    assert root.attrib["aria-label"] == 'A "figure" <of> time'
    tags = {element.tag.rpartition("}")[2] for element in root.iter()}
    assert tags <= {"svg", "g", "path", "use", "defs", "clipPath", "rect", "text"}
    ids = {element.attrib["id"] for element in root.iter() if "id" in element.attrib}
    targets = set(re.findall(r'(?:url\(|href=")#([^)"]+)', text))
    assert targets == ids
    assert "#222222;" not in text  # ink that no theme could change
    assert "http" not in text.replace('xmlns="http://www.w3.org/2000/svg"', "")


def test_type_is_text_in_the_fonts_that_it_was_measured_with() -> None:
    figure = plots.sentence_figure("A sentence")
    root = ElementTree.fromstring(figure_svg(figure, "x"))
    (text,) = (element for element in root.iter() if element.tag.endswith("}text"))
    assert text.text == "A sentence"
    assert "font-family" not in text.attrib["style"]
    assert "'DejaVu Sans', Verdana" in root.attrib["style"]


def test_white_grounds_follow_the_page() -> None:
    figure = Figure(figsize=(3, 2))
    figure.text(0.5, 0.5, "words", bbox={"facecolor": "white", "alpha": 0.7})
    assert "fill: var(--op-plot-surface, #ffffff)" in figure_svg(figure, "x")


def luminance(colour: str) -> float:
    """WCAG 2.1's relative luminance of ``#rrggbb``."""
    parts = [int(colour[place : place + 2], 16) / 255 for place in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return float(np.dot(linear, (0.2126, 0.7152, 0.0722)))


@pytest.mark.parametrize("colour", sorted({*PHASE_COLOURS.values(), *STAGE_COLOURS.values()}))
@pytest.mark.parametrize("page", ["#ffffff", "#1b2127"])
def test_every_colour_is_seen_on_a_light_and_on_a_dark_page(colour: str, page: str) -> None:
    dark, light = sorted(luminance(each) for each in (colour, page))
    assert (light + 0.05) / (dark + 0.05) >= 3


def test_a_figure_is_left_as_it_was() -> None:
    figure = plots.plot_memory(make_run())
    before = (figure.canvas, figure.dpi, figure.get_facecolor(), figure.axes[0].get_facecolor())
    figure_svg(figure, "x")
    assert before == (figure.canvas, figure.dpi, figure.get_facecolor(), figure.axes[0].get_facecolor())


def test_a_notebook_beside_its_html_file_has_words_for_a_still() -> None:
    data = Picture(plots.plot_memory(make_run()), "memory").bundle(still=False)
    drawn, still, words = data["text/html"].partition(STILL)
    assert set(data) == {"text/plain", "text/html"}
    assert drawn.count("<svg") == 1 and still and "HTML file beside" in words


@pytest.mark.parametrize("plot", PLOTS[:1] + PLOTS[2:4])
def test_a_long_record_has_as_many_marks_as_a_figure_has_room_for(plot: object) -> None:
    texts = [figure_svg(plot(long_run(steps)), "x") for steps in (4_000, 8_000)]
    marks = [text.count("<path") + len(re.findall("L ", text)) for text in texts]
    assert marks[1] <= 1.2 * marks[0] < 10_000
    assert all(len(text) < 300_000 for text in texts)


def long_run(steps: int) -> PhaseRun:
    """A record of ``steps`` decode steps, each its own time."""
    run = make_run(text="word" * steps, repeats=1)
    noise = np.random.default_rng(0).uniform(1, 2, len(run.spans))
    return dataclasses.replace(run, spans=run.spans.assign(device_ms=run.spans["device_ms"] * noise))
