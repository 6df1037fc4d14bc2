"""The figures: what they say for every shape of record, and that they leave no state behind."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Callable

import matplotlib
import pytest
from example_run import make_run
from matplotlib.figure import Figure
from wording import says

from ocr_phases.record import PhaseRun
from ocr_phases.show.figures import figure_png
from ocr_phases.show.plots import (
    plot_memory,
    plot_phase_timeline,
    plot_token_latency,
    plot_vision_stages,
)

PLOTS = (plot_token_latency, plot_vision_stages, plot_phase_timeline, plot_memory)
Plot = Callable[[PhaseRun], Figure]


def words(figure: Figure) -> list[str]:
    texts = [text.get_text() for text in figure.findobj(matplotlib.text.Text)]
    return [text.replace("\n", " ") for text in texts if text]


@pytest.mark.parametrize("plot", PLOTS)
def test_no_type_is_smaller_than_nine_points(plot: Plot) -> None:
    figure = plot(make_run(cuda=True))
    figure.canvas.draw()
    sizes = {text.get_fontsize() for text in figure.findobj(matplotlib.text.Text) if text.get_text()}
    assert min(sizes) >= 9


def test_drawing_changes_no_setting_and_needs_no_pyplot() -> None:
    before = dict(matplotlib.rcParams)
    for plot in PLOTS:
        figure_png(plot(make_run()))
    assert dict(matplotlib.rcParams) == before
    program = "import sys, ocr_phases.show.plots; sys.exit('matplotlib.pyplot' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)


def test_latency_draws_both_clocks_on_cuda_and_the_floor_when_given() -> None:
    def labels(figure: Figure) -> set[str]:
        return {str(label) for label in figure.axes[0].get_legend_handles_labels()[1]}

    run = make_run(cuda=True)
    assert {"device, median", "host, median"} <= labels(plot_token_latency(run))
    seldom = dataclasses.replace(run, request={**run.request, "eos_check_every": 16})
    assert "host, median" not in labels(plot_token_latency(seldom))
    assert any(
        says(label, "floor", "1.00 ms") for label in labels(plot_token_latency(make_run(), floor_ms=1.0))
    )
    assert not any("floor" in label or "host" in label for label in labels(plot_token_latency(make_run())))


def test_memory_says_when_there_is_nothing() -> None:
    said = words(plot_memory(make_run(generate=True, memory=False)))
    assert len(said) == 1 and says(said[0], "peak memory", "KV cache")
    assert any(says(text, "Peak memory", "not") for text in words(plot_memory(make_run(memory=False))))
    assert any(says(text, "cache", "not") for text in words(plot_memory(make_run(generate=True))))


def test_a_plot_fits_the_caller_s_small_figure() -> None:
    figure = Figure(figsize=(5, 3))
    plot_token_latency(make_run(cuda=True), floor_ms=1.0, ax=figure.subplots())
    figure.draw_without_rendering()
    [axes] = figure.axes
    for artist in (axes.title, axes.xaxis.label, axes.yaxis.label, axes.get_legend()):
        box = artist.get_window_extent()
        assert figure.bbox.x0 <= box.x0 and box.x1 <= figure.bbox.x1
        assert figure.bbox.y0 <= box.y0 and box.y1 <= figure.bbox.y1
    assert axes.bbox.height > 0.25 * figure.bbox.height
