"""Figures: what they say, legible and seen on any page; as SVG nothing that reaches beyond them."""

import dataclasses
import re
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest
from example_run import SHAPES, altered, make_run, paced
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.text import Text
from matplotlib.transforms import Bbox
from surface import plots_of, plots_on_axes
from wording import says

from ocr_phases.record.parts import to_plain
from ocr_phases.results.comparison import Comparison
from ocr_phases.results.run import RunPlots
from ocr_phases.show.boxes import time_colour, type_colour
from ocr_phases.show.colours import PHASE_COLOURS, STAGE_COLOURS
from ocr_phases.show.latency_plot import plot_latency
from ocr_phases.show.memory_plot import plot_memory
from ocr_phases.show.page import regions_html
from ocr_phases.show.shown_figure import STILL, figure_svg

#: All plots of a record but the page, which is a picture under its boxes and has no axes to label.
PLOTS = [name for name in plots_of(RunPlots) if name != "page"]
ON_AXES = [name for name in plots_on_axes(RunPlots) if name != "page"]


@pytest.mark.parametrize("plot", PLOTS)
@pytest.mark.parametrize("shape", ["cuda", "batch", "generate"])
def test_an_svg_stands_alone_and_leaves_its_figure_and_the_settings_as_they_were(plot, shape):
    settings = dict(matplotlib.rcParams)
    figure = getattr(make_run(**SHAPES[shape]).plot, plot)()
    figure.axes[0].set_title('A "figure" <of> time', loc="left")
    before = (figure.canvas, figure.dpi, figure.get_facecolor(), figure.axes[0].get_facecolor())
    text = figure_svg(figure)
    assert before == (
        figure.canvas,
        figure.dpi,
        figure.get_facecolor(),
        figure.axes[0].get_facecolor(),
    )
    assert dict(matplotlib.rcParams) == settings
    root = ElementTree.fromstring(text)
    assert root.attrib["role"] == "img"
    assert root.attrib["aria-label"].startswith('A "figure" <of> time')
    tags = {element.tag.rpartition("}")[2] for element in root.iter()}
    assert tags <= {"svg", "g", "path", "use", "defs", "clipPath", "rect", "text"}
    ids = {element.attrib["id"] for element in root.iter() if "id" in element.attrib}
    assert set(re.findall(r'(?:url\(|href=")#([^)"]+)', text)) == ids
    assert "#222222;" not in text  # ink that no theme could change
    assert "http" not in text.replace('xmlns="http://www.w3.org/2000/svg"', "")
    assert min(part.get_fontsize() for part in figure.findobj(Text) if part.get_text()) >= 9


def test_type_is_text_in_the_fonts_that_it_was_measured_with_and_white_follows_the_page():
    figure = Figure(figsize=(3, 2))
    figure.text(0.5, 0.5, "A sentence", bbox={"facecolor": "white", "alpha": 0.7})
    root = ElementTree.fromstring(drawn := figure_svg(figure))
    (text,) = (element for element in root.iter() if element.tag.endswith("}text"))
    assert text.text == "A sentence" and "font-family" not in text.attrib["style"]
    assert "'DejaVu Sans', Verdana" in root.attrib["style"]
    assert "fill: var(--op-card, #ffffff)" in drawn


def luminance(colour):
    """WCAG 2.1's relative luminance."""
    parts = to_rgb(colour)
    linear = [
        part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts
    ]
    return float(np.dot(linear, (0.2126, 0.7152, 0.0722)))


@pytest.mark.parametrize("page", ["#ffffff", "#1b2127"])
def test_every_colour_is_seen_on_a_light_and_on_a_dark_page(page):
    for colour in {*PHASE_COLOURS.values(), *STAGE_COLOURS.values()}:
        dark, light = sorted(luminance(each) for each in (colour, page))
        assert (light + 0.05) / (dark + 0.05) >= 3, colour


def test_a_notebook_beside_its_html_file_has_words_for_a_still():
    data = plot_memory(make_run()).bundle(still=False)
    drawn, still, after = data["text/html"].partition(STILL)
    assert set(data) == {"text/plain", "text/html"}
    assert drawn.count("<svg") == 1 and still and "HTML file beside" in after


