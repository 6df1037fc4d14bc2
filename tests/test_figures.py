"""Figures: what they say, legible and seen on any page; as SVG nothing that reaches beyond them."""

import dataclasses
import re
from collections.abc import Callable
from itertools import pairwise
from typing import Any
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest
from example_run import SHAPES, altered, example, make_run, paced, with_steps
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.legend import Legend
from matplotlib.text import Text
from matplotlib.transforms import Bbox
from surface import plots_of, plots_on_axes
from wording import says

from ocr_phases import PhaseRun
from ocr_phases.results.comparison import Comparison
from ocr_phases.results.run import RunPlots
from ocr_phases.show.boxes import time_colour, type_colour
from ocr_phases.show.colours import PHASE_COLOURS, STAGE_COLOURS
from ocr_phases.show.latency_plot import plot_latency
from ocr_phases.show.memory_plot import plot_memory
from ocr_phases.show.page import plot_page, regions_html
from ocr_phases.show.shown_figure import STILL, figure_svg

#: All plots of a record but the page, which is a picture under its boxes and has no axes to label.
PLOTS = [name for name in plots_of(RunPlots) if name != "page"]
ON_AXES = [name for name in plots_on_axes(RunPlots) if name != "page"]


def draw(run: PhaseRun, plot: str) -> Figure:
    """The plot of a record by its name."""
    return getattr(run.plot, plot)()


def texts_of(figure: Figure) -> list[Text]:
    """The texts of a figure that have words."""
    return [text for text in figure.findobj(Text) if text.get_text()]


# -- a figure as SVG -------------------------------------------------------------------------------

#: The elements that a figure may consist of.
SVG_TAGS = {"svg", "g", "path", "use", "defs", "clipPath", "rect", "text"}


@pytest.fixture(scope="module", params=["cuda", "batch", "generate"])
def run(request: pytest.FixtureRequest) -> PhaseRun:
    """A record of each kind whose figures differ."""
    return example(**SHAPES[request.param])


@pytest.fixture(scope="module")
def matplotlib_settings() -> dict[str, Any]:
    """The settings of matplotlib before a figure was drawn."""
    return dict(matplotlib.rcParams)


@pytest.fixture(scope="module", params=PLOTS)
def figure(
    request: pytest.FixtureRequest, run: PhaseRun, matplotlib_settings: dict[str, Any]
) -> Figure:
    """Each figure of each of these records, with a title that has to be escaped."""
    figure = draw(run, request.param)
    figure.axes[0].set_title('A "figure" <of> time', loc="left")
    return figure


def look_of(figure: Figure) -> tuple[object, ...]:
    """What of a figure a drawing may change for its own time only."""
    background = figure.axes[0].get_facecolor()
    return figure.canvas, figure.dpi, figure.get_facecolor(), background


def tag_of(element: ElementTree.Element) -> str:
    """An element's name without its namespace."""
    return element.tag.rpartition("}")[2]


def test_drawing_an_svg_changes_neither_its_figure_nor_a_setting(
    figure: Figure, matplotlib_settings: dict[str, Any]
) -> None:
    look = look_of(figure)

    figure_svg(figure)

    assert look_of(figure) == look
    assert dict(matplotlib.rcParams) == matplotlib_settings


def test_an_svg_stands_alone(figure: Figure) -> None:
    svg = figure_svg(figure)

    root = ElementTree.fromstring(svg)
    assert root.attrib["role"] == "img"
    assert root.attrib["aria-label"].startswith('A "figure" <of> time')
    assert {tag_of(element) for element in root.iter()} <= SVG_TAGS
    ids = {element.attrib["id"] for element in root.iter() if "id" in element.attrib}
    assert set(re.findall(r'(?:url\(|href=")#([^)"]+)', svg)) == ids
    assert "#222222;" not in svg  # ink that no theme could change
    assert "http" not in svg.replace('xmlns="http://www.w3.org/2000/svg"', "")


def test_the_type_of_a_figure_is_large_enough_to_read(figure: Figure) -> None:
    for text in texts_of(figure):
        assert text.get_fontsize() >= 9, text.get_text()


def test_type_is_text_in_the_fonts_that_it_was_measured_with_and_white_follows_the_page() -> None:
    figure = Figure(figsize=(3, 2))
    figure.text(0.5, 0.5, "A sentence", bbox={"facecolor": "white", "alpha": 0.7})

    svg = figure_svg(figure)

    root = ElementTree.fromstring(svg)
    (text,) = [element for element in root.iter() if tag_of(element) == "text"]
    assert text.text == "A sentence"
    assert "font-family" not in text.attrib["style"]
    assert "'DejaVu Sans', Verdana" in root.attrib["style"]
    assert "fill: var(--op-card, #ffffff)" in svg


