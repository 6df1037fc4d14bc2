"""A figure as SVG: no text of its own, nothing that reaches beyond it, colours that the page sets."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
from example_run import ATTACK, SHAPES, make_run
from matplotlib.figure import Figure

from ocr_phases.show import plots, regions
from ocr_phases.show.figures import STILL, Picture, figure_svg

PLOTS = (
    plots.plot_token_latency,
    plots.plot_vision_stages,
    plots.plot_phase_timeline,
    plots.plot_memory,
    regions.plot_region_types,
)


@pytest.mark.parametrize("plot", PLOTS)
@pytest.mark.parametrize("shape", ["crops", "cuda", "batch", "generate"])
def test_an_svg_stands_alone(plot: object, shape: str) -> None:
    text = figure_svg(plot(make_run(**SHAPES[shape])), 'A "figure" <of> time')
    root = ElementTree.fromstring(text)
    assert root.attrib["role"] == "img"
    assert root.attrib["aria-label"] == 'A "figure" <of> time'
    tags = {element.tag.rpartition("}")[2] for element in root.iter()}
    assert tags <= {"svg", "g", "path", "use", "defs", "clipPath", "rect"}
    ids = {element.attrib["id"] for element in root.iter() if "id" in element.attrib}
    targets = set(re.findall(r'(?:url\(|href=")#([^)"]+)', text))
    assert targets == ids
    assert "#222222;" not in text  # ink that no theme could change
    assert "http" not in text.replace('xmlns="http://www.w3.org/2000/svg"', "")


def test_what_the_model_wrote_is_no_text_in_it() -> None:
    text = figure_svg(regions.plot_region_types(make_run(text=ATTACK)), "x")
    assert "script" not in text
    assert "onload" not in text


def test_two_figures_of_one_page_share_no_id_and_one_is_always_the_same() -> None:
    run = make_run()
    first, second = (figure_svg(plot(run), "x") for plot in PLOTS[:2])
    assert not set(re.findall(r'id="([^"]+)"', first)) & set(re.findall(r'id="([^"]+)"', second))
    assert figure_svg(PLOTS[0](run), "x") == first


def test_white_type_stays_white_and_white_grounds_follow_the_page() -> None:
    figure = Figure(figsize=(3, 2))
    figure.text(0.5, 0.5, "on a bar", color="white", bbox={"facecolor": "white", "alpha": 0.7})
    text = figure_svg(figure, "x")
    assert "fill: #ffffff" in text
    assert "fill: var(--op-plot-surface, #ffffff)" in text


def test_a_picture_of_very_many_marks_comes_as_pixels_only() -> None:
    figure = Figure(figsize=(3, 2))
    axes = figure.subplots()
    small, _ = Picture(figure, "few")._repr_mimebundle_()
    assert set(small) == {"image/png", "text/plain", "text/html"}
    drawn, still, _ = small["text/html"].partition(STILL)
    assert drawn.count("<svg") == 1 and "<img" not in drawn and still
    axes.broken_barh([(place, 0.5) for place in range(5_000)], (0, 1))
    large, metadata = Picture(figure, "many")._repr_mimebundle_()
    assert set(large) == {"image/png", "text/plain"}
    assert metadata["image/png"] == {"width": 300, "alt": "many"}