@pytest.mark.parametrize("plot", (plot_latency, plot_memory))
def test_a_long_record_has_as_many_marks_as_a_figure_has_room_for(plot):
    texts = []
    for steps in (4_000, 8_000):
        run = make_run(text="word" * steps, repeats=1)
        noise = np.random.default_rng(0).uniform(1, 2, len(run.spans))
        spans = run.spans.assign(device_ms=run.spans["device_ms"] * noise)
        texts.append(figure_svg(plot(dataclasses.replace(run, spans=spans))))
    marks = [text.count("<path") + len(re.findall("L ", text)) for text in texts]
    assert marks[1] <= 1.2 * marks[0] < 10_000
    assert all(len(text) < 300_000 for text in texts)


def test_latency_draws_both_clocks_where_the_host_reads_every_token():
    run = make_run(cuda=True)
    seldom = altered(run, request={**to_plain(run.request), "eos_check_every": 16})
    for each, clocks in ((run, {"device, median", "host, median"}), (seldom, {"device, median"})):
        labels = set(plot_latency(each).axes[0].get_legend_handles_labels()[1])
        assert labels & {"device, median", "host, median"} == clocks


def test_memory_says_when_there_is_nothing():
    def words(**shape):
        texts = plot_memory(make_run(**shape)).findobj(Text)
        return [text.get_text().replace("\n", " ") for text in texts if text.get_text()]

    (sentence,) = words(generate=True, memory=False)
    assert says(sentence, "peak memory", "KV cache")
    assert any(says(text, "Peak memory", "not") for text in words(memory=False))
    assert any(says(text, "cache", "not") for text in words(generate=True))


@pytest.mark.parametrize("plot", PLOTS)
def test_a_figure_has_room_for_all_of_it_and_leaves_none(plot):
    figure = getattr(make_run(cuda=True).plot, plot)()
    figure.draw_without_rendering()
    boxes = [axes.get_tightbbox().padded(-1) for axes in figure.axes]
    assert all(figure.bbox.fully_containsx(x) for box in boxes for x in box.intervalx)
    assert all(figure.bbox.fully_containsy(y) for box in boxes for y in box.intervaly)
    assert Bbox.union(boxes).width > 0.96 * figure.bbox.width


@pytest.mark.parametrize("plot", ON_AXES)
def test_a_plot_fits_the_caller_s_small_figure(plot):
    figure = Figure(figsize=(5, 3))
    getattr(make_run(cuda=True).plot, plot)(ax=figure.subplots())
    figure.draw_without_rendering()
    [axes] = figure.axes
    said = [axes.xaxis.label, axes.yaxis.label, *axes.texts, *axes.findobj(Legend)]
    for artist in (each for each in said if isinstance(each, Legend) or each.get_text()):
        box = artist.get_window_extent()
        assert figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1
        assert figure.bbox.y0 <= box.y0 and box.y1 <= figure.bbox.y1
    assert axes.bbox.height > 0.25 * figure.bbox.height


def test_ratios_on_small_axes_are_the_largest_that_can_be_read():
    base = make_run(cuda=True)
    runs = [base, paced(base, 1.01), paced(base, 3.0, stage="sam"), paced(base, 0.3, stage="sam")]
    figure, compared = Figure(figsize=(5, 3)), Comparison(runs, ["a", "b", "c", "d"])
    whole = compared.plot.ratios().axes[0].get_yticklabels()
    compared.plot.ratios(ax=figure.subplots())
    figure.draw_without_rendering()
    names = figure.axes[0].get_yticklabels()
    boxes = [name.get_window_extent() for name in names]
    assert all(over.y0 >= under.y1 for over, under in zip(boxes, boxes[1:], strict=False))
    assert figure.axes[0].get_title("left") == f"Largest of {len(whole)} changes"
    assert [name.get_text() for name in names if name.get_text()[0] != "b"] == [
        "c  vision",
        "d  vision",
    ]
    assert len(whole) > len(names) > 3


def test_regions_come_the_costliest_first_and_type_stands_out_from_its_ground():
    table, shown = (
        make_run().regions,
        make_run().plot.page(color="time").axes[0].images[0].get_array(),
    )
    assert (shown == np.round(np.multiply(255, to_rgb(time_colour(1.0))))).all(axis=2).any()
    ranks = table["decode_ms"].rank(ascending=False, method="first").astype(int)
    ranked = re.findall(
        r"rank\d\d", regions_html(table.assign(label=[f"rank{rank:02}" for rank in ranks]))
    )
    assert len(ranked) > 1 and ranked == sorted(ranked)
    assert (
        type_colour("#00ff00")
        == type_colour("#ffffff")
        != type_colour("#0000ff")
        == type_colour("#000000")
    )