def test_a_notebook_beside_its_html_file_has_words_for_a_still() -> None:
    data = plot_memory(example()).bundle(still=False)

    assert set(data) == {"text/plain", "text/html"}
    svg, still, words = data["text/html"].partition(STILL)
    assert svg.count("<svg") == 1
    assert still
    assert "HTML file beside" in words


def long_run(steps: int) -> PhaseRun:
    """A record of so many tokens whose times differ."""
    run = example(text="word" * steps, repeats=1)
    noise = np.random.default_rng(0).uniform(1, 2, len(run.spans))
    spans = run.spans.assign(device_ms=run.spans["device_ms"] * noise)
    return dataclasses.replace(run, spans=spans)


def count_marks(svg: str) -> int:
    """How many paths and straight lines a figure consists of."""
    return svg.count("<path") + svg.count("L ")


@pytest.mark.parametrize("plot", [plot_latency, plot_memory])
def test_a_long_record_has_as_many_marks_as_a_figure_has_room_for(
    plot: Callable[[PhaseRun], Figure],
) -> None:
    svg = figure_svg(plot(long_run(4_000)))
    svg_of_twice_as_long = figure_svg(plot(long_run(8_000)))

    assert count_marks(svg) < 10_000
    assert count_marks(svg_of_twice_as_long) <= 1.2 * count_marks(svg)
    for each in (svg, svg_of_twice_as_long):
        assert len(each) < 300_000


# -- colours ---------------------------------------------------------------------------------------


def linear_light(part: float) -> float:
    """A part of an sRGB colour as light, by WCAG 2.1."""
    if part <= 0.04045:
        return part / 12.92
    return ((part + 0.055) / 1.055) ** 2.4


def luminance(colour: str) -> float:
    """WCAG 2.1's relative luminance."""
    red, green, blue = [linear_light(part) for part in to_rgb(colour)]
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    """WCAG 2.1's contrast ratio."""
    darker, lighter = sorted([luminance(one), luminance(other)])
    return (lighter + 0.05) / (darker + 0.05)


@pytest.mark.parametrize("page", ["#ffffff", "#1b2127"])
def test_every_colour_is_seen_on_a_light_and_on_a_dark_page(page: str) -> None:
    for colour in {*PHASE_COLOURS.values(), *STAGE_COLOURS.values()}:
        assert contrast(colour, page) >= 3, colour


def test_type_stands_out_from_its_ground() -> None:
    on_light = type_colour("#ffffff")
    on_dark = type_colour("#000000")

    assert on_light != on_dark
    assert type_colour("#00ff00") == on_light
    assert type_colour("#0000ff") == on_dark


# -- what figures say ------------------------------------------------------------------------------


def slow_in_one_repeat(step: int, repeat: int) -> float:
    return 50.0 if (step, repeat) == (30, 1) else 4.0


def slow_in_every_repeat(step: int, _repeat: int) -> float:
    return 50.0 if step == 30 else 4.0


def not_very_slow(step: int, _repeat: int) -> float:
    return 6.2 if step == 30 else 4.0 + 0.01 * (step % 3)


#: Times of steps, how the slow one is named, and the legend's words for its mark. The scale follows
#: the usual steps, so that only the last one's is within it.
SLOW_STEPS = [
    (slow_in_one_repeat, "50.0 ms in its slowest repeat", "outlier above the plot"),
    (slow_in_every_repeat, ": 50.0 ms", "outlier above the plot"),
    (not_very_slow, ": 6.20 ms", "outlier: a far slower step"),
]


@pytest.mark.parametrize(("ms", "name", "label"), SLOW_STEPS)
def test_an_outlier_is_marked_above_the_median_at_the_time_that_its_name_says(
    ms: Callable[[int, int], float], name: str, label: str
) -> None:
    run = with_steps(make_run(repeats=5), ms)

    (axes,) = plot_latency(run).axes

    (text,) = (text.get_text() for text in axes.texts)
    assert text.startswith("token 32 ")
    assert text.endswith(name)
    (marks,) = (line for line in axes.lines if line.get_label().startswith("outlier"))
    assert marks.get_label() == label
    assert marks.get_xdata().tolist() == [32]
    top = axes.get_ylim()[1]
    assert marks.get_ydata().tolist() == [pytest.approx(min(top, ms(30, 1)))]


def clocks_drawn(run: PhaseRun) -> set[str]:
    """The clocks whose latencies a record's plot has lines of."""
    _, labels = plot_latency(run).axes[0].get_legend_handles_labels()
    return {"device, median", "host, median"} & set(labels)


def test_latency_draws_both_clocks_only_where_the_host_reads_every_token() -> None:
    run = example(cuda=True)
    seldom_read = altered(run, request={"eos_check_every": 16})

    assert clocks_drawn(run) == {"device, median", "host, median"}
    assert clocks_drawn(seldom_read) == {"device, median"}


def memory_sentences(**shape: bool) -> list[str]:
    """What the memory plot says of a record of this shape."""
    figure = plot_memory(example(**shape))
    return [text.get_text().replace("\n", " ") for text in texts_of(figure)]


def test_memory_says_when_there_is_nothing() -> None:
    (sentence,) = memory_sentences(generate=True, memory=False)

    assert says(sentence, "peak memory", "KV cache")


def test_memory_says_when_no_peak_was_measured() -> None:
    assert any(says(text, "Peak memory", "not") for text in memory_sentences(memory=False))


def test_memory_says_when_no_cache_was_measured() -> None:
    assert any(says(text, "cache", "not") for text in memory_sentences(generate=True))


def test_regions_come_the_costliest_first() -> None:
    regions = example().regions
    ranks = regions["decode_ms"].rank(ascending=False, method="first").astype(int)
    ranked = regions.assign(label=[f"rank{rank:02}" for rank in ranks])

    shown = re.findall(r"rank\d\d", regions_html(ranked))

    assert len(shown) > 1
    assert shown == sorted(shown)


def test_the_costliest_region_of_a_page_has_the_last_colour_of_the_scale() -> None:
    picture = example().plot.page(color="time").axes[0].images[0].get_array()

    last_colour = np.round(np.multiply(255, to_rgb(time_colour(1.0))))
    assert (picture == last_colour).all(axis=2).any()


# -- room ------------------------------------------------------------------------------------------


def assert_inside(box: Bbox, figure: Figure) -> None:
    """A part of a figure does not reach beyond it."""
    assert figure.bbox.x0 <= box.x0
    assert box.x1 <= figure.bbox.x1
    assert figure.bbox.y0 <= box.y0
    assert box.y1 <= figure.bbox.y1


@pytest.mark.parametrize("plot", PLOTS)
def test_a_figure_has_room_for_all_of_it_and_leaves_none(plot: str) -> None:
    figure = draw(example(cuda=True), plot)

    figure.draw_without_rendering()

    boxes = [axes.get_tightbbox().padded(-1) for axes in figure.axes]
    for box in boxes:
        assert_inside(box, figure)
    assert Bbox.union(boxes).width > 0.96 * figure.bbox.width


@pytest.mark.parametrize("plot", ON_AXES)
def test_a_plot_fits_the_callers_small_figure(plot: str) -> None:
    figure = Figure(figsize=(5, 3))
    axes = figure.subplots()

    getattr(example(cuda=True).plot, plot)(ax=axes)
    figure.draw_without_rendering()

    assert figure.axes == [axes]
    texts = [axes.xaxis.label, axes.yaxis.label, *axes.texts]
    with_words = [text for text in texts if text.get_text()]
    for artist in [*with_words, *axes.findobj(Legend)]:
        assert_inside(artist.get_window_extent(), figure)
    assert axes.bbox.height > 0.25 * figure.bbox.height


def test_ratios_on_small_axes_are_the_largest_that_can_be_read() -> None:
    base = example(cuda=True)
    slower_sam = paced(base, 3.0, stage="sam")
    faster_sam = paced(base, 0.3, stage="sam")
    comparison = Comparison([base, paced(base, 1.01), slower_sam, faster_sam], ["a", "b", "c", "d"])
    changes = len(comparison.plot.ratios().axes[0].get_yticklabels())
    figure = Figure(figsize=(5, 3))
    axes = figure.subplots()

    comparison.plot.ratios(ax=axes)
    figure.draw_without_rendering()

    labels = axes.get_yticklabels()
    assert 3 < len(labels) < changes
    assert axes.get_title("left") == f"Largest of {changes} changes"
    boxes = [label.get_window_extent() for label in labels]
    for upper, lower in pairwise(boxes):
        assert upper.y0 >= lower.y1
    names = [label.get_text() for label in labels]
    assert [name for name in names if not name.startswith("b")] == ["c  vision", "d  vision"]


def test_words_on_a_page_are_larger_where_the_page_is_drawn_small() -> None:
    run = make_run()
    own_size = plot_page(run).axes[0].images[0].get_array()

    axes = Figure(figsize=(2, 2)).subplots()
    small = plot_page(run, ax=axes).axes[0].images[0].get_array()

    assert own_size.shape == small.shape
    assert not np.array_equal(own_size, small)
